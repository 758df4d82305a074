"""A preview of a schedule: its next ticks, and the effect of clock changes on them."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Literal

from msgspec import Struct

from shigoto.model.time import Millis, to_datetime, to_millis
from shigoto.schedule import recurrence
from shigoto.schedule.definition import Definition
from shigoto.schedule.recurrence import Cron, Seconds

Fate = Literal["after", "skipped", "first", "both"]

LAST: Millis = to_millis(datetime(recurrence.LAST_YEAR + 1, 1, 1, tzinfo=UTC)) - 1
NAMED = 3  # times on the wall, in a sentence


class ClockChange(Struct, frozen=True, kw_only=True):
    """A moment at which the clocks of the zone are changed, and what that means for the schedule."""

    at: datetime  # the first instant after it, in local time
    by: timedelta  # forward, or back if negative
    # On the wall, that are skipped or shown twice, and meant by the schedule; at most ten.
    times: tuple[str, ...]
    fate: Fate  # of such times

    @property
    def shown_before(self) -> datetime:
        """What the clocks would show if nobody had changed them."""
        return self.at.replace(tzinfo=None) - self.by

    def sentence(self) -> str:
        """What happens: "The clocks go forward from 02:00 to 03:00: 02:30 does not exist, runs at 03:00."."""
        way = "forward" if self.by > timedelta(0) else "back"
        change = f"The clocks go {way} from {_clock(self.shown_before)} to {_clock(self.at)}"
        return f"{change}: {self._meaning()}."

    def _meaning(self) -> str:
        if not self.times:
            return "nothing is due then"
        one = len(self.times) == 1
        named = ", ".join(self.times[:NAMED]) + (", …" if len(self.times) > NAMED else "")
        if self.fate in ("first", "both"):
            when = "the first time" if self.fate == "first" else "both times"
            return f"{named} {'comes' if one else 'come'} twice, {'runs' if one else 'run'} {when}"
        what = f"{named} {'does' if one else 'do'} not exist"
        if self.fate == "after":
            return f"{what}, {'runs' if one else 'run once'} at {_clock(self.at)}"
        return f"{what}, {'is' if one else 'are'} left out"


def upcoming(given: Definition, after: Millis, to: Millis | None, limit: int) -> list[datetime]:
    """The ticks of a definition after an instant, in its own zone."""
    zone = recurrence.zone_called(given.zone)
    end = min(LAST, LAST if to is None else to, LAST if given.until is None else given.until)
    ticks = takewhile(lambda at: at <= end, given.recurrence.after(after))
    return [to_datetime(at).astimezone(zone) for at in islice(ticks, limit)]


def clock_changes(given: Definition, after: Millis, to: Millis) -> list[ClockChange]:
    """The changes of the clocks in a stretch of time, for a schedule that goes by them."""
    cron = given.recurrence
    if not isinstance(cron, Cron):
        return []
    zone, since, until = recurrence.zone_called(cron.tz), after // 1000, to // 1000
    found: list[ClockChange] = []
    for before, following in pairwise(recurrence.seasons(since, recurrence.year_of(until) + 1, zone)):
        if since < following.begin <= until and before.offset != following.offset:
            shown_to, shown_from = before.end + before.offset, following.begin + following.offset
            times = recurrence.walls_between(cron, min(shown_to, shown_from), max(shown_to, shown_from))
            found.append(_change(cron, following.begin, shown_from - shown_to, times))
    return found


def _change(cron: Cron, at: Seconds, by: Seconds, times: list[Seconds]) -> ClockChange:
    return ClockChange(
        at=to_datetime(at * 1000).astimezone(recurrence.zone_called(cron.tz)),
        by=timedelta(seconds=by),
        times=tuple(_clock(recurrence.wall(each, 0)) for each in times),
        fate=_fate(cron, by),
    )


def _fate(cron: Cron, by: Seconds) -> Fate:
    fixed = recurrence.has_fixed_times(recurrence.spelled_out(cron.expression))
    if by > 0:
        return "after" if fixed and cron.gap == "after" else "skipped"
    return "first" if fixed and cron.fold == "first" else "both"


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}".removesuffix(":00")
