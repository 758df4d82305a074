"""The command line, called as the console script calls it but within this process."""

import json
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import msgspec
import pytest

from shigoto import cli
from shigoto.cli import output
from shigoto.cli.demo import DemoReport, PlainLines, Screen, Snapshot, picture, summary
from shigoto.cli.jobs import jobs_table, stats_table
from shigoto.cli.output import Column
from shigoto.cli.target import looks_like_store, split_store
from shigoto.cli.watch import Canvas
from shigoto.cli.worker import STATS_EVERY
from shigoto.engine.open import open_engine
from shigoto.model.ids import uuid7
from shigoto.model.job import Counts, Job, JobSpec, Lease, State
from shigoto.model.time import to_datetime
from shigoto.model.worker import Announcement, Ending, Settlement, Want
from shigoto.worker import Stopped
from tests.unit import commands
from tests.unit.cli.pages import SnapshotCheck, session
from tests.unit.commands import own_signals

FOUR = ("user_created", "data_analysis", "email_notification", "data_export")

SHOP = """
from typing import Literal
from uuid import UUID

from shigoto import Shigoto

app = Shigoto("sqlite:///shop.db")
other = 3

@app.task(queue="mail")
def send(to: str, copies: int = 1) -> None: ...

@app.task
def file(under: Literal["12", "x"], key: UUID | None = None) -> None: ...

def make() -> Shigoto:
    return app
"""


class Outcome(commands.Outcome):
    @property
    def rows(self) -> list[list[str]]:
        """The lines of a table, without its header, as words."""
        return [line.split() for line in self.out.splitlines()[1:]]


Shigoto = Callable[..., Outcome]


