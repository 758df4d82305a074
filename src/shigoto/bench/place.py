"""Where the jobs of a bench live.

    new files       nobody has named a store: a file for each measure, in a folder that is made where we are, since the
                    disk there is what people want to know about
    a named store   it may be in use. The jobs stand in a queue of their own, and are deleted after each measure. A file
                    that was not there before is removed, unless somebody else uses it by then
    memory          a new store for each measure

A named store gives the queue to one bench at a time: whoever has stored the job that holds the queue's name as its
unique key has the queue. The names are few, because a store keeps the name of every queue it has ever had.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Protocol
from urllib.parse import parse_qsl

from msgspec import Struct

from shigoto.app import Shigoto
from shigoto.bench.figures import BenchFailed
from shigoto.bench.tasks import Noops, declare
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreUnavailable
from shigoto.model.ids import uuid7
from shigoto.model.job import JobFilter, State
from shigoto.model.states import DELETABLE
from shigoto.worker.supervisor.address import InFile

QUEUE = "shigoto-bench"
LOOK = 50_000  # numbers of jobs that are looked up at once
BATCH = 500  # jobs that are deleted at once: others want to write too
HELD_FOR = timedelta(days=1)
BESIDE = ("", "-wal", "-shm", "-bell")  # what belongs to an SQLite file

Complain = Callable[[str], None]


class Facts(Struct, frozen=True, kw_only=True):
    """What is measured: `store` is for people, `shared` says that other processes can open it."""

    engine: str
    settings: dict[str, str]
    store: str
    shared: bool


@dataclass(frozen=True, slots=True)
class Stage:
    """A store without jobs of ours, for one measure. Those with a number above `mark` in the queue are ours."""

    app: Shigoto
    tasks: Noops
    queue: str
    mark: int = 0

    def numbers(self, state: State | None = None) -> list[int]:
        """The jobs of this measure that are in the state, or in any but processing, as the store has them."""
        engine, found, after = self.app.engine, list[int](), self.mark
        while True:
            page = engine.run(
                engine.deletable(JobFilter(state=state, queue=self.queue, limit=LOOK), after=after)
            )
            found += page
            if len(page) < LOOK:
                return found
            after = page[-1]


class Place(Protocol):
    """Where stages are made; `folder` is a folder for other files on the same disk, None if it has no disk of ours."""

    @property
    def facts(self) -> Facts: ...

    @property
    def folder(self) -> Path | None: ...

    def stage(self) -> AbstractContextManager[Stage]:
        """An empty store, or part of one; emptied again at the end."""
        ...


@contextmanager
def open_place(address: str | None, *, is_new: bool, complain: Complain) -> Generator[Place]:
    """The place that an address means, None for new files; `is_new` if the store is not there yet.

    At the end, whatever happens, nothing of ours is left in it.
    """
    if address is None:
        with _folder_in(Path()) as folder:
            yield NewFiles(folder)
        return
    app = Shigoto(address)
    if not app.engine.capabilities.shared:
        yield InMemory(address, facts_of(app.engine, "memory"))
        return
    path = app.engine.path if isinstance(app.engine, InFile) else None
    try:
        if path is None:
            app.engine.run(app.engine.stats())  # a schema on a server is made by `shigoto migrate` alone
            yield from _named(app, None, complain)
        else:
            app.engine.migrate()
            with _folder_in(path.parent) as folder:
                yield from _named(app, folder, complain)
    finally:
        app.close()
        if is_new and path is not None:
            _remove(path, complain)


def _named(app: Shigoto, folder: Path | None, complain: Complain) -> Generator["Place"]:
    named = Named(app, folder)
    try:
        named.take_queue(complain)
        yield named
    finally:
        named.leave()


def facts_of(engine: Engine, store: str) -> Facts:
    """What the address of an engine says of it."""
    settings: dict[str, str] = {}
    if isinstance(engine, InFile):  # the address of a server may hold secrets
        settings = {"synchronous": "full", **dict(parse_qsl(engine.address.partition("?")[2]))}
    capabilities = engine.capabilities
    return Facts(engine=capabilities.name, settings=settings, store=store, shared=capabilities.shared)


class NewFiles:
    """A file for each measure, so that all begin alike."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count(1)
        self.facts = facts_of(Shigoto(folder / "jobs.db").engine, f"new files in {folder.parent}")

    @contextmanager
    def stage(self) -> Generator[Stage]:
        """A new file, removed at the end."""
        path = self.folder / f"jobs-{next(self._numbers)}.db"
        app = Shigoto(path)
        try:
            yield Stage(app, declare(app).in_queue(QUEUE), QUEUE)
        finally:
            app.close()
            _unlink(path)


