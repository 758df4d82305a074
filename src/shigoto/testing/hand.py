"""Where one job of a test runs."""

import asyncio
from collections.abc import Callable
from contextvars import Context as Variables
from math import inf
from threading import Timer
from typing import Any

from shigoto.context import Signals
from shigoto.model.job import Lease
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Settlement
from shigoto.testing.private_loop import no_loop
from shigoto.worker.runner import Runner

GRACE = 2.0  # seconds from one cancel of a run to the next


class Hand:
    """The job in hand: in the calling thread if it is sync, in a task of its own if it is async.

    Time limits count real seconds. A sync handler is only told of its soft one: nothing can stop what runs in the
    calling thread.
    """

    task: asyncio.Task[Any]

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.signals = Signals()
        self.wanted: Ending | None = None
        self.cancels = 0
        self.worn = False
        self.variables: Variables | None = None
        self.limit_at = inf
        self.settlement: Settlement | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers: list[asyncio.TimerHandle | Timer] = []

    def call(self, runner: Runner, lease: Lease, variables: Variables) -> None:
        """Run a sync job, here and now, as if no event loop ran here."""
        try:
            with no_loop():
                self.settlement = runner.run_in_thread(self, lease, variables)
        finally:
            self._over()

    async def perform(self, runner: Runner, lease: Lease, variables: Variables) -> None:
        """Run an async job. If the caller is cancelled, so is the job, which is then given back."""
        self._loop = asyncio.get_running_loop()
        self.task = asyncio.create_task(
            self._run(runner, lease), name=f"shigoto-job-{lease.number}", context=variables
        )
        try:
            await asyncio.wait([self.task])
        finally:
            while not self.task.done():
                self._stop(Ending.RELEASED)
                await asyncio.wait([self.task], timeout=GRACE)
            self._over()
            if not self.task.cancelled():  # by its own handler, which returned all the same
                self.task.result()

    def limit(self, hard: Millis | None, soft: Millis | None) -> None:
        """Do something about a run that takes longer than one of these."""
        if hard is not None:
            self._later(hard / 1000, self._halt)
        if soft is not None and self._loop is None:
            timer = Timer(soft / 1000, self._tell)
            timer.daemon = True
            timer.start()
            self._timers.append(timer)
        elif soft is not None:
            self._later(soft / 1000, self._warn)

    def cancel(self) -> None:
        """Somebody wants the job to stop."""
        if not self.signals.cancelled:
            self.signals.cancelled = True
            self._interrupt(Ending.CANCELLED)

    def lose(self) -> None:
        """Somebody has taken the job away."""
        if not self.signals.lost:
            self.signals.lost = True
            self._interrupt(Ending.RELEASED)

    async def _run(self, runner: Runner, lease: Lease) -> None:
        self.settlement = await runner.run(self, lease)

    def _interrupt(self, wanted: Ending) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop, wanted)

    def _halt(self) -> None:
        self._stop(Ending.ERRORED)
        self._later(GRACE, self._halt)

    def _tell(self) -> None:
        self.signals.overdue = True

    def _warn(self) -> None:
        self._tell()
        if self.wanted is None and not self.task.done():
            self.cancels += 1
            self.task.cancel()

    def _stop(self, wanted: Ending) -> None:
        if not self.task.done():
            self.wanted = self.wanted or wanted
            self.cancels += 1
            self.task.cancel()

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        if self._loop is not None:
            self._timers.append(self._loop.call_later(seconds, do))

    def _over(self) -> None:
        for timer in self._timers:
            timer.cancel()
