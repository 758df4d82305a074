"""All routes, put together."""

from typing import TYPE_CHECKING

from fastapi import FastAPI

from shigoto.model.version import VERSION
from shigoto.server import (
    acting,
    events,
    health,
    jobs,
    metrics,
    openapi,
    operations,
    records,
    schedules,
    work,
)
from shigoto.server.problems import handle_all

if TYPE_CHECKING:
    from shigoto.server.service import Service

PREFIX = "/api/v1"
PARTS = (
    jobs,
    acting,
    work,
    records,
    operations,
    schedules,
    events,
    openapi,
)  # in the order in which they are tried


def make_api(service: "Service") -> FastAPI:
    """The routes of a service. What they are called and take is in the OpenAPI document, which needs no token."""
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
    api.state.parts = [("", health.router), ("", metrics.router), *((PREFIX, part.router) for part in PARTS)]
    for prefix, router in api.state.parts:
        api.include_router(router, prefix=prefix)
    return api
