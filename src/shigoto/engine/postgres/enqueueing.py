"""T1 and T17: jobs come in.

Jobs that differ only in id and payload go in together, by the function `enqueue`: what they share is told once, and
ids and payloads are two arrays; one by itself goes in by `enqueue_one`, which needs no arrays. Both expect the best; a
known id, or a lane that is not there yet, is an error, and then `enqueue_each` does the same with more care. So do
callers' transactions, which an error would end, and batches in which hardly two jobs are alike.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from msgspec import json

from shigoto.engine.op import WRITE, Brief
from shigoto.engine.postgres import keyed
from shigoto.engine.postgres.arrays import text_array, uuid_array
from shigoto.engine.postgres.statement import RING, Encoded
from shigoto.engine.postgres.wire import encode
from shigoto.engine.sql.commands import Statement, Steps, sql
from shigoto.model.job import Enqueued, JobSpec

AT_ONCE = 1_000  # jobs of one statement
MOST_TEXT = 32 * 1024 * 1024  # characters of payloads in one statement; PostgreSQL takes less than a gigabyte
ALIKE = 50  # jobs of a stretch on average, for which it is worth a statement of its own
MOST_PATTERNS = 1_000

Lane = tuple[str, str, bool]

UNEXPECTED = (psycopg.errors.UniqueViolation, psycopg.errors.NoDataFound)


def is_single(specs: Sequence[JobSpec]) -> bool:
    """Whether one statement is enough, in the ordinary case."""
    return all(spec.key is None for spec in specs) and len(portions(specs)) == 1


def portions(specs: Sequence[JobSpec]) -> list[Sequence[JobSpec]]:
    """Cut them where they would be too much for one statement."""
    if len(specs) == 1:
        return [specs]
    cut: list[Sequence[JobSpec]] = []
    first, size = 0, 0
    for at, spec in enumerate(specs):
        size += len(spec.payload)
        if at > first and (at - first == AT_ONCE or size > MOST_TEXT):
            cut.append(specs[first:at])
            first, size = at, len(spec.payload)
    return [*cut, specs[first:]]


class Patterns:
    """What the jobs of one call site share, encoded once for all of them.

    A sync enqueue waits for the server most of the time, and whatever it runs then comes from a cold cache: to encode
    these sixteen values each time was a sixth of what a client does for one job.
    """

    def __init__(self) -> None:
        # By the place in memory of the pattern, which is kept beside it, so that nothing else gets that place.
        self._known: dict[int, tuple[object, Encoded]] = {}

    def shared(self, spec: JobSpec) -> Encoded:
        """What this job shares with others of its pattern."""
        pattern = spec.pattern
        known = self._known.get(id(pattern))
        if known is not None and known[0] is pattern:
            return known[1]
        request = encode(b"", _shared(spec), bool)
        encoded = Encoded(request.values, request.formats or ())
        if pattern is not None:
            if len(self._known) >= MOST_PATTERNS:
                self._known.clear()
            self._known[id(pattern)] = (pattern, encoded)
        return encoded


def one(spec: JobSpec, patterns: Patterns) -> Brief[list[Enqueued]]:
    """One job without a key, in the ordinary case."""
    return Brief(
        command=lambda: sql("enqueue_one", patterns.shared(spec), spec.id.bytes, spec.payload, RING),
        value=lambda answer: [Enqueued(spec.id, answer.fetchone()[0], "inserted")],
        unexpected=UNEXPECTED,
    )


def enqueue(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Store the jobs in list order and answer for each."""
    if any(spec.key is not None for spec in specs):
        return (yield from _keyed(specs))
    stretches = _stretches(specs)
    if len(stretches) * ALIKE > len(specs) and len(stretches) > 1:
        return (yield from enqueue_each(specs))
    if is_single(specs) and len(stretches) == 1:
        try:
            return (yield from _enqueue_alike(specs))
        except UNEXPECTED:
            return (yield from enqueue_each(specs))
    return (yield from _enqueue_stretches(specs, stretches))


def enqueue_joined(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """The same inside a caller's transaction, which an error would end."""
    if any(spec.key is not None for spec in specs):
        return (yield from _keyed(specs))
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


def _enqueue_stretches(
    specs: Sequence[JobSpec], stretches: Sequence[Sequence[JobSpec]]
) -> Steps[list[Enqueued]]:
    yield WRITE
    yield Statement("SAVEPOINT before_jobs")
    try:
        answers: list[Enqueued] = []
        for alike in stretches:
            for some in portions(alike):
                answers += yield from _enqueue_alike(some)
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


def _keyed(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Jobs of which some have keys."""
    [now] = (yield sql("now")).fetchone()
    yield from add_lanes(lanes(specs))
    cut = portions(specs)
    yield from keyed.lock(specs, in_portions=len(cut) > 1)
    answers: list[Enqueued] = []
    for some in cut:
        answers += yield from keyed.enqueue(now, some, enqueue_each)
    return answers


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
