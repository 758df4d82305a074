"""Tasks that must never run twice at once, not even for a moment: `exclusive=True`.

A worker that has lost touch with the store goes on running what it has; others may begin the same jobs when its lease
is over. Runs of exclusive tasks end before that: nine tenths of a lease after the last beat that the store has
confirmed was sent. Whether the word of the store is late or the store is gone makes no difference to them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from shigoto.task import Task
from shigoto.worker.pool import Pool
from shigoto.worker.station import Station

PART = 0.9  # of a lease
LOOK = 0.1  # of a lease, at most, between looks


class Exclusives:
    """Watches over the running jobs of exclusive tasks, if there are such tasks."""

    def __init__(self, station: Station, pools: Sequence[Pool], tasks: Mapping[str, Task[..., Any]]) -> None:
        self._station = station
        self._pools = pools
        self.tasks = frozenset(name for name, task in tasks.items() if task.options.exclusive)

    async def run(self) -> None:
        """Watch until cancelled."""
        station = self._station
        while True:
            left = station.confirmed_at + station.lease * PART - station.clock()
            if left <= 0:
                self._cut()
            # Not all of it at once: the clock of leases goes on while the machine sleeps, that of timers does not.
            longest = station.lease * LOOK
            await asyncio.sleep(min(left, longest) if left > 0 else longest)

    def _cut(self) -> None:
        for pool in self._pools:
            for hand in pool.hands():
                lease = hand.lease
                if lease is not None and lease.task in self.tasks:
                    pool.cut(lease)
