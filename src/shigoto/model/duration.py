"""How long, as people write it: a `timedelta`, a number of seconds, or a text such as 90s, 5m or 2h."""

import re
from datetime import timedelta
from math import inf

from shigoto.model.clock import Millis
from shigoto.model.errors import OptionInvalid
from shigoto.model.plain import plain_number, plain_span
from shigoto.model.text import shown

Duration = timedelta | float

LONGEST: Millis = 100 * 366 * 86_400_000

UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
FORMS = "90, 90s, 5m, 2h, 1d or 2w"
_TEXT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([smhdw]?)", re.ASCII)


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
    match = _TEXT.fullmatch(text.strip())
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
