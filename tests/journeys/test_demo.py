"""`shigoto demo` as people meet it: a real process, real workers, a real terminal."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shigoto import Shigoto
from shigoto.cli.demo import CompletionRate, DemoRun, Snapshot, Stories, WorkerProcesses
from shigoto.demo import DemoTasks
from shigoto.engine.open import open_engine
from shigoto.model.ids import uuid7
from shigoto.model.worker import Announcement, Want
from tests.journeys.yard import read_to_the_end

COMMAND = [sys.executable, "-m", "shigoto", "demo"]

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a demo whose temporary folder is in this test's own; it never outlives the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(*words: str, stdout: int | None = None, stderr: int | None = None) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm", "NO_COLOR": "1"}
        process = subprocess.Popen(
            [*COMMAND, *words],
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def eventually(condition: Callable[[], bool], within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def workers_on(store: Path) -> int:
    engine = open_engine(str(store))
    try:
        return len(engine.run(engine.workers()))
    finally:
        engine.close()


def only_store(folder: Path) -> Path:
    """The store of the demo that is under way, once both of its workers are there."""
    eventually(lambda: bool(list(folder.glob("shigoto-demo-*/jobs.db-bell"))))
    [bell] = folder.glob("shigoto-demo-*/jobs.db-bell")
    store = bell.with_name("jobs.db")
    eventually(lambda: workers_on(store) == 2)
    return store


def test_the_demo_completes_every_job_and_reports_it_as_json(start: Start, tmp_path: Path) -> None:
    process = start("--seconds", "4", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=90)

    assert (process.returncode, err) == (0, b"")
    report = json.loads(out)
    assert report["completed"] == report["enqueued"] >= 50
    assert report["retried"] >= 1
    assert (report["failed"], report["lost"], report["pending"]) == (0, 0, 0)
    assert report["workers"] == 2
    assert report["seconds"] > 4
    assert report["tasks"].keys() == {"demo_add", "demo_flaky", "demo_hash", "demo_reminder", "demo_report"}
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_the_demo_draws_a_picture_over_itself(start: Start, tmp_path: Path) -> None:
    terminal, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = start("--seconds", "1.5", "--keep", stdout=inner)
    os.close(inner)

    seen = read_to_the_end(terminal)

    assert process.wait(30) == 0
    pictures = re.split(r"\x1b\[22F", seen)
    assert len(pictures) > 10
    assert all("Running" in drawn and "Last events" in drawn for drawn in pictures)
    assert "Shigoto demo: 2 workers on" in seen
    assert re.search(r"#\d+ +demo_report +█+░+ +\d+%  page \d+ of 12", seen)
    assert re.search(r"#\d+ demo_flaky failed and will run again: ConnectionError", seen)
    assert re.search(r"#\d+ demo_flaky completed on attempt 2", seen)
    *_, summary, workers, following, kept, _ = seen.split("\r\n")
    assert "\x1b[?25h" in summary
    assert ", 0 failed, 0 lost." in summary
    assert workers.startswith("2 worker processes")
    assert following.startswith("Next: `shigoto worker`; in another terminal, in this folder, ")
    assert "\x1b" not in workers + following + kept
    [store] = tmp_path.glob("shigoto-demo-*/jobs.db")
    assert str(store) in kept


def test_without_a_terminal_the_demo_prints_plain_lines(start: Start) -> None:
    process = start("--seconds", "0.5", stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=60)

    lines = out.decode().splitlines()
    assert process.returncode == 0
    assert "\x1b" not in out.decode()
    assert re.fullmatch(r" +0\.\d s  enqueued +8  pending +8 .*", lines[0])
    assert lines[-1].startswith("Next: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_stops_its_workers_and_removes_its_store(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("a shell that runs programs in the background makes them ignore this signal")
    process = start("--seconds", "60", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    only_store(tmp_path)

    process.send_signal(number)

    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == "Interrupted. The workers have stopped."
    assert list(tmp_path.iterdir()) == []


def test_the_workers_of_a_demo_that_was_killed_stop_by_themselves(start: Start, tmp_path: Path) -> None:
    process = start("--seconds", "60", "--json", stdout=subprocess.DEVNULL)
    store = only_store(tmp_path)

    process.kill()

    eventually(lambda: workers_on(store) == 0)


# The show's own logic


def ignore(_: Snapshot) -> None: ...


def show_without_workers(tmp_path: Path) -> tuple[Shigoto, DemoRun]:
    app = Shigoto(str(tmp_path / "jobs.db"))
    workers = WorkerProcesses("shigoto.demo:stage", str(tmp_path / "jobs.db"), count=0, folder=tmp_path)
    return app, DemoRun(app, DemoTasks(app), workers, tmp_path / "jobs.db")


def test_jobs_that_still_wait_are_not_lost_but_no_good_end_either(tmp_path: Path) -> None:
    app, show = show_without_workers(tmp_path)

    show.produce(60, ignore)
    show.drain(ignore)
    report = show.report()

    assert report.enqueued == report.pending == 8
    assert (report.completed, report.lost, report.ended_well) == (0, 0, False)
    app.close()


def test_jobs_that_vanished_or_that_nobody_gave_back_are_lost(tmp_path: Path) -> None:
    app, show = show_without_workers(tmp_path)
    show.produce(60, ignore)
    engine, worker = app.engine, uuid7()
    announcement = Announcement(id=worker, name="w", tasks=("demo_add",), queues=None, slots=9, version="1")
    engine.run(engine.announce(announcement))

    claimed = engine.run(engine.claim(worker, [Want(tasks=("demo_add",), queues=None, limit=2)]))
    deleted = app.clear(state="pending", limit=3)
    report = show.report()

    assert (len(claimed), deleted) == (2, 3)
    assert (report.lost, report.pending) == (5, 3)
    app.close()


def test_workers_that_cannot_start_end_the_show_and_say_why(tmp_path: Path) -> None:
    with WorkerProcesses("absent.module:app", str(tmp_path / "jobs.db"), count=2, folder=tmp_path) as workers:
        eventually(lambda: not workers.alive)

    assert not workers.ended_well
    first, second, *_ = workers.final_log_lines()
    assert first == "A worker ended with exit code 1:"
    assert "No module named 'absent'" in second


def test_workers_are_stopped_even_if_the_show_breaks(tmp_path: Path) -> None:
    store = tmp_path / "jobs.db"
    workers = WorkerProcesses("shigoto.demo:stage", str(store), count=2, folder=tmp_path)

    def break_off() -> None:
        with workers:
            eventually(lambda: store.exists() and workers_on(store) == 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()

    assert workers.alive == 0
    assert workers.ended_well
    assert workers_on(store) == 0


def test_stories_tell_of_failure_retry_and_end(tmp_path: Path) -> None:
    app = Shigoto(str(tmp_path / "jobs.db"))
    handle = DemoTasks(app).reminder.using(delay=1.5).enqueue("tea")
    stories = Stories()
    stories.follow(handle.id)

    stories.hear([None, handle.job()])
    assert (list(stories.told), stories.open) == ([], [handle.id])

    handle.cancel()
    stories.hear([handle.job()])
    assert (list(stories.told), stories.open) == (["#1 demo_reminder cancelled: None"], [])
    app.close()


def test_the_rate_is_that_of_the_last_moments() -> None:
    rate = CompletionRate()

    assert rate.at(0, 0) == 0
    assert rate.at(1, 10) == 10
    assert rate.at(2, 40) == 20
    assert rate.at(4, 40) == 0
