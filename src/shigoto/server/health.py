"""Health of the service: `/healthz`, `/readyz` and `/metrics`.

    GET /healthz    200 as long as the process answers: for whoever would restart it
    GET /readyz     200 if the store has answered of late and could be written to, its schema is right, the housekeeping
                    goes round, and no stop was asked for; else 503 and why: for whoever sends it requests

    GET /metrics    for a token with the scope `read`, which is confined to no queue and no tenant: the names of all
                    queues and schedules are in it

The first two are open to everybody, and tell nothing of where the store is or what is in it. In the metrics, jobs that
workers run over HTTP are counted where they run; here is seen what becomes of the queues by that.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Request, Response
from msgspec import Struct, structs

from shigoto.model import errors
from shigoto.observe.metrics import MISSING, Metrics, metrics_if_shown
from shigoto.observe.store_gauges import GaugeValue
from shigoto.scheduler import gauge_values
from shigoto.server.auth import Reader, the_service
from shigoto.server.routing import answer, spec
from shigoto.worker.health import LOCKED
from shigoto.worker.starting import Prepared

if TYPE_CHECKING:
    from shigoto.server.service import Service

router = APIRouter()

ASK_EVERY, ANSWERED_WITHIN = 2.0, 4.0  # seconds
GOOD_FOR = 5.0  # seconds that an answer of the store counts
CYCLE_WITHIN = 15.0  # seconds
FIRST_WITHIN = 1.0  # seconds after the start for which somebody who asks too early waits

SILENT = "The store does not answer."
WORDS: dict[type[errors.StoreError], str] = {
    errors.SchemaMissing: "The store has no schema yet.",
    errors.SchemaTooNew: "The store was made by a newer release.",
    errors.StoreMoving: "The jobs are on their way to another store.",
    errors.StoreMoved: "The jobs were moved to another store.",
    errors.StoreRefused: "The store must not be used as it is.",
}


class Alive(Struct, frozen=True):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(Struct, frozen=True):
    """Whether it can do its work, and if not, why."""

    ready: bool
    reasons: list[str]


@router.api_route("/healthz", methods=["GET", "HEAD"], name="healthz", **spec(gives=Alive))
async def healthz() -> Response:
    """Whether the process lives."""
    return answer(Alive())


@router.api_route("/readyz", methods=["GET", "HEAD"], name="readyz", **spec(gives=Readiness))
async def readyz(request: Request) -> Response:
    """Whether it can do its work."""
    probe = the_service(request).probe
    await probe.begun()
    reasons = probe.reasons()
    return answer(Readiness(not reasons, reasons), 503 if reasons else 200)


class ReadinessProbe:
    """Asks the store now and then whether it is there, and remembers. For one event loop."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._closed = asyncio.Event()
        self._began_at: float | None = None
        self._answered_at = float("-inf")
        self._trouble: str | None = None
        self._lost: list[str] = []

    async def run(self) -> None:
        self._began_at = asyncio.get_running_loop().time()
        while not self._closed.is_set():
            await self._ask()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), ASK_EVERY)

    async def begun(self) -> None:
        """Give the parts a moment, if they have just begun: of a mounted service the first request starts them."""
        time = asyncio.get_running_loop().time
        self._began_at = time() if self._began_at is None else self._began_at
        until = self._began_at + FIRST_WITHIN
        while not self._closed.is_set() and time() < until and self.reasons():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), 0.02)

    def lost(self, part: str) -> None:
        """A part has ended by a fault of its own."""
        self._lost.append(part)

    def close(self) -> None:
        self._closed.set()

    def reasons(self) -> list[str]:
        """Why the service is not ready; empty if it is."""
        now = asyncio.get_running_loop().time()
        found: list[str] = []
        if self._service.is_stopping:
            found.append("The service is about to stop.")
        if now - self._answered_at > GOOD_FOR or self._trouble is not None:
            found.append(self._trouble or SILENT)
        found += [f"A part of the service has ended: {part}." for part in self._lost]
        scheduler = self._service.scheduler
        if scheduler is not None:
            idle = scheduler.idle
            if idle is None:
                found.append("The housekeeping has not begun.")
            elif idle > CYCLE_WITHIN:
                found.append("The housekeeping does not get on.")
            if scheduler.locked:
                found.append(LOCKED)
        return found

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                await self._probe()
        except TimeoutError:
            self._trouble = SILENT
        except errors.StoreError as error:
            self._trouble = next((WORDS[kind] for kind in type(error).__mro__ if kind in WORDS), SILENT)
        else:
            self._trouble = None
            self._answered_at = asyncio.get_running_loop().time()

    async def _probe(self) -> None:
        """The least that shows that the store is there and has the right schema."""
        engine = self._service.engine
        if isinstance(engine, Prepared):
            ready = engine.expect_ready(any_role=True)
            await engine.arun(structs.replace(ready, deadline=ANSWERED_WITHIN))
        await engine.arun(structs.replace(engine.time(), deadline=ANSWERED_WITHIN))


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request, caller: Reader) -> Response:
    """All of them, as Prometheus reads them."""
    if caller.restricted:
        raise errors.Forbidden(
            "The metrics tell of all queues and tenants, and the token is confined to some."
        )
    shown = the_service(request).metrics
    if shown is None:
        return Response(MISSING, 501, media_type="text/plain")
    body, content_type = await shown.scrape(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})


def metrics_of(service: "Service") -> Metrics | None:
    """What is counted of a service from now on; None if nobody could show it."""

    def more() -> list[GaugeValue]:
        told = [GaugeValue("ready", (), float(not service.probe.reasons()))]
        health = None if service.scheduler is None else service.scheduler.health()
        return told if health is None else [*told, *gauge_values(health)]

    return metrics_if_shown(service.app.bus, lambda: service.engine, more=more)
