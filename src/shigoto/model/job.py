"""A job as it is asked for (`JobSpec`), leased to a worker (`Lease`) and shown to people (`Job`), and the job filter.

The functions at the end say what a filter asks of a job, wherever engines must agree to the letter.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from string import ascii_lowercase, ascii_uppercase
from typing import Literal
from uuid import UUID

from msgspec import DecodeError, Raw, Struct, field, json, structs

from shigoto.model.time import Millis


class State(StrEnum):
    """The six states of a job; `scheduled` and `retrying` are views of pending, not states."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"

    @property
    def terminal(self) -> bool:
        """Whether the job has ended."""
        return self in TERMINAL


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


class FailureKind(StrEnum):
    """Why a job ended as failed."""

    ERROR = "error"
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    PAYLOAD_INVALID = "payload_invalid"
    RESULT_INVALID = "result_invalid"
    UNKNOWN_TASK = "unknown_task"
    EXPIRED = "expired"
    SNOOZED_OUT = "snoozed_out"
    SUPERSEDED = "superseded"
    CRASH_LOOP = "crash_loop"


KeyMode = Literal["keep", "replace", "preserve_run_at", "unsafe_dedupe"]
KEY_MODES: tuple[KeyMode, ...] = ("keep", "replace", "preserve_run_at", "unsafe_dedupe")

MIN_PRIORITY, MAX_PRIORITY = -32768, 32767
MAX_META = 16 * 1024  # bytes


class JobSpec(Struct, frozen=True, kw_only=True, gc=False):
    """What a caller asks for. Policy is already applied: every field is final but `delay`, which the store dates.

    `timeout` and `soft_timeout` None leave the limit to the worker's task, 0 means none. `alone` asks for a process of
    its own. The jobs of one call site differ in their first two fields only, which is quickly seen if they name the
    same `template`: the spec that they were copied from.
    """

    id: UUID
    payload: str
    task: str
    queue: str
    tenant: str = ""
    priority: int = 0
    delay: Millis = 0
    run_at: Millis | None = None
    expires_in: Millis | None = None
    expires_at: Millis | None = None
    key: str | None = None
    key_mode: KeyMode = "keep"
    max_failures: int = 6
    max_crashes: int | None = 3
    retry: str | None = None
    timeout: Millis | None = None
    soft_timeout: Millis | None = None
    tags: str | None = None
    meta: str | None = None
    alone: bool = False
    template: object = field(default=None, name="pattern")  # the name that it has in the record protocol

    def due(self, now: Millis) -> Millis:
        """When the job may start, if it is stored now."""
        return now + self.delay if self.run_at is None else self.run_at

    def expiry(self, now: Millis) -> Millis | None:
        """The instant after which it must not start, if it is stored now."""
        if self.expires_at is None and self.expires_in is not None:
            return now + self.expires_in
        return self.expires_at


class Enqueued(Struct, frozen=True, gc=False):
    """What became of one spec: the job that now stands, and whether this request made it."""

    id: UUID
    number: int
    status: Literal["inserted", "existing", "replaced"]


class Lease(Struct, frozen=True, array_like=True, gc=False):
    """One claimed job: the right to run it, and to settle it once, while `token` is its newest.

    `solo` says that the job is suspected of killing its process; `alone` that it must have one to itself, for that
    or another reason. The field order is the order of the columns that engines return from a claim: what most jobs do
    not have comes late, so that it can be left out. Nothing in it can refer back to it, so the garbage collector need
    not look (`gc=False`): thousands are held at a time.
    """

    number: int
    token: int
    id: UUID
    task: str
    queue: str
    attempt: int
    failures: int
    snoozes: int
    max_failures: int
    priority: int
    run_at: Millis
    claimed_at: Millis
    solo: bool = False
    tenant: str = ""
    key: str | None = None
    retry: str | None = None
    timeout: Millis | None = None
    soft_timeout: Millis | None = None
    tags: str | None = None
    meta: str | None = None
    checkpoint: str | None = None
    alone: bool = False
    payload: str = "{}"


class LogLine(Struct, frozen=True, array_like=True):
    """One line that a run wrote; `line` counts from 1 in each run."""

    line: int
    at: Millis
    level: str
    text: str


