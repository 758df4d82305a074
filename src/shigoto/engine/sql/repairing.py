"""Leases and repair: beats, and the sweep that frees, fails and prunes.

For many jobs it is as many statements as for a few: on the way to some stores, each is a journey.
"""

from collections.abc import Sequence
from uuid import UUID

from msgspec import json

from shigoto.engine.sql.commands import Dialect, Steps, Submit, sql, sql_each
from shigoto.engine.sql.looking import NUMBERS_OF_STATES, STATES
from shigoto.engine.sql.managing import end_pending, remove
from shigoto.engine.sql.settling import (
    Running,
    guarded,
    move,
    note_progress,
    running,
    settled_tokens,
    write_logs,
    write_notices,
)
from shigoto.model.job import FailureKind, State
from shigoto.model.notice import of_fences
from shigoto.model.service import AUDIT_BATCH, AUDIT_KEPT_FOR
from shigoto.model.states import died, orphaned, unknown_to_all
from shigoto.model.time import Millis
from shigoto.model.worker import (
    CLAIM_DEADLINE,
    Announcement,
    Death,
    Ending,
    Orders,
    Report,
    Rescued,
    Settlement,
    SweepOrder,
    Swept,
)


def announce(now: Millis, worker: Announcement) -> Steps[None]:
    tasks = json.encode(worker.tasks).decode()
    queues = None if worker.queues is None else json.encode(worker.queues).decode()
    announced = yield sql(
        "announce", worker.id.bytes, worker.name, tasks, queues, worker.slots, worker.version, worker.lease, now,
        worker.host, worker.pid, worker.isolates, worker.stopping, worker.owner,
    )  # fmt: skip
    if announced.rowcount:
        yield sql("forget_unknown", tasks)


def leave(submit: Submit, now: Millis, worker: UUID) -> Steps[int]:
    """Forget a worker, and release what it did not know it had: it goes in peace, so nothing has crashed."""
    alive = (yield sql("live_worker", worker.bytes)).fetchone() is not None
    rows = (yield sql("held_by", worker.bytes)).fetchall() if alive else []
    yield from _release(submit, now, worker, [(number, token) for number, token, _, _ in rows])
    yield sql("leave", worker.bytes)
    return len(rows)


def report_dead(submit: Submit, now: Millis, worker: UUID, deaths: Sequence[Death]) -> Steps[list[Rescued]]:
    """Forget a worker whose process has ended: of what it held, the named jobs have crashed, the others were idle."""
    if (yield sql("live_worker", worker.bytes)).fetchone() is None:
        return []
    rows = (yield sql("held_by", worker.bytes)).fetchall()
    held = yield from guarded(worker, [(number, token) for number, token, _, _ in rows])
    causes = {death.number: death for death in deaths}
    ends = [
        (row, died(row.number, row.token, row.queue, causes.get(row.number)), row.settled_token)
        for row in held.values()
    ]
    moves = yield from move(submit, now, ends)
    yield sql("leave", worker.bytes)
    return [
        Rescued(row.id, row.number, row.task, to.state) for row, to in zip(held.values(), moves, strict=True)
    ]


def beat(dialect: Dialect, worker: UUID, held: Sequence[tuple[int, int]] | None) -> Steps[Orders]:
    """Renew the lease, release what the worker does not know it has, and tell what was taken or shall be cancelled."""
    now, _ = yield from dialect.now_and_step()
    if (yield sql("renew", worker.bytes, now)).rowcount == 0:
        return Orders(fenced=True)
    known = None if held is None else set(held)
    own: set[tuple[int, int]] = set()
    cancels: list[tuple[int, int]] = []
    strays: list[tuple[int, int]] = []
    for number, token, claimed_at, cancel_requested_at in (yield sql("held_by", worker.bytes)).fetchall():
        own.add((number, token))
        # A claim whose reply is still on its way is not lost; one that is older than any reply may be, is.
        if known is not None and (number, token) not in known and now - claimed_at > CLAIM_DEADLINE:
            strays.append((number, token))
        elif cancel_requested_at is not None:
            cancels.append((number, token))
    if strays:  # who has locked one is about to end it, and a beat waits for nobody
        busy = yield from dialect.locked([number for number, _ in strays])
        strays = [(number, token) for number, token in strays if number not in busy]
        yield from _release(dialect.submit, now, worker, strays)
    lost = yield from _taken([lease for lease in held or () if lease not in own])
    return Orders(fenced=False, cancels=tuple(cancels), lost=lost, released=len(strays))


