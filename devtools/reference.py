"""Writes the pages of the reference that are made from the code: commands, settings, error codes.

`python3 dev.py docs` runs it; a test says when a page is out of date.
"""

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from shigoto.app import Shigoto
from shigoto.cli import COMMANDS, program
from shigoto.cli.settings import key_of, worker_options
from shigoto.model import errors
from shigoto.model.errors import ShigotoError
from shigoto.model.job import FailureKind
from shigoto.observe.metrics import FAMILIES
from shigoto.server.problems import STATUS
from shigoto.server.routing import document
from shigoto.server.service import Service, make_api

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
PACKAGE = ROOT / "src" / "shigoto"
WIDTH = 88
MADE = "<!-- Made by `python3 dev.py docs reference` from the code. Do not edit. -->"

KINDS = {
    FailureKind.ERROR: "The handler raised, and no retries are left, or the policy gave up.",
    FailureKind.TIMEOUT: "The run passed its time limit, and no retries are left.",
    FailureKind.REJECTED: "The handler raised `Fail`.",
    FailureKind.PAYLOAD_INVALID: "The stored arguments do not fit the task's function.",
    FailureKind.RESULT_INVALID: "The return value cannot be stored, or is too large. The effect has happened.",
    FailureKind.UNKNOWN_TASK: "No worker knew the task for too long.",
    FailureKind.EXPIRED: "It was not started before its `expires`.",
    FailureKind.SNOOZED_OUT: "It was snoozed more than 1 000 times.",
    FailureKind.SUPERSEDED: "A newer job took its key over while it ran, and it did not complete.",
    FailureKind.CRASH_LOOP: "It killed its process `max_crashes` times while it ran alone: quarantine.",
}


COMMANDS_PAGE = f"""# Command line

{MADE}

[The command line](../guides/cli.md) shows how these are used.
Exit codes: 0 for success, 1 for an error, 2 for a misuse, 130 after Ctrl-C.
With `--json` an error is one JSON object on standard error, with its [code](errors.md).

%(overview)s

%(commands)s
"""

SETTINGS_PAGE = f"""# Configuration

{MADE}

Settings stand in `shigoto.toml`, or else in the table `[tool.shigoto]` of `pyproject.toml`, in the current folder.
`$SHIGOTO_CONFIG` names another file.
A variable wins over the file, and a flag over both.
The store is that of `--url`, of the `STORE` of the command, of the variable, of the file or of the app, in this order.
`shigoto config --origin` shows what holds and where it comes from.
A key that does not exist, or a value that cannot be meant, is an error.

```toml
# shigoto.toml
app = "shop:app"
url = "sqlite:///jobs.db"

[worker]
processes = 4
queues = ["mail", "reports"]
stop-timeout = 28
```

## All commands

| key | variable | flag | what |
| --- | --- | --- | --- |
| `app` | `SHIGOTO_APP` | `--app` | Your app, as `module:attr`. |
| `url` | `SHIGOTO_URL` | `--url` | The store: a file, `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`. |

## The worker

In the table `[worker]`.

%(worker)s

`$WORKER_COUNT` is the number of processes where no app is given and nothing else says how many.

## The app

Every process that makes an app reads these, unless its code says something else: those that enqueue, too.

| variable | keyword of `Shigoto` | what |
| --- | --- | --- |
| `SHIGOTO_TRACES` | `traces` | Traces with OpenTelemetry: on, off, or the share of traces to begin, such as 0.01. |
| `SHIGOTO_OTLP_METRICS` | `traces` | With traces, metrics by OTLP, too: on or off. |
| `SHIGOTO_SENTRY` | `sentry` | Final failures to `$SENTRY_DSN`: on or off. |
| `SHIGOTO_ENCRYPTION_KEYS` | `encryption` | Keys as `ID:BASE64` with spaces between them, the current one first. |
| `SHIGOTO_ENCRYPTION_KEY_FILE` | `encryption` | The file that has them, one on a line. |
| `SHIGOTO_REDACT` | | What else is [masked by its name](../guides/secrets.md#by-its-name): `*iban*, !session_token`. |

## Notifications

For whoever delivers messages: workers of an app with rules, and `shigoto notify test`.
They are read from the environment only, since some are secret; see [Notifications](../guides/notifications.md).

| variable | what |
| --- | --- |
| `SHIGOTO_MAIL_TO` | Who gets mail that is for nobody in particular, with commas between. |
| `SHIGOTO_MAIL_FROM` | From whom it is. |
| `SHIGOTO_SMTP_URL` | By which server it is sent: `smtp://user@host:587`, `smtps://user@host`. |
| `SHIGOTO_SMTP_PASSWORD` | The password of that user. |
| `SHIGOTO_WEBHOOK_SECRET` | What webhooks are signed with, unless they name another; several with spaces between. |
| `SHIGOTO_EGRESS` | If it is set, the only hosts that webhooks may go to, with commas between. |
"""

