"""Problem details: every error as `application/problem+json` with a stable code.

What a caller did wrong is told in the words of the error. What is wrong on our side is told in words that are written
here: a text that comes from a database, or from a fault of our own, may hold an address, a path, or somebody's data.
The log has those.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import UNSET, Struct, UnsetType, json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from shigoto.model import errors
from shigoto.model.errors import ShigotoError
from shigoto.model.text import fit

T = TypeVar("T")

logger = logging.getLogger("shigoto.server")

PROBLEM = "application/problem+json"
STREAM = "/api/v1/events"  # an answer without an end: whoever asks by HEAD would wait for nothing
SOON, LATER = "1", "5"  # seconds after which it may be worth trying again

# The nearest class of an error decides.
STATUS: Mapping[type[ShigotoError], int] = {
    errors.RequestMalformed: 400,
    errors.TokenMissing: 401,
    errors.TokenInvalid: 401,
    errors.Forbidden: 403,
    errors.JobNotFound: 404,
    errors.ScheduleNotFound: 404,
    errors.RequestNotFound: 404,
    errors.RequestMethod: 405,
    errors.JobNotRetryable: 409,
    errors.KeyTaken: 409,
    errors.IdTaken: 409,
    errors.LeaseLost: 409,
    errors.ReusedKey: 409,
    errors.ConfirmNeeded: 409,
    errors.ScheduleTaken: 409,
    errors.WorkerFenced: 410,
    errors.RequestTooLarge: 413,
    errors.PayloadTooLarge: 413,
    errors.RequestType: 415,
    errors.RequestInvalid: 422,
    errors.JobError: 422,
    errors.ScheduleError: 422,
    errors.AuthLimited: 429,
    errors.QueueFull: 429,
    errors.ServerError: 500,
    errors.Unsupported: 501,
    errors.ServerStopping: 503,
    errors.ServerDeadline: 503,
    errors.StoreError: 503,
}

# Of the store's troubles people are told the kind, and nothing that it said.
UNTOLD: Mapping[type[ShigotoError], str] = {
    errors.StoreBusy: "What was to be changed is locked by somebody else just now. Nothing was changed: try again.",
    errors.StoreMoving: "The jobs of this service are on their way to another store. Try again in a while.",
    errors.StoreMoved: "The jobs of this service were moved to another store, where it must be started anew.",
    errors.StoreRefused: "The store of this service must not be used as it is. Its operator can tell more.",
    errors.SchemaMissing: "The store of this service is not made yet: `shigoto migrate` makes it.",
    errors.SchemaTooNew: "The store of this service was made by a newer release, which must serve it.",
    errors.Unsupported: "The store of this service has no such capability.",
    errors.StoreUnavailable: "The store does not answer. Try again in a moment.",
    errors.StoreError: "The store cannot do that now. Its operator can tell more.",
}


# Bytes: an error quotes what was asked for, which may be as long as a request, and escapes make it longer.
MOST_DETAIL, MOST_FIELD = 800, 200


class Problem(Struct, frozen=True, kw_only=True):
    """The body of every answer that is no success. `code` is for programs, `detail` for people, `field` says where."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    matched: int | UnsetType = UNSET  # of REQUEST.CONFIRM: how many jobs it would be
    incident: str | UnsetType = UNSET  # of SERVER.ERROR: what the log calls it


def problem_of(error: ShigotoError) -> Problem:
    """The problem that an error is, as strangers may know it."""
    status = _nearest(error, STATUS)
    if status is None:
        return problem_of(_unexpected(error))
    detail = _nearest(error, UNTOLD)
    if detail is not None:
        logger.info("A request met trouble with the store: %s", error)
    field = getattr(error, "field", None)
    return Problem(
        title=error.code.rpartition(".")[2].replace("_", " ").capitalize(),
        status=status,
        code=error.code,
        detail=fit(detail or str(next(iter(error.args), "")) or error.code, MOST_DETAIL),
        field=fit(field, MOST_FIELD) if isinstance(field, str) else None,
        matched=error.matched if isinstance(error, errors.ConfirmNeeded) else UNSET,
        incident=str(error.args[1])
        if isinstance(error, errors.ServerError) and len(error.args) > 1
        else UNSET,
    )


