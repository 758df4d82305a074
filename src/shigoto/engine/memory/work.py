"""What a worker does: announce itself, claim, beat, report, settle, leave; and what is done for one that died."""

from collections.abc import Collection, Iterator, Sequence
from uuid import UUID

from msgspec.structs import replace

from shigoto.engine.memory.line import Line, merged
from shigoto.engine.memory.row import Row, WorkerRow, held, lease
from shigoto.engine.memory.store import Store
from shigoto.model.job import Attempt, Lease, State
from shigoto.model.states import after, buried
from shigoto.model.time import Millis, to_datetime
from shigoto.model.worker import (
    CLAIM_DEADLINE,
    KEPT_RELEASES,
    Announcement,
    Death,
    Ending,
    Orders,
    Report,
    Rescued,
    Settlement,
    Verdict,
    Want,
    leaves_a_trace,
)


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


def bury(store: Store, worker: UUID, deaths: Sequence[Death]) -> list[Rescued]:
    """Of what a dead worker held, the named jobs have crashed, the others were idle. A fenced one is the sweep's."""
    if store.alive(worker) is None:
        return []
    now = store.now()
    causes = {death.number: death for death in deaths}
    rows = _own(store, worker)
    for row in rows:
        end_run(store, row, buried(row.number, row.token, row.spec.queue, causes.get(row.number)), now)
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
    """T3, each under the guard."""
    return [_report(store, worker, news) for news in reports]


def settle(store: Store, worker: UUID, settlements: Sequence[Settlement]) -> list[Verdict]:
    """T4-T9, T13, each under the guard."""
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


def _lines(store: Store, want: Want) -> Iterator[Line]:
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
