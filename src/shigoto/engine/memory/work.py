"""The way of jobs: enqueued, claimed, reported, settled, and repaired by what any process does for all.

The id of a new job decides first, then its unique key by its mode (T1, T17).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from uuid import UUID

from msgspec import structs
from msgspec.structs import replace

from shigoto.engine.memory.store import Row, Store, WaitingLine, WorkerRow, held, lease, merged
from shigoto.model.job import Attempt, Enqueued, FailureKind, JobSpec, Lease, QueueSettings, State
from shigoto.model.notice import of_fences
from shigoto.model.service import AUDIT_BATCH, AUDIT_KEPT_FOR
from shigoto.model.states import after, died, meeting, orphaned, renewed, unknown_to_all
from shigoto.model.time import Millis, to_datetime
from shigoto.model.worker import (
    CLAIM_DEADLINE,
    KEPT_RELEASES,
    Announcement,
    Death,
    Ending,
    Orders,
    Promoted,
    Report,
    Rescued,
    Settlement,
    SweepOrder,
    Swept,
    Verdict,
    Want,
    leaves_a_trace,
)


def enqueue_many(store: Store, specs: Sequence[JobSpec]) -> list[Enqueued]:
    """Store the jobs in list order, so that a later spec meets what an earlier one has left."""
    now = store.now()
    return [_enqueue(store, spec, now) for spec in specs]


def _enqueue(store: Store, spec: JobSpec, now: Millis) -> Enqueued:
    known = store.by_id.get(spec.id)
    if known is not None:
        return Enqueued(known.spec.id, known.number, "existing")
    holder = store.holder(spec)
    if holder is None:
        return _insert(store, spec, now)
    met = meeting(spec.key_mode, holder.state)
    if met == "existing":
        return Enqueued(holder.spec.id, holder.number, "existing")
    if met == "replaced":
        return _replace(store, holder, spec, now)
    if met == "superseded":
        holder.superseded = True
    return _insert(store, spec, now)


def _insert(store: Store, spec: JobSpec, now: Millis) -> Enqueued:
    row = store.insert(spec, spec.due(now), spec.expiry(now), now)
    return Enqueued(spec.id, row.number, "inserted")


def _replace(store: Store, row: Row, spec: JobSpec, now: Millis) -> Enqueued:
    """The job keeps its id, number and history; what belonged to the old payload goes with it."""
    preserved = spec.key_mode == "preserve_run_at" and row.counters.failures == 0
    with store.moving(row, row.state, now):
        row.spec = structs.replace(spec, id=row.spec.id)
        row.run_at = row.run_at if preserved else spec.due(now)
        row.expires_at = spec.expiry(now)
        row.counters = renewed(row.counters)
        row.progress = row.progress_text = row.checkpoint = None
    return Enqueued(row.spec.id, row.number, "replaced")


def announce(store: Store, announcement: Announcement) -> None:
    """A fenced id stays fenced: its jobs may already run elsewhere."""
    now = store.now()
    known = store.workers.get(announcement.id)
    if known is None or known.fenced_at is None:
        for task in announcement.tasks:
            store.unknown_since.pop(task, None)
    if known is None:
        store.workers[announcement.id] = WorkerRow(
            announcement=announcement, started_at=now, lease_until=now + announcement.lease
        )
    elif known.fenced_at is None:
        known.announcement = replace(announcement, owner=known.announcement.owner)
        known.lease_until = now + announcement.lease


def leave(store: Store, worker: UUID) -> int:
    """It goes in peace: what it did not know it had is released. A fenced one has no say in that any more."""
    left = [] if store.alive(worker) is None else list(_own(store, worker))
    _release(store, left, store.now())
    store.workers.pop(worker, None)
    return len(left)


def claim(store: Store, worker: UUID, wants: Sequence[Want]) -> list[Lease]:
    """T2, each want by itself, so that one greedy pool cannot starve the next."""
    now = store.now()
    if store.alive(worker) is None:
        return []
    return [_start(store, row, worker, now) for want in wants for row in _take(store, want, now)]


def report_dead(store: Store, worker: UUID, deaths: Sequence[Death]) -> list[Rescued]:
    """Of what a dead worker held, the named jobs have crashed, the others were idle. A fenced one is the sweep's."""
    if store.alive(worker) is None:
        return []
    now = store.now()
    causes = {death.number: death for death in deaths}
    rows = _own(store, worker)
    for row in rows:
        end_run(store, row, died(row.number, row.token, row.spec.queue, causes.get(row.number)), now)
    del store.workers[worker]
    return [Rescued(row.spec.id, row.number, row.spec.task, row.state) for row in rows]


def beat(store: Store, worker: UUID, running: Sequence[tuple[int, int]] | None) -> Orders:
    """Renew, then give back what the store counts as this worker's but the worker knows nothing of."""
    now = store.now()
    known = store.alive(worker)
    if known is None:
        return Orders(fenced=True)
    known.lease_until = now + known.announcement.lease
    own = {(row.number, row.token): row for row in _own(store, worker)}
    lost = tuple(mark for mark in running or () if mark not in own and not _settled(store, *mark))
    strays = [] if running is None else [row for row in own.values() if _stray(row, running, now)]
    _release(store, strays, now)
    cancels = tuple(
        (row.number, row.token) for row in _own(store, worker) if row.cancel_requested_at is not None
    )
    return Orders(fenced=False, cancels=cancels, lost=lost, released=len(strays))


