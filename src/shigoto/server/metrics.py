"""What Prometheus is shown of the service: its queues, its housekeeping, its store.

    GET /metrics    for a token with the scope `read`, which is confined to no queue and no tenant: the names of all
                    queues and schedules are in it

Jobs that workers run over HTTP are counted where they run; here is seen what becomes of the queues by that.
"""

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from shigoto.model.errors import Forbidden
from shigoto.observe.metrics import MISSING, Metrics, metrics_if_shown
from shigoto.observe.store_gauges import Reading
from shigoto.scheduler import readings
from shigoto.server.auth import Reader, the_service

if TYPE_CHECKING:
    from shigoto.server.service import Service

router = APIRouter()


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request, caller: Reader) -> Response:
    """All of them, as Prometheus reads them."""
    if caller.restricted:
        raise Forbidden("The metrics tell of all queues and tenants, and the token is confined to some.")
    shown = the_service(request).metrics
    if shown is None:
        return Response(MISSING, 501, media_type="text/plain")
    body, content_type = await shown.scrape(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})


def metrics_of(service: "Service") -> Metrics | None:
    """What is counted of a service from now on; None if nobody could show it."""

    def more() -> list[Reading]:
        told = [Reading("ready", (), float(not service.pulse.reasons()))]
        health = None if service.housekeeping is None else service.housekeeping.health()
        return told if health is None else [*told, *readings(health)]

    return metrics_if_shown(service.app.bus, lambda: service.engine, more=more)
