"""Another definition for a schedule that is there already: nothing that was due before vanishes without an entry."""

from msgspec.structs import replace

from shigoto.model.schedule import Change, Firing, Schedule
from shigoto.model.time import Millis
from shigoto.schedule.deciding import counted, passed_over, passed_unseen
from shigoto.schedule.definition import Definition, read, written
from shigoto.schedule.zones import ZoneMissing


def redefined(schedule: Schedule, definition: Definition, now: Millis) -> Change:
    """The schedule with another definition. Whatever it failed of may be mended by that, so it is tried again.

    What is due stays due, if the new definition has the same ticks up to now. If not, these are passed over; also where
    nobody knows the time zone that they were in, which is what another definition may be there to mend.
    """
    before = read(schedule.definition)
    changed = replace(schedule, definition=written(definition), failed=False, errors=0, error=None)
    if _same_until(before, definition, now):
        look_at = definition.next_after(min(schedule.decided_to, now))
        return Change(schedule=replace(changed, look_at=look_at), seen=schedule.revision)
    try:
        entries = passed_over(schedule, before, now).entries
    except ZoneMissing:
        entries = passed_unseen(schedule, now)
    return Change(
        schedule=replace(
            changed,
            held=False,
            pauses=(),
            decided_to=max(
                schedule.decided_to, now
            ),  # if the clock has gone back, whoever looks next goes back, too
            look_at=definition.next_after(now),
            counts=counted(schedule, entries),
            stretch=None,
        ),
        seen=schedule.revision,
        firings=tuple(Firing(entry=entry) for entry in entries),
    )


def _same_until(before: Definition, after: Definition, now: Millis) -> bool:
    """Whether both have the same ticks up to now."""
    ends = {each.until for each in (before, after) if each.until is not None and each.until < now}
    return before.recurrence == after.recurrence and (not ends or before.until == after.until)
