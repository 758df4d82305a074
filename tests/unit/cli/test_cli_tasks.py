"""The catalogue of tasks: `shigoto tasks`."""

import inspect
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from shigoto import Retry, demo
from shigoto import demo as demo_tasks
from shigoto.app import load_app
from shigoto.cli import output
from shigoto.cli.tasks import in_words, page, tasks_table
from shigoto.demo import Payload
from shigoto.server.task_catalog import waits
from tests.unit.cli.pages import SnapshotCheck, session
from tests.unit.commands import Command, command
from tests.unit.schemas import accepts

SHOP = '''\
from uuid import UUID

from shigoto import Context, Retry, Shigoto

app = Shigoto("sqlite:///shop.db", imports=["catalogue_more"])

@app.task(queue="mail", aliases=["mail_to"], timeout=60, soft_timeout=50, retry=Retry.linear(minutes=5, retries=3),
          priority=5, expires=3600, tags=["vip"], max_crashes=None)
async def send(ctx: Context, to: UUID, copies: int = 1) -> str:
    """Send a letter.

    By mail.
    """
    return "sent"

@app.task(executor="process", exclusive=True, retry=Retry.never())
def count() -> int: ...
'''
MORE = """\
from catalogue_shop import app

@app.task
def broken(what: "Nowhere") -> None: ...
"""


@pytest.fixture
def shigoto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Runs a command in a current directory with a shop."""
    for name in list(os.environ):
        if name.startswith("SHIGOTO_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("catalogue_shop.py").write_text(SHOP)
    Path("catalogue_more.py").write_text(MORE)
    modules = set(sys.modules)
    yield command(capsys)
    assert not list(tmp_path.glob("*.db")), "a catalogue needs no store"
    for name in set(sys.modules) - modules:
        if not name.startswith("shigoto"):
            del sys.modules[name]


@pytest.mark.parametrize("width", [30, 40, 80, 100])
def test_the_names_of_tasks_are_the_last_to_be_cut(width: int) -> None:
    _, *rows = tasks_table(demo.app("memory:"), width)

    assert [row.split()[0] for row in rows] == list(demo.app("memory:").tasks)
    assert all(output.cells(row) <= width for row in rows)


def test_a_name_that_is_wider_than_the_terminal_is_cut() -> None:
    [_, row, *_] = tasks_table(demo.app("memory:"), 8)

    assert row == "user_cr…"


CRONS = """\
from shigoto import Shigoto, Tick

app = Shigoto("memory:")

@app.cron("0 3 * * *", tz="Asia/Tokyo", retries=2)
def aggregate(tick: Tick) -> None: ...

@app.every("5m")
def expire() -> None: ...

@app.task
def report(kind: str) -> None: ...

