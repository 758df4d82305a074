"""Beats for a runner process, from outside of it.

The runner beats, too: so it learns of cancels, and gives back what it does not know of. But one long call into
native code can keep its threads from running at all, for longer than its lease. Its supervisor knows that it lives,
and says so. A runner that is paused by a signal does nothing for its jobs, and nobody vouches for it.
"""

import asyncio

from shigoto.model.errors import StoreError
from shigoto.observe.events import RunnerPaused
from shigoto.worker.station import Station, Trouble
from shigoto.worker.supervisor import procfs
from shigoto.worker.supervisor.messages import Hello
from shigoto.worker.supervisor.runnerprocess import RunnerProcess


async def vouch(runner: RunnerProcess, hello: Hello, station: Station) -> None:
    """Beat for a runner until the store does not count it any more."""
    engine, pause, paused = station.engine, _until_next(hello, station), False
    # The store forgives no more than L/3 between two looks at an expired worker, so tries come at least so often.
    trouble = Trouble(station, "supervisor", longest=hello.lease / 6)
    while True:
        await asyncio.sleep(pause)
        was_paused, paused = paused, procfs.is_paused(runner.pid)
        pause = _until_next(hello, station)
        if paused:
            if not was_paused:
                station.bus.publish(RunnerPaused(hello.name, runner.pid))
            continue
        try:
            orders = await engine.arun(engine.beat(hello.worker, None))
        except StoreError as error:
            pause = trouble.met(error)
            continue
        trouble.over()
        if orders.fenced:
            return


def _until_next(hello: Hello, station: Station) -> float:
    return hello.lease / 3 * station.random.uniform(0.9, 1.1)
