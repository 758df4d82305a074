"""A schedule as the store keeps it, and what became of each of its occurrences.

The store knows when somebody has to look at a schedule, and guards every change; what an occurrence is and what to do
with it is decided above (`shigoto.schedule`). A *tick* is one nominal occurrence: a schedule and an instant.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal
from uuid import UUID, uuid5

from msgspec import Struct, field
from msgspec.structs import replace

from shigoto.model.job import JobSpec
from shigoto.model.time import Millis

CLOCK_JUMPED_BACK: Millis = 60_000
"""A schedule that has reached further ahead than this was looked at by a clock that has gone back since."""
SOON: Millis = 60_000
"""One that waits for a job, or for another try, is looked at again within this. The stores know it by themselves."""

Status = Literal["active", "paused", "failed", "ended", "undeclared", "unreadable"]

Pause = tuple[Millis, Millis]
"""From when to when the ticks of a schedule were suppressed: those after the one, up to the other."""

KEPT = 1_000
"""Entries of one schedule that are kept."""


class TickOutcome(StrEnum):
    """What became of a tick."""

    FIRED = "fired"
    CAUGHT_UP = "caught_up"  # fired late, because nobody was there at its time
    SKIPPED = "skipped"  # the job of an earlier tick had not ended
    MISSED = "missed"  # nobody was there at its time, and the schedule does not catch up so far
    SUPPRESSED = "suppressed"  # the schedule was paused
    BACKFILLED = "backfilled"  # fired later, because somebody asked for it
    RUN_NOW = "run_now"  # no occurrence: somebody wanted a run at once

    @property
    def fires(self) -> bool:
        """Whether there is a job for it."""
        return self in FIRING

    @property
    def leads(self) -> bool:
        """Whether its job is the one before for the next tick; what somebody asked for is beside the ticks."""
        return self in LEADING


LEADING = frozenset({TickOutcome.FIRED, TickOutcome.CAUGHT_UP})
FIRING = LEADING | {TickOutcome.BACKFILLED, TickOutcome.RUN_NOW}


class TickEntry(Struct, frozen=True, kw_only=True):
    """A line of the history: what became of a tick. One that did not fire may stand for `count`, up to `until`."""

    at: Millis
    outcome: TickOutcome
    decided_at: Millis
    job: UUID | None = None
    until: Millis | None = None
    count: int = 1

    def spans(self, at: Millis) -> bool:
        """Whether it tells of a tick at that instant, if there was one."""
        return self.at <= at <= (self.until or self.at)


class Schedule(Struct, frozen=True, kw_only=True):
    """One row: what it is (`definition`, for those above to read), and how far it has come.

    Every change raises `revision` by one and names the one it has seen, so of two that decide at once only one is
    heard. Everything up to `decided_to` is in the history; at `look_at` somebody has to look again, never if None.
    """

    id: UUID
    name: str
    revision: int = 0
    definition: str
    origin: str = ""  # the function that declares it; empty if it was added while the system ran
    paused_at: Millis | None = None  # since when its ticks are suppressed, until somebody resumes it
    failed: bool = False  # it could not be submitted too often, and waits for somebody to resume it
    # A tick waits for the job of the one before; `held` in stores and in the record protocol.
    waiting_for_overlap: bool = field(default=False, name="held")
    look_at: Millis | None = None
    decided_to: Millis
    job: UUID | None = None  # that of the last tick which fired by itself, by which overlap is judged
    errors: int = 0  # submissions in a row that did not work
    error: str | None = None
    counts: dict[str, int] = {}  # of ticks, by outcome
    created_at: Millis
    declared_at: Millis = 0  # when a process that declares it was last heard of
    # The entry of its newest ticks, if none of them fired: the next may join them.
    stretch: TickEntry | None = None
    # Those that have ended, in order, while ticks from before them are to be decided.
    pauses: tuple[Pause, ...] = ()

    @property
    def paused(self) -> bool:
        return self.paused_at is not None

    @property
    def reached(self) -> Millis:
        """How far the clock had come, at least, when it was last looked at."""
        waits = self.waiting_for_overlap or self.errors > 0
        return max(self.decided_to, (self.look_at or 0) - SOON) if waits else self.decided_to

    def job_id(self, at: Millis) -> UUID:
        """The id of the job for a tick: however often it is stored, it is one job."""
        return uuid5(self.id, str(at))


class Firing(Struct, frozen=True, kw_only=True):
    """An entry to be made, and the job that goes with it. Of its ticks `known` were written down before; then `since`
    is the first of the others."""

    entry: TickEntry
    spec: JobSpec | None = None
    known: int = 0
    since: Millis | None = None

    @property
    def at(self) -> Millis:
        """The first tick that it decides."""
        return self.entry.at if self.since is None else self.since

    @property
    def ticks(self) -> int:
        """How many ticks it decides."""
        return self.entry.count - self.known


class Change(Struct, frozen=True, kw_only=True):
    """What a schedule is to be, if it is still the one of this id and its revision still `seen` (0: if there is none of
    this name), and what goes with it, all in one transaction. `cancel` names jobs that make room for the new one.
    If it `removes`, the schedule is forgotten then, with its history. `back_to` is where a clock is that has gone back:
    what is written down of later ticks is forgotten before all else, but for those that have fired. So is what it
    `forgets`: entries of ticks of which each has another by now. That does not change the counts.
    """

    schedule: Schedule
    seen: int
    firings: tuple[Firing, ...] = ()
    cancel: tuple[UUID, ...] = ()
    removes: bool = False
    back_to: Millis | None = None
    forgets: tuple[Millis, ...] = ()

    @property
    def sight(self) -> tuple[UUID, int] | None:
        """Which schedule was seen, and as what: one that was removed and added again begins with the same revisions."""
        return (self.schedule.id, self.seen) if self.seen else None

    def without(self, fired: Collection[Millis]) -> "Change":
        """What is left of it if ticks have fired before: those are not counted again, nor does anything make room."""
        before = [sum(firing.entry.spans(at) for at in fired) for firing in self.firings]
        if not any(before):
            return self
        counts = Counter(self.schedule.counts)
        left: list[Firing] = []
        for firing, known in zip(self.firings, before, strict=True):
            entry = firing.entry
            if not known or not firing.ticks:  # or all of it was written down before, without those
                left.append(firing)
            elif entry.count > known:
                # The others stay written down, from right behind the first on if that has fired.
                counts[entry.outcome] -= known
                at = entry.at + 1 if entry.at in fired else entry.at
                left.append(replace(firing, entry=replace(entry, at=at, count=entry.count - known)))
            else:
                counts[entry.outcome] -= firing.ticks
        new = tuple(left)
        stretch = self.schedule.stretch
        is_broken = stretch is not None and any(stretch.spans(at) for at in fired)
        return replace(
            self,
            schedule=replace(self.schedule, counts=dict(+counts), stretch=None if is_broken else stretch),
            firings=new,
            cancel=self.cancel if any(firing.spec is not None for firing in new) else (),
        )

    def forgetting(self, entries: Iterable[tuple[str, int]]) -> "Change":
        """The same without what is forgotten of later ticks, by outcome and count."""
        counts = Counter(self.schedule.counts)
        for outcome, count in entries:
            counts[outcome] -= count
        return replace(self, schedule=replace(self.schedule, counts=dict(+counts)))


class DueSchedule(Struct, frozen=True, kw_only=True):
    """A schedule that somebody has to look at; `busy` says that the job of its last tick has not ended. What is `known`
    of its ticks is asked for where the clock has gone back; no engine tells it by itself."""

    schedule: Schedule
    busy: bool
    known: tuple[TickEntry, ...] = ()


class Due(Struct, frozen=True, kw_only=True):
    """What is due as of `now`, the longest overdue first, and in how many milliseconds there is more, if ever."""

    now: Millis
    schedules: list[DueSchedule]
    next_in: Millis | None


class TickRecord(Struct, frozen=True, kw_only=True):
    """A line of the history as people see it."""

    at: datetime
    outcome: TickOutcome
    decided_at: datetime
    job: UUID | None = None
    until: datetime | None = None
    count: int = 1

    @property
    def lateness(self) -> float:
        """By how many seconds it was decided after its time."""
        return (self.decided_at - self.at).total_seconds()


class ScheduleRecord(Struct, frozen=True, kw_only=True):
    """A schedule as people see it, a snapshot."""

    name: str
    when: str  # the expression, or `every 5m`, or `at …`
    tz: str
    task: str | None  # None if that is for its code to say
    queue: str | None
    payload: str | None  # the arguments, as JSON, as they may be shown; None if they are for its code to say
    status: Status
    next_at: datetime | None
    origin: str | None  # the function that declares it; None if it was added while the system ran
    catch_up: Literal["none", "latest", "all"]
    catch_up_most: int
    catch_up_within: timedelta | None
    overlap: Literal["allow", "skip", "queue", "cancel"]
    jitter: timedelta
    until: datetime | None
    last_job: UUID | None
    errors: int
    error: str | None
    counts: dict[str, int]
    created_at: datetime
    when_failed: Literal["keep", "remove"] = "keep"
