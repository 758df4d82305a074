"""One look at a schedule that is due: what is decided, and the change that makes of it. Workers and tests look so."""

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model.schedule import KEPT, Change, Due, DueSchedule, Schedule
from shigoto.model.time import Millis
from shigoto.schedule.deciding import Decision, decide, is_astray
from shigoto.schedule.declaring import Declared
from shigoto.schedule.definition import read
from shigoto.schedule.firing import carried_out

AT_ONCE = 200
"""Schedules that are looked at together, and whose changes are one transaction."""

MOST_JOBS = 1_000
"""Jobs that go into the store at once; whatever else is due has to wait for the next look."""

PORTION = 100
"""Jobs of a schedule that is behind, at least, if there is room for any: each look begins with finding its ticks."""


def looking(engine: Engine, declared: Collection[str], limit: int) -> Op[Due]:
    """What somebody has to look at (`engine.due`), with all that whoever looks must know."""

    op = engine.due(declared, limit)

    def steps() -> Steps[Due]:
        due = yield from op.start()
        known: list[DueSchedule] = []
        for each in due.schedules:
            if is_astray(each.schedule, due.now):
                entries = yield from engine.history(each.schedule.name, limit=2 * KEPT).start()
                each = replace(each, known=tuple(entries))
            known.append(each)
        return replace(due, schedules=known)

    return replace(op, start=steps)


def looked_at(
    due: DueSchedule, declared: Mapping[str, Declared], now: Millis, *, most: int = MOST_JOBS
) -> Change:
    """What becomes of it, with so many jobs at most. Its code may raise anything, which is for the caller
    (`failing.py`); ZoneMissing says nothing of the schedule, but that it is for others to look at."""
    schedule = due.schedule
    definition = read(schedule.definition)
    decision = portion(schedule, decide(schedule, definition, now, busy=due.busy), most)
    mine = declared.get(schedule.name)
    return carried_out(schedule, definition, decision, None if mine is None else mine.call, due.known)


def portion(schedule: Schedule, decision: Decision, most: int) -> Decision:
    """As much of a decision as has no more jobs than that, from the oldest tick on; the rest stays due."""
    fires = decision.fires
    if len(fires) <= most:
        return decision
    end = fires[most - 1].at
    entries = tuple(entry for entry in decision.entries if entry.at <= end)
    # Not before now: the clock may go back by hours, and what is left is due all the same.
    return replace(decision, entries=entries, decided_to=end, look_at=end, pauses=schedule.pauses)
