"""One job and one worker, as the store keeps them, and the snapshots that others get to see."""

from uuid import UUID

from msgspec import Struct, field, json

from shigoto.model.job import Attempt, FailureKind, Job, JobSpec, Lease, LogLine, State
from shigoto.model.states import Counters, Held, attempt
from shigoto.model.time import Millis, to_datetime
from shigoto.model.worker import Announcement, WorkerRecord


class Row(Struct, kw_only=True, eq=False):
    """A job: what was asked for (`spec`) and everything that has happened to it since."""

    number: int
    spec: JobSpec
    created_at: Millis
    run_at: Millis
    expires_at: Millis | None
    state: State = State.PENDING
    ready: bool = False
    token: int = 0
    settled_token: int = 0
    counters: Counters = Counters()
    worker: UUID | None = None
    started_at: Millis | None = None
    finished_at: Millis | None = None
    cancel_requested_at: Millis | None = None
    superseded: bool = False
    progress: float | None = None
    progress_text: str | None = None
    checkpoint: str | None = None
    result: str | None = None
    failure_kind: FailureKind | None = None
    never_run: str | None = None  # why it failed without a run
    attempts: list[Attempt] = field(default_factory=list)
    lines: dict[tuple[int, int], LogLine] = field(default_factory=dict)  # by token and line

    @property
    def alone(self) -> bool:
        """Whether it must have a process to itself: it was asked for, or it is a suspect."""
        return self.spec.alone or self.counters.solo

    @property
    def waiting(self) -> bool:
        """Whether an enqueue with its key may still change it."""
        return self.state in (State.PENDING, State.BLOCKED)

    def expired(self, now: Millis) -> bool:
        """Whether it must not be started any more."""
        return self.expires_at is not None and self.expires_at < now

    def error(self) -> str | None:
        """The newest error of its runs, while a failure counts against it, or if its last run ended it.

        A job that failed without a run tells why.
        """
        if self.never_run is not None:
            return self.never_run
        errors = [attempt.error for attempt in self.attempts if attempt.error is not None]
        ended_by_a_run = self.finished_at is not None and self.started_at is not None
        last = self.attempts[-1] if self.attempts else None  # of another claim, if the last one was never run
        ended_in_error = (
            ended_by_a_run and last is not None and last.token == self.token and last.error is not None
        )
        if self.state is State.COMPLETED or not errors:
            return None
        return errors[-1] if ended_in_error or self.counters.failures > 0 else None

    def tags(self) -> tuple[str, ...]:
        """The tags as words."""
        return json.decode(self.spec.tags, type=tuple[str, ...]) if self.spec.tags else ()


class WorkerRow(Struct, kw_only=True, eq=False):
    """A worker, from its announcement until it leaves; a fenced one stays, lest its id come back."""

    announcement: Announcement
    started_at: Millis
    lease_until: Millis
    fenced_at: Millis | None = None

    def expired(self, now: Millis) -> bool:
        """Whether its lease has run out without anybody having fenced it yet."""
        return self.fenced_at is None and self.lease_until < now


def held(row: Row) -> Held:
    """What decides where a running job goes next."""
    return Held(
        row.counters,
        row.spec.max_failures,
        row.spec.max_crashes,
        cancel_requested=row.cancel_requested_at is not None,
        superseded=row.superseded,
    )


def lease(row: Row, claimed_at: Millis) -> Lease:
    """The lease of a job that has just been claimed."""
    spec = row.spec
    return Lease(
        number=row.number,
        token=row.token,
        id=spec.id,
        task=spec.task,
        queue=spec.queue,
        payload=spec.payload,
        attempt=attempt(row.token, row.counters),
        failures=row.counters.failures,
        snoozes=row.counters.snoozes,
        max_failures=spec.max_failures,
        priority=spec.priority,
        run_at=row.run_at,
        claimed_at=claimed_at,
        solo=row.counters.solo,
        tenant=spec.tenant,
        key=spec.key,
        retry=spec.retry,
        timeout=spec.timeout,
        soft_timeout=spec.soft_timeout,
        tags=spec.tags,
        meta=spec.meta,
        checkpoint=row.checkpoint,
        alone=row.alone,
    )


def snapshot(row: Row) -> Job:
    """The job as people see it."""
    spec, counters = row.spec, row.counters
    return Job(
        id=spec.id,
        number=row.number,
        task=spec.task,
        queue=spec.queue,
        tenant=spec.tenant,
        state=row.state,
        payload=spec.payload,
        priority=spec.priority,
        run_at=to_datetime(row.run_at),
        created_at=to_datetime(row.created_at),
        started_at=None if row.started_at is None else to_datetime(row.started_at),
        finished_at=None if row.finished_at is None else to_datetime(row.finished_at),
        expires_at=None if row.expires_at is None else to_datetime(row.expires_at),
        cancel_requested_at=None if row.cancel_requested_at is None else to_datetime(row.cancel_requested_at),
        attempt=attempt(row.token, counters),
        failures=counters.failures,
        crashes=counters.crashes,
        releases=counters.releases,
        snoozes=counters.snoozes,
        max_failures=spec.max_failures,
        max_crashes=spec.max_crashes,
        suspect=counters.solo,
        alone=spec.alone,
        retry=spec.retry,
        timeout=spec.timeout,
        soft_timeout=spec.soft_timeout,
        key=spec.key,
        tags=row.tags(),
        meta=spec.meta,
        progress=row.progress,
        progress_text=row.progress_text,
        result=row.result,
        error=row.error(),
        failure_kind=row.failure_kind,
        worker=row.worker,
    )


def record(worker: WorkerRow, processing: int) -> WorkerRecord:
    """The worker as people see it."""
    said = worker.announcement
    return WorkerRecord(
        id=said.id,
        name=said.name,
        tasks=said.tasks,
        queues=said.queues,
        slots=said.slots,
        version=said.version,
        host=said.host,
        pid=said.pid,
        isolates=said.isolates,
        stopping=said.stopping,
        started_at=to_datetime(worker.started_at),
        lease_until=to_datetime(worker.lease_until),
        fenced_at=None if worker.fenced_at is None else to_datetime(worker.fenced_at),
        processing=processing,
        owner=said.owner,
    )