@pytest.fixture
def shigoto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shigoto]:
    """Runs a command in an empty current directory."""
    for name in ("SHIGOTO_APP", "SHIGOTO_URL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)

    def run(*words: str) -> Outcome:
        capsys.readouterr()
        code = cli.execute(list(words))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    with own_signals():
        yield run
    for name in set(sys.modules) - modules:
        if not name.startswith("shigoto"):
            del sys.modules[name]


def store(path: str, *endings: Ending | None) -> None:
    """A store with a job per ending; None is for one that stays pending."""
    engine = open_engine(path)
    worker = uuid7()
    announcement = Announcement(id=worker, name="w", tasks=("send",), queues=None, slots=1, version="1")
    engine.run(engine.announce(announcement))
    for ending in endings:
        if ending is None:
            continue
        engine.run(engine.enqueue_many([spec(max_failures=1)]))
        [lease] = engine.run(engine.claim(worker, [Want(tasks=("send",), queues=None, limit=1)]))
        engine.run(engine.settle(worker, [settled(lease, ending)]))
    for _ in range(endings.count(None)):
        engine.run(engine.enqueue_many([spec()]))
    engine.run(engine.leave(worker))
    engine.close()


def spec(**changes: Any) -> JobSpec:
    fields = {"id": uuid7(), "task": "send", "queue": "mail", "payload": '{"to":"Ada"}'}
    return JobSpec(**{**fields, **changes})


def settled(lease: Lease, ending: Ending) -> Settlement:
    error = None if ending is Ending.COMPLETED else "ValueError: no\nsuch \x1b[31maddress"
    return Settlement(
        number=lease.number, token=lease.token, queue=lease.queue, ending=ending, error=error, result="7"
    )


def python_path() -> dict[str, str]:
    """The environment of a process that finds what this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def job(**changes: Any) -> Job:
    at = to_datetime(1_900_000_000_000)
    fields: dict[str, Any] = {
        "id": UUID(int=1),
        "number": 1,
        "task": "send",
        "queue": "mail",
        "tenant": "",
        "state": State.PENDING,
        "payload": "{}",
        "priority": 0,
        "run_at": at,
        "created_at": at,
        "max_failures": 4,
    }
    return Job(**{**fields, **changes})


# The program


def test_help_names_every_command_and_imports_none_of_them() -> None:
    script = (
        "import sys; from shigoto.cli import execute; execute(['--help']);"
        " print([name for name in ('asyncio', 'sqlite3', 'subprocess', 'shigoto.worker', 'shigoto.cli.worker',"
        " 'shigoto.cli.jobs', 'shigoto.cli.show', 'shigoto.cli.doctor')"
        " if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )

    *help_text, imported = done.stdout.splitlines()
    assert imported == "[]"
    for name in cli.COMMANDS:
        assert any(line.startswith(f"  {name} ") for line in help_text)


def test_python_m_shigoto_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shigoto", "nonsense"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert "There is no command 'nonsense'." in done.stderr


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(shigoto: Shigoto, name: str) -> None:
    outcome = shigoto(name, "--help")

    assert outcome.code == 0
    assert outcome.out.startswith(f"Usage: shigoto {name}")


def test_the_version_is_told(shigoto: Shigoto) -> None:
    assert shigoto("--version").out.startswith("shigoto")


def test_a_misspelt_command_gets_a_suggestion(shigoto: Shigoto) -> None:
    outcome = shigoto("stast")

    assert (outcome.code, outcome.out) == (2, "")
    assert "There is no command 'stast'. Did you mean 'stats'?" in outcome.err


def test_an_error_is_one_line_with_its_code(shigoto: Shigoto) -> None:
    outcome = shigoto("list", "absent.db")

    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("Error [STORE.UNAVAILABLE]: There is no such file: ")
    assert outcome.err.count("\n") == 1


def test_a_misspelt_state_gets_a_suggestion(shigoto: Shigoto) -> None:
    outcome = shigoto("list", "faild")

    assert (outcome.code, outcome.out) == (2, "")
    assert "There is no state 'faild'. Did you mean 'failed'?" in outcome.err


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("list", "faild", "--json"), 2, "CLI.USAGE"),
        (("stats", "--json", "absent.db"), 1, "STORE.UNAVAILABLE"),
        (("enqueue", "--json"), 2, "CLI.USAGE"),
    ],
)
def test_for_programs_an_error_is_json(
    shigoto: Shigoto, words: tuple[str, ...], code: int, error: str
) -> None:
    outcome = shigoto(*words)

    assert (outcome.code, outcome.out) == (code, "")
    told = json.loads(outcome.err)
    assert told["error"]["code"] == error
    assert told["error"]["message"]


def test_main_exits_with_the_code_of_the_command(shigoto: Shigoto) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main(["stats", "absent.db"])

    assert exited.value.code == 1


# Which store


@pytest.mark.parametrize(
    ("word", "is_store"),
    [
        ("jobs.db", True),
        ("JOBS.SQLITE3", True),
        ("data/jobs", True),
        ("sqlite:///jobs", True),
        ("memory:", True),
        ("present", True),
        ("pending", False),
        ("user_created", False),
        ("shop.send", False),
    ],
)
def test_a_store_is_known_by_its_looks(shigoto: Shigoto, word: str, is_store: bool) -> None:
    Path("present").touch()

    assert looks_like_store(word) == is_store


def test_a_known_word_is_no_store_even_if_there_is_such_a_file(shigoto: Shigoto) -> None:
    Path("failed").touch()

    assert split_store(["failed"], known=("failed",)) == (None, ["failed"])
    assert split_store(["failed", "completed"]) == ("failed", ["completed"])
    assert split_store([]) == (None, [])


def test_the_store_is_the_url_then_the_word_then_the_environment_then_the_app_then_workers_db(
    shigoto: Shigoto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0-47: the database path may be left out; the default is workers.db."""
    Path("precedence_shop.py").write_text(SHOP)
    app = ("--app", "precedence_shop")
    ways: list[tuple[str, tuple[str, ...], dict[str, str]]] = [
        ("workers.db", ("enqueue", "user_created"), {}),
        ("shop.db", (*app, "enqueue", "send", '{"to": "Ada"}'), {}),
        ("env.db", ("enqueue", "user_created"), {"SHIGOTO_URL": "env.db"}),
        ("word.db", ("enqueue", "word.db", "user_created"), {"SHIGOTO_URL": "env.db"}),
        ("url.db", ("--url", "url.db", "enqueue", "user_created"), {"SHIGOTO_URL": "env.db"}),
        ("both.db", ("--url", "both.db", "enqueue", "both.db", "user_created"), {"SHIGOTO_URL": "env.db"}),
        ("late.db", ("enqueue", "--url", "late.db", "user_created"), {"SHIGOTO_URL": "env.db"}),
    ]
    for expected, words, environment in ways:
        before = {path.name for path in Path().glob("*.db")}
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            assert shigoto(*words).code == 0
        assert {path.name for path in Path().glob("*.db")} - before == {expected}


@pytest.mark.parametrize(
    "words",
    [
        ("--url", "prod.db", "clear", "test.db", "pending", "--yes"),
        ("clear", "test.db", "pending", "--yes", "--url", "prod.db"),
        ("--url", "prod.db", "stats", "--url", "test.db"),
        ("--url", "prod.db", "stats", "test.db"),
        ("--url", "prod.db", "enqueue", "test.db", "user_created"),
        ("--url", "prod.db", "worker", "test.db", "--drain"),
    ],
)
def test_two_stores_in_one_command_are_a_misuse_and_neither_is_touched(
    shigoto: Shigoto, words: tuple[str, ...]
) -> None:
    store("prod.db", None)
    store("test.db", None)

    outcome = shigoto(*words)

    assert (outcome.code, outcome.out) == (2, "")
    assert "Two stores are named" in outcome.err
    assert "prod.db" in outcome.err
    assert "test.db" in outcome.err
    for name in ("prod.db", "test.db"):
        assert shigoto("stats", name, "--json").json["total"]["pending"] == 1


def test_two_apps_in_one_command_are_a_misuse(shigoto: Shigoto) -> None:
    outcome = shigoto("--app", "one_shop", "stats", "--app", "other_shop")

    assert (outcome.code, outcome.out) == (2, "")
    assert "Two apps are named: one_shop and other_shop." in outcome.err


@pytest.mark.parametrize(
    "words",
    [
        ("--url", "", "stats"),
        ("stats", "--url", ""),
        ("stats", ""),
        ("stats", " "),
        ("list", ""),
        ("list", "", "failed"),
        ("clear", "", "failed", "--yes"),
        ("retry", "", "1"),
        ("pause", "", "mail"),
        ("enqueue", "", "user_created"),
        ("--url", "", "enqueue", "user_created"),
        ("migrate", ""),
        ("worker", "", "--drain"),
        ("doctor", ""),
    ],
)
def test_an_empty_store_is_a_misuse_not_the_default_one(shigoto: Shigoto, words: tuple[str, ...]) -> None:
    """It is what a shell makes of a variable that is not set."""
    store("workers.db", Ending.FAILED)

    outcome = shigoto(*words)

    assert (outcome.code, outcome.out) == (2, "")
    assert "is empty" in outcome.err
    assert shigoto("stats", "--json").json["total"] == {
        **dict.fromkeys(("pending", "scheduled", "processing", "completed", "cancelled", "blocked"), 0),
        "failed": 1,
    }


@pytest.mark.parametrize("folder", [".", "{here}", "sub"])
def test_a_path_may_have_a_colon_in_it(shigoto: Shigoto, tmp_path: Path, folder: str) -> None:
    Path("sub").mkdir()
    path = f"{folder.format(here=tmp_path)}/ab:c.db"

    assert shigoto("enqueue", path, "user_created", "hello").code == 0
    assert shigoto("stats", path, "--json").json["total"]["pending"] == 1
    assert len(shigoto("list", path).rows) == 1
    assert len(shigoto("list", path, "pending", "task:user_created").rows) == 1
    assert shigoto("--url", path, "worker", "--drain", "--processes", "1").code == 0
    assert shigoto("show", path, "1", "--json").json["job"]["state"] == "completed"


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("mysql://ada:secret@host/jobs", "No engine for 'mysql'"),
        ("SQLITE:///jobs.db", "No engine for 'SQLITE'"),
        ("my_engine://ada:secret@host/jobs", "No engine for 'my_engine'"),
        ("sqlite://ada:secret@host/jobs.db", "'sqlite://ada:***@host/jobs.db' is not the address of a file"),
        ("sqlite://host/jobs.db?key=secret", "'sqlite://host/jobs.db?key=***' is not the address of a file"),
    ],
)
def test_an_address_of_no_store_is_refused_without_its_password(
    shigoto: Shigoto, monkeypatch: pytest.MonkeyPatch, address: str, text: str
) -> None:
    monkeypatch.setenv("SHIGOTO_URL", address)

    for words in (("stats",), ("enqueue", "user_created"), ("worker", "--drain")):
        outcome = shigoto(*words)
        assert outcome.code == 1
        assert text in outcome.err
        assert "secret" not in outcome.err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("stats",),
        ("list",),
        ("doctor",),
        ("stats", "a.db"),
        ("list", "a.db", "failed"),
        *[(command, "a.db") for command in ("workers", "doctor")],
        *[(command, "a.db", "1") for command in ("show", "cancel", "retry", "rerun")],
        ("redrive", "a.db", "--yes"),
    ],
)
def test_looking_at_a_store_that_is_not_there_is_an_error_and_creates_nothing(
    shigoto: Shigoto, words: tuple[str, ...]
) -> None:
    outcome = shigoto(*words)

    assert outcome.code == 1
    assert "There is no such file" in outcome.err
    name = "a.db" if "a.db" in words else "workers.db"
    hint = "" if "a.db" in words else ", or name your app with --app"
    assert f"Run a worker or `shigoto migrate {Path(name).resolve()}` to create it{hint}." in outcome.err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        *[(command,) for command in ("stats", "list", "workers")],
        *[(command, "1") for command in ("show", "cancel", "retry", "rerun")],
        ("redrive", "--yes"),
    ],
)
def test_looking_at_a_database_of_somebody_else_leaves_it_as_it_is(
    shigoto: Shigoto, words: tuple[str, ...]
) -> None:
    with sqlite3.connect("other.db") as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()

    outcome = shigoto(words[0], "other.db", *words[1:])

    assert outcome.code == 1
    assert "WORKER.SCHEMA_MISSING" in outcome.err
    with sqlite3.connect("other.db") as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]
    connection.close()


