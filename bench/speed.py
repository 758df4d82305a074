"""Jobs per second and latency of one store, beside a bare insert loop in the same run if the store is a file.

    enqueue    one by one, each committed
    bulk       1000 jobs per call
    drain      no-op jobs, history kept, one worker in this process; async functions, then sync ones in threads
    latency    from enqueue in this process to the start of the handler, one job at a time on an idle worker

Without --url, each measure has a new SQLite file. With --url it measures a store that exists, which may be in use: the
jobs are in a queue of their own, under names that no other worker knows, and are deleted after each measure, also after
Ctrl-C or SIGTERM. Rounds are interleaved and medians are printed, because small machines are noisy.
"""

import argparse
import asyncio
import json
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from shigoto import Shigoto, Task
from shigoto.cli.target import FileEngine, existing
from shigoto.model.errors import ShigotoError
from shigoto.model.ids import uuid7
from shigoto.model.job import JobFilter, State
from shigoto.model.states import DELETABLE
from shigoto.worker import Worker

QUEUE = "shigoto-bench"
HELD_FOR = timedelta(days=1)
PAGE = 50_000  # job numbers for each query
BATCH = 500  # jobs deleted in one transaction, so that other writers do not wait long
AT_ONCE = 1_000
BARE_WITHIN = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class Stage:
    """A queue without jobs, for one measure. Its own jobs have numbers above `mark`."""

    app: Shigoto
    noop: Task[[int], Coroutine[Any, Any, None]]
    sync_noop: Task[[int], None]
    tell: Task[[], Coroutine[Any, Any, None]]
    started: "asyncio.Queue[float]"
    queue: str
    mark: int

    def worker(self, *, drain: bool = False) -> Worker:
        """Return a worker of this queue alone."""
        return Worker(
            self.app, queues=(self.queue,), drain=drain, ticks=False, name=self.queue, any_role=True
        )

    def numbers(self, state: State | None = None) -> list[int]:
        """Return the numbers of its jobs in the state, or in any state but processing."""
        engine, found, after = self.app.engine, list[int](), self.mark
        while True:
            page = engine.run(
                engine.deletable(JobFilter(state=state, queue=self.queue, limit=PAGE), after=after)
            )
            found += page
            if len(page) < PAGE:
                return found
            after = page[-1]

    def expect(self, jobs: int, state: State) -> None:
        """Exit with an error unless all of its jobs are in the state."""
        found, whole = len(self.numbers(state)), len(self.numbers())
        if not found == whole == jobs:
            raise SystemExit(
                f"{jobs} jobs were stored, but the store has {found} that are {state}, of {whole}."
            )

    def clear(self) -> None:
        """Delete its jobs. Jobs that an interrupt has left running are taken from their worker first."""
        self.app.close()  # waits for calls of enqueue that an interrupt has left behind
        engine = self.app.engine
        while running := self.app.find(state="processing", queue=self.queue):
            engine.run(engine.cancel([job.id for job in running], force=True))
        numbers = self.numbers()
        for first in range(0, len(numbers), BATCH):
            engine.run(engine.delete(numbers[first : first + BATCH], DELETABLE))


def stage_on(app: Shigoto, queue: str = QUEUE, mark: int = 0) -> Stage:
    """Declare the tasks of the bench on an app."""
    started: asyncio.Queue[float] = asyncio.Queue()

    async def noop(number: int) -> None: ...

    def sync_noop(number: int) -> None: ...

    async def tell() -> None:
        started.put_nowait(time.perf_counter())

    return Stage(
        app,
        app.task(name="shigoto.bench.noop")(noop).using(queue=queue),
        app.task(name="shigoto.bench.sync-noop")(sync_noop).using(queue=queue),
        app.task(name="shigoto.bench.tell")(tell).using(queue=queue),
        started,
        queue,
        mark,
    )


class Place(Protocol):
    """A source of stages; `folder` is on the disk of the store, and None if the store is not a file."""

    @property
    def folder(self) -> Path | None: ...

    def stage(self) -> AbstractContextManager[Stage]:
        """Return a stage without jobs, which is cleared at the end."""
        ...


