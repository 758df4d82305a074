"""Pending jobs as rows: in the ready set when due, in the schedule until then."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct, json
from msgspec.structs import astuple

from shigoto.engine.sql.command import Steps, sql, sql_each
from shigoto.model.states import Counters
from shigoto.model.time import Millis

NOBODY = UUID(int=0)


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
    return [_waiting(row) for row in (yield sql("waiting_rows", json.encode(numbers).decode())).fetchall()]


def _waiting(row: Sequence[Any]) -> Waiting:
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