@pytest.mark.parametrize(
    "words",
    [
        ("stats",),
        ("enqueue", "user_created"),
        ("worker",),
        ("migrate",),
        ("doctor",),
        ("show", "1"),
        ("workers",),
    ],
)
def test_a_store_that_would_vanish_with_the_command_is_refused(
    shigoto: Shigoto, words: tuple[str, ...]
) -> None:
    outcome = shigoto("--url", "memory:", *words)

    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("Error [STORE.REFUSED]")


# stats, list


def test_stats_counts_by_queue_and_in_all(shigoto: Shigoto, snapshot: SnapshotCheck) -> None:
    """S0-40, S0-42: pending, processing, completed and failed jobs are counted and printed."""
    store("jobs.db", Ending.COMPLETED, Ending.COMPLETED, Ending.FAILED, None)
    shigoto("enqueue", "jobs.db", "user_created", "--delay", "1h")
    narrow = stats_table({"mail": Counts(pending=5, failed=1)}, 24)

    pages = {
        "Jobs are counted by queue and in all": session(shigoto, "shigoto stats jobs.db"),
        "For programs": session(shigoto, "shigoto stats jobs.db --json"),
        "A narrow terminal shows what waits and what failed": "\n".join(narrow),
    }

    snapshot("stats", pages)


def test_list_shows_twenty_pending_jobs_newest_first_unless_told_otherwise(shigoto: Shigoto) -> None:
    """S0-41, S0-43: `list [db] [status]`, pending by default, at most 20 rows."""
    store("jobs.db", *[None] * 25, Ending.COMPLETED)

    listed = shigoto("list", "jobs.db")

    assert [row[0] for row in listed.rows] == [f"#{number}" for number in range(26, 6, -1)]
    assert {row[3] for row in listed.rows} == {"pending"}
    assert [row[0] for row in shigoto("list", "jobs.db", "completed").rows] == ["#1"]
    assert len(shigoto("list", "jobs.db", "--limit", "3").rows) == 3


def test_list_shows_what_a_manager_wants_to_know(shigoto: Shigoto) -> None:
    """S0-44: id, type, priority, retries, the error of a failed job, the payload, the creation time."""
    store("jobs.db", Ending.FAILED)
    shigoto("enqueue", "jobs.db", "data_export", "all of it", "7")

    [pending] = shigoto("list", "jobs.db").rows
    [failed] = shigoto("list", "jobs.db", "failed").rows

    number, task, queue, state, priority, retries, created, *payload = pending
    assert [number, task, queue, state, priority, retries] == [
        *("#2", "data_export", "default", "pending", "7", "0/3")
    ]
    assert datetime.fromisoformat(created) - datetime.now(UTC) < timedelta(minutes=1)
    assert " ".join(payload) == '{"message":"all of it"}'
    assert failed[5] == "0/0"
    assert " ".join(failed[7:]) == r"ValueError: no such \x1b[31maddress"


@pytest.mark.parametrize(("failures", "told"), [(0, "0/3"), (1, "1/3"), (3, "3/3"), (4, "3/3")])
def test_what_is_counted_as_retries_is_never_more_than_there_are(failures: int, told: str) -> None:
    due = job(failures=failures)
    lines = jobs_table([due], None, due.run_at)

    assert lines[1].split()[5] == told


@pytest.mark.parametrize("width", [None, 80, 40])
def test_a_job_that_is_due_later_does_not_look_like_a_ready_one(width: int | None) -> None:
    due = job()

    [_, ready] = jobs_table([due], width, due.run_at)
    [_, later] = jobs_table([due], width, due.run_at - timedelta(minutes=59))
    [_, tomorrow] = jobs_table([due], width, due.run_at - timedelta(hours=23, minutes=59))
    [_, ended] = jobs_table([job(state=State.FAILED)], width, due.run_at - timedelta(minutes=59))

    assert "\x1b[33mpending\x1b" in ready
    assert "\x1b[31mfailed\x1b" in ended
    assert " pending in 59 min" in click.unstyle(later)
    assert " pending in 23 h 59 min" in click.unstyle(tomorrow)
    assert "\x1b[33mpending in 59 min\x1b" in later
    for line in (ready, later, tomorrow, ended):
        assert width is None or output.cells(click.unstyle(line)) <= width


