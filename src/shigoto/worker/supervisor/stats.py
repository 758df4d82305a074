"""The line of counts that a worker's log has every now and then."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from msgspec.structs import asdict

from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreError

logger = logging.getLogger("shigoto.worker")


async def tell_counts(opened: Callable[[], Engine], every: float) -> None:
    """Log the counts again and again; never, if there is no time between."""
    while every > 0:
        await asyncio.sleep(every)
        try:
            engine = opened()
            queues = await engine.arun(engine.stats())
        except StoreError as error:
            logger.warning("The statistics are left out this time: %s", error)
            continue
        counts = Counter[str]()
        for queue in queues.values():
            counts.update(asdict(queue))
        logger.info(
            "Job Stats - Pending: %d, Processing: %d, Completed: %d, Failed: %d",
            *(counts[state] for state in ("pending", "processing", "completed", "failed")),
            extra={"shigoto": dict(counts)},
        )
