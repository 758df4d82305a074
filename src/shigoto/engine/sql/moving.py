"""Whole jobs and schedules out of one database and into another: what `engine.movable` asks of all SQL engines."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID, uuid4

from msgspec import Struct, json

from shigoto.engine.movable import BLOCK, MoveLock, ScheduleMark, StoreMark, refused
from shigoto.engine.op import Op
from shigoto.engine.sql.commands import Steps, Submit, sql
from shigoto.engine.sql.enqueueing import add_lanes
from shigoto.engine.sql.looking import NUMBERS_OF_STATES, STATES, settings
from shigoto.engine.sql.managing import configure
from shigoto.engine.sql.repairing import release
from shigoto.engine.sql.settling import running
from shigoto.engine.sql.ticking import decode_counts, decode_pauses
from shigoto.engine.sql.ticking import remove as remove_schedules
from shigoto.model.errors import StoreMoved, StoreRefused, StoreUnavailable
from shigoto.model.job import FailureKind, QueueSettings, State
from shigoto.model.record import (
    LARGEST,
    AttemptRecord,
    JobRecord,
    LineRecord,
    StoredSchedule,
    StoredTick,
    Weight,
    portions,
)
from shigoto.model.schedule import TickOutcome
from shigoto.model.time import Millis

Row = tuple[Any, ...]

COUNTS = ("token", "settled_token", "failures", "crashes", "solo_crashes", "releases", "snoozes", "solo")
# Bodies first: whoever is interrupted by an error hears of what is wrong with the job itself.
TABLES: dict[str, tuple[str, ...]] = {
    "job": (
        "number", "id", "lane", "priority", "run_at", "created_at", "max_failures", "max_crashes", "tenant", "key",
        "expires_at", "retry", "timeout", "soft_timeout", "tags", "meta", "alone", "payload",
    ),
    "ready": ("number", "lane", "priority", "run_at", "expires_at", *COUNTS),
    "scheduled": ("number", "run_at", "lane", *COUNTS),
    "blocked": ("number", "unmet"),
    "done": (
        "number", "state", "token", "settled_token", "failures", "crashes", "releases", "snoozes", "solo",
        "started_at", "finished_at", "cancel_requested_at", "failure_kind", "error", "result",
    ),
    "key": ("number", "tenant", "key"),
    "expiry": ("number", "expires_at"),
    "attempt": ("number", "token", "outcome", "error", "traceback", "started_at", "finished_at"),
    "progress": ("number", "fraction", "text", "checkpoint"),
    "log": ("number", "token", "line", "at", "level", "text"),
}  # fmt: skip

Load = Callable[[str, tuple[str, ...], Sequence[Sequence[Any]]], Steps[None]]
# In the order of the columns of the statements `whole_schedules` and `whole_histories`.
SCHEDULE_COLUMNS = (
    "name", "id", "revision", "definition", "origin", "paused_at", "failed", "held", "look_at", "decided_to", "job",
    "number", "errors", "error", "counts", "created_at", "declared_at", "pauses",
)  # fmt: skip
TICK_COLUMNS = ("schedule", "at", "outcome", "decided_at", "job", "until", "count")
SCHEDULE_FLAGS = ("failed", "held")

T = TypeVar("T")
Begin = Callable[[int, list[QueueSettings]], None]
Tell = Callable[[list[JobRecord]], None]
TellSchedules = Callable[[list[StoredSchedule]], None]
PAGE = 5_000  # jobs that are weighed at once
# Everything of a job but its body, in an order in which each can still be found by it.
PARTS = ("keys", "expiries", "ready", "scheduled", "blocked", "attempts", "logs", "progress", "done", "jobs")

ATTEMPT_FIELDS = ("token", "outcome", "error", "traceback", "started_at", "finished_at")
LINE_FIELDS = ("token", "line", "at", "level", "text")
# In the order of the columns of the statement `whole`.
FIELDS = (
    "number", "id", "task", "queue", "state", "payload", "created_at", "run_at", "max_failures", "max_crashes",
    "priority", "tenant", "key", "expires_at", "retry", "timeout", "soft_timeout", "tags", "meta", "token",
    "settled_token", "failures", "crashes", "solo_crashes", "releases", "snoozes", "unmet", "started_at",
    "finished_at", "cancel_requested_at", "failure_kind", "error", "result", "progress", "progress_text", "checkpoint",
    "holds_key", "alone", "suspect", "superseded",
)  # fmt: skip
FLAGS = FIELDS[-4:]
STATE = FIELDS.index("state")


def rows_of(
    records: Sequence[JobRecord], now: Millis, lane_of: Callable[[JobRecord], int]
) -> dict[str, list[Row]]:
    """The rows of each table. A pending job is ready if it is due now."""
    rows: dict[str, list[Row]] = {table: [] for table in TABLES}
    for record in records:
        lane = lane_of(record)
        rows["job"].append(_body(record, lane))
        _add_state(rows, record, now, lane, NUMBERS_OF_STATES[record.state])
        _add_past(rows, record)
    return rows


def _body(job: JobRecord, lane: int) -> Row:
    return (
        job.number, job.id, lane, job.priority, job.run_at, job.created_at, job.max_failures, job.max_crashes,
        job.tenant, job.key, job.expires_at, job.retry, job.timeout, job.soft_timeout, job.tags, job.meta, job.alone,
        job.payload,
    )  # fmt: skip


def _add_state(rows: dict[str, list[Row]], job: JobRecord, now: Millis, lane: int, state: int) -> None:
    counts = (
        job.token, job.settled_token, job.failures, job.crashes, job.solo_crashes, job.releases, job.snoozes,
        job.suspect,
    )  # fmt: skip
    if job.state.terminal:
        rows["done"].append((
            job.number, state, job.token, job.settled_token, job.failures, job.crashes, job.releases, job.snoozes,
            job.suspect, job.started_at, job.finished_at, job.cancel_requested_at, job.failure_kind, job.error,
            job.result,
        ))  # fmt: skip
        return
    assert job.state is not State.PROCESSING, "a run belongs to its worker, and cannot be put"
    if job.state is State.BLOCKED:
        rows["blocked"].append((job.number, job.unmet))
    elif job.run_at <= now:
        rows["ready"].append((job.number, lane, -job.priority, job.run_at, job.expires_at, *counts))
    else:
        rows["scheduled"].append((job.number, job.run_at, lane, *counts))
    if job.expires_at is not None:
        rows["expiry"].append((job.number, job.expires_at))


def _add_past(rows: dict[str, list[Row]], job: JobRecord) -> None:
    if job.holds_key:
        rows["key"].append((job.number, job.tenant, job.key))
    if (job.progress, job.progress_text, job.checkpoint) != (None, None, None):
        rows["progress"].append((job.number, job.progress, job.progress_text, job.checkpoint))
    for run in job.attempts:
        rows["attempt"].append((
            job.number, run.token, run.outcome, run.error, run.traceback, run.started_at, run.finished_at,
        ))  # fmt: skip
    for line in job.log:
        rows["log"].append((job.number, line.token, line.line, line.at, line.level, line.text))


def read_schedule_marks() -> Steps[dict[str, ScheduleMark]]:
    rows = (yield sql("mark_schedules")).fetchall()
    return {name: ScheduleMark(UUID(id), *sums) for name, id, *sums in rows}


def read_schedules(names: Sequence[str]) -> Steps[list[StoredSchedule]]:
    text = json.encode(names).decode()
    histories: dict[str, list[StoredTick]] = {}
    for name, *entry in (yield sql("whole_histories", text)).fetchall():
        histories.setdefault(name, []).append(_tick(entry))
    rows = (yield sql("whole_schedules", text)).fetchall()
    return [_schedule(row, tuple(histories.get(row[0], ()))) for row in rows]


def write_schedules(schedules: Sequence[StoredSchedule], load: Load) -> Steps[None]:
    """Store them, in place of those of the same names."""
    yield from remove_schedules([each.name for each in schedules])
    rows = [[_cell(getattr(each, column)) for column in SCHEDULE_COLUMNS] for each in schedules]
    yield from load("schedule", SCHEDULE_COLUMNS, rows)
    lines = [
        (str(each.id), e.at, e.outcome.value, e.decided_at, _cell(e.job), e.until, e.count)
        for each in schedules
        for e in each.history
    ]
    if lines:
        yield from load("tick", TICK_COLUMNS, lines)


def delete_schedules(names: Sequence[str]) -> Steps[None]:
    yield from remove_schedules(names)


def _tick(row: Sequence[Any]) -> StoredTick:
    at, outcome, decided_at, job, until, count = row
    return StoredTick(
        at=at, outcome=TickOutcome(outcome), decided_at=decided_at, job=_uuid(job), until=until, count=count
    )


def _schedule(row: Sequence[Any], history: tuple[StoredTick, ...]) -> StoredSchedule:
    values = dict(zip(SCHEDULE_COLUMNS, row, strict=True))
    values |= {
        "id": UUID(values["id"]),
        "job": _uuid(values["job"]),
        "counts": decode_counts(values["counts"]),
        "pauses": decode_pauses(values["pauses"]),
    }
    values |= {flag: bool(values[flag]) for flag in SCHEDULE_FLAGS}
    return StoredSchedule(**values, history=history)


def _cell(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return json.encode(value).decode() if isinstance(value, dict | tuple) else value


def _uuid(text: str | None) -> UUID | None:
    return None if text is None else UUID(text)


class Ways(Struct, frozen=True, kw_only=True):
    """What the SQL engines do each in its own way.

    `passing`: these steps with this move lock out of their way, and with nothing that follows an ordinary enqueue.
    `load`: rows into a table, the fastest way there is; columns are named as in `TABLES`.
    `shut`, `open`: set a move lock, which is written down, and take it away.
    `alone`: nobody else changes anything from here to the end of the transaction.
    `submit`: store jobs in the transaction at hand.
    """

    shown: str
    run: Callable[[Op[Any]], Any]
    now: Callable[[], Steps[Millis]]
    move_lock: Callable[[], Steps[MoveLock | None]]
    alone: Callable[[], Steps[None]]
    shut: Callable[[MoveLock], Steps[None]]
    open: Callable[[], Steps[None]]
    passing: Callable[[MoveLock, Steps[Any]], Steps[Any]]
    load: Callable[[str, tuple[str, ...], Sequence[Sequence[Any]]], Steps[None]]
    go_on_after: Callable[[int], Steps[None]]
    wipe: Callable[[], Steps[None]]
    submit: Submit


class SqlMover:
    """A store in a database, for whoever moves it."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._holder = uuid4().hex

    @property
    def shown(self) -> str:
        return self._ways.shown

    def run(self, op: Op[T]) -> T:
        value: T = self._ways.run(op)
        return value

    def move_lock(self) -> Op[MoveLock | None]:
        return Op(start=self._ways.move_lock, mode="read")

    def shut(self, move_lock: MoveLock) -> Op[int]:
        return Op(start=lambda: self._shut(move_lock), rings=lambda _: True)

    def _shut(self, move_lock: MoveLock) -> Steps[int]:
        yield from self._ways.alone()
        self._expect_replaceable(move_lock, (yield from self._ways.move_lock()))
        released = 0
        if move_lock.kind == "closed":
            released = yield from _release_all(self._ways.submit, (yield from self._ways.now()))
        held = MoveLock(kind=move_lock.kind, move=move_lock.move, other=move_lock.other, holder=self._holder)
        yield from self._ways.shut(held)
        return released

    def _expect_replaceable(self, move_lock: MoveLock, present: MoveLock | None) -> None:
        if present is not None and (present.move != move_lock.move or present.kind == "moved"):
            raise refused(present.code, present.refusal(self.shown)) or AssertionError(present.code)
        if move_lock.kind == "moved" and (
            present is None or (present.kind, present.holder) != ("closed", self._holder)
        ):
            raise self._taken_over()

    def _taken_over(self) -> StoreRefused:
        return StoreRefused(
            f"Another process has gone on with what this one did to {self.shown}. Nothing was lost: let that one"
            " finish, or run it again when none is left."
        )

    def open(self, *, whoever_holds: bool = False) -> Op[None]:
        return Op(start=lambda: self._open(whoever_holds), rings=lambda _: True)

    def _open(self, whoever_holds: bool) -> Steps[None]:
        yield from self._ways.alone()
        present = yield from self._ways.move_lock()
        if present is None:
            return
        if present.kind == "moved":
            raise StoreMoved(present.refusal(self.shown))
        if present.holder != self._holder and not whoever_holds:
            raise self._taken_over()
        yield from self._ways.open()

    def open_filled(self, highest: int) -> Op[None]:
        return Op(start=lambda: self._open_filled(highest), rings=lambda _: True)

    def _open_filled(self, highest: int) -> Steps[None]:
        yield from self._ways.alone()
        yield from self._inside(self._ways.go_on_after(highest))
        yield sql("forget_counters")
        yield sql("recount")
        yield from self._ways.open()

    def is_empty(self) -> Op[bool]:
        return Op(start=_is_empty, mode="read")

    def highest(self) -> Op[int]:
        return Op(start=lambda: _number(sql("highest_ever")), mode="read")

    def running(self) -> Op[int]:
        return Op(start=lambda: _number(sql("count_running")), mode="read")

    def marks(self) -> Op[dict[int, StoreMark]]:
        return Op(start=_marks, mode="read")

    def marks_within(self, block: int) -> Op[dict[int, StoreMark]]:
        return Op(start=lambda: _marks_within(block), mode="read")

    def weigh(self, *, after: int, to: int, finished: bool | None, limit: int) -> Op[list[Weight]]:
        return Op(start=lambda: _weigh(after, to, finished, limit), mode="read")

    def records(self, numbers: Sequence[int]) -> Op[list[JobRecord]]:
        return Op(start=lambda: _records(numbers), mode="read")

    def export(self, begin: Begin, tell_schedules: TellSchedules, tell: Tell) -> Op[int]:
        return Op(start=_Export(begin, tell_schedules, tell).steps, mode="read")

    def put(self, records: Sequence[JobRecord], *, taking_keys: bool = False) -> Op[None]:
        return Op(start=lambda: self._inside(self._put(records, taking_keys)))

    def _put(self, records: Sequence[JobRecord], taking_keys: bool) -> Steps[None]:
        now = yield from self._ways.now()
        yield from add_lanes({(record.queue, record.task, _is_alone(record)) for record in records})
        found = (yield sql("lanes")).fetchall()
        lanes = {(queue, task, bool(alone)): lane for lane, queue, task, alone in found}
        rows = rows_of(records, now, lambda record: lanes[record.queue, record.task, _is_alone(record)])
        for table, columns in TABLES.items():
            if rows[table] and table == "key" and taking_keys:
                held = [(record.tenant, record.key) for record in records if record.holds_key]
                yield sql("free_keys", json.encode(held).decode())
            if rows[table]:
                yield from self._ways.load(table, columns, rows[table])

    def put_settings(self, queues: Sequence[QueueSettings]) -> Op[None]:
        return Op(start=lambda: self._inside(_put_settings(queues)))

    def remove(self, numbers: Sequence[int]) -> Op[None]:
        return Op(start=lambda: self._inside(_remove(numbers)))

    def schedule_marks(self) -> Op[dict[str, ScheduleMark]]:
        return Op(start=read_schedule_marks, mode="read")

    def schedules(self, names: Sequence[str]) -> Op[list[StoredSchedule]]:
        return Op(start=lambda: read_schedules(names), mode="read")

    def put_schedules(self, schedules: Sequence[StoredSchedule]) -> Op[None]:
        return Op(start=lambda: self._inside(write_schedules(schedules, self._ways.load)))

    def remove_schedules(self, names: Sequence[str]) -> Op[None]:
        return Op(start=lambda: self._inside(delete_schedules(names)))

    def wipe(self) -> Op[None]:
        return Op(start=lambda: self._inside(self._ways.wipe()))

    def _inside(self, steps: Steps[T]) -> Steps[T]:
        """The steps, past the move lock of a store that this mover fills; never in one that others use."""
        move_lock = yield from self._ways.move_lock()
        if move_lock is None or (move_lock.kind, move_lock.holder) != ("filling", self._holder):
            raise self._taken_over()
        value: T = yield from self._ways.passing(move_lock, steps)
        return value