def test_a_job_with_a_delay_is_listed_with_its_delay(shigoto: Shigoto) -> None:
    shigoto("enqueue", "user_created", "later", "--delay", "1h")
    shigoto("enqueue", "user_created", "now")

    now, later = shigoto("list").rows

    assert now[3:5] == ["pending", "0"]
    assert later[3:7] == ["pending", "in", "60", "min"]
    assert [record["state"] for record in shigoto("list", "--json").json] == ["pending", "pending"]


def test_what_is_cut_is_marked_even_where_nobody_looks(shigoto: Shigoto) -> None:
    shigoto("enqueue", "user_created", "x" * 300)
    shigoto("enqueue", "user_created", "x")

    [short, long] = shigoto("list").rows

    assert short[7] == '{"message":"x"}'
    assert long[7] == f'{{"message":"{"x" * 188}…'
    assert len(long[7]) == output.PREVIEW + 1


def test_what_is_too_long_ago_is_told_in_words(shigoto: Shigoto) -> None:
    outcome = shigoto("list", "since:99999d")

    assert outcome.code == 2
    assert "since is longer than a hundred years: 99999d." in outcome.err


@pytest.mark.parametrize(
    ("state", "numbers"),
    [
        ("pending", [3]),
        ("waiting", [3]),
        ("completed", [1]),
        ("succeeded", [1]),
        ("failed", [2]),
        ("running", []),
        ("scheduled", []),
        ("retrying", []),
        ("all", [3, 2, 1]),
    ],
)
def test_list_knows_states_by_all_their_names(shigoto: Shigoto, state: str, numbers: list[int]) -> None:
    store("jobs.db", Ending.COMPLETED, Ending.FAILED, None)

    listed = shigoto("list", "jobs.db", state, "--json").json

    assert [record["number"] for record in listed] == numbers


def test_list_filters(shigoto: Shigoto) -> None:
    Path("filter_shop.py").write_text(SHOP)
    enqueue = ("--app", "filter_shop", "enqueue", "send", "--arg", "to=Ada")
    shigoto(*enqueue, "--key", "k")
    shigoto(*enqueue, "--tag", "t", "--tag", "u")
    shigoto(*enqueue, "--queue", "other")
    shigoto("--url", "shop.db", "enqueue", "user_created")

    def numbers(*words: str) -> list[int]:
        return [record["number"] for record in shigoto("list", "shop.db", *words, "--json").json]

    assert numbers("--key", "k") == [1]
    assert numbers("--tag", "u") == [2]
    assert numbers("--queue", "other") == [3]
    assert numbers("--task", "user_created") == [4]
    assert numbers("--task", "send", "--queue", "mail") == [2, 1]
    shigoto(*enqueue, "--tenant", "acme")
    assert numbers("--tenant", "acme") == [5]
    assert numbers("--kind", "crash_loop") == []


def test_list_gives_programs_complete_records(shigoto: Shigoto) -> None:
    store("jobs.db", Ending.COMPLETED)

    [record] = shigoto("list", "jobs.db", "completed", "--json").json

    assert record.keys() == set(Job.__struct_fields__)
    assert UUID(record["id"]).version == 7
    assert datetime.fromisoformat(record["created_at"]).utcoffset() == timedelta(0)
    assert (record["payload"], record["result"], record["state"]) == ({"to": "Ada"}, 7, "completed")


def test_an_empty_list_says_so(shigoto: Shigoto) -> None:
    store("jobs.db")

    assert shigoto("list", "jobs.db").out == "There are no pending jobs.\n"
    assert shigoto("list", "jobs.db", "all").out == "There are no jobs.\n"
    assert shigoto("list", "jobs.db", "--json").json == []


def test_list_takes_no_word_that_says_nothing(shigoto: Shigoto) -> None:
    outcome = shigoto("list", "jobs.db", "failed", "please")

    assert outcome.code == 2
    assert "There is no state 'please'." in outcome.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("show", "my shop.db", "1"), "shigoto retry 'my shop.db' 1"),
        (("--url", "my shop.db", "show", "1"), "shigoto --url 'my shop.db' retry 1"),
        (("--app", "named_shop", "show", "my shop.db", "1"), "shigoto --app named_shop retry 'my shop.db' 1"),
        (("show", "#1"), "shigoto retry 1"),
    ],
)
def test_a_hint_names_the_store_as_the_command_did(
    shigoto: Shigoto, words: tuple[str, ...], hint: str
) -> None:
    Path("named_shop.py").write_text(SHOP)
    for name in ("my shop.db", "workers.db"):
        store(name, Ending.FAILED)

    assert f"`{hint}` gives it another chance." in shigoto(*words).out
    assert shigoto(*shlex.split(hint)[1:]).code == 0


# enqueue


@pytest.mark.parametrize("task", FOUR)
def test_enqueue_takes_a_store_a_type_a_message_and_a_priority(shigoto: Shigoto, task: str) -> None:
    """S0-45: `enqueue [db] <type> <message> [priority]` for the four types."""
    first = shigoto("enqueue", "jobs.db", task, "hello", "5")
    second = shigoto("--url", "jobs.db", "enqueue", task, "again")

    assert (first.code, second.code) == (0, 0)
    later, earlier = shigoto("list", "jobs.db", "--json").json
    assert first.out == f"#1 ({earlier['id']}) inserted\n"
    assert (earlier["task"], earlier["payload"], earlier["priority"]) == (task, {"message": "hello"}, 5)
    assert (later["task"], later["payload"], later["priority"]) == (task, {"message": "again"}, 0)
    assert earlier["max_failures"] == 4


def test_enqueue_with_an_app_takes_one_json_object(shigoto: Shigoto) -> None:
    Path("object_shop.py").write_text(SHOP)

    outcome = shigoto("--app", "object_shop:app", "enqueue", "send", '{"to": "Ada", "copies": 2}', "--json")

    [record] = shigoto("list", "shop.db", "--json").json
    assert outcome.json == {"id": record["id"], "number": 1, "status": "inserted"}
    assert (record["payload"], record["queue"]) == ({"to": "Ada", "copies": 2}, "mail")