def report(store: Store, worker: UUID, reports: Sequence[Report]) -> list[bool]:
    return [_report(store, worker, news) for news in reports]


def settle(store: Store, worker: UUID, settlements: Sequence[Settlement]) -> list[Verdict]:
    now = store.now()
    return [_settle(store, worker, settlement, now) for settlement in settlements]


def end_run(store: Store, row: Row, settlement: Settlement, now: Millis) -> None:
    """Move a processing job to where its run's end leads, and write down a run that did not complete."""
    move = after(held(row), settlement)
    completed = move.state is State.COMPLETED
    if not completed and leaves_a_trace(settlement):
        row.attempts = [*_kept(row, settlement), _attempt(row, settlement, now)]
    with store.moving(row, move.state, now):
        row.worker = None
        row.counters = move.counters
        row.failure_kind = move.failure_kind
        row.result = settlement.result if completed else None
        _note_progress(row, settlement)
        if move.state.terminal:
            row.finished_at = now
        else:
            row.started_at = None
            row.run_at = row.run_at if move.delay is None else now + move.delay


def _take(store: Store, want: Want, now: Millis) -> list[Row]:
    """The best ready jobs that fit; the expired ones met on the way go back, for the sweep to fail them."""
    taken: list[Row] = []
    passed: list[Row] = []
    numbers = iter(merged(_lines(store, want)))
    while len(taken) < want.limit and (number := next(numbers, None)) is not None:
        row = store.rows[number]
        (passed if row.expired(now) else taken).append(row)
    for row in passed:
        store.put_back(row)
    return taken


def _lines(store: Store, want: Want) -> Iterator[WaitingLine]:
    for (queue, task, alone), line in store.ready.items():
        wanted = task in want.tasks and (want.queues is None or queue in want.queues)
        if wanted and want.alone in (None, alone) and not store.paused(queue):
            yield line


def _start(store: Store, row: Row, worker: UUID, now: Millis) -> Lease:
    with store.moving(row, State.PROCESSING, now):
        row.token += 1
        row.worker = worker
        row.started_at = now
    return lease(row, now)


def _own(store: Store, worker: UUID) -> list[Row]:
    return [row for _, row in sorted(store.held.get(worker, {}).items())]


def _release(store: Store, rows: Sequence[Row], now: Millis) -> None:
    for row in rows:
        released = Settlement(
            number=row.number, token=row.token, queue=row.spec.queue, ending=Ending.RELEASED, ran=False
        )
        end_run(store, row, released, now)


def _stray(row: Row, running: Collection[tuple[int, int]], now: Millis) -> bool:
    # A claim whose answer is still on its way to the worker is not a stray yet, hence the deadline.
    claimed_at = now if row.started_at is None else row.started_at
    return (row.number, row.token) not in running and now - claimed_at > CLAIM_DEADLINE


def _leased(store: Store, worker: UUID, number: int, token: int) -> Row | None:
    """The job, if this very lease is still this worker's; the guard of everything a worker writes."""
    row = store.held.get(worker, {}).get(number)
    return row if row is not None and row.token == token else None


def _report(store: Store, worker: UUID, news: Report) -> bool:
    row = _leased(store, worker, news.number, news.token)
    if row is None:
        return False
    _note_progress(row, news)
    _note_lines(row, news)
    row.checkpoint = row.checkpoint if news.checkpoint is None else news.checkpoint
    return True


def _settle(store: Store, worker: UUID, settlement: Settlement, now: Millis) -> Verdict:
    row = _leased(store, worker, settlement.number, settlement.token)
    if row is not None and store.alive(worker) is not None:
        end_run(store, row, settlement, now)
        _note_lines(row, settlement)
        # Only here: a run that a sweep or a beat has ended was not settled, and its worker must hear that.
        row.settled_token = settlement.token
        return Verdict.ACCEPTED
    if not _settled(store, settlement.number, settlement.token):
        return Verdict.LOST
    _note_lines(store.rows[settlement.number], settlement)
    return Verdict.REPEATED


def _settled(store: Store, number: int, token: int) -> bool:
    """Whether the lease was ended by its own worker."""
    row = store.rows.get(number)
    return row is not None and row.settled_token == token


def _note_progress(row: Row, news: Report | Settlement) -> None:
    row.progress = row.progress if news.progress is None else news.progress
    row.progress_text = row.progress_text if news.progress_text is None else news.progress_text


def _note_lines(row: Row, news: Report | Settlement) -> None:
    if news.log is None:
        return
    for line in news.log.lines:
        row.lines.setdefault((news.token, line.line), line)
    for token, number in list(row.lines):
        if token == news.token and number < news.log.first:
            del row.lines[token, number]


def _kept(row: Row, settlement: Settlement) -> list[Attempt]:
    """What stays of the history when a run ends so."""
    if settlement.ending is not Ending.RELEASED:
        return row.attempts
    oldest = row.token - KEPT_RELEASES
    return [attempt for attempt in row.attempts if attempt.token > oldest or attempt.outcome != "released"]


def _attempt(row: Row, settlement: Settlement, now: Millis) -> Attempt:
    return Attempt(
        token=row.token,
        outcome=settlement.ending.name.lower(),
        error=settlement.error,
        traceback=settlement.traceback,
        started_at=to_datetime(now if row.started_at is None else row.started_at),
        finished_at=to_datetime(now),
    )


def promote(store: Store, limit: int) -> Promoted:
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
    expired = _expire(store, _batch(store, order, lambda row: row.waiting and row.expired(now)), now)
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
