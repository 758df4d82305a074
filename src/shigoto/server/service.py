"""The service: an ASGI app over the jobs of one Shigoto app.

    shigoto server                            by itself, on a port of its own (`server/listen.py`)
    outer.mount("/jobs", Service(app))        inside of somebody's own app

A request passes `request_limits.py` (size, time), `auth.py` (who is it), a route (`jobs.py` and its neighbours) and
`permissions.py` (may it), and ends as an op of the engine. Beside the requests run the parts: one listener for all who
wait for work, one reader for all who wait for results, the housekeeping, and a look now and then at whether the store
is there. Whoever serves a store also repairs it (rule A15): workers that come in by HTTP do not, so the housekeeping
fires schedules, makes due jobs ready, and frees the jobs of workers that are gone.

The parts live on one event loop. Where no lifespan reaches the service, as in a mounted one, they begin with the first
request; `async with service:` is for those who want to see them begin and end.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from random import Random
from typing import Any, Generic, Self, TypeVar

from fastapi import FastAPI
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from shigoto.app import Shigoto
from shigoto.engine.protocol import Engine
from shigoto.model.errors import ShigotoError
from shigoto.model.text import storable
from shigoto.model.version import VERSION
from shigoto.scheduler import Health, Scheduler
from shigoto.server.auth import Auth, heard
from shigoto.server.events import Feed
from shigoto.server.health import ReadinessProbe, metrics_of
from shigoto.server.long_poll import WorkWaiters
from shigoto.server.problems import handle_all
from shigoto.server.remote_workers import RemoteWorkers
from shigoto.server.request_limits import RequestLimits
from shigoto.worker.health import UNWRITTEN

T = TypeVar("T")

logger = logging.getLogger("shigoto.server")

PREFIX = "/api/v1"
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # seconds
FRESH_FOR = 1.0  # seconds for which limits and names of tasks are remembered
ENDED_WITHIN = 5.0  # seconds that the parts may take to end


class Service:
    """The ASGI app. Made once; it serves on one event loop at a time.

    `anonymous` lets callers on this machine in without a token, as long as none is stored; only for a service that
    listens on a loopback address. `housekeeping` fires schedules, makes due jobs ready and frees those of workers that
    are gone; without it somebody else must: a worker at the store, or `shigoto scheduler`.
    """

    def __init__(
        self,
        app: Shigoto,
        *,
        anonymous: bool = False,
        housekeeping: bool = True,
        name: str | None = None,
        random: Random | None = None,
    ) -> None:
        self.app = app
        self.name = storable("name", name) if name else f"{socket.gethostname()}:{os.getpid()}"
        self.random = random or Random()
        self.anonymous = anonymous
        self._with_scheduler = housekeeping
        self._limited = RequestLimits(make_api(self), self)
        self.metrics = metrics_of(self)
        self._parts: Parts | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._limits = Remembered(self._read_limits)
        self._tasks = Remembered(self._read_tasks)
        self.is_stopping = False
        self.waiters: WorkWaiters
        self.feed: Feed
        self.auth: Auth
        self.probe: ReadinessProbe
        self.remote_workers: RemoteWorkers
        self.scheduler: ServiceScheduler | None
        self._renew()

    @property
    def engine(self) -> Engine:
        """The engine of the app's store."""
        return self.app.engine

    @property
    def running(self) -> bool:
        """Whether its parts run."""
        return self._parts is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI servers ask for it."""
        match scope["type"]:
            case "http":
                await self._begin()
                await self._limited(scope, receive, send)
            case "lifespan":
                await self._live(receive, send)
            case "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            case _:
                raise RuntimeError(f"This is no server of {scope['type']!r}.")

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    def stopping(self) -> None:
        """Say that the service is about to stop: it gives out no more work, is not ready any more, and lets all who
        wait go at once. From any thread or signal handler."""
        self.is_stopping = True
        parts = self._parts
        if parts is not None:
            with suppress(RuntimeError):  # a closed loop has nobody left who waits
                parts.loop.call_soon_threadsafe(self._let_go)

    def allow_anonymous(self, allowed: bool) -> None:
        """Say whether callers on this machine may come in without a token; before it serves anybody."""
        self.anonymous = allowed
        self._renew()

    def see_to(self, errand: Coroutine[Any, Any, None]) -> None:
        """Do something that must be done although nobody waits for it; the service does not end before."""
        task = asyncio.create_task(errand, name="shigoto-errand")
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def limits(self) -> Mapping[str, int]:
        """How many pending jobs each queue may hold, where an operator has set it; as of a second ago at most."""
        return await self._limits.get()

    def limits_changed(self) -> None:
        """Somebody has set one of them here: whoever asks from now on hears of it at once."""
        self._limits.forget()

    async def known_tasks(self) -> frozenset[str]:
        """The tasks of the app and those that live workers have; as of a second ago at most."""
        return await self._tasks.get()

    async def _read_limits(self) -> Mapping[str, int]:
        settings = await self.engine.arun(self.engine.settings())
        return {each.name: each.max_pending for each in settings if each.max_pending is not None}

    async def _read_tasks(self) -> frozenset[str]:
        self.app.load()
        workers = await self.engine.arun(self.engine.workers())
        return frozenset(self.app.tasks).union(*(worker.tasks for worker in workers))

    async def _live(self, receive: Receive, send: Send) -> None:
        """The lifespan of an ASGI server."""
        await receive()
        try:
            await self._begin()
        except Exception as error:
            logger.exception("The service cannot begin")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._end()
        await send({"type": "lifespan.shutdown.complete"})

    async def _begin(self) -> None:
        """Start the parts on the running loop, unless they run there already."""
        loop, parts = asyncio.get_running_loop(), self._parts
        if parts is not None and parts.loop is loop:
            return
        if parts is not None:  # of a loop that has ended, and took them with it
            self._renew()
        self.app.load()
        self.app.exporters.begin()
        if self.app.tracing is not None:
            self.app.tracing.prepare()
        works: dict[str, Callable[[], Awaitable[None]]] = {
            "fan": self.waiters.run,
            "feed": self.feed.run,
            "pulse": self.probe.run,
        }
        if self.scheduler is not None:
            works["housekeeping"] = self.scheduler.run
        self._parts = Parts(loop, [_part(name, work, self) for name, work in works.items()])

    async def _end(self) -> None:
        parts, self._parts = self._parts, None
        self.is_stopping = True
        self._let_go()
        tasks = {*self._errands, *([] if parts is None else parts.tasks)}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=ENDED_WITHIN)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._renew()

    def _let_go(self) -> None:
        self.waiters.close()
        self.feed.close()
        self.probe.close()
        if self.scheduler is not None:
            self.scheduler.close()

    def _renew(self) -> None:
        """Parts for a loop to come."""
        self._parts = None
        self._errands = set()
        self.is_stopping = False
        self.waiters, self.feed = WorkWaiters(lambda: self.engine), Feed(lambda: self.engine)
        self.remote_workers = RemoteWorkers(lambda: self.engine, _loop_time)
        self.scheduler = ServiceScheduler(self) if self._with_scheduler else None
        self.probe = ReadinessProbe(self)
        self.auth = Auth(self, anonymous=self.anonymous, time=_loop_time)
        self._limits.forget()
        self._tasks.forget()


class Parts(Struct, frozen=True):
    loop: asyncio.AbstractEventLoop
    tasks: "list[asyncio.Task[None]]"


class Remembered(Generic[T]):
    """A value that is read anew when it is older than a moment; all who ask meanwhile share one reading."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._value: T
        self._read_at = float("-inf")
        self._reading: asyncio.Task[T] | None = None
        self._forgotten = 0  # times

    async def get(self) -> T:
        if _loop_time() - self._read_at < FRESH_FOR:
            return self._value
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._renew(), name="shigoto-remembers")
            self._reading.add_done_callback(heard)
        return await asyncio.shield(self._reading)

    def forget(self) -> None:
        """The next one who asks reads it; what is being read now may be too old."""
        self._read_at, self._reading = float("-inf"), None
        self._forgotten += 1

    async def _renew(self) -> T:
        asked_at, forgotten = _loop_time(), self._forgotten
        value = await self._read()
        if forgotten == self._forgotten:
            self._value, self._read_at = value, asked_at
        return value