TREE_PAGE = f"""# The tree

{MADE}

Every module of the package with the first line of its docstring.
`ARCHITECTURE.md` at the root of the repository has the layers and the path of a job.

%(tree)s
"""

ERRORS_PAGE = f"""# Error codes

{MADE}

Every error has a `code`, which is stable and made for programs; the text is made for people.
The command line prints it in brackets, and as `code` with `--json`.

%(errors)s

The dots show the tree: `except JobError` catches all that stand below it.
Two more codes belong to the command line alone: `CLI.USAGE` and `CLI.SYSTEM`.
The first is for words that cannot be understood, the second for what the operating system refused.

## Kinds of failure

A job that is `failed` says why, as `job.failure_kind` and in the lists of the command line.

%(kinds)s
"""

HTTP_PAGE = f"""# HTTP

{MADE}

[Over HTTP](../guides/http.md) shows how this is used.
`GET /api/v1/openapi.json` of a running server is the same for programs, with every schema in full.

- All routes but those of health, and the OpenAPI document, need `Authorization: Bearer TOKEN`, with one of the scopes.
  `admin` implies `read`. A server that listens on this machine only needs none, until the first token is made.
- Bodies are JSON, sent with `Content-Type: application/json`; fields that are not known are refused.
- Times are RFC 3339 in UTC, durations are seconds.
- `?` marks what may be left out.
- There is no gRPC and no WebSocket.

%(routes)s

## Statuses and codes

Every answer that is no success is `application/problem+json`: `type`, `title`, `status`, `code`, `detail`, `field`.
[Error codes](errors.md) says what each means; the nearest class that stands here decides.

%(statuses)s

## Kinds

What routes take and give.

%(schemas)s
"""


METRICS_PAGE = f"""# Metrics

{MADE}

What `/metrics` shows; [the guide](../guides/metrics.md) says where, and what to make of it.
A counter is read with `_total` behind its name, a histogram as `_bucket`, `_sum` and `_count`.

%(metrics)s

## In a program of your own

::: shigoto.observe.metrics.Metrics
"""


def pages() -> dict[Path, str]:
    """The generated pages as they should be."""
    api = document(make_api(Service(Shigoto("memory:"))))
    return {
        FOLDER / "http.md": HTTP_PAGE
        % {"routes": routes(api), "statuses": statuses(), "schemas": schemas(api)},
        FOLDER / "cli.md": COMMANDS_PAGE % {"overview": _help(program, "shigoto"), "commands": commands()},
        FOLDER / "configuration.md": SETTINGS_PAGE % {"worker": settings()},
        FOLDER / "metrics.md": METRICS_PAGE % {"metrics": metrics()},
        FOLDER / "errors.md": ERRORS_PAGE % {"errors": codes(), "kinds": kinds()},
        FOLDER / "tree.md": TREE_PAGE % {"tree": tree()},
    }


def tree() -> str:
    """A table for each folder of the package, with its modules and files of SQL."""
    parts: list[str] = []
    for folder in [PACKAGE, *sorted(path for path in PACKAGE.rglob("*") if path.is_dir())]:
        files = sorted(path for path in folder.iterdir() if path.suffix in {".py", ".sql"})
        rows = [[f"`{path.name}`", _idea(path)] for path in files if path.name != "__init__.py"]
        if rows:
            name = folder.relative_to(PACKAGE.parent).as_posix()
            parts.append(f"## `{name}/`\n\n" + _table(["file", "idea"], rows))
    return "\n\n".join(parts)


