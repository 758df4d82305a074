"""When something is due again: by a cron expression in a time zone, at an interval, or once.

Each is an iterator over instants after a given one, and nothing else: no clock, no store. What a cron expression means
when the clocks are changed is decided here and not in a library, so that it can be said in two sentences:

- An expression with fixed times (minute and hour both without a leading `*`) means times on the wall. One that the
  clocks leap over is due at the first instant after the leap, or not at all (`gap`); one that they show twice is due
  the first time, or both times (`fold`).
- Any other is due at every instant whose local time matches: each hour is an hour, also the one that comes twice.
"""

from collections.abc import Iterator
from datetime import datetime

from cronsim import CronSim
from msgspec import Struct

from shigoto.model.time import Millis
from shigoto.options import Fold, Gap
from shigoto.schedule.zones import DAY, Seconds, number, seasons, wall, year_of, zone_called

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
            following = _next(self._walls)
            self._asked, self._found = at, NEVER if following is None else number(following)
        return self._found


def _next(walls: CronSim) -> datetime | None:
    try:
        return next(walls, None)
    except (ValueError, OverflowError):  # the calendar ends before
        return None


class Every(Struct, frozen=True, tag="every"):
    """Due at each multiple of an interval, counted from `start`: the Unix epoch, so that all who count agree."""

    interval: Millis
    start: Millis = 0

    def after(self, at: Millis) -> Iterator[Millis]:
        """Every instant later than `at` at which it is due, in order."""
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


Recurrence = Cron | Every | Once


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