def _part(name: str, work: Callable[[], Awaitable[None]], service: Service) -> "asyncio.Task[None]":
    async def run() -> None:
        try:
            await work()
        except Exception:
            logger.exception("A part of the service has ended: %s", name)
            service.probe.lost(name)

    return asyncio.create_task(run(), name=f"shigoto-{name}-{service.name}")


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class ServiceScheduler:
    """Keeps a scheduler running until it is closed. For one event loop.

    A scheduler by itself ends when its store cannot be used; this one begins again and again, for the service goes on
    living, and says so by `/readyz`.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._closed = asyncio.Event()
        self._scheduler: Scheduler | None = None
        self._trouble: str | None = None

    @property
    def idle(self) -> float | None:
        """For how many seconds no cycle has ended; None if none has begun."""
        figures = None if self._scheduler is None else self._scheduler.figures()
        return None if figures is None else figures.idle

    def health(self) -> Health | None:
        """How its scheduler is; None if none has begun."""
        return None if self._scheduler is None else self._scheduler.health()

    @property
    def locked(self) -> bool:
        """Whether nothing can be written, be it that the store answers."""
        return self._scheduler is not None and self._scheduler.overdue > UNWRITTEN

    async def run(self) -> None:
        """Begin anew whenever it cannot go on, until closed."""
        pause = FIRST_PAUSE
        while not self._closed.is_set():
            # It runs no code of tasks, so it does not matter what its user may do beyond what it needs.
            self._scheduler = Scheduler(
                self._service.app, name=self._service.name, any_role=True, random=self._service.random
            )
            try:
                await self._scheduler.run()
                began = True
            except ShigotoError as error:
                began = False
                self._tell(error)
            if self._closed.is_set():
                return
            pause = FIRST_PAUSE if began else min(LONGEST_PAUSE, 2 * pause)
            await self._rest(pause * self._service.random.uniform(0.5, 1))

    def close(self) -> None:
        """Finish the cycle at hand, and begin no other."""
        self._closed.set()
        if self._scheduler is not None:
            self._scheduler.stop()

    def _tell(self, error: ShigotoError) -> None:
        """Once for each kind of trouble, not for each try."""
        text = str(error)
        if text != self._trouble:
            logger.warning("The housekeeping of the service cannot begin, and tries again: %s", text)
        self._trouble = text

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)


def make_api(service: Service) -> FastAPI:
    """The routes of a service. What they are called and take is in the OpenAPI document, which needs no token."""
    # Which know the service, too.
    from shigoto.server import events, health, jobs, operations, records, routing, schedules, workers

    # In the order in which they are tried.
    parts = (jobs, workers, records, operations, schedules, events, routing)
    api = FastAPI(
        title="Shigoto",
        version=VERSION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api.state.service = service
    handle_all(api)
    api.state.parts = [("", health.router), *((PREFIX, part.router) for part in parts)]
    for prefix, router in api.state.parts:
        api.include_router(router, prefix=prefix)
    return api