def test_enqueue_takes_single_arguments_and_options(shigoto: Shigoto) -> None:
    """S0-61: priority, retries and a time in the future are settable for each job."""
    Path("option_shop.py").write_text(SHOP)
    words = ["enqueue", "send", "--arg", "to=Ada Lovelace", "--arg", "copies=3", "--queue", "slow"]
    words += ["--priority", "-5", "--delay", "5m", "--key", "k", "--retries", "9", "--tag", "t"]
    words += ["--expires", "2h", "--tenant", "acme"]

    assert shigoto("--app", "option_shop", *words).code == 0

    [record] = shigoto("list", "shop.db", "--json").json
    assert record["payload"] == {"to": "Ada Lovelace", "copies": 3}
    assert [record[name] for name in ("queue", "priority", "key", "max_failures", "tags", "tenant")] == [
        *("slow", -5, "k", 10, ["t"], "acme")
    ]
    created, run_at, expires_at = (
        datetime.fromisoformat(record[name]) for name in ("created_at", "run_at", "expires_at")
    )
    assert (run_at - created, expires_at - created) == (timedelta(minutes=5), timedelta(hours=2))


def test_enqueue_takes_an_instant_with_its_time_zone(shigoto: Shigoto) -> None:
    shigoto("enqueue", "user_created", "--run-at", "2040-01-31T09:00:00+09:00")

    [record] = shigoto("list", "--json").json
    assert datetime.fromisoformat(record["run_at"]) == datetime(2040, 1, 31, tzinfo=UTC)


def test_a_second_job_with_the_key_is_the_first_one(shigoto: Shigoto) -> None:
    first = shigoto("enqueue", "user_created", "--key", "k")
    second = shigoto("enqueue", "user_created", "--key", "k")

    assert second.out == first.out.replace("inserted", "existing")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("enqueue",), 2, "Which task?"),
        (("enqueue", "user_creatd", "x"), 1, "[JOB.UNKNOWN_TASK]: No task is called 'user_creatd'"),
        (("enqueue", "user_creatd", "x"), 1, "Did you mean 'user_created'?"),
        (("enqueue", "zzz"), 1, "Known are: data_analysis, data_export"),
        (
            ("enqueue", "user_created", "hello", "world"),
            2,
            "The priority must be a whole number, not 'world'",
        ),
        (("enqueue", "user_created", "a", "1", "b"), 2, "'b' is one word too many"),
        (("enqueue", "user_created", "a", "1", "--priority", "2"), 2, "The priority is given twice"),
        (("enqueue", "user_created", "--arg", "user_id=x"), 1, "[JOB.PAYLOAD_INVALID]"),
        (("enqueue", "user_created", "--arg", "user_id"), 2, "--arg takes NAME=VALUE"),
        (("enqueue", "user_created", "--delay", "soon"), 2, "'soon' is no duration"),
        (("enqueue", "user_created", "--run-at", "noon"), 2, "'noon' is no time"),
        (("enqueue", "user_created", "--run-at", "2040-01-31T09:00:00"), 2, "has no time zone"),
        (("enqueue", "user_created", "--delay", "1", "--run-at", "2040-01-31T09:00:00Z"), 2, "both"),
        (("enqueue", "user_created", "--retries", "-1"), 2, "[JOB.OPTION_INVALID]: retries"),
        (("enqueue", "user_created", "--priority", "9999999999"), 2, "[JOB.OPTION_INVALID]: priority"),
        (("enqueue", "user_created", "--queue", "a:b"), 2, "[JOB.OPTION_INVALID]: The queue 'a:b'"),
        (("enqueue", "user_created", "--tag", ""), 2, "[JOB.OPTION_INVALID]: "),
        (("enqueue", "user_created", "--delay", "99999d"), 2, "a hundred years: 99999d"),
        (("enqueue", "user_created", "hello", "--arg", "message=x"), 2, "'message' is given twice"),
        (
            ("enqueue", "user_created", "--arg", "user_id=1", "--arg", "user_id=2"),
            2,
            "'user_id' is given twice",
        ),
        (
            ("enqueue", "user_created", "--arg", "user_data={a"),
            2,
            "user_data begins like JSON and is none: {a",
        ),
        (
            ("enqueue", "user_created", "--arg", "recipients=[a"),
            2,
            "For a text write --arg 'recipients=\"[a\"'.",
        ),
        (("enqueue", "user_created", "x", "-5", "-6"), 2, "'-6' is one word too many"),
        (("enqueue", "user_created", "x", "-y"), 2, "No such option '-y'"),
        (
            ("--app", "error_shop", "enqueue", "send", '{"to": "A"}', "--arg", "to=B"),
            2,
            "'to' is given twice",
        ),
        (("--app", "error_shop", "enqueue", "file", "--arg", "under=12"), 1, "write --arg 'under=\"12\"'."),
        (("enqueue", "farther", "hello", "--allow-unknown"), 1, "The arguments are no JSON object: hello"),
        (("--app", "error_shop", "enqueue", "send", "hello"), 1, "The arguments are no JSON object: hello"),
        (("--app", "error_shop", "enqueue", "send", "[1]"), 1, "The arguments are no JSON object: [1]"),
        (("--app", "error_shop", "enqueue", "send", "{}"), 1, "'to'"),
    ],
)
def test_enqueue_refuses_what_cannot_be_meant_and_stores_nothing(
    shigoto: Shigoto, words: tuple[str, ...], code: int, text: str
) -> None:
    Path("error_shop.py").write_text(SHOP)

    outcome = shigoto(*words)

    assert (outcome.code, outcome.out) == (code, "")
    assert text in outcome.err
    assert list(Path().glob("*.db")) == []


def test_a_text_is_suggested_only_where_the_task_would_take_it(shigoto: Shigoto) -> None:
    Path("hint_shop.py").write_text(SHOP)

    for words in (("--arg", "under=x", "--arg", "key=12"), ("--arg", "under=13"), ("--arg", "under=y")):
        outcome = shigoto("--app", "hint_shop", "enqueue", "file", *words)
        assert outcome.code == 1
        assert "JOB.PAYLOAD_INVALID" in outcome.err
        assert "For a text" not in outcome.err


