"""One place for a runner process, filled again and again; and when to fill it next.

start ──► starting ──hello──► announcing ──ready──► at work ──► ended, failed, killed or dead
  ▲                                                                  │
  └──── at once, or after a pause that doubles while starts fail ────┘   or never: stopped, drained

A runner that claims no more leaves its place to the next one, and finishes what it has.
"""

import asyncio
from math import inf

from shigoto.worker.stopping import Wakeup
from shigoto.worker.supervisor.runnerprocess import RunnerProcess

SOUND = 1.0  # seconds at work that make a start a good one
FORGIVEN = 2  # short lives in a row before there is a pause, if they got to work at all
SHORT_PAUSE = 1.0  # seconds, for these
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
STILLBORN = 3  # deaths in a row, before anything was at work, that tell enough
MOST_FINISHING = 8  # runners of one post that only finish what they have; processes cost memory


class Post:
    """One place. `name` is what its runner processes are called, None for a name of their own."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.runner: RunnerProcess | None = None
        self.wakeup = Wakeup()
        self._in_vain = 0
        self._stillborn = 0
        self._finishing: set[asyncio.Task[float | None]] = set()

    @property
    def ready(self) -> bool:
        """Whether its runner is at work."""
        runner = self.runner
        return runner is not None and runner.alive and runner.ready_at is not None

    def pause(self, runner: RunnerProcess, *, wait_for_change: bool) -> float:
        """How many seconds to wait before the next start, now that this runner is gone."""
        if runner.failed is not None and wait_for_change:
            return inf
        recycled = runner.ended is not None and runner.ended.reason == "recycled"
        if recycled or runner.retiring or runner.ready_for() >= SOUND:
            self._in_vain = 0
            return 0.0
        if runner.ready_for() > 0:
            # It got to work, so another one will: what killed it runs alone from now on.
            self._in_vain += 1
            return 0.0 if self._in_vain <= FORGIVEN else SHORT_PAUSE
        return self.next_pause()

    def is_hopeless(self, runner: RunnerProcess) -> bool:
        """Whether all that were started here have died before they were ready, as this one, and that is enough."""
        self._stillborn = 0 if runner.ready_at is not None or runner.killed else self._stillborn + 1
        return self._stillborn >= STILLBORN

    async def leave_to_finish(self, runner: "asyncio.Task[float | None]") -> None:
        """Let this runner finish beside the next one; wait if there are too many of its kind."""
        self._in_vain = 0
        self._finishing.add(runner)
        runner.add_done_callback(self._finishing.discard)
        while len(self._finishing) > MOST_FINISHING:
            await asyncio.wait(self._finishing, return_when=asyncio.FIRST_COMPLETED)

    def next_pause(self) -> float:
        """One more start was in vain."""
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._in_vain, 30))
        self._in_vain += 1
        return pause
