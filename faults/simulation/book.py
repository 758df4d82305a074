"""What the people and the handlers of a world have written down, outside of its store; and whether the store agrees."""

from collections.abc import Iterator, Mapping
from uuid import UUID

from msgspec import Struct, field

from faults.simulation.store import Seen
from shigoto import State

CRASHES = 3  # after which a job is put away, even if each process died before it could begin


class Book(Struct):
    """By the ids of jobs: which were tried, and whether they were acknowledged; which expire; whom somebody cancelled.

    `done` are runs that have returned, with their tokens.
    """

    tried: dict[UUID, bool] = field(default_factory=dict)
    expiring: set[UUID] = field(default_factory=set)
    cancelled: set[UUID] = field(default_factory=set)
    started: set[UUID] = field(default_factory=set)
    done: set[tuple[UUID, int]] = field(default_factory=set)

    def judge(self, jobs: Mapping[int, Seen]) -> Iterator[str]:
        """What is wrong in a world that has come to rest."""
        there = {job.id for job in jobs.values()}
        for id, acknowledged in self.tried.items():
            if acknowledged and id not in there:
                yield f"an acknowledged job is not there: {id} (I1)"
        for number, job in jobs.items():
            if job.state is State.COMPLETED and (job.id, job.settled_token) not in self.done:
                yield f"job {number} is completed, but token {job.settled_token} never returned (I2)"
            if job.id not in self.started and not self._may_end_unrun(job):
                yield f"job {number} is {job.state.value}, and was never begun (I2)"

    def _may_end_unrun(self, job: Seen) -> bool:
        if job.state is State.CANCELLED:
            return job.id in self.cancelled
        expired = job.id in self.expiring or job.crashes >= CRASHES
        return not job.state.terminal or (job.state is State.FAILED and expired)