def test_a_task_that_only_a_live_worker_knows_can_be_enqueued(shigoto: Shigoto) -> None:
    engine = open_engine("jobs.db")
    announcement = Announcement(id=uuid7(), name="w", tasks=("far",), queues=None, slots=1, version="1")
    engine.run(engine.announce(announcement))
    engine.close()

    assert shigoto("enqueue", "jobs.db", "far", '{"to": 1}').code == 0
    assert shigoto("enqueue", "jobs.db", "farther", '{"to": 2}').code == 1
    assert shigoto("enqueue", "jobs.db", "farther", '{"to": 3}', "--allow-unknown").code == 0
    assert [job["payload"] for job in shigoto("list", "jobs.db", "--json").json] == [{"to": 3}, {"to": 1}]


TEXTS = """
from typing import Annotated, NewType
from pydantic import Field
from shigoto import Shigoto

app = Shigoto("sqlite:///shop.db")
Code = NewType("Code", str)

@app.task
def note(
    code: str = "", named: Code = Code(""), long: Annotated[str, Field(max_length=9)] = "",
    maybe: str | None = None, mixed: str | int = "", many: list[int] = [],
) -> None: ...
"""


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("code=123", "123"),
        ("code=null", "null"),
        ('code="123"', '"123"'),
        ("code={not json", "{not json"),
        ("code=", ""),
        ("named=1.5", "1.5"),
        ("long=true", "true"),
        ("maybe=12", "12"),
        ("maybe=null", None),
        ("mixed=12", 12),
        ('mixed="12"', "12"),
        ("mixed=twelve", "twelve"),
        ("many=[1, 2]", [1, 2]),
    ],
)
def test_an_argument_that_is_a_text_is_taken_as_it_is(shigoto: Shigoto, argument: str, value: object) -> None:
    Path("text_shop.py").write_text(TEXTS)

    outcome = shigoto("--app", "text_shop", "enqueue", "note", "--arg", argument)

    assert outcome.code == 0, outcome.err
    [record] = shigoto("list", "shop.db", "--json").json
    assert record["payload"] == {argument.partition("=")[0]: value}


@pytest.mark.parametrize(
    "words", [("x", "-5"), ("--key", "k", "x", "-5"), ("x", "-5", "--retries", "3"), ("--", "x", "-5")]
)
def test_a_priority_may_be_negative(shigoto: Shigoto, words: tuple[str, ...]) -> None:
    outcome = shigoto("enqueue", "workers.db", "email_notification", *words)

    assert outcome.code == 0, outcome.err
    [record] = shigoto("list", "--json").json
    assert (record["priority"], record["payload"]) == (-5, {"message": "x"})


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ('{"user_id": 3}', {"user_id": 3}),
        (' {"user_id": 3, "message": "hi"} ', {"user_id": 3, "message": "hi"}),
        ("{}", {}),
        ('{"user_id": 3', {"message": '{"user_id": 3'}),
        ("{name} was here", {"message": "{name} was here"}),
        ("[1, 2]", {"message": "[1, 2]"}),
        ("3", {"message": "3"}),
    ],
)
def test_a_built_in_task_takes_a_json_object_as_its_arguments_and_any_other_text_as_a_message(
    shigoto: Shigoto, text: str, payload: dict[str, Any]
) -> None:
    assert shigoto("enqueue", "workers.db", "user_created", text, "2").code == 0

    [record] = shigoto("list", "--json").json
    assert (record["priority"], record["payload"]) == (2, payload)


@pytest.mark.parametrize("text", ['{"user": 3}', '{"user_id": "three"}'])
def test_the_arguments_of_a_built_in_task_are_checked_too(shigoto: Shigoto, text: str) -> None:
    outcome = shigoto("enqueue", "workers.db", "user_created", text)

    assert outcome.code == 1
    assert "'user" in outcome.err
    assert outcome.out == ""


# Which app


@pytest.mark.parametrize("reference", ["app_shop", "app_shop:app", "app_shop:make"])
def test_an_app_is_found_in_the_current_directory(shigoto: Shigoto, reference: str) -> None:
    Path("app_shop.py").write_text(SHOP)

    assert shigoto("--app", reference, "enqueue", "send", "--arg", "to=Ada").code == 0
    assert shigoto("stats", "--app", reference).rows[0][0] == "mail"


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("absent_shop:app", "ModuleNotFoundError: No module named 'absent_shop' (looked for in "),
        ("bad_shop:ap", "'bad_shop' has no 'ap'. Did you mean 'app'?"),
        ("bad_shop:zzz", "'bad_shop' has no 'zzz'. It has app."),
        ("bad_shop:other", "is no Shigoto app: it is of type int"),
        ("bad_shop.py:app", "not 'bad_shop.py:app': write bad_shop:app."),
        ("./bad_shop.py", "not './bad_shop.py': write bad_shop:app."),
        ("shop/jobs.py:it", "not 'shop/jobs.py:it': write shop.jobs:it."),
        ("/bad_shop.py:app", "not '/bad_shop.py:app'."),
        ("bad_shop.absent:app", "'bad_shop.absent:app' cannot be loaded"),
        ("./bad_shop:app", "An app is named module:attr"),
        ("broken_shop:app", "ZeroDivisionError: division by zero ("),
        ("misdeclared_shop:app", "task 'send' has no option 'queu'. Did you mean 'queue'?"),
    ],
)
def test_an_app_that_cannot_be_had_is_explained_in_one_line(
    shigoto: Shigoto, reference: str, text: str
) -> None:
    Path("bad_shop.py").write_text(SHOP)
    Path("broken_shop.py").write_text("1 / 0\n")
    Path("misdeclared_shop.py").write_text(SHOP.replace("queue=", "queu="))

    outcome = shigoto("--app", reference, "stats")

    assert outcome.code == 1
    assert text in outcome.err
    assert outcome.err.count("\n") == 1
    assert list(Path().glob("*.db")) == []


