"""What is left to do for a runner process that is gone: to end what it has left behind, and to tell the store who was
in it.

What ran in it has crashed and is suspected: it runs again alone. What only lay in its buffers is given back and
counts as nothing. If we have killed it ourselves, nothing has crashed.

Its child processes die with it, but what handlers have started there does not, and nobody says when they are dead.
Their jobs must not run again before.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Collection

from shigoto.model.states import CRASH_DELAY
from shigoto.model.text import fit
from shigoto.model.worker import Death
from shigoto.worker.process import how_it_ended

logger = logging.getLogger("shigoto.worker")

MOST_TRACE = 16_000  # bytes
DIE_WITHIN = 1.0  # seconds from a kill to the end
LOOK_EVERY = 0.005


def deaths_in(
    pid: int, code: int, *, inside: Collection[int], in_children: Collection[int], trace: str
) -> tuple[Death, ...]:
    """The jobs that have crashed: those `inside` the process, and those in child processes, which died with it."""
    how, count = how_it_ended(code), len(inside)
    error = f"The runner process {pid} {how} with {count} job{'' if count == 1 else 's'} inside."
    beside = f"The process of this job was ended together with the runner process {pid}, which {how}."
    # Whoever has most likely killed it waits, lest it kill the next one at once: the one inside, or else the one in a
    # child process. The latter was alone there already, so there will be no better proof.
    delay = CRASH_DELAY if count == 1 else None
    only = not inside and len(in_children) == 1
    return (
        *(
            Death(number=number, error=error, traceback=fit(trace, MOST_TRACE) or None, delay=delay)
            for number in inside
        ),
        *(
            Death(number=number, error=beside, delay=CRASH_DELAY if only else None, alone=only)
            for number in in_children
        ),
    )


async def end_groups(groups: Collection[int]) -> None:
    """Kill these process groups, and wait until nobody is left in them, though not for ever."""
    time = asyncio.get_running_loop().time
    deadline = time() + DIE_WITHIN
    # 0 would mean our own group, and so would its number.
    left = {group for group in groups if group > 1 and group != os.getpgrp()}
    while left := {group for group in left if _killed(group)}:
        if time() > deadline:
            logger.warning("Processes of a dead runner cannot be ended: groups %s", sorted(left))
            return
        await asyncio.sleep(LOOK_EVERY)


def _killed(group: int) -> bool:
    """Whether there was somebody to kill; the dead count until they are reaped."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # some systems say the latter of the dead
        return False
    return True
