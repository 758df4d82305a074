"""Makes scheduled jobs ready at their instant.

The store says when the next one is due, and the promoter sleeps until then. It wakes early for what it could
not know: the doorbell rang, or a job of this very worker will be due sooner. And the listener tells it to look
once per poll in any case, because a doorbell may be missed.
"""

import asyncio
from collections.abc import Callable
from math import inf

from shigoto.model.errors import StoreError
from shigoto.model.time import Millis
from shigoto.observe.events import JobsPromoted
from shigoto.worker.station import Station, Trouble
from shigoto.worker.wakeup import Wakeup

PROMOTE_AT_ONCE = 1_000
# A doorbell that rings all the time asks for a look at the schedule all the time; this is often enough.
SHORTEST_PAUSE = 0.020


class Promoter:
    """Promotes for all workers of the store; `promoted` is called when jobs have become ready."""

    def __init__(self, station: Station, promoted: Callable[[], None]) -> None:
        self._station = station
        self._promoted = promoted
        self._time = asyncio.get_running_loop().time
        self._wakeup = Wakeup()
        self._closing = Wakeup()
        self._trouble = Trouble(station, "promoter")
        self._due_at = 0.0
        self._rung = False
        self._closed = False

    def close(self) -> None:
        """Finish what is under way, and begin no more."""
        self._closed = True
        self._closing.ring()
        self._wakeup.ring()

    def look(self) -> None:
        """The schedule may have changed."""
        self._rung = True
        self._wakeup.ring()

    def expect(self, delay: Millis) -> None:
        """A job will be due in so many milliseconds."""
        due_at = self._time() + delay / 1000
        if due_at < self._due_at:
            self._due_at = due_at
            self._wakeup.ring()

    async def run(self) -> None:
        """Promote until closed or cancelled."""
        while not self._closed:
            began_at, self._due_at, self._rung = self._time(), inf, False
            try:
                pause = await self._promote()
            except StoreError as error:
                await self._closing.wait(self._trouble.met(error))
                continue
            self._trouble.over()
            # The earlier of what the store said and what came up while it was asked.
            self._due_at = min(self._due_at, began_at + pause)
            await self._sleep(began_at + SHORTEST_PAUSE)

    async def _promote(self) -> float:
        """Promote once, and return how many seconds to wait."""
        engine, limit = self._station.engine, PROMOTE_AT_ONCE
        promoted = await self._station.ask("promote", engine.promote(limit))
        if promoted.count:
            self._station.bus.publish(JobsPromoted(self._station.name, promoted.count))
            self._promoted()
        if promoted.count == limit:
            return 0.0
        return inf if promoted.next_in is None else promoted.next_in / 1000

    async def _sleep(self, soonest: float) -> None:
        """Wait until the next job is due; a ring may shorten that, but not below the shortest pause."""
        while not self._closed:
            if self._rung:
                self._due_at = min(self._due_at, soonest)
            pause = self._due_at - self._time()
            if pause <= 0 or not await self._wakeup.wait(None if pause == inf else pause):
                return
