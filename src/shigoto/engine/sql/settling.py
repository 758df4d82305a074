"""The ends of runs (T4-T10, T13), with the counters, the notices and the new wait that follow from them.

The token is checked by the statements: those of `dialect.complete`, and `held`. Counts are exact, at a cost that does
not grow with history; how they are read is in `looking.stats`. A job that waits again is in the ready set when due, in
the schedule until then.

Notices are stored by the transaction that makes true what they tell of. Whether any are wanted is one row, `notices` of
meta. What ends runs reads it on its way, with the runs themselves; so a store from which nobody wants to hear is asked
no more than before.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct, json
from msgspec.structs import astuple

from shigoto.engine.sql.commands import Dialect, Steps, Submit, sql, sql_each
from shigoto.engine.sql.looking import NUMBERS_OF_STATES
from shigoto.model.job import JobSpec, State
from shigoto.model.notice import SWITCH, FailedJob, of_failures
from shigoto.model.states import Counters, Held, Move, after
from shigoto.model.time import Millis
from shigoto.model.worker import KEPT_RELEASES, Ending, Report, Settlement, Verdict, leaves_a_trace

NOBODY = UUID(int=0)


def count(
    *,
    ended: Sequence[tuple[str, State]] = (),
    revived: Sequence[tuple[str, State]] = (),
    deleted: Sequence[tuple[str, State]] = (),
    moved: Sequence[tuple[str, str]] = (),
) -> Steps[None]:
    """Keep the counters true: jobs, by queue, that reached a terminal state, left it again, went away altogether, or
    moved from one queue to another."""
    changes: dict[str, dict[str, int]] = {}

    def change(queue: str, column: str, by: int) -> None:
        row = changes.setdefault(queue, {"total": 0, "completed": 0, "failed": 0, "cancelled": 0})
        row[column] += by

    for queue, state in ended:
        change(queue, state, 1)
    for queue, state in revived:
        change(queue, state, -1)
    for queue, state in deleted:
        change(queue, "total", -1)
        if state.terminal:
            change(queue, state, -1)
    for old, new in moved:
        change(old, "total", -1)
        change(new, "total", 1)
    if changes:
        yield sql_each("count", [(queue, *row.values()) for queue, row in changes.items()])


def count_completed(jobs: Mapping[str, int]) -> Steps[None]:
    """The same for jobs that were completed: so many of each queue."""
    yield sql_each("count", [(queue, 0, number, 0, 0) for queue, number in jobs.items()])


def write_if_wanted(submit: Submit, now: Millis, notices: Sequence[JobSpec]) -> Steps[None]:
    """Store notices, if there are any and somebody wants them."""
    if notices:
        switch = (yield sql("meta", SWITCH)).fetchone()
        if switch is not None and switch[0]:
            yield from write_notices(submit, now, notices)


def write_notices(submit: Submit, now: Millis, notices: Sequence[JobSpec]) -> Steps[None]:
    """Store notices. One that is known already is not stored again: its id tells what it is about."""
    if notices:
        yield from submit(now, notices)


def switch_notices(on: bool) -> Steps[bool]:
    """Remember whether notices are wanted; tells whether that is news."""
    if not on and (yield sql("meta", SWITCH)).fetchone() is None:
        return False
    return (yield sql("switch_notices", int(on))).rowcount > 0


class Waiting(Struct, frozen=True, kw_only=True):
    """One pending job. `alone` is what was asked for, `lane_alone` what its body's lane is for."""

    number: int
    lane: int
    lane_alone: bool
    alone: bool
    priority: int
    run_at: Millis
    expires_at: Millis | None
    token: int
    settled_token: int
    counters: Counters
    queue: str = ""
    task: str = ""
    id: UUID = NOBODY


def counters_of(columns: Sequence[int]) -> Counters:
    """The counters from their six columns, in the order in which every table has them."""
    failures, crashes, solo_crashes, releases, snoozes, solo = columns
    return Counters(failures, crashes, solo_crashes, releases, snoozes, bool(solo))


