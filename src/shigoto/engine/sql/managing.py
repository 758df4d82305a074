"""Changes that operators and clients make to jobs (T11, T12, T14, T15, T18, T21)."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct, json

from shigoto.engine.sql.commands import Dialect, Steps, Submit, sql, sql_each
from shigoto.engine.sql.looking import NUMBERS_OF_STATES, Key, KeyHolder, holders, state_of
from shigoto.engine.sql.settling import (
    Waiting,
    count,
    move,
    remove_waiting,
    running,
    wait_again,
    write_if_wanted,
)
from shigoto.model.errors import JobNotFound, KeyTaken
from shigoto.model.job import Enqueued, FailureKind, QueueSettings, State
from shigoto.model.notice import FailedJob, of_failures
from shigoto.model.states import DELETABLE, Counters, forced, not_retryable, renewed
from shigoto.model.time import Millis


def configure(queue: QueueSettings) -> Steps[None]:
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
    processing = [number for number, state in states.items() if state is State.PROCESSING]
    cancelled = yield from end_pending(dialect.submit, now, dict.fromkeys(pending), State.CANCELLED, None)
    states |= {number: State.CANCELLED if number in cancelled else None for number in pending}
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


def end_pending(
    submit: Submit, now: Millis, errors: Mapping[int, str | None], state: State, kind: FailureKind | None
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
        failed = [FailedJob(job.number, job.id, job.task, job.queue, job.token, kind) for job in jobs]
        yield from write_if_wanted(submit, now, of_failures(now, failed))
    return {job.number for job in jobs}


def _done(
    now: Millis, job: Waiting, state: State, kind: FailureKind | None, error: str | None
) -> tuple[object, ...]:
    counters = job.counters
    return (
        job.number, NUMBERS_OF_STATES[state], job.token, job.settled_token, counters.failures, counters.crashes,
        counters.releases, counters.snoozes, int(counters.solo), None, now, None, kind, error,
    )  # fmt: skip


def delete(dialect: Dialect, numbers: Sequence[int], states: Collection[State]) -> Steps[int]:
    known = yield from locked_states(numbers)
    jobs = [(number, state, queue) for number, (state, queue) in known.items()]
    gone = [job for job in jobs if job[1] in states and job[1] in DELETABLE]
    yield from remove(dialect, gone)
    return len(gone)


def remove(dialect: Dialect, jobs: Sequence[tuple[int, State, str]]) -> Steps[None]:
    if not jobs:
        return
    numbers = json.encode([number for number, _, _ in jobs]).decode()
    for part in ("keys", "expiries", "ready", "scheduled", "attempts", "logs", "progress", "done"):
        yield sql(f"delete_{part}", numbers)
    yield from dialect.forget(jobs)


class Done(Struct, frozen=True, array_like=True):
    """A job that has ended, with what it needs to wait again; the columns of the statement `done_rows`."""

    number: int
    state: int
    token: int
    settled_token: int
    crashes: int
    releases: int
    snoozes: int
    solo: int
    lane: int
    lane_alone: int
    alone: int
    priority: int
    expires_at: Millis | None
    queue: str


def retry(dialect: Dialect, now: Millis, ids: Sequence[UUID]) -> Steps[list[Enqueued]]:
    """Make failed or cancelled jobs ready again; the first that cannot be stops the whole.

    Keys are locked before jobs, as by whoever enqueues.
    """
    numbers = yield from dialect.numbers(ids)
    rows = (yield sql("keys_of", json.encode(list(numbers.values())).decode())).fetchall()
    keys = {number: (tenant, key) for number, tenant, key in rows}  # they never change
    yield from dialect.lock_keys(sorted(set(keys.values())))
    held_by = yield from holders(sorted(set(keys.values())))
    states = yield from locked_states(list(numbers.values()))
    for id in ids:
        _expect_retryable(id, states.get(numbers.get(id, 0), (None, ""))[0])
    _expect_free(numbers, keys, held_by)
    if numbers:
        yield from _bring_back(now, sorted(numbers.values()))
    if keys:
        yield sql_each("take_keys", [(*key, number) for number, key in keys.items()])
    return [Enqueued(id, numbers[id], "existing") for id in ids]


def _expect_retryable(id: UUID, state: State | None) -> None:
    if state is None:
        raise JobNotFound(f"There is no job {id}: it never existed here, or its retention has passed.")
    if state not in (State.FAILED, State.CANCELLED):
        raise not_retryable(f"Job {id}", state)


def _expect_free(
    numbers: Mapping[UUID, int], keys: Mapping[int, Key], held_by: Mapping[Key, KeyHolder]
) -> None:
    """Of several with one key the first has it."""
    taken: dict[Key, KeyHolder] = {}
    for id, number in numbers.items():
        key = keys.get(number)
        if key is None:
            continue
        rival = taken.setdefault(key, KeyHolder(id, number, State.PENDING))
        if rival.number == number:
            rival = held_by.get(key, rival)
        if rival.number != number and not rival.state.terminal:
            raise KeyTaken(
                f"Job {id} cannot be retried: its key {key[1]!r} is held by job {rival.id}, which is {rival.state}."
                " Cancel that one first, or leave this one as it is."
            )


def _bring_back(now: Millis, numbers: Sequence[int]) -> Steps[None]:
    text = json.encode(numbers).decode()
    rows: list[Any] = (yield sql("done_rows", text)).fetchall()
    jobs = [Done(*row) for row in rows]
    expired = [job for job in jobs if job.expires_at is not None and job.expires_at < now]
    lasting = [job for job in jobs if job.expires_at is not None and job.expires_at >= now]
    if expired:
        (yield sql_each("drop_expiries", [(job.expires_at, job.number) for job in expired])).fetchall()
        yield sql("forget_expiries", json.encode([job.number for job in expired]).decode())
    if lasting:  # a sweep may have dealt with it, if the clock was set back since
        yield sql_each("add_expiries", [(job.expires_at, job.number) for job in lasting])
    yield sql("delete_done", text)
    yield sql_each("set_run_at", [(job.number, now) for job in jobs])
    yield from count(revived=[(job.queue, state_of(job.number, job.state)) for job in jobs])
    yield from wait_again(now, [_waiting(now, job) for job in jobs])


def _waiting(now: Millis, job: Done) -> Waiting:
    expires_at = job.expires_at
    return Waiting(
        number=job.number,
        lane=job.lane,
        lane_alone=bool(job.lane_alone),
        alone=bool(job.alone),
        priority=job.priority,
        run_at=now,
        expires_at=None if expires_at is None or expires_at < now else expires_at,
        token=job.token,
        settled_token=job.settled_token,
        counters=renewed(Counters(0, job.crashes, 0, job.releases, job.snoozes, bool(job.solo))),
    )
