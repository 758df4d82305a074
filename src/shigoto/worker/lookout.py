"""Looks for queues that wait too long, for rules that ask for it: nothing changes in the store when one does.

Every long-lived process of the app looks, and the notice of a queue is named after the window in which it is too old.
So however many look, they write one.
"""

from typing import TYPE_CHECKING
from uuid import UUID

from shigoto.model.errors import StoreError
from shigoto.worker.station import Station, Trouble
from shigoto.worker.wakeup import Wakeup

if TYPE_CHECKING:
    from shigoto.notify.notifier import Notifier

SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds


class Lookout:
    """Looks four times within the shortest limit of the rules, and at least twice a minute."""

    def __init__(self, station: Station, notifier: "Notifier", limit: int) -> None:
        self._station = station
        self._notifier = notifier
        self._pause = min(LONGEST_PAUSE, max(SHORTEST_PAUSE, limit / 4_000))
        self._trouble = Trouble(station, "lookout")
        self._wakeup = Wakeup()
        self._closed = False
        self._told: set[UUID] = set()  # by the look before: to tell of it again would change nothing

    def close(self) -> None:
        """Finish what is under way, and begin no more."""
        self._closed = True
        self._wakeup.ring()

    async def run(self) -> None:
        """Look until closed or cancelled."""
        while not self._closed:
            await self._wakeup.wait(await self._look())

    async def _look(self) -> float:
        """Look once, and return how many seconds to wait."""
        engine = self._station.engine
        try:
            now = await engine.arun(engine.time())
            notices = self._notifier.looks(now, await engine.arun(engine.oldest()))
            new = [notice for notice in notices if notice.id not in self._told]
            if new:
                await engine.arun(engine.enqueue_many(new))
        except StoreError as error:
            return self._trouble.met(error)
        self._trouble.over()
        self._told = {notice.id for notice in notices}
        return self._pause * self._station.random.uniform(0.8, 1.0)


def lookout_of(station: Station, notifier: "Notifier | None") -> Lookout | None:
    """A lookout, if a rule of the app asks for one and nobody else looks after the store."""
    limit = None if notifier is None else notifier.shortest_limit
    if notifier is None or limit is None or not station.engine.capabilities.repairs:
        return None
    return Lookout(station, notifier, limit)
