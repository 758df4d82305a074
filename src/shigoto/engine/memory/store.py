"""All state of the engine: rows, the indexes over them, time, and the one way to move a row."""

from collections import Counter, defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from uuid import UUID

from shigoto.engine.memory.line import Line
from shigoto.engine.memory.row import Row, WorkerRow
from shigoto.model.job import JobSpec, QueueSettings, State
from shigoto.model.notice import Failed, of_failures
from shigoto.model.schedule import Entry, Schedule
from shigoto.model.service import AuditEntry, Token
from shigoto.model.states import MOVES
from shigoto.model.time import Clock, Millis, held_back


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
        self.ready: dict[tuple[str, str, bool], Line] = defaultdict(Line)  # by queue, task, alone
        self.scheduled = Line()
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
        self.histories: dict[UUID, dict[Millis, Entry]] = defaultdict(dict)  # by schedule and instant

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
        """A number for an entry of the audit; none is given twice."""
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
            failed = Failed(
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
        """The job that holds the spec's key, ended or not."""
        return None if spec.key is None else self.holders.get((spec.tenant, spec.key))

    def take_key(self, row: Row) -> None:
        """Make the row the holder of its key."""
        if row.spec.key is not None:
            self.holders[row.spec.tenant, row.spec.key] = row

    def alive(self, worker: UUID) -> WorkerRow | None:
        """The worker, if it is registered and not fenced."""
        row = self.workers.get(worker)
        return row if row is not None and row.fenced_at is None else None

    def paused(self, queue: str) -> bool:
        """Whether nothing may be claimed from the queue."""
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
            self._drop_held(row.worker, row.number)

    def _file(self, row: Row, now: Millis) -> None:
        queue = row.spec.queue
        self.settings.setdefault(queue, QueueSettings(name=queue))
        self.tally[queue, row.state] += 1
        if row.state is State.PENDING and row.run_at <= now:
            self._make_ready(row)
        elif row.state is State.PENDING:
            self._schedule(row)
        elif row.worker is not None:
            self.held[row.worker][row.number] = row

    def _make_ready(self, row: Row) -> None:
        row.ready = True
        self.put_back(row)

    def _schedule(self, row: Row) -> None:
        row.ready = False
        self.scheduled.add(row.number, (row.run_at,))
        self.later[row.spec.queue] += 1

    def _drop_held(self, worker: UUID, number: int) -> None:
        self.held[worker].pop(number, None)
        if not self.held[worker]:
            del self.held[worker]


def _check(row: Row, to: State | None) -> None:
    if to not in MOVES[row.state]:
        raise AssertionError(f"job #{row.number} cannot go from {row.state} to {to}")
