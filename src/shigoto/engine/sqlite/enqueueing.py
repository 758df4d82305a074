"""Enqueueing (T1, T17): jobs come in.

Jobs that differ only in id and payload go in together: what they share is bound once, and their own two values stand in
a list of rows (`insertion`). That takes less than 3 µs a job where a statement for each took more than 6.

Jobs with a unique key go in one after the other: each looks who holds its key now, and its mode says what becomes of
that (rule A1).
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cache
from uuid import UUID

from msgspec import json

from shigoto.engine.sql.commands import SqlText, Steps, sql, sql_each
from shigoto.engine.sql.looking import state_of
from shigoto.engine.sql.settling import Waiting, remove_waiting, wait_again
from shigoto.engine.sqlite.dialect import count_batch, count_moved
from shigoto.model.job import Enqueued, JobSpec
from shigoto.model.states import meeting, renewed
from shigoto.model.time import Millis

Insert = Callable[[Millis, JobSpec], Steps[Enqueued]]

Execute = Callable[[str, Sequence[object]], sqlite3.Cursor]
EqualJobs = tuple[
    tuple[object, ...], Sequence[JobSpec]
]  # neighbours that are the same, after what they share


def enqueue_keyed(now: Millis, specs: Sequence[JobSpec], insert: Insert) -> Steps[list[Enqueued]]:
    """Store jobs of which some have keys, one after the other. Their lanes are there; `insert` stores one, whatever its
    key."""
    answers: list[Enqueued] = []
    for spec in specs:
        stored = yield from insert(now, spec) if spec.key is None else _keyed(now, spec, insert)
        answers.append(stored)
    return answers


def _keyed(now: Millis, spec: JobSpec, insert: Insert) -> Steps[Enqueued]:
    """The key table: who holds the key now, and what the mode makes of it."""
    known = (yield sql("number_of_id", spec.id.bytes)).fetchone()
    if known is not None:
        return Enqueued(spec.id, known[0], "existing")
    holder = (yield sql("key_holder", spec.tenant, spec.key)).fetchone()
    if holder is not None:
        number, holder_id = holder[0], UUID(bytes=holder[1])
        state = state_of(number, (yield sql("state_of", number)).fetchone()[0])
        met = meeting(spec.key_mode, state)
        if met == "existing":
            return Enqueued(holder_id, number, "existing")
        if met == "replaced":
            yield from _replace(now, number, spec)
            return Enqueued(holder_id, number, "replaced")
        if met == "superseded":
            yield sql("supersede", number)
    enqueued = yield from insert(now, spec)
    yield sql("take_key", spec.tenant, spec.key, enqueued.number)
    return enqueued


def _replace(now: Millis, number: int, spec: JobSpec) -> Steps[None]:
    [was] = yield from remove_waiting([number])
    keep_run_at = spec.key_mode == "preserve_run_at" and was.counters.failures == 0
    run_at = was.run_at if keep_run_at else spec.due(now)
    expires_at = spec.expiry(now)
    lane = (yield sql("lane", spec.task, spec.queue, spec.alone)).fetchone()[0]
    if was.queue != spec.queue:
        yield from count_moved(was.queue, spec.queue)
    yield sql("delete_expiries", f"[{number}]")
    yield sql("delete_progress", f"[{number}]")
    yield sql(
        "replace_job", number, lane, spec.payload, spec.priority, run_at, spec.max_failures, spec.max_crashes,
        expires_at, spec.retry, spec.timeout, spec.soft_timeout, spec.tags, spec.meta, spec.alone,
    )  # fmt: skip
    if expires_at is not None:
        yield sql_each("add_expiries", [(expires_at, number)])
    again = Waiting(
        number=number,
        lane=lane,
        lane_alone=spec.alone,
        alone=spec.alone,
        priority=spec.priority,
        run_at=run_at,
        expires_at=expires_at,
        token=was.token,
        settled_token=was.settled_token,
        counters=renewed(was.counters),
    )
    yield from wait_again(now, [again])


def enqueue(now: Millis, specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Store the jobs in list order and answer for each."""
    runs = _equal_runs(now, specs)
    yield from _add_lanes([same[0] for _, same in runs])
    if any(same[0].key is not None for _, same in runs):
        return (yield from enqueue_keyed(now, specs, insert))
    inserted = yield from _insert_many(runs)
    first = (
        (yield sql("highest")).fetchone()[0] - inserted + 1
    )  # the write lock is ours: the numbers have no gap
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


def insert_directly(now: Millis, spec: JobSpec, execute: Execute) -> list[Enqueued] | None:
    """Store one job without a key by a single statement; None if its lane is not there yet, or it is known already."""
    try:
        shared = _shared(now, spec)
        cursor = execute(insertion(1, len(shared)), (*shared, spec.id.bytes, spec.payload))
    except sqlite3.IntegrityError:
        return None
    if cursor.rowcount != 1 or cursor.lastrowid is None:
        return None
    return [Enqueued(spec.id, cursor.lastrowid, "inserted")]