class NewFiles:
    """A new SQLite file for each measure."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        self.folder = folder
        self._synchronous = synchronous
        self._numbers = count(1)

    @contextmanager
    def stage(self) -> Generator[Stage]:
        """Return a stage on a new file."""
        path = self.folder / f"jobs-{next(self._numbers)}.db"
        app = Shigoto(f"sqlite:///{path}?synchronous={self._synchronous}")
        try:
            yield stage_on(app)
        finally:
            app.close()
            for suffix in ("", "-wal", "-shm", "-bell"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)


class Named:
    """A queue of its own in a store that other programs may use at the same time; in `memory:`, a store of its own."""

    def __init__(self, address: str) -> None:
        self._app = Shigoto(address)
        self._holder = uuid7()  # chosen before it is stored: an interrupt may come at any time
        self._queue, self._mark = QUEUE, 0
        self.folder: Path | None = None
        if isinstance(engine := existing(self._app.engine), FileEngine):
            self.folder = engine.path.parent

    def take_queue(self) -> None:
        """Take a queue that no other bench uses: a job that is due tomorrow has the queue's name as its unique key.

        The names are few, because a store keeps the name of every queue that it ever had.
        """
        tell = stage_on(self._app).tell
        for number in count(1):
            queue = QUEUE if number == 1 else f"{QUEUE}-{number}"
            held = tell.using(id=self._holder, queue=queue, key=queue, delay=HELD_FOR).enqueue()
            if held.enqueued == "inserted":
                self._queue = queue
                self._mark = held.number if self._app.engine.capabilities.shared else 0
                return
            print(
                f"The queue {queue} belongs to another bench. If none is running, one was killed: delete its jobs"
                f" with `shigoto clear all queue:{queue}`.",
                file=sys.stderr,
            )

    @contextmanager
    def stage(self) -> Generator[Stage]:
        """Return a stage in the queue."""
        stage = stage_on(Shigoto(self._app.url), self._queue, self._mark)
        try:
            yield stage
        finally:
            stage.clear()
            stage.app.close()

    def leave(self) -> None:
        """Give the queue back."""
        engine = self._app.engine
        [holder] = engine.run(engine.get([self._holder]))
        if holder is not None:
            engine.run(engine.delete([holder.number], DELETABLE))
        self._app.close()


@contextmanager
def named(address: str) -> Generator[Named]:
    """Open a store that exists, and take a queue in it for the time of the block. Raises ShigotoError."""
    place = Named(address)
    try:
        place.take_queue()
        yield place
    finally:
        place.leave()


@contextmanager
def new_files(synchronous: str) -> Generator[NewFiles]:
    """Make a folder for new files, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="shigoto-bench-") as folder:
        yield NewFiles(Path(folder), synchronous)


def bare_inserts(parent: Path, jobs: int, synchronous: str) -> float:
    """The limit: a table of one text column, insert and commit, nothing else."""
    with tempfile.TemporaryDirectory(prefix="shigoto-bench-", dir=parent) as folder:
        connection = sqlite3.connect(Path(folder) / "bare.db", isolation_level=None)
        connection.executescript(
            f"PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; CREATE TABLE job (payload TEXT)"
        )
        started = time.perf_counter()
        done, seconds = 0, 0.0
        while done < jobs and seconds < BARE_WITHIN:
            connection.execute("INSERT INTO job VALUES ('{}')")
            done, seconds = done + 1, time.perf_counter() - started
        connection.close()
    return done / seconds


def enqueue(stage: Stage, jobs: int) -> float:
    """Jobs per second, each with a commit of its own."""
    stage.noop.enqueue(0)  # opens the store, and stores the queue's name
    started = time.perf_counter()
    for number in range(jobs):
        stage.noop.enqueue(number)
    seconds = time.perf_counter() - started
    stage.expect(jobs + 1, State.PENDING)
    return jobs / seconds


def bulk(stage: Stage, jobs: int) -> float:
    """Jobs per second, stored by calls of `enqueue_many`."""
    jobs = max(jobs, AT_ONCE) * 10
    started = time.perf_counter()
    fill(stage, stage.noop, jobs)
    seconds = time.perf_counter() - started
    stage.expect(jobs, State.PENDING)
    return jobs / seconds


