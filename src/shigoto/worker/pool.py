"""What the claimer and the keeper see of a pool, be it strands of the event loop or threads."""

from collections.abc import Callable, Sequence
from typing import Protocol

from shigoto.model.job import Lease
from shigoto.model.outcome import Settlement
from shigoto.observe.bus import Bus
from shigoto.observe.events import JobStarted
from shigoto.worker.runner import Hand
from shigoto.worker.slots import Slots

# What a pool calls when a run has ended: lease, settlement, seconds.
Settle = Callable[[Lease, Settlement, float], None]


class Pool(Protocol):
    """A place where jobs of some tasks run, at most `slots.size` at once."""

    tasks: tuple[str, ...]
    slots: Slots

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


def running(pool: Pool) -> int:
    """How many jobs run in a pool right now."""
    return len(pool.hands())


def tell_started(bus: Bus, worker: str, lease: Lease) -> None:
    """Publish that a handler is about to be called."""
    bus.publish(
        JobStarted(worker, lease.id, lease.number, lease.task, lease.queue, lease.tenant, lease.attempt)
    )