def _is_alone(record: JobRecord) -> bool:
    """In which of the two lanes of its task and queue it is."""
    return record.alone or record.suspect


def _is_empty() -> Steps[bool]:
    """Whether there is no job, and no schedule: names, ids and numbers could be the same."""
    return (yield sql("any_job")).fetchone() is None and (yield sql("any_schedule")).fetchone() is None


def _number(command: Any) -> Steps[int]:
    number: int = (yield command).fetchone()[0]
    return number


def _release_all(submit: Submit, now: Millis) -> Steps[int]:
    """T8 for everything that runs, also what was left by workers that are gone; all of them are forgotten, so that the
    next beat tells them to stop."""
    holders = {number: worker for number, _, worker in (yield sql("all_running")).fetchall()}
    rows = yield from running(list(holders))
    yield from release(submit, now, rows)
    for worker in sorted(set(holders.values())):
        yield sql("leave", worker)
    return len(rows)


def _marks() -> Steps[dict[int, StoreMark]]:
    logged = {block: sums for block, *sums in (yield sql("mark_logs", BLOCK)).fetchall()}
    held = dict((yield sql("mark_keys", BLOCK)).fetchall())
    marks: dict[int, StoreMark] = {}
    for block, *sums in (yield sql("mark_finished", BLOCK)).fetchall():
        marks[block] = StoreMark(*map(int, (*sums, *logged.get(block, (0, 0)), held.get(block, 0))))
    return marks


