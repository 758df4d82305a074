"""A scheduler inside of the service: whoever serves a store also repairs it (rule A15).

Workers that come in by HTTP do none of that. So the service fires schedules, makes due jobs ready, and frees the jobs
of workers that are gone. A scheduler by itself ends when its store cannot be used; this one begins again and again, for
the service goes on living, and says so by `/readyz`.
"""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from shigoto.model.errors import ShigotoError
from shigoto.scheduler import Health, Scheduler
from shigoto.worker.health import UNWRITTEN

if TYPE_CHECKING:
    from shigoto.server.service import Service

logger = logging.getLogger("shigoto.server")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # seconds


class Housekeeping:
    """Keeps a scheduler running until it is closed. For one event loop."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._closed = asyncio.Event()
        self._scheduler: Scheduler | None = None
        self._trouble: str | None = None

    @property
    def idle(self) -> float | None:
        """For how many seconds no cycle has ended; None if none has begun."""
        figures = None if self._scheduler is None else self._scheduler.figures()
        return None if figures is None else figures.idle

    def health(self) -> Health | None:
        """How its scheduler is; None if none has begun."""
        return None if self._scheduler is None else self._scheduler.health()

    @property
    def locked(self) -> bool:
        """Whether nothing can be written, be it that the store answers."""
        return self._scheduler is not None and self._scheduler.overdue > UNWRITTEN

    async def run(self) -> None:
        """Begin anew whenever it cannot go on, until closed."""
        pause = FIRST_PAUSE
        while not self._closed.is_set():
            # It runs no code of tasks, so it does not matter what its user may do beyond what it needs.
            self._scheduler = Scheduler(
                self._service.app, name=self._service.name, any_role=True, random=self._service.random
            )
            try:
                await self._scheduler.run()
                began = True
            except ShigotoError as error:
                began = False
                self._tell(error)
            if self._closed.is_set():
                return
            pause = FIRST_PAUSE if began else min(LONGEST_PAUSE, 2 * pause)
            await self._rest(pause * self._service.random.uniform(0.5, 1))

    def close(self) -> None:
        """Finish the cycle at hand, and begin no other."""
        self._closed.set()
        if self._scheduler is not None:
            self._scheduler.stop()

    def _tell(self, error: ShigotoError) -> None:
        """Once for each kind of trouble, not for each try."""
        text = str(error)
        if text != self._trouble:
            logger.warning("The housekeeping of the service cannot begin, and tries again: %s", text)
        self._trouble = text

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)