def test_an_option_that_cannot_be_is_the_fault_of_the_app_that_declares_it(shigoto: Shigoto) -> None:
    Path("strange_shop.py").write_text(SHOP.replace('queue="mail"', 'queue="a:b"'))

    outcome = shigoto("--app", "strange_shop", "stats")

    assert outcome.code == 1
    assert outcome.err.startswith("Error [WORKER.DECLARATION]: ")
    assert "a:b" in outcome.err
    assert f"{Path('strange_shop.py').resolve()}, line 10" in outcome.err


@pytest.mark.parametrize(
    "way", ["sys.exit(0)", "exit()", "sys.exit('no licence')", "raise SystemExit", "parse()"]
)
@pytest.mark.parametrize(
    "words",
    [
        ("enqueue", "send", "--arg", "to=Ada"),
        ("stats",),
        ("tasks",),
        ("worker", "--drain"),
        ("worker", "--drain", "--processes", "0"),
    ],
)
def test_an_app_that_ends_the_program_does_not_pass_for_a_success(
    shigoto: Shigoto, way: str, words: tuple[str, ...]
) -> None:
    parse = "import argparse\ndef parse(): argparse.ArgumentParser(add_help=False).exit()\n"
    Path("exiting_shop.py").write_text(f"import sys\n{parse}{way}\n")

    outcome = shigoto("--app", "exiting_shop", *words)

    assert (outcome.code, outcome.out) == (1, "")
    begin = "Error [WORKER.DECLARATION]: 'exiting_shop' cannot be loaded: importing it ended the program (sys.exit("
    line = 3 if way == "parse()" else 4
    end = f"{Path('exiting_shop.py').resolve()}, line {line}); put that under `if __name__ == '__main__'`."
    assert begin in outcome.err
    assert end in outcome.err
    assert ("'no licence'" in outcome.err) == ("licence" in way)
    assert list(Path().glob("*.db")) == []


def test_what_an_app_prints_does_not_get_into_the_answer(shigoto: Shigoto) -> None:
    noise = "import os, sys\nprint('printed')\nos.system('echo started')\nos.write(1, b'written')\n"
    Path("noisy_shop.py").write_text(noise + SHOP)
    command = [sys.executable, "-m", "shigoto", "--app", "noisy_shop"]

    for words in (["enqueue", "send", "--arg", "to=Ada", "--json"], ["stats", "--json"], ["tasks", "--json"]):
        done = subprocess.run(
            [*command, *words], capture_output=True, text=True, timeout=60, check=True, env=python_path()
        )
        assert json.loads(done.stdout)
        assert all(word in done.stderr for word in ("printed", "started", "written"))


# migrate


def test_migrate_creates_the_store_once(shigoto: Shigoto) -> None:
    first, second = shigoto("migrate", "jobs.db"), shigoto("migrate", "jobs.db")

    assert first.out.startswith("Applied 0001_")
    assert second.out == "The store is up to date.\n"
    assert shigoto("migrate", "jobs.db", "--json").json == {"applied": []}
    assert shigoto("stats", "jobs.db").code == 0


# worker


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--concurrency", "0"), "Invalid value for --concurrency: 0 is not in the range"),
        (("--poll", "0"), "Invalid value for --poll: 0.0 is not in the range"),
        (("--lease", "nan"), "Invalid value for --lease: 'nan' is no number of seconds"),
        (("--queues", ","), "Invalid value for --queues: ',' names no queue."),
        (("--queues", ""), "Invalid value for --queues: '' names no queue."),
        (("--queues", "mail,a:b"), "Invalid value for --queues: The queue 'a:b' must be"),
    ],
)
def test_a_worker_that_cannot_work_says_why_and_creates_nothing(
    shigoto: Shigoto, words: tuple[str, ...], text: str
) -> None:
    outcome = shigoto("worker", *words)

    assert outcome.code == 2
    assert text in outcome.err
    assert list(Path().iterdir()) == []


def test_a_worker_without_a_supervisor_cannot_tell_a_service_manager_that_it_is_ready(
    shigoto: Shigoto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "@somewhere")

    outcome = shigoto("worker", "--processes", "0", "--drain")

    assert outcome.code == 2
    assert "NOTIFY_SOCKET" in outcome.err
    assert list(Path().iterdir()) == []


def test_the_statistics_come_every_thirty_seconds_unless_told_otherwise() -> None:
    """S0-53: the period; the line itself is seen from a real worker among the journeys."""
    assert STATS_EVERY == 30


@pytest.mark.parametrize(
    ("stopped", "code"),
    [
        (Stopped(reason="stopped"), 0),
        (Stopped(reason="drained"), 0),
        (Stopped(reason="stopped", running=1), 0),
        (Stopped(reason="stopped", unreleased=1), 1),
        (Stopped(reason="fenced"), 1),
    ],
)
def test_a_worker_that_could_not_give_its_jobs_back_ends_with_an_error(stopped: Stopped, code: int) -> None:
    assert stopped.exit_code == code


# Output


COLUMNS = [Column("number", right=True), Column("task", least=4), Column("text", least=6)]


def test_a_table_is_as_wide_as_its_content_when_nobody_looks() -> None:
    lines = output.table(COLUMNS, [["#1", "send", "x" * 100], ["#200", "t", ""]], None)

    assert lines == [
        "number  task  text",
        f"    #1  send  {'x' * 100}",
        "  #200  t",
    ]


@pytest.mark.parametrize("width", [20, 30, 40, 80])
def test_a_table_fits_the_terminal(width: int) -> None:
    rows = [["#1", "a_rather_long_name", "日本語の文章" * 10], ["#2", "send", "x" * 100]]

    lines = output.table(COLUMNS, rows, width)

    assert max(output.cells(line) for line in lines) in (width, width - 1)
    assert all("…" in line for line in lines[1:])


@pytest.mark.parametrize("width", [45, 60, 80, 100, 200])
def test_lists_and_counts_fit_the_terminal_with_what_matters_most(width: int) -> None:
    jobs = [
        job(number=12_345, state=State.PROCESSING, progress=0.5, task="a_rather_long_name", payload="x" * 300)
    ]

    for lines in (jobs_table(jobs, width, datetime.now(UTC)), stats_table({"a_long_name": Counts()}, width)):
        plain = [click.unstyle(line) for line in lines]
        assert max(output.cells(line) for line in plain) <= width
    header = jobs_table(jobs, width, datetime.now(UTC))[0].split()
    assert {"job", "task", "state", "payload"} <= set(header)
    assert ("created" in header) == (width >= 80)


