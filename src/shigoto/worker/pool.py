"""The base class of the pools, the slots in which their jobs run, and their time limits.

A pool runs jobs on strands of the event loop (`loop_pool.py`), in threads (`thread_pool.py`) or in child processes
(`process_pool.py`). The claimer and the keeper see only what stands here.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context as Variables
from contextvars import copy_context
from math import inf
from typing import Protocol, TypeVar
from uuid import UUID

from shigoto.context import Signals
from shigoto.model.job import Lease
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Settlement
from shigoto.observe.bus import Bus
from shigoto.observe.events import JobStarted
from shigoto.worker import endings
from shigoto.worker.slots import Slots
from shigoto.worker.state import WorkerState

# What a pool calls when a run has ended: lease, settlement, seconds.
Settle = Callable[[Lease, Settlement, float], None]


class RunSlot(Protocol):
    """The place where one job runs. The keeper reads it from outside to pass on orders and to collect progress.

    `wanted` is how the run shall end once a cancel by the worker has got through. `limit_at` is when the next of its
    limits is reached, in seconds of the event loop; infinity means no limit.
    """

    lease: Lease | None
    signals: Signals
    wanted: Ending | None
    limit_at: float

    def limit(self, hard: Millis | None, soft: Millis | None) -> None:
        """Act if this run takes longer than this."""
        ...


class StrandSlot(RunSlot, Protocol):
    """A place on the event loop: its task can be cancelled, and it can wear out.

    `variables` are its context variables as its first job found them; one that changes them wears it out.
    """

    task: asyncio.Task[None]
    variables: Variables | None
    cancels: int
    worn: bool


class PoolSlot(RunSlot, Protocol):
    """A slot of a pool, which watches over the limits of what runs there."""

    def time_out(self) -> None:
        """Act on the limit that `limit_at` stood for: it has passed."""
        ...


class Pool(ABC):
    """A place where jobs run, at most `slots.size` at once. One that is `resting` is not asked to take any."""

    def __init__(self, state: WorkerState, *, size: int, settle: Settle, room: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.slots = Slots(size, self._loop.time())
        self.limits = TimeLimits(self.busy_slots)
        self._state = state
        self._settle = settle
        self._room = room
        self._tell = False
        self._buffer: deque[Lease] = deque()
        self._closed = False

    @property
    def resting(self) -> bool:
        """Return True if it can run nothing for a while."""
        return False

    @property
    def buffered(self) -> int:
        """The number of leases that wait for a slot."""
        return len(self._buffer)

    @abstractmethod
    def busy_slots(self) -> Sequence[PoolSlot]:
        """Return the slots that run a job now."""

    @abstractmethod
    def give(self, leases: Sequence[Lease]) -> None:
        """Run these, in this order."""

    def take_back(self) -> list[Lease]:
        """Return every lease that has not been started; the pool will not start it."""
        leases = list(self._buffer)
        self._buffer.clear()
        return leases

    @abstractmethod
    def cancel(self, lease: Lease) -> bool:
        """Ask a running job to stop; False if it does not run here."""

    @abstractmethod
    def lose(self, lease: Lease) -> bool:
        """Stop a running job that another worker may have now, as far as possible; False if it does not run here."""

    @abstractmethod
    def cut(self, lease: Lease) -> None:
        """Stop a running job for the sake of this worker; if it gives in, it is released."""

    def tell_stopping(self) -> None:
        """Tell running jobs that the worker is about to stop."""
        for slot in self.busy_slots():
            slot.signals.stopping = True

    def _release(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._settle(lease, endings.released(lease, ran=False), 0.0)


SlotT = TypeVar("SlotT", bound=RunSlot)


def slot_of(lease: Lease, slots: Iterable[SlotT]) -> SlotT | None:
    """Return the slot that has this very lease."""
    return next((slot for slot in slots if slot.lease is lease), None)


class WorkKind:
    """One kind of work that a pool asks the store for: jobs of these tasks, and of them those that must run alone,
    those that need not, or both (None)."""

    def __init__(self, pool: Pool, tasks: Sequence[str], *, alone: bool | None) -> None:
        self.pool = pool
        self.tasks = tuple(tasks)
        self.alone = alone


def running(pool: Pool) -> int:
    """Return the number of jobs that run in a pool now."""
    return len(pool.busy_slots())


def named(worker: str, lease: Lease) -> tuple[str, UUID, int, str, str, str, int]:
    """Return the fields that every event of a job begins with."""
    return worker, lease.id, lease.number, lease.task, lease.queue, lease.tenant, lease.attempt


def tell_started(bus: Bus, worker: str, lease: Lease) -> None:
    """Publish that a handler is about to be called. Without `named`: each call more is one for every job."""
    bus.publish(
        JobStarted(worker, lease.id, lease.number, lease.task, lease.queue, lease.tenant, lease.attempt)
    )


def first_of(now: float, hard: Millis | None, soft: Millis | None) -> tuple[float, float, bool]:
    """Return when the first of two limits is reached, when the hard one is, and True if the first is the soft one."""
    hard_at = inf if hard is None else now + hard / 1000
    soft_at = inf if soft is None else now + soft / 1000
    return min(hard_at, soft_at), hard_at, soft_at < hard_at


class TimeLimits:
    """The time limits of the slots that `running` returns: one timer for all of a pool.

    `asyncio.timeout` arms and disarms a timer for every job, which took 5 µs, twice the rest of the runtime. Nearly no
    job reaches its limit, so here a job only notes when its own is, and one timer stands at the earliest that was
    noted. When it fires, the job it was set for has mostly ended long ago, and the timer moves on to the earliest that
    still counts.
    """

    def __init__(self, running: Callable[[], Iterable[PoolSlot]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._running = running
        self._variables = copy_context()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def watch(self, limit_at: float) -> None:
        """Look at the limits at this instant, or earlier."""
        if limit_at < self._timer_at:
            self.close()
            self._timer_at = limit_at
            # Not with the variables of the run that has asked for it.
            self._timer = self._loop.call_at(limit_at, self._look, context=self._variables.copy())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf

    def _look(self) -> None:
        # A loop may call a timer a trifle before its time.
        now = max(self._loop.time(), self._timer_at)
        self._timer, self._timer_at = None, inf
        for run in self._running():
            if run.limit_at <= now:
                run.limit_at = inf
                run.time_out()
        next_at = min((run.limit_at for run in self._running()), default=inf)
        if next_at < inf:
            self.watch(next_at)
