"""A folder of its own with an app, a store and workers in it: real processes, real signals."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from shigoto import JobHandle, Shigoto, State

SHIGOTO = [sys.executable, "-m", "shigoto"]

SHOP = """
import asyncio, ctypes, os, re, signal, sys, threading, time
from pathlib import Path
from shigoto import Context, Shigoto

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
async def block_loop(seconds: float = 60) -> None:
    note("began")
    time.sleep(seconds)
    note("ended")

@app.task
async def hold_the_interpreter(seconds: float) -> None:
    # One call of native code that gives the interpreter lock to nobody; it takes twice as long with every letter.
    note("began")
    for letters in range(20, 60):
        began = time.monotonic()
        re.match("(a+)+$", "a" * letters + "b")
        if time.monotonic() - began >= seconds:
            break
    note("ended")

@app.task
def in_thread() -> None:
    note("began")
    block()

@app.task
def until(file: str) -> str:
    note(f"began {file}")
    while not Path(file).exists():
        time.sleep(0.01)
    return str(os.getpid())

@app.task(executor="process")
def apart(file: str) -> str:
    return until.fn(file)

@app.task
async def wait(file: str) -> str:
    note(f"began {file}")
    try:
        while not Path(file).exists():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note(f"told {file}")
        raise
    return str(os.getpid())

@app.task
async def fork() -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        # Python forgets signals that come before it has set up the child.
        os.write(write, b"ready")
        while True:  # a signal that comes just before a sleep is heard after it
            time.sleep(0.01)
    os.read(read, 5)
    os.kill(child, signal.SIGTERM)
    note(f"child {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")

@app.task
async def orphan() -> None:
    # A child that ends, and a grandchild that ends after it: somebody else has to reap that one.
    child = os.fork()
    if not child:
        if os.fork():
            os._exit(0)
        time.sleep(0.2)
        os._exit(0)
    os.waitpid(child, 0)

@app.task
async def crash() -> None:
    note("began")
    ctypes.string_at(0)

@app.task
async def count(number: int) -> int:
    note(f"ran {number}")
    if number == 0:
        note("began")
        time.sleep(3)
    return os.getpid()

@app.task
async def hoard(megabytes: int) -> int:
    app.hoard = b"x" * (megabytes << 20)
    return os.getpid()
"""


class Yard:
    """The folder, the app as a client has it, and the workers that were started."""

    def __init__(self, folder: Path, shop: str = SHOP) -> None:
        (folder / "shop.py").write_text(shop)
        self.folder = folder
        self.command = SHIGOTO
        self.app = Shigoto(f"sqlite:///{folder / 'shop.db'}")
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SHIGOTO_") and name != "WORKER_COUNT"
        }

    def start(
        self, *options: str, app: str | None = "shop", log: str = "log", stdin: int = subprocess.DEVNULL
    ) -> "subprocess.Popen[bytes]":
        """`shigoto worker` in a process group of its own."""
        words = [*self.command, *([] if app is None else ["--app", app]), "worker", *options]
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment,
                stdin=stdin,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def enqueue(self, task: str, **arguments: object) -> JobHandle[object]:
        return self.app.enqueue_by_name(task, arguments, allow_unknown=True)

    def log(self, name: str = "log") -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def notes(self, word: str = "") -> list[str]:
        """What handlers have noted, all of it or what begins with this word: `pid words`."""
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.split(" ", 1)[1].startswith(word)]

    def touch(self, file: str) -> None:
        (self.folder / file).touch()

    def until_it_began(self, times: int = 1) -> None:
        eventually(lambda: len(self.notes("began")) >= times, self.log)

    def until_logged(self, pattern: str, log: str = "log", times: int = 1) -> None:
        eventually(lambda: len(re.findall(pattern, self.log(log))) >= times, lambda: self.log(log))

    def until_at_work(self, count: int) -> None:
        """Until the store knows so many workers."""
        eventually(lambda: len(self.workers()) == count, self.log)

    def workers(self) -> list[tuple[str, int]]:
        """The names and the processes of the workers that the store knows."""
        engine = self.app.engine
        return sorted((worker.name, worker.pid) for worker in engine.run(engine.workers()))

    def until_done(self, *handles: JobHandle[object], within: float = 30.0) -> None:
        eventually(
            lambda: all(handle.status() is State.COMPLETED for handle in handles), self.log, within=within
        )

    def make_due(self, handle: JobHandle[object]) -> None:
        """Let a job that waits for its time be due now, which a worker notices when it next looks."""
        with closing(sqlite3.connect(self.folder / "shop.db", timeout=10)) as store, store:
            for table in ("shigoto_job", "shigoto_scheduled"):
                store.execute(f"UPDATE {table} SET run_at = 1 WHERE number = ?", (handle.number,))

    def pause(self, *pids: int) -> None:
        """Stop processes in a moment in which none of them holds the store's lock: others shall go on."""
        while True:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            store = sqlite3.connect(self.folder / "shop.db", timeout=0.1, isolation_level=None)
            try:
                store.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
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


def runners_of(process: "subprocess.Popen[bytes]") -> list[int]:
    """The processes that this one has started."""
    try:
        return [
            int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ]
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Whether a process is there and is not only waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def eventually(condition: Callable[[], bool], tell: Callable[[], str] = str, within: float = 30.0) -> None:
    """Wait for what other processes do."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in time {tell()}"
        time.sleep(0.01)


def ended_within(process: "subprocess.Popen[bytes]", seconds: float) -> int:
    """The exit code. The time is the most that is promised, and a second for a busy machine."""
    return process.wait(seconds + 1)


def read_to_the_end(terminal: int) -> str:
    """Everything that is written on the other side of a terminal, until that is closed."""
    seen = b""
    # Linux reports the end of a terminal's other side as an error.
    with suppress(OSError):
        while some := os.read(terminal, 65_536):
            seen += some
    os.close(terminal)
    return seen.decode()
