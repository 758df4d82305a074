"""Reads and searches: jobs, attempts, log lines, counts, and the holders of unique keys (rule A1).

A search walks through the tables that hold the jobs a filter means, newest or oldest first, and stops early. The state
of a job is the table that holds its number, so much of what a filter says tells first where to look. What only the
payload can tell is asked last, in Python, for jobs that match in everything else.
"""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from msgspec import DecodeError, Struct, json
from msgspec.structs import asdict, replace

from shigoto.engine.sql.commands import Dialect, SqlText, StateTable, Steps, one_by_one, sql, sql_each
from shigoto.model.errors import JobError, StoreRefused
from shigoto.model.job import (
    Attempt,
    Counts,
    FailureKind,
    Job,
    JobFilter,
    LoggedLine,
    QueueSettings,
    State,
    View,
    asks_for_counters_only,
    folded,
    has_args,
    sum_counts,
    worker_id,
)
from shigoto.model.states import DELETABLE
from shigoto.model.time import Millis, to_datetime
from shigoto.model.worker import WorkerRecord

Key = tuple[str, str]  # tenant, key


class KeyHolder(Struct, frozen=True):
    """The job that holds a key; `place` is its place among those that are to be stored, None if it is stored."""

    id: UUID
    number: int
    state: State
    place: int | None = None


def holders(keys: Sequence[Key]) -> Steps[dict[Key, KeyHolder]]:
    """Who holds the keys. Where there are several writers, the keys are locked already, and the jobs are not: that one
    has ended stays true, since nobody brings it back without its key, and all else is true as of now."""
    if not keys:
        return {}
    rows = (yield sql_each("key_holders", keys)).fetchall()
    return {
        keys[place]: KeyHolder(UUID(bytes=id), number, state_of(number, state))
        for place, number, id, state in rows
    }


# Nothing blocks a job yet (decision 0002), so no statement looks for one.
EVERYWHERE: tuple[State | View, ...] = tuple(state for state in State if state is not State.BLOCKED)
OF_LANES = frozenset({"queue", "task"})
OF_BODIES = frozenset({"tenant", "key", "tag", "since"})

# With more pending jobs than this, walking the newest bodies finds a page of them sooner than sorting them all.
MANY = 20_000
PORTION = 500  # of jobs whose payloads are asked for at once
# Of numbers at a time, while payloads decide. Some places sort all they have for each portion, so portions grow.
FIRST_NUMBERS, MOST_NUMBERS = 2_000, 128_000
ALL = 2**62

Order = Literal["ASC", "DESC"]

STATES = {
    1: State.PENDING,
    2: State.PROCESSING,
    3: State.COMPLETED,
    4: State.FAILED,
    5: State.CANCELLED,
    6: State.BLOCKED,
}
NUMBERS_OF_STATES = {state: number for number, state in STATES.items()}
FEW_READY = 10_000
# What reading a row can raise if it holds something else than what we have written.
UNREADABLE = (DecodeError, ValueError, TypeError, KeyError, OverflowError, RecursionError, AssertionError)
logger = logging.getLogger("shigoto")


def newest(dialect: Dialect, wanted: JobFilter) -> Steps[list[int]]:
    """The numbers of a page."""
    states = states_of(wanted)
    tables = dialect.state_tables
    if states == EVERYWHERE:
        chosen = [tables.everywhere]
    elif states == (State.PENDING,) and wanted.error is None:
        [ready] = (yield dialect.statement(tables.many, {"many": MANY})).fetchone()
        chosen = [tables.many_pending if ready == MANY else tables.by_state[State.PENDING]]
    else:
        chosen = [tables.by_state[state] for state in states]
    found: list[int] = []
    for table in chosen:
        found += yield from _walk(dialect, table, wanted, "DESC", wanted.limit)
    return sorted(found, reverse=True)[: max(0, wanted.limit)]


def deletable(dialect: Dialect, wanted: JobFilter, after: int) -> Steps[list[int]]:
    """The numbers of the oldest that have ended or have not begun."""
    found: list[int] = []
    for state in states_of(wanted):
        if state in DELETABLE or not isinstance(state, State):
            table = dialect.state_tables.by_state[state]
            found += yield from _walk(dialect, table, wanted, "ASC", wanted.limit, after)
    return sorted(found)[: max(0, wanted.limit)]


