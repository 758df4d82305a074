"""The catalogue of tasks: `shigoto tasks`."""

import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from shigoto import Retry, demo
from shigoto import demo as demo_tasks
from shigoto.app import load_app
from shigoto.cli import output
from shigoto.cli.tasks import in_words, page, tasks_table
from shigoto.demo import Payload
from shigoto.server.task_catalog import waits
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


def test_without_an_app_the_built_in_tasks_are_shown(shigoto: Command) -> None:
    outcome = shigoto("tasks")

    assert outcome.code == 0
    header, *rows = outcome.lines
    assert header.split()[:4] == ["task", "kind", "parameters", "queue"]
    assert [row.split()[0] for row in rows] == [
        "user_created",
        "data_analysis",
        "email_notification",
        "data_export",
    ]


def test_the_tasks_of_an_app_are_shown_with_those_that_it_imports(shigoto: Command) -> None:
    """S0-64: a job type is a decorated function, and is there as soon as it is declared."""
    outcome = shigoto("--app", "catalogue_shop", "tasks")

    rows = [line.split() for line in outcome.lines[1:]]
    assert rows[0][:4] == ["send", "on", "demand", "to,"]
    assert rows[0][4:10] == ["copies?", "mail", "loop", "60", "s", "4"]
    assert rows[0][10:] == ["catalogue_shop:7", "Send", "a", "letter."]
    assert [row[0] for row in rows] == ["send", "count", "broken"]


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


def test_the_catalogue_tells_what_runs_each_task(shigoto: Command) -> None:
    """S3-70: name, kind, cron, origin and attempts of every task."""
    Path("catalogue_crons.py").write_text(CRONS)

    outcome = shigoto("--app", "catalogue_crons", "tasks")
    told = shigoto("--app", "catalogue_crons", "tasks", "--json").json

    header, *rows, note = outcome.lines
    assert header.split()[:4] == ["task", "kind", "when", "parameters"]
    assert rows[0].split("  ")[0] == "aggregate"
    assert [row.split()[1:3] for row in rows] == [
        ["scheduled", "0"],
        ["scheduled", "every"],
        ["scheduled", "@weekly"],
    ]
    assert "0 3 * * * Asia/Tokyo" in rows[0]
    assert note == "Which tasks these schedules run, their code says: monthly (@monthly)."
    assert [(each["kind"], each["attempts"], each["module"]) for each in told] == [
        ("scheduled", 3, "catalogue_crons"),
        ("scheduled", 6, "catalogue_crons"),
        ("scheduled", 6, "catalogue_crons"),
    ]
    assert told[0]["schedules"] == [{"name": "aggregate", "when": "0 3 * * *", "tz": "Asia/Tokyo"}]
    page = shigoto("--app", "catalogue_crons", "tasks", "aggregate").out
    assert "scheduled   0 3 * * * Asia/Tokyo" in page


def test_one_task_is_shown_in_full(shigoto: Command) -> None:
    outcome = shigoto("--app", "catalogue_shop", "tasks", "send")

    assert outcome.lines[0] == "send: Send a letter."
    facts = dict(line.strip().split("  ", 1) for line in outcome.out.splitlines()[2:12])
    assert {label: text.strip() for label, text in facts.items()} == {
        "aliases": "mail_to",
        "queue": "mail",
        "priority": "5",
        "runs in": "the event loop",
        "timeout": "60 s",
        "soft limit": "50 s",
        "retries": "3, after 5 min, 10 min, 15 min",
        "crashes": "for ever",
        "expires": "after 60 min",
        "tags": "vip",
    }
    assert "to      UUID  required" in outcome.lines
    assert "copies  int   = 1" in outcome.lines
    assert "JSON Schema of the arguments" in outcome.lines
    assert '"additionalProperties": false' in outcome.out


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
    assert record == {
        "name": "send",
        "aliases": ["mail_to"],
        "summary": "Send a letter.",
        "module": "catalogue_shop",
        "line": 7,
        "kind": "on demand",
        "schedules": [],
        "queue": "mail",
        "priority": 5,
        "executor": "loop",
        "exclusive": False,
        "timeout": 60.0,
        "soft_timeout": 50.0,
        "expires": 3600.0,
        "max_crashes": None,
        "attempts": 4,
        "retries": 3,
        "retry_waits": [300.0, 600.0, 900.0],
        "tags": ["vip"],
        "parameters": [
            {"name": "to", "type": "UUID", "required": True},
            {"name": "copies", "type": "int", "required": False, "default": "1"},
        ],
    }
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
