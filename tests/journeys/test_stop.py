"""A stop ends the process, whatever its handlers, its store or the machine are doing: real processes, real signals."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shigoto import Shigoto, State

# A time-out for stops and a lease shorter than the command has to offer, so that the tests are short, too.
WORKER = """
import sys
from shigoto.cli.work import Shift, work
from shigoto.worker import Worker
from shop import app

stop_timeout, lease = float(sys.argv[1]), float(sys.argv[2])
shift = Shift(stats_every=0, stop_on_eof=False, log_format="text", log_level="info")
sys.exit(work(app, Worker(app, stop_timeout=stop_timeout, lease=lease), shift))
"""

SHOP = """
import asyncio, os, signal, sys, threading, time
from pathlib import Path
from shigoto import Shigoto

app = Shigoto("sqlite:///shop.db")

def note(word):
    with Path("notes").open("a") as notes:
        notes.write(f"{os.getpid()} {word}\\n")

def block():
    time.sleep(60)

@app.task
async def stubborn() -> None:
    note("began")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

@app.task
async def offload() -> None:
    note("began")
    await asyncio.to_thread(block)

@app.task
async def leak_task() -> None:
    app.leak = asyncio.create_task(stubborn.fn())

@app.task
async def leak_thread() -> None:
    threading.Thread(target=block).start()
    note("began")

@app.task
async def block_loop() -> None:
    note("began")
    block()

@app.task
def in_thread() -> None:
    note("began")
    block()

@app.task
async def fork() -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        # Python forgets signals that come before it has set up the child.
        os.write(write, b"ready")
        block()
    os.read(read, 5)
    os.kill(child, signal.SIGTERM)
    note(f"child {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")

@app.task
async def count(number: int) -> None:
    note(f"ran {number}")
    if number == 0:
        note("began")
        time.sleep(3)
"""

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs the signals of POSIX")


class Yard:
    """A folder of its own with a store, and workers in it."""

    def __init__(self, folder: Path) -> None:
        (folder / "shop.py").write_text(SHOP)
        (folder / "worker.py").write_text(WORKER)
        self.folder = folder
        self.app = Shigoto(f"sqlite:///{folder / 'shop.db'}")
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *, stop_timeout: float = 1.0, lease: float = 30.0) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "worker.py", str(stop_timeout), str(lease)]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(words, cwd=self.folder, stdin=subprocess.DEVNULL, stderr=log)
        self._processes.append(process)
        return process

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def until_it_began(self) -> None:
        eventually(lambda: any(note.endswith("began") for note in self.notes()), self.log)

    def pause(self, process: "subprocess.Popen[bytes]") -> None:
        """Stop a process in a moment in which it does not hold the store's lock: others shall go on."""
        while True:
            process.send_signal(signal.SIGSTOP)
            store = sqlite3.connect(self.folder / "shop.db", timeout=0.1, isolation_level=None)
            try:
                store.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)
                time.sleep(0.01)
            else:
                return
            finally:
                store.close()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.app.close()


def eventually(condition: Callable[[], bool], tell: Callable[[], str] = str, within: float = 30.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in time {tell()}"
        time.sleep(0.02)


def ended_within(process: "subprocess.Popen[bytes]", seconds: float) -> int:
    """The exit code. The time is the most that is promised, and a second for a busy machine."""
    return process.wait(seconds + 1)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.end()


@pytest.mark.parametrize("task", ["stubborn", "offload", "leak_task", "leak_thread", "in_thread"])
def test_what_does_not_give_in_is_not_waited_for(yard: Yard, task: str) -> None:
    handle = yard.app.enqueue_by_name(task, {}, allow_unknown=True)
    process = yard.start()
    yard.until_it_began()

    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 3) == 0
    assert "did not end in time" not in yard.log()
    done = State.COMPLETED if task.startswith("leak") else State.PENDING
    assert handle.status() is done


def test_a_handler_that_blocks_the_event_loop_cannot_hold_up_a_stop(yard: Yard) -> None:
    yard.app.enqueue_by_name("block_loop", {}, allow_unknown=True)
    process = yard.start()
    yard.until_it_began()

    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 3) == 1
    assert "did not end in time" in yard.log()


def test_a_second_signal_shortens_the_wait(yard: Yard) -> None:
    yard.app.enqueue_by_name("block_loop", {}, allow_unknown=True)
    process = yard.start(stop_timeout=60)
    yard.until_it_began()

    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)

    assert ended_within(process, 6) == 1


@pytest.mark.parametrize("when", ["at the start", "at work"])
def test_a_store_that_does_not_answer_cannot_hold_up_a_stop(yard: Yard, when: str) -> None:
    yard.app.enqueue_by_name("count", {"number": 1}, allow_unknown=True)
    holder = sqlite3.connect(yard.folder / "shop.db", isolation_level=None)
    if when == "at the start":
        holder.execute("BEGIN IMMEDIATE")
        process = yard.start()
        eventually(lambda: "Tasks:" in yard.log())
    else:
        process = yard.start()
        eventually(lambda: "completed" in yard.log(), yard.log)
        holder.execute("BEGIN IMMEDIATE")

    process.send_signal(signal.SIGTERM)

    ended_within(process, 3)
    holder.execute("ROLLBACK")
    holder.close()
    if when == "at the start":
        assert yard.app.engine.run(yard.app.engine.workers()) == []


def test_the_signals_of_a_forked_child_are_its_own(yard: Yard) -> None:
    handle = yard.app.enqueue_by_name("fork", {}, allow_unknown=True)
    process = yard.start()

    eventually(lambda: handle.status() is State.COMPLETED, yard.log)
    time.sleep(0.1)

    assert yard.notes()[-1].endswith(f"child {-signal.SIGTERM}")
    assert "stop signal" not in yard.log()
    process.send_signal(signal.SIGTERM)
    assert ended_within(process, 3) == 0


def test_a_worker_that_wakes_up_after_its_lease_runs_nothing_that_others_have_completed(yard: Yard) -> None:
    """I3: it had claimed all of these jobs, and others have run them while it stood still."""
    for number in range(50):
        yard.app.enqueue_by_name("count", {"number": number}, allow_unknown=True)
    paused = yard.start(lease=1.5)
    yard.until_it_began()
    yard.pause(paused)
    other = yard.start(lease=1.5)
    eventually(lambda: yard.app.stats()["default"].completed == 50, yard.log)
    before = yard.notes()

    os.kill(paused.pid, signal.SIGCONT)

    assert ended_within(paused, 10) == 1
    assert yard.notes() == before
    other.send_signal(signal.SIGTERM)
    assert ended_within(other, 3) == 0
