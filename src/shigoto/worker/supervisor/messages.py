"""What a supervisor and its runner processes tell each other.

supervisor ──► runner   Start         everything it must know, once
                        Stop          stop (1), or hurry (2)
runner ──► supervisor   Hello         who it is and where its jobs are; from now on it may hold some
                        Ready         it is announced and begins to claim
                        Files         which of the user's files it has loaded, whenever that changes
                        Failed        it could not begin
                        Ended         it has stopped, and this is how
"""

from typing import Literal
from uuid import UUID

from msgspec import Struct

from shigoto.worker.process.source import Source
from shigoto.worker.stop import Reason

LogFormat = Literal["text", "json"]


class Start(Struct, frozen=True, kw_only=True, tag=True):
    """How to work, and where the app is. `parent` is the supervisor's process id, `slate` the number of places."""

    source: Source
    parent: int = 0
    slate: int = 0
    name: str | None = None
    queues: tuple[str, ...] | None = None
    concurrency: int = 100
    threads: int | None = None
    children: int | None = None
    drain: bool = False
    lease: float = 30.0
    poll: float = 1.0
    stop_timeout: float = 28.0
    max_jobs: int | None = None
    log_format: LogFormat = "text"
    log_level: str = "info"
    tell_files: bool = False


class Stop(Struct, frozen=True, tag=True):
    """Stop at level 1, hurry at level 2; a level that was reached already is no news."""

    level: int


class Hello(Struct, frozen=True, kw_only=True, tag=True):
    """The worker's id, and the address of the store, which means the same in every folder."""

    worker: UUID
    name: str
    url: str
    lease: float


class Ready(Struct, frozen=True, tag=True):
    """The store knows the worker, and it begins to claim."""


class Files(Struct, frozen=True, tag=True):
    """The files of modules that lie in the working directory or below."""

    paths: tuple[bytes, ...]


class Failed(Struct, frozen=True, tag=True):
    """Why it could not begin: the code of an error and its text."""

    code: str
    text: str


class Ended(Struct, frozen=True, tag=True):
    """How the worker ended; `unreleased` jobs could not be given back."""

    reason: Reason
    unreleased: int


Order = Start | Stop
News = Hello | Ready | Files | Failed | Ended
