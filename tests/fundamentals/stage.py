"""Where worker tests play: a memory store, an app and a worker on virtual time.

A day passes in a few milliseconds here, so every delay can be asserted to the millisecond.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from shigoto import (
    Shigoto,
    StoreUnavailable,
)
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.model.job import Job
from shigoto.model.worker import Orders
from shigoto.observe.events import Event, StoreAnswered
from shigoto.testing.store import START, VirtualClock
from shigoto.worker import Stopped, Worker
from tests.virtual_loop import run_virtual

T = TypeVar("T")
E = TypeVar("E", bound=Event)

HOUR = 3_600.0
DAY = 86_400.0


class Stage:
    """A memory store on virtual time, an app on it, and everything the worker tells, with the instant in ms."""

    def __init__(self, engine: Callable[[VirtualClock], MemoryEngine] | None = None) -> None:
        self.clock = VirtualClock()
        self.engine = MemoryEngine(clock=self.clock) if engine is None else engine(self.clock)
        self.app = Shigoto(engine=self.engine)
        self.told: list[tuple[int, Event]] = []
        self._waiting: list[asyncio.Event] = []
        self.app.bus.subscribe(self._hear)

    @property
    def now(self) -> int:
        """Milliseconds since the test began."""
        return self.clock.now - START

    def play(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return run_virtual(main, self.clock)

    def worker(self, **options: Any) -> Worker:
        usual: dict[str, Any] = {"beats": "loop", "random": Random(7), "name": "1"}
        return Worker(self.app, **usual | options)

    def drain(self, **options: Any) -> Stopped:
        """Run a worker until there is nothing left to do now."""
        return self.play(lambda: self.worker(drain=True, **options).run())

    def drain_with_threads(self, **options: Any) -> Stopped:
        """The same in real time: what threads do takes real time, and virtual time would run away from them."""
        return asyncio.run(self.worker(drain=True, beats="thread", **options).run())

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[Worker]:
        """A worker for the length of a block; it must have given back or finished everything by the end."""
        async with self.worker(**options) as worker:
            yield worker
        assert worker.id not in {record.id for record in self.engine.run(self.engine.workers())}

    def all(self, kind: type[E]) -> list[E]:
        return [event for _, event in self.told if isinstance(event, kind)]

    def times(self, kind: type[Event]) -> list[int]:
        return [at for at, event in self.told if isinstance(event, kind)]

    async def until(self, kind: type[Event], count: int = 1) -> None:
        async with asyncio.timeout(30 * DAY):
            while len(self.all(kind)) < count:
                news = asyncio.Event()
                self._waiting.append(news)
                await news.wait()

    def job(self, number: int = 1) -> Job:
        [job] = [job for job in self.app.find(limit=100) if job.number == number]
        return job

    def _hear(self, event: Event) -> None:
        if isinstance(event, StoreAnswered):
            return  # with every poll: in hours of virtual time there are too many to look through
        self.told.append((self.now, event))
        while self._waiting:
            self._waiting.pop().set()


class Running:
    """How many handlers run at once, and the most there ever were."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    def __enter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        self.now -= 1


class DeafToBeats(MemoryEngine):
    """A store that answers everything but beats."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.deaf = False

    def beat(self, worker: UUID, held: Any) -> Op[Orders]:
        if self.deaf:
            raise StoreUnavailable("no answer")
        return super().beat(worker, held)
