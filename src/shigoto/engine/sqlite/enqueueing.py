"""Enqueueing (T1, T17): jobs come in.

Jobs that differ only in id and payload go in together: what they share is bound once, and their own two values stand in
a list of rows (`insertion`). That takes less than 3 µs a job where a statement for each took more than 6.

Jobs with unique keys go in by `engine.sql.enqueueing`.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from uuid import UUID

from shigoto.engine.sql.commands import SqlText, Steps, sql
from shigoto.engine.sql.enqueueing import KeyWays, add_lanes, enqueue_keyed, equal_runs, lanes
from shigoto.engine.sql.looking import Key
from shigoto.engine.sqlite.dialect import count_batch, fold_counters
from shigoto.model.job import Enqueued, JobSpec
from shigoto.model.time import Millis

Execute = Callable[[str, Sequence[object]], sqlite3.Cursor]
EqualJobs = tuple[
    tuple[object, ...], Sequence[JobSpec]
]  # neighbours that are the same, after what they share

WORTH_COUNTING = 100  # jobs; fewer are counted by the next sweep
ROWS_AT_ONCE = (250, 50, 10)  # with 500 no faster


def enqueue(now: Millis, specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Store the jobs in list order and answer for each."""
    runs = equal_runs(specs, partial(_shared, now))
    if any(same[0].key is not None for _, same in runs):
        return (yield from enqueue_keyed(KEY_WAYS, now, specs))
    yield from add_lanes(lanes(same[0] for _, same in runs))
    return (yield from _insert_runs(specs, runs))


def insert_directly(now: Millis, spec: JobSpec, execute: Execute) -> list[Enqueued] | None:
    """Store one job without a key by a single statement; None if its lane is not there yet, or it is known already."""
    try:
        cursor = execute(insertion(1), (*_shared(now, spec), spec.id.bytes, spec.payload))
    except sqlite3.IntegrityError:
        return None
    if cursor.rowcount != 1 or cursor.lastrowid is None:
        return None
    return [Enqueued(spec.id, cursor.lastrowid, "inserted")]


def insert(now: Millis, specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Store jobs without looking at their keys. Their lanes are there."""
    return (yield from _insert_runs(specs, equal_runs(specs, partial(_shared, now))))


def numbers(ids: Collection[UUID]) -> Steps[dict[UUID, int]]:
    """The numbers of those of the jobs that are known."""
    found: dict[UUID, int] = {}
    for id in dict.fromkeys(ids):
        row = (yield sql("number_of_id", id.bytes)).fetchone()
        if row is not None:
            found[id] = row[0]
    return found


def lock_keys(keys: Sequence[Key]) -> Steps[None]:
    """Do nothing: whoever writes is alone."""
    yield from ()


KEY_WAYS = KeyWays(insert=insert, numbers=numbers, lock_keys=lock_keys, count_before=fold_counters)


def _insert_runs(specs: Sequence[JobSpec], runs: Sequence[EqualJobs]) -> Steps[list[Enqueued]]:
    inserted = yield from _insert(runs)
    # The write lock is ours: the numbers have no gap.
    first = (yield sql("highest")).fetchone()[0] - inserted + 1
    if inserted == len(specs):
        if inserted >= WORTH_COUNTING:
            queues: Counter[str] = Counter()
            for _, same in runs:
                queues[same[0].queue] += len(same)
            yield from count_batch(first, queues)
        return [Enqueued(spec.id, first + offset, "inserted") for offset, spec in enumerate(specs)]
    answers: list[Enqueued] = []
    seen: set[UUID] = set()
    for spec in specs:
        number = (yield sql("number_of_id", spec.id.bytes)).fetchone()[0]
        new = number >= first and spec.id not in seen
        seen.add(spec.id)
        answers.append(Enqueued(spec.id, number, "inserted" if new else "existing"))
    return answers


def _insert(runs: Sequence[EqualJobs]) -> Steps[int]:
    """Insert them in their order, and tell how many were new."""
    inserted = 0
    singles: list[tuple[object, ...]] = []  # too few in a row that are the same
    for shared, same in runs:
        at = 0
        for rows in ROWS_AT_ONCE:
            while len(same) - at >= rows:
                inserted += yield from _insert_each(singles)
                singles = []
                values: list[object] = [*shared]
                for spec in same[at : at + rows]:
                    values += (spec.id.bytes, spec.payload)
                inserted += (yield SqlText(insertion(rows), values)).rowcount
                at += rows
        singles += [(*shared, spec.id.bytes, spec.payload) for spec in same[at:]]
    return inserted + (yield from _insert_each(singles))


def _insert_each(rows: list[tuple[object, ...]]) -> Steps[int]:
    if not rows:
        return 0
    return (yield SqlText(insertion(1), rows, many=True)).rowcount


def _shared(now: Millis, spec: JobSpec) -> tuple[object, ...]:
    """What jobs have in common, in the order of the statement."""
    return (
        spec.task, spec.queue, spec.alone, spec.alone, spec.priority, spec.due(now), now, spec.max_failures,
        spec.max_crashes, spec.tenant, spec.key, spec.expiry(now), spec.retry, spec.timeout, spec.soft_timeout,
        spec.tags, spec.meta,
    )  # fmt: skip


# The triggers put the job into ready or scheduled. A known id changes nothing; a lane that is not there is an error.
# The places have no numbers, since Python would ask SQLite for the name of each.
INSERT = """
INSERT INTO shigoto_job (lane, alone, priority, run_at, created_at, max_failures, max_crashes, tenant, key, expires_at,
  retry, timeout, soft_timeout, tags, meta, id, payload)
{rows}
ON CONFLICT (id) DO NOTHING
"""
LANE = "(SELECT lane FROM shigoto_lane WHERE task = ? AND queue = ? AND alone = ?)"
OTHERS = "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?"


@cache
def insertion(rows: int) -> str:
    """The statement that inserts so many jobs; first come the values that they share, then two of each."""
    if rows == 1:
        return INSERT.format(rows=f"VALUES ({LANE}, {OTHERS}, ?, ?)")
    pairs = ", ".join(["(?, ?)"] * rows)
    return INSERT.format(rows=f"SELECT {LANE}, {OTHERS}, column1, column2 FROM (VALUES {pairs}) WHERE TRUE")
