"""Enqueueing (T1, T17): jobs come in.

Jobs that differ only in id and payload go in together, by the function `enqueue`: what they share is told once, and ids
and payloads are two arrays; one by itself goes in by `enqueue_one`, which needs no arrays. Both expect the best; a
known id, or a lane that is not there yet, is an error, and then `enqueue_each` does the same with more care. So do
callers' transactions, which an error would end, and batches in which hardly two jobs are the same.

Jobs with unique keys go in by `engine.sql.enqueueing`, with as many trips to the server for a thousand as for one.
"""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import psycopg
from msgspec import json

from shigoto.engine.op import WRITE
from shigoto.engine.postgres.wire import RING, text_array, uuid_array
from shigoto.engine.sql.commands import SqlText, Steps, sql, sql_each, value
from shigoto.engine.sql.enqueueing import KeyWays, StoredMeanwhile, enqueue_keyed, equal_runs, portions
from shigoto.engine.sql.looking import Key
from shigoto.model.job import Enqueued, JobSpec

EQUAL = 50  # jobs of a run of equal ones on average, for which it is worth a statement of its own
UNEXPECTED = (psycopg.errors.UniqueViolation, psycopg.errors.NoDataFound)

TOLD = tuple(name for name in JobSpec.__struct_fields__ if name not in ("key_mode", "template"))


def lock_keys(keys: Sequence[Key]) -> Steps[None]:
    if keys:
        yield sql_each("lock_keys", keys)


def numbers(ids: Collection[UUID]) -> Steps[dict[UUID, int]]:
    rows = (yield sql_each("known_ids", [id.hex for id in dict.fromkeys(ids)])).fetchall()
    return {UUID(bytes=id): number for id, number in rows}


def is_single(specs: Sequence[JobSpec]) -> bool:
    """Whether one statement is enough, in the ordinary case."""
    return all(spec.key is None for spec in specs) and len(portions(specs)) == 1


def enqueue_one(spec: JobSpec) -> Steps[list[Enqueued]]:
    """Store one job without a key; never inside a transaction."""
    try:
        row = (yield sql("enqueue_one", *_shared(spec), spec.id.bytes, spec.payload, RING)).fetchone()
    except UNEXPECTED:
        return (yield from enqueue_each([spec]))
    return [Enqueued(spec.id, row[0], "inserted")]


def enqueue(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Store the jobs in list order and answer for each."""
    if any(spec.key is not None for spec in specs):
        return (yield from _enqueue_keyed(specs))
    runs = equal_runs(specs, _shared)
    if len(runs) * EQUAL > len(specs) and len(runs) > 1:
        return (yield from enqueue_each(specs))
    statements = [some for _, same in runs for some in portions(same)]
    if len(statements) > 1:
        yield WRITE
        yield SqlText("SAVEPOINT before_jobs")
    answers: list[Enqueued] = []
    try:
        for some in statements:
            answers += yield from _enqueue_equal(some)
    except UNEXPECTED:
        if len(statements) > 1:
            yield SqlText("ROLLBACK TO SAVEPOINT before_jobs")
        return (yield from enqueue_each(specs))
    return answers


def enqueue_joined(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """The same as part of any transaction, which an error would end."""
    if any(spec.key is not None for spec in specs):
        return (yield from _enqueue_keyed(specs))
    return (yield from enqueue_each(specs))


def enqueue_each(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Store any jobs without looking at their keys; known ids are answered with the jobs that have them."""
    answers: list[Enqueued] = []
    for some in portions(specs):
        text = json.encode([_told(spec) for spec in some]).decode()
        rows = sorted((yield sql("enqueue_each", text, RING)).fetchall())
        answers += [
            Enqueued(spec.id, number, "inserted" if inserted else "existing")
            for spec, (_, number, inserted) in zip(some, rows, strict=True)
        ]
    return answers


def _enqueue_equal(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    ids, payloads = uuid_array([s.id for s in specs]), text_array([s.payload for s in specs])
    [numbers] = (yield sql("enqueue", *_shared(specs[0]), ids, payloads, RING)).fetchone()
    return [Enqueued(spec.id, number, "inserted") for spec, number in zip(specs, numbers, strict=True)]


def _shared(spec: JobSpec) -> tuple[object, ...]:
    """What jobs have in common, in the order of the statement."""
    return (
        spec.tenant, spec.queue, spec.task, spec.alone, spec.priority, spec.delay, spec.run_at, spec.expires_in,
        spec.expires_at, spec.max_failures, spec.max_crashes, spec.retry, spec.timeout, spec.soft_timeout, spec.tags,
        spec.meta,
    )  # fmt: skip


def _enqueue_keyed(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    [now] = (yield sql("now")).fetchone()
    try:
        return (yield from enqueue_keyed(KEY_WAYS, now, specs))
    except StoredMeanwhile as error:
        raise psycopg.errors.SerializationFailure(str(error)) from error  # the driver starts the op again


KEY_WAYS = KeyWays(
    insert=lambda _, specs: enqueue_each(specs),
    numbers=numbers,
    lock_keys=lock_keys,
    count_before=lambda: value(None),  # enqueues are counted as they come
)


def _told(spec: JobSpec) -> dict[str, Any]:
    told = {name: getattr(spec, name) for name in TOLD}
    return {name: value for name, value in told.items() if value is not None}
