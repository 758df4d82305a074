"""The tasks of a bench: they do nothing, so that what is measured is the way there and back.

Nobody else's worker knows them: their names are ours.
"""

import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from shigoto.app import Shigoto
from shigoto.task import Task


async def noop(number: int) -> None:
    """Do nothing, on the event loop."""


def noop_sync(number: int) -> None:
    """Do nothing, in a thread."""


async def moment() -> int:
    """Tell when it began, on the clock that all processes of a machine share."""
    return time.monotonic_ns()


@dataclass(frozen=True, slots=True)
class Noops:
    """The tasks of one app."""

    noop: Task[[int], Coroutine[Any, Any, None]]
    noop_sync: Task[[int], None]
    moment: Task[[], Coroutine[Any, Any, int]]

    def in_queue(self, queue: str) -> "Noops":
        """The same, for jobs in this queue."""
        return Noops(
            self.noop.using(queue=queue), self.noop_sync.using(queue=queue), self.moment.using(queue=queue)
        )


def declare(app: Shigoto) -> Noops:
    """Make the tasks the app's own."""
    return Noops(
        noop=app.task(name="shigoto.bench.noop")(noop),
        noop_sync=app.task(name="shigoto.bench.noop-sync")(noop_sync),
        moment=app.task(name="shigoto.bench.moment")(moment),
    )
