"""A process's way to the store: it takes time, and does not always get through."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from msgspec.structs import replace

from faults.simulation.loop import Loop, Process
from faults.simulation.manners import Manners
from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreUnavailable

T = TypeVar("T")

Commit = Callable[[Op[Any], bool], Any]

# Those that may arrive twice, and do no more than once; those that may do so long after.
REPEATABLE = frozenset({"enqueue_many", "settle", "beat", "announce", "report", "promote"})
LATE = frozenset({"enqueue_many", "settle"})
READS = ("deletable", "count", "get", "find", "attempts", "logs", "stats", "settings", "workers", "due")
WRITES = (
    *REPEATABLE, "claim", "leave", "report_dead", "sweep", "cancel", "retry", "delete", "configure", "tick",
)  # fmt: skip
OPS = frozenset((*READS, *WRITES))


class Told:
    """A note of what an operation is. It stays with the operation if steps are added to that."""

    def __init__(self, verb: str, asked: Any, committed: Callable[[Any], None] | None) -> None:
        self.verb = verb
        self.asked = asked
        self._committed = committed

    def __call__(self, value: Any) -> None:
        """What follows the commit of the operation itself."""
        if self._committed is not None:
            self._committed(value)


def told_by(op: Op[Any]) -> Told:
    """The note of what an operation is."""
    assert isinstance(op.committed, Told)
    return op.committed


class Troubles:
    """What a world's lines suffer from now; all may be changed at any time."""

    def __init__(self) -> None:
        self.loss = 0.0  # how likely a request or an answer is lost
        self.twice = 0.0  # how likely an operation arrives twice
        self.deaf = 0.0  # how likely a ring of the doorbell is not heard
        self.slow = 0.02  # seconds that a way may take
        self.down = False
        # Seconds until one is told that nothing gets through. With the longest pause between two beats, a sixth of a
        # lease, it must stay below the third of a lease that lies between two looks at a worker.
        self.wait = 1.0


class Line:
    """An engine for one process, on the one that the world has."""

    def __init__(
        self,
        loop: Loop,
        process: Process,
        engine: Engine,
        troubles: Troubles,
        commit: Commit,
        random: Random,
        *,
        manners: Manners,
        complain: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._process = process
        self._engine = engine
        self._troubles = troubles
        self._commit = commit
        self._random = random
        self._manners = manners
        self._complain = complain
        self._doorbell: Bell | None = None
        self._is_cut = False
        self.was_cut = False

    def cut(self) -> None:
        """Let nothing through any more."""
        self._is_cut = self.was_cut = True

    def mend(self) -> None:
        """Let everything through again."""
        self._is_cut = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if name not in OPS:
            return found

        def told(*args: Any, **options: Any) -> Op[Any]:
            """The operation, with a note of what it is: the keeper puts another one together from its parts."""
            op = found(*args, **options)
            return replace(op, committed=Told(name, args, op.committed))

        self.__dict__[name] = told
        return told

    async def arun(self, op: Op[T]) -> T:
        """There, and back again."""
        if told_by(op).verb == "sweep":
            return await self._sweep(op)
        await self._travel()
        value: T = self._deliver(op)
        await self._travel()
        return value

    async def _sweep(self, op: Op[T]) -> T:
        asked_at = self._loop.time()
        try:
            await self._travel()
            value: Any = self._deliver(op)
            await self._travel()
        except StoreUnavailable:
            self._manners.failed()
            raise
        if problem := self._manners.answered(asked_at, self._loop.time(), value):
            self._complain(problem)
        return value  # type: ignore[no-any-return]

    def run(self, op: Op[T]) -> T:
        """At once: whoever asks so waits, and nobody else can do anything meanwhile."""
        self._expect_alive()
        if self._out() or self._random.random() < self._troubles.loss:
            raise StoreUnavailable("the line is bad")
        value: T = self._deliver(op)
        return value

    def listen(self) -> "Bell":
        """A doorbell that sometimes is not heard."""
        self._doorbell = Bell(lambda: self._random.random() < self._troubles.deaf)
        return self._doorbell

    def ring(self) -> None:
        """There is work, perhaps."""
        if self._doorbell is not None and self._process.alive and not self._out():
            self._doorbell.ring()

    def _deliver(self, op: Op[T]) -> T:
        self._expect_alive()
        value: T = self._commit(op, False)
        if (
            self._troubles.twice
            and told_by(op).verb in REPEATABLE
            and self._random.random() < self._troubles.twice
        ):
            if told_by(op).verb in LATE and self._random.random() < 0.5:
                self._loop.call_later(self._random.random() * 60, self._commit, op, True)
            else:
                again: T = self._commit(op, True)
                return again if self._random.random() < 0.5 else value
        return value

    async def _travel(self) -> None:
        random = self._random
        await asyncio.sleep(random.random() * self._troubles.slow)
        if self._out() or (self._troubles.loss and random.random() < self._troubles.loss):
            await asyncio.sleep(random.random() * self._troubles.wait)
            raise StoreUnavailable("the line is bad")
        if not self._process.alive:
            await asyncio.get_running_loop().create_future()

    def _out(self) -> bool:
        return self._is_cut or self._troubles.down

    def _expect_alive(self) -> None:
        if not self._process.alive:
            raise StoreUnavailable("there is nobody to ask")


class Bell:
    """A doorbell on the loop of a world."""

    def __init__(self, deaf: Callable[[], bool]) -> None:
        self._deaf = deaf
        self._rung = asyncio.Event()

    async def wait(self, timeout: float) -> bool:
        """True after a ring, False after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True

    def ring(self) -> None:
        """Wake the waiter, unless it is deaf."""
        if not self._deaf():
            self._rung.set()

    def close(self) -> None:
        """Nobody listens any more."""