def response_to(error: ShigotoError) -> Response:
    problem = problem_of(error)
    headers: dict[str, str] = {}
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    elif problem.status == 429:
        headers["Retry-After"] = LATER if isinstance(error, errors.QueueFull) else "60"
    elif problem.status == 503:
        headers["Retry-After"] = SOON
    if isinstance(error, errors.RequestTooLarge | errors.ServerStopping):
        headers["Connection"] = "close"  # nobody reads the rest of the body
    return Response(json.encode(problem), problem.status, headers, PROBLEM)


def handle_all(app: FastAPI) -> None:
    """Let every exception of the app's handlers become such an answer."""
    handlers: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        ShigotoError: _of_ours,
        RequestValidationError: _of_parameters,
        HTTPException: _of_routing,
        ClientDisconnect: _of_the_gone,
        Exception: _of_ours,
    }
    for kind, handle in handlers.items():
        app.add_exception_handler(kind, handle)


async def _of_ours(_: Request, error: Exception) -> Response:
    return response_to(error if isinstance(error, ShigotoError) else _unexpected(error))


async def _of_parameters(request: Request, error: Exception) -> Response:
    """A path, a query or a header that is not what the route takes; or a word that was taken for the id of a job."""
    methods = _methods_at(request)
    if request.method not in methods:
        return _of_method(methods)
    found: Sequence[dict[str, Any]] = error.errors() if isinstance(error, RequestValidationError) else ()
    first = found[0] if found else dict[str, Any]()
    place = [str(part) for part in first.get("loc", ())]
    name = ".".join(place[1:]) or "request"
    return response_to(
        errors.RequestInvalid(f"{name} is not as it must be: {first.get('msg', 'it is invalid')}.", name)
    )


async def _of_routing(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405:
        return _of_method(_methods_at(request))
    if status == 404:
        return response_to(
            errors.RequestNotFound("There is nothing at this address. See /api/v1/openapi.json.")
        )
    if 400 <= status < 500:
        return response_to(errors.RequestMalformed("The request cannot be read."))
    return response_to(_unexpected(error))


def _of_method(methods: Collection[str]) -> Response:
    response = response_to(errors.RequestMethod("This address is asked by another method."))
    response.headers["Allow"] = ", ".join(sorted(methods))
    return response


def _methods_at(request: Request) -> set[str]:
    """All methods of an address, whichever routes have them. An address that is written out is nobody's id."""
    path: str = request.scope["path"]
    root: str = request.scope.get("root_path", "")
    path = path.removeprefix(root)
    parts: Sequence[tuple[str, APIRouter]] = request.app.state.parts
    found = [
        route
        for prefix, router in parts
        for route in router.routes
        if isinstance(route, Route)
        and path.startswith(prefix)
        and route.path_regex.match(path[len(prefix) :])
    ]
    written_out = [route for route in found if not route.param_convertors]
    methods = {method for route in written_out or found for method in route.methods or ()}
    return methods | {"HEAD"} if "GET" in methods and path != STREAM else methods


async def _of_the_gone(_: Request, error: Exception) -> Response:
    """The client went away before it had said all: nobody hears this, and it is nobody's fault here."""
    return response_to(errors.RequestMalformed("The request was not sent to its end."))


def _unexpected(error: Exception) -> errors.ServerError:
    """A fault of our own, in the log with all that is known of it, under a name that the caller is told, too."""
    incident = uuid4().hex[:12]
    logger.error("Incident %s: a request was not answered", incident, exc_info=error)
    return errors.ServerError(f"Something is wrong with the service. Its log calls it {incident}.", incident)


def _nearest(error: ShigotoError, table: Mapping[type[ShigotoError], T]) -> T | None:
    return next((table[kind] for kind in type(error).__mro__ if kind in table), None)
