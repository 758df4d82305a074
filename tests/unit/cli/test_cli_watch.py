"""--watch, and the commands about queues, called as the console script calls them."""

import json
import os
import signal
import subprocess
import sys
from typing import IO

import click
import pytest

from shigoto.cli.output import cells
from shigoto.cli.queues import queues_table
from shigoto.cli.watch import EndRates, spelt_out
from shigoto.model.job import Counts, QueueSettings
from shigoto.model.worker import Ending
from shigoto.queues import Queue
from tests.unit.cli.pages import SnapshotCheck, session
from tests.unit.commands import Command, Store, on_terminal

# --watch


@pytest.mark.parametrize(
    ("words", "spelt"),
    [
        (["--watch", "jobs.db"], ["--watch=2", "jobs.db"]),
        (["jobs.db", "--watch"], ["jobs.db", "--watch=2"]),
        (["--watch", "0.5", "failed"], ["--watch=0.5", "failed"]),
        (["--watch=5", "failed"], ["--watch=5", "failed"]),
        (["--watch", "1m"], ["--watch=1m"]),
        (["--watch", "--json"], ["--watch=2", "--json"]),
        (["--", "--watch"], ["--", "--watch"]),
    ],
)
def test_the_seconds_may_be_left_out_whatever_follows(words: list[str], spelt: list[str]) -> None:
    assert spelt_out(words) == spelt


@pytest.mark.parametrize("seconds", ["0", "0.05", "soon", "2d"])
def test_a_time_that_nobody_can_mean_is_refused(shigoto: Command, store: Store, seconds: str) -> None:
    outcome = shigoto("stats", "jobs.db", f"--watch={seconds}")

    assert outcome.code == 2
    assert f"{seconds!r} is no time to wait between looks" in outcome.err


def watching(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "shigoto", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"},
    )


def lines_of(stream: IO[str] | None, count: int) -> list[str]:
    assert stream is not None
    return [stream.readline().rstrip("\n") for _ in range(count)]


def end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Press Ctrl-C; the exit code, and how it complained."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_on_a_pipe_each_look_is_a_table_of_its_own(shigoto: Command, store: Store) -> None:
    store.enqueue()
    process = watching("list", "--watch", "0.1", "jobs.db", "queue:mail")

    first = lines_of(process.stdout, 2)
    store.enqueue(task="text")
    rest: list[str] = []
    while not any("text" in line for line in rest):
        rest += lines_of(process.stdout, 1)

    assert (first[0].split()[0], first[1].split()[:2]) == ("job", ["#1", "send"])
    assert (rest[0], rest[1].split()[0]) == ("", "job")
    assert end(process) == (0, "")


def test_for_programs_each_look_is_a_line(shigoto: Command, store: Store) -> None:
    store.ended(Ending.COMPLETED)
    process = watching("stats", "jobs.db", "--watch", "0.1", "--json")

    looks = [json.loads(line) for line in lines_of(process.stdout, 2)]

    assert [look["total"]["completed"] for look in looks] == [1, 1]
    assert [look["ended_per_second"]["mail"] for look in looks] == [None, 0.0]
    assert end(process) == (0, "")

    process = watching("list", "jobs.db", "completed", "--watch", "0.1", "--json")
    looks = [json.loads(line) for line in lines_of(process.stdout, 2)]
    assert [[job["number"] for job in look] for look in looks] == [[1], [1]]
    assert end(process) == (0, "")


@pytest.mark.parametrize(("words", "height"), [(("list", "jobs.db", "all"), 3), (("stats", "jobs.db"), 4)])
def test_on_a_terminal_each_look_is_drawn_over_the_last(
    shigoto: Command, store: Store, words: tuple[str, ...], height: int
) -> None:
    store.ended(Ending.FAILED)

    code, shown = on_terminal("", *words, "--watch", "0.1", interrupt_at=f"\x1b[{height}F")

    assert code == 0
    assert "every 0.1 s until Ctrl-C" in shown
    assert shown.endswith("\x1b[?25h"), "the cursor is given back"
    assert ("\x1b[31m" in shown) is (words[0] == "list")


def test_on_a_terminal_without_colours_there_are_none(shigoto: Command, store: Store) -> None:
    store.ended(Ending.FAILED)

    code, shown = on_terminal(
        "", "list", "jobs.db", "all", "--watch", "0.1", interrupt_at="\x1b[3F", NO_COLOR="1"
    )

    assert (code, "\x1b[31m" in shown) == (0, False)


