"""Connections to one server: kept open between requests, given to one request at a time.

A kept connection may have been ended by the server a moment ago; then a request that may be repeated is, once, on a new
one. Whether the first was heard nobody knows, so what must not happen twice is not repeated here.
"""

import socket
import ssl
import threading
import time
from contextlib import suppress
from http.client import HTTPException, HTTPResponse

from msgspec import Struct

from shigoto.engine.http.address import Address
from shigoto.engine.http.failures import distrusted
from shigoto.model.errors import StoreUnavailable

KEPT_FOR = 55.0  # seconds without a request; a server keeps them for longer
# Seconds. The system waits twice as long each time before it says again what was not acknowledged, so that a request
# that fell into a silence would be heard only as long after its end as it had lasted.
CONNECT_FOR = 4.0
HEARD_WITHIN = 5.0
CHUNK = 256 * 1024


class Request(Struct, frozen=True, kw_only=True):
    """One request; `repeatable` if it does no harm when it is heard twice."""

    method: str
    path: str
    headers: tuple[str, ...] = ()
    body: bytes = b""
    repeatable: bool = True


class Answer(Struct, frozen=True):
    """What came back."""

    status: int
    body: bytes
    media_type: str = ""


class Call:
    """One request under way, until a deadline, which anybody may hang up."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._wire: socket.socket | None = None
        self._over = threading.Event()

    def hang_up(self) -> None:
        """End it at once, from any thread: whoever waits for the answer is told that there is none."""
        with self._lock:
            self._over.set()
            if self._wire is not None:
                with suppress(OSError):
                    # Not the method of a TLS socket, which would pull it from under the thread that reads from it.
                    socket.socket.shutdown(self._wire, socket.SHUT_RDWR)

    def speak_over(self, wire: socket.socket | None) -> None:
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


class Line:
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

    def ask(self, request: Request, call: Call) -> Answer:
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

    def _exchange(self, wire: socket.socket | None, request: Request, call: Call) -> Answer:
        if wire is None:
            wire = self._connect(call)
        keep = False
        try:
            call.speak_over(wire)
            wire.settimeout(call.time_left())
            wire.sendall(self._written(request))
            answer, keep = _read(wire, request.method, call)
        finally:
            call.speak_over(None)
            if keep:
                self._keep(wire)
            else:
                wire.close()
        return answer

    def _written(self, request: Request) -> bytes:
        path = f"{self._address.path}{request.path}"
        own = "".join(f"{header}\r\n" for header in request.headers)
        length = f"Content-Length: {len(request.body)}\r\n" if request.method != "GET" else ""
        head = f"{request.method} {path} HTTP/1.1\r\n{self._head}{own}{length}\r\n"
        return head.encode("ascii") + request.body

    def _connect(self, call: Call) -> socket.socket:
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


def _read(wire: socket.socket, method: str, call: Call) -> tuple[Answer, bool]:
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
        return Answer(response.status, b"".join(parts), said), not response.will_close
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
