"""What callers hand in, as the plain types that stores and encoders are written for.

A text, a number or an id may be of a subclass, with methods of its own: a member of an enum, a row of some driver's, a
stand-in of a test's, or somebody's who means harm. Each is made plain at the door, before it is compared, measured or
shown, so that every engine is given the same and nothing that the value says of itself is believed. None is the answer
for what is no such value.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

# The methods of the plain types themselves: they take instances of subclasses, and nothing else, whatever that says it
# is. So no `isinstance` is needed, which believes what `__class__` says.


def plain_text(value: Any) -> str | None:
    """The text itself."""
    try:
        return str.__str__(value)
    except TypeError:
        return None


def plain_whole(value: Any) -> int | None:
    """The whole number; a truth value is none."""
    if type(value) is bool:
        return None
    try:
        return int.__int__(value)
    except TypeError:
        return None


def plain_number(value: Any) -> float | None:
    """The number, whole or not; a truth value is none."""
    whole = plain_whole(value)
    if whole is not None:
        return whole
    try:
        return float.__float__(value)
    except TypeError:
        return None


def plain_moment(value: Any) -> datetime | None:
    """The moment, in its own time zone."""
    try:
        return datetime.combine(datetime.date(value), datetime.timetz(value))
    except TypeError:
        return None


def plain_span(value: Any) -> timedelta | None:
    """The length of time."""
    try:
        return timedelta.__pos__(value)
    except TypeError:
        return None


def plain_id(value: Any) -> UUID | None:
    """The id; drivers of databases have classes of their own for these."""
    if type(value) is UUID:
        return value
    try:
        return UUID(int=int.__int__(value.int)) if isinstance(value, UUID) else None
    except (AttributeError, TypeError, ValueError):
        return None