def _marks_within(block: int) -> Steps[dict[int, StoreMark]]:
    rows = (yield sql("mark_each", block * BLOCK, (block + 1) * BLOCK - 1)).fetchall()
    return {number: StoreMark(1, *map(int, sums)) for number, *sums in rows}


def _weigh(after: int, to: int, finished: bool | None, limit: int) -> Steps[list[Weight]]:
    wanted = None if finished is None else int(finished)
    rows = (yield sql("weigh", after, to, wanted, limit)).fetchall()
    return [(number, int(weight)) for number, weight in rows]


class _Export:
    """One export; it cannot be told twice."""

    def __init__(self, begin: Begin, tell_schedules: TellSchedules, tell: Tell) -> None:
        self._begin, self._tell_schedules, self._tell = begin, tell_schedules, tell
        self._begun = False

    def steps(self) -> Steps[int]:
        if self._begun:
            raise StoreUnavailable(
                "The connection was lost in the midst of an export. Start it again, from the beginning."
            )
        highest = yield from _number(sql("highest_ever"))
        queues = yield from settings()
        self._begun = True
        self._begin(highest, queues)
        marks = yield from read_schedule_marks()
        for names in portions((name, mark.weight) for name, mark in marks.items()):
            self._tell_schedules((yield from read_schedules(names)))
        after, told = 0, 0
        while page := (yield from _weigh(after, LARGEST, None, PAGE)):
            for numbers in portions(page):
                records = yield from _records(numbers)
                told += len(records)
                self._tell(records)
            after = page[-1][0]
        return told