def wait_again(now: Millis, jobs: Sequence[Waiting]) -> Steps[None]:
    """Put jobs back among the pending ones, ready at once if due. Their bodies must already have this run_at."""
    ready: list[tuple[object, ...]] = []
    scheduled: list[tuple[object, ...]] = []
    lanes = yield from _change_lanes(
        [job for job in jobs if job.lane_alone != (job.alone or job.counters.solo)]
    )
    for job in jobs:
        lane = lanes.get(job.number, job.lane)
        counts = job.token, job.settled_token, *astuple(job.counters)
        if job.run_at <= now:
            ready.append((lane, -job.priority, job.run_at, job.number, job.expires_at, *counts))
        else:
            scheduled.append((job.run_at, job.number, lane, *counts))
    if ready:
        yield sql_each("add_ready", ready)
    if scheduled:
        yield sql_each("add_scheduled", scheduled)


def _change_lanes(jobs: Sequence[Waiting]) -> Steps[dict[int, int]]:
    """They have become suspects, or are none any more; the bodies must know, for their rows are found through them."""
    if not jobs:
        return {}
    lanes = json.encode(sorted({job.lane for job in jobs})).decode()
    yield sql("add_other_lanes", lanes)
    others: dict[int, int] = dict((yield sql("other_lanes", lanes)).fetchall())
    changed = {job.number: others[job.lane] for job in jobs}
    yield sql_each("set_lanes", list(changed.items()))
    return changed


def find_waiting(numbers: Sequence[int]) -> Steps[list[Waiting]]:
    """Those of the jobs that are pending. Where there are several writers, they are locked already."""
    return [
        _read_waiting(row) for row in (yield sql("waiting_rows", json.encode(numbers).decode())).fetchall()
    ]


def _read_waiting(row: Sequence[Any]) -> Waiting:
    number, lane, lane_alone, alone, priority, run_at, expires_at, queue, task, id = row[:10]
    token, settled_token = row[10:12]
    return Waiting(
        number=number,
        lane=lane,
        lane_alone=bool(lane_alone),
        alone=bool(alone),
        priority=priority,
        run_at=run_at,
        expires_at=expires_at,
        token=token,
        settled_token=settled_token,
        counters=counters_of(row[12:]),
        queue=_text(queue),
        task=_text(task),
        id=UUID(bytes=id),
    )


def _text(value: str | bytes) -> str:
    """Bytes come by the text_factory of a caller's connection."""
    return value if isinstance(value, str) else value.decode()


def remove_waiting(numbers: Sequence[int]) -> Steps[list[Waiting]]:
    """Take those of the jobs that are pending out of the line."""
    jobs = yield from find_waiting(numbers)
    found = json.encode([job.number for job in jobs]).decode()
    yield sql("delete_ready", found)
    yield sql("delete_scheduled", found)
    return jobs


class Running(Struct, frozen=True, kw_only=True):
    """A processing row that the guard let through, with what its next place needs."""

    number: int
    token: int
    claimed_at: Millis
    held: Held
    cancel_requested_at: Millis | None
    lane: int
    lane_alone: bool
    alone: bool
    priority: int
    run_at: Millis
    expires_at: Millis | None
    settled_token: int
    queue: str
    task: str
    id: UUID
    noticed: bool  # whether there is to be a notice of it, should it fail


