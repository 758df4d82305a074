"""What a worker may be told, checked, and what holds if it is told nothing."""

import os
from collections.abc import Sequence

from shigoto.model.errors import OptionInvalid
from shigoto.model.notice import QUEUE
from shigoto.model.text import plain_number, shown
from shigoto.options import check_name, several
from shigoto.worker.process.slate import Slate

MOST_SLOTS = 10_000
MOST_JOBS = 10**12
DAY = 86_400.0


def checked_queues(queues: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names of queues, each once; None for all."""
    if queues is None:
        return None
    names = tuple(dict.fromkeys(check_name(queue, "A queue") for queue in several("queues", queues)))
    if not names:
        raise OptionInvalid(f"queues takes a list of names, or None for all queues, not {shown(queues)}.")
    return names


def with_notices(queues: tuple[str, ...] | None, *, wanted: bool) -> tuple[str, ...] | None:
    """The queues that a worker serves: also that of notices, if it can run those, whatever else it was told."""
    return queues if queues is None or not wanted or QUEUE in queues else (*queues, QUEUE)


def checked_seconds(option: str, value: object, shortest: float, longest: float = DAY) -> float:
    """A number of seconds within bounds."""
    seconds = plain_number(value)
    if seconds is None or not shortest <= seconds <= longest:
        raise OptionInvalid(
            f"{option} must be a number of seconds from {shortest:g} to {longest:g}, not {shown(value)}."
        )
    return float(seconds)


def checked_slate(slate: Slate | None, needed: int) -> Slate:
    """The slate, if it has so many places; one of our own, if there is none."""
    if slate is None:
        return Slate.private(needed)
    if slate.size < needed:
        raise OptionInvalid(f"slate has {slate.size} places, and this worker needs {needed}.")
    return slate


def cores() -> int:
    """How many there are."""
    return os.cpu_count() or 1


def usual_threads() -> int:
    """How many sync jobs at once, if nobody says."""
    return min(32, 4 * cores())


def places(concurrency: int, threads: int | None, children: int | None) -> int:
    """How many jobs can run at once in a worker with these options, be they good or not, and its children."""
    wanted = (
        concurrency,
        usual_threads() if threads is None else threads,
        cores() if children is None else children,
    )
    return sum(max(0, min(count, MOST_SLOTS)) for count in wanted)
