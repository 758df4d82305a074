"""Limits of a request: its size, and the time that it may take.

size        of the body, counted while it comes in; and of all bodies that are in memory at once
time        from the first byte of the body to the last of the answer, with what the caller asks to wait on top
kind        no compressed bodies, no WebSockets
stopping    a service that is about to stop gives out no more work
headers     that keep browsers from making anything else of an answer than what it is
"""

import asyncio
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shigoto.model import errors
from shigoto.server.problems import STREAM, response_to

if TYPE_CHECKING:
    from shigoto.server.service import Service

KIB, MIB = 1024, 1024 * 1024
SMALL = 64 * KIB
ONE = 2_560 * KIB  # a payload, a result or a checkpoint of a mebibyte, however it is escaped
MANY = 32 * MIB
ALL_TOGETHER = 96 * MIB  # bodies that are in memory at once
DEADLINE = 30.0  # seconds
LONGEST_WAIT = 60.0  # that a caller may ask for
LONGEST_STREAM = 3_600.0

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class RequestLimits:
    def __init__(self, app: ASGIApp, service: "Service", *, deadline: float = DEADLINE) -> None:
        self._app = app
        self._service = service
        self._deadline = deadline
        self._held = 0  # bytes of all bodies that are being read or worked on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        if exchange.headless:
            scope = {**scope, "method": "GET"}
        try:
            self._expect_allowed(scope, exchange.path)
            async with asyncio.timeout(allowed_for(scope, exchange.path, self._deadline)):
                await self._app(scope, self._counted(exchange), exchange.send)
        except errors.ShigotoError as error:
            await exchange.refuse(error)
        except TimeoutError:
            await exchange.refuse(errors.ServerDeadline("The answer took longer than a request may take."))
        except asyncio.CancelledError:
            if not self._service.is_stopping:
                raise
            await exchange.refuse(
                errors.ServerStopping("The service has stopped before the answer was there.")
            )
        except Exception:
            # `problems.py` has told the log of it, and the caller, if there was still something to tell.
            if not exchange.begun:
                raise
        finally:
            self._held -= exchange.size

    def _expect_allowed(self, scope: Scope, path: str) -> None:
        if self._service.is_stopping and gives_work(scope["method"], path):
            raise errors.ServerStopping(
                "The service is about to stop. Ask again in a moment, or ask another one."
            )
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        if any(
            name == b"content-encoding" and value.strip().lower() != b"identity" for name, value in headers
        ):
            raise errors.RequestType("Compressed bodies are not read.")
        length = dict(headers).get(b"content-length")
        if length is not None and not length.isdigit():
            raise errors.RequestMalformed("Content-Length is no number.")
        if length is not None and int(length[:20]) > most_bytes(path):
            raise too_large(path)

    def _counted(self, exchange: "Exchange") -> Receive:
        most = most_bytes(exchange.path)

        async def receive() -> Message:
            message = await exchange.receive()
            size = len(message.get("body", b""))
            if exchange.size + size > most:
                raise too_large(exchange.path)
            exchange.size += size
            self._held += size
            if self._held > ALL_TOGETHER:
                raise errors.ServerDeadline(
                    "The service has too much to read just now. Ask again in a moment."
                )
            return message

        return receive


class Exchange:
    """One request and its answer, on their way through."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.path = path_in(scope)
        # Whoever asks by HEAD is told what GET would tell, but for the body; a stream is nothing but that.
        self.headless = scope["method"] == "HEAD" and self.path != STREAM
        self.receive = receive
        self.size = 0
        self.begun = False
        self._scope = scope
        self._send = send

    async def send(self, message: Message) -> None:
        """Hand a part of the answer on, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.begun = True
            said = {name for name, _ in message.get("headers", ())}
            message["headers"] = [
                *message.get("headers", ()),
                *(each for each in HEADERS if each[0] not in said),
            ]
        elif self.headless:
            message["body"] = b""
        await self._send(message)

    async def refuse(self, error: errors.ShigotoError) -> None:
        """Answer with the error, if nothing was answered yet. Otherwise the server cuts the line: the answer has no
        end."""
        if self.begun:
            return
        await response_to(error)(self._scope, self.receive, self.send)


def path_in(scope: Scope) -> str:
    """The path of a request inside of the app, wherever that is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def too_large(path: str) -> errors.RequestTooLarge:
    return errors.RequestTooLarge(
        f"The body is larger than the {most_bytes(path) // KIB} KiB that are read here."
    )


def most_bytes(path: str) -> int:
    parts = path.removeprefix("/api/v1/").split("/")
    match parts:
        case ["jobs" | "schedules"]:
            return ONE
        case ["jobs", "batch"] | ["engine", *_] | ["workers", _, "settle"]:
            return MANY
        case ["workers", _, "jobs", *_] | ["workers", _, "beat" | "claim"]:
            return ONE
        case _:
            return SMALL


def gives_work(method: str, path: str) -> bool:
    """Whether a request would begin something that a service about to stop could not finish."""
    parts = path.removeprefix("/api/v1/").split("/")
    match parts:
        case ["workers"]:
            return method == "POST"
        case ["workers", _, "claim"] | ["engine", "claim" | "announce"] | ["events"] | ["doorbell"]:
            return True
        case _:
            return False


def allowed_for(scope: MutableMapping[str, Any], path: str, deadline: float) -> float:
    """How many seconds a request may take: what all may, and what it has asked to wait."""
    if path == STREAM:
        return LONGEST_STREAM
    if path.endswith("/claim"):
        return deadline + LONGEST_WAIT
    query: bytes = scope.get("query_string", b"")
    if b"wait=" not in query:
        return deadline
    try:
        asked = float(parse_qs(query.decode("latin-1"), max_num_fields=100).get("wait", ["0"])[-1])
    except ValueError:
        return deadline
    return deadline + (asked if 0 <= asked <= LONGEST_WAIT else 0.0)
