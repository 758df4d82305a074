"""How long, as people write it: a `timedelta`, or a number of seconds."""

from datetime import timedelta
from math import isfinite

from shigoto.model.clock import Millis
from shigoto.model.errors import OptionInvalid

Duration = timedelta | float

LONGEST: Millis = 100 * 366 * 86_400_000


def milliseconds(duration: Duration, what: str) -> Millis:
    """The duration in milliseconds; OptionInvalid if it is no number, negative, or over a hundred years."""
    seconds = _seconds(duration, what)
    if not isfinite(seconds):
        raise OptionInvalid(f"{what} must be a finite time, not {duration!r}.")
    if seconds < 0:
        raise OptionInvalid(f"{what} must not be negative, but is {duration!r}.")
    millis = round(seconds * 1000)
    if millis > LONGEST:
        raise OptionInvalid(f"{what} is longer than a hundred years: {duration!r}. Numbers are seconds.")
    return millis


def _seconds(duration: object, what: str) -> float:
    # Callers without a type checker hand in anything, so the parameter is an object here.
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return duration
    raise OptionInvalid(f"{what} must be a timedelta or a number of seconds, not {duration!r}.")