class InMemory:
    """A new store in memory for each measure."""

    folder = None

    def __init__(self, address: str, facts: Facts) -> None:
        self._address = address
        self.facts = facts

    @contextmanager
    def stage(self) -> Generator[Stage]:
        """An empty store, which is gone at the end."""
        app = Shigoto(self._address)
        try:
            yield Stage(app, declare(app).in_queue(QUEUE), QUEUE)
        finally:
            app.close()


class Named:
    """A queue of our own in a store that others may use meanwhile."""

    def __init__(self, app: Shigoto, folder: Path | None) -> None:
        engine = app.engine
        store = str(engine.path) if isinstance(engine, InFile) else engine.capabilities.name
        self.facts = facts_of(engine, store)
        self.folder = folder
        self._app = app
        self._holder = uuid7()  # known before it is stored: an interrupt may come at any time
        self._stage: Stage | None = None

    def take_queue(self, complain: Complain) -> None:
        """Take a queue that no other bench has: by a job that is due when nobody waits for it any more."""
        tasks = declare(self._app)
        for number in count(1):
            queue = QUEUE if number == 1 else f"{QUEUE}-{number}"
            holder = tasks.moment.using(id=self._holder, queue=queue, key=queue, delay=HELD_FOR).enqueue()
            if holder.enqueued == "inserted":
                self._stage = Stage(self._app, tasks.in_queue(queue), queue, holder.number)
                return
            complain(
                f"The queue {queue} belongs to another bench. If none is at work, one was killed: delete its jobs"
                f" with `shigoto clear all queue:{queue}`."
            )

    @contextmanager
    def stage(self) -> Generator[Stage]:
        """The queue, without jobs of ours before and after."""
        if self._stage is None:
            raise RuntimeError("The queue was not taken.")
        try:
            yield self._stage
        finally:
            _empty(self._stage)

    def leave(self) -> None:
        """Delete everything, and give the queue back. Raises BenchFailed if whoever waits is too impatient for that."""
        engine = self._app.engine
        try:
            if self._stage is not None:
                _empty(self._stage)
            [holder] = engine.run(engine.get([self._holder]))
            if holder is not None:
                engine.run(engine.delete([holder.number], DELETABLE))
        except KeyboardInterrupt:
            queue = QUEUE if self._stage is None else self._stage.queue
            raise BenchFailed(
                f"Interrupted again: jobs are left in the store. Delete them with `shigoto clear all queue:{queue}`."
            ) from None


def _empty(stage: Stage) -> None:
    """Delete all jobs of a stage; those that a killed process has left running are taken from it first."""
    app, engine = stage.app, stage.app.engine
    app.close()  # waits for jobs that are still on their way, since an interrupt waits for nothing
    while running := app.find(state="processing", queue=stage.queue):
        engine.run(engine.cancel([job.id for job in running], force=True))
    numbers = stage.numbers()
    for start in range(0, len(numbers), BATCH):
        engine.run(engine.delete(numbers[start : start + BATCH], DELETABLE))


@contextmanager
def _folder_in(parent: Path) -> Generator[Path]:
    """A new folder, removed at the end whatever happens."""
    try:
        folder = Path(mkdtemp(prefix="shigoto-bench-", dir=parent)).resolve()
    except OSError as error:
        where = "the current folder" if parent == Path() else parent
        raise StoreUnavailable(
            f"No folder can be made in {where} ({error.strerror}). Go to a folder of yours on the disk that you want"
            " to measure, or name a store there with --url."
        ) from error
    try:
        yield folder
    finally:
        rmtree(folder, ignore_errors=True)


def _remove(path: Path, complain: Complain) -> None:
    """Remove a store that was not there before, unless somebody has begun to use it."""
    if not path.exists():
        return
    app = Shigoto(path)
    try:
        workers = [worker for worker in app.workers() if not worker.name.startswith(QUEUE)]
        others = workers or app.find(limit=1)
    finally:
        app.close()
    if others:
        complain(f"{path} stays: somebody else has begun to use it.")
    else:
        _unlink(path)


def _unlink(path: Path) -> None:
    for suffix in BESIDE:
        Path(f"{path}{suffix}").unlink(missing_ok=True)