def _taken(leases: Sequence[tuple[int, int]]) -> Steps[tuple[tuple[int, int], ...]]:
    """Of leases that a worker has no longer, those that were not ended by itself, by a settlement or a transaction."""
    if not leases:
        return ()
    settled = yield from settled_tokens([number for number, _ in leases])
    return tuple((number, token) for number, token in leases if settled.get(number) != token)


def _release(submit: Submit, now: Millis, worker: UUID, leases: Sequence[tuple[int, int]]) -> Steps[None]:
    yield from release(submit, now, list((yield from guarded(worker, leases)).values()))


def release(submit: Submit, now: Millis, rows: Sequence[Running]) -> Steps[None]:
    """Give jobs back that have not begun to run (T8)."""
    ends = [
        (row, Settlement(number=row.number, token=row.token, queue=row.queue, ending=Ending.RELEASED, ran=False),
         row.settled_token)
        for row in rows
    ]  # fmt: skip
    yield from move(submit, now, ends)


def report(worker: UUID, reports: Sequence[Report]) -> Steps[list[bool]]:
    leases = sorted({(news.number, news.token) for news in reports})
    held = set((yield sql("holds", json.encode(leases).decode(), worker.bytes)).fetchall())
    kept = [news for news in reports if (news.number, news.token) in held]
    yield from note_progress(kept)
    yield from write_logs(kept)
    return [(news.number, news.token) in held for news in reports]


def sweep(dialect: Dialect, order: SweepOrder) -> Steps[Swept]:
    """Repair, in this order: leases after a step of the clock, dead workers, their jobs, expiry, unknown tasks,
    retention."""
    now, clock_step = yield from dialect.now_and_step()
    if clock_step:
        yield sql("renew_all", now)
    fenced = yield from _fence(dialect.submit, now, order.fence)
    (_, shortest_lease, _), *expired_workers = (yield sql("expired_workers", now)).fetchall()
    rescued = yield from _rescue(dialect.submit, now, order.batch, (yield from _with_one_job(fenced)))
    yield sql("forget_fenced", now - 86_400_000)
    expired, expiries = yield from _expire(dialect.submit, now, order.batch)
    unknown = yield from _fail_unknown(dialect.submit, now, order)
    pruned, walked = yield from _prune(dialect, now, order)
    yield from dialect.fold()
    return Swept(
        expired_workers=tuple(UUID(bytes=id) for id, *_ in expired_workers),
        shortest_lease=shortest_lease,
        fenced=tuple(fenced),
        rescued=tuple(rescued),
        expired=expired,
        unknown=tuple(sorted(set(unknown))),
        pruned=pruned,
        clock_step=clock_step,
        more=order.batch in (len(rescued), expiries, len(unknown)) or walked,
    )


def any_freed(rescued: Sequence[Rescued]) -> bool:
    """Whether there is something to claim now: a job, or the notice of one that has failed."""
    return any(job.state in (State.PENDING, State.FAILED) for job in rescued)


def any_work(swept: Swept) -> bool:
    """The same of all that a sweep has done."""
    return bool(swept.rescued or swept.fenced or swept.expired or swept.unknown)


def _fence(submit: Submit, now: Millis, workers: Sequence[UUID]) -> Steps[list[UUID]]:
    if not workers:
        return []
    rows = (yield sql("fence", _hex(workers), now)).fetchall()
    names: dict[bytes, str] = {id: name for id, name, _ in rows}
    fenced = [worker for worker in workers if worker.bytes in names]
    if any(wanted for *_, wanted in rows):
        yield from write_notices(
            submit, now, of_fences(now, [(worker, names[worker.bytes]) for worker in fenced])
        )
    return fenced


def _with_one_job(workers: Sequence[UUID]) -> Steps[frozenset[bytes]]:
    """Of workers that were fenced just now, those with one job: later, with one left, nobody could tell any more."""
    if not workers:
        return frozenset()
    rows = (yield sql("jobs_of", _hex(workers))).fetchall()
    return frozenset(worker for worker, jobs in rows if jobs == 1)


def _hex(workers: Sequence[UUID]) -> str:
    return json.encode([worker.hex for worker in workers]).decode()


