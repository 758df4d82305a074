"""What a worker and its child processes tell each other.

    worker ──► child   Begin         everything it must know, once
                       Run           run this job
                       Tell          somebody wants this job cancelled, or the worker is about to stop
                       Warn          the run has reached its soft limit
                       Halt          the run shall end now, and so it will be counted
                       Leave         there will be no more jobs
    child ──► worker   Ready         it can take a job
                       Unfit         it never will, and why
                       Began         the run begins; if it dies before, that is not the job's doing
                       Said          what the handler has said: progress, log lines
                       Ended         the run has ended so

Most name the job they are about: words and runs cross on their way, and a thread that a handler left behind still
speaks of its own job while the next one runs.
"""

from uuid import UUID

from msgspec import Struct

from shigoto.model.job import Lease
from shigoto.model.worker import Ending, LogTail, Settlement
from shigoto.observe.log import LogSetup
from shigoto.worker.process.source import Source


class Begin(Struct, frozen=True, kw_only=True, tag=True):
    """Where the app is, on whose behalf jobs run, and how the log is written, if the worker knows."""

    source: Source
    worker: UUID
    log: LogSetup | None


class Run(Struct, frozen=True, tag=True):
    """Run this job; there is no other. After `within` seconds the child ends, whatever it is doing."""

    lease: Lease
    within: float | None = None


class Tell(Struct, frozen=True, kw_only=True, tag=True):
    """What the handler can see of its job's fate."""

    number: int
    token: int
    cancelled: bool = False
    stopping: bool = False


class Warn(Struct, frozen=True, kw_only=True, tag=True):
    """The run has reached its soft limit, which is said in these words."""

    number: int
    token: int
    text: str


class Halt(Struct, frozen=True, kw_only=True, tag=True):
    """The run shall end; if it gives in, as `wanted`."""

    number: int
    token: int
    wanted: Ending


class Leave(Struct, frozen=True, tag=True):
    """There will be no more jobs."""


class Ready(Struct, frozen=True, tag=True):
    """The child can take a job."""


class Unfit(Struct, frozen=True, tag=True):
    """The child cannot run jobs of this app."""

    error: str


class Began(Struct, frozen=True, tag=True):
    """The run begins."""


class Said(Struct, frozen=True, kw_only=True, tag=True):
    """What the handler has said; fields that are None are no news."""

    number: int
    token: int
    progress: float | None = None
    progress_text: str | None = None
    log: LogTail | None = None


class Ended(Struct, frozen=True, tag=True):
    """The run has ended."""

    settlement: Settlement


Order = Begin | Run | Tell | Warn | Halt | Leave
News = Ready | Unfit | Began | Said | Ended
