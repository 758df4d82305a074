"""Where tests of child processes play: an app in a module of its own, a SQLite file, and a worker with real children.

A child imports the app anew, so it cannot be declared in a test. Handlers and tests talk by files in one folder: a
handler leaves a *note*, and the test waits for it.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from shigoto import JobHandle, Shigoto
from shigoto.model.job import Attempt, Job
from shigoto.observe.events import Event
from shigoto.worker import Stopped, Worker

E = TypeVar("E", bound=Event)

PATIENCE = 20.0  # real seconds

HEAD = """
import asyncio, ctypes, logging, os, re, signal, subprocess, sys, threading, time
from pathlib import Path
from shigoto import *
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.time import host_clock

FOLDER = Path({folder!r})
ahead = 0
app = Shigoto(engine=SqliteEngine(FOLDER / "jobs.db", synchronous="off", clock=lambda: host_clock() + ahead))


def note(name, text=""):
    (FOLDER / f"{{name}}.new").write_text(str(text))
    (FOLDER / f"{{name}}.new").rename(FOLDER / name)

"""


class Nursery:
    """An app made of `code`, importable by children, and everything its workers tell."""

    def __init__(self, folder: Path, code: str) -> None:
        self.folder = folder
        name = f"kids_{uuid4().hex}"
        (folder / f"{name}.py").write_text(HEAD.format(folder=str(folder)) + code)
        self.module: Any = import_module(name)
        self.app: Shigoto = self.module.app
        self.told: list[Event] = []
        self._waiting: list[asyncio.Event] = []
        self.app.bus.subscribe(self._hear)

    def __getattr__(self, name: str) -> Any:
        """A task of the app, by its function's name."""
        return getattr(self.module, name)

    def worker(self, **options: Any) -> Worker:
        usual: dict[str, Any] = {
            "children": 2,
            "poll": 0.05,
            "lease": 300.0,
            "random": Random(7),
            "name": "1",
        }
        return Worker(self.app, **usual | options)

    def drain(self, **options: Any) -> Stopped:
        """Run a worker until there is nothing left to do now."""

        async def main() -> Stopped:
            async with asyncio.timeout(PATIENCE):
                return await self.worker(drain=True, **options).run()

        return asyncio.run(main())

    def play(self, main: Callable[[], Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(PATIENCE):
                return await main()

        return asyncio.run(bounded())

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[Worker]:
        async with self.worker(**options) as worker:
            yield worker

    def all(self, kind: type[E]) -> list[E]:
        return [event for event in self.told if isinstance(event, kind)]

    async def until(self, kind: type[Event], count: int = 1) -> None:
        while len(self.all(kind)) < count:
            news = asyncio.Event()
            self._waiting.append(news)
            await news.wait()

    async def noted(self, name: str) -> str:
        """Wait for a note of a handler, and take it away."""
        path = self.folder / name
        await until(path.exists)
        text = path.read_text()
        path.unlink()
        return text

    def attempts(self, handle: "JobHandle[Any]") -> list[Attempt]:
        return self.app.engine.run(self.app.engine.attempts(handle.job().id))

    def lines(self, handle: "JobHandle[Any]") -> list[str]:
        return [line.text for line in self.app.engine.run(self.app.engine.logs(handle.job().id))]

    def jobs(self) -> list[Job]:
        return sorted(self.app.find(limit=100), key=lambda job: job.number)

    def close(self) -> None:
        self.app.close()
        del sys.modules[self.module.__name__]

    def _hear(self, event: Event) -> None:
        self.told.append(event)
        while self._waiting:
            self._waiting.pop().set()


def alive(pid: int) -> bool:
    """Whether the process is there, and not only waiting to be reaped."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition: Callable[[], bool]) -> None:
    """Look until it is true: what another process does rings no bell here."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.005)


async def until_gone(pid: int) -> None:
    await until(lambda: not alive(pid))


def make(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> Nursery:
    monkeypatch.syspath_prepend(folder)
    return Nursery(folder, code)


def own_children() -> set[int]:
    """The child processes that workers in this one have started and that still run; other tests may have others."""
    pids: set[int] = set()
    for thread in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(OSError):  # a thread that has ended meanwhile
            pids |= {int(pid) for pid in (thread / "children").read_text().split()}
    return {pid for pid in pids if alive(pid) and b"shigoto.worker.child_main" in _command(pid)}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
