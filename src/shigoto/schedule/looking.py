"""One look at a schedule that is due: what is decided, and the change that makes of it. Workers and tests look so."""

from collections.abc import Mapping

from shigoto.model.clock import Millis
from shigoto.model.schedule import Change, DueSchedule
from shigoto.schedule.deciding import decide
from shigoto.schedule.declaring import Declared
from shigoto.schedule.definition import read
from shigoto.schedule.firing import carried_out


def looked_at(due: DueSchedule, declared: Mapping[str, Declared], now: Millis) -> Change:
    """What becomes of it. Its code may raise anything, which is for the caller (`failing.py`); ZoneMissing says nothing
    of the schedule, but that it is for others to look at."""
    schedule = due.schedule
    definition = read(schedule.definition)
    decision = decide(schedule, definition, now, busy=due.busy)
    mine = declared.get(schedule.name)
    return carried_out(schedule, definition, decision, None if mine is None else mine.call)
