"""When a cron expression is due, found by looking at every minute: slow, plain, and nothing of it is Shigoto's.

Neither `shigoto.schedule` nor cronsim is used here, so that a mistake would have to be made twice. The rules are those
of the documentation. A minute is due if what the clocks of the zone show then matches. If both the minute and the hour
are fixed (do not begin with `*`), times are meant as they stand on the wall:

- of a minute that the clocks show twice only the first is due, unless `both`;
- for minutes that the clocks leap over, the first one after the leap is due, unless `skip`.

A day (by UTC) on which nobody changes the clocks is not walked through minute by minute: everything that matches on it
is where the fields say.
"""

import calendar
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from msgspec import Struct

DAY, HOUR, MINUTE = 86_400, 3_600, 60
LOOK = 900  # seconds between looks at a zone; nobody changes clocks twice in so short a time
EPOCH = date(1970, 1, 1).toordinal()
NAMES = {
    "JAN": 1, "FEB": 2, "MAR": 3, "APR": 4, "MAY": 5, "JUN": 6, "JUL": 7, "AUG": 8, "SEP": 9, "OCT": 10, "NOV": 11,
    "DEC": 12, "SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6,
}  # fmt: skip
WORDS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip


class Rule:
    """What an expression of five fields, or of six with seconds first, or a word, asks for."""

    def __init__(self, expression: str) -> None:
        fields = WORDS.get(expression, expression).upper().split()
        second, minute, hour, self._day, month, self._weekday = ["0", *fields][-6:]
        self.seconds = _numbers(second, 0, 59)
        self.minutes = _numbers(minute, 0, 59)
        self.hours = _numbers(hour, 0, 23)
        self.months = _numbers(month, 1, 12)
        self.fixed = minute[0] != "*" and hour[0] != "*"
        self.by_the_second = len(fields) == 6
        self._both = self._day[0] == "*" or self._weekday[0] == "*"
        self._known: dict[int, bool] = {}
        self.times = [
            hour * HOUR + minute * MINUTE + second
            for hour in sorted(self.hours)
            for minute in sorted(self.minutes)
            for second in sorted(self.seconds)
        ]

    def is_on(self, day: int) -> bool:
        """Whether it is due at all on a day, counted as `date.toordinal` does."""
        known = self._known.get(day)
        if known is None:
            known = self._known[day] = self._matches(date.fromordinal(day))
        return known

    def _matches(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        of_month = any(_is_day(term, day) for term in self._day.split(","))
        of_week = any(_is_weekday(term, day) for term in self._weekday.split(","))
        return (of_month and of_week) if self._both else (of_month or of_week)


def _is_day(term: str, day: date) -> bool:
    last = calendar.monthrange(day.year, day.month)[1]
    if term == "L":
        return day.day == last
    if term == "LW":
        worked = [at for at in range(1, last + 1) if date(day.year, day.month, at).isoweekday() <= 5]
        return day.day == worked[-1]
    return day.day in _numbers(term, 1, 31)


def _is_weekday(term: str, day: date) -> bool:
    if "#" in term:
        name, _, which = term.partition("#")
        same = _same_weekday(day)
        return _is_weekday(name, day) and len(same) >= int(which) and same[int(which) - 1] == day
    if term.endswith("L") and term[:-1].isdigit():
        return _is_weekday(term[:-1], day) and _same_weekday(day)[-1] == day
    wanted = _numbers(term, 0, 7)
    return day.isoweekday() in wanted or day.isoweekday() % 7 in wanted


def _same_weekday(day: date) -> list[date]:
    """All days of the month that are the same day of the week."""
    last = calendar.monthrange(day.year, day.month)[1]
    every = [date(day.year, day.month, at) for at in range(1, last + 1)]
    return [each for each in every if each.weekday() == day.weekday()]


@cache
def _numbers(field: str, lowest: int, highest: int) -> frozenset[int]:
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        low = lowest if span == "*" else _number(first)
        high = _number(last) if last else highest if step or span == "*" else low
        found.update(range(low, high + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str) -> int:
    return NAMES[text] if text in NAMES else int(text)


class Shown(Struct, frozen=True):
    """One minute of a day on which the clocks are changed: what they show, whether for the second time, and which
    minutes they have leapt over right before. Days are numbers, minutes are those of a day."""

    at: int
    day: int
    minute: int
    again: bool
    skipped: tuple[tuple[int, int], ...]


class Zone:
    """The clocks of a zone from one midnight to another, by UTC."""

    def __init__(self, name: str, begin: int, end: int) -> None:
        self.name, self.begin, self.end = name, begin, end
        self._zone = ZoneInfo(name)
        looks = range(begin, end + 1, LOOK)
        offsets = [self._offset(at) for at in looks]
        self._offsets = {
            at: offset for at, offset in zip(looks, offsets, strict=True) if not (at - begin) % DAY
        }
        days = {
            at - (at - begin) % DAY
            for at, (before, after) in zip(looks, pairwise(offsets), strict=False)
            if before != after
        }
        # A change in the night is over, and what is shown twice has been, on the day after.
        self.walked = {at: self._walk(at) for at in sorted(days | {at + DAY for at in days}) if at < end}

    @property
    def changes(self) -> list[int]:
        """The first minutes after the clocks were changed."""
        walls = [
            (shown.at, shown.day * 1440 + shown.minute - shown.at // MINUTE)
            for minutes in self.walked.values()
            for shown in minutes
        ]
        return [at for (_, before), (at, after) in pairwise(walls) if before != after]

    def due(
        self, rule: Rule, *, gap: str = "after", fold: str = "first", days: range | None = None
    ) -> Iterator[int]:
        """Every second at which it is due, in order; or those of some days, named by their first second."""
        for begin in range(self.begin, self.end, DAY) if days is None else days:
            if begin in self.walked:
                yield from self.due_by_minutes(rule, self.walked[begin], gap=gap, fold=fold)
            else:
                yield from self._due_on(rule, begin)

    def due_by_minutes(self, rule: Rule, minutes: Sequence[Shown], *, gap: str, fold: str) -> Iterator[int]:
        """The same for these minutes, each of which is looked at."""
        for shown in minutes:
            leapt = rule.fixed and gap == "after" and any(_meant(rule, *each) for each in shown.skipped)
            if _meant(rule, shown.day, shown.minute) and not (rule.fixed and shown.again and fold == "first"):
                if leapt and 0 not in rule.seconds:
                    yield shown.at
                for second in sorted(rule.seconds):
                    yield shown.at + second
            elif leapt:
                yield shown.at

    def due_by_seconds(self, rule: Rule, begin: int, end: int) -> Iterator[int]:
        """Every second whose local time matches, one by one: for short times, and expressions that sweep."""
        for at in range(begin, end):
            local = datetime.fromtimestamp(at, self._zone)
            if (
                local.second in rule.seconds
                and local.minute in rule.minutes
                and local.hour in rule.hours
                and rule.is_on(local.toordinal())
            ):
                yield at

    def _due_on(self, rule: Rule, begin: int) -> Iterator[int]:
        """On a day without a change; by the clocks of the zone it is parts of two days."""
        offset = self._offsets[begin]
        low = begin + offset
        for midnight in (low - low % DAY, low - low % DAY + DAY):
            if rule.is_on(EPOCH + midnight // DAY):
                first = bisect_left(rule.times, low - midnight)
                last = bisect_left(rule.times, low + DAY - midnight)
                yield from (midnight + time - offset for time in rule.times[first:last])

    def _walk(self, begin: int) -> list[Shown]:
        """Every minute of a day."""
        found: list[Shown] = []
        for at in range(begin, begin + DAY, MINUTE):
            local = datetime.fromtimestamp(at, self._zone)
            before = datetime.fromtimestamp(at - MINUTE, self._zone)
            found.append(
                Shown(
                    at,
                    local.toordinal(),
                    local.hour * 60 + local.minute,
                    local.fold == 1,
                    tuple(_between(before, local)),
                )
            )
        return found

    def _offset(self, at: int) -> int:
        local = datetime.fromtimestamp(at, self._zone)
        return round((local.replace(tzinfo=UTC) - datetime.fromtimestamp(at, UTC)).total_seconds())


def _between(before: datetime, after: datetime) -> Iterator[tuple[int, int]]:
    """The minutes on the wall that lie between what the clocks have shown and what they show a minute later."""
    wall, end = (each.replace(tzinfo=None, fold=0) for each in (before, after))
    while (wall := wall + timedelta(minutes=1)) < end:
        yield wall.toordinal(), wall.hour * 60 + wall.minute


def _meant(rule: Rule, day: int, minute: int) -> bool:
    return minute % 60 in rule.minutes and minute // 60 in rule.hours and rule.is_on(day)
