"""What people do to schedules, as operations: each reads, decides and changes in one transaction."""

from collections.abc import Callable
from uuid import UUID

from msgspec.structs import replace

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model.errors import (
    OptionInvalid,
    ScheduleInvalid,
    ScheduleNotFound,
    ScheduleTaken,
    StoreUnavailable,
    nearest,
)
from shigoto.model.schedule import Change, Schedule
from shigoto.model.text import plain_text, shown
from shigoto.model.time import Millis
from shigoto.options import check_name
from shigoto.schedule.deciding import passed_over, waits_for_pause, with_pause
from shigoto.schedule.declaring import HEARD_WITHIN
from shigoto.schedule.definition import Definition, read, written
from shigoto.schedule.firing import carried_out
from shigoto.schedule.options import expect_future
from shigoto.schedule.redefining import redefined

TRIES = 10

Alter = Callable[[Schedule, Millis], Change | None]
"""What becomes of a schedule as of now; None if it stays as it is."""


def adding(engine: Engine, name: str, definition: Definition, id: UUID) -> Op[Schedule]:
    """Store a new schedule, due from now on. Raises ScheduleTaken, ScheduleInvalid."""

    def steps() -> Steps[Schedule]:
        now = yield from engine.time().start()
        schedule = Schedule(
            id=id,
            name=name,
            definition=written(definition),
            look_at=expect_future(f"schedule {name!r}", definition, now),
            decided_to=now,
            created_at=now,
        )
        if not all((yield from engine.tick([Change(schedule=schedule, seen=0)]).start())):
            raise ScheduleTaken(f"There is a schedule {name!r} already. Update it, or choose another name.")
        return replace(schedule, revision=1)

    return Op(start=steps, rings=lambda _: True)


def altering(engine: Engine, name: str, alter: Alter) -> Op[Schedule]:
    """Change a schedule as it is at that moment. Raises ScheduleNotFound, and whatever `alter` does."""

    def steps() -> Steps[Schedule]:
        for _ in range(TRIES):
            now = yield from engine.time().start()
            schedule = yield from found(engine, name)
            change = alter(schedule, now)
            if change is None:
                return schedule
            if all((yield from engine.tick([change]).start())):
                return replace(change.schedule, revision=change.seen + 1)
        raise contended(name)

    return Op(start=steps, rings=lambda _: True)


def contended(name: str) -> StoreUnavailable:
    """Others were heard first, again and again."""
    return StoreUnavailable(f"The schedule {name!r} is changed by others all the time. Try again.")


def found(engine: Engine, name: str) -> Steps[Schedule]:
    """The schedule. Raises ScheduleNotFound."""
    wanted = _name(name)
    known = [] if wanted is None else (yield from engine.schedules([wanted]).start())
    if not known:
        names = [each.name for each in (yield from engine.schedules().start())]
        raise ScheduleNotFound(f"There is no schedule {shown(name)}.{nearest(name, names)}")
    return known[0]


def _name(given: object) -> str | None:
    """The name, or None if no schedule can have it. Raises ScheduleInvalid for what is no text."""
    name = plain_text(given)
    if name is None:
        raise ScheduleInvalid(f"The name of a schedule must be a text, not {shown(given)}.", "name")
    try:
        return check_name(name, "The schedule")
    except OptionInvalid:
        return None


def defining(engine: Engine, name: str) -> Op[Definition]:
    """All that was said about a schedule. Raises ScheduleNotFound."""

    def steps() -> Steps[Definition]:
        return read((yield from found(engine, name)).definition)

    return Op(start=steps, mode="read")


def removing(engine: Engine, name: str) -> Op[None]:
    """Forget a schedule with its history. Raises ScheduleNotFound, or ScheduleTaken if living code declares it."""

    def steps() -> Steps[None]:
        now = yield from engine.time().start()
        schedule = yield from found(engine, name)
        expect_free(schedule, now, "removed")
        yield from engine.remove_schedules([name]).start()

    return Op(start=steps)


def expect_free(schedule: Schedule, now: Millis, what: str) -> None:
    """Raise ScheduleTaken if living code declares the schedule: it would be as before at its next start."""
    if schedule.origin and schedule.declared_at >= now - HEARD_WITHIN:
        raise ScheduleTaken(
            f"The schedule {schedule.name!r} is declared by {schedule.origin}, and can be {what} only there."
            " You can pause it."
        )


def updated(schedule: Schedule, definition: Definition, now: Millis) -> Change:
    """Another definition, by somebody's will. Raises ScheduleTaken, or ScheduleInvalid if it would never be due."""
    expect_free(schedule, now, "changed")
    change = redefined(schedule, definition, now)
    if change.schedule.look_at is None:
        expect_future(f"schedule {schedule.name!r}", definition, now)
    return change


def paused(schedule: Schedule, now: Millis) -> Change | None:
    """Ticks are suppressed from now on; those before are decided as usual, by whoever looks next."""
    if schedule.paused:
        return None
    return Change(schedule=replace(schedule, paused_at=now), seen=schedule.revision)


def resumed(schedule: Schedule, now: Millis) -> Change | None:
    """It fires again. What was due before the pause, or before it has failed, is decided by whoever looks next; so are
    then the ticks that came in the pause, which are suppressed."""
    if not schedule.paused and not schedule.failed:
        return None
    definition = read(schedule.definition)
    going = replace(schedule, failed=False, errors=0, error=None, paused_at=None)
    if schedule.paused_at is not None and waits_for_pause(schedule, definition, now):
        going = replace(going, pauses=with_pause(schedule.pauses, (schedule.paused_at, now), definition))
    elif schedule.paused:
        passed = passed_over(schedule, definition, now)
        if passed.entries:
            return carried_out(going, definition, passed, None)
    look_at = definition.next_after(min(schedule.decided_to, now))
    return Change(schedule=replace(going, look_at=look_at), seen=schedule.revision)
