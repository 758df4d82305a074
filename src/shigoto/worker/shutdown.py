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
from shigoto.worker.parts import WorkerParts
from shigoto.worker.stopping import Stopped

SOFT, CANCEL, RELEASE = 20 / 28, 25 / 28, 3 / 28
RETRY_PAUSE = 0.2
LAST_DELAY: Millis = 2_000


async def wind_down(parts: WorkerParts, timeout: float) -> None:
    """Phases 0 to 2; returns as soon as nothing is held, or there is a hurry."""
    parts.stop_seeking()
    await _until_asked(parts)
    began_at = asyncio.get_running_loop().time()
    await _until_idle(parts, began_at + timeout * SOFT)
    if not parts.switch.hurried:
        parts.settler.be_careful(foreign_threads_alive)
        parts.stop_handlers()
        await _until_idle(parts, began_at + timeout * CANCEL)


async def leave(parts: WorkerParts, patience: float) -> Stopped:
    """Phase 3, when every part has ended; takes `patience` seconds at most."""
    end = asyncio.get_running_loop().time() + patience
    reason = parts.switch.reason or "stopped"
    parts.settler.be_careful(foreign_threads_alive)
    try:
        await parts.end_handlers(patience / 3)
        await parts.lifespan.exit(patience / 3)
        if reason != "fenced":
            # If the store does not answer in time, what is still held comes back when the lease ends.
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await _give_back_the_rest(parts)
    finally:
        parts.thread_pool.close()
        parts.settler.drop()
    unreleased = 0 if reason == "fenced" else len(parts.state.held)
    return Stopped(reason=reason, unreleased=unreleased, running=parts.running())


def foreign_threads_alive() -> bool:
    """Whether there are threads here that are not the worker's own."""
    ours = (threading.main_thread(), threading.current_thread())
    return any(
        thread not in ours and not thread.name.startswith("shigoto-") for thread in threading.enumerate()
    )


async def _until_asked(parts: WorkerParts) -> None:
    """A worker that is recycled has run enough; what still runs is not disturbed until somebody really asks for it."""
    switch = parts.switch
    while switch.reason == "recycled" and not (switch.asked or switch.hurried or parts.idle()):
        await switch.changed.wait(None)


async def _until_idle(parts: WorkerParts, deadline: float) -> None:
    time, switch = asyncio.get_running_loop().time, parts.switch
    while not parts.idle() and not switch.hurried:
        left = deadline - time()
        if left <= 0:
            return
        parts.tell_stopping()
        await switch.changed.wait(left)


async def _give_back_the_rest(parts: WorkerParts) -> None:
    """Settle what has ended, then release what has not, then leave; again until the store answers."""
    state, engine, told = parts.state, parts.state.engine, False
    while True:
        try:
            await parts.settler.flush()
            parts.thread_pool.close()
            await parts.settler.flush()
            if not told:
                state.bus.publish(WorkerLeaving(state.name, parts.running() + parts.settler.held_back))
                told = True
            parts.settler.release_last(list(state.held.values()), LAST_DELAY)
            await parts.settler.flush()
            await engine.arun(engine.leave(state.id))
        except StoreError:
            await asyncio.sleep(RETRY_PAUSE)
        else:
            return