def insert(now: Millis, spec: JobSpec) -> Steps[Enqueued]:
    """Store one job, whatever its key; its lane is there."""
    shared = _shared(now, spec)
    while True:
        values = (*shared, spec.id.bytes, spec.payload)
        new = (yield SqlText(insertion(1, len(shared)), values)).rowcount == 1
        row = (yield sql("number_of_id", spec.id.bytes)).fetchone()
        if row is not None:  # else it was known, and deleted between the two statements
            return Enqueued(spec.id, row[0], "inserted" if new else "existing")


def numbers(ids: Collection[UUID]) -> Steps[dict[UUID, int]]:
    """The numbers of those of the jobs that are known."""
    found: dict[UUID, int] = {}
    for id in dict.fromkeys(ids):
        row = (yield sql("number_of_id", id.bytes)).fetchone()
        if row is not None:
            found[id] = row[0]
    return found


def _insert_many(runs: Sequence[EqualJobs]) -> Steps[int]:
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
                inserted += (yield SqlText(insertion(rows, len(shared)), values)).rowcount
                at += rows
        nothing = [None] * (SHARED - len(shared))
        singles += [(*shared, *nothing, spec.id.bytes, spec.payload) for spec in same[at:]]
    return inserted + (yield from _insert_each(singles))


def _insert_each(rows: list[tuple[object, ...]]) -> Steps[int]:
    if not rows:
        return 0
    return (yield SqlText(insertion(1, SHARED), rows, many=True)).rowcount


def _equal_runs(now: Millis, specs: Sequence[JobSpec]) -> list[EqualJobs]:
    """Cut them where they no longer ask for the same as the one before, but for id and payload."""
    runs: list[EqualJobs] = []
    first, shared, template = 0, _shared(now, specs[0]), specs[0].template
    for at, spec in enumerate(specs):
        if spec.template is not template or template is None:
            own = _shared(now, spec)
            if own != shared:
                runs.append((shared, specs[first:at]))
                first, shared, template = at, own, spec.template
    return [*runs, (shared, specs[first:])]


def _shared(now: Millis, spec: JobSpec) -> tuple[object, ...]:
    """What jobs have in common, in the order of the statement; without what most of them do not have, if it can be."""
    always = (
        spec.task,
        spec.queue,
        spec.alone,
        spec.alone,
        spec.priority,
        spec.due(now),
        now,
        spec.max_failures,
        spec.max_crashes,
        spec.tenant,
    )
    seldom = (
        spec.key,
        spec.expiry(now),
        spec.retry,
        spec.timeout,
        spec.soft_timeout,
        spec.tags,
        spec.meta,
    )
    return always if seldom == NOTHING else always + seldom


# The triggers put the job into ready or scheduled. A known id changes nothing; a lane that is not there is an error.
# What most jobs do not have is not even bound to NULL, which saves a microsecond, and the places have no numbers, since
# Python would ask SQLite for the name of each.
INSERT = """
INSERT INTO shigoto_job (lane, {columns}, id, payload)
{rows}
ON CONFLICT (id) DO NOTHING
"""
ALWAYS = ("alone", "priority", "run_at", "created_at", "max_failures", "max_crashes", "tenant")
SELDOM = ("key", "expires_at", "retry", "timeout", "soft_timeout", "tags", "meta")
LANE = "(SELECT lane FROM shigoto_lane WHERE task = ? AND queue = ? AND alone = ?)"
FOR_LANE = LANE.count("?")
NOTHING = (None,) * len(SELDOM)
SHARED = FOR_LANE + len(ALWAYS + SELDOM)
WORTH_COUNTING = 100  # jobs; fewer are counted by the next sweep
ROWS_AT_ONCE = (250, 50, 10)  # with 500 no faster


@cache
def insertion(rows: int, shared: int) -> str:
    """The statement that inserts so many jobs; the first so many values are what they share, then each has two."""
    columns = (ALWAYS + SELDOM)[: shared - FOR_LANE]
    places = ", ".join([LANE, *["?"] * len(columns)])
    if rows == 1:
        values = f"VALUES ({places}, ?, ?)"
    else:
        pairs = ", ".join(["(?, ?)"] * rows)
        values = f"SELECT {places}, column1, column2 FROM (VALUES {pairs}) WHERE TRUE"
    return INSERT.format(columns=", ".join(columns), rows=values)


def _add_lanes(specs: Sequence[JobSpec]) -> Steps[None]:
    lanes = json.encode(sorted({(spec.queue, spec.task, spec.alone) for spec in specs})).decode()
    yield sql("add_queues", lanes)
    yield sql("add_lanes", lanes)
