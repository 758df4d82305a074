"""How much one request at the record door may ask for, and whether its numbers can be those of a store: what no store
can count is the caller's mistake, not ours.

Specs, ends and reports of runs, and what workers say of themselves are looked at one by one (`specs.py`).
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

from msgspec import Struct

from shigoto.engine.remote.driver import MOST_IDS, MOST_JOBS
from shigoto.engine.remote.protocol import VERBS
from shigoto.filters import MAX_NUMBER, MAX_PAGE
from shigoto.model.errors import RequestInvalid
from shigoto.model.job import JobFilter, JobSpec
from shigoto.model.worker import SweepOrder
from shigoto.options import LAST_INSTANT

MOST_AT_ONCE = MOST_JOBS  # of whatever is listed or asked for
MOST_HELD = 100_000  # leases of one worker
MOST: Mapping[str, int] = {"ids of get": MOST_IDS, "held of beat": MOST_HELD}

BY_ITSELF = frozenset({"enqueue_many", "report", "settle", "bury", "announce"})
# Of what is counted one by one, such as tokens and lines: stores have no room for more.
MOST_COUNTED = 2**31 - 1
COUNTED = frozenset({"token", "revision", "seen", "errors", "count", "counts", "known"})
OF_JOBS = frozenset({"before", "after", "numbers", "number"})
FAR = 2**53  # of an instant of a schedule, either way: what it means is for those above to say


def expect_bounded(verb: str, args: tuple[Any, ...]) -> None:
    """Raise RequestInvalid for more than one request should ask for, and for numbers that none of a store can be."""
    for what, arg in zip(VERBS[verb].names, args, strict=True):
        most, count = MOST.get(f"{what} of {verb}", MOST_AT_ONCE), _asked_for(what, arg)
        if isinstance(arg, JobFilter):
            most = MAX_PAGE
        if not 0 <= count <= most:
            raise RequestInvalid(f"{what}: {count:,} is not allowed, but at most {most:,} at once.", what)
        if verb not in BY_ITSELF:
            for name, number in _numbers(arg, what):
                low, high = _range(verb, name)
                if not low <= number <= high:
                    raise RequestInvalid(f"{name}: {number} is not from {low} to {high}.", name)


def _range(verb: str, name: str) -> tuple[int, int]:
    """From where to where a number may lie that stands in this field."""
    if name in COUNTED:
        return 0, MOST_COUNTED
    if name in OF_JOBS:  # to delete what is not there is no mistake
        return (-MAX_NUMBER if verb == "delete" else 0), MAX_NUMBER
    return (-FAR, FAR) if verb == "tick" else (0, LAST_INSTANT)


def _asked_for(what: str, arg: Any) -> int:
    """How many things an argument has, or asks for."""
    match arg:
        case JobFilter():
            return max(0, arg.limit)  # a page of fewer than none has none
        case SweepOrder():
            return max(arg.batch, len(arg.fence))
        case int() if what == "limit":
            return arg
        case list() | frozenset():
            return len(cast("Collection[object]", arg))
        case _:
            return 0


def _numbers(value: Any, name: str) -> Iterator[tuple[str, int]]:
    """All whole numbers in a value, with the names of the fields that they stand in."""
    match value:
        case bool() | str() | JobSpec():
            pass
        case int():
            yield name, value
        case Struct():
            for field in value.__struct_fields__:
                if field != "limit" or not isinstance(value, JobFilter):  # which is looked at above
                    yield from _numbers(getattr(value, field), field)
        case (int(number), int(token)) if name == "held":
            yield from (("number", number), ("token", token))
        case list() | tuple() | frozenset():
            for each in cast("Collection[object]", value):
                yield from _numbers(each, name)
        case dict():
            yield from _numbers(list(cast("dict[object, object]", value).values()), name)
        case _:
            pass
