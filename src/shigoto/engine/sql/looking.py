"""Reads: jobs as people see them, counts, attempts, log lines, settings, workers."""

import logging
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import DecodeError, json

from shigoto.engine.sql.command import Steps, sql
from shigoto.engine.sql.dialect import Dialect
from shigoto.engine.sql.finding import counted_one_by_one, newest
from shigoto.engine.sql.one_by_one import one_by_one
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
    asks_for_counters_only,
    sum_counts,
)
from shigoto.model.time import Millis, to_datetime
from shigoto.model.worker import WorkerRecord

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
    """The jobs, in order."""
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
            " deletes it.",
            row[0],
            error,
        )
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
    """The runs that did not end completed."""
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
    """What the runs have written."""
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
    for queue, jobs in (yield sql("blocked_by_queue")).fetchall():
        queues[queue].blocked = jobs
    for counts in queues.values():
        ended = counts.completed + counts.failed + counts.cancelled
        counts.pending -= ended + counts.processing + counts.blocked
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
    """By queue, since when its longest waiting job could have been claimed."""
    return dict((yield sql("oldest")).fetchall())


def settings() -> Steps[list[QueueSettings]]:
    """Every queue that has had a job or a setting."""
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
    """The workers that are registered and not fenced."""
    return [_worker(row) for row in (yield sql("workers")).fetchall()]


def _worker(row: tuple[Any, ...]) -> WorkerRecord:
    try:
        return _worker_record(row)
    except UNREADABLE as error:
        raise unreadable("worker", row[1], error) from error


def _worker_record(row: tuple[Any, ...]) -> WorkerRecord:
    id, name, tasks, queues, slots, version, host, pid, isolates, stopping = row[:10]
    started_at, lease_until, fenced_at, processing, owner = row[10:]
    return WorkerRecord(
        id=UUID(bytes=id),
        name=name,
        tasks=tuple(json.decode(tasks)),
        queues=None if queues is None else tuple(json.decode(queues)),
        slots=slots,
        version=version,
        host=host,
        pid=pid,
        isolates=bool(isolates),
        stopping=bool(stopping),
        started_at=to_datetime(started_at),
        lease_until=to_datetime(lease_until),
        fenced_at=_instant(fenced_at),
        processing=processing,
        owner=owner,
    )
