"""Time as the store counts it: integer milliseconds since the Unix epoch.

Every due, lease, expiry and retention decision compares store time with store time; `Millis` is that currency.
Datetimes appear only at the edges, always aware and in UTC.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import Meta

Millis = int
Clock = Callable[[], Millis]
Moment = Annotated[datetime, Meta(tz=True)]
"""A datetime in what is sent and received: with its zone, and said to be a time in schemas."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_HOLD: Millis = 60_000


def host_clock() -> Millis:
    """The host's wall clock."""
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
