"""What the claimer and the keeper see of a pool, be it strands of the event loop, threads or child processes."""

from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from shigoto.model.job import Lease
from shigoto.model.worker import Settlement
from shigoto.observe.bus import Bus
from shigoto.observe.events import JobStarted
from shigoto.worker.runner import Hand
from shigoto.worker.slots import Slots

# What a pool calls when a run has ended: lease, settlement, seconds.
Settle = Callable[[Lease, Settlement, float], None]


class Pool(Protocol):
    """A place where jobs run, at most `slots.size` at once. One that is `resting` is not asked to take any."""

    slots: Slots

    @property
    def resting(self) -> bool:
        """Whether it can run nothing for a while."""
        ...

    @property
    def buffered(self) -> int:
        """How many leases wait for a place."""
        ...

    def hands(self) -> Sequence[Hand]:
        """The places that run a job right now."""
        ...

    def give(self, leases: Sequence[Lease]) -> None:
        """Run these, in this order."""
        ...

    def take_back(self) -> list[Lease]:
        """Every lease that has not been started; it will not be."""
        ...

    def cancel(self, lease: Lease) -> bool:
        """Ask a running job to stop; False if it does not run here."""
        ...

    def lose(self, lease: Lease) -> bool:
        """Stop a running job that is no longer this worker's, as far as that is possible; False if it does not run
        here."""
        ...

    def cut(self, lease: Lease) -> None:
        """Stop a running job for its worker's sake; if it gives in, it is released."""
        ...

    def tell_stopping(self) -> None:
        """Let running jobs know that the worker is about to stop."""
        ...


class Line:
    """One kind of work that a pool asks the store for: jobs of these tasks, and of them those that must run alone,
    those that need not, or both (None)."""

    __slots__ = ("alone", "pool", "tasks")

    def __init__(self, pool: Pool, tasks: Sequence[str], *, alone: bool | None) -> None:
        self.pool = pool
        self.tasks = tuple(tasks)
        self.alone = alone


def running(pool: Pool) -> int:
    """How many jobs run in a pool right now."""
    return len(pool.hands())


def named(worker: str, lease: Lease) -> tuple[str, UUID, int, str, str, str, int]:
    """The fields that every event of a job begins with."""
    return worker, lease.id, lease.number, lease.task, lease.queue, lease.tenant, lease.attempt


def tell_started(bus: Bus, worker: str, lease: Lease) -> None:
    """Publish that a handler is about to be called. Without `named`: each call more is one for every job."""
    bus.publish(
        JobStarted(worker, lease.id, lease.number, lease.task, lease.queue, lease.tenant, lease.attempt)
    )
