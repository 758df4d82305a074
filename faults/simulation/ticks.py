"""A schedule in a world: each of its ticks is a job that somebody has asked for, and nobody asks for any other."""

import asyncio
from collections.abc import Callable
from functools import cache
from random import Random

from faults.simulation.book import Book
from faults.simulation.handlers import make_app
from shigoto.engine.protocol import Engine
from shigoto.model.ids import uuid7
from shigoto.model.schedule import Change, Schedule
from shigoto.model.time import Millis
from shigoto.schedule.definition import Definition, Template, template, written
from shigoto.schedule.recurrence import Every
from shigoto.testing.store import START

NAME = "each second"
SECOND: Millis = 1_000
FARTHEST_BACK: Millis = 300_000  # that a clock may go; what it shows then is new to the schedule


def plant(engine: Engine, until: float, random: Random, book: Book) -> None:
    """Store a schedule of each second until then. The book is told of all its ticks, as if they were acknowledged."""
    end = START + round(until * 1000)
    definition = Definition(recurrence=Every(SECOND), job=_job(), catch_up="all", most=10_000, until=end)
    schedule = Schedule(
        id=uuid7(START, random.randbytes(10)),
        name=NAME,
        definition=written(definition),
        look_at=definition.next_after(START),
        decided_to=START,
        created_at=START,
    )
    engine.run(engine.tick([Change(schedule=schedule, seen=0)]))
    for at in definition.between(START - FARTHEST_BACK, end):
        book.tried[schedule.job_id(at)] = at > START


async def all_decided(engine: Engine, over: Callable[[], bool]) -> None:
    """Wait until the schedule has come to its end, or everything else has."""
    while not over():
        [schedule] = engine.run(engine.schedules([NAME]))
        now = engine.run(engine.time())
        if schedule.look_at is None and schedule.decided_to <= now:
            return
        await asyncio.sleep(1)


@cache
def _job() -> Template:
    steps = [("quick", 0.0)]
    return template(make_app().tasks["work"].call(steps).spec(uuid7(START, bytes(10))))