def fill(stage: Stage, task: Task[[int], Any], jobs: int) -> None:
    """Store jobs, 1000 with each commit."""
    for first in range(0, jobs, AT_ONCE):
        stage.app.enqueue_many(task.call(number) for number in range(first, min(first + AT_ONCE, jobs)))


def drain(stage: Stage, jobs: int) -> float:
    """Jobs per second, run on the event loop."""
    return _drain(stage, stage.noop, jobs * 20)


def drain_threads(stage: Stage, jobs: int) -> float:
    """Jobs per second, run in threads."""
    return _drain(stage, stage.sync_noop, jobs * 20)


def _drain(stage: Stage, task: Task[[int], Any], jobs: int) -> float:
    fill(stage, task, jobs)
    seconds = asyncio.run(_timed(stage.worker(drain=True)))
    stage.expect(jobs, State.COMPLETED)
    return jobs / seconds


async def _timed(worker: Worker) -> float:
    started = time.perf_counter()
    await worker.run()
    return time.perf_counter() - started


def latency(stage: Stage, jobs: int) -> float:
    """Milliseconds from the call of `enqueue` to the start of the handler, the median."""
    return asyncio.run(_latency(stage, min(jobs, 200)))


async def _latency(stage: Stage, jobs: int) -> float:
    waits: list[float] = []
    async with stage.worker():
        for _ in range(jobs):
            before = time.perf_counter()
            await stage.tell.aenqueue()
            waits.append((await stage.started.get() - before) * 1000)
    return median(waits)


BARE = "bare insert"
MEASURES: dict[str, Callable[[Stage, int], float]] = {
    "enqueue": enqueue,
    "bulk": bulk,
    "drain": drain,
    "drain, threads": drain_threads,
    "latency ms": latency,
}


def main(arguments: Sequence[str]) -> None:
    """Measure in rounds, and print the medians."""
    parser = argparse.ArgumentParser(
        prog="dev.py bench speed", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--jobs", type=int, default=2000, help="single enqueues per round; the others scale with it"
    )
    parser.add_argument(
        "--synchronous",
        choices=("full", "normal"),
        default="full",
        help="of new files and of the bare insert",
    )
    parser.add_argument("--url", metavar="STORE", help="a store that exists, instead of new SQLite files")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with named(options.url) if options.url else new_files(options.synchronous) as place:
            figures = measure(place, options.jobs, options.rounds, options.synchronous)
    except ShigotoError as error:
        raise SystemExit(f"Error [{error.code}]: {error}") from error
    except KeyboardInterrupt:
        print("Interrupted. What was stored is deleted.", file=sys.stderr)
        raise SystemExit(130) from None
    report(figures, as_json=options.json)


def measure(place: Place, jobs: int, rounds: int, synchronous: str) -> dict[str, list[float]]:
    """Run every measure in each round."""
    figures: dict[str, list[float]] = {}

    def note(number: int, name: str, figure: float) -> None:
        figures.setdefault(name, []).append(figure)
        print(f"round {number}: {name}: {figure:,.2f}", file=sys.stderr)

    for number in range(1, rounds + 1):
        if place.folder is not None:
            note(number, BARE, bare_inserts(place.folder, jobs, synchronous))
        for name, one in MEASURES.items():
            with place.stage() as stage:
                figure = one(stage, jobs)
            note(number, name, figure)
    return figures


def report(figures: dict[str, list[float]], *, as_json: bool) -> None:
    """Print the medians as a table, or all figures as JSON."""
    if as_json:
        print(json.dumps(figures))
        return
    limit = median(figures[BARE]) if BARE in figures else None
    beside = "" if limit is None else "× bare insert"
    print(f"{'':16}{'median':>12}{'lowest':>12}{'highest':>12}{beside:>15}".rstrip())
    for name, values in figures.items():
        ratio = "" if limit is None or "latency" in name else f"{median(values) / limit:.2f}"
        print(f"{name:16}{median(values):12,.1f}{min(values):12,.1f}{max(values):12,.1f}{ratio:>15}".rstrip())
