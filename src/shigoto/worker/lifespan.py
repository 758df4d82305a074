"""The app's lifespan, held open by a task of its own.

What a lifespan opens must be closed in the same task: task groups and time-outs insist on it. A worker starts in the
task of whoever runs it and may end in another, so neither of them holds it.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from shigoto.model.errors import DeclarationError
from shigoto.worker.errortext import describe

logger = logging.getLogger("shigoto.worker")

GIVE_UP = 0.2  # seconds for one that is cancelled, at the end of all patience


class Lifespan:
    """Entered once, exited once. `broken` is called if it ends by itself in between."""

    def __init__(
        self, entering: Callable[[], AbstractAsyncContextManager[Any]], broken: Callable[[], None]
    ) -> None:
        self._entering = entering
        self._broken = broken
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def enter(self) -> Any:
        """Enter, and return the state. Raises DeclarationError."""
        entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task = self._task = asyncio.create_task(self._hold(entered), name="shigoto-lifespan")
        try:
            await asyncio.wait([task, entered], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.exit(GIVE_UP)
            raise
        if not entered.done():
            self._task = None
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            raise DeclarationError(f"The app's lifespan failed at the start: {_words(error)}") from error
        task.add_done_callback(self._ended)
        return entered.result()

    async def exit(self, patience: float) -> None:
        """Leave, within `patience` seconds. What it raises is logged. Exiting twice is fine."""
        task, self._task = self._task, None
        if task is None:
            return
        self._leaving.set()
        await asyncio.wait([task], timeout=patience)
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=GIVE_UP)
            logger.error("The app's lifespan did not end within %.3g s and was cut short", patience)

    async def _hold(self, entered: "asyncio.Future[Any]") -> None:
        async with self._entering() as state:
            if not entered.done():
                entered.set_result(state)
            await self._leaving.wait()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("The app's lifespan has failed; the worker stops", exc_info=error)
        if not self._leaving.is_set():
            # One of its own tasks has failed, perhaps, and has taken the rest with it.
            self._broken()


def _words(error: BaseException | None) -> str:
    return "it ended without a yield." if error is None else describe(error)[0]
