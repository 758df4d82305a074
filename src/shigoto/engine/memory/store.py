"""All state of the engine: rows, the indexes over them, time, and the one way to move a row.

A waiting line is a heap, which cannot drop an entry from its middle. So a number that leaves is only struck from
`_members`; its entry is dead from then on, and is thrown away when it comes to the top, or when the dead outnumber the
living.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from typing import TypeVar
from uuid import UUID

from msgspec import Struct, field, json

from shigoto.engine.op import Op, Steps
from shigoto.model.job import Attempt, FailureKind, Job, JobSpec, Lease, LogLine, QueueSettings, State
from shigoto.model.notice import FailedJob, of_failures
from shigoto.model.schedule import Schedule, TickEntry
from shigoto.model.service import AuditEntry, Token
from shigoto.model.states import MOVES, Counters, Held, attempt
from shigoto.model.time import Clock, Millis, held_back, to_datetime
from shigoto.model.worker import Announcement, WorkerRecord

Rank = tuple[int, ...]

T = TypeVar("T")


class WaitingLine:
    """Numbers ordered by the rank they were added with; the number itself breaks ties."""

    def __init__(self) -> None:
        self._entries: list[tuple[Rank, int]] = []
        self._members: dict[int, tuple[Rank, int]] = {}

    def size(self) -> int:
        """How many entries it keeps in memory, the dead ones too."""
        return len(self._entries)

    def numbers(self) -> Iterable[int]:
        """Who stands in it, in no order."""
        return self._members.keys()

    def add(self, number: int, rank: Rank) -> None:
        """Put a number in line; one that is already there gets the new rank."""
        entry = (rank, number)
        self._members[number] = entry
        heappush(self._entries, entry)
        self._tidy()

    def discard(self, number: int) -> None:
        """Take a number out, wherever it stands; one that is not in line is none of our business."""
        self._members.pop(number, None)
        self._tidy()

    def head(self) -> tuple[Rank, int] | None:
        """The first entry, or None when nobody waits."""
        while self._entries:
            entry = self._entries[0]
            # By identity: a number that left and came back with the same rank has a living and a dead entry.
            if self._members.get(entry[1]) is entry:
                return entry
            heappop(self._entries)
        return None

    def pop(self) -> None:
        entry = self.head()
        if entry is not None:
            heappop(self._entries)
            del self._members[entry[1]]

    def _tidy(self) -> None:
        if len(self._entries) > 2 * len(self._members) + 64:
            self._entries = list(self._members.values())
            heapify(self._entries)


def merged(lines: Iterable[WaitingLine]) -> Iterable[int]:
    """Take numbers out of several lines, always the first of all of them; stop asking to stop taking."""
    heads = [(head, index, line) for index, line in enumerate(lines) if (head := line.head()) is not None]
    heapify(heads)
    while heads:
        (_, number), index, line = heappop(heads)
        line.pop()
        yield number
        if (head := line.head()) is not None:
            heappush(heads, (head, index, line))


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


class Store:
    """Every index follows from the rows; `insert`, `moving`, `promote`, `remove` alone keep them in step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mark: Millis = 0
        self._step: Millis = 0
        self._last_number = 0
        self.rows: dict[int, Row] = {}
        self.by_id: dict[UUID, Row] = {}
        self.holders: dict[tuple[str, str], Row] = {}
        # By queue, task, alone.
        self.ready: dict[tuple[str, str, bool], WaitingLine] = defaultdict(WaitingLine)
        self.scheduled = WaitingLine()
        self.held: dict[UUID, dict[int, Row]] = defaultdict(dict)
        self.workers: dict[UUID, WorkerRow] = {}
        self.unknown_since: dict[str, Millis] = {}  # by task
        self.looked_for_unknown_at: Millis = 0
        self.settings: dict[str, QueueSettings] = {}
        self.tally: Counter[tuple[str, State]] = Counter()
        self.later: Counter[str] = Counter()
        self.schedules: dict[str, Schedule] = {}
        self.tokens: dict[str, Token] = {}  # by id, the oldest first
        self.audit: dict[int, AuditEntry] = {}  # by number, the oldest first
        self._last_audit_number = 0
        self.notices = False
        self._untold: dict[int, tuple[Millis, Row]] = {}  # has failed in the operation at hand
        self.histories: dict[UUID, dict[Millis, TickEntry]] = defaultdict(dict)  # by schedule and instant

    def now(self) -> Millis:
        """Store time; read once per operation."""
        now = held_back(self._clock(), self._mark)
        # Going back at all means that the step was too large to be held; the next sweep must know of it.
        if now < self._mark:
            self._step = self._mark - now
        self._mark = now
        return now

    def owed_step(self) -> Millis:
        """How far the clock was last set back, if nobody has asked since."""
        step, self._step = self._step, 0
        return step

    def next_audit_number(self) -> int:
        self._last_audit_number += 1
        return self._last_audit_number

    def insert(self, spec: JobSpec, run_at: Millis, expires_at: Millis | None, now: Millis) -> Row:
        """A new pending job, which takes its key from whoever had it."""
        self._last_number += 1
        row = Row(number=self._last_number, spec=spec, created_at=now, run_at=run_at, expires_at=expires_at)
        self.rows[row.number] = self.by_id[spec.id] = row
        self.take_key(row)
        self._file(row, now)
        return row

    def remove(self, row: Row) -> None:
        """Forget a job, its history and its hold on its key."""
        _check(row, None)
        self._withdraw(row)
        del self.rows[row.number], self.by_id[row.spec.id]
        if row.spec.key is not None and self.holder(row.spec) is row:
            del self.holders[row.spec.tenant, row.spec.key]

    @contextmanager
    def moving(self, row: Row, to: State, now: Millis) -> Generator[None]:
        """Move a row to another state; what else changes with it changes inside the block."""
        _check(row, to)
        self._withdraw(row)
        yield
        row.state = to
        self._file(row, now)
        if to is State.FAILED and self.notices:
            self._untold[row.number] = (now, row)

    def tell_failures(self) -> None:
        """Write the notices of what has failed, in the order of its numbers; at the end of each operation at least."""
        for _, (now, row) in sorted(self._untold.items()):
            failed = FailedJob(
                row.number, row.spec.id, row.spec.task, row.spec.queue, row.token, row.failure_kind
            )
            self.write_notices(of_failures(now, [failed]), now)
        self._untold.clear()

    def write_notices(self, notices: Iterable[JobSpec], now: Millis) -> None:
        """Store notices that are new, if any are wanted."""
        for spec in notices:
            if self.notices and spec.id not in self.by_id:
                self.insert(spec, spec.due(now), None, now)

    def promote(self, row: Row) -> None:
        """Make a scheduled row ready; the state is the same, only the line is another."""
        self._withdraw(row)
        self._make_ready(row)
        self.tally[row.spec.queue, row.state] += 1

    def put_back(self, row: Row) -> None:
        """Return a ready row that was taken out of its line and not claimed after all."""
        self.ready[row.spec.queue, row.spec.task, row.alone].add(row.number, (-row.spec.priority, row.run_at))

    def holder(self, spec: JobSpec) -> Row | None:
        return None if spec.key is None else self.holders.get((spec.tenant, spec.key))

    def take_key(self, row: Row) -> None:
        if row.spec.key is not None:
            self.holders[row.spec.tenant, row.spec.key] = row

    def alive(self, worker: UUID) -> WorkerRow | None:
        row = self.workers.get(worker)
        return row if row is not None and row.fenced_at is None else None

    def paused(self, queue: str) -> bool:
        settings = self.settings.get(queue)
        return settings is not None and settings.paused

    def _withdraw(self, row: Row) -> None:
        spec = row.spec
        self.tally[spec.queue, row.state] -= 1
        if row.state is State.PENDING:
            line = self.ready[spec.queue, spec.task, row.alone] if row.ready else self.scheduled
            line.discard(row.number)
            self.later[spec.queue] -= 0 if row.ready else 1
        elif row.worker is not None:
            self.held[row.worker].pop(row.number, None)
            if not self.held[row.worker]:
                del self.held[row.worker]

    def _file(self, row: Row, now: Millis) -> None:
        queue = row.spec.queue
        self.settings.setdefault(queue, QueueSettings(name=queue))
        self.tally[queue, row.state] += 1
        if row.state is State.PENDING and row.run_at <= now:
            self._make_ready(row)
        elif row.state is State.PENDING:
            row.ready = False
            self.scheduled.add(row.number, (row.run_at,))
            self.later[queue] += 1
        elif row.worker is not None:
            self.held[row.worker][row.number] = row

    def _make_ready(self, row: Row) -> None:
        row.ready = True
        self.put_back(row)


def _check(row: Row, to: State | None) -> None:
    if to not in MOVES[row.state]:
        raise AssertionError(f"job #{row.number} cannot go from {row.state} to {to}")


def change(work: Callable[[], T], *, rings: Callable[[T], bool] | None = None) -> Op[T]:
    """One that may change something."""
    return Op(start=lambda: _at_once(work), rings=rings)


def read(work: Callable[[], T]) -> Op[T]:
    """One that changes nothing."""
    return Op(start=lambda: _at_once(work), mode="read")


def _at_once(work: Callable[[], T]) -> Steps[T]:
    """Steps without a command: the whole op happens when it is started, under the engine's lock."""
    yield from ()
    return work()
