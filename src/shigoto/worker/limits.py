"""Time limits of running handlers: one timer for all of a pool.

`asyncio.timeout` arms and disarms a timer for every job, which took 5 µs, twice the rest of the runtime.
Nearly no job reaches its limit, so here a job only notes when its own is, and one timer stands at the
earliest that was noted. When it fires, the job it was set for has mostly ended long ago, and the timer moves
on to the earliest that still counts.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextvars import copy_context
from math import inf
from typing import Protocol

from shigoto.model.time import Millis


class Limited(Protocol):
    """Something that must end by `limit_at`, in the loop's time; infinity means no limit."""

    limit_at: float

    def time_out(self) -> None:
        """The limit has passed."""
        ...


def first_of(now: float, hard: Millis | None, soft: Millis | None) -> tuple[float, float, bool]:
    """When the first of two limits is reached, when the hard one is, and whether the first is the soft one."""
    hard_at = inf if hard is None else now + hard / 1000
    soft_at = inf if soft is None else now + soft / 1000
    return min(hard_at, soft_at), hard_at, soft_at < hard_at


class Limits:
    """Watches what `running` returns."""

    def __init__(self, running: Callable[[], Iterable[Limited]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._running = running
        self._variables = copy_context()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def watch(self, limit_at: float) -> None:
        """Be there at this instant."""
        if limit_at < self._timer_at:
            self.close()
            self._timer_at = limit_at
            # Not with the variables of the run that has asked for it.
            self._timer = self._loop.call_at(limit_at, self._look, context=self._variables.copy())

    def close(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf

    def _look(self) -> None:
        # A loop may call a timer a trifle before its time.
        now = max(self._loop.time(), self._timer_at)
        self._timer, self._timer_at = None, inf
        for run in self._running():
            if run.limit_at <= now:
                run.limit_at = inf
                run.time_out()
        next_at = min((run.limit_at for run in self._running()), default=inf)
        if next_at < inf:
            self.watch(next_at)
