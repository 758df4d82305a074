"""A line between a client and a server on loopback, that can be slow, silent, cut or refused at will.

    client ──► Proxy ──► server        to_server
    client ◄── Proxy ◄── server        to_client

How the line behaves is a `Mode`, and can be changed while connections are open. Bytes are never dropped from the middle
of a stream, because TCP does not do so either: on a silent line they wait, and arrive when it speaks again, or never.
"""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Any, Literal, TypeVar

from msgspec import Struct

Direction = Literal["to_server", "to_client"]
BOTH: tuple[Direction, ...] = ("to_server", "to_client")
CHUNK = 64 * 1024
START_DEADLINE = 10.0
AT_ONCE = struct.pack("ii", 1, 0)  # linger for no time at all: a close is a reset

T = TypeVar("T")


class Pass(Struct, frozen=True):
    """As if nobody stood between."""


class Delay(Struct, frozen=True):
    """Everything takes `seconds` longer, and up to `jitter` more; the order stays."""

    seconds: float
    jitter: float = 0.0
    directions: tuple[Direction, ...] = BOTH


class Silent(Struct, frozen=True):
    """Nothing arrives in these directions, and nobody is told: neither bytes nor ends nor resets.

    New connections are taken, as a kernel does, and stay silent too.
    """

    directions: tuple[Direction, ...] = BOTH


class HalfOpen(Struct, frozen=True):
    """Whoever is connected when this is set hears nothing any more, for ever, and is not told; new ones pass.

    So it looks if a firewall between forgets its connections.
    """


class Reset(Struct, frozen=True):
    """Connections are reset: all that are open, and of the new ones such a share."""

    probability: float = 1.0


class Refuse(Struct, frozen=True):
    """Nobody listens. What is open stays so; `cut` is for that."""


class CutAfterBytes(Struct, frozen=True):
    """Each connection is reset when so many bytes have passed in this direction since the mode was set."""

    count: int
    direction: Direction = "to_client"


class CutAfterMatch(Struct, frozen=True):
    """The words `pattern` reach the server, its answer comes as far as here, and then the client is cut off.

    So the server has done what it was asked for, and the client cannot know. A share of the matches is left alone.
    """

    pattern: bytes
    probability: float = 1.0


Mode = Pass | Delay | Silent | HalfOpen | Reset | Refuse | CutAfterBytes | CutAfterMatch


