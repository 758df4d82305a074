"""State shared by the parts of one worker: its id, its store, and the leases it holds."""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from random import Random
from typing import TypeVar
from uuid import UUID

from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreError
from shigoto.model.job import Lease
from shigoto.observe.bus import Bus
from shigoto.observe.events import StoreAnswered, StoreRecovered, StoreTrouble
from shigoto.worker.process import RunningJobs
from shigoto.worker.stopping import Wakeup

T = TypeVar("T")

# Seconds that a beat may always take: with less, a busy server would look like a dead one.
SHORTEST_BEAT = 1.0
PRIVATE_SIZE = 1_024  # jobs that can be noted where no supervisor reads them

Spawn = Callable[[Callable[[], None], str], threading.Thread]


def start_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that does not keep the process from ending."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


class WorkerState:
    """State shared by the parts of one worker.

    `held` has every lease from its claim until the store has accepted its end: buffered, running, or waiting
    to be settled. Only the event loop changes it; the beat thread copies it in one step.

    `may_start_until` is the instant, on `clock`, up to which a lease may be claimed and, above all, started.
    A worker that was paused for longer than its lease wakes up in the middle of a buffer whose jobs others have
    completed meanwhile; so whoever takes a lease looks at the clock first. Any thread reads it, the keeper
    writes it. `confirmed_at` is when the newest beat that the store has confirmed was sent.

    `running_jobs` is where everybody who runs a job notes its number. `opening` is called when the engine is first
    needed.
    """

    def __init__(
        self,
        *,
        id: UUID,
        name: str,
        opening: Callable[[], Engine],
        bus: Bus,
        random: Random,
        lease: float,
        poll: float,
        clock: Callable[[], float],
        announced_at: float,
        spawn: Spawn = start_thread,
        running_jobs: RunningJobs | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self._opening = opening
        self.bus = bus
        self.random = random
        self.lease = lease
        self.poll = poll
        self.clock = clock
        self.spawn = spawn
        self.running_jobs = RunningJobs.private(PRIVATE_SIZE) if running_jobs is None else running_jobs
        self._indexes = 0
        self.confirmed_at = 0.0
        self.may_start_until = 0.0
        self.confirm(announced_at)
        self.held: dict[int, Lease] = {}

    @cached_property
    def engine(self) -> Engine:
        return self._opening()

    async def ask(self, verb: str, op: Op[T]) -> T:
        """Run an op on the event loop, and publish how long the store took."""
        if not self.bus.wants(StoreAnswered):
            return await self.engine.arun(op)
        asked_at = self.clock()
        try:
            return await self.engine.arun(op)
        finally:
            self.answered(verb, self.clock() - asked_at)

    def answered(self, verb: str, seconds: float) -> None:
        """Publish that the store has done what was asked, or has failed. On the event loop."""
        self.bus.publish(StoreAnswered(self.name, verb, seconds))

    def close(self) -> None:
        """Close the engine, if it was opened. This waits for what has begun there."""
        if "engine" in vars(self):
            self.engine.close()

    def confirm(self, sent_at: float) -> None:
        """Note that the store has confirmed the lease, which began no earlier than when the store was asked."""
        self.confirmed_at = sent_at
        self.may_start_until = sent_at + self.lease * 2 / 3

    def in_touch(self) -> bool:
        """Return True if the lease was confirmed recently enough to claim, and to start what was claimed."""
        return self.clock() < self.may_start_until

    def take_indexes(self, count: int) -> range:
        """Return so many indexes of the running jobs, for one pool."""
        first, self._indexes = self._indexes, self._indexes + count
        return range(first, self._indexes)

    def held_tokens(self) -> list[tuple[int, int]]:
        """Return the (number, token) of each held lease. Safe from any thread."""
        return [(lease.number, lease.token) for lease in list(self.held.values())]

    def jittered_poll(self) -> float:
        """Return the longest wait before a look; jittered downwards, so that workers do not look together."""
        return self.poll * self.random.uniform(0.8, 1)


class Trouble:
    """One part's trouble with the store: how long to wait before the next try, and who hears of it.

    A store that is back is noticed within five seconds; engines that keep callers from trying too often need a part of
    that for themselves.
    """

    FIRST = 0.1
    LONGEST = 3.0
    TELL_EVERY = 30.0

    def __init__(self, state: WorkerState, part: str, *, longest: float = LONGEST) -> None:
        self._state = state
        self._part = part
        self._longest = longest
        self._told: tuple[str, float] | None = None
        self.tries = 0

    def met(self, error: Exception) -> float:
        """Publish the error, and return how many seconds to wait: each time longer, with jitter."""
        pause = self.next_pause()
        self.tell(error, pause)
        return pause

    def next_pause(self) -> float:
        """Count one more failed try, and return how many seconds to wait."""
        self.tries += 1
        # The exponent is bounded because 2.0 ** 1024 is an error, and outages can be long.
        backoff = min(self._longest, self.FIRST * 2.0 ** min(self.tries, 30))
        return backoff * self._state.random.uniform(0.5, 1)

    def tell(self, error: Exception, pause: float) -> None:
        """Publish the error, on the event loop."""
        text, now = str(error), self._state.clock()
        told, told_at = self._told or ("", 0.0)
        repeated = told == text and now - told_at < self.TELL_EVERY
        if not repeated:
            self._told = text, now
        self._state.bus.publish(StoreTrouble(self._state.name, self._part, text, pause, repeated))

    def over(self) -> bool:
        """Note that the store answered; return True if it had not before."""
        if not self.tries:
            return False
        self._state.bus.publish(StoreRecovered(self._state.name, self._part, self.tries))
        self.tries = 0
        self._told = None
        return True


class Repeated(ABC):
    """Work at the store that is done again and again until it is closed or cancelled; `part` is its name."""

    def __init__(self, state: WorkerState, part: str) -> None:
        self._state = state
        self._time = asyncio.get_running_loop().time
        self._trouble = Trouble(state, part)
        self._wakeup = Wakeup()
        self._closed = False

    def close(self) -> None:
        """Finish the round that has begun, and begin no other."""
        self._closed = True
        self._wakeup.ring()

    async def run(self) -> None:
        """Do one round after the other."""
        while not self._closed:
            try:
                pause = await self._round()
            except StoreError as error:
                pause = self._trouble.met(error)
                self._failed(error)
            else:
                self._trouble.over()
            await self._wakeup.wait(pause)

    @abstractmethod
    async def _round(self) -> float:
        """Do one round, and return how many seconds to wait before the next. A StoreError is met by the caller."""

    def _failed(self, error: StoreError) -> None:
        """Note that the store has refused this round; called before the pause."""
        return


def longest_pause(lease: float) -> float:
    """Return the longest pause of a beat, in seconds: the store forgives L/3 between two looks at an expired worker."""
    return min(lease / 6, Trouble.LONGEST)


def beat_deadline(lease: float) -> float:
    """For how many seconds to wait for the answer to a beat: on a line that has died there is none, and the lease must
    last for a beat on another."""
    return max(SHORTEST_BEAT, lease / 3)


def lease_clock() -> Callable[[], float]:
    """Return a monotonic clock in seconds that goes on while the machine sleeps, as leases do, if there is one."""
    since_boot: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if since_boot is None else partial(time.clock_gettime, since_boot)
