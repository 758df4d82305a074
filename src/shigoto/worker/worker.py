"""The worker: runs the jobs of an app until it is stopped.

    async with Worker(app):          # in a program of your own, for as long as the block runs
        ...

    await Worker(app).run()          # until stopped
    await Worker(app, drain=True).run()   # until there is nothing left to do

A worker in your own process shares it with everything else there. Handlers that block the event loop hold
each other up, though not the worker's sign of life, which comes from a thread; native code that keeps the
interpreter lock for longer than the lease can cost it even that. `shigoto worker` has a supervisor against it.

The path of a job: `claimer.py`, `runner.py`, `settler.py`, with `keeper.py` beside them. `parts.py` puts them
together.

It stops in phases, which `parts.py` has.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

from shigoto.app import Shigoto
from shigoto.model.errors import StoreError
from shigoto.model.ids import uuid7
from shigoto.model.text import storable
from shigoto.model.version import VERSION
from shigoto.model.worker import CONCURRENCY, LEASE, POLL, STOP_TIMEOUT, Announcement
from shigoto.observe.events import SchedulesDeclared, WorkerStarted, WorkerStopped, WorkerStopping
from shigoto.observe.log import log_events, some_of
from shigoto.options import whole
from shigoto.task import Task
from shigoto.worker import starting
from shigoto.worker.keeper import Beats
from shigoto.worker.parts import Isolation, WorkerParts, WorkerSettings, isolation_of
from shigoto.worker.process import RunningJobs, Source
from shigoto.worker.reporting import capturing
from shigoto.worker.starting import MOST_SLOTS, Lifespan, checked_seconds, cores, usual_threads
from shigoto.worker.state import Spawn, WorkerState, lease_clock, start_thread
from shigoto.worker.stopping import LEAST_PATIENCE, Runnable, Stopped
from shigoto.worker.ticker import Figures

logger = logging.getLogger("shigoto.worker")


class Worker(Runnable[Stopped]):
    """Runs jobs of the app's tasks. Made once, run once.

    `queues` None means all. `concurrency` bounds async handlers, `threads` sync ones (None: four per core, at
    most 32), `children` those in processes of their own (None: one per core; 0: no such processes). Such a process
    finds the app by `source`; None looks for a module that has it. A `lease` is how many seconds the store waits
    for a sign of life before it takes the jobs away, `poll` the longest wait for work that no doorbell announced, and
    `stop_timeout` bounds a stop.
    With `drain` the worker ends when there is nothing left that it could run, with `max_jobs` after so many jobs.
    On PostgreSQL it does not begin as a superuser or as the owner of the schema, unless `any_role`.
    `running_jobs` is where a supervisor can read what runs; `sweeps` False leaves the repair of the store to it.
    Schedules are left to others by `ticks` False, and by `drain`.
    `random`, `beats` and `spawn` are for simulations: chance, beats from a thread or the loop, and who starts threads.
    """

    kind = "worker"

    def __init__(
        self,
        app: Shigoto,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = CONCURRENCY,
        threads: int | None = None,
        children: int | None = None,
        drain: bool = False,
        lease: float = LEASE / 1000,
        poll: float = POLL / 1000,
        name: str | None = None,
        random: Random | None = None,
        stop_timeout: float = STOP_TIMEOUT / 1000,
        max_jobs: int | None = None,
        any_role: bool = False,
        source: Source | None = None,
        running_jobs: RunningJobs | None = None,
        sweeps: bool = True,
        ticks: bool = True,
        beats: Beats = "thread",
        spawn: Spawn = start_thread,
    ) -> None:
        super().__init__(storable("name", name) if name else f"{socket.gethostname()}:{os.getpid()}")
        self.id = uuid7()
        self._app = app
        self._random = random or Random()
        self._spawn = spawn
        self._settings = WorkerSettings(
            queues=starting.with_notices(starting.checked_queues(queues), wanted=app.notifier is not None),
            concurrency=whole("concurrency", concurrency, 1, MOST_SLOTS),
            threads=usual_threads() if threads is None else whole("threads", threads, 1, MOST_SLOTS),
            children=cores() if children is None else whole("children", children, 0, MOST_SLOTS),
            drain=drain,
            lease=checked_seconds("lease", lease, 1.0),
            poll=checked_seconds("poll", poll, 0.010),
            stop_timeout=checked_seconds("stop_timeout", stop_timeout, 0.0),
            beats=beats,
            sweeps=sweeps,
            ticks=ticks and not drain,
            supervised=running_jobs is not None,
            max_jobs=None if max_jobs is None else whole("max_jobs", max_jobs, 1, starting.MOST_JOBS),
            unknown_after=app.unknown_after,
        )
        self._any_role = any_role
        self._source = source
        self._running_jobs = starting.checked_running_jobs(
            running_jobs,
            starting.places(self._settings.concurrency, self._settings.threads, self._settings.children),
        )
        self._lifespan: Lifespan | None = None
        self._isolation = Isolation(None, frozenset())
        self._lifespan_state: Any = None
        self._parts: WorkerParts | None = None
        self._clock = lease_clock()
        self._announcing = False
        self._announced_at: float | None = None
        self._declared: list[str] = []

    @property
    def stop_timeout(self) -> float:
        """The seconds that a stop may take, a trifle more if the store does not answer."""
        return self._settings.stop_timeout

    @property
    def ready(self) -> bool:
        """True if it takes jobs: from the first claim that the store has answered to the first request to stop."""
        return self._parts is not None and self._parts.claimer.cycled and self._switch.reason is None

    def cycled_at(self) -> float | None:
        """Return when it finished its newest claim cycle, in seconds of `lease_clock`; None if it never has."""
        return self._running_jobs.cycled_at()

    def figures(self) -> Figures | None:
        """Return what it has counted of schedules since it began; None before, and if it leaves them to others."""
        ticker = None if self._parts is None else self._parts.ticker
        return None if ticker is None else ticker.tally.figures()

    async def run(self) -> Stopped:
        """Work until stopped, drained or fenced. If this is cancelled, jobs are given back at once.

        Raises DeclarationError for tasks that cannot work, StoreError if the store cannot be used at the start:
        among them SchemaMissing and NotReady; and ScheduleTaken if it declares a schedule that somebody else has.
        """
        return await super().run()

    async def wait(self) -> Stopped:
        """Wait for the end of an embedded worker, whoever stops it; cancelling this does not.

        A program that cannot do without its worker waits for this: a worker may be fenced.
        """
        return await super().wait()

    def recycle(self) -> None:
        """Let the worker claim no more, and end when nothing runs any more, however long that takes. From anywhere."""
        self._throw("recycled")

    async def _start(self) -> None:
        loop = self._take_loop()
        if self._settings.beats == "loop":
            self._clock = loop.time
        self._app.check()
        if self._app.notifier is not None:
            self._app.notifier.check()
        starting.keep_freed_memory()
        self._isolation = isolation_of(
            self._app, self._source, children=self._settings.children, virtual=self._settings.beats == "loop"
        )
        if self._switch.reason is not None:
            return
        lifespan = self._lifespan = Lifespan(self._app.enter_lifespan, self._switch.throw)
        beginning = asyncio.create_task(self._begin(lifespan), name=f"shigoto-begin-{self.name}")
        begun = False
        try:
            begun = await self._unless_stopped(beginning)
            self._announced_at = beginning.result() if begun else None
        finally:
            if self._announcing and not begun:
                await self._withdraw()
            if self._announced_at is None:
                await lifespan.exit(LEAST_PATIENCE)

    async def _begin(self, lifespan: Lifespan) -> float:
        """Enter the lifespan, tell the store of schedules and of this worker, and return when it was told."""
        engine, who = self._app.engine, (self.kind, self.name)
        await starting.expect_ready(engine, any_role=self._any_role)
        self._lifespan_state = await lifespan.enter()
        if self._settings.ticks and self._app.declared:
            if engine.capabilities.repairs:
                self._declared = await starting.declare(engine, self._app.declared, who, self._random)
            else:
                logger.warning(
                    "Worker %s has a server for its store, and leaves schedules to it: %s fire if that was started"
                    " with this app, `shigoto --app … server`, or a scheduler at the store was",
                    self.name,
                    some_of(self._app.declared),
                )
        if self._app.notifier is not None:
            await starting.want_notices(engine, who, self._random)
        self._announcing = True
        return await starting.announce(engine, self._announcement(), self._clock, self._random)

    async def _withdraw(self) -> None:
        """Take back an announcement that may yet reach the store; if that fails, sweepers will."""
        engine = self._app.engine
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LEAST_PATIENCE):
                await engine.arun(engine.leave(self.id))

    def _announcement(self, *, stopping: bool = False) -> Announcement:
        settings, tasks = self._settings, self._tasks()
        return Announcement(
            id=self.id,
            name=self.name,
            tasks=tuple(tasks),
            queues=settings.queues,
            slots=settings.concurrency + settings.threads + self._children(),
            version=VERSION,
            lease=round(settings.lease * 1000),
            host=socket.gethostname(),
            pid=os.getpid(),
            isolates=bool(tasks) and self._isolation.able.issuperset(tasks),
            stopping=stopping,
        )

    def _children(self) -> int:
        return 0 if self._isolation.source is None else self._settings.children

    async def _serve(self) -> Stopped:
        if self._announced_at is None or self._lifespan is None:
            return Stopped(reason=self._switch.reason or "stopped")
        settings, bus = self._settings, self._app.bus
        state = WorkerState(
            id=self.id,
            name=self.name,
            opening=lambda: self._app.engine,
            bus=bus,
            random=self._random,
            lease=settings.lease,
            poll=settings.poll,
            clock=self._clock,
            announced_at=self._announced_at,
            spawn=self._spawn,
            running_jobs=self._running_jobs,
        )
        log_events(bus)
        self._app.exporters.begin()
        if self._app.tracing is not None:
            self._app.tracing.prepare()
        sizes = settings.queues, settings.concurrency, settings.threads, self._children()
        bus.publish(WorkerStarted(self.name, self.id, *sizes, settings.supervised))
        if self._declared:
            bus.publish(SchedulesDeclared(self.name, tuple(self._declared)))
        if settings.beats == "thread" and not settings.supervised:
            logger.info("Worker %s has no supervisor: it beats from a thread of this process", self.name)
        parts = self._parts = WorkerParts(
            state,
            self._tasks(),
            self._app.declared,
            settings,
            self._switch,
            isolation=self._isolation,
            lifespan=self._lifespan,
            lifespan_state=self._lifespan_state,
            tracing=self._app.tracing,
            notifier=self._app.notifier,
        )
        with capturing():
            try:
                async with asyncio.TaskGroup() as group:
                    parts.start(group)
                    bus.publish(WorkerStopping(self.name, await self._switch.thrown()))
                    parts.aside("announce", self._announce_stop())
                    await parts.wind_down(settings.stop_timeout)
            finally:
                outcome = await parts.leave(settings.stop_timeout)
                bus.publish(WorkerStopped(self.name, outcome.reason, outcome.unreleased, outcome.running))
        return outcome

    async def _announce_stop(self) -> None:
        """Show in the store that this worker takes no more jobs; if that fails, the stop goes on."""
        engine = self._app.engine
        if self._switch.reason != "fenced":
            with suppress(StoreError):
                await engine.arun(engine.announce(self._announcement(stopping=True)))

    def _tasks(self) -> dict[str, Task[..., Any]]:
        tasks = self._app.tasks.values()
        return {name: task for task in tasks for name in (task.name, *task.aliases)}
