"""Local time and instants: what the clocks on the wall show, and when somebody changes them.

Instants here are whole seconds since the Unix epoch; times on the wall are naive datetimes.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from shigoto.model.errors import ScheduleInvalid
from shigoto.model.text import shown
from shigoto.model.time import to_datetime

Seconds = int

EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
DAY: Seconds = 86_400
FIRST_YEAR, LAST_YEAR = 2, 9_998  # those of which every instant has a local time in every zone


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
