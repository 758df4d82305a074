"""A schedule whose job cannot be made or stored is tried again, later each time, and has failed after some tries."""

from msgspec.structs import replace

from shigoto.model.clock import Millis
from shigoto.model.schedule import Change, Schedule

MOST_ERRORS = 6
FIRST_PAUSE: Millis = 2_000


def after_failure(schedule: Schedule, error: Exception, now: Millis) -> Change:
    """What is written down. The ticks stay due: nothing of them is decided."""
    errors = schedule.errors + 1
    failed = errors >= MOST_ERRORS
    text = f"{type(error).__name__}: {error}"
    look_at = None if failed else now + FIRST_PAUSE * 2 ** (errors - 1)
    changed = replace(schedule, errors=errors, error=text, failed=failed, look_at=look_at)
    return Change(schedule=changed, seen=schedule.revision)
