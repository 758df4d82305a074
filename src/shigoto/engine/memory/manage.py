"""What an operator does to jobs and queues: cancel, retry, delete, configure."""

from collections.abc import Collection, Sequence
from uuid import UUID

from shigoto.engine.memory.row import Row
from shigoto.engine.memory.store import Store
from shigoto.engine.memory.work import end_run
from shigoto.model.errors import JobNotFound, KeyTaken
from shigoto.model.job import Enqueued, QueueSettings, State
from shigoto.model.states import DELETABLE, forced, not_retryable, renewed
from shigoto.model.time import Millis


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
    """Forget those that are in one of the states and may go."""
    rows = [store.rows[number] for number in set(numbers) if number in store.rows]
    gone = [row for row in rows if row.state in states and row.state in DELETABLE]
    for row in gone:
        store.remove(row)
    return len(gone)


def configure(store: Store, settings: QueueSettings) -> None:
    """Replace a queue's settings as a whole."""
    store.settings[settings.name] = settings


def switch_notices(store: Store, on: bool) -> bool:
    """Remember whether notices are wanted; tells whether that is news."""
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
