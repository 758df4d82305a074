"""T1 and T17: jobs come in.

Jobs that differ only in id and payload go in together, by the function `enqueue`: what they share is told once, and
ids and payloads are two arrays. It expects the best; a known id, or a lane that is not there yet, is an error, and then
`enqueue_each` does the same with more care. So do callers' transactions, which an error would end, and batches in which
hardly two jobs are alike.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from msgspec import json

from shigoto.engine.op import WRITE
from shigoto.engine.postgres.arrays import text_array, uuid_array
from shigoto.engine.postgres.statement import RING
from shigoto.engine.sql import keys
from shigoto.engine.sql.command import Statement, Steps, sql
from shigoto.engine.sql.dialect import Dialect
from shigoto.model.clock import Millis
from shigoto.model.job import Enqueued, JobSpec

AT_ONCE = 1_000  # jobs
ALIKE = 50  # jobs of a stretch on average, for which it is worth a statement of its own

Lane = tuple[str, str, bool]

UNEXPECTED = (psycopg.errors.UniqueViolation, psycopg.errors.NoDataFound)


def is_single(specs: Sequence[JobSpec]) -> bool:
    """Whether one statement is enough, in the ordinary case."""
    return len(specs) <= AT_ONCE and all(spec.key is None for spec in specs)


def enqueue(dialect: Dialect, specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Store the jobs in list order and answer for each."""
    if any(spec.key is not None for spec in specs):
        return (yield from _keyed(dialect, specs))
    stretches = _stretches(specs)
    if len(stretches) * ALIKE > len(specs) and len(stretches) > 1:
        return (yield from enqueue_each(specs))
    if is_single(specs) and len(stretches) == 1:
        try:
            return (yield from _enqueue_alike(specs))
        except UNEXPECTED:
            return (yield from enqueue_each(specs))
    return (yield from _enqueue_stretches(specs, stretches))


def enqueue_joined(dialect: Dialect, specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """The same inside a caller's transaction, which an error would end."""
    if any(spec.key is not None for spec in specs):
        return (yield from _keyed(dialect, specs))
    return (yield from enqueue_each(specs))


def enqueue_each(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Store any jobs without looking at their keys; known ids are answered with the jobs that have them."""
    answers: list[Enqueued] = []
    for first in range(0, len(specs), AT_ONCE):
        some = specs[first : first + AT_ONCE]
        text = json.encode([_told(spec) for spec in some]).decode()
        rows = sorted((yield sql("enqueue_each", text, RING)).fetchall())
        answers += [
            Enqueued(spec.id, number, "inserted" if inserted else "existing")
            for spec, (_, number, inserted) in zip(some, rows, strict=True)
        ]
    return answers


def insert(now: Millis, spec: JobSpec) -> Steps[Enqueued]:
    """Store one job, whatever its key."""
    return (yield from enqueue_each([spec]))[0]


def _enqueue_stretches(
    specs: Sequence[JobSpec], stretches: Sequence[Sequence[JobSpec]]
) -> Steps[list[Enqueued]]:
    yield WRITE
    yield Statement("SAVEPOINT before_jobs")
    try:
        answers: list[Enqueued] = []
        for alike in stretches:
            for first in range(0, len(alike), AT_ONCE):
                answers += yield from _enqueue_alike(alike[first : first + AT_ONCE])
        return answers
    except UNEXPECTED:
        yield Statement("ROLLBACK TO SAVEPOINT before_jobs")
        return (yield from enqueue_each(specs))


def _enqueue_alike(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    spec = specs[0]
    ids, payloads = uuid_array([s.id for s in specs]), text_array([s.payload for s in specs])
    [numbers] = (yield sql("enqueue", *_shared(spec), ids, payloads, RING)).fetchone()
    return [Enqueued(spec.id, number, "inserted") for spec, number in zip(specs, numbers, strict=True)]


def _stretches(specs: Sequence[JobSpec]) -> list[Sequence[JobSpec]]:
    """Cut them where they no longer ask for the same as the one before, but for id and payload."""
    stretches: list[Sequence[JobSpec]] = []
    first, shared, pattern = 0, _shared(specs[0]), specs[0].pattern
    for at, spec in enumerate(specs):
        if spec.pattern is not pattern or pattern is None:
            own = _shared(spec)
            if own != shared:
                stretches.append(specs[first:at])
                first, shared, pattern = at, own, spec.pattern
    return [*stretches, specs[first:]]


def _shared(spec: JobSpec) -> tuple[object, ...]:
    """What jobs have in common, in the order of the statement."""
    return (
        spec.tenant, spec.queue, spec.task, spec.alone, spec.priority, spec.delay, spec.run_at, spec.expires_in,
        spec.expires_at, spec.max_failures, spec.max_crashes, spec.retry, spec.timeout, spec.soft_timeout, spec.tags,
        spec.meta,
    )  # fmt: skip


def _keyed(dialect: Dialect, specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Jobs of which some have keys. All keys are locked first, in an order that is everybody's."""
    [now] = (yield sql("now")).fetchone()
    yield from add_lanes(lanes(specs))
    held = {(spec.tenant, spec.key) for spec in specs if spec.key is not None}
    if len(held) > 1:
        yield sql("lock_keys", json.encode(list(held)).decode())
    return (yield from keys.enqueue(dialect, now, specs))


def lanes(specs: Sequence[JobSpec]) -> set[Lane]:
    """The lanes that the jobs go into, by queue, task, and whether they run alone."""
    return {(spec.queue, spec.task, spec.alone) for spec in specs}


def add_lanes(wanted: set[Lane]) -> Steps[None]:
    """Make the lanes that are missing, in an order that is everybody's."""
    told = json.encode(sorted(wanted)).decode()
    yield sql("add_queues", told)
    yield sql("add_lanes", told)


def _told(spec: JobSpec) -> dict[str, Any]:
    told = {name: getattr(spec, name) for name in TOLD}
    return {name: value for name, value in told.items() if value is not None}


TOLD = tuple(name for name in JobSpec.__struct_fields__ if name not in ("key_mode", "pattern"))
