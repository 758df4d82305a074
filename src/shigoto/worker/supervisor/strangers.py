"""What handlers have started and nobody looks after any more, because their runner process is dead.

Linux lets us adopt such processes. Those in our own process group are still at work for a job that somebody else gets
soon, or for nobody: they are killed. One that has a session or a group of its own has left us on purpose. Whoever was
there before us, when a shell started it and then became this process, is no concern of ours, either.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Collection
from contextlib import suppress

from shigoto.worker.supervisor.procfs import processes

logger = logging.getLogger("shigoto.worker")

END_WITHIN = 1.0  # seconds from a kill to the end
LOOK_EVERY = 0.005


class Strangers:
    """Those who descend from this process, in its group, but not from any child of ours that we know."""

    def __init__(self) -> None:
        self._before = frozenset(pid for pid, process in processes().items() if process.parent == os.getpid())

    async def end(self, known: Collection[int]) -> None:
        """Kill them, and wait until none is left, though not for ever."""
        time = asyncio.get_running_loop().time
        deadline = time() + END_WITHIN
        while left := self._find(known):
            if time() > deadline:
                logger.warning("Processes that handlers have left behind cannot be ended: %s", sorted(left))
                return
            _kill(left)
            await asyncio.sleep(LOOK_EVERY)

    def kill_all(self) -> None:
        """Kill all who descend from us, also the children that we know. From any thread."""
        with suppress(OSError):
            _kill(self._find(()))

    def _find(self, known: Collection[int]) -> set[int]:
        every, own, group = processes(), os.getpid(), os.getpgrp()

        def is_stranger(pid: int) -> bool:
            seen: set[int] = set()
            while pid in every and pid not in seen:
                if every[pid].parent == own:
                    return pid not in known and pid not in self._before
                seen.add(pid)
                pid = every[pid].parent
            return False

        return {
            pid
            for pid, process in every.items()
            if process.group == group and process.alive and is_stranger(pid)
        }


def _kill(pids: Collection[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
