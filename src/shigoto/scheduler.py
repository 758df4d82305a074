"""A scheduler by itself: it ticks, promotes and sweeps for a store, and runs no job.

    async with Scheduler(app):       # in a program of your own, for as long as the block runs
        ...

    await Scheduler(app).run()       # until stopped; `shigoto scheduler` does this

Every worker does the same beside its jobs, so a scheduler is needed by nobody: it is for those who want ticks while no
worker runs, or workers that leave them to it (`--no-ticks`). There may be as many as you like. None of them leads, and
none holds a lock: of all who decide a tick at once the store hears one.

    store does not answer   it goes on trying, tells so once, and once more when the store is back; what was due
                            meanwhile is caught up as each schedule says
    store is gone for good  it was moved, or is made for a newer release: the scheduler stops in good order, says why,
                            and its process ends with 1
    stop                    the cycle at hand is finished, and no other begins; what takes longer than `stop_timeout`,
                            or than a moment if the stop is asked for twice, is cut off. Cut off or not, what it was
                            about to do is either in the store as a whole, or not at all
"""

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine
from datetime import datetime
from random import Random
from typing import Any, Literal

from msgspec import Struct

from shigoto.app import Shigoto
from shigoto.handle import on_event_loop
from shigoto.model.errors import StoreError
from shigoto.model.ids import uuid7
from shigoto.model.text import storable
from shigoto.model.time import to_datetime
from shigoto.model.worker import LEASE, POLL, STOP_TIMEOUT
from shigoto.observe import events
from shigoto.observe.log import log_events, some_of
from shigoto.observe.store_gauges import GaugeValue
from shigoto.worker.claimer import Listener
from shigoto.worker.health import LOCKED, UNWRITTEN
from shigoto.worker.maintenance import Promoter, Sweeper, queue_age_watch_of
from shigoto.worker.starting import checked_seconds, declare, expect_ready, expect_ready_now, want_notices
from shigoto.worker.state import WorkerState, lease_clock
from shigoto.worker.stopping import LEAST_PATIENCE, Runnable
from shigoto.worker.ticker import Figures, Rates, ScheduleFigures, Spread, Ticker

__all__ = ["Figures", "Health", "Rates", "ScheduleFigures", "Scheduler", "SchedulerExit", "Spread"]

logger = logging.getLogger("shigoto.worker")

State = Literal["new", "running", "stopping", "stopped"]
Status = Literal["OK", "Warning", "Error"]
STATUSES: tuple[Status, ...] = ("OK", "Warning", "Error")

SHORT_OUTAGE = 10.0  # seconds without the store that are no more than a warning
LATE = 1_000  # milliseconds, of one tick in a hundred
TOO_LATE = 60_000  # which is no longer on time, but caught up
MANY_ERRORS = 0.5  # of the newest cycles
SLOW, STUCK = 10.0, 30.0  # seconds without a cycle, beyond the longest wait between two


class Health(Struct, frozen=True, kw_only=True):
    """How a scheduler is, and why: `details` has a sentence for all that is not as it should be.

    `connected`: the store has answered when it was last asked. `lateness` in milliseconds is that of one tick in a
    hundred, `error_rate` the part of the newest cycles in which something failed, `last_tick` when it last fired one.
    """

    status: Status
    details: tuple[str, ...]
    state: State
    connected: bool
    last_tick: datetime | None
    error_rate: float
    lateness: float | None


def judge(figures: Figures | None, state: State, poll: float, overdue: float = 0.0) -> Health:
    """How a scheduler is that has counted this; `figures` None if it has not begun. A sweep is `overdue` for so many
    seconds."""
    if figures is None or state in ("new", "stopped"):
        word = "has not begun" if state == "new" else "has stopped"
        return _health("Error", (f"The scheduler {word}.",), figures, state)
    errors: list[str] = []
    warnings: list[str] = []
    if figures.down_for is not None:
        place = errors if figures.down_for > SHORT_OUTAGE else warnings
        trouble = (figures.trouble or "").rstrip(".")
        place.append(f"The store has not answered for {figures.down_for:.0f} s: {trouble}.")
    elif figures.idle > poll + SLOW:
        place = errors if figures.idle > poll + STUCK else warnings
        place.append(f"No cycle has ended for {figures.idle:.0f} s.")
    if overdue > UNWRITTEN and figures.down_for is None:  # a cycle in which nothing is due only reads
        errors.append(LOCKED)
    if figures.error_rate:
        place = errors if figures.error_rate >= MANY_ERRORS else warnings
        place.append(f"Something failed in {figures.error_rate:.0%} of the newest cycles.")
    late = figures.lateness.p99
    if late is not None and late > LATE:
        place = errors if late > TOO_LATE else warnings
        place.append(f"One tick in a hundred is late by {late / 1000:.1f} s or more.")
    if figures.left_alone:
        many = len(figures.left_alone)
        verb = "schedule is" if many == 1 else "schedules are"
        warnings.append(
            f"{many} {verb} left to others, in time zones that are not known here: {some_of(figures.left_alone)}."
        )
    if state == "stopping":
        warnings.append("The scheduler is about to stop.")
    status: Status = "Error" if errors else "Warning" if warnings else "OK"
    return _health(status, (*errors, *warnings), figures, state)


