"""The worker's ear: the doorbell, and the poll floor for when the doorbell is missed."""

import asyncio
from collections.abc import Callable

from shigoto.worker.station import Station

# A bell may ring for every job, and even for the worker's own commits. The first ring is answered at once;
# those that follow within a breath are answered together, or vain looks would fill the day.
BREATH = 0.003


class Listener:
    """Calls `look` for every ring and every poll, and `rung` for a ring only."""

    def __init__(self, station: Station, look: Callable[[], None], rung: Callable[[], None]) -> None:
        self._station = station
        self._look = look
        self._rung = rung

    async def run(self) -> None:
        """Listen until cancelled."""
        bell = self._station.engine.listen()
        try:
            while True:
                rang = await bell.wait(self._station.jittered_poll())
                self._look()
                if rang:
                    self._rung()
                    await asyncio.sleep(BREATH)
        finally:
            bell.close()
