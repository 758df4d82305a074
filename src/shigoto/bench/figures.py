"""What one measure of one round tells."""

from typing import ClassVar

from msgspec import Struct

from shigoto.model.errors import ShigotoError


class BenchFailed(ShigotoError):
    """The figures would not be true: jobs are missing in the store, or a runner process has ended."""

    code: ClassVar[str] = "BENCH.FAILED"


class Memory(Struct, frozen=True):
    """Of the runner processes: the most that one had, and what all have gained while they ran jobs; in bytes."""

    most: int
    gained: int


class Rate(Struct, frozen=True, kw_only=True):
    """So many jobs in so many seconds, and the seconds of processor time that it took."""

    jobs: int
    seconds: float
    cpu: float
    memory: Memory | None = None

    @property
    def per_second(self) -> float:
        """Jobs per second."""
        return self.jobs / self.seconds

    @property
    def cpu_per_job(self) -> float:
        """Microseconds of processor time."""
        return self.cpu / self.jobs * 1e6

    @property
    def memory_per_job(self) -> float | None:
        """Bytes gained for each job: what they took at the same time, spread over all of them."""
        return None if self.memory is None else self.memory.gained / self.jobs


class Waits(Struct, frozen=True):
    """Milliseconds from the call of `enqueue` to the first line of the handler, job by job."""

    each: tuple[float, ...]


Figure = Rate | Waits
