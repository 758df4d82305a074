"""What a runner of the comparison is, and a few things that runners share. Standard library only."""

import asyncio
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from bench.gauge import Gauge

SQLITE_DIR = os.environ.get("BENCH_SQLITE_DIR") or str(Path(tempfile.gettempdir()) / "shigoto-bench")

T = TypeVar("T")
One = Callable[[int], Any]
Many = Callable[[list[int]], Any]
Producer = AbstractAsyncContextManager[tuple[One, Many | None]]


@runtime_checkable
class Elsewhere(Protocol):
    """A call that another program makes: it has the loop around it, and the clock, so that no pipe is measured."""

    def times(self, jobs: int, *, warm_up: int, within: float) -> tuple[float, int]:
        """Make so many calls, one after the other; gives the seconds, and how many there was time for."""
        ...


class Meter(Protocol):
    """What a store says of its own costs. It is read when the jobs are done, and asked when all are gone."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def costs(self, jobs: int) -> dict[str, float]:
        """What lay between the two, for each job."""
        ...


class FileMeter:
    """Counts the commits to an SQLite file."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._first = self._last = 0

    def begin(self) -> None:
        """Read the counter."""
        self._first = self._gauge.read()

    def end(self) -> None:
        """Read it again."""
        self._last = self._gauge.read()

    def costs(self, jobs: int) -> dict[str, float]:
        """The counter wraps around."""
        return {"commits_per_job": round((self._last - self._first) % 2**32 / jobs, 4)}


class MeteredFile(AbstractContextManager[FileMeter]):
    """A meter for as long as its process is there."""

    def __init__(self, path: Path) -> None:
        self._gauge = Gauge(path)

    def __enter__(self) -> FileMeter:
        return FileMeter(self._gauge.__enter__())

    def __exit__(self, *error: Any) -> None:
        self._gauge.__exit__(*error)


class Runner:
    """One queue, as the measuring code sees it. Its handler calls `hit` with the job's argument, and nothing else."""

    name = "?"
    engine = "sqlite"
    package = ""
    bulk = False
    bulk_chunk = 1000
    keeps_history = False
    env: Mapping[str, str] = {}  # of its workers
    server: int | None = None  # the process whose time is told beside that of the workers

    def reset(self) -> None:
        """Make the store empty, with its tables in place if it needs to be told so."""
        for path in Path(SQLITE_DIR).glob(f"{self.store().name}*"):
            path.unlink()
        self.store().parent.mkdir(parents=True, exist_ok=True)

    def store(self) -> Path:
        """The database file."""
        return Path(SQLITE_DIR) / f"{self.name}.db"

    def producer(self) -> Producer:
        """Gives two functions, which store one job and many; the second is None if there is no such call."""
        raise NotImplementedError

    def worker(self) -> Coroutine[Any, Any, None] | None:
        """Run jobs until the process is told to end."""
        raise NotImplementedError

    def worker_cmd(self) -> list[str]:
        """What starts one worker process."""
        spec = sys.modules["__main__"].__spec__
        program = [str(Path(sys.argv[0]).resolve())] if spec is None else ["-m", spec.name]
        return [sys.executable, *program, "worker"]

    def commands(self, processes: int) -> list[list[str]]:
        """What starts so many worker processes."""
        return [self.worker_cmd()] * processes

    async def pending(self) -> int | None:
        """Jobs that are due and not finished, asked of the store; None where it cannot be asked."""
        return None

    async def left(self) -> int | None:
        """Jobs of a drain that are not finished, when all have begun; asked again and again, so it should be quick."""
        return await self.pending()

    async def finished(self) -> int | None:
        """Jobs of which the store says that they were finished; None where it forgets them."""
        return None

    def hits(self, jobs: int) -> int:
        """How often handlers begin until so many jobs are finished."""
        return jobs

    def meter(self) -> AbstractContextManager[Meter]:
        """Counts what workers cost the store, from the moment that it is entered."""
        return MeteredFile(self.store())

    def storing_meter(self) -> AbstractContextManager[Meter] | None:
        """The same for those who store jobs; None where nothing can be told of them."""
        return None

    def begin_with(self, store: Path) -> None:
        """Take over a copy of a store that was prepared in this folder."""
        copy(store / self.store().name, self.store())

    def filled(self) -> None:
        """All jobs of a drain are stored, and no worker has begun."""

    def hold(self) -> AbstractContextManager[Any]:
        """Keep a transaction open meanwhile, where that is no harm to others."""
        return nullcontext()

    def fill_history(self, jobs: int) -> None:
        """Put so many finished jobs into the store."""
        raise NotImplementedError

    def fill_future(self, jobs: int) -> None:
        """Put so many jobs into the store that are due tomorrow, ahead of all others."""
        raise NotImplementedError

    def promises(self) -> dict[str, str]:
        """What a user may rely on, in a few words each; see PROMISES in the report."""
        return {}

    def version(self) -> str:
        """Of what is measured."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return "not installed"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it on a new event loop: uvloop's where it is installed."""
        with event_loop() as loop:
            return loop.run(work)


def event_loop() -> asyncio.Runner:
    """For this process: uvloop where it is installed, for everybody."""
    if find_spec("uvloop") is None or os.environ.get("BENCH_UVLOOP") == "0":
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=import_module("uvloop").new_event_loop)


def count(store: Path, statement: str) -> int:
    """The number that a statement finds in a store."""
    connection = sqlite3.connect(store, isolation_level=None, timeout=30)
    (found,) = connection.execute(statement).fetchone()
    connection.close()
    return int(found)


def ask(connection: sqlite3.Connection) -> tuple[str, str]:
    """How an open connection syncs, and its journal mode."""
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    return ("OFF", "NORMAL", "FULL", "EXTRA")[level], mode


def journal(store: Path, opens: Callable[[], object]) -> str:
    """The journal mode of a file, which stays with it, once its queue has been opened."""
    opens()
    connection = sqlite3.connect(store)
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    connection.close()
    return str(mode)


def copy(source: Path, target: Path) -> None:
    """Copy a file and wait until it is on the disk, so that nobody measures the writing of it."""
    shutil.copyfile(source, target)
    with target.open("rb+") as file:
        os.fsync(file.fileno())