def counted_one_by_one(dialect: Dialect, wanted: JobFilter) -> Steps[int]:
    """How many match, when no counter tells."""
    states = states_of(wanted)
    tables = dialect.state_tables
    wanted = replace(wanted, before=None)
    total = 0
    for table in (
        [tables.everywhere] if states == EVERYWHERE else [tables.by_state[state] for state in states]
    ):
        if wanted.args:
            total += len((yield from _walk(dialect, table, wanted, "ASC", ALL)))
        else:
            text, values = _select(dialect, "count(*)", table, wanted)
            total += (yield dialect.statement(text, values)).fetchone()[0]
    return total


def states_of(wanted: JobFilter) -> tuple[State | View, ...]:
    """Where jobs that match can be; nowhere, if the filter contradicts itself."""
    states = EVERYWHERE if wanted.state is None else (wanted.state,)
    return tuple(state for state in states if _possible(state, wanted))


def _possible(state: State | View, wanted: JobFilter) -> bool:
    return (
        state is not State.BLOCKED
        and (wanted.worker is None or state is State.PROCESSING)
        and (wanted.failure_kind is None or state is State.FAILED)
        and (wanted.error is None or state is not State.COMPLETED)
    )


def _walk(
    dialect: Dialect, table: StateTable, wanted: JobFilter, order: Order, limit: int, after: int = 0
) -> Steps[list[int]]:
    if not wanted.args:
        rows = (yield numbers_of(dialect, table, wanted, order, limit, after)).fetchall()
        return [number for (number,) in rows]
    found: list[int] = []
    at_once, full = FIRST_NUMBERS, True
    while full and len(found) < limit:
        rows = (yield numbers_of(dialect, table, wanted, order, at_once, after)).fetchall()
        numbers: list[int] = [number for (number,) in rows]
        for first in range(0, len(numbers), PORTION):
            found += yield from _fitting(dialect, numbers[first : first + PORTION], wanted)
            if len(found) >= limit:
                break
        full = len(numbers) == at_once
        if numbers and order == "DESC":
            wanted = replace(wanted, before=numbers[-1])
        elif numbers:
            after = numbers[-1]
        at_once = min(2 * at_once, MOST_NUMBERS)
    return found


def _fitting(dialect: Dialect, numbers: list[int], wanted: JobFilter) -> Steps[list[int]]:
    payloads = yield from one_by_one(dialect, "payloads", numbers)
    fitting = {number for number, payload in payloads if has_args(payload, wanted.args)}
    return [number for number in numbers if number in fitting]


def numbers_of(
    dialect: Dialect, table: StateTable, wanted: JobFilter, order: Order, limit: int, after: int = 0
) -> SqlText:
    """The statement that finds numbers in one place."""
    text, values = _select(dialect, table.number, table, wanted)
    if after:
        text += f" AND {table.number} > :after"
        values["after"] = after
    if wanted.before is not None:
        text += f" AND {table.number} < :before"
        values["before"] = wanted.before
    text += f" ORDER BY {table.number} {order} LIMIT :limit"
    values["limit"] = max(0, limit)
    return dialect.statement(text, values)


def _select(
    dialect: Dialect, columns: str, table: StateTable, wanted: JobFilter
) -> tuple[str, dict[str, Any]]:
    state_tables = dialect.state_tables
    given = {name: value for name, value in asdict(wanted).items() if value is not None}
    asked = [table.condition, *(text for name, text in state_tables.conditions.items() if name in given)]
    values = {name: given[name] for name in state_tables.conditions if name in given}
    if wanted.worker is not None:
        id = worker_id(wanted.worker)
        values["worker_id"] = None if id is None else id.bytes
    if wanted.error is not None:
        asked.append(state_tables.has_error.format(error=table.error))
        values["error"] = folded(wanted.error)
    tables = [table.table]
    lanes = not OF_LANES.isdisjoint(given)
    bodies = (lanes and table.lane == "b.lane") or not OF_BODIES.isdisjoint(given)
    if bodies and table.number != "b.number":
        tables.append(state_tables.bodies)
    if lanes:
        tables.append(state_tables.lanes.format(lane=table.lane))
    return f"SELECT {columns} FROM {state_tables.join.join(tables)} WHERE {' AND '.join(asked)}", values