def settle(
    dialect: Dialect, now: Millis, worker: UUID, settlements: Sequence[Settlement]
) -> Steps[list[Verdict]]:
    """End the runs; the outcome is that of settling them one after the other."""
    if len({settlement.number for settlement in settlements}) < len(settlements):
        verdicts: list[Verdict] = []
        for settlement in settlements:
            verdicts += yield from settle(dialect, now, worker, [settlement])
        return verdicts
    completions = [s for s in settlements if s.ending is Ending.COMPLETED]
    completed = (yield from dialect.complete(now, worker, completions)) if completions else []
    others = {(s.number, s.token): s for s in settlements if s.ending is not Ending.COMPLETED}
    running = yield from guarded(worker, list(others))
    yield from move(dialect.submit, now, [(row, others[lease], row.token) for lease, row in running.items()])
    accepted = [*completed, *(others[lease] for lease in running)]
    # Most say nothing on the way.
    told = [s for s in accepted if s.progress is not None or s.progress_text is not None or s.log is not None]
    yield from note_progress(told)
    yield from write_logs(told)
    if len(accepted) == len(settlements):
        return [Verdict.ACCEPTED] * len(settlements)
    return (yield from _verdicts(settlements, {s.number for s in accepted}))


def guarded(worker: UUID, leases: Sequence[tuple[int, int]]) -> Steps[dict[tuple[int, int], Running]]:
    """Of these leases, the ones that this worker holds now."""
    if not leases:
        return {}
    return _running(*(yield sql("held", json.encode(leases).decode(), worker.bytes)).fetchone())


def running(numbers: Sequence[int]) -> Steps[list[Running]]:
    """Those of the jobs that run, whoever has them. Where there are several writers, they are locked already."""
    if not numbers:
        return []
    return list(_running(*(yield sql("running_rows", json.encode(numbers).decode())).fetchone()).values())


def _running(text: str | bytes, notices: int | None) -> dict[tuple[int, int], Running]:
    running: dict[tuple[int, int], Running] = {}
    for row in json.decode(text):
        number, token, claimed_at = row[:3]
        max_failures, max_crashes, cancel_requested_at, superseded = row[9:13]
        lane, priority, run_at, expires_at, settled_token, queue, task, id, lane_alone, alone = row[13:]
        running[number, token] = Running(
            number=number,
            token=token,
            claimed_at=claimed_at,
            held=Held(
                counters_of(row[3:9]),
                max_failures,
                max_crashes,
                cancel_requested_at is not None,
                bool(superseded),
            ),
            cancel_requested_at=cancel_requested_at,
            lane=lane,
            lane_alone=bool(lane_alone),
            alone=bool(alone),
            priority=priority,
            run_at=run_at,
            expires_at=expires_at,
            settled_token=settled_token,
            queue=queue,
            task=task,
            id=UUID(id),
            noticed=bool(notices),
        )
    return running


def move(submit: Submit, now: Millis, ends: Sequence[tuple[Running, Settlement, int]]) -> Steps[list[Move]]:
    """Take running jobs to where the ends of their runs lead, and write the attempts down.

    Each end comes with the token that the job shall remember as settled.
    """
    if not ends:
        return []
    moves = [after(row.held, settlement) for row, settlement, _ in ends]
    yield sql("stop_running", json.encode([row.number for row, _, _ in ends]).decode())
    yield from _write_down(now, ends)
    waiting: list[Waiting] = []
    later: list[tuple[int, Millis]] = []
    done: list[tuple[object, ...]] = []
    ended: list[tuple[str, State]] = []
    failed: list[FailedJob] = []
    for (row, settlement, settled_token), to in zip(ends, moves, strict=True):
        if to.state is State.PENDING:
            run_at = row.run_at if to.delay is None else now + to.delay
            later += [] if run_at == row.run_at else [(row.number, run_at)]
            waiting.append(_waits_again(row, to, run_at, settled_token))
        else:
            done.append(_done(now, row, settlement, to, settled_token))
            ended.append((row.queue, to.state))
            if to.state is State.FAILED and row.noticed:
                failed.append(FailedJob(row.number, row.id, row.task, row.queue, row.token, to.failure_kind))
    if later:
        yield sql_each("set_run_at", later)
    yield from wait_again(now, waiting)
    if done:
        yield sql_each("add_done", done)
        yield from count(ended=ended)
        yield from write_notices(submit, now, of_failures(now, failed))
    return moves