def _records(numbers: Sequence[int]) -> Steps[list[JobRecord]]:
    text = json.encode(numbers).decode()
    rows = (yield sql("whole", text)).fetchall()
    attempts = _grouped((yield sql("whole_attempts", text)).fetchall(), AttemptRecord)
    lines = _grouped((yield sql("whole_logs", text)).fetchall(), LineRecord)
    # A number that is in no table is no job: somebody has deleted rows by hand, and nobody would ever run it.
    there = [row for row in rows if row[STATE] is not None]
    return [_record(row, attempts.get(row[0], ()), lines.get(row[0], ())) for row in there]


def _grouped(rows: Iterable[Sequence[Any]], kind: Callable[..., T]) -> dict[int, tuple[T, ...]]:
    names = ATTEMPT_FIELDS if kind is AttemptRecord else LINE_FIELDS
    found: dict[int, list[T]] = {}
    for number, *values in rows:
        found.setdefault(number, []).append(kind(**dict(zip(names, values, strict=True))))
    return {number: tuple(group) for number, group in found.items()}


def _record(
    row: Sequence[Any], attempts: tuple[AttemptRecord, ...], lines: tuple[LineRecord, ...]
) -> JobRecord:
    values = dict(zip(FIELDS, row, strict=True))
    try:
        values["id"] = UUID(bytes=values["id"])
        values["state"] = STATES[values["state"]]
        if values["failure_kind"] is not None:
            values["failure_kind"] = FailureKind(values["failure_kind"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreRefused(
            f"The row of job {row[0]} was not written by us, and cannot be read ({error}). When the job has ended,"
            " clear deletes it; then try again."
        ) from error
    for flag in FLAGS:
        values[flag] = bool(values[flag])
    return JobRecord(**values, attempts=attempts, log=lines)


def _put_settings(queues: Sequence[QueueSettings]) -> Steps[None]:
    for queue in queues:
        yield from configure(queue)


def _remove(numbers: Sequence[int]) -> Steps[None]:
    text = json.encode(numbers).decode()
    for part in PARTS:
        yield sql(f"delete_{part}", text)
