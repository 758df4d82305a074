"""Jobs, queues and workers as people see them, and what people do to them: cancel, retry, delete, configure."""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from uuid import UUID

from msgspec import structs

from shigoto.engine.memory.store import Row, Store, record, snapshot
from shigoto.engine.memory.work import end_run
from shigoto.model.errors import JobNotFound, KeyTaken
from shigoto.model.job import (
    Attempt,
    Counts,
    Enqueued,
    Job,
    JobFilter,
    LoggedLine,
    QueueSettings,
    State,
    asks_for_counters_only,
    folded,
    has_args,
    sum_counts,
    worker_id,
)
from shigoto.model.states import DELETABLE, forced, not_retryable, renewed
from shigoto.model.time import Millis, to_datetime
from shigoto.model.worker import WorkerRecord


def get(store: Store, ids: Sequence[UUID]) -> list[Job | None]:
    return [None if row is None else snapshot(row) for row in map(store.by_id.get, ids)]


def find(store: Store, wanted: JobFilter) -> list[Job]:
    """One page, newest first."""
    found: Iterator[Row] = filter(matcher(store, wanted), reversed(store.rows.values()))
    return [snapshot(row) for row in islice(found, max(0, wanted.limit))]


def count(store: Store, wanted: JobFilter) -> int:
    """From the tally, if it can tell."""
    if asks_for_counters_only(wanted):
        return sum_counts(stats(store), wanted)
    matches = matcher(store, structs.replace(wanted, before=None))
    return sum(map(matches, store.rows.values()))


def deletable(store: Store, wanted: JobFilter, after: int) -> list[int]:
    """From the oldest on, which are first in the rows."""
    matches = matcher(store, wanted)
    found = (
        row.number
        for row in store.rows.values()
        if row.number > after and row.state in DELETABLE and matches(row)
    )
    return list(islice(found, max(0, wanted.limit)))


def attempts(store: Store, job: UUID) -> list[Attempt]:
    """A copy: the history goes on."""
    row = store.by_id.get(job)
    return [] if row is None else list(row.attempts)


def logs(store: Store, job: UUID) -> list[LoggedLine]:
    """By run, then by line."""
    row = store.by_id.get(job)
    lines = [] if row is None else sorted(row.lines.items(), key=itemgetter(0))
    return [
        LoggedLine(token=token, line=line, at=to_datetime(told.at), level=told.level, text=told.text)
        for (token, line), told in lines
    ]


def stats(store: Store) -> dict[str, Counts]:
    """From the tally, which every move keeps."""
    return {queue: _counts(store, queue) for queue in sorted(store.settings)}


def oldest(store: Store) -> dict[str, Millis]:
    """Of the first in line of each lane and priority, since when the one could be claimed that has waited longest."""
    firsts: dict[tuple[str, str, bool, int], Row] = {}
    for row in store.rows.values():
        if row.state is State.PENDING and row.ready:
            lane = (row.spec.queue, row.spec.task, row.alone, row.spec.priority)
            firsts[lane] = min(row, firsts.get(lane, row), key=lambda row: (row.run_at, row.number))
    ages: dict[str, Millis] = {}
    for (queue, *_), row in firsts.items():
        since = max(row.run_at, row.created_at)
        ages[queue] = min(since, ages.get(queue, since))
    return ages


def settings(store: Store) -> list[QueueSettings]:
    return [store.settings[queue] for queue in sorted(store.settings)]


def workers(store: Store) -> list[WorkerRecord]:
    return [
        record(worker, processing=len(store.held.get(worker.announcement.id, {})))
        for worker in store.workers.values()
        if worker.fenced_at is None
    ]


def matcher(store: Store, wanted: JobFilter) -> Callable[[Row], bool]:
    """Whether a job is meant by the filter; what only the payload can tell is asked last."""
    by_id = None if wanted.worker is None else worker_id(wanted.worker)

    def run_by(row: Row) -> bool:
        worker = None if row.worker is None else store.workers.get(row.worker)
        named = worker is not None and worker.announcement.name == wanted.worker
        return row.worker is not None and (row.worker == by_id or named)

    def matches(row: Row) -> bool:
        return (
            _says_the_same(row, wanted)
            and (wanted.worker is None or run_by(row))
            and (wanted.error is None or _has_error(row, wanted.error))
            and has_args(row.spec.payload, wanted.args)
        )

    return matches


