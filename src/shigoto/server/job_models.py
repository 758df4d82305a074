"""Requests and answers about jobs: structs, whose JSON Schemas are the documentation.

Times are RFC 3339 and have a time zone, durations are seconds. What a caller may leave out has a default here; None
stands for `null`, which means something only where a field says so.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from msgspec import UNSET, DecodeError, Meta, Raw, Struct, UnsetType, json

from shigoto.model.job import (
    MAX_PRIORITY,
    MIN_PRIORITY,
    Attempt,
    FailureKind,
    Job,
    KeyMode,
    LoggedLine,
    State,
)
from shigoto.model.secrets import presented, presented_attempts, presented_lines
from shigoto.model.time import Millis, Moment
from shigoto.options import MAX_CRASHES, MAX_KEY, MAX_TAG, MAX_TAGS, MAX_TENANT

V = TypeVar("V", bound=Struct)

MOST_JOBS = 1_000  # of one batch
MOST_ACTED_ON = 10_000  # jobs of one action
LONGEST_FILTER = 10_000  # letters

Name = Annotated[str, Meta(pattern="^[a-z0-9_][a-z0-9_.-]{0,99}$")]
Seconds = Annotated[float, Meta(ge=0, le=3_155_760_000)]
Filter = Annotated[str, Meta(max_length=LONGEST_FILTER)]


class Submission(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to store: the name of its task, its arguments, and what else is said of it.

    `timeout` null lifts the limit that the task has, and `max_crashes` null that on crashes. `allow_unknown` lets a job
    wait for a worker that knows the task, when nobody does yet.
    """

    task: Name
    payload: dict[str, Any] = {}
    id: UUID | None = None
    queue: Name | None = None
    priority: Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] | None = None
    delay: Seconds | None = None
    run_at: Moment | None = None
    expires: Seconds | None = None
    expires_at: Moment | None = None
    key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY)] | None = None
    key_mode: KeyMode | None = None
    retries: Annotated[int, Meta(ge=0, le=32_766)] | None = None
    timeout: Seconds | UnsetType | None = UNSET
    soft_timeout: Seconds | UnsetType | None = UNSET
    max_crashes: Annotated[int, Meta(ge=1, le=MAX_CRASHES)] | UnsetType | None = UNSET
    tenant: Annotated[str, Meta(max_length=MAX_TENANT)] | None = None
    tags: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=MAX_TAG)]], Meta(max_length=MAX_TAGS)
    ] = []
    meta: dict[str, Any] | None = None
    allow_unknown: bool = False


class Batch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs to store, all or none."""

    jobs: Annotated[list[Submission], Meta(min_length=1, max_length=MOST_JOBS)]


class Submitted(Struct, frozen=True, kw_only=True):
    """The job that now stands, and whether this request made it."""

    id: UUID
    number: int
    status: Literal["inserted", "existing", "replaced"]


class SubmittedBatch(Struct, frozen=True, kw_only=True):
    """The jobs that now stand, in the order of the request."""

    jobs: list[Submitted]


class JobView(Struct, frozen=True, kw_only=True):
    """A job as it is now. In lists `payload`, `result` and `meta` are there only if they were asked for."""

    id: UUID
    number: int
    task: str
    queue: str
    tenant: str
    state: State
    priority: int
    run_at: Moment
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    expires_at: Moment | None
    cancel_requested_at: Moment | None
    attempt: int
    failures: int
    crashes: int
    releases: int
    snoozes: int
    max_failures: int
    max_crashes: int | None
    suspect: bool
    alone: bool
    timeout: float | None
    soft_timeout: float | None
    key: str | None
    tags: list[str]
    progress: float | None
    progress_text: str | None
    error: str | None
    failure_kind: FailureKind | None
    worker: UUID | None
    status_url: str
    payload: Any = UNSET
    result: Any = UNSET
    meta: Any = UNSET


class JobPage(Struct, frozen=True, kw_only=True):
    """Jobs, the newest first; `next` is the `before` of the next page, null if this is the last."""

    jobs: list[JobView]
    next: int | None


class Count(Struct, frozen=True):
    """How many jobs match."""

    count: int


class AttemptView(Struct, frozen=True, kw_only=True):
    """One run that did not end completed."""

    run: int
    outcome: str
    error: str | None
    traceback: str | None
    started_at: Moment
    finished_at: Moment


class Attempts(Struct, frozen=True):
    """The runs of a job that did not end completed, the oldest first."""

    attempts: list[AttemptView]


class LineView(Struct, frozen=True, kw_only=True):
    """One line that a run has written."""

    run: int
    line: int
    at: Moment
    level: str
    text: str


class Lines(Struct, frozen=True):
    """The lines that the runs of a job have written, as far as they are kept, the oldest first."""

    lines: list[LineView]


class JobEvent(Struct, frozen=True, kw_only=True):
    """Something that has happened to a job."""

    at: Moment
    event: Literal["created", "started", "attempt", "cancel_requested", "ended"]
    run: int | None = None
    outcome: str | None = None
    error: str | None = None


class JobEvents(Struct, frozen=True):
    """What has happened to a job, in order."""

    events: list[JobEvent]


class Cancelling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job is cancelled: by force it is taken from the worker that runs it."""

    force: bool = False


