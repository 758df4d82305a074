"""T15: operators bring jobs back that have ended."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct, json

from shigoto.engine.sql.command import Steps, sql, sql_each
from shigoto.engine.sql.counting import count
from shigoto.engine.sql.dialect import Dialect
from shigoto.engine.sql.keys import Holder, Key, holders
from shigoto.engine.sql.looking import state_of
from shigoto.engine.sql.managing import locked_states
from shigoto.engine.sql.waiting import Waiting, wait_again
from shigoto.model.errors import JobNotFound, KeyTaken
from shigoto.model.job import Enqueued, State
from shigoto.model.states import Counters, not_retryable, renewed
from shigoto.model.time import Millis


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
    keys = yield from _keys_of(list(numbers.values()))
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


def _keys_of(numbers: Sequence[int]) -> Steps[dict[int, Key]]:
    """They never change."""
    rows = (yield sql("keys_of", json.encode(numbers).decode())).fetchall()
    return {number: (tenant, key) for number, tenant, key in rows}


def _expect_retryable(id: UUID, state: State | None) -> None:
    if state is None:
        raise JobNotFound(f"There is no job {id}: it never existed here, or its retention has passed.")
    if state not in (State.FAILED, State.CANCELLED):
        raise not_retryable(f"Job {id}", state)


def _expect_free(numbers: Mapping[UUID, int], keys: Mapping[int, Key], held_by: Mapping[Key, Holder]) -> None:
    """Of several with one key the first has it."""
    taken: dict[Key, Holder] = {}
    for id, number in numbers.items():
        key = keys.get(number)
        if key is None:
            continue
        rival = taken.setdefault(key, Holder(id, number, State.PENDING))
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
