"""A port on which a worker or a scheduler says how it is: `--health [HOST:]PORT`.

    GET /healthz    200 {"status":"ok"}                     it is alive: restart what does not answer
    GET /readyz     200 {"ready":true,"reasons":[]}         it works
                    503 {"ready":false,"reasons":["…"]}     it is alive, and this is why it does not work
    GET /metrics    200 what Prometheus reads               501 if prometheus-client is not installed

Nobody needs a token for it, and nothing can be changed by it: HTTP as small as it can be, by the standard library, one
answer for each connection. A caller gets two kilobytes and five seconds to say what he wants.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from msgspec import json

from shigoto.model.errors import OptionInvalid
from shigoto.observe.metrics import MISSING, Metrics
from shigoto.observe.storelook import Reading
from shigoto.worker.pulse import Readiness

logger = logging.getLogger("shigoto.worker")

MOST_HEAD = 2_048  # bytes of a request: its line and its headers
PATIENCE = 5.0  # seconds for a whole exchange
MOST_CONNECTIONS = 64
JSON = "application/json"
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    501: "Not Implemented",
    503: "Service Unavailable",
}


class HealthPort:
    """Has its port from when it is made, and listens there from `__aenter__` to `__aexit__`. 0 takes any that is free,
    and then `port` says which. Raises OptionInvalid if it cannot be had.

    `ready` is asked for each answer, on the event loop; `metrics` are shown, None if they cannot be.
    """

    def __init__(
        self, host: str, port: int, ready: Callable[[], Readiness], metrics: Metrics | None = None
    ) -> None:
        self._ready = ready
        self._metrics = metrics
        self._socket = _bound(host, port)
        self.host, self.port = self._socket.getsockname()[:2]
        self._server: asyncio.Server | None = None
        self._exchanges: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "HealthPort":
        self._server = await asyncio.start_server(
            self._connected, sock=self._socket, limit=MOST_HEAD, backlog=MOST_CONNECTIONS
        )
        logger.info("Health: port %d of %s, /healthz, /readyz and /metrics", self.port, self.host)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for exchange in self._exchanges:
            exchange.cancel()
        if self._exchanges:
            await asyncio.wait(self._exchanges)

    async def run(self) -> None:
        """Listen until cancelled."""
        async with self:
            await asyncio.Event().wait()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._exchanges) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        exchange = asyncio.create_task(self._exchange(reader, writer), name="shigoto-health")
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.LimitOverrunError:
                    head = b""
                writer.write(await self._answer(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError):
            pass
        finally:
            # Whoever does not read is not waited for.
            writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        line, _, rest = head.partition(b"\r\n")
        kind = JSON
        match line.split(b" "):
            case [method, target, version] if version.startswith(b"HTTP/1."):
                status, value = self._find(method, target.partition(b"?")[0])
            case _:
                method, status, value = b"GET", 400, {"status": "bad request"}
        if isinstance(value, Metrics):
            body, kind = await value.scrape(_header(rest, b"accept"))
        else:
            body = json.encode(value)
        headers = [
            f"HTTP/1.1 {status} {REASONS[status]}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
            *(["Allow: GET, HEAD"] if status == 405 else []),
        ]
        return "\r\n".join([*headers, "", ""]).encode("ascii") + (b"" if method == b"HEAD" else body)

    def _find(self, method: bytes, path: bytes) -> tuple[int, object]:
        if path not in (b"/healthz", b"/readyz", b"/metrics"):
            return 404, {"status": "not found"}
        if method not in (b"GET", b"HEAD"):
            return 405, {"status": "method not allowed"}
        if path == b"/healthz":
            return 200, {"status": "ok"}
        if path == b"/metrics":
            return (501, {"status": MISSING}) if self._metrics is None else (200, self._metrics)
        ready, reasons = self._ready()
        return (200 if ready else 503), {"ready": ready, "reasons": reasons}


def ready_of(readiness: Readiness) -> list[Reading]:
    """Whether it is ready, for the metrics."""
    return [Reading("ready", (), float(readiness[0]))]


def _header(headers: bytes, name: bytes) -> str:
    """The value of a header; empty if there is none."""
    for line in headers.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip().decode("latin-1")
    return ""


def _bound(host: str, port: int) -> socket.socket:
    listener: socket.socket | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise OptionInvalid(
            f"There can be no health port {port} on {host}: {error.strerror or error}."
        ) from error
    return listener