def _rescue(submit: Submit, now: Millis, batch: int, with_one_job: frozenset[bytes]) -> Steps[list[Rescued]]:
    orphans = {number: rest for number, *rest in (yield sql("orphans", batch)).fetchall()}
    rows = {row.number: row for row in (yield from running(list(orphans)))}
    if len(rows) < len(orphans):  # numbers without a job: somebody has written, or deleted, by hand
        yield sql("stop_running", json.encode([number for number in orphans if number not in rows]).decode())
    ends: list[tuple[Running, Settlement, int]] = []
    for row in rows.values():
        worker, name, isolates = orphans[row.number]
        ended = orphaned(
            row.number,
            row.token,
            row.queue,
            row.held.counters,
            worker=name,
            isolates=bool(isolates),
            only=worker in with_one_job,
        )
        # The token counts as settled only when its worker settled it: a late answer must hear that it was lost.
        ends.append((row, ended, row.settled_token))
    moves = yield from move(submit, now, ends)
    return [
        Rescued(row.id, row.number, row.task, to.state) for (row, _, _), to in zip(ends, moves, strict=True)
    ]


def _expire(submit: Submit, now: Millis, batch: int) -> Steps[tuple[int, int]]:
    """Fail what was not started in time; also tells how many instants were looked at, most of jobs that had ended.

    A job that runs, or that somebody else is about to change, keeps its instant, and is looked at again.
    """
    rows = (yield sql("due_expiries", now, batch)).fetchall()
    due = [row for row in rows if row[2] != NUMBERS_OF_STATES[State.PROCESSING]]
    if not due:
        return 0, 0
    instants = [(expires_at, number) for expires_at, number, _ in due]
    # One that is not there any more was replaced by another, after it was looked at and before the job was locked.
    dropped = {number for (number,) in (yield sql_each("drop_expiries", instants)).fetchall()}
    pending = [n for _, n, state in due if state == NUMBERS_OF_STATES[State.PENDING] and n in dropped]
    expired = yield from end_pending(submit, now, dict.fromkeys(pending), State.FAILED, FailureKind.EXPIRED)
    return len(expired), len(due)


def _fail_unknown(submit: Submit, now: Millis, order: SweepOrder) -> Steps[list[str]]:
    """Fail what has been due and unknown for too long, and tell the task of each."""
    waited = order.unknown_after
    if waited is None:
        return []
    lanes = yield from _note_unknown(now, order.longest_gap)
    if not lanes:
        return []
    numbers = json.encode(lanes).decode()
    overdue = (yield sql("overdue_unknown", numbers, now - waited, now, order.batch)).fetchall()
    errors = {number: unknown_to_all(task, waited) for number, task in overdue}
    yield from end_pending(submit, now, errors, State.FAILED, FailureKind.UNKNOWN_TASK)
    return [task for _, task in overdue]


def _note_unknown(now: Millis, longest_gap: Millis) -> Steps[list[int]]:
    """Note since when tasks are unknown, from the start if nobody has looked for too long, and tell their lanes."""
    last = (yield sql("turn", "looked_for_unknown")).fetchone()
    if last is None:  # somebody else is at it
        return []
    if last[0] and now - last[0] > longest_gap:
        yield sql("forget_all_unknown")
    yield sql("note_look_for_unknown", now)
    lanes = (yield sql("unknown_lanes")).fetchall()
    if lanes:
        yield sql("note_unknown", json.encode(sorted({task for _, task in lanes})).decode(), now)
    return [lane for lane, _ in lanes]


def _prune(dialect: Dialect, now: Millis, order: SweepOrder) -> Steps[tuple[int, bool]]:
    """Look at a batch of history and delete what was kept long enough; also tells whether to go on at once.

    The walk goes on where the last one stopped, past what is kept, and begins again at the end.
    """
    walked_to = (yield sql("turn", "pruned_to")).fetchone()
    if walked_to is None:  # somebody else is at it
        return 0, False
    keep = (order.keep_completed_for, order.keep_failed_for, order.keep_cancelled_for)
    rows = (yield sql("history_from", walked_to[0], order.batch, *keep)).fetchall()
    old = [
        (number, STATES[state], queue)
        for number, state, at, queue, keep_for in rows
        # A row that was not written by us is walked past: it must not keep others from being swept.
        if state in STATES and isinstance(at, int) and at + keep_for < now
    ]
    yield from remove(dialect, old)
    yield sql("prune_audit", now - AUDIT_KEPT_FOR, AUDIT_BATCH)
    full = len(rows) == order.batch
    yield sql("set_meta", "pruned_to", rows[-1][0] if full else 0)
    return len(old), full and bool(old)