class Empty(Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to say."""


class StateOf(Struct, frozen=True):
    """The state that a job is in now."""

    id: UUID
    state: State


class Action(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something to do to all jobs that match. Unless `dry_run` is false, it is only told what would be done; and then
    `confirm` must be at least the number of jobs that match."""

    action: Literal["cancel", "retry", "delete"]
    filter: Filter
    dry_run: bool = True
    confirm: Annotated[int, Meta(ge=0)] | None = None
    force: bool = False


class ActedOn(Struct, frozen=True, kw_only=True):
    """What was done, or would be: `matched` jobs of at most 10 000, of which `skipped` could not be. `more` match, or
    are left because it took too long: send the action again."""

    action: Literal["cancel", "retry", "delete"]
    dry_run: bool
    matched: int
    done: int
    skipped: int
    more: bool
    ids: list[UUID]  # of the first hundred


def alike(kind: type[V], source: object, **others: Any) -> V:
    """Something as callers see it: the fields of the same names as they are, and the others as they are given."""
    same = {name: getattr(source, name) for name in kind.__struct_fields__ if name not in others}
    return kind(**same, **others)


def view_of(job: Job, base: str, *, full: bool) -> JobView:
    """The job as callers see it; `base` is the path under which jobs are found."""
    job = presented(job)
    texts = {name: as_json(getattr(job, name)) if full else UNSET for name in ("payload", "result", "meta")}
    limits = {name: seconds(getattr(job, name)) for name in ("timeout", "soft_timeout")}
    return alike(JobView, job, tags=list(job.tags), status_url=f"{base}/{job.id}", **texts, **limits)


def attempts_of(attempts: Sequence[Attempt]) -> Attempts:
    """The runs as callers see them."""
    return Attempts([alike(AttemptView, each, run=each.token) for each in presented_attempts(attempts)])


def lines_of(lines: Sequence[LoggedLine]) -> Lines:
    """The lines as callers see them."""
    return Lines([alike(LineView, each, run=each.token) for each in presented_lines(lines)])


def events_of(job: Job, attempts: Sequence[Attempt]) -> JobEvents:
    """What has happened to a job, as far as it is kept."""
    job, attempts = presented(job), presented_attempts(attempts)
    events = [JobEvent(at=job.created_at, event="created")]
    for each in attempts:
        events.append(JobEvent(at=each.started_at, event="started", run=each.token))
        events.append(
            JobEvent(
                at=each.finished_at, event="attempt", run=each.token, outcome=each.outcome, error=each.error
            )
        )
    if job.started_at is not None and job.started_at not in [each.started_at for each in attempts]:
        events.append(JobEvent(at=job.started_at, event="started"))
    if job.cancel_requested_at is not None:
        events.append(JobEvent(at=job.cancel_requested_at, event="cancel_requested"))
    events.sort(key=lambda event: event.at)
    if job.finished_at is not None:
        events.append(JobEvent(at=job.finished_at, event="ended", outcome=job.state, error=job.error))
    return JobEvents(events)


def seconds(limit: Millis | None) -> float | None:
    """A duration as callers see it."""
    return None if limit is None else limit / 1000


def as_json(text: str | None) -> Any:
    """A JSON text as part of an answer. One that is none, because somebody wrote it into the store by hand, is told as
    a string: it must not break what stands around it."""
    if text is None:
        return None
    try:
        json.decode(text)
    except (DecodeError, UnicodeError, RecursionError, ValueError):
        return text
    return Raw(text.encode())
