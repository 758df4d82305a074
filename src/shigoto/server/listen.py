"""The process of `shigoto server`: where it listens, and how it stops.

Listens on loopback by default. Anywhere else it does not begin unless a token is stored, and nobody gets in without.
The first stop makes `/readyz` red, lets all who wait go, gives out no more work, and lets requests finish for ten
seconds; the second one cuts them off.

It has a connection of its own (`GuardedProtocol`): headers in time and in few words, and an end to a body that was
refused.

It overrides what uvicorn does not promise to keep; a test of each limit says when it has changed.
"""

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, cast

from msgspec import Struct
from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shigoto.app import Shigoto
from shigoto.model.errors import OptionInvalid, RequestMalformed, StoreError, StoreRefused
from shigoto.server.auth import is_loopback
from shigoto.server.problems import response_to
from shigoto.server.service import Service
from shigoto.worker.stopping import Runnable

logger = logging.getLogger("shigoto.server")

HOST, PORT = "127.0.0.1", 8710
GRACE = 10  # seconds that requests get to finish after the first stop
ENDED_WITHIN = 15.0  # seconds that the whole may take
KEEP_ALIVE = 75  # seconds that a connection may be idle; our own clients give theirs up after 55
BACKLOG = 2048
HEAD_WITHIN = 30.0  # seconds from the start of a connection or of a request to the end of its headers
# Seconds that a client gets to finish the body of a request that was answered before its end.
REST_WITHIN = 5.0
MOST_HEAD = 64 * 1024  # bytes of headers that are not complete yet


