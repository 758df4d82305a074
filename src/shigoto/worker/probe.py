"""Asks a store again and again whether it is there: for those who are to say whether they are ready.

Only where somebody may want to know. A part of a worker that meets trouble tells of it by itself, but a worker whose
slots are all taken asks its store for nothing, and a store whose line is cut says nothing at all.
"""

import asyncio
from collections.abc import Callable

from msgspec import structs

from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreError, StoreUnavailable
from shigoto.worker.pulse import StoreSigns
from shigoto.worker.readiness import probing

EVERY = 2.0  # seconds
PATIENCE = 4.0  # seconds for one answer


class Probe:
    """Asks a store for as long as it runs. When it is made, the store has answered just now, as far as anybody knows.

    `engine` is called when it is first asked, `clock` counts seconds.
    """

    def __init__(self, engine: Callable[[], Engine], clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._answered_at = clock()
        self._refused: str | None = None

    def signs(self) -> StoreSigns:
        """What is known of the store now."""
        return StoreSigns(self._clock() - self._answered_at, self._refused)

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.ask()
            await asyncio.sleep(EVERY)

    async def ask(self) -> None:
        """Ask once. A store that cannot be reached says nothing by that; any other error is its answer."""
        try:
            engine = self._engine()
            await engine.arun(structs.replace(probing(engine), deadline=PATIENCE))
        except StoreUnavailable:
            return
        except StoreError as error:
            self._refused = error.code
            return
        self._refused = None
        self._answered_at = self._clock()