def state_of(number: int, state: int) -> State:
    """The state of a job. Raises JobError for one that somebody has written by hand."""
    if state not in STATES:
        raise JobError(
            f"The row of job {number} in the table done was not written by us: its state is {state!r}. Mend it, or"
            " delete it with the job."
        )
    return STATES[state]


def unreadable(table: str, row: object, why: object) -> StoreRefused:
    """The error of a row without which what was asked for would not be true."""
    return StoreRefused(
        f"The row {row!r} of the table {table} was not written by us, and cannot be read ({why})."
        " Mend it, or delete it."
    )


def _expect_numbers(table: str, row: object, *values: object) -> None:
    wrong = [value for value in values if not isinstance(value, int)]
    if wrong:
        raise unreadable(table, row, f"{wrong[0]!r} is no number")


def get(dialect: Dialect, ids: list[UUID]) -> Steps[list[Job | None]]:
    numbers = list((yield from dialect.numbers(ids)).values())
    jobs = {job.id: job for job in (yield from _details(dialect, numbers))}
    return [jobs.get(id) for id in ids]


def find(dialect: Dialect, wanted: JobFilter) -> Steps[list[Job]]:
    """A page of matching jobs, newest first: their numbers from the tables that hold their states, then the rest."""
    return (yield from _details(dialect, (yield from newest(dialect, wanted))))


def count(dialect: Dialect, wanted: JobFilter) -> Steps[int]:
    """How many jobs match: from the counters, if they can tell."""
    if asks_for_counters_only(wanted):
        return sum_counts((yield from stats(dialect)), wanted)
    return (yield from counted_one_by_one(dialect, wanted))


def _details(dialect: Dialect, numbers: list[int]) -> Steps[list[Job]]:
    rows = yield from one_by_one(dialect, "details", numbers)
    jobs = (_shown(row) for row in rows if row[19] is not None)
    return [job for job in jobs if job is not None]


def _shown(row: tuple[Any, ...]) -> Job | None:
    """The job of a row; None if somebody has written it by hand, and nobody can read it."""
    try:
        return _job(row)
    except UNREADABLE as error:
        logger.warning(
            "Job %s is not shown: its row was not written by us, and cannot be read (%s). When it has ended, clear"
            " deletes it.", row[0], error,
        )  # fmt: skip
        return None


def _job(row: tuple[Any, ...]) -> Job:
    number, id, task, queue, tenant, payload, priority, run_at, created_at, expires_at = row[:10]
    max_failures, max_crashes, alone, retry, timeout, soft_timeout, key, tags, meta = row[10:19]
    state, token, failures, crashes, releases, snoozes, solo = row[19:26]
    started_at, finished_at, cancel_requested_at, progress, progress_text = row[26:31]
    result, error, kind, worker = row[31:]
    return Job(
        id=UUID(bytes=id),
        number=number,
        task=task,
        queue=queue,
        tenant=tenant,
        state=STATES[state],
        payload=payload,
        priority=priority,
        run_at=to_datetime(run_at),
        created_at=to_datetime(created_at),
        started_at=_instant(started_at),
        finished_at=_instant(finished_at),
        expires_at=_instant(expires_at),
        cancel_requested_at=_instant(cancel_requested_at),
        attempt=token - releases - snoozes,
        failures=failures,
        crashes=crashes,
        releases=releases,
        snoozes=snoozes,
        max_failures=max_failures,
        max_crashes=max_crashes,
        suspect=bool(solo),
        alone=bool(alone),
        retry=retry,
        timeout=timeout,
        soft_timeout=soft_timeout,
        key=key,
        tags=() if tags is None else _tags(tags),
        meta=meta,
        progress=progress,
        progress_text=progress_text,
        result=result,
        error=error,
        failure_kind=None if kind is None else FailureKind(kind),
        worker=None if worker is None else UUID(bytes=worker),
    )


