"""The phases in which a worker stops.

    phase 0  at once   no new claims; a claim in flight and what lies in the buffers is given back
    phase 1  20/28     handlers see `ctx.stopping` and may end by themselves; beats and settlements go on
    phase 2   5/28     async handlers and those in child processes are cancelled; those that give in are released
    phase 3   3/28     child processes are killed; flush; then, as the very last commit, release what could not be
                       stopped, with a delay that lets this process end first; then leave

The parts are those of `stop_timeout`, 28 s unless told otherwise; each ends as soon as nothing is held any
more. A second request leads straight to phase 3. A fenced worker has nothing to give back: it cancels, drops every
result, and is gone.

Never do two runs of a job overlap. An async handler that gave in may have left a thread at work behind, by
`asyncio.to_thread`, which nobody can stop or even tell from an idle one. So if there are threads here that are not the
worker's own, what it has cut short is released last, too.
"""

import asyncio
import threading
from contextlib import suppress

from shigoto.model.errors import StoreError
from shigoto.model.time import Millis
from shigoto.observe.events import WorkerLeaving
from shigoto.worker.parts import Crew
from shigoto.worker.stopping import Stopped

SOFT, CANCEL, RELEASE = 20 / 28, 25 / 28, 3 / 28
RETRY_PAUSE = 0.2
LAST_DELAY: Millis = 2_000


async def wind_down(crew: Crew, timeout: float) -> None:
    """Phases 0 to 2; returns as soon as nothing is held, or there is a hurry."""
    crew.stop_seeking()
    await _until_asked(crew)
    began_at = asyncio.get_running_loop().time()
    await _until_idle(crew, began_at + timeout * SOFT)
    if not crew.switch.hurried:
        crew.settler.be_careful(strangers_at_work)
        crew.stop_handlers()
        await _until_idle(crew, began_at + timeout * CANCEL)


async def leave(crew: Crew, patience: float) -> Stopped:
    """Phase 3, when every part has ended; takes `patience` seconds at most."""
    end = asyncio.get_running_loop().time() + patience
    reason = crew.switch.reason or "stopped"
    crew.settler.be_careful(strangers_at_work)
    try:
        await crew.end_handlers(patience / 3)
        await crew.lifespan.exit(patience / 3)
        if reason != "fenced":
            # If the store does not answer in time, what is still held comes back when the lease ends.
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await _give_back_the_rest(crew)
    finally:
        crew.threads.close()
        crew.settler.drop()
    unreleased = 0 if reason == "fenced" else len(crew.state.held)
    return Stopped(reason=reason, unreleased=unreleased, running=crew.running())


def strangers_at_work() -> bool:
    """Whether there are threads here that are not the worker's own."""
    ours = (threading.main_thread(), threading.current_thread())
    return any(
        thread not in ours and not thread.name.startswith("shigoto-") for thread in threading.enumerate()
    )


async def _until_asked(crew: Crew) -> None:
    """A worker that is recycled has run enough; what still runs is not disturbed until somebody really asks for it."""
    switch = crew.switch
    while switch.reason == "recycled" and not (switch.asked or switch.hurried or crew.idle()):
        await switch.changed.wait(None)


async def _until_idle(crew: Crew, deadline: float) -> None:
    time, switch = asyncio.get_running_loop().time, crew.switch
    while not crew.idle() and not switch.hurried:
        left = deadline - time()
        if left <= 0:
            return
        crew.tell_stopping()
        await switch.changed.wait(left)


async def _give_back_the_rest(crew: Crew) -> None:
    """Settle what has ended, then release what has not, then leave; again until the store answers."""
    state, engine, told = crew.state, crew.state.engine, False
    while True:
        try:
            await crew.settler.flush()
            crew.threads.close()
            await crew.settler.flush()
            if not told:
                state.bus.publish(WorkerLeaving(state.name, crew.running() + crew.settler.held_back))
                told = True
            crew.settler.release_last(list(state.held.values()), LAST_DELAY)
            await crew.settler.flush()
            await engine.arun(engine.leave(state.id))
        except StoreError:
            await asyncio.sleep(RETRY_PAUSE)
        else:
            return
