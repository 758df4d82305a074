"""Time as the store counts it, and durations as people write them.

Every due, lease, expiry and retention decision compares store time with store time; `Millis` is that currency.
Datetimes appear only at the edges, always aware and in UTC. A duration is a `timedelta`, a number of seconds, or a text
such as 90s, 5m or 2h.
"""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Annotated

from msgspec import Meta

from shigoto.model.errors import OptionInvalid
from shigoto.model.text import plain_number, plain_span, shown

Millis = int
Clock = Callable[[], Millis]
Moment = Annotated[datetime, Meta(tz=True)]
"""A datetime in what is sent and received: with its zone, and said to be a time in schemas."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_HOLD: Millis = 60_000

Duration = timedelta | float

LONGEST: Millis = 100 * 366 * 86_400_000

UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
FORMS = "90, 90s, 5m, 2h, 1d or 2w"
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([smhdw]?)", re.ASCII)


def host_clock() -> Millis:
    return time.time_ns() // 1_000_000


def to_datetime(at: Millis) -> datetime:
    """The aware UTC datetime of a store instant; the last or first one there is, for instants beyond."""
    try:
        return EPOCH + timedelta(milliseconds=at)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if at > 0 else datetime.min.replace(tzinfo=UTC)


def to_millis(at: datetime) -> Millis:
    """The store instant of an aware datetime; a naive one is refused by the caller before this."""
    return (at - EPOCH) // timedelta(milliseconds=1)


def held_back(host: Millis, mark: Millis) -> Millis:
    """Store time, given the host's clock and the highest store time seen so far.

    A small backward step (a time server's correction) is ridden out by standing still at the mark.
    A step of more than a minute is believed: standing still that long would freeze every due job.
    """
    return mark if 0 < mark - host <= MAX_HOLD else host


def milliseconds(duration: Duration, what: str) -> Millis:
    """The duration in milliseconds; OptionInvalid if it is no number, negative, or over a hundred years."""
    seconds = _seconds(duration, what)
    if not -inf < seconds < inf:  # also for whole numbers that are beyond floats
        raise OptionInvalid(f"{what} must be a finite time, not {shown(duration)}.")
    if seconds < 0:
        raise OptionInvalid(f"{what} must not be negative, but is {shown(duration)}.")
    if seconds * 1000 > LONGEST:
        span = plain_span(duration)
        said = shown(duration) if span is None else write_duration(span)
        raise OptionInvalid(f"{what} is longer than a hundred years: {said}. Numbers are seconds.")
    return round(seconds * 1000)


def _seconds(duration: object, what: str) -> float:
    # Callers without a type checker hand in anything, so the parameter is an object here.
    span = plain_span(duration)
    seconds = plain_number(duration) if span is None else span.total_seconds()
    if seconds is not None:
        return seconds
    raise OptionInvalid(f"{what} must be a timedelta or a number of seconds, not {shown(duration)}.")


def read_duration(text: str) -> timedelta | None:
    """The duration that a text says, in one of the forms 90, 90s, 5m, 2h, 1d, 2w; None for any other text."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    try:
        return timedelta(seconds=float(match[1]) * UNITS[match[2]])
    except OverflowError:
        return None


def write_duration(duration: timedelta) -> str:
    """The shortest text that `read_duration` reads as this duration, which must not be negative."""
    seconds = duration.total_seconds()
    if seconds % 1:
        return f"{seconds:.6f}".rstrip("0") + "s"
    unit = next((unit for unit in "wdhm" if seconds and seconds % UNITS[unit] == 0), "s")
    return f"{seconds / UNITS[unit]:.0f}{unit}"
