"""What a supervisor does, it does for as long as it lives: one mistake in it must not end them all."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger("shigoto.worker")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds


async def persist(part: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do this to its end. If it breaks, say so, and begin it anew after a pause, each time a longer one."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await work()
        except Exception:
            logger.exception(
                "The supervisor's %s met an error that nobody had foreseen, and begins anew in %g s",
                part,
                pause,
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
