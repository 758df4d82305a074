"""Recurrence: a cron expression in a time zone, an interval, or one instant.

Each is an iterator over instants after a given one, and nothing else: no clock, no store. What a cron expression means
when the clocks are changed is decided here and not in a library, so that it can be said in two sentences:

- An expression with fixed times (minute and hour both without a leading `*`) means times on the wall. One that the
  clocks leap over is due at the first instant after the leap, or not at all (`gap`); one that they show twice is due
  the first time, or both times (`fold`).
- Any other is due at every instant whose local time matches: each hour is an hour, also the one that comes twice.

Of a time zone are read its seasons, in which nobody changes the clocks. Instants there are whole seconds since the
Unix epoch; times on the wall are naive datetimes.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim
from msgspec import Struct

from shigoto.model.errors import ScheduleInvalid
from shigoto.model.text import shown
from shigoto.model.time import Millis, to_datetime
from shigoto.options import Fold, Gap

Seconds = int

EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
DAY: Seconds = 86_400
FIRST_YEAR, LAST_YEAR = 2, 9_998  # those of which every instant has a local time in every zone
WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
HORIZON = 50  # years without an occurrence: there is none. 29 February meets every weekday within 40
NEVER: Seconds = 2**62


class ZoneMissing(ScheduleInvalid, KeyError):
    """A time zone is not known here; it may well be elsewhere."""

    __str__ = Exception.__str__  # not that of KeyError, which quotes the text


class Season(Struct, frozen=True):
    """A time in which nobody changes the clocks: from `begin` until before `end`, by UTC."""

    begin: Seconds
    end: Seconds
    offset: Seconds  # how far the clocks are ahead of UTC


def wall(at: Seconds, offset: Seconds) -> datetime:
    """What clocks show at an instant that are so far ahead of UTC."""
    return EPOCH + timedelta(seconds=at + offset)


def number(local: datetime) -> Seconds:
    """A time on the wall as a number: the instant that it is in UTC."""
    return (local - EPOCH) // timedelta(seconds=1)


def offset_at(at: Seconds, zone: tzinfo) -> Seconds:
    """How many seconds the clocks of a zone are ahead of UTC at an instant."""
    ahead = datetime.fromtimestamp(at, zone).utcoffset()
    return 0 if ahead is None else ahead // timedelta(seconds=1)


def zone_called(name: str) -> tzinfo:
    """The zone of this name, read once; UTC is there also where no others are. Raises ZoneMissing, or what `ZoneInfo`
    does for a name that cannot be one."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except ZoneInfoNotFoundError as error:
        raise ZoneMissing(
            f"This system does not know the time zone {shown(name)}. `pip install tzdata` brings all there are.",
            "tz",
        ) from error


def year_of(at: Seconds) -> int:
    """The year of an instant, by UTC; the first or the last one that a calendar has, for instants beyond."""
    return to_datetime(at * 1000).year


def seasons(since: Seconds, until_year: int, zone: tzinfo) -> Iterator[Season]:
    """The seasons of a zone from the one that has `since` in it, to the end of a year, as far as calendars go.

    One of them may be cut in two by the end of a year, where nothing changes.
    """
    for year in range(max(FIRST_YEAR, year_of(since)), min(LAST_YEAR, until_year) + 1):
        for season in _seasons_of(year, zone):
            if season.end > since:
                yield season


@lru_cache(maxsize=4_096)
def _seasons_of(year: int, zone: tzinfo) -> tuple[Season, ...]:
    """Those of one year of UTC. No zone changes its clocks twice within a day."""
    found: list[Season] = []
    begin = at = _new_year(year)
    end = _new_year(year + 1)
    while at < end:
        following = min(at + DAY, end)
        if offset_at(following, zone) != offset_at(at, zone):
            moment = _change_between(at, following, zone)
            if moment < end:
                found.append(Season(begin, moment, offset_at(begin, zone)))
                begin = moment
        at = following
    return (*found, Season(begin, end, offset_at(begin, zone)))