class Proxy:
    """Listens on a port of its own, from the start to the end of the block, in a thread of its own; on loopback, or on
    the address that it is told.

    Whoever sets a mode gets back when it holds. `accepted` and `cuts` count what has happened to connections, `matches`
    the words that were looked for, and `doomed` those after which the line was cut.
    """

    def __init__(
        self, port: int, host: str = "127.0.0.1", *, seed: object = 0, listen: str = "127.0.0.1"
    ) -> None:
        self.target = host, port
        self._host = listen
        self.accepted = 0
        self.cuts = 0
        self.matches = 0
        self.doomed = 0
        self.passed: dict[Direction, int] = dict.fromkeys(BOTH, 0)
        self._random = Random(f"proxy {seed}")
        self._mode: Mode = Pass()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._news = threading.Condition()
        self._links: set[_Link] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self._reserved: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, name="faults-proxy", daemon=True)
        self.port = 0

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self._call(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def mode(self) -> Mode:
        """How the line behaves now."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._call(self._set(mode))

    def cut(self) -> int:
        """Reset every open connection once, and say how many there were."""
        return self._call(self._cut_all())

    def wait_for(self, true: Callable[["Proxy"], bool], seconds: float = 10.0) -> bool:
        """Wait until this is true of the counts; False if it takes too long."""
        deadline = time.monotonic() + seconds
        with self._news:
            return self._news.wait_for(lambda: true(self), max(0.0, deadline - time.monotonic()))

    # In the thread of the proxy, from here on.

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_DEADLINE)

    async def _open(self) -> None:
        self._reserve()
        await self._listen()

    def _reserve(self) -> None:
        """Hold the port without listening: a connection to it is refused, and nobody else can take it."""
        self._reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind((self._host, self.port))
        self.port = self._reserved.getsockname()[1]

    async def _listen(self) -> None:
        if self._reserved is not None:
            self._server = await asyncio.start_server(self._accept, sock=self._reserved)
            self._reserved = None

    async def _close(self) -> None:
        self._stop_listening()
        for link in list(self._links):
            link.reset()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    async def _set(self, mode: Mode) -> None:
        self._mode = mode
        for link in self._links:
            link.passed_in_mode = dict.fromkeys(BOTH, 0)
            link.forgotten = link.forgotten or isinstance(mode, HalfOpen)
        if isinstance(mode, Refuse):
            if self._server is not None:
                self._stop_listening()
                self._reserve()
        else:
            await self._listen()
        if isinstance(mode, Reset):
            await self._cut_all()
        self._changed.set()
        self._changed = asyncio.Event()

    async def _cut_all(self) -> int:
        links = list(self._links)
        for link in links:
            link.reset()
        return len(links)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self._links.add(link)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self._count(accepted=1)
        mode = self._mode
        try:
            if isinstance(mode, Reset) and self.happens(mode.probability):
                link.reset()
            else:
                await link.run(self.target)
        finally:
            link.end()
            self._links.discard(link)

    def happens(self, probability: float) -> bool:
        """Draw."""
        return self._random.random() < probability

    def jitter(self, seconds: float) -> float:
        """Draw a share of this."""
        return self._random.random() * seconds

    async def until_it_speaks(self, direction: Direction) -> None:
        """Wait while nothing arrives in this direction."""
        while isinstance(self._mode, Silent) and direction in self._mode.directions:
            await self._changed.wait()

    def tell(self, direction: Direction, count: int) -> None:
        """So many bytes were passed on."""
        with self._news:
            self.passed[direction] += count
            self._news.notify_all()

    def was_cut(self) -> None:
        """A connection was reset by us."""
        self._count(cuts=1)

    def _count(self, *, accepted: int = 0, cuts: int = 0) -> None:
        with self._news:
            self.accepted += accepted
            self.cuts += cuts
            self._news.notify_all()


class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = reader, writer
        self._to_server: asyncio.StreamWriter | None = None
        self._tail = b""
        self._doomed = False
        self._over = asyncio.Event()
        self.forgotten = False
        self.passed_in_mode: dict[Direction, int] = dict.fromkeys(BOTH, 0)

    async def run(self, target: tuple[str, int]) -> None:
        """Carry bytes until one side is gone, or we cut the line."""
        try:
            await self._proxy.until_it_speaks("to_server")
            from_server, self._to_server = await asyncio.open_connection(*target)
        except OSError:
            self.reset()  # the server is not there; to the client that looks the same
            return
        pumps = [
            asyncio.ensure_future(self._pump("to_server", self._from_client, self._to_server)),
            asyncio.ensure_future(self._pump("to_client", from_server, self._to_client)),
        ]
        over = asyncio.ensure_future(self._over.wait())
        both = asyncio.gather(*pumps, return_exceptions=True)
        waiting: list[asyncio.Future[Any]] = [over, both]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in (*pumps, over):
            task.cancel()
        await asyncio.gather(*pumps, over, both, return_exceptions=True)

    def reset(self) -> None:
        """Cut the line, so that both sides notice."""
        if not self._over.is_set():
            self._over.set()
            self._proxy.was_cut()
        for writer in (self._to_client, self._to_server):
            if writer is not None and not writer.is_closing():
                with suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                writer.transport.abort()

    def end(self) -> None:
        """Close what is open."""
        self._over.set()
        for writer in (self._to_client, self._to_server):
            if writer is not None:
                writer.close()

    async def _pump(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            try:
                data = await reader.read(CHUNK)
            except OSError:
                await self._until_it_speaks(direction)
                self.reset()
                return
            await self._until_it_speaks(direction)
            if not data:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            if not await self._pass_on(direction, data, writer):
                return

    async def _until_it_speaks(self, direction: Direction) -> None:
        await self._proxy.until_it_speaks(direction)
        if self.forgotten:
            await self._over.wait()

    async def _pass_on(self, direction: Direction, data: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the line still stands afterwards."""
        mode = self._proxy.mode
        if isinstance(mode, Delay) and direction in mode.directions:
            await asyncio.sleep(mode.seconds + self._proxy.jitter(mode.jitter))
        if direction == "to_client" and self._doomed:
            self.reset()
            return False
        cut = False
        if isinstance(mode, CutAfterBytes) and mode.direction == direction:
            left = max(0, mode.count - self.passed_in_mode[direction])
            cut, data = len(data) >= left, data[:left]
        if isinstance(mode, CutAfterMatch) and direction == "to_server":
            self._look_for(mode, data)
        writer.transport.set_write_buffer_limits(
            0
        )  # `drain` waits until all is sent: a reset would drop the rest
        writer.write(data)
        with suppress(ConnectionError):
            await writer.drain()
        self.passed_in_mode[direction] += len(data)
        self._proxy.tell(direction, len(data))
        if cut:
            self.reset()
        return not cut

    def _look_for(self, mode: CutAfterMatch, data: bytes) -> None:
        """The words may come in pieces. From the match on, not a byte goes back to the client."""
        seen = self._tail + data
        for _ in range(seen.count(mode.pattern)):
            self._proxy.matches += 1
            if not self._doomed and self._proxy.happens(mode.probability):
                self._doomed = True
                self._proxy.doomed += 1
        rest = seen.rpartition(mode.pattern)[2] if mode.pattern in seen else seen
        self._tail = rest[-(len(mode.pattern) - 1) :] if len(mode.pattern) > 1 else b""
