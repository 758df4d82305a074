"""The parts of one worker, put together.

                 doorbell, poll                 slot free
    listener ───────────────────► claimer ◄──────────────── strands, threads ──► settler
                 promoter ───────────▲    ──── leases ────►     (runner)          │
                     ▲                                                            │ due again in …
                     └────────────────────────────────────────────────────────────┘

The keeper, the reporter and the sweeper work beside them.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from msgspec import Struct

from shigoto.model.clock import Millis
from shigoto.model.job import Lease
from shigoto.model.worker import Orders
from shigoto.task import Task
from shigoto.worker.claimer import Claimer
from shigoto.worker.keeper import Beats, Keeper
from shigoto.worker.listener import Listener
from shigoto.worker.pool import Pool, running
from shigoto.worker.promoter import Promoter
from shigoto.worker.reporter import Reporter
from shigoto.worker.runner import Runner
from shigoto.worker.settler import Settler
from shigoto.worker.station import Station
from shigoto.worker.stop import StopSwitch
from shigoto.worker.strands import Strands
from shigoto.worker.sweeper import Sweeper
from shigoto.worker.threads import Threads


class Settings(Struct, frozen=True, kw_only=True):
    """How a worker was asked to work, checked."""

    queues: tuple[str, ...] | None
    concurrency: int
    threads: int
    drain: bool
    lease: float
    poll: float
    stop_timeout: float
    beats: Beats


class Crew:
    """Makes the parts, knows who tells whom, and starts them. For the running event loop."""

    def __init__(
        self, station: Station, tasks: Mapping[str, Task[..., Any]], settings: Settings, switch: StopSwitch
    ) -> None:
        self.station = station
        self.switch = switch
        self.settler = Settler(station, self._flushed)
        self.keeper = Keeper(station, settings.beats, self._obey)
        self.claimer = Claimer(
            station,
            self.settler,
            queues=settings.queues,
            drained=(lambda: switch.throw("drained")) if settings.drain else None,
        )
        self.promoter = Promoter(station, self.claimer.look)
        runner, settle, room = Runner(tasks, station.random), self.settler.add, self.claimer.room
        on_loop = [name for name, task in tasks.items() if task.is_async]
        in_threads = [name for name, task in tasks.items() if not task.is_async]
        self.strands = Strands(station, runner, on_loop, size=settings.concurrency, settle=settle, room=room)
        self.threads = Threads(station, runner, in_threads, size=settings.threads, settle=settle, room=room)
        self.pools: list[Pool] = [pool for pool in (self.strands, self.threads) if pool.tasks]
        self._listener = Listener(station, self.claimer, self._rung)
        self._reporter = Reporter(station, self.pools)
        self._sweeper = Sweeper(station)
        self._seekers: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []
        self._claiming: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        """Start every part as a task of the group; a part that fails ends them all."""

        def begin(part: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            return group.create_task(work, name=f"shigoto-{part}-{self.station.name}")

        self._others = [
            begin("settler", self.settler.run()),
            begin("keeper", self.keeper.run()),
            begin("reporter", self._reporter.run()),
        ]
        self._claiming = begin("claimer", self.claimer.run(self.pools))
        self._claiming.add_done_callback(lambda _: self.switch.changed.ring())
        self._seekers = [
            begin("promoter", self.promoter.run()),
            begin("listener", self._listener.run()),
            begin("sweeper", self._sweeper.run()),
        ]

    def stop_seeking(self) -> None:
        """Look for no more work, and give back what has not been started."""
        self.claimer.close()
        for task in self._seekers:
            task.cancel()
        for pool in self.pools:
            self.settler.release(pool.take_back())

    def tell_stopping(self) -> None:
        """Let handlers know that the worker is about to stop."""
        for pool in self.pools:
            for hand in pool.hands():
                hand.signals.stopping = True

    def end(self) -> None:
        """End every part, wherever it is."""
        for task in (*self._seekers, *self._others, *([self._claiming] if self._claiming else [])):
            task.cancel()

    def idle(self) -> bool:
        """Whether nothing is held, and no claim is in flight."""
        return not self.station.held and (self._claiming is None or self._claiming.done())

    def running(self) -> int:
        """How many handlers are at work."""
        return sum(running(pool) for pool in self.pools)

    def _flushed(self, delays: list[Millis]) -> None:
        self.claimer.room()
        self.switch.changed.ring()
        if 0 in delays:
            self.claimer.look()
        if later := [delay for delay in delays if delay]:
            self.promoter.expect(min(later))

    def _rung(self) -> None:
        self.promoter.look()
        if self.station.held:
            self.keeper.nudge()

    def _obey(self, orders: Orders) -> None:
        if orders.fenced:
            self.settler.drop()
            self.switch.fence()
            return
        self.claimer.room()
        for number, token in orders.cancels:
            lease = self.station.held.get(number)
            if lease is not None and lease.token == token and not self._cancel(lease):
                # It lies in a buffer, or is on its way to the store: ask again soon.
                self.keeper.nudge()

    def _cancel(self, lease: Lease) -> bool:
        return any(pool.cancel(lease) for pool in self.pools)