class GuardedProtocol(HttpToolsProtocol):
    """A connection that must say what it wants, in time and in few words: uvicorn itself would wait for ever, keep any
    number of headers, and go on reading a body that was refused."""

    _patience: asyncio.TimerHandle | None = None  # for the headers
    _rest: asyncio.TimerHandle | None = None  # for what is left of a body after the answer
    _head = 0
    _earlier: tuple[RequestResponseCycle, ...] = ()  # requests that are answered before the newest one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more, and tell who is at work on a request, be it that others were sent behind it."""
        self._stop_waiting()
        for cycle in self._unanswered(self._earlier):
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, as long as the headers are not too many."""
        super().data_received(data)
        if self._patience is not None:
            self._head += len(data)
            if self._head > MOST_HEAD:
                self._give_up()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._earlier = self._unanswered((*self._earlier, self.cycle))
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Let the client finish its body, for it may not look at the answer before; but not for ever."""
        super().on_response_complete()
        if self.cycle.more_body and not self.transport.is_closing():
            self._rest = self.loop.call_later(REST_WITHIN, self._give_up)

    def on_message_complete(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request of HTTP at all, or has an address without an end, as everything else is refused."""
        answer = response_to(RequestMalformed("The request cannot be read."))
        answer.headers["connection"] = "close"
        head = b"".join(name + b": " + value + b"\r\n" for name, value in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + bytes(answer.body))
        self.transport.close()

    @staticmethod
    def _unanswered(cycles: tuple[RequestResponseCycle | None, ...]) -> tuple[RequestResponseCycle, ...]:
        return tuple(cycle for cycle in cycles if cycle is not None and not cycle.response_complete)

    def _await_head(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(HEAD_WITHIN, self._give_up)
        self._head = 0

    def _stop_waiting(self) -> None:
        for timer in (self._patience, self._rest):
            if timer is not None:
                timer.cancel()
        self._patience = self._rest = None

    def _give_up(self) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.close()


class ServerExit(Struct, frozen=True, kw_only=True):
    """How a server ended: `running` requests had to be cut off."""

    reason: Literal["stopped", "failed"] = "stopped"
    running: int = 0

    @property
    def exit_code(self) -> int:
        """Of a process that existed for it."""
        return 1 if self.running or self.reason == "failed" else 0


class Serving(Runnable[ServerExit]):
    """A service with a port of its own. Made once, run once.

    `address` is where it listens, once it does. Raises StoreRefused if it would listen beyond this machine and no token
    is stored, OptionInvalid if it cannot listen there at all.
    """

    kind = "server"

    def __init__(
        self,
        app: Shigoto,
        *,
        host: str = HOST,
        port: int = PORT,
        certificate: Path | None = None,
        key: Path | None = None,
        housekeeping: bool = True,
        name: str | None = None,
    ) -> None:
        self.service = Service(app, housekeeping=housekeeping, name=name)
        super().__init__(self.service.name)
        if (certificate is None) != (key is None):
            raise OptionInvalid("TLS takes a certificate and its key: name both of them, or none.")
        self._host, self._port = host, port
        self._tls = {} if certificate is None else {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
        self._socket: socket.socket | None = None
        self.began = asyncio.Event()  # set when it accepts connections

    @property
    def stop_timeout(self) -> float:
        """How many seconds a stop may take."""
        return ENDED_WITHIN

    @property
    def ready(self) -> bool:
        return self.began.is_set() and self._switch.reason is None and not self.service.is_stopping

    @property
    def address(self) -> str:
        if self._socket is None:
            raise RuntimeError("It does not listen yet.")
        host, port = self._socket.getsockname()[:2]
        return f"{'https' if self._tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    def stop(self) -> None:
        """Ask it to stop; it is not ready from this moment on. Ask twice to cut off what still runs."""
        self.service.stopping()
        super().stop()

    async def _start(self) -> None:
        self._take_loop()
        _config(self.service, self._tls)
        listener = listening(self._host, self._port)
        try:
            self.service.allow_anonymous(is_loopback(listener.getsockname()[0]))
            if not self.service.anonymous:
                await expect_a_token(self.service)
        except BaseException:
            listener.close()
            raise
        self._socket = listener

    async def _serve(self) -> ServerExit:
        if self._socket is None:
            raise RuntimeError("It was not started.")
        if self._switch.reason is not None:
            self._socket.close()
            return ServerExit()
        raise_file_limit()
        server = _Server(_config(self.service, self._tls), self._tell)
        async with self.service:
            serving = asyncio.create_task(server.serve([self._socket]), name=f"shigoto-serves-{self.name}")
            serving.add_done_callback(lambda _: self._switch.changed.ring())
            try:
                return await self._until_ended(server, serving)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                self._socket.close()

    async def _until_ended(self, server: Server, serving: "asyncio.Task[None]") -> ServerExit:
        while self._switch.reason is None and not serving.done():
            await self._switch.changed.wait(None)
        self.service.stopping()
        server.should_exit = True
        time = asyncio.get_running_loop().time
        until = time() + GRACE
        while not (serving.done() or self._switch.hurried or time() >= until):
            await self._switch.changed.wait(until - time())
        server.force_exit = True
        left = {task for task in server.server_state.tasks if not task.done()}
        if left:
            logger.warning("Requests are cut off, for the service stops: %d", len(left))
        for task in left:
            task.cancel()
        await asyncio.wait([serving], timeout=1.0)
        if serving.done():
            serving.result()
        return ServerExit(running=len(left))

    def _tell(self) -> None:
        self.began.set()
        logger.info("Serves %s", self.address)


def serve(app: Shigoto, *, host: str = HOST, port: int = PORT, housekeeping: bool = True) -> int:
    """Serve the app until SIGINT or SIGTERM, and tell the exit code; `shigoto server` is the same with all options."""
    serving = Serving(app, host=host, port=port, housekeeping=housekeeping)

    async def run() -> ServerExit:
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, serving.stop)
        return await serving.run()

    return asyncio.run(run()).exit_code


def listening(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address. Raises OptionInvalid."""
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # The protocol is named, else asyncio would not turn off Nagle's algorithm: 40 ms for every answer.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host in ("::", "") else 1)
            made.bind(address)
        except BaseException:
            made.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        raise OptionInvalid(f"Nobody can listen on {host} port {port}: {error}.") from None
    return made


async def expect_a_token(service: Service) -> None:
    """Raise StoreRefused if nobody could get in. A store that does not answer lets nobody in either, until it does."""
    engine = service.engine
    try:
        tokens = await engine.arun(engine.registry.tokens())
        now = await engine.arun(engine.time())
    except StoreRefused:
        raise
    except StoreError as error:
        logger.warning("Whether there is a token cannot be asked now: %s", error)
        return
    if not any(token.alive(now) for token in tokens):
        raise StoreRefused(
            "The server would listen beyond this machine, and no token is stored: nobody could use it, and without"
            " tokens anybody could. Make one first: shigoto token create NAME --scope SCOPE."
        )


def raise_file_limit() -> None:
    """As many open connections as the system allows this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _config(service: Service, tls: dict[str, str]) -> Config:
    """Raises OptionInvalid for a certificate that cannot be used."""
    config = Config(
        service,
        http=GuardedProtocol,
        ws="none",
        lifespan="off",  # `Serving` enters the service itself, to leave it in any case
        access_log=False,
        log_config=None,
        log_level="error",
        server_header=False,
        proxy_headers=False,  # what they say is anybody's word
        timeout_keep_alive=KEEP_ALIVE,
        backlog=BACKLOG,
        ssl_certfile=tls.get("ssl_certfile"),
        ssl_keyfile=tls.get("ssl_keyfile"),
    )
    try:
        config.load()
    except OSError as error:
        raise OptionInvalid(f"The certificate or its key cannot be used: {error}.") from None
    return config


class _Server(Server):
    def __init__(self, config: Config, begun: Callable[[], None]) -> None:
        super().__init__(config)
        self._begun = begun

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._begun()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to whoever runs the process."""
        yield
