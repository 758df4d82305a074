"""What the doctor may know, and what it makes of it: the facts and the findings."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from shigoto.cli.target import UNSAID, Said
from shigoto.model.checkup import Checkup, FileFacts, LaneFacts, ServerFacts, StoreFacts
from shigoto.model.job import Counts, QueueSettings
from shigoto.model.schedule import Schedule
from shigoto.model.worker import WorkerRecord


class Level(StrEnum):
    """How bad it is; only a problem makes the doctor's exit code 1."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(Struct, frozen=True, kw_only=True):
    """What one check found, and what to do about it."""

    check: str
    level: Level
    text: str
    remedy: str | None = None


class Facts(Struct, frozen=True, kw_only=True):
    """All that the checks may know. `checkup` is for engines that look after themselves, `said` for remedies that are
    commands."""

    now: datetime
    python: str
    engine: str
    checkup: Checkup | None = None
    queues: dict[str, Counts] = {}
    settings: list[QueueSettings] = []
    workers: list[WorkerRecord] = []
    quarantined: int = 0
    schedules: list[Schedule] = []
    unreadable: dict[str, str] = {}  # schedules of which nobody here can tell when they are due, and why
    said: Said = UNSAID

    @property
    def store(self) -> StoreFacts | None:
        """The store from inside, if its engine could tell."""
        return None if self.checkup is None else self.checkup.store

    @property
    def file(self) -> FileFacts | None:
        """The store's file from outside, if it is one."""
        return None if self.checkup is None else self.checkup.file

    @property
    def server(self) -> ServerFacts | None:
        """The store's server, if it has one that could be reached."""
        return None if self.checkup is None else self.checkup.server

    @property
    def refused(self) -> bool:
        """Whether the store could not be opened, so that nothing is known of its jobs."""
        return self.checkup is not None and self.checkup.store is None

    @property
    def live(self) -> list[WorkerRecord]:
        """The workers whose lease is good."""
        return [worker for worker in self.workers if worker.lease_until >= self.now]

    @property
    def paused(self) -> set[str]:
        """The queues that are."""
        return {queue.name for queue in self.settings if queue.paused}

    @property
    def lanes(self) -> list[LaneFacts]:
        """What could run now, as far as that is known, without paused queues."""
        return (
            [] if self.store is None else [lane for lane in self.store.lanes if lane.queue not in self.paused]
        )

    def since(self, lanes: Sequence[LaneFacts]) -> timedelta:
        """How long the oldest job of these lanes has been ready."""
        return max((self.now - lane.oldest for lane in lanes), default=timedelta())
