"""What any long-lived process does for all: promote what is due, repair what broke, forget what is old."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from uuid import UUID

from shigoto.engine.memory.row import Row
from shigoto.engine.memory.store import Store
from shigoto.engine.memory.work import end_run
from shigoto.model.job import FailureKind, QueueSettings, State
from shigoto.model.notice import of_fences
from shigoto.model.service import AUDIT_BATCH, AUDIT_KEPT_FOR
from shigoto.model.states import orphaned, unknown_to_all
from shigoto.model.time import Millis
from shigoto.model.worker import Promoted, Rescued, SweepOrder, Swept


def promote(store: Store, limit: int) -> Promoted:
    """Make due jobs ready in run_at order; the first that is left says when to come again."""
    now = store.now()
    count = 0
    while (head := store.scheduled.head()) is not None:
        row = store.rows[head[1]]
        if row.run_at > now or count >= limit:
            return Promoted(count, max(0, row.run_at - now))
        store.promote(row)
        count += 1
    return Promoted(count, None)


def sweep(store: Store, order: SweepOrder) -> Swept:
    """Fence, free, expire, fail what nobody knows, prune; each kind in one bounded batch."""
    now = store.now()
    step = _forgive(store, now)
    fenced = tuple(worker for worker in order.fence if _fence(store, worker, now))
    held = Counter(row.worker for row in store.rows.values())
    # Of those that were fenced just now: later, with one job left, nobody could tell any more.
    with_one_job = frozenset(worker for worker in fenced if held[worker] == 1)
    orphans = _batch(store, order, _orphaned(store))
    rescued = tuple(_rescue(store, row, now, only=row.worker in with_one_job) for row in orphans)
    store.tell_failures()
    expired = _expire(store, _batch(store, order, _lapsed(now)), now)
    store.tell_failures()
    unknown = _fail_unknown(store, order, now)
    store.tell_failures()
    pruned = _prune(store, _batch(store, order, _outlived(store, order, now)))
    _prune_audit(store, now)
    return Swept(
        expired_workers=tuple(worker for worker, row in store.workers.items() if row.expired(now)),
        shortest_lease=min(
            (row.announcement.lease for row in store.workers.values() if row.fenced_at is None), default=None
        ),
        fenced=fenced,
        rescued=rescued,
        expired=expired,
        unknown=tuple(sorted(set(unknown))),
        pruned=pruned,
        clock_step=step,
        more=order.batch in (len(rescued), expired, len(unknown), pruned),
    )


def _forgive(store: Store, now: Millis) -> Millis:
    """After the clock was set back, no lease means anything any more: each starts again."""
    step = store.owed_step()
    if step:
        for worker in store.workers.values():
            worker.lease_until = now + worker.announcement.lease
    return step


def _fence(store: Store, worker: UUID, now: Millis) -> bool:
    """Whether this sweep has fenced it: a worker that has beaten since it was seen expired is left alone."""
    row = store.workers.get(worker)
    if row is None or not row.expired(now):
        return False
    row.fenced_at = now
    store.write_notices(of_fences(now, [(worker, row.announcement.name)]), now)
    return True


def _batch(store: Store, order: SweepOrder, matches: Callable[[Row], bool]) -> list[Row]:
    found: Iterator[Row] = (row for row in store.rows.values() if matches(row))
    return list(islice(found, order.batch))


def _orphaned(store: Store) -> Callable[[Row], bool]:
    """Whether nobody alive runs it; also a claim that was committed after its worker was fenced."""
    return lambda row: row.worker is not None and store.alive(row.worker) is None


def _lapsed(now: Millis) -> Callable[[Row], bool]:
    return lambda row: row.waiting and row.expired(now)


def _outlived(store: Store, order: SweepOrder, now: Millis) -> Callable[[Row], bool]:
    def kept_long_enough(row: Row) -> bool:
        if row.finished_at is None:
            return False
        settings = store.settings.get(row.spec.queue, QueueSettings(name=row.spec.queue))
        return row.finished_at + _keep_for(row.state, settings, order) < now

    return kept_long_enough


def _keep_for(state: State, settings: QueueSettings, order: SweepOrder) -> Millis:
    if state is State.COMPLETED:
        chosen, default = settings.keep_completed_for, order.keep_completed_for
    elif state is State.FAILED:
        chosen, default = settings.keep_failed_for, order.keep_failed_for
    else:
        chosen, default = settings.keep_cancelled_for, order.keep_cancelled_for
    return default if chosen is None else chosen


def _rescue(store: Store, row: Row, now: Millis, *, only: bool) -> Rescued:
    """T10: to the job, a worker that was fenced is a crash. Its token stays; the next claim outdates it."""
    worker = None if row.worker is None else store.workers.get(row.worker)
    crashed = orphaned(
        row.number,
        row.token,
        row.spec.queue,
        row.counters,
        worker=None if worker is None else worker.announcement.name,
        isolates=worker is not None and worker.announcement.isolates,
        only=only,
    )
    end_run(store, row, crashed, now)
    return Rescued(row.spec.id, row.number, row.spec.task, row.state)


def _expire(store: Store, rows: list[Row], now: Millis) -> int:
    """T16."""
    for row in rows:
        with store.moving(row, State.FAILED, now):
            row.failure_kind = FailureKind.EXPIRED
            row.finished_at = now
    return len(rows)


def _fail_unknown(store: Store, order: SweepOrder, now: Millis) -> list[str]:
    """Fail what has been due and unknown for too long, and tell the task of each."""
    waited = order.unknown_after
    if waited is None:
        return []
    _note_unknown(store, now, order.longest_gap)
    before = now - waited
    rows = _batch(store, order, lambda row: _due_and_unknown(store, row, before) and not row.expired(now))
    for row in rows:
        with store.moving(row, State.FAILED, now):
            row.failure_kind = FailureKind.UNKNOWN_TASK
            row.never_run = unknown_to_all(row.spec.task, waited)
            row.finished_at = now
    return [row.spec.task for row in rows]


def _note_unknown(store: Store, now: Millis, longest_gap: Millis) -> None:
    """Since when: a job that a dead worker gave back has been due for as long as it ran; its task was not unknown."""
    if now - store.looked_for_unknown_at > longest_gap:
        store.unknown_since.clear()
    store.looked_for_unknown_at = now
    known = {
        task for row in store.workers.values() if row.fenced_at is None for task in row.announcement.tasks
    }
    for (queue, task, _), line in store.ready.items():
        if task not in known and not store.paused(queue) and line.head() is not None:
            # The earlier instant stands, unless the clock was set back behind it.
            store.unknown_since[task] = min(now, store.unknown_since.get(task, now))


def _due_and_unknown(store: Store, row: Row, before: Millis) -> bool:
    since = store.unknown_since.get(row.spec.task)
    return (
        row.state is State.PENDING
        and row.ready
        and max(row.run_at, row.created_at) < before
        and since is not None
        and since < before
        and not store.paused(row.spec.queue)
    )


def _prune(store: Store, rows: list[Row]) -> int:
    """T18."""
    for row in rows:
        store.remove(row)
    return len(rows)


def _prune_audit(store: Store, now: Millis) -> None:
    for entry in list(islice(store.audit.values(), AUDIT_BATCH)):
        if entry.at + AUDIT_KEPT_FOR < now:
            del store.audit[entry.number]
