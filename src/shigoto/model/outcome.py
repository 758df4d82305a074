"""What a worker says of a run (`Settlement`) and what the store answers (`Verdict`)."""

from enum import IntEnum, StrEnum

from msgspec import Struct

from shigoto.model.clock import Millis
from shigoto.model.job import FailureKind


class Ending(IntEnum):
    """How a run ended, as its worker saw it; the store decides what that means for the job."""

    COMPLETED = 1
    ERRORED = 2  # may be retried
    FAILED = 3  # must not be retried
    SNOOZED = 4
    RELEASED = 5  # given back unrun or cut short by a stop; counts as nothing
    CANCELLED = 6
    CRASHED = 7  # the process died under it


class Settlement(Struct, frozen=True, kw_only=True):
    """One run's end, guarded by (number, token, worker).

    `delay` is the wait before the next run for ERRORED, SNOOZED and CRASHED, computed by the retry policy; a RELEASED
    job keeps its run_at unless a delay is given.
    """

    number: int
    token: int
    queue: str
    ending: Ending
    result: str | None = None
    error: str | None = None
    traceback: str | None = None
    failure_kind: FailureKind = FailureKind.ERROR
    delay: Millis | None = None
    progress: float | None = None
    progress_text: str | None = None


class Verdict(StrEnum):
    """What became of a settlement."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"  # this very lease was settled before: the earlier try did commit
    LOST = "lost"  # the lease is no longer this worker's; nothing was written


class Report(Struct, frozen=True, kw_only=True):
    """News of a run in progress, guarded like a settlement; fields that are None stay as they are."""

    number: int
    token: int
    progress: float | None = None
    progress_text: str | None = None
    checkpoint: str | None = None
