"""Pending jobs as rows: in the ready set when due, in the schedule until then."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct
from msgspec.structs import astuple

from shigoto.engine.sql.command import Steps, sql, sql_each
from shigoto.model.clock import Millis
from shigoto.model.states import Counters


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
    id: UUID | None = None


def counters_of(columns: Sequence[int]) -> Counters:
    """The counters from their six columns, in the order in which every table has them."""
    failures, crashes, solo_crashes, releases, snoozes, solo = columns
    return Counters(failures, crashes, solo_crashes, releases, snoozes, bool(solo))


def wait_again(now: Millis, jobs: Iterable[Waiting]) -> Steps[None]:
    """Put jobs back among the pending ones, ready at once if due. Their bodies must already have this run_at."""
    ready: list[tuple[object, ...]] = []
    scheduled: list[tuple[object, ...]] = []
    for job in jobs:
        lane = job.lane
        if job.lane_alone != (job.alone or job.counters.solo):
            lane = yield from _change_lane(job)
        counts = job.token, job.settled_token, *astuple(job.counters)
        if job.run_at <= now:
            ready.append((lane, -job.priority, job.run_at, job.number, job.expires_at, *counts))
        else:
            scheduled.append((job.run_at, job.number, lane, *counts))
    if ready:
        yield sql_each("add_ready", ready)
    if scheduled:
        yield sql_each("add_scheduled", scheduled)


def _change_lane(job: Waiting) -> Steps[int]:
    """It has become a suspect, or is none any more; the body must know, for its row is found through it."""
    yield sql("add_other_lane", job.lane)
    lane: int = (yield sql("other_lane", job.lane)).fetchone()[0]
    yield sql("set_lane", job.number, lane)
    return lane


def find_waiting(number: int) -> Steps[Waiting | None]:
    """The pending job of this number, None if it is not pending."""
    row = (yield sql("waiting_row", number)).fetchone()
    return None if row is None else waiting_of(number, row)


def waiting_of(number: int, row: Sequence[Any]) -> Waiting:
    """The pending job from its columns, in the order of the statement `waiting_row`."""
    lane, lane_alone, alone, priority, run_at, expires_at, queue, id, token, settled_token = row[:10]
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
        counters=counters_of(row[10:]),
        queue=queue
        if isinstance(queue, str)
        else queue.decode(),  # by the text_factory of a caller's connection
        id=UUID(bytes=id),
    )


def remove_waiting(number: int) -> Steps[Waiting]:
    """Take a pending job out of the line."""
    job = yield from find_waiting(number)
    if job is None:
        raise LookupError(f"job {number} is not pending")
    yield sql("delete_ready", f"[{number}]")
    yield sql("delete_scheduled", f"[{number}]")
    return job