def _write_down(now: Millis, ends: Sequence[tuple[Running, Settlement, int]]) -> Steps[None]:
    attempts = [
        (
            row.number, row.token, settlement.ending.name.lower(), settlement.error, settlement.traceback,
            row.claimed_at, now,
        )
        for row, settlement, _ in ends
        if leaves_a_trace(settlement)
    ]  # fmt: skip
    if attempts:
        yield sql_each("add_attempt", attempts)
    outlived = [
        (row.number, row.token - KEPT_RELEASES)
        for row, settlement, _ in ends
        if settlement.ending is Ending.RELEASED and leaves_a_trace(settlement) and row.token > KEPT_RELEASES
    ]
    if outlived:
        yield sql_each("drop_released_attempts", outlived)


def _done(
    now: Millis, row: Running, settlement: Settlement, to: Move, settled_token: int
) -> tuple[object, ...]:
    return (
        row.number, NUMBERS_OF_STATES[to.state], row.token, settled_token, to.counters.failures,
        to.counters.crashes, to.counters.releases, to.counters.snoozes, int(to.counters.solo), row.claimed_at, now,
        row.cancel_requested_at, to.failure_kind, settlement.error if leaves_a_trace(settlement) else None,
    )  # fmt: skip


def _waits_again(row: Running, to: Move, run_at: Millis, settled_token: int) -> Waiting:
    return Waiting(
        number=row.number,
        lane=row.lane,
        lane_alone=row.lane_alone,
        alone=row.alone,
        priority=row.priority,
        run_at=run_at,
        expires_at=row.expires_at,
        token=row.token,
        settled_token=settled_token,
        counters=to.counters,
    )


def note_progress(news: Sequence[Report | Settlement]) -> Steps[None]:
    """Keep how far runs are, and where to go on: of what one says twice the last counts, and what is not said stays."""
    told: dict[int, tuple[float | None, str | None, str | None]] = {}
    for one in news:
        checkpoint = one.checkpoint if isinstance(one, Report) else None
        said = (one.progress, one.progress_text, checkpoint)
        if said != (None, None, None):
            before = told.get(one.number, (None, None, None))
            told[one.number] = (
                before[0] if said[0] is None else said[0],
                before[1] if said[1] is None else said[1],
                before[2] if said[2] is None else said[2],
            )
    if told:
        yield sql_each("note_progress", [(number, *told[number]) for number in sorted(told)])


def write_logs(news: Sequence[Report | Settlement]) -> Steps[None]:
    """Keep the lines that runs have written, and only as many as are still wanted."""
    told = [(one.number, one.token, one.log) for one in news if one.log is not None]
    lines = [
        (number, token, line.line, line.at, line.level, line.text)
        for number, token, log in told
        for line in log.lines
    ]
    if lines:
        yield sql_each("add_log_line", lines)
    outlived = [(number, token, log.first) for number, token, log in told if log.first > 1]
    if outlived:
        yield sql_each("drop_log_lines", outlived)


def _verdicts(settlements: Sequence[Settlement], accepted: set[int]) -> Steps[list[Verdict]]:
    """Of those that were not accepted now, some were earlier: their answer was lost, but not their log lines."""
    settled = yield from settled_tokens([s.number for s in settlements if s.number not in accepted])
    repeated = [s for s in settlements if settled.get(s.number) == s.token]
    yield from write_logs(repeated)
    verdicts = dict.fromkeys(accepted, Verdict.ACCEPTED) | {s.number: Verdict.REPEATED for s in repeated}
    return [verdicts.get(settlement.number, Verdict.LOST) for settlement in settlements]


def settled_tokens(numbers: Sequence[int]) -> Steps[dict[int, int]]:
    """Of each job the last token that its own worker has settled."""
    return dict((yield sql("settled_tokens", json.encode(numbers).decode())).fetchall())