def _says_the_same(row: Row, wanted: JobFilter) -> bool:
    spec = row.spec
    return (
        (wanted.before is None or row.number < wanted.before)
        and (wanted.since is None or row.created_at >= wanted.since)
        and (wanted.state is None or _in_view(row, wanted.state))
        and wanted.queue in (None, spec.queue)
        and wanted.task in (None, spec.task)
        and wanted.tenant in (None, spec.tenant)
        and wanted.key in (None, spec.key)
        and wanted.failure_kind in (None, row.failure_kind)
        and (wanted.tag is None or wanted.tag in row.tags())
    )


def _has_error(row: Row, part: str) -> bool:
    error = row.error()
    return error is not None and folded(part) in folded(error)


def _in_view(row: Row, view: str) -> bool:
    if view == "scheduled":
        return row.state is State.PENDING and not row.ready
    if view == "retrying":
        return row.state is State.PENDING and row.counters.failures > 0
    return row.state == view


def _counts(store: Store, queue: str) -> Counts:
    by_state = {state.value: store.tally[queue, state] for state in State}
    return Counts(scheduled=store.later[queue], **by_state)


def cancel(store: Store, ids: Sequence[UUID], *, force: bool) -> list[State | None]:
    """T11 for jobs that wait, T12 or T14 for jobs that run, nothing for jobs that have ended."""
    now = store.now()
    return [None if row is None else _cancel(store, row, now, force) for row in map(store.by_id.get, ids)]


def retry(store: Store, ids: Sequence[UUID]) -> list[Enqueued]:
    """T15, all or none: every job is checked before the first one moves."""
    now = store.now()
    rows = [_retryable(store, job) for job in ids]
    takers: dict[tuple[str, str], Row] = {}
    for row in rows:
        _check_key(store, row, takers)
    for row in dict.fromkeys(rows):
        _renew(store, row, now)
    return [Enqueued(row.spec.id, row.number, "existing") for row in rows]


def delete(store: Store, numbers: Sequence[int], states: Collection[State]) -> int:
    rows = [store.rows[number] for number in set(numbers) if number in store.rows]
    gone = [row for row in rows if row.state in states and row.state in DELETABLE]
    for row in gone:
        store.remove(row)
    return len(gone)


def configure(store: Store, settings: QueueSettings) -> None:
    store.settings[settings.name] = settings


def switch_notices(store: Store, on: bool) -> bool:
    was, store.notices = store.notices, on
    return was is not on


def _cancel(store: Store, row: Row, now: Millis, force: bool) -> State:
    if row.state is State.PROCESSING:
        row.cancel_requested_at = now if row.cancel_requested_at is None else row.cancel_requested_at
        if force:
            end_run(store, row, forced(row.number, row.token, row.spec.queue), now)
    elif not row.state.terminal:
        with store.moving(row, State.CANCELLED, now):
            row.finished_at = now
    return row.state


def _retryable(store: Store, job: UUID) -> Row:
    row = store.by_id.get(job)
    if row is None:
        raise JobNotFound(f"There is no job {job}: it never existed here, or its retention has passed.")
    if row.state not in (State.FAILED, State.CANCELLED):
        raise not_retryable(f"Job {job}", row.state)
    return row


def _check_key(store: Store, row: Row, takers: dict[tuple[str, str], Row]) -> None:
    if row.spec.key is None:
        return
    taker = takers.setdefault((row.spec.tenant, row.spec.key), row)
    holder = store.holder(row.spec)
    rival = taker if taker is not row else holder
    if rival is not None and rival is not row and (rival is taker or not rival.state.terminal):
        raise KeyTaken(
            f"Job {row.spec.id} ({row.spec.task}) cannot be retried: its key {row.spec.key!r} belongs to job "
            f"{rival.spec.id} now. Wait until that one has ended, or cancel it."
        )


def _renew(store: Store, row: Row, now: Millis) -> None:
    with store.moving(row, State.PENDING, now):
        row.run_at = now
        # A job that is made to run after all must not fail at the next sweep for the limit it missed before.
        row.expires_at = None if row.expired(now) else row.expires_at
        row.counters = renewed(row.counters)
        row.started_at = row.finished_at = row.cancel_requested_at = None
        row.result = row.failure_kind = row.never_run = None
        row.superseded = False
    store.take_key(row)