app.schedule("weekly", "@weekly", call=report.call("short"))
app.schedule("monthly", "@monthly", call=lambda tick: report.call("long"))
"""


def test_the_catalogue_tells_of_all_tasks_and_of_one_in_full(
    shigoto: Command, snapshot: SnapshotCheck
) -> None:
    """S0-64: a job type is a decorated function, and is there as soon as it is declared. S3-70: name, kind, cron,
    origin and attempts of every task."""
    Path("catalogue_crons.py").write_text(CRONS)
    shop, crons = "shigoto --app catalogue_shop tasks", "shigoto --app catalogue_crons tasks"
    # These lines move with every change of shigoto/demo.py; test_the_built_in_tasks_are_declared_where_they_are.
    built_in = re.sub(r"shigoto\.demo:\d+", "shigoto.demo:NNN", session(shigoto, "shigoto tasks"))
    aggregate, _, _ = session(shigoto, f"{crons} aggregate").partition("JSON Schema")
    records = [
        shigoto("--app", "catalogue_shop", "tasks", "send", "--json").json,
        *shigoto("--app", "catalogue_crons", "tasks", "--json").json,
    ]

    pages = {
        "The built-in tasks are shown without an app": built_in,
        "The tasks of an app are shown with those that it imports": session(shigoto, shop),
        "One task is shown in full": session(shigoto, f"{shop} send"),
        "The catalogue tells what runs each task": session(shigoto, crons),
        "A task that a schedule runs is shown with it": aggregate,
        "Programs are told so too": "\n\n".join(fields_of(record) for record in records),
    }

    snapshot("tasks", pages)


def fields_of(record: dict[str, Any]) -> str:
    """Return the fields without the schemas, one in a line."""
    fields = {name: value for name, value in record.items() if name not in ("arguments", "result")}
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in fields.items())


def test_a_task_is_found_by_an_older_name_and_a_misspelt_one_gets_a_suggestion(shigoto: Command) -> None:
    assert shigoto("--app", "catalogue_shop", "tasks", "mail_to").lines[0].startswith("send: ")
    outcome = shigoto("--app", "catalogue_shop", "tasks", "sent")

    assert outcome.code == 1
    assert outcome.err == ("Error [JOB.UNKNOWN_TASK]: The app has no task 'sent'. Did you mean 'send'?\n")
    assert "It has: send, mail_to, count, broken." in shigoto("--app", "catalogue_shop", "tasks", "xyz").err


def test_programs_get_everything_with_the_schemas(shigoto: Command) -> None:
    """S0-67: the JSON Schema of payloads is there for programs in other languages."""
    record = shigoto("--app", "catalogue_shop", "tasks", "send", "--json").json

    arguments, result = record.pop("arguments"), record.pop("result")
    assert record["name"] == "send"
    assert accepts(arguments, {"to": "00000000-0000-0000-0000-000000000001"})
    assert not accepts(arguments, {"to": 1})
    assert accepts(result, "sent")


def test_a_task_that_makes_no_sense_is_told_and_hides_no_other(shigoto: Command) -> None:
    records = shigoto("--app", "catalogue_shop", "tasks", "--json").json

    assert [record["name"] for record in records] == ["send", "count", "broken"]
    assert records[1]["result"]["type"] == "integer"
    assert "the annotation 'Nowhere' cannot be resolved" in records[2]["error"]
    outcome = shigoto("--app", "catalogue_shop", "tasks", "broken")
    assert outcome.code == 1
    assert outcome.err.startswith("Error [WORKER.DECLARATION]: task 'broken'")


def test_the_built_in_tasks_are_declared_where_they_are(shigoto: Command) -> None:
    for record in shigoto("tasks", "--json").json:
        assert record["module"] == "shigoto.demo"
        lines = inspect.getsource(demo_tasks).splitlines()
        assert lines[record["line"] - 1].startswith(f"async def {record['name']}(")
        assert [each["name"] for each in record["parameters"]] == list(Payload.__struct_fields__)


def test_nothing_in_a_docstring_can_command_the_terminal_and_its_first_line_is_wrapped(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    doc = "Send \\x1b[2J a letter\\x07, " + "and so on, " * 10
    Path("hostile_shop.py").write_text(
        f'from shigoto import Shigoto\napp = Shigoto()\n@app.task\ndef send() -> None:\n    """{doc}"""\n'
    )

    outcome = shigoto("--app", "hostile_shop", "tasks", "send")

    assert outcome.lines[0].startswith(r"send: Send \x1b[2J a letter\x07, and so on,")
    task = load_app("hostile_shop").tasks["send"]
    first, second, *_ = (click.unstyle(line) for line in page(task, 60))
    assert first.startswith(r"send: Send \x1b[2J")
    assert second.startswith(("  and so on", "  so on", "  on,"))
    assert all(output.cells(click.unstyle(line)) <= 60 for line in page(task, 60)[:4])


def test_an_app_without_tasks_says_so(shigoto: Command) -> None:
    Path("bare_shop.py").write_text("from shigoto import Shigoto\napp = Shigoto()\n")

    assert shigoto("--app", "bare_shop", "tasks").out.startswith("The app has no tasks.")
    assert shigoto("--app", "bare_shop", "tasks", "--json").json == []


@pytest.mark.parametrize(
    ("retry", "words"),
    [
        (Retry.never(), "never"),
        (Retry(), "5, after about 5.0 s, 10 s, 20 s, 40 s, 80 s"),
        (Retry.linear(minutes=5, retries=3), "3, after 5 min, 10 min, 15 min"),
        (Retry.immediate(retries=7), "7, after 0 s, 0 s, 0 s, 0 s, 0 s, …"),
        (Retry.delays([1, 60]), "2, after 1.0 s, 60 s"),
        (Retry.custom(lambda failures, error: 3, retries=4), "4, when a function says"),
    ],
)
def test_a_retry_policy_is_told_in_words(retry: Retry, words: str) -> None:
    assert in_words(retry) == words
    assert len(waits(retry)) <= retry.retries