def _tags(text: str | bytes) -> tuple[str, ...]:
    """None, if somebody has written by hand what are no tags."""
    try:
        return json.decode(text, type=tuple[str, ...])
    except (DecodeError, TypeError, RecursionError):
        return ()


def _instant(at: Millis | None) -> datetime | None:
    return None if at is None else to_datetime(at)


def attempts(id: UUID) -> Steps[list[Attempt]]:
    rows = (yield sql("attempts", id.bytes)).fetchall()
    return [
        Attempt(
            token=token,
            outcome=outcome,
            error=error,
            traceback=traceback,
            started_at=to_datetime(started_at),
            finished_at=to_datetime(finished_at),
        )
        for token, outcome, error, traceback, started_at, finished_at in rows
    ]


def logs(id: UUID) -> Steps[list[LoggedLine]]:
    rows = (yield sql("logs", id.bytes)).fetchall()
    return [
        LoggedLine(token=token, line=line, at=to_datetime(at), level=level, text=text)
        for token, line, at, level, text in rows
    ]


def stats(dialect: Dialect) -> Steps[dict[str, Counts]]:
    """Exact counts: what is pending is what was enqueued and is nowhere else."""
    queues: dict[str, Counts] = {}
    for queue, total, completed, failed, cancelled in (yield sql("counters")).fetchall():
        _expect_numbers("counter", queue, total, completed, failed, cancelled)
        queues[queue] = Counts(pending=total, completed=completed, failed=failed, cancelled=cancelled)
    for queue, jobs in (yield from dialect.uncounted()).items():
        queues.setdefault(queue, Counts()).pending += jobs
    for queue, jobs in (yield sql("running_by_queue")).fetchall():
        queues[queue].processing = jobs
    for counts in queues.values():
        ended = counts.completed + counts.failed + counts.cancelled
        counts.pending -= ended + counts.processing
    yield from _tell_scheduled(queues)
    return queues


def _tell_scheduled(queues: dict[str, Counts]) -> Steps[None]:
    """What is pending is ready or scheduled. While few are ready it is those that are counted: a million jobs that are
    due tomorrow take a quarter of a second."""
    ready = dict((yield sql("ready_by_queue", FEW_READY + 1)).fetchall())
    if sum(ready.values()) <= FEW_READY:
        for queue, counts in queues.items():
            counts.scheduled = counts.pending - ready.get(queue, 0)
    else:
        for queue, jobs in (yield sql("scheduled_by_queue")).fetchall():
            queues[queue].scheduled = jobs


def oldest() -> Steps[dict[str, Millis]]:
    return dict((yield sql("oldest")).fetchall())


def settings() -> Steps[list[QueueSettings]]:
    rows = (yield sql("settings")).fetchall()
    for name, *values in rows:
        _expect_numbers("queue", name, *(value for value in values if value is not None))
    return [
        QueueSettings(
            name=name,
            paused=bool(paused),
            keep_completed_for=completed,
            keep_failed_for=failed,
            keep_cancelled_for=cancelled,
            max_pending=max_pending,
        )
        for name, paused, completed, failed, cancelled, max_pending in rows
    ]


def workers() -> Steps[list[WorkerRecord]]:
    return [_worker(row) for row in (yield sql("workers")).fetchall()]


def _worker(row: tuple[Any, ...]) -> WorkerRecord:
    id, name, tasks, queues, slots, version, host, pid, isolates, stopping = row[:10]
    started_at, lease_until, fenced_at, processing, owner = row[10:]
    try:
        return WorkerRecord(
            id=UUID(bytes=id), name=name, tasks=tuple(json.decode(tasks)),
            queues=None if queues is None else tuple(json.decode(queues)), slots=slots, version=version, host=host,
            pid=pid, isolates=bool(isolates), stopping=bool(stopping), started_at=to_datetime(started_at),
            lease_until=to_datetime(lease_until), fenced_at=_instant(fenced_at), processing=processing, owner=owner,
        )  # fmt: skip
    except UNREADABLE as error:
        raise unreadable("worker", name, error) from error
