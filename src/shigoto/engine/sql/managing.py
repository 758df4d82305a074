"""T11, T12, T14, T15, T18, T21: what operators and clients do to jobs."""

from collections.abc import Collection, Sequence
from uuid import UUID

from msgspec import json

from shigoto.engine.sql.command import Steps, sql, sql_each
from shigoto.engine.sql.counting import count
from shigoto.engine.sql.dialect import Dialect
from shigoto.engine.sql.looking import NUMBERS_OF_STATES, STATES
from shigoto.engine.sql.settling import guarded, move
from shigoto.engine.sql.waiting import Waiting, remove_waiting, wait_again
from shigoto.model.clock import Millis
from shigoto.model.errors import JobNotFound, KeyTaken
from shigoto.model.job import Enqueued, FailureKind, State
from shigoto.model.states import DELETABLE, Counters, forced, not_retryable, renewed


def cancel(now: Millis, ids: Sequence[UUID], *, force: bool) -> Steps[list[State | None]]:
    """Cancel pending jobs at once, ask running ones to stop, or take them from their workers by force."""
    states: list[State | None] = []
    for id in ids:
        row = (yield sql("number_of_id", id.bytes)).fetchone()
        states.append(None if row is None else (yield from _cancel(now, row[0], force)))
    return states


def _state_of(number: int) -> Steps[State | None]:
    """The state of a job that was there a moment ago, locked; None if it has been deleted since."""
    row = (yield sql("state_of", number)).fetchone()
    return None if row is None or row[0] is None else STATES[row[0]]


def _cancel(now: Millis, number: int, force: bool) -> Steps[State | None]:
    state = yield from _state_of(number)
    if state is State.PENDING:
        yield from end_pending(now, number, State.CANCELLED, None)
        return State.CANCELLED
    if state is State.BLOCKED:
        yield from _end_blocked(now, number)
        return State.CANCELLED
    if state is State.PROCESSING:
        yield sql("request_cancel", number, now)
        if force:
            yield from _take_away(now, number)
            return State.CANCELLED
    return state


def _take_away(now: Millis, number: int) -> Steps[None]:
    """T14: the token does not count as settled, so whatever its worker still says of it is refused."""
    token, worker = (yield sql("running_lease", number)).fetchone()
    row = (yield from guarded(UUID(bytes=worker), [(number, token)]))[number, token]
    yield from move(now, [(row, forced(number, token, row.queue), row.settled_token)])


def _end_blocked(now: Millis, number: int) -> Steps[None]:
    """T21. A blocked job has never run, so there is nothing to remember of it."""
    yield sql("unblock", number)
    cancelled = NUMBERS_OF_STATES[State.CANCELLED]
    yield sql_each("add_done", [(number, cancelled, 0, 0, 0, 0, 0, 0, 0, None, now, None, None, None)])
    queue = (yield sql("queue_of", number)).fetchone()[0]
    yield from count(ended=[(queue, State.CANCELLED)])


def end_pending(
    now: Millis, number: int, state: State, kind: FailureKind | None, error: str | None = None
) -> Steps[None]:
    """Take a pending job to a terminal state without a run (T11, T16)."""
    job = yield from remove_waiting(number)
    counters = job.counters
    done = (
        number, NUMBERS_OF_STATES[state], job.token, job.settled_token, counters.failures, counters.crashes,
        counters.releases, counters.snoozes, int(counters.solo), None, now, None, kind, error,
    )  # fmt: skip
    yield sql_each("add_done", [done])
    yield from count(ended=[(job.queue, state)])


def retry(now: Millis, ids: Sequence[UUID]) -> Steps[list[Enqueued]]:
    """Make failed or cancelled jobs ready again; the first that cannot be stops the whole."""
    numbers: dict[UUID, int] = {}
    for id in ids:
        numbers[id] = yield from _retryable(id)
    for id, number in numbers.items():
        yield from _retry(now, id, number)
    return [Enqueued(id, numbers[id], "existing") for id in ids]


def _retryable(id: UUID) -> Steps[int]:
    row = (yield sql("number_of_id", id.bytes)).fetchone()
    number: int = 0 if row is None else row[0]
    state = None if row is None else (yield from _state_of(number))
    if state is None:
        raise JobNotFound(f"There is no job {id}: it never existed here, or its retention has passed.")
    if state not in (State.FAILED, State.CANCELLED):
        raise not_retryable(f"Job {id}", state)
    return number


def _retry(now: Millis, id: UUID, number: int) -> Steps[None]:
    row = (yield sql("done_row", number)).fetchone()
    (
        state,
        token,
        settled_token,
        crashes,
        releases,
        snoozes,
        solo,
        lane,
        lane_alone,
        alone,
        priority,
        tenant,
        key,
        expires_at,
        queue,
    ) = row
    if key is not None:
        yield from _take_key_back(id, number, tenant, key)
    if expires_at is not None and expires_at < now:
        yield sql("drop_expiry", expires_at, number)
        yield sql("forget_expiry", number)
        expires_at = None
    elif expires_at is not None:  # a sweep may have dealt with it, if the clock was set back since
        yield sql("add_expiry", expires_at, number)
    yield sql("delete_done", f"[{number}]")
    yield sql_each("set_run_at", [(number, now)])
    yield from count(revived=[(queue, STATES[state])])
    again = Waiting(
        number=number,
        lane=lane,
        lane_alone=bool(lane_alone),
        alone=bool(alone),
        priority=priority,
        run_at=now,
        expires_at=expires_at,
        token=token,
        settled_token=settled_token,
        counters=renewed(Counters(0, crashes, 0, releases, snoozes, bool(solo))),
    )
    yield from wait_again(now, [again])


def _take_key_back(id: UUID, number: int, tenant: str, key: str) -> Steps[None]:
    holder = (yield sql("key_holder", tenant, key)).fetchone()
    if holder is not None and holder[0] != number:
        state = yield from _state_of(holder[0])
        if state is not None and not state.terminal:
            raise KeyTaken(
                f"Job {id} cannot be retried: its key {key!r} is held by job {UUID(bytes=holder[1])}, which is {state}."
                " Cancel that one first, or leave this one as it is."
            )
    yield sql("take_key", tenant, key, number)


def delete(dialect: Dialect, numbers: Sequence[int], states: Collection[State]) -> Steps[int]:
    """Delete those that are in one of the states and may go."""
    rows = yield sql("states_of", json.encode(sorted(set(numbers))).decode())
    jobs = [(number, STATES[state], queue) for number, state, queue in rows.fetchall()]
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
