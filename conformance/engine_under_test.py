"""What a test of the suite gets to hold: an engine, its clock, and short ways to do common things."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypedDict, Unpack
from uuid import UUID

from msgspec import structs

from shigoto.engine.protocol import Engine
from shigoto.model.ids import uuid7
from shigoto.model.job import Counts, Enqueued, FailureKind, Job, JobFilter, JobSpec, KeyMode, Lease, State
from shigoto.model.states import DELETABLE
from shigoto.model.time import Millis
from shigoto.model.worker import (
    LEASE,
    Announcement,
    Death,
    Ending,
    LogTail,
    Orders,
    Promoted,
    Report,
    Rescued,
    Settlement,
    SweepOrder,
    Swept,
    Verdict,
    Want,
)
from shigoto.testing.store import VirtualClock


class SpecOptions(TypedDict, total=False):
    """Everything of a JobSpec but its task."""

    id: UUID
    queue: str
    payload: str
    tenant: str
    priority: int
    delay: Millis
    run_at: Millis | None
    expires_in: Millis | None
    expires_at: Millis | None
    key: str | None
    key_mode: KeyMode
    max_failures: int
    max_crashes: int | None
    retry: str | None
    timeout: Millis | None
    soft_timeout: Millis | None
    tags: str | None
    meta: str | None
    alone: bool


class EndOptions(TypedDict, total=False):
    """Everything of a Settlement but whose it is and how the run ended."""

    result: str | None
    error: str | None
    traceback: str | None
    failure_kind: FailureKind
    delay: Millis | None
    alone: bool
    ran: bool
    progress: float | None
    progress_text: str | None
    log: LogTail | None


class Connection(Protocol):
    """The caller's own connection to the database that the engine shares; nothing is open on it yet.

    `execute("BEGIN")` must begin a transaction: a driver that begins by itself has to be told not to.
    """

    def execute(self, statement: str, /) -> object: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class EngineUnderTest:
    """One fresh store; `open_again` gives another engine object on it, `connect` a caller's connection."""

    def __init__(
        self,
        engine: Engine,
        clock: VirtualClock,
        *,
        open_again: Callable[[], Engine] | None = None,
        connect: Callable[[], Connection] | None = None,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self._open_again = open_again
        self._connect = connect
        self._made = 0

    def open_again(self) -> Engine | None:
        """A second engine on the same store, or None when a store cannot be shared."""
        return None if self._open_again is None else self._open_again()

    def connect(self) -> Connection:
        """A connection as the caller of a joining engine would hold it."""
        if self._connect is None:
            raise AssertionError("an engine that joins transactions needs `connect`")
        return self._connect()

    def new_id(self) -> UUID:
        """An id that is new here and the same in every run."""
        self._made += 1
        return uuid7(self.clock.now, self._made.to_bytes(10, "big"))

    def spec(self, task: str = "work", **options: Unpack[SpecOptions]) -> JobSpec:
        """A request that nothing special is said about."""
        plain = JobSpec(id=self.new_id(), task=task, queue="default", payload="{}")
        return structs.replace(plain, **options)

    def enqueue(self, task: str = "work", **options: Unpack[SpecOptions]) -> Enqueued:
        """Enqueue one job."""
        return self.engine.run(self.engine.enqueue_many([self.spec(task, **options)]))[0]

    def announce(
        self,
        *,
        name: str = "worker",
        tasks: Sequence[str] = ("work",),
        queues: Sequence[str] | None = None,
        lease: Millis = LEASE,
        isolates: bool = True,
    ) -> UUID:
        """Register a new worker."""
        announcement = Announcement(
            id=self.new_id(),
            name=name,
            tasks=tuple(tasks),
            queues=None if queues is None else tuple(queues),
            slots=10,
            version="1",
            lease=lease,
            isolates=isolates,
        )
        self.engine.run(self.engine.announce(announcement))
        return announcement.id

    def claim(
        self,
        worker: UUID,
        *,
        tasks: Sequence[str] = ("work",),
        queues: Sequence[str] | None = None,
        limit: int = 100,
        alone: bool | None = None,
    ) -> list[Lease]:
        """Claim with one want."""
        wanted = want(tasks=tasks, queues=queues, limit=limit, alone=alone)
        return self.engine.run(self.engine.claim(worker, [wanted]))

    def start(self, worker: UUID, **options: Unpack[SpecOptions]) -> Lease:
        """Enqueue a job and claim it."""
        job = self.enqueue(**options)
        return next(lease for lease in self.claim(worker) if lease.id == job.id)

    def settle(self, worker: UUID, lease: Lease, ending: Ending, **options: Unpack[EndOptions]) -> Verdict:
        """Settle one lease."""
        return self.engine.run(self.engine.settle(worker, [ended(lease, ending, **options)]))[0]

    def report(
        self,
        worker: UUID,
        lease: Lease,
        *,
        progress: float | None = None,
        progress_text: str | None = None,
        checkpoint: str | None = None,
        log: LogTail | None = None,
    ) -> bool:
        """Report on one lease."""
        news = Report(
            number=lease.number,
            token=lease.token,
            progress=progress,
            progress_text=progress_text,
            checkpoint=checkpoint,
            log=log,
        )
        return self.engine.run(self.engine.report(worker, [news]))[0]

    def beat(self, worker: UUID, *held: Lease) -> Orders:
        """Beat for a worker that runs these."""
        return self.engine.run(self.engine.beat(worker, [(lease.number, lease.token) for lease in held]))

    def report_dead(self, worker: UUID, *deaths: Death) -> list[Rescued]:
        """Say that a worker's process has ended, and which jobs were running in it."""
        return self.engine.run(self.engine.report_dead(worker, deaths))

    def promote(self, limit: int = 1_000) -> Promoted:
        """Promote what is due."""
        return self.engine.run(self.engine.promote(limit))

    def sweep(self, order: SweepOrder | None = None, *, fence: Sequence[UUID] = ()) -> Swept:
        """Sweep, with an order or with the usual one and these to fence."""
        return self.engine.run(self.engine.sweep(order or SweepOrder(fence=tuple(fence))))

    def fence(self, worker: UUID) -> Swept:
        """Let a worker's lease run out and fence it, which frees its jobs."""
        self.clock.advance(LEASE + 1)
        return self.sweep(fence=[worker])

    def cancel(self, job: Enqueued | Lease, *, force: bool = False) -> State | None:
        """Cancel one job."""
        return self.engine.run(self.engine.cancel([job.id], force=force))[0]

    def retry(self, job: Enqueued | Lease) -> Enqueued:
        """Retry one job."""
        return self.engine.run(self.engine.retry([job.id]))[0]

    def job(self, job: Enqueued | Lease) -> Job:
        """The job as it stands."""
        found = self.engine.run(self.engine.get([job.id]))[0]
        assert found is not None, f"job {job.id} is not stored"
        return found

    def stored(self, job: Enqueued | Lease) -> bool:
        """Whether the store still knows the job."""
        return self.engine.run(self.engine.get([job.id])) != [None]

    def find(self, wanted: JobFilter | None = None) -> list[Job]:
        """Find by a filter, or everything."""
        return self.engine.run(self.engine.find(wanted or JobFilter(limit=1_000)))

    def count(self, wanted: JobFilter) -> int:
        """How many match."""
        return self.engine.run(self.engine.count(wanted))

    def deletable(self, wanted: JobFilter, *, after: int = 0) -> list[int]:
        """The numbers of what matches and may be deleted."""
        return self.engine.run(self.engine.deletable(wanted, after=after))

    def delete(self, wanted: JobFilter) -> int:
        """Delete what matches, and count it."""
        return self.engine.run(self.engine.delete(self.deletable(wanted), DELETABLE))

    def outcomes(self, job: Enqueued | Lease) -> list[str]:
        """How the runs ended that did not complete."""
        return [attempt.outcome for attempt in self.engine.run(self.engine.attempts(job.id))]

    def logs(self, job: Enqueued | Lease) -> list[tuple[int, int, str]]:
        """What its runs have written, as (token, line, text)."""
        return [(line.token, line.line, line.text) for line in self.engine.run(self.engine.logs(job.id))]

    def counts(self, queue: str = "default") -> Counts:
        """The counts of one queue; a queue without jobs need not be listed."""
        return self.engine.run(self.engine.stats()).get(queue, Counts())


def want(
    *,
    tasks: Sequence[str] = ("work",),
    queues: Sequence[str] | None = None,
    limit: int = 100,
    alone: bool | None = None,
) -> Want:
    """What a pool of slots asks for."""
    return Want(
        tasks=tuple(tasks), queues=None if queues is None else tuple(queues), limit=limit, alone=alone
    )


def ended(lease: Lease, ending: Ending, **options: Unpack[EndOptions]) -> Settlement:
    """The settlement of a lease."""
    return Settlement(number=lease.number, token=lease.token, queue=lease.queue, ending=ending, **options)
