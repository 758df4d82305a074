"""How a scheduler is: a judgement over what its ticker counts. Pure."""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from shigoto.model.time import to_datetime
from shigoto.observe.log import some_of
from shigoto.observe.storelook import Reading
from shigoto.worker.pulse import LOCKED, UNWRITTEN
from shigoto.worker.tally import Figures

State = Literal["new", "running", "stopping", "stopped"]
Status = Literal["OK", "Warning", "Error"]
STATUSES: tuple[Status, ...] = ("OK", "Warning", "Error")

SHORT_OUTAGE = 10.0  # seconds without the store that are no more than a warning
LATE = 1_000  # milliseconds, of one tick in a hundred
TOO_LATE = 60_000  # which is no longer on time, but caught up
MANY_ERRORS = 0.5  # of the newest cycles
SLOW, STUCK = 10.0, 30.0  # seconds without a cycle, beyond the longest wait between two


class Health(Struct, frozen=True, kw_only=True):
    """How a scheduler is, and why: `details` has a sentence for all that is not as it should be.

    `connected`: the store has answered when it was last asked. `lateness` in milliseconds is that of one tick in a
    hundred, `error_rate` the part of the newest cycles in which something failed, `last_tick` when it last fired one.
    """

    status: Status
    details: tuple[str, ...]
    state: State
    connected: bool
    last_tick: datetime | None
    error_rate: float
    lateness: float | None


def judge(figures: Figures | None, state: State, poll: float, overdue: float = 0.0) -> Health:
    """How a scheduler is that has counted this; `figures` None if it has not begun. A sweep is `overdue` for so many
    seconds."""
    if figures is None or state in ("new", "stopped"):
        word = "has not begun" if state == "new" else "has stopped"
        return _health("Error", (f"The scheduler {word}.",), figures, state)
    errors: list[str] = []
    warnings: list[str] = []
    if figures.down_for is not None:
        place = errors if figures.down_for > SHORT_OUTAGE else warnings
        trouble = (figures.trouble or "").rstrip(".")
        place.append(f"The store has not answered for {figures.down_for:.0f} s: {trouble}.")
    elif figures.idle > poll + SLOW:
        place = errors if figures.idle > poll + STUCK else warnings
        place.append(f"No cycle has ended for {figures.idle:.0f} s.")
    if overdue > UNWRITTEN and figures.down_for is None:  # a cycle in which nothing is due only reads
        errors.append(LOCKED)
    if figures.error_rate:
        place = errors if figures.error_rate >= MANY_ERRORS else warnings
        place.append(f"Something failed in {figures.error_rate:.0%} of the newest cycles.")
    late = figures.lateness.p99
    if late is not None and late > LATE:
        place = errors if late > TOO_LATE else warnings
        place.append(f"One tick in a hundred is late by {late / 1000:.1f} s or more.")
    if figures.left_alone:
        many = len(figures.left_alone)
        verb = "schedule is" if many == 1 else "schedules are"
        warnings.append(
            f"{many} {verb} left to others, in time zones that are not known here: {some_of(figures.left_alone)}."
        )
    if state == "stopping":
        warnings.append("The scheduler is about to stop.")
    status: Status = "Error" if errors else "Warning" if warnings else "OK"
    return _health(status, (*errors, *warnings), figures, state)


def readings(health: Health) -> list[Reading]:
    """What Prometheus is shown of it (S4-18)."""
    told = [Reading("scheduler_status", (status,), float(status == health.status)) for status in STATUSES]
    told.append(Reading("scheduler_errors", (), health.error_rate))
    if health.last_tick is not None:
        told.append(Reading("scheduler_last_tick", (), health.last_tick.timestamp()))
    return told


def _health(status: Status, details: tuple[str, ...], figures: Figures | None, state: State) -> Health:
    fired = None if figures is None else figures.last_fired
    return Health(
        status=status,
        details=details,
        state=state,
        connected=figures is not None and figures.down_for is None,
        last_tick=None if fired is None else to_datetime(fired),
        error_rate=0.0 if figures is None else figures.error_rate,
        lateness=None if figures is None else figures.lateness.p99,
    )
