"""What will happen: the next ticks of a schedule, and what becomes of times that the clocks skip or show twice."""

from datetime import datetime, timedelta
from itertools import islice, pairwise, takewhile

from msgspec import Struct

from shigoto.model.clock import Millis, to_datetime
from shigoto.schedule.definition import Definition
from shigoto.schedule.firing import zone_of
from shigoto.schedule.recurrence import Cron, has_fixed_times, spelled_out, walls_between
from shigoto.schedule.zones import Seconds, stretches, wall, year_of, zone_called


class ClockChange(Struct, frozen=True, kw_only=True):
    """A moment at which the clocks of the zone are changed, and what that means for the schedule, if anything."""

    at: datetime  # the first instant after it, in local time
    forward: bool
    by: timedelta
    times: tuple[str, ...]  # on the wall, that are skipped or shown twice, and meant by the schedule
    meaning: str


def upcoming(given: Definition, after: Millis, to: Millis | None, limit: int) -> list[datetime]:
    """The ticks of a definition after an instant, in its own zone."""
    zone = zone_called(zone_of(given))
    end = given.until if to is None else to if given.until is None else min(to, given.until)
    ticks = takewhile(lambda at: end is None or at <= end, given.recurrence.after(after))
    return [to_datetime(at).astimezone(zone) for at in islice(ticks, limit)]


def clock_changes(given: Definition, after: Millis, to: Millis) -> list[ClockChange]:
    """The changes of the clocks in a stretch of time, for a schedule that goes by them."""
    cron = given.recurrence
    if not isinstance(cron, Cron):
        return []
    zone, since, until = zone_called(cron.tz), after // 1000, to // 1000
    found: list[ClockChange] = []
    for before, following in pairwise(stretches(since, year_of(until) + 1, zone)):
        if since < following.begin <= until and before.offset != following.offset:
            shown_to, shown_from = before.end + before.offset, following.begin + following.offset
            times = walls_between(cron, min(shown_to, shown_from), max(shown_to, shown_from))
            found.append(_change(cron, following.begin, shown_from - shown_to, times))
    return found


def _change(cron: Cron, at: Seconds, by: Seconds, times: list[Seconds]) -> ClockChange:
    local = to_datetime(at * 1000).astimezone(zone_called(cron.tz))
    return ClockChange(
        at=local,
        forward=by > 0,
        by=timedelta(seconds=abs(by)),
        times=tuple(f"{wall(each, 0):%H:%M:%S}".removesuffix(":00") for each in times),
        meaning=_meaning(cron, f"{local:%H:%M}", by, bool(times)),
    )


def _meaning(cron: Cron, then: str, by: Seconds, is_meant: bool) -> str:
    if not is_meant:
        return "nothing is due then"
    if by > 0:
        if not has_fixed_times(spelled_out(cron.expression)):
            return "not shown by the clocks, and not due"
        return (
            f"not shown by the clocks: due at {then}"
            if cron.gap == "after"
            else "not shown by the clocks: skipped"
        )
    if not has_fixed_times(spelled_out(cron.expression)) or cron.fold == "both":
        return "shown twice by the clocks: due both times"
    return "shown twice by the clocks: due the first time"
