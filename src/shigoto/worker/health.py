"""The readiness of a worker or a scheduler: its judgement, and the port that shows it (`--health [HOST:]PORT`).

    GET /healthz    200 {"status":"ok"}                     it is alive: restart what does not answer
    GET /readyz     200 {"ready":true,"reasons":[]}         it works
                    503 {"ready":false,"reasons":["…"]}     it is alive, and this is why it does not work
    GET /metrics    200 what Prometheus reads               501 if prometheus-client is not installed

Whether it is ready is a judgement over the signs of its life, and pure:

    stop asked for      red at once, whatever else is well
    runner not there    red until its place is filled by one that is at work
    store               red when it says no, has not answered for ten seconds, or lets nobody write: a program that
                        keeps the file locked holds up every settlement, and whoever only looks does not notice
    claim cycles        red when a runner has finished none for 15 s more than it may wait between two of them: its
                        event loop is blocked, it stands still, or the store does not answer it

A process that is not ready may be quite healthy: it is alive, and waits for its store. Whoever answers at all is alive.
The reasons are for anybody who can reach the port, so they name no address and no job.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from msgspec import Struct, json, structs

from shigoto.engine.protocol import Engine
from shigoto.model.errors import OptionInvalid, StoreError, StoreUnavailable
from shigoto.observe.metrics import MISSING, Metrics
from shigoto.observe.store_gauges import GaugeValue
from shigoto.worker.starting import probe_op

SILENT = 10.0  # seconds without an answer of the store
STUCK = 15.0  # seconds without a claim cycle, beyond the longest wait between two
UNWRITTEN = 8.0  # seconds that a sweep is overdue: a lock that somebody else holds for a moment is normal
LOCKED = "Nothing can be written: somebody keeps the store locked, or it is away."

Readiness = tuple[bool, tuple[str, ...]]  # whether it is ready, and a sentence for all that keeps it from it
PROBE_EVERY = 2.0  # seconds
PROBE_PATIENCE = 4.0  # seconds for one answer
logger = logging.getLogger("shigoto.worker")
MOST_HEAD = 2_048  # bytes of a request: its line and its headers
EXCHANGE_PATIENCE = 5.0  # seconds for a whole exchange
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


class StoreSigns(Struct, frozen=True):
    """How many seconds ago the store has last answered, the code of the error by which it has refused since, and for
    how many seconds a sweep is overdue, where one sweeps."""

    age: float
    refused: str | None = None
    overdue: float = 0.0


class Signs(Struct, frozen=True, kw_only=True):
    """What is known of it now. `missing` are places without a runner at work; `cycles` tells for each that is there how
    many seconds ago it has finished a claim cycle, None if it never has. `poll` is the longest wait between two.
    `details` is what it says of itself."""

    stopping: bool = False
    missing: int = 0
    stores: Sequence[StoreSigns] = ()
    cycles: Sequence[float | None] = ()
    poll: float = 0.0
    details: tuple[str, ...] = ()


def judge(signs: Signs) -> Readiness:
    """Return True if it is ready, and the reasons why it is not."""
    reasons = ["It was asked to stop."] if signs.stopping else []
    if signs.missing:
        reasons.append(f"{_count(signs.missing, 'runner process', 'runner processes')} not at work yet.")
    reasons += dict.fromkeys(text for store in signs.stores if (text := _of_store(store)) is not None)
    fresh = [age for age in signs.cycles if age is not None]
    if len(fresh) < len(signs.cycles):
        reasons.append("No claim cycle has ended yet.")
    if fresh and max(fresh) > signs.poll + STUCK:
        reasons.append(f"No claim cycle has ended for {max(fresh):.0f} s.")
    reasons += signs.details
    return not reasons, tuple(reasons)


def _of_store(signs: StoreSigns) -> str | None:
    if signs.refused is not None:
        return f"The store cannot be used ({signs.refused})."
    if signs.age > SILENT:
        return f"The store has not answered for {signs.age:.0f} s."
    return LOCKED if signs.overdue > UNWRITTEN else None


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one} is" if number == 1 else f"{number} {many} are"


class Probe:
    """Asks a store again and again whether it is there. When it is made, the store has answered just now, as far as
    anybody knows.

    Only where somebody may want to know. A part of a worker that meets trouble tells of it by itself, but a worker
    whose slots are all taken asks its store for nothing, and a store whose line is cut says nothing at all. `engine` is
    called when it is first asked, `clock` counts seconds.
    """

    def __init__(self, engine: Callable[[], Engine], clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._answered_at = clock()
        self._refused: str | None = None

    def signs(self) -> StoreSigns:
        return StoreSigns(self._clock() - self._answered_at, self._refused)

    async def run(self) -> None:
        while True:
            await self.ask()
            await asyncio.sleep(PROBE_EVERY)

    async def ask(self) -> None:
        """Ask once. A store that cannot be reached gives no answer; any other error is its answer."""
        try:
            engine = self._engine()
            await engine.arun(structs.replace(probe_op(engine), deadline=PROBE_PATIENCE))
        except StoreUnavailable:
            return
        except StoreError as error:
            self._refused = error.code
            return
        self._refused = None
        self._answered_at = self._clock()


class HealthPort:
    """Answers over HTTP, as small as it can be: by the standard library, one answer for each connection.

    Nobody needs a token for it, and nothing can be changed by it. A caller gets two kilobytes and five seconds to say
    what he wants. It has its port from when it is made, and listens there from `__aenter__` to `__aexit__`. 0 takes
    any that is free, and then `port` says which. Raises OptionInvalid if it cannot be had.

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
            async with asyncio.timeout(EXCHANGE_PATIENCE):
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


def ready_of(readiness: Readiness) -> list[GaugeValue]:
    return [GaugeValue("ready", (), float(readiness[0]))]


def _header(headers: bytes, name: bytes) -> str:
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
