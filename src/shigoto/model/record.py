"""Jobs and schedules as they travel from one store to another: whole, with everything that is known of them.

Texts that are JSON (payload, result, tags, meta, checkpoint) stay texts, so that they arrive to the letter. Times are
integer milliseconds since the Unix epoch. What is the same for most jobs may be left out.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, TypeVar
from uuid import UUID

from msgspec import Meta, Struct

from shigoto.model.job import FailureKind, State
from shigoto.model.schedule import TickOutcome

LARGEST = 2**63 - 1
LATEST = 2**53  # milliseconds; a thousand of them can still be added up
# What the columns of every store can hold.
Number = Annotated[int, Meta(ge=1, le=LARGEST)]
Instant = Annotated[int, Meta(ge=-LATEST, le=LATEST)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Priority = Annotated[int, Meta(ge=-32768, le=32767)]

MOST_JOBS = 1_000
MOST_BYTES = 4 * 1024 * 1024
Weight = tuple[int, int]  # of one job: its number, and about how many characters it has
T = TypeVar("T")


class AttemptRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One run that did not end completed."""

    token: Count
    outcome: str
    started_at: Instant
    finished_at: Instant
    error: str | None = None
    traceback: str | None = None


class LineRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line that a run has written."""

    token: Count
    line: Count
    at: Instant
    level: str
    text: str


class Record(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="kind"):
    """One thing that moves; its kind is told beside it."""


class JobRecord(Record, frozen=True, kw_only=True, tag="job"):
    """One job. `started_at` is that of the run in hand, or of the last one if the job has ended.

    `holds_key` says that it is the newest job that took its key, `unmet` how many others a blocked one waits for.
    """

    number: Number
    id: UUID
    task: str
    queue: str
    state: State
    payload: str
    created_at: Instant
    run_at: Instant
    max_failures: Count
    max_crashes: Count | None
    priority: Priority = 0
    tenant: str = ""
    key: str | None = None
    holds_key: bool = False
    expires_at: Instant | None = None
    retry: str | None = None
    timeout: Instant | None = None
    soft_timeout: Instant | None = None
    tags: str | None = None
    meta: str | None = None
    alone: bool = False
    token: Count = 0
    settled_token: Count = 0
    failures: Count = 0
    crashes: Count = 0
    solo_crashes: Count = 0
    releases: Count = 0
    snoozes: Count = 0
    suspect: bool = False
    unmet: Count = 0
    superseded: bool = False
    started_at: Instant | None = None
    finished_at: Instant | None = None
    cancel_requested_at: Instant | None = None
    failure_kind: FailureKind | None = None
    error: str | None = None
    result: str | None = None
    progress: float | None = None
    progress_text: str | None = None
    checkpoint: str | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    log: tuple[LineRecord, ...] = ()


class QueueRecord(Record, frozen=True, kw_only=True, tag="queue"):
    """What an operator has set for one queue."""

    name: str
    paused: bool = False
    keep_completed_for: Instant | None = None
    keep_failed_for: Instant | None = None
    keep_cancelled_for: Instant | None = None
    max_pending: Annotated[int, Meta(ge=1)] | None = None


class StoredTick(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of the history of a schedule, as `model.schedule.TickEntry` has it."""

    at: Instant
    outcome: TickOutcome
    decided_at: Instant
    job: UUID | None = None
    until: Instant | None = None
    count: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1


class StoredSchedule(Record, frozen=True, kw_only=True, tag="schedule"):
    """One schedule, as `model.schedule.Schedule` has it, with its history, the oldest first. `number` is that of `job`,
    the last one that it has fired."""

    name: str
    id: UUID
    revision: Number
    definition: str
    origin: str = ""
    paused_at: Instant | None = None
    pauses: tuple[tuple[Instant, Instant], ...] = ()
    failed: bool = False
    held: bool = False
    look_at: Instant | None = None
    decided_to: Instant
    job: UUID | None = None
    number: Number | None = None
    errors: Count = 0
    error: str | None = None
    counts: dict[str, Annotated[int, Meta(ge=0, le=LARGEST)]] = {}
    created_at: Instant
    declared_at: Instant = 0
    history: tuple[StoredTick, ...] = ()


def weight_of(entries: int) -> int:
    """About how many characters a schedule with such a history has."""
    return 1_000 + 100 * entries


def portions(weights: Iterable[tuple[T, int]]) -> Iterator[list[T]]:
    """What was weighed, in its order, in groups that fit into memory whatever the jobs are like."""
    group: list[T] = []
    size = 0
    for each, weight in weights:
        if group and (len(group) == MOST_JOBS or size + weight > MOST_BYTES):
            yield group
            group, size = [], 0
        group.append(each)
        size += weight
    if group:
        yield group
