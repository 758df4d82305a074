"""The OpenAPI document: what the service takes and gives, for people, and for programs that make clients of it.

Paths and parameters are FastAPI's own words for the routes. Bodies are described by msgspec, which reads and writes
them, so that the document tells what is accepted, no more and no less.
"""

from collections.abc import Iterator
from inspect import getclosurevars
from typing import Any
from warnings import catch_warnings, simplefilter

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from msgspec import json

from shigoto.server.endpoint import JSON, described

router = APIRouter()

SCHEMAS = "#/components/schemas/{name}"
ABOUT = """Durable background jobs over HTTP: submit jobs, ask about them, wait for results, be a worker.

Every request but those for health and for this document carries a token, `Authorization: Bearer shg_…`, unless the
service listens on this machine only and no token was made. Each operation names the scopes of which one is needed
(`x-scopes`); `admin` implies `read`. A token for some queues or for one tenant sees nothing else.

Jobs run at least once. Times are RFC 3339 in UTC, durations are seconds. Unknown fields are refused. Every error is
`application/problem+json` with a `code` for programs and a `detail` for people.

There is neither gRPC nor WebSocket: `GET /events` streams server-sent events, and `wait=` holds an answer back.
"""
LINKS = {
    "submit_job": {
        "get_job": {"id": "$response.body#/id"},
        "list_attempts": {"id": "$response.body#/id"},
        "cancel_job": {"id": "$response.body#/id"},
    },
    "register_worker": {
        "claim_jobs": {"worker": "$response.body#/worker"},
        "beat": {"worker": "$response.body#/worker"},
        "leave": {"worker": "$response.body#/worker"},
    },
    "add_schedule": {
        "get_schedule": {"name": "$response.body#/name"},
        "run_schedule": {"name": "$response.body#/name"},
        "remove_schedule": {"name": "$response.body#/name"},
    },
    "run_schedule": {"get_job": {"id": "$response.body#/id"}},
}
"""Which answer says what another operation is asked with: by name, so that one who is not there is not linked to."""


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """This document; it needs no token."""
    api: FastAPI = request.app
    if api.openapi_schema is None:
        api.openapi_schema = document(api)
    return Response(json.encode(api.openapi_schema), media_type=JSON)


def document(api: FastAPI) -> dict[str, Any]:
    """The document of these routes. Operations are called as the functions that do them."""
    with catch_warnings():
        simplefilter("ignore")  # GET and HEAD of one route have the same name, until it is replaced below
        written: dict[str, Any] = get_openapi(
            title=api.title,
            version=api.version,
            openapi_version="3.1.0",
            description=ABOUT,
            routes=api.routes,
        )
    _, schemas = json.schema_components(described(), ref_template=SCHEMAS)
    written["components"] = {
        "schemas": dict(sorted(schemas.items())),
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    operations = dict(_operations(api, written["paths"]))
    for name, (route, operation) in operations.items():
        operation["operationId"] = name
        operation["tags"] = [_subject(route)]
        scopes = _scopes(route)
        operation["security"] = [{"token": []}] if scopes else []
        if scopes:
            operation["x-scopes"] = list(scopes)
        elif name == "readyz":  # it says why not, in the same words
            operation["responses"]["503"]["content"] = operation["responses"]["200"]["content"]
    for name, links in LINKS.items():
        if name in operations:
            route, operation = operations[name]
            operation["responses"][str(route.status_code)]["links"] = {
                other: {"operationId": other, "parameters": parameters}
                for other, parameters in links.items()
                if other in operations
            }
    plain: dict[str, Any] = json.decode(json.encode(written))  # defaults of msgspec's schemas may be tuples
    return plain


def _operations(api: FastAPI, paths: dict[str, Any]) -> Iterator[tuple[str, tuple[APIRoute, dict[str, Any]]]]:
    """Every operation of the document, by its name, with its route."""
    for prefix, part in api.state.parts:
        for route in part.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                path = paths[prefix + route.path_format]
                path.pop("head", None)  # it is a GET without the body
                for method in (route.methods or set[str]()) - {"HEAD"}:
                    yield route.name, (route, path[method.lower()])


def _subject(route: APIRoute) -> str:
    """What the operation is about: the first word of its path."""
    word = route.path.split("/")[1]
    return "health" if word in ("healthz", "readyz") else word


def _scopes(route: APIRoute) -> tuple[str, ...]:
    """The scopes of which the caller must have one; none if everybody may ask."""
    for needed in route.dependant.dependencies:
        if needed.call is not None and "scopes" in (held := getclosurevars(needed.call).nonlocals):
            scopes: tuple[str, ...] = held["scopes"]
            return scopes
    return ()
