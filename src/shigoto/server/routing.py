"""Routes of the service: bodies and answers by msgspec on FastAPI, and the OpenAPI document of them.

One codec on both ends and one description of it: what msgspec accepts is what its JSON Schema says, no more and no
less, so that the OpenAPI document tells the truth. Its paths and parameters are FastAPI's own words for the routes.

The modules of routes import this one, so it imports none of them.
"""

import asyncio
import re
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from inspect import getclosurevars
from typing import Any, TypeVar, get_args
from warnings import catch_warnings, simplefilter

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from msgspec import DecodeError, Struct, ValidationError, json, structs
from msgspec.structs import fields

from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model import errors
from shigoto.server.problems import PROBLEM, Problem

T = TypeVar("T")

JSON = "application/json"
LOOK_WITHIN = 2.0  # seconds that a look at jobs may take

# Everybody may be answered so, whatever the route is.
USUAL = (400, 401, 403, 422, 429, 503)
WITH_BODY = (413, 415)

_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_described: dict[str, Any] = {}  # filled while the routes are declared, and never later

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
# Which field of an answer other operations are asked with: by name, so that one who is not there is not linked to.
LINKS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "submit_job": ("id", ("get_job", "list_attempts", "cancel_job")),
    "register_worker": ("worker", ("claim_jobs", "beat", "leave")),
    "add_schedule": ("name", ("get_schedule", "run_schedule", "remove_schedule")),
    "run_schedule": ("id", ("get_job",)),
}


async def body(request: Request, kind: type[T]) -> T:
    """The body of the request, which must be JSON of this kind. Raises RequestType, RequestMalformed, RequestInvalid.

    Where every field has a default, an empty body is as good as `{}`.
    """
    raw = await request.body()
    if not raw and _is_all_optional(kind):
        return kind()
    expect_type(request, JSON)
    return decoded(raw, kind)


def expect_type(request: Request, media_type: str) -> None:
    """Raise RequestType if the body says that it is something else."""
    said = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if said != media_type:
        raise errors.RequestType(f"The body must be sent as Content-Type: {media_type}.")


def decoded(raw: bytes, kind: type[T]) -> T:
    """A value of this kind out of JSON. Raises RequestMalformed for no JSON, RequestInvalid for any other kind."""
    try:
        return json.decode(raw, type=kind)
    except ValidationError as error:
        place = _PLACE.search(str(error))
        field = (place[1] if place else "") or "body"
        raise errors.RequestInvalid(f"{_PLACE.sub('', str(error))}.", field) from None
    except (DecodeError, ValueError, RecursionError):
        raise errors.RequestMalformed("The body is no JSON that can be read.") from None


def _is_all_optional(kind: Any) -> bool:
    return issubclass(kind, Struct) and not any(field.required for field in fields(kind))


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.encode(value), status, headers, JSON)


def nothing() -> Response:
    return Response(status_code=204)


async def looked(engine: Engine, op: Op[T]) -> T:
    """What somebody wants to see. Raises ServerDeadline if it takes too long: there may be no index for it."""
    time = asyncio.get_running_loop().time
    began_at = time()
    try:
        async with asyncio.timeout(LOOK_WITHIN + 1.0):
            return await engine.arun(structs.replace(op, deadline=LOOK_WITHIN))
    except (TimeoutError, errors.StoreUnavailable):
        if time() - began_at < LOOK_WITHIN:
            raise
        raise errors.ServerDeadline(
            f"It takes longer than {LOOK_WITHIN:g} s to find that out: narrow the filter, or ask for less."
        ) from None


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work comes to; it is given up, and None is the answer, when the client goes away meanwhile."""
    task = asyncio.create_task(work, name="shigoto-waits")
    return None if await gone(request, task) else task.result()


async def gone(request: Request, work: "asyncio.Task[Any]") -> bool:
    """Wait for the work, or until the client has gone, which ends it; whether it has.

    Only after the body was read: what is received here is thrown away.
    """
    watch = asyncio.create_task(_disconnected(request), name="shigoto-watches-client")
    try:
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        return watch.done()
    finally:
        for each in (work, watch):
            each.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def described() -> tuple[Any, ...]:
    """All kinds that routes take and give, for the components of the OpenAPI document."""
    return (Problem, *_described.values())


def spec(
    *,
    takes: Any = None,
    gives: Any = None,
    status: int = 200,
    also: Sequence[int] = (),
    problems: Sequence[int] = (),
) -> dict[str, Any]:
    """How a route is described: what `@router.post(path, **spec(…))` takes beside the path. `also` are other ways to
    succeed, with the same body."""
    codes = sorted({*USUAL, *problems, *(WITH_BODY if takes is not None else ())})
    responses: dict[int | str, dict[str, Any]] = {
        code: {"description": "Done", **_content(gives, JSON)} for code in (status, *also)
    }
    responses |= {code: {"description": "Refused", **_content(Problem, PROBLEM)} for code in codes}
    described: dict[str, Any] = {"status_code": status, "responses": responses, "response_model": None}
    described["response_class"] = Response
    if takes is not None:
        needed = not (isinstance(takes, type) and _is_all_optional(takes))
        described["openapi_extra"] = {"requestBody": {"required": needed, **_content(takes, JSON)}}
    return described


def _content(kind: Any, media_type: str) -> dict[str, Any]:
    if kind is None:
        return {}
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and issubclass(each, Struct) and each is not Problem:
            _described[each.__name__] = each
    return {"content": {media_type: {"schema": _reference(kind)}}}


def _reference(kind: Any) -> dict[str, Any]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {}


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
    for name, (field, others) in LINKS.items():
        if name in operations:
            route, operation = operations[name]
            operation["responses"][str(route.status_code)]["links"] = {
                other: {"operationId": other, "parameters": {field: f"$response.body#/{field}"}}
                for other in others
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
