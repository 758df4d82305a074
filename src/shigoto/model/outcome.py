"""What a worker says of a run (`Settlement`) and what the store answers (`Verdict`)."""

from enum import IntEnum, StrEnum

from msgspec import Struct

from shigoto.model.clock import Millis
from shigoto.model.job import FailureKind, LogLine

UNTOLD = ""  # the queue of a run, where nobody's word is taken for it
KEPT_RELEASES = 100  # a released run is kept for so many claims of its job; nothing else bounds them


class Ending(IntEnum):
    """How a run ended, as its worker saw it; the store decides what that means for the job."""

    COMPLETED = 1
    ERRORED = 2  # may be retried
    FAILED = 3  # must not be retried
    SNOOZED = 4
    RELEASED = 5  # given back unrun or cut short by a stop; counts as nothing
    CANCELLED = 6
    CRASHED = 7  # the process died under it


class LogTail(Struct, frozen=True, gc=False):
    """What a run has written since it was last told: new lines, and the oldest (`first`) that is still to be kept."""

    first: int
    lines: tuple[LogLine, ...]


class Settlement(Struct, frozen=True, kw_only=True, gc=False):
    """One run's end, guarded by (number, token, worker).

    `delay` is the wait before the next run for ERRORED, SNOOZED and CRASHED, computed by the retry policy; a RELEASED
    or CRASHED job keeps its run_at unless a delay is given. `alone` says of a crash that nobody else was in the
    process, so that it counts towards quarantine. `queue` spares the store a look at the job: it is taken at its word,
    unless it is UNTOLD. `ran` says whether the handler was called: a lease that was given
    back without that leaves no trace in the job's history.
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
    alone: bool = False
    ran: bool = True
    progress: float | None = None
    progress_text: str | None = None
    log: LogTail | None = None


def leaves_a_trace(settlement: Settlement) -> bool:
    """Whether a run that ended so belongs into the history of its job."""
    return settlement.ran or settlement.ending is not Ending.RELEASED


class Death(Struct, frozen=True, kw_only=True):
    """One job that was running when its worker's process died, and what is known of that death.

    `alone` says that nothing else ran there, so that it counts towards quarantine.
    """

    number: int
    error: str | None = None
    traceback: str | None = None
    delay: Millis | None = None
    alone: bool = False


class Verdict(StrEnum):
    """What became of a settlement."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"  # this very lease was settled before: the earlier try did commit
    LOST = "lost"  # the lease is no longer this worker's; nothing was written
    BUSY = "busy"  # somebody else has locked the job, so that nothing was written: try again


class Report(Struct, frozen=True, kw_only=True):
    """News of a run in progress, guarded like a settlement; fields that are None stay as they are."""

    number: int
    token: int
    progress: float | None = None
    progress_text: str | None = None
    checkpoint: str | None = None
    log: LogTail | None = None