def test_text_is_cut_by_cells_not_by_letters() -> None:
    assert output.cells("日本") == 4
    assert output.cells("e\u0301") == 1
    assert output.clip("日本語", 6) == "日本語"
    assert output.clip("日本語", 5) == "日本…"
    assert output.clip("日本語", 4) == "日…"
    assert output.clip("abc", 0) == ""


def test_nothing_that_a_job_says_can_command_the_terminal() -> None:
    hostile = job(state=State.FAILED, failures=1, error="a\x1b[2Jb\r\nc\u202ed\x9b31m")

    assert output.preview(hostile) == r"a\x1b[2Jb  c\u202ed\x9b31m"


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, environment: dict[str, str], coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert output.in_colour(Paper(terminal=terminal)) == coloured


def test_a_state_has_its_colour() -> None:
    assert output.paint_state("failed") == "\x1b[31mfailed\x1b[0m"
    assert output.paint_state("processing 40%") == "\x1b[36mprocessing 40%\x1b[0m"
    assert output.paint_state("state") == "state"


def test_a_time_on_a_terminal_is_as_short_as_it_can_be() -> None:
    now = datetime(2030, 5, 6, 12, tzinfo=UTC).astimezone()

    assert output.moment(now - timedelta(seconds=1), now) == f"{now - timedelta(seconds=1):%H:%M:%S}"
    assert output.moment(now - timedelta(days=40), now) == f"{now - timedelta(days=40):%b %d %H:%M}"
    assert output.moment(now - timedelta(days=400), now) == f"{now - timedelta(days=400):%Y-%m-%d}"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"),
        (0.0412, "41 ms"),
        (1.04, "1.0 s"),
        (9.96, "10 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7_199, "120 min"),
        (7_200, "2 h 0 min"),
        (100_000, "27 h 46 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_a_length_of_time_is_told_in_few_words(seconds: float, words: str) -> None:
    assert output.span(timedelta(seconds=seconds)) == words


def test_text_is_wrapped_between_words() -> None:
    assert output.wrapped("to be or not to be", 10, first="> ", later="  ") == [
        "> to be or",
        "  not to",
        "  be",
    ]
    assert output.wrapped("incomprehensibilities", 10, first="> ") == ["> incompr…"]
    assert output.wrapped("to be or not to be", None, first="> ") == ["> to be or not to be"]


def test_json_keeps_numbers_digit_by_digit_and_text_that_is_no_json(shigoto: Shigoto) -> None:
    record = output.record(job(payload='{"n":123456789012345678901234567890.10}', result="not json"))

    assert bytes(msgspec.json.encode(record["payload"])) == b'{"n":123456789012345678901234567890.10}'
    assert record["result"] == "not json"


# The demo's display


class Paper(StringIO):
    """A stream that says of itself whether it is a terminal."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def snapshot(**changes: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "phase": "producing",
        "seconds": 1.5,
        "store": Path("jobs.db"),
        "workers": 2,
        "enqueued": 40,
        "retried": 3,
        "queues": {"default": Counts(pending=10, completed=20), "reports": Counts(processing=1)},
        "rate": 12.3,
        "running": (job(state=State.PROCESSING, progress=0.5, progress_text="page 4 of 8"),),
        "events": ("#7 demo_flaky failed and will run again: no",),
    }
    return Snapshot(**{**fields, **changes})


def test_the_picture_shows_counts_rate_progress_and_events() -> None:
    lines = picture(snapshot(), 80, colour=False)

    text = "\n".join(lines)
    assert "Shigoto demo: 2 workers on jobs.db" in text
    assert "pending        10" in text
    assert "completed      20" in text
    assert "12 jobs/s" in text
    assert "████████████░░░░░░░░░░░░  50%  page 4 of 8" in text
    assert "#7 demo_flaky failed and will run again: no" in text


def test_every_picture_has_the_same_number_of_lines_and_fits_a_small_terminal() -> None:
    full = snapshot(running=(job(),) * 4, events=("日本語の長い文章" * 20,) * 5)
    empty = snapshot(running=(), events=(), queues={}, enqueued=0)

    pictures = [picture(shown, 80, colour=False) for shown in (full, empty)]

    assert [len(lines) for lines in pictures] == [22, 22]
    assert max(output.cells(line) for lines in pictures for line in lines) < 80


def test_the_screen_draws_over_itself_and_gives_the_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "10")
    paper = Paper(terminal=True)

    with Canvas(paper) as canvas:
        screen = Screen(canvas, colour=False)
        screen.show(snapshot())
        screen.show(snapshot())

    drawn = paper.getvalue()
    assert drawn.startswith("\x1b[?25l")
    assert drawn.endswith("\x1b[?25h")
    assert drawn.count("\x1b[9F") == 1
    assert drawn.count("\n") == 18


def test_without_a_terminal_there_is_a_line_a_second() -> None:
    paper = Paper()
    ticker = PlainLines(paper)

    for tenth in range(25):
        ticker.show(snapshot(seconds=tenth / 10))

    lines = paper.getvalue().splitlines()
    assert [line.split()[0] for line in lines if " s  enqueued" in line] == ["0.0", "1.0", "2.0"]
    assert sum("demo_flaky" in line for line in lines) == 1


def test_the_summary_says_what_was_shown_and_what_to_try_next() -> None:
    counts = {"completed": 9, "retried": 2, "failed": 1, "cancelled": 0, "pending": 0, "lost": 0}
    report = DemoReport(enqueued=10, **counts, seconds=3.21, workers=2, ended_well=False, tasks={})

    lines = summary(report, kept="a/jobs.db")

    assert lines[0].startswith(
        "10 jobs in 3.2 s on one SQLite file: 9 completed, 2 of them after a retry, 1 failed"
    )
    assert "shigoto worker" in lines[2]
    assert lines[3].endswith("shigoto list a/jobs.db completed")
    assert len(summary(report, kept=None)) == 3
