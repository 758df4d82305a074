"""HTTP client of one server: its address, its connections, and what its answers mean.

An address is `http://HOST:8710`, or `https://HOST/a/path` where the server is mounted. Who we are is a token, which is
best kept out of addresses: it is taken from $SHIGOTO_TOKEN, or from the file that $SHIGOTO_TOKEN_FILE names. An address
that has one as its password is understood all the same, because it is how one process of a worker tells the next.

Connections are kept open between requests, and given to one request at a time. A kept connection may have been ended by
the server a moment ago; then a request that may be repeated is, once, on a new one. Whether the first was heard nobody
knows, so what must not happen twice is not repeated here.

Each problem that a server answers with is the error that the engine behind it has raised.
"""

import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from ssl import SSLCertVerificationError
from urllib.parse import SplitResult, quote, unquote, urlsplit

import msgspec
from msgspec import Struct

from shigoto.model.errors import (
    RequestError,
    ScheduleInvalid,
    ShigotoError,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    WorkerFenced,
)
from shigoto.model.text import without_secrets

PORT = 8710
PREFIX = "/api/v1"
LOOPBACK = ("localhost", "127.0.0.1", "::1")

_FIT_FOR_A_HEADER = re.compile(r"[\x21-\x7e]{1,500}")

NOT_NOW = frozenset({502, 503, 504})
NOT_US = frozenset({401, 403})
NO_ISSUER = frozenset({18, 19, 20, 21})  # codes of OpenSSL: nobody whom we trust has signed it

KEPT_FOR = 55.0  # seconds without a request; a server keeps them for longer
# Seconds. The system waits twice as long each time before it says again what was not acknowledged, so that a request
# that fell into a silence would be heard only as long after its end as it had lasted.
CONNECT_FOR = 4.0
HEARD_WITHIN = 5.0
CHUNK = 256 * 1024


