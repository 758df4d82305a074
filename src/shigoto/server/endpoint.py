"""msgspec on FastAPI: bodies are read and written by msgspec, everything else of a request by FastAPI.

One codec on both ends and one description of it: what msgspec accepts is what its JSON Schema says, no more and no
less, so that the OpenAPI document tells the truth.
"""

import asyncio
import re
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar, get_args

from fastapi import Request, Response
from msgspec import DecodeError, Struct, ValidationError, json, structs
from msgspec.structs import fields

from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import (
    RequestInvalid,
    RequestMalformed,
    RequestType,
    ServerDeadline,
    StoreUnavailable,
)
from shigoto.server.problems import PROBLEM, Problem

T = TypeVar("T")

JSON = "application/json"
LOOK_WITHIN = 2.0  # seconds that a look at jobs may take

# Everybody may be answered so, whatever the route is.
USUAL = (400, 401, 403, 422, 429, 503)
WITH_BODY = (413, 415)

_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")


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
        raise RequestType(f"The body must be sent as Content-Type: {media_type}.")


def decoded(raw: bytes, kind: type[T]) -> T:
    """A value of this kind out of JSON. Raises RequestMalformed for no JSON, RequestInvalid for any other kind."""
    try:
        return json.decode(raw, type=kind)
    except ValidationError as error:
        place = _PLACE.search(str(error))
        field = (place[1] if place else "") or "body"
        raise RequestInvalid(f"{_PLACE.sub('', str(error))}.", field) from None
    except (DecodeError, ValueError, RecursionError):
        raise RequestMalformed("The body is no JSON that can be read.") from None


def _is_all_optional(kind: Any) -> bool:
    return issubclass(kind, Struct) and not any(field.required for field in fields(kind))


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The value as JSON."""
    return Response(json.encode(value), status, headers, JSON)


def nothing() -> Response:
    """An answer that has nothing to say but that it is done."""
    return Response(status_code=204)


async def looked(engine: Engine, op: Op[T]) -> T:
    """What somebody wants to see. Raises ServerDeadline if it takes too long: there may be no index for it."""
    time = asyncio.get_running_loop().time
    began_at = time()
    try:
        async with asyncio.timeout(LOOK_WITHIN + 1.0):
            return await engine.arun(structs.replace(op, deadline=LOOK_WITHIN))
    except (TimeoutError, StoreUnavailable):
        if time() - began_at < LOOK_WITHIN:
            raise
        raise ServerDeadline(
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


_described: dict[str, Any] = {}  # filled while the routes are declared, and never later


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