def test_a_watch_that_is_told_to_end_gives_the_cursor_back(shigoto: Command, store: Store) -> None:
    code, shown = on_terminal(
        "", "stats", "jobs.db", "--watch", interrupt_at="until Ctrl-C", interrupt_with=signal.SIGTERM
    )

    assert code == 128 + signal.SIGTERM
    assert shown.endswith("\x1b[?25h")


def test_a_store_that_is_not_there_is_not_watched(shigoto: Command) -> None:
    assert shigoto("list", "absent.db", "--watch").code == 1


def test_rates_are_known_from_the_second_look_on_and_deleted_jobs_are_no_negative_work() -> None:
    moments = iter([10.0, 12.0, 14.0, 14.0])
    rates = EndRates(lambda: next(moments))

    assert rates.since_last({"a": Counts(completed=5)}) == {"a": None}
    assert rates.since_last({"a": Counts(completed=8, failed=1), "b": Counts(failed=1)}) == {
        "a": 2.0,
        "b": 0.5,
    }
    assert rates.since_last({"a": Counts(completed=2, failed=2), "b": Counts()}) == {"a": 0.5, "b": 0.0}
    assert rates.since_last({"a": Counts(completed=2)}) == {"a": None}


# queues, pause and resume


def test_queues_are_shown_with_what_they_hold_and_what_is_set(
    shigoto: Command, store: Store, snapshot: SnapshotCheck
) -> None:
    empty = session(shigoto, "shigoto queues jobs.db")
    store.enqueue()
    store.enqueue(queue="sms", delay=60_000)
    store.engine.run(store.engine.configure(QueueSettings(name="sms", paused=True, keep_failed_for=60_000)))

    pages = {
        "Without a job there is no queue": empty,
        "Queues are shown with what they hold and what is set": session(shigoto, "shigoto queues jobs.db"),
        "For programs": session(shigoto, "shigoto queues jobs.db --json"),
    }

    snapshot("queues", pages)


@pytest.mark.parametrize("width", [25, 40, 80, 200])
def test_the_table_of_queues_fits_the_terminal(width: int) -> None:
    names = ("mail", "仕事の列" * 10, "q" * 100)
    found = [Queue(name=name, paused=True, counts=Counts(pending=123_456)) for name in names]

    lines = [click.unstyle(line) for line in queues_table(found, width)]

    assert max(cells(line) for line in lines) <= width
    assert all("paused" in line for line in lines[1:])


def test_a_queue_is_paused_and_resumed(shigoto: Command, store: Store) -> None:
    store.enqueue()
    store.claim()
    store.enqueue()

    paused = shigoto("pause", "jobs.db", "mail")
    again = shigoto("pause", "jobs.db", "mail")
    assert paused.out == "Queue mail is paused: 1 pending, 1 still running.\n"
    assert again.out == "Queue mail was paused already.\n"
    assert store.engine.run(store.engine.settings()) == [QueueSettings(name="mail", paused=True)]

    resumed = shigoto("resume", "jobs.db", "mail")
    again = shigoto("resume", "jobs.db", "mail")
    assert resumed.out == "Queue mail is open again: 1 pending.\n"
    assert again.out == "Queue mail was open already.\n"
    assert [one.code for one in (paused, again, resumed)] == [0, 0, 0]
    assert store.engine.run(store.engine.settings()) == [QueueSettings(name="mail")]


def test_a_queue_that_nobody_knows_is_paused_with_a_doubt(shigoto: Command, store: Store) -> None:
    store.enqueue()

    outcome = shigoto("pause", "jobs.db", "mial", "mail", "--json")
    assert outcome.json == [
        {"queue": "mial", "paused": True, "known": False},
        {"queue": "mail", "paused": True, "known": True},
    ]
    assert shigoto("pause", "jobs.db", "sms").out == (
        "Queue sms is paused. No job was ever in it: is the name right?\n"
    )
    assert shigoto("resume", "jobs.db", "none").out == (
        "Queue none was not paused. No job was ever in it: is the name right?\n"
    )
    assert [queue["name"] for queue in shigoto("queues", "jobs.db", "--json").json] == ["mail", "mial", "sms"]


@pytest.mark.parametrize("name", ["pause", "resume"])
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 2, "Which queue? Write its name."),
        (("jobs.db",), 2, "Which queue? Write its name. jobs.db is the store."),
        (("absent.db", "mail"), 1, "There is no such file"),
        (("jobs.db", "no such name"), 2, "The queue"),
    ],
)
def test_a_pause_that_cannot_be_meant_is_refused(
    shigoto: Command, store: Store, name: str, words: tuple[str, ...], code: int, text: str
) -> None:
    outcome = shigoto(name, *words)

    assert outcome.code == code
    assert text in outcome.err
