"""What a test of schedules gets to hold: a store, and short ways to keep schedules in it."""

from typing import TypedDict, Unpack
from uuid import UUID

from msgspec.structs import replace

from conformance.engine_under_test import EngineUnderTest, SpecOptions
from shigoto.model.schedule import KEPT, Change, Due, Firing, Pause, Schedule, TickEntry, TickOutcome
from shigoto.model.time import Millis


class ScheduleFixtureOptions(TypedDict, total=False):
    """What tests say of a schedule."""

    definition: str
    origin: str
    paused_at: Millis | None
    pauses: tuple[Pause, ...]
    failed: bool
    waiting_for_overlap: bool
    look_at: Millis | None
    decided_to: Millis
    errors: int
    error: str | None
    counts: dict[str, int]
    declared_at: Millis


class ScheduleFixture:
    """A store, and short ways to keep schedules in it."""

    def __init__(self, store: EngineUnderTest) -> None:
        self.store = store
        self.engine = store.engine

    def add(self, name: str = "nightly", **options: Unpack[ScheduleFixtureOptions]) -> Schedule:
        """Store a schedule that is due now, unless something else is said."""
        now = self.store.clock.now
        plain = Schedule(
            id=self.store.new_id(),
            name=name,
            definition="{}",
            look_at=now,
            decided_to=now - 1,
            created_at=now,
        )
        schedule = replace(plain, **options)
        assert self.tick(Change(schedule=schedule, seen=0)) == [True]
        return self.get(name)

    def tick(self, *changes: Change) -> list[bool]:
        """Change schedules, and tell which changes were heard."""
        return [done is not None for done in self.engine.run(self.engine.tick(changes))]

    def fire(
        self,
        schedule: Schedule,
        at: Millis,
        outcome: TickOutcome = TickOutcome.FIRED,
        *,
        cancel: tuple[UUID, ...] = (),
        **options: Unpack[SpecOptions],
    ) -> bool:
        """Fire one tick of a schedule, as it was seen."""
        firing = self.firing(schedule, at, outcome, **options)
        change = Change(schedule=schedule, seen=schedule.revision, firings=(firing,), cancel=cancel)
        return self.tick(change)[0]

    def firing(
        self,
        schedule: Schedule,
        at: Millis,
        outcome: TickOutcome = TickOutcome.FIRED,
        **options: Unpack[SpecOptions],
    ) -> Firing:
        """A tick, with a job if it fires."""
        now = self.store.clock.now
        if not outcome.fires:
            return Firing(entry=TickEntry(at=at, outcome=outcome, decided_at=now))
        spec = replace(self.store.spec(id=schedule.job_id(at)), **options)
        return Firing(entry=TickEntry(at=at, outcome=outcome, decided_at=now, job=spec.id), spec=spec)

    def get(self, name: str = "nightly") -> Schedule:
        """The schedule as it stands."""
        [schedule] = self.engine.run(self.engine.schedules([name]))
        return schedule

    def due(self, *declared: str, limit: int = 100) -> Due:
        """What is due."""
        return self.engine.run(self.engine.due(declared, limit))

    def names(self, *declared: str, limit: int = 100) -> list[str]:
        """The names of what is due."""
        return [each.schedule.name for each in self.due(*declared, limit=limit).schedules]

    def history(self, name: str = "nightly", *, limit: int = KEPT + 10) -> list[TickEntry]:
        """The entries of a schedule, the oldest first."""
        return self.engine.run(self.engine.history(name, limit=limit))[::-1]