def _change_between(low: Seconds, high: Seconds, zone: tzinfo) -> Seconds:
    """The first second at which the clocks show what they show at `high`."""
    after = offset_at(high, zone)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if offset_at(middle, zone) == after else (middle, high)
    return high


def _new_year(year: int) -> Seconds:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp())


class Cron(Struct, frozen=True, tag="cron"):
    """Due whenever the local time of a zone matches an expression of five fields, or six with seconds first."""

    expression: str
    tz: str = "UTC"
    gap: Gap = "after"
    fold: Fold = "first"

    def after(self, at: Millis) -> Iterator[Millis]:
        """Every instant later than `at` at which it is due, in order."""
        last = at
        for due in self._instants(at // 1000):
            if due * 1000 > last:
                last = due * 1000
                yield last

    def _instants(self, since: Seconds) -> Iterator[Seconds]:
        """From soon before an instant on, season by season; some may be named twice."""
        fields = spelled_out(self.expression)
        fixed = has_fixed_times(fields)
        walls = _Walls(fields)
        shown: Seconds | None = None  # up to which time of the wall the season before has come
        for season in seasons(since - DAY, year_of(since) + HORIZON, zone_called(self.tz)):
            low, high = season.begin + season.offset, season.end + season.offset
            if fixed and shown is not None:
                if self.gap == "after" and walls.first_from(shown) < low:
                    yield season.begin
                if self.fold == "first":
                    low = max(low, shown)
            local = walls.first_from(max(low, since + season.offset))
            while local < high:
                yield local - season.offset
                local = walls.first_from(local + 1)
            shown = high


class _Walls:
    """The times on the wall that match an expression, in a calendar without zones."""

    def __init__(self, fields: str) -> None:
        self._fields = fields
        self._walls = CronSim(fields, wall(0, 0))
        self._asked: Seconds = 0
        self._found: Seconds = -2

    def first_from(self, at: Seconds) -> Seconds:
        """The first one that is not before `at`; the end of all times if there is none for fifty years."""
        if not self._asked <= at <= self._found:
            if at != self._found + 1:  # not the one after that
                self._walls = CronSim(self._fields, wall(at - 1, 0))
            try:
                following = next(self._walls, None)
            except (ValueError, OverflowError):  # the calendar ends before
                following = None
            self._asked, self._found = at, NEVER if following is None else number(following)
        return self._found


class Every(Struct, frozen=True, tag="every"):
    """Due at each multiple of an interval, counted from `start`: the Unix epoch, so that all who count agree."""

    interval: Millis
    start: Millis = 0

    def after(self, at: Millis) -> Iterator[Millis]:
        due = self.start + max(0, (at - self.start) // self.interval + 1) * self.interval
        while True:
            yield due
            due += self.interval


class Once(Struct, frozen=True, tag="once"):
    """Due at one instant."""

    at: Millis

    def after(self, at: Millis) -> Iterator[Millis]:
        """The instant, if it is later than `at`."""
        return iter((self.at,) if self.at > at else ())


def spelled_out(expression: str) -> str:
    """The fields of an expression; a word such as @daily stands for some."""
    return WORDS.get(expression.strip().lower(), expression)


def has_fixed_times(fields: str) -> bool:
    """Whether minute and hour are given, not swept over."""
    *_, minute, hour, _, _, _ = fields.split()
    return not minute.startswith("*") and not hour.startswith("*")


def walls_between(cron: Cron, low: Seconds, high: Seconds) -> list[Seconds]:
    """The times on the wall that match, from `low` to before `high`, as numbers; at most ten."""
    walls = _Walls(spelled_out(cron.expression))
    found: list[Seconds] = []
    while len(found) < 10 and (local := walls.first_from(found[-1] + 1 if found else low)) < high:
        found.append(local)
    return found
