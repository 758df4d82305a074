"""T11, T12, T14, T18, T21: what operators and clients do to jobs; bringing them back is `retrying`."""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from msgspec import json

from shigoto.engine.sql.command import Steps, sql, sql_each
from shigoto.engine.sql.counting import count
from shigoto.engine.sql.dialect import Dialect, Submit
from shigoto.engine.sql.looking import NUMBERS_OF_STATES, state_of
from shigoto.engine.sql.noticing import write_if_wanted
from shigoto.engine.sql.settling import move, running
from shigoto.engine.sql.waiting import Waiting, remove_waiting
from shigoto.model.job import FailureKind, QueueSettings, State
from shigoto.model.notice import Failed, of_failures
from shigoto.model.states import DELETABLE, forced
from shigoto.model.time import Millis


def configure(queue: QueueSettings) -> Steps[None]:
    """Replace what is set for a queue."""
    yield sql(
        "configure", queue.name, int(queue.paused), queue.keep_completed_for, queue.keep_failed_for,
        queue.keep_cancelled_for, queue.max_pending,
    )  # fmt: skip


def cancel(dialect: Dialect, now: Millis, ids: Sequence[UUID], *, force: bool) -> Steps[list[State | None]]:
    """Cancel pending jobs at once, ask running ones to stop, or take them from their workers by force."""
    numbers = yield from dialect.numbers(ids)
    known = yield from locked_states(list(numbers.values()))
    states: dict[int, State | None] = {number: state for number, (state, _) in known.items()}
    pending = [number for number, state in states.items() if state is State.PENDING]
    blocked = [number for number, state in states.items() if state is State.BLOCKED]
    processing = [number for number, state in states.items() if state is State.PROCESSING]
    cancelled = yield from end_pending(dialect.submit, now, dict.fromkeys(pending), State.CANCELLED, None)
    states |= {number: State.CANCELLED if number in cancelled else None for number in pending}
    if blocked:
        yield from _end_blocked(now, {number: known[number][1] for number in blocked})
        states |= dict.fromkeys(blocked, State.CANCELLED)
    if processing:
        yield sql("request_cancel", json.encode(processing).decode(), now)
        if force:
            yield from _take_away(dialect.submit, now, processing)
            states |= dict.fromkeys(processing, State.CANCELLED)
    return [states.get(numbers.get(id, 0)) for id in ids]


def locked_states(numbers: Sequence[int]) -> Steps[dict[int, tuple[State, str]]]:
    """The states and queues of those of the jobs that are there; nobody else can change these before we end."""
    if not numbers:
        return {}
    rows = (yield sql("states_of", json.encode(sorted(set(numbers))).decode())).fetchall()
    return {number: (state_of(number, state), queue) for number, state, queue in rows}


def _take_away(submit: Submit, now: Millis, numbers: Sequence[int]) -> Steps[None]:
    """T14: the token does not count as settled, so whatever its worker still says of it is refused."""
    rows = yield from running(numbers)
    ends = [(row, forced(row.number, row.token, row.queue), row.settled_token) for row in rows]
    yield from move(submit, now, ends)


def _end_blocked(now: Millis, queues: Mapping[int, str]) -> Steps[None]:
    """T21. A blocked job has never run, so there is nothing to remember of it."""
    yield sql("unblock", json.encode(list(queues)).decode())
    nothing = (NUMBERS_OF_STATES[State.CANCELLED], 0, 0, 0, 0, 0, 0, 0, None, now, None, None, None)
    yield sql_each("add_done", [(number, *nothing) for number in queues])
    yield from count(ended=[(queue, State.CANCELLED) for queue in queues.values()])


def end_pending(
    submit: Submit,
    now: Millis,
    errors: Mapping[int, str | None],
    state: State,
    kind: FailureKind | None,
) -> Steps[set[int]]:
    """Take pending jobs, named with what is said of them, to a terminal state without a run (T11, T16).

    Tells which these are: not those whose rows somebody has deleted by hand.
    """
    if not errors:
        return set()
    jobs = yield from remove_waiting(list(errors))
    if jobs:
        yield sql_each("add_done", [_done(now, job, state, kind, errors[job.number]) for job in jobs])
        yield from count(ended=[(job.queue, state) for job in jobs])
    if state is State.FAILED:
        yield from write_if_wanted(submit, now, of_failures(now, [_failed(job, kind) for job in jobs]))
    return {job.number for job in jobs}


def _done(
    now: Millis, job: Waiting, state: State, kind: FailureKind | None, error: str | None
) -> tuple[object, ...]:
    counters = job.counters
    return (
        job.number, NUMBERS_OF_STATES[state], job.token, job.settled_token, counters.failures, counters.crashes,
        counters.releases, counters.snoozes, int(counters.solo), None, now, None, kind, error,
    )  # fmt: skip


def _failed(job: Waiting, kind: FailureKind | None) -> Failed:
    return Failed(job.number, job.id, job.task, job.queue, job.token, kind)


def delete(dialect: Dialect, numbers: Sequence[int], states: Collection[State]) -> Steps[int]:
    """Delete those that are in one of the states and may go."""
    known = yield from locked_states(numbers)
    jobs = [(number, state, queue) for number, (state, queue) in known.items()]
    gone = [job for job in jobs if job[1] in states and job[1] in DELETABLE]
    yield from remove(dialect, gone)
    return len(gone)


def remove(dialect: Dialect, jobs: Sequence[tuple[int, State, str]]) -> Steps[None]:
    """Delete jobs with everything that belongs to them."""
    if not jobs:
        return
    numbers = json.encode([number for number, _, _ in jobs]).decode()
    for statement in (
        "delete_keys",
        "delete_expiries",
        "delete_ready",
        "delete_scheduled",
        "delete_attempts",
        "delete_logs",
        "delete_progress",
        "delete_done",
    ):
        yield sql(statement, numbers)
    yield from dialect.forget(jobs)
