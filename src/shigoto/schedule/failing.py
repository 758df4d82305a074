"""A schedule whose job cannot be made or stored is tried again, later each time, and has failed after some tries.

Then it waits for somebody to look at it, unless it was said that it shall go (`when_failed="remove"`).
"""

from msgspec.structs import replace

from shigoto.model.errors import ScheduleInvalid
from shigoto.model.schedule import Change, Schedule
from shigoto.model.text import ERROR_LIMIT, fit, message_of, name_of
from shigoto.model.time import Millis
from shigoto.schedule.definition import read

MOST_ERRORS = 6
FIRST_PAUSE: Millis = 2_000


def after_failure(schedule: Schedule, error: BaseException, now: Millis) -> Change:
    """What is written down. The ticks stay due: nothing of them is decided."""
    errors = schedule.errors + 1
    failed = errors >= MOST_ERRORS
    look_at = None if failed else now + FIRST_PAUSE * 2 ** (errors - 1)
    changed = replace(schedule, errors=errors, error=_text(error), failed=failed, look_at=look_at)
    return Change(schedule=changed, seen=schedule.revision, removes=failed and _shall_go(schedule))


def _shall_go(schedule: Schedule) -> bool:
    try:
        return read(schedule.definition).when_failed == "remove"
    except ScheduleInvalid:
        return False


def _text(error: BaseException) -> str:
    """The error in words that every store can hold. To find them must not become the next error."""
    try:
        message = message_of(error)
    except BaseException as broken:
        message = f"<its message cannot be shown: __str__ raised {name_of(broken)}>"
    return fit(f"{name_of(error)}: {message}" if message else name_of(error), ERROR_LIMIT)