class LoggedLine(Struct, frozen=True, kw_only=True):
    """One line of one run, as people see it."""

    token: int
    line: int
    at: datetime
    level: str
    text: str


class Attempt(Struct, frozen=True, kw_only=True):
    """One run that did not end completed."""

    token: int
    outcome: str
    error: str | None
    traceback: str | None
    started_at: datetime
    finished_at: datetime


class Job(Struct, frozen=True, kw_only=True):
    """A job as people see it, a snapshot."""

    id: UUID
    number: int
    task: str
    queue: str
    tenant: str
    state: State
    payload: str
    priority: int
    run_at: datetime
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    releases: int = 0
    snoozes: int = 0
    max_failures: int
    max_crashes: int | None = 3
    suspect: bool = False
    alone: bool = False
    retry: str | None = None
    timeout: Millis | None = None
    soft_timeout: Millis | None = None
    key: str | None = None
    tags: tuple[str, ...] = ()
    meta: str | None = None
    progress: float | None = None
    progress_text: str | None = None
    result: str | None = None
    error: str | None = None
    failure_kind: FailureKind | None = None
    worker: UUID | None = None


View = Literal["scheduled", "retrying"]  # parts of pending that have a name of their own


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which jobs to find; every given field must match. Newest first by number, in pages by `before`.

    `worker` is the name, or the id as text, of the one that runs the job now. `error` is part of the job's error,
    whatever the case of ASCII letters. `since` is the earliest instant at which the job was stored. `args` are pairs of
    a dotted path into the payload and the text of what stands there: of a string itself, of anything else its JSON.
    """

    state: State | View | None = None
    queue: str | None = None
    task: str | None = None
    tenant: str | None = None
    key: str | None = None
    tag: str | None = None
    failure_kind: FailureKind | None = None
    worker: str | None = None
    error: str | None = None
    since: Millis | None = None
    args: tuple[tuple[str, str], ...] = ()
    before: int | None = None
    limit: int = 20


class Counts(Struct, kw_only=True):
    """How many jobs a queue holds by state; `scheduled` is the part of pending that is due later."""

    pending: int = 0
    scheduled: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    blocked: int = 0


class QueueSettings(Struct, frozen=True, kw_only=True):
    """What an operator has set for one queue; None means the default."""

    name: str
    paused: bool = False
    keep_completed_for: Millis | None = None
    keep_failed_for: Millis | None = None
    keep_cancelled_for: Millis | None = None
    max_pending: int | None = None  # more are refused where they come in by HTTP, command line or schedule


_MEMBERS = json.Decoder(dict[str, Raw])
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_NO_FILTER = JobFilter()


def has_args(payload: str, args: Sequence[tuple[str, str]]) -> bool:
    """Whether the payload has all of these values. One that cannot be read has none."""
    try:
        return all(_stands_at(payload, path, text) for path, text in args)
    except (DecodeError, UnicodeError, RecursionError):
        return False


def _stands_at(payload: str, path: str, text: str) -> bool:
    here: str | Raw = payload
    for name in path.split("."):
        members = _MEMBERS.decode(here)
        if name not in members:
            return False
        here = members[name]
    value: object = json.decode(here)
    return value == text if isinstance(value, str) else json.encode(value).decode() == text


def folded(text: str) -> str:
    """The text with small ASCII letters for capital ones; the letters of other alphabets stay as they are."""
    return text.translate(_LOWER)


def worker_id(text: str) -> UUID | None:
    """The id that the text means, if it is one and not only a name."""
    with suppress(ValueError):
        return UUID(text)
    return None


def asks_for_counters_only(wanted: JobFilter) -> bool:
    """Whether counts by queue and state tell how many match, so that nobody has to look."""
    rest = structs.replace(wanted, state=None, queue=None, before=None, limit=_NO_FILTER.limit)
    return rest == _NO_FILTER and wanted.state != "retrying"


def sum_counts(stats: Mapping[str, Counts], wanted: JobFilter) -> int:
    """How many match a filter that asks for counters only."""
    columns = [state.value for state in State] if wanted.state is None else [wanted.state]
    queues = [counts for queue, counts in stats.items() if wanted.queue in (None, queue)]
    return sum(structs.asdict(counts)[column] for counts in queues for column in columns)
