"""What a supervisor and its runner processes tell each other.

supervisor ──► runner   Start         everything it must know, once
                        Recycle       claim no more, and end when nothing runs any more
                        Stop          stop (1), or hurry (2)
runner ──► supervisor   Hello         who it is and where its jobs are; from now on it may hold some
                        Ready         it is announced and begins to claim
                        Files         which of the user's files it has loaded, whenever that changes
                        Counted       what it has counted since it last said so, for the metrics
                        Failed        it could not begin
                        Finishing     it claims no more, and ends when nothing runs any more
                        Ended         it has stopped, and this is how
"""

from typing import Literal
from uuid import UUID

from msgspec import Struct

from shigoto.model.time import Millis
from shigoto.model.worker import CONCURRENCY, LEASE, POLL, STOP_TIMEOUT
from shigoto.observe.meters import Sample
from shigoto.observe.sentry import Sentry
from shigoto.worker.process import Source
from shigoto.worker.stopping import Reason

LogFormat = Literal["text", "json"]

NO_START = "WORKER.NO_START"  # the code of an error that has no other


class Start(Struct, frozen=True, kw_only=True, tag=True):
    """How to work, and where the app is. `parent` is the supervisor's process id, `slate` the number of places."""

    source: Source
    parent: int = 0
    slate: int = 0
    name: str | None = None
    queues: tuple[str, ...] | None = None
    concurrency: int = CONCURRENCY
    threads: int | None = None
    children: int | None = None
    drain: bool = False
    ticks: bool = True
    lease: float = LEASE / 1000
    poll: float = POLL / 1000
    stop_timeout: float = STOP_TIMEOUT / 1000
    max_jobs: int | None = None
    any_role: bool = False
    log_format: LogFormat = "text"
    log_level: str = "info"
    tell_files: bool = False
    tell_counts: bool = False


class Stop(Struct, frozen=True, tag=True):
    """Stop at level 1, hurry at level 2; a level that was reached already is no news."""

    level: int


class Recycle(Struct, frozen=True, tag=True):
    """Finish what runs, however long it takes, and end."""


class Hello(Struct, frozen=True, kw_only=True, tag=True):
    """The worker's id, the address of the store, which means the same in every folder, what to sweep there, and who is
    to hear of jobs that fail by that."""

    worker: UUID
    name: str
    url: str
    lease: float
    unknown_after: Millis | None = None
    sentry: Sentry | None = None


class Ready(Struct, frozen=True, tag=True):
    """The store knows the worker, and it begins to claim."""


class Files(Struct, frozen=True, tag=True):
    """The files of modules that lie in the working directory or below."""

    paths: tuple[bytes, ...]


class Counted(Struct, frozen=True, tag=True):
    """What has happened since the last of these; told about once a second, and at the end."""

    samples: list[Sample]


class Failed(Struct, frozen=True, tag=True):
    """Why it could not begin: the code of an error and its text."""

    code: str
    text: str


class Finishing(Struct, frozen=True, tag=True):
    """It has run enough jobs, or was asked to; another one can take its place."""


class Ended(Struct, frozen=True, tag=True):
    """How the worker ended; `unreleased` jobs could not be given back."""

    reason: Reason
    unreleased: int


Order = Start | Recycle | Stop
News = Hello | Ready | Files | Counted | Failed | Finishing | Ended