def gauge_values(health: Health) -> list[GaugeValue]:
    """What Prometheus is shown of it (S4-18)."""
    told = [GaugeValue("scheduler_status", (status,), float(status == health.status)) for status in STATUSES]
    told.append(GaugeValue("scheduler_errors", (), health.error_rate))
    if health.last_tick is not None:
        told.append(GaugeValue("scheduler_last_tick", (), health.last_tick.timestamp()))
    return told


def _health(status: Status, details: tuple[str, ...], figures: Figures | None, state: State) -> Health:
    fired = None if figures is None else figures.last_fired
    return Health(
        status=status,
        details=details,
        state=state,
        connected=figures is not None and figures.down_for is None,
        last_tick=None if fired is None else to_datetime(fired),
        error_rate=0.0 if figures is None else figures.error_rate,
        lateness=None if figures is None else figures.lateness.p99,
    )


class SchedulerExit(Struct, frozen=True, kw_only=True):
    """How a scheduler ended: it was stopped, or its store is lost to it for good. `running` parts had to be cut off."""

    reason: Literal["stopped", "lost"]
    running: int = 0

    @property
    def exit_code(self) -> int:
        """Of a process that existed for it."""
        return 1 if self.running or self.reason == "lost" else 0


class Scheduler(Runnable[SchedulerExit]):
    """Ticks, promotes and sweeps for the store of an app. Made once, run once.

    It tests the connection before anything else. Made where no event loop runs, it does so at once, and there is no
    scheduler if that fails; made on a running event loop, where nobody may wait, it does so when it is run or entered.
    Either raises NotReady (WORKER.NOT_READY) if the store cannot be reached, SchemaMissing if it is not made yet. Then
    what the code declares is brought into the store, or ScheduleTaken is raised.

    `poll` is the longest wait between two looks at the schedules, `stop_timeout` bounds a stop, `lease` says how often
    it looks for workers that are gone, unless one of them has a shorter one. On PostgreSQL it does not begin as a
    superuser or as the owner of the schema, unless `any_role`. `random` is for simulations.
    """

    kind = "scheduler"

    def __init__(
        self,
        app: Shigoto,
        *,
        poll: float = POLL / 1000,
        lease: float = LEASE / 1000,
        stop_timeout: float = STOP_TIMEOUT / 1000,
        name: str | None = None,
        any_role: bool = False,
        random: Random | None = None,
    ) -> None:
        super().__init__(storable("name", name) if name else f"{socket.gethostname()}:{os.getpid()}")
        self._app = app
        self._poll = checked_seconds("poll", poll, 0.010)
        self._lease = checked_seconds("lease", lease, 1.0)
        self._stop_timeout = checked_seconds("stop_timeout", stop_timeout, 0.0)
        self._any_role = any_role
        self._random = random or Random()
        self._state: State = "new"
        self._declared: list[str] = []
        self._ticker: Ticker | None = None
        self._sweeper: Sweeper | None = None
        self._lost: StoreError | None = None
        if not on_event_loop():
            expect_ready_now(app.engine, any_role=any_role, kind=self.kind)

    @property
    def stop_timeout(self) -> float:
        """How many seconds a stop may take, a trifle more if the store does not answer."""
        return self._stop_timeout

    @property
    def ready(self) -> bool:
        """Whether it fires what is due."""
        return self._state == "running" and self._switch.reason is None

    def health(self) -> Health:
        """How it is: OK, Warning or Error, with details. Asks nobody, so it answers also while the store does not."""
        return judge(self.figures(), self._state, self._poll, self.overdue)

    def figures(self) -> Figures | None:
        """What it has counted since it began; None before."""
        return None if self._ticker is None else self._ticker.tally.figures()

    @property
    def overdue(self) -> float:
        """For how many seconds a sweep of its own should have ended well, and none has; 0 before it has begun."""
        return 0.0 if self._sweeper is None else self._sweeper.overdue

    async def totals(self) -> dict[str, dict[str, int]]:
        """What became of the ticks of every schedule, whoever fired them, by outcome: as the store has counted it."""
        engine = self._app.engine
        return {each.name: dict(each.counts) for each in await engine.arun(engine.schedules())}

    async def _start(self) -> None:
        self._take_loop()
        self._app.check()
        if self._switch.reason is not None:
            return
        beginning = asyncio.create_task(self._begin(), name=f"shigoto-begin-{self.name}")
        if await self._unless_stopped(beginning):
            beginning.result()

    async def _begin(self) -> None:
        engine = self._app.engine
        await expect_ready(engine, any_role=self._any_role, kind=self.kind)
        self._declared = await declare(engine, self._app.declared, (self.kind, self.name), self._random)
        if self._app.notifier is not None:
            await want_notices(engine, (self.kind, self.name), self._random)
        self._state = "running"

    async def _serve(self) -> SchedulerExit:
        if self._state != "running":
            self._state = "stopped"
            return SchedulerExit(reason="stopped")
        bus = self._app.bus
        log_events(bus)
        self._app.exporters.begin()
        bus.publish(events.SchedulerStarted(self.name, tuple(self._app.declared)))
        if self._declared:
            bus.publish(events.SchedulesDeclared(self.name, tuple(self._declared)))
        state = self._worker_state()
        ticker = self._ticker = Ticker(state, self._app.declared, watcher=self, tracing=self._app.tracing)
        promoter = Promoter(state, lambda: None)
        sweeper = self._sweeper = Sweeper(state, lambda: self._app.unknown_after, follows=True)
        listener = Listener(state, promoter.look, lambda: None)
        listening = self._part("listener", listener.run())
        parts = [
            self._part("ticker", ticker.run()),
            self._part("promoter", promoter.run()),
            self._part("sweeper", sweeper.run()),
        ]
        queue_age_watch = queue_age_watch_of(state, self._app.notifier)
        parts += [] if queue_age_watch is None else [self._part("queue-age-watch", queue_age_watch.run())]
        running = 0
        try:
            while self._switch.reason is None and not any(part.done() for part in (listening, *parts)):
                await self._switch.changed.wait(None)
            self._state = "stopping"
            bus.publish(events.SchedulerStopping(self.name, self._why()))
            listening.cancel()
            for each in (ticker, promoter, sweeper):
                each.close()
            if queue_age_watch is not None:
                queue_age_watch.close()
            running = await self._finish(parts)
        finally:
            await _cut_off([listening, *parts])
            self._state = "stopped"
            bus.publish(events.SchedulerStopped(self.name, self._why(), running))
        for part in (listening, *parts):
            if part.done() and not part.cancelled():
                part.result()  # whatever ended it by itself is for the caller
        return SchedulerExit(reason="stopped" if self._lost is None else "lost", running=running)

    def lost(self, error: StoreError) -> None:
        """The ticker has found that the store does not answer; told once."""
        self._app.bus.publish(events.SchedulerDegraded(self.name, str(error)))

    def back(self, seconds: float) -> None:
        """The store answers again."""
        self._app.bus.publish(events.SchedulerRecovered(self.name, seconds))

    def gone(self, error: StoreError) -> None:
        """The store will never answer to this process again."""
        logger.error("Scheduler %s ends: %s", self.name, error)
        self._lost = error
        self._switch.throw()

    def _why(self) -> str:
        return str(self._lost or self._switch.reason or "failed")

    def _worker_state(self) -> WorkerState:
        clock = lease_clock()
        return WorkerState(
            id=uuid7(),
            name=self.name,
            opening=lambda: self._app.engine,
            bus=self._app.bus,
            random=self._random,
            lease=self._lease,
            poll=self._poll,
            clock=clock,
            announced_at=clock(),
        )

    def _part(self, part: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name=f"shigoto-{part}-{self.name}")
        task.add_done_callback(lambda _: self._switch.changed.ring())
        return task

    async def _finish(self, parts: "list[asyncio.Task[None]]") -> int:
        """Let each part finish what it is at; tells how many have not."""
        time = asyncio.get_running_loop().time
        deadline = time() + self._stop_timeout
        while left := [part for part in parts if not part.done()]:
            patience = min(deadline - time(), LEAST_PATIENCE) if self._switch.hurried else deadline - time()
            if patience <= 0:
                return len(left)
            if not await self._switch.changed.wait(patience) and self._switch.hurried:
                return len([part for part in left if not part.done()])
        return 0


async def _cut_off(parts: "list[asyncio.Task[None]]") -> None:
    left = [part for part in parts if not part.done()]
    for part in left:
        part.cancel()
    if left:
        await asyncio.wait(left, timeout=LEAST_PATIENCE)