def _idea(path: Path) -> str:
    """The first paragraph of a module's docstring, or of the comment at the head of a file of SQL."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        head = ast.get_docstring(ast.parse(text)) or ""
    else:
        lines = itertools.takewhile(lambda line: line.startswith("--"), text.splitlines())
        head = "\n".join(line.removeprefix("--").strip() for line in lines)
    paragraph = " ".join(head.split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".:")


def metrics() -> str:
    """Every metric, in the order in which they are shown."""
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} | {each.help} |"
        for each in FAMILIES.values()
    ]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])


def commands() -> str:
    """Every command, with its help."""
    parts = []
    for name in COMMANDS:
        command = program.get_command(click.Context(program), name)
        assert command is not None
        parts.append(f"## {name}\n\n{_help(command, f'shigoto {name}')}")
        if isinstance(command, click.Group):
            for word, part in command.commands.items():
                parts.append(f"### {name} {word}\n\n{_help(part, f'shigoto {name} {word}')}")
    return "\n\n".join(parts)


def settings() -> str:
    """Every setting of the worker: its key in a file, its variable, its flag."""
    return _table(
        ["key", "variable", "flag", "what", "default"],
        [
            [
                f"`{key_of(option)}`",
                f"`{option.envvar}`",
                f"`{option.opts[0]}`",
                _meaning(option),
                _default(option),
            ]
            for option in worker_options().values()
        ],
    )


def codes() -> str:
    """The tree of errors, with their codes."""
    return _table(
        ["class", "code", "meaning"],
        [
            [f"{'· ' * depth}`{error.__name__}`", f"`{error.code}`", _first_line(error)]
            for depth, error in _tree(ShigotoError)
        ],
    )


def kinds() -> str:
    """Why a job can have failed."""
    return _table(["kind", "meaning"], [[f"`{kind}`", KINDS[kind]] for kind in FailureKind])


def routes(api: dict[str, Any]) -> str:
    """Every route, by what it is about."""
    parts: dict[str, list[list[str]]] = {}
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).values()
            query = [
                f"`{'?' if not each['required'] else ''}{each['name']}`"
                for each in operation.get("parameters", ())
                if each["in"] != "path"
            ]
            done = next(each for status, each in operation["responses"].items() if int(status) < 300)
            given = [_kind(each["schema"]) for each in done.get("content", {}).values()]
            row = [
                f"`{method.upper()} {path}`",
                ", ".join(operation.get("x-scopes", ["anybody"])),
                ", ".join([*(_kind(each["schema"]) for each in content), *query]),
                ", ".join(given) or "nothing",
                " ".join(operation["description"].split("\n\n")[0].split()),
            ]
            parts.setdefault(operation["tags"][0], []).append(row)
    head = ["route", "scope", "takes", "gives", "what"]
    return "\n\n".join(f"## {part}\n\n{_table(head, rows)}" for part, rows in parts.items())


def statuses() -> str:
    """Which error is told with which status."""
    by_status: dict[int, list[str]] = {}
    for kind, status in STATUS.items():
        by_status.setdefault(status, []).append(f"`{kind.code}`")
    return _table(
        ["status", "codes"], [[f"{status}", ", ".join(codes)] for status, codes in sorted(by_status.items())]
    )


def schemas(api: dict[str, Any]) -> str:
    """Every kind, with its fields."""
    parts = []
    for name, schema in api["components"]["schemas"].items():
        about = " ".join(schema.get("description", "").split())
        parts.append(f"### {name}\n\n{about}")
        if "properties" in schema:
            needed = set(schema.get("required", ()))
            rows = [
                [f"`{'' if field in needed else '?'}{field}`", _kind(each)]
                for field, each in schema["properties"].items()
            ]
            parts.append(_table(["field", "type"], rows))
    return "\n\n".join(parts)


def _kind(schema: dict[str, Any]) -> str:
    """A JSON Schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    bounds = [
        text.format(schema[word])
        for word, text in {
            "minimum": "from {}",
            "maximum": "to {}",
            "minLength": "at least {} long",
            "maxLength": "at most {} long",
        }.items()
        if word in schema
    ]
    kind = schema.get("format", kind)
    return re.sub(r"(\.0)\b", "", " ".join([kind, *bounds]))


def _help(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name, terminal_width=WIDTH, help_option_names=["-h", "--help"])
    return f"```text\n{command.get_help(context).rstrip()}\n```"


def _meaning(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return f"{option.help or ''} One of {', '.join(option.type.choices)}.".lstrip()
    return option.help or ""


def _default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    if option.is_flag:
        return "yes" if option.default else "no"
    return f"{option.default}" if isinstance(option.default, int | float | str) else ""


def _tree(root: type[ShigotoError], depth: int = 0) -> Iterator[tuple[int, type[ShigotoError]]]:
    yield depth, root
    for error in root.__subclasses__():
        if inspect.getmodule(error) is errors:
            yield from _tree(error, depth + 1)


def _first_line(error: type[ShigotoError]) -> str:
    return inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def main() -> int:
    """Write what has changed."""
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
