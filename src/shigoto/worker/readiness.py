"""What a worker asks of its store before it begins: whether it is there, is made for this release, and lets us no more
than work. Then it tells the store of itself."""

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Protocol, runtime_checkable

from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import NotReady, StoreUnavailable
from shigoto.model.worker import Announcement

ANNOUNCED_WITHIN = 5.0  # seconds, if the store cannot be reached at first
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds

logger = logging.getLogger("shigoto.worker")


@runtime_checkable
class Prepared(Protocol):
    """An engine whose store others make and look after, so that it may not be what a worker needs."""

    def expect_ready(self, *, any_role: bool) -> Op[None]:
        """Raises StoreError if no worker may begin here, or not as this user; creates and changes nothing."""
        ...


async def expect_ready(engine: Engine, *, any_role: bool) -> None:
    """Raise SchemaMissing, SchemaTooNew or StoreRefused if a worker must not begin, NotReady if it cannot yet.

    A store that a worker makes by itself is always ready.
    """
    if not isinstance(engine, Prepared):
        return
    try:
        await engine.arun(engine.expect_ready(any_role=any_role))
    except StoreUnavailable as error:
        raise NotReady(f"The worker cannot begin. {error}") from error


async def announce(
    engine: Engine, announcement: Announcement, clock: Callable[[], float], random: Random
) -> float:
    """Tell the store of a worker, and return when, on `clock`: its lease began no earlier.

    A store that cannot be reached just now is asked again for a while. Raises NotReady if that is of no use.
    """
    time = asyncio.get_running_loop().time
    give_up_at, pause = time() + ANNOUNCED_WITHIN, FIRST_PAUSE
    while True:
        sent_at = clock()
        try:
            await engine.arun(engine.announce(announcement))
            return sent_at
        except StoreUnavailable as error:
            if time() + pause > give_up_at:
                raise NotReady(f"The worker cannot begin. {error}") from error
            logger.warning("Worker %s cannot announce itself, and tries again: %s", announcement.name, error)
        await asyncio.sleep(pause * random.uniform(0.5, 1))
        pause = min(LONGEST_PAUSE, 2 * pause)
