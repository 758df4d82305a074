"""Beats for a runner process, from outside of it.

The runner beats, too: so it learns of cancels, and gives back what it does not know of. But one long call into
native code can keep its threads from running at all, for longer than its lease. Its supervisor knows that it lives,
and says so. A runner that is paused by a signal does nothing for its jobs, and nobody vouches for it; after its lease
others have them. But its child processes go on, so it is killed before, and they die with it. If we were paused
ourselves, or the machine was, it may be about to wake up, too, and gets a moment for that. (Where the system does not
say who is paused, such a runner is vouched for, and keeps its jobs.)
"""

import asyncio

from msgspec import Struct, structs

from shigoto.model.errors import StoreError
from shigoto.observe.events import RunnerPaused
from shigoto.worker.process import Mark
from shigoto.worker.state import Station, Trouble, beat_deadline, longest_pause
from shigoto.worker.supervisor import procfs
from shigoto.worker.supervisor.messages import Hello
from shigoto.worker.supervisor.runnerprocess import RunnerProcess

FENCED = "the store has fenced it"
PAUSED = "it was stopped by a signal for nearly as long as its lease"
GIVEN_UP = (
    0.9  # of the lease since its last beat: when others may have its jobs, nothing of it may be at work
)
FENCED_WITHIN = 2.0  # seconds to end by itself
REPRIEVE = 1 / 6  # of the lease: others who slept as well need twice as long for two looks at it


class Doubt(Struct, frozen=True):
    """Why a runner cannot be vouched for any more, and how many seconds it has to end."""

    reason: str
    patience: float


async def vouch(runner: RunnerProcess, hello: Hello, station: Station) -> Doubt | None:
    """Beat for a runner until the store does not count it any more, or it is leaving by itself."""
    pause = _until_next(hello, station)
    sent_at, paused = station.clock(), False
    trouble = Trouble(station, "supervisor", longest=longest_pause(hello.lease))
    while True:
        due = station.clock() + pause
        await asyncio.sleep(pause)
        pause = _until_next(hello, station)
        if procfs.is_paused(runner.pid):
            now, reprieve = station.clock(), REPRIEVE * hello.lease
            left = reprieve if now > due + reprieve else sent_at + GIVEN_UP * hello.lease - now
            if left <= 0:
                return Doubt(PAUSED, 0.0)
            if not paused:
                paused = True
                station.bus.publish(RunnerPaused(hello.name, runner.pid))
            pause = min(pause, left)
            continue
        paused, now = False, station.clock()
        try:
            beat = station.engine.beat(hello.worker, None)
            orders = await station.ask("beat", structs.replace(beat, deadline=beat_deadline(hello.lease)))
        except StoreError as error:
            pause = trouble.met(error)
            continue
        trouble.over()
        sent_at = now
        if orders.fenced:
            # Nor does the store know one that has just left; it has said so before.
            return None if runner.has(Mark.LEAVING) else Doubt(FENCED, FENCED_WITHIN)


def _until_next(hello: Hello, station: Station) -> float:
    return hello.lease / 3 * station.random.uniform(0.9, 1.1)