class Address(Struct, frozen=True, kw_only=True):
    """Where the server is, and who we are there. `url` holds the token: only `shown` is for the eyes of people."""

    url: str
    shown: str
    tls: bool
    host: str
    port: int
    path: str  # before the routes of the API; it ends without a slash
    token: str | None

    @property
    def naked(self) -> bool:
        """Whether the token travels where others may read it."""
        return self.token is not None and not self.tls and self.host not in LOOPBACK

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def read_address(url: str, environ: Mapping[str, str] = os.environ) -> Address:
    """What the address says. Raises StoreRefused for what cannot be meant."""
    shown = without_secrets(url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise StoreRefused(f"{shown!r} is not the address of a server: {error}.") from None
    if not host:
        raise StoreRefused(f"{shown!r} names no host. Write http://HOST:{PORT}.")
    if parts.query or parts.fragment:
        raise StoreRefused(f"{shown!r} has options. The address of a server has none.")
    tls = parts.scheme == "https"
    token = _token(parts, environ)
    name = f"[{host}]" if ":" in host else host
    number = port or (443 if tls else PORT)
    where = f"{name}:{number}{parts.path.rstrip('/').removesuffix(PREFIX)}"
    password = "" if token is None else f":{quote(token, safe='')}@"
    return Address(
        url=f"{parts.scheme}://{password}{where}",
        shown=f"{parts.scheme}://{where}",
        tls=tls,
        host=host,
        port=number,
        path=parts.path.rstrip("/").removesuffix(PREFIX),
        token=token,
    )


def _token(parts: SplitResult, environ: Mapping[str, str]) -> str | None:
    said = parts.password or parts.username
    if said:
        return _fit(unquote(said), "the store address")
    if text := environ.get("SHIGOTO_TOKEN", "").strip():
        return _fit(text, "SHIGOTO_TOKEN")
    if path := environ.get("SHIGOTO_TOKEN_FILE", ""):
        try:
            text = Path(path).read_text().strip()
        except (OSError, ValueError) as error:
            raise StoreRefused(
                f"The file of the token cannot be read (SHIGOTO_TOKEN_FILE): {error}."
            ) from error
        return _fit(text, "the file of SHIGOTO_TOKEN_FILE")
    return None


def _fit(token: str, where: str) -> str:
    if _FIT_FOR_A_HEADER.fullmatch(token) is None:
        raise StoreRefused(f"What {where} has is no token. `shigoto token create` makes one: shg_….")
    return token


class Refusal(Struct, frozen=True):
    """An answer of the kind application/problem+json, as far as it matters here."""

    code: str = ""
    detail: str = ""
    field: str | None = None


def _classes(root: type[ShigotoError]) -> Iterator[type[ShigotoError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _classes(kind)


# Of those that say the same code, the first in the tree, which is the most general. What is said of a request is for
# whoever has written it by hand: here it means that the two do not understand each other. But a worker that is fenced
# stays so: that is not the trouble of a store, which one would meet by trying again.
CODES: dict[str, type[ShigotoError]] = {
    kind.code: kind
    for kind in reversed(list(_classes(ShigotoError)))
    if kind is WorkerFenced or not issubclass(kind, RequestError)
}


def failure(status: int, body: bytes, where: str) -> ShigotoError:
    """The error that an answer other than 200 stands for; `where` is the server, for people."""
    try:
        problem = msgspec.json.decode(body, type=Refusal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = Refusal()
    kind = CODES.get(problem.code)
    if kind is ScheduleInvalid:
        return ScheduleInvalid(problem.detail, problem.field or "")
    if kind is not None:
        return kind(problem.detail)
    said = problem.detail or f"It answers with status {status}."
    if status in NOT_NOW:
        return StoreUnavailable(f"The server at {where} cannot do it now. {said}")
    if status in NOT_US:
        return StoreRefused(f"The server at {where} does not let us in. {said}")
    if 300 <= status < 400:
        return StoreRefused(
            f"The server at {where} sends us elsewhere, where we do not go. Name its own address."
        )
    if not problem.code:
        return StoreRefused(f"At {where} is no Shigoto server, or one of another release. {said}")
    return StoreError(f"The server at {where} refused: {said}")


def distrusted(error: SSLCertVerificationError, where: str) -> StoreRefused:
    """What is wrong with the certificate of a server, and what helps if its authority is one of one's own."""
    helps = (
        " If an authority of your own has signed its certificate, name the file of that one in $SSL_CERT_FILE."
        if error.verify_code in NO_ISSUER
        else ""
    )
    return StoreRefused(
        f"The server at {where} cannot be trusted: {error.verify_message.rstrip('.')}.{helps}"
    )


class ServerRequest(Struct, frozen=True, kw_only=True):
    """One request; `repeatable` if it does no harm when it is heard twice."""

    method: str
    path: str
    headers: tuple[str, ...] = ()
    body: bytes = b""
    repeatable: bool = True


class ServerResponse(Struct, frozen=True):
    """What came back."""

    status: int
    body: bytes
    media_type: str = ""


class PendingRequest:
    """One request under way, until a deadline, which anybody may hang up."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._wire: socket.socket | None = None
        self._over = threading.Event()

    def abort(self) -> None:
        """End it at once, from any thread: whoever waits for the answer is told that there is none."""
        with self._lock:
            self._over.set()
            if self._wire is not None:
                with suppress(OSError):
                    # Not the method of a TLS socket, which would pull it from under the thread that reads from it.
                    socket.socket.shutdown(self._wire, socket.SHUT_RDWR)

    def attach(self, wire: socket.socket | None) -> None:
        """This is where it goes on, or nowhere."""
        with self._lock:
            self._wire = wire

    def pause(self, seconds: float) -> bool:
        """Wait; False if there is no time for that."""
        return seconds < self.left() and not self._over.wait(seconds)

    def left(self) -> float:
        """How many seconds it still has."""
        return self.until - time.monotonic()

    def time_left(self) -> float:
        """The same for a socket. Raises OSError if there are none, or nobody waits any more."""
        if self._over.is_set():
            raise ConnectionAbortedError("nobody waits for the answer")
        if (left := self.left()) <= 0:
            raise TimeoutError("no answer in time")
        return left


class ServerConnections:
    """All connections to one server. Safe from any thread, but not across a fork."""

    def __init__(self, address: Address) -> None:
        self._address = address
        host = f"[{address.host}]" if ":" in address.host else address.host
        self._head = f"Host: {host}:{address.port}\r\nAccept-Encoding: identity\r\nUser-Agent: shigoto\r\n"
        if address.token is not None:
            self._head += f"Authorization: Bearer {address.token}\r\n"
        self._lock = threading.Lock()
        self._kept: list[tuple[socket.socket, float]] = []
        self._closed = False
        self._tls: ssl.SSLContext | None = None

    def ask(self, request: ServerRequest, call: PendingRequest) -> ServerResponse:
        """Send a request and wait for its answer. Raises StoreUnavailable if there is none."""
        wire = self._take()
        try:
            if wire is not None and request.repeatable:
                try:
                    return self._exchange(wire, request, call)
                except (ConnectionError, _Nothing):  # also if nobody waits, which the next one tells
                    wire = None
            return self._exchange(wire, request, call)
        except ssl.SSLCertVerificationError as error:
            raise distrusted(error, self._address.shown) from error
        except (OSError, HTTPException) as error:
            raise StoreUnavailable(
                f"The server at {self._address.shown} does not answer: {_said(error)}."
            ) from error

    def close(self) -> None:
        """End what is open, and what is in use as soon as it is not."""
        with self._lock:
            self._closed = True
            kept, self._kept = self._kept, []
        for wire, _ in kept:
            wire.close()

    def _exchange(
        self, wire: socket.socket | None, request: ServerRequest, call: PendingRequest
    ) -> ServerResponse:
        if wire is None:
            wire = self._connect(call)
        keep = False
        try:
            call.attach(wire)
            wire.settimeout(call.time_left())
            wire.sendall(self._written(request))
            answer, keep = _read(wire, request.method, call)
        finally:
            call.attach(None)
            if keep:
                self._keep(wire)
            else:
                wire.close()
        return answer

    def _written(self, request: ServerRequest) -> bytes:
        path = f"{self._address.path}{request.path}"
        own = "".join(f"{header}\r\n" for header in request.headers)
        length = f"Content-Length: {len(request.body)}\r\n" if request.method != "GET" else ""
        head = f"{request.method} {path} HTTP/1.1\r\n{self._head}{own}{length}\r\n"
        return head.encode("ascii") + request.body

    def _connect(self, call: PendingRequest) -> socket.socket:
        where = self._address
        wire = socket.create_connection((where.host, where.port), min(CONNECT_FOR, call.time_left()))
        try:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # not on every system
                wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(HEARD_WITHIN * 1000))
            if where.tls:
                if self._tls is None:
                    self._tls = ssl.create_default_context()
                wire = self._tls.wrap_socket(wire, server_hostname=where.host)
        except BaseException:
            wire.close()
            raise
        return wire

    def _take(self) -> socket.socket | None:
        """The connection that was used last, if it is still of use."""
        now = time.monotonic()
        while True:
            with self._lock:
                if not self._kept:
                    return None
                wire, used_at = self._kept.pop()
            if now - used_at < KEPT_FOR and _is_open(wire):
                return wire
            wire.close()

    def _keep(self, wire: socket.socket) -> None:
        with self._lock:
            if not self._closed:
                self._kept.append((wire, time.monotonic()))
                return
        wire.close()


class _Nothing(HTTPException):
    """Not one byte of an answer came."""


def _read(wire: socket.socket, method: str, call: PendingRequest) -> tuple[ServerResponse, bool]:
    """The answer, and whether the connection may be used again."""
    wire.settimeout(call.time_left())
    response, begun = HTTPResponse(wire, method=method), False
    try:
        response.begin()
        begun = True
        parts: list[bytes] = []
        while part := response.read1(CHUNK):
            parts.append(part)
            wire.settimeout(call.time_left())
        if response.length:
            raise HTTPException("the answer was cut short")
        said = response.headers.get_content_type() if "Content-Type" in response.headers else ""
        return ServerResponse(response.status, b"".join(parts), said), not response.will_close
    except ConnectionError as error:
        # It does not say by itself how far the answer had come.
        raise (HTTPException if begun else _Nothing)(str(error)) from error
    finally:
        response.close()


def _is_open(wire: socket.socket) -> bool:
    """Whether the server has not ended it meanwhile: before a request, nothing else could there be to read."""
    try:
        wire.settimeout(0)
        socket.socket.recv(wire, 1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _said(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
