"""Connections that are kept: one pool for all threads of a process, and one for each event loop.

Whoever finds none waits in line. A connection that comes back goes to the first in line, and so does the right to open
one when a broken one comes back instead. What is urgent stands before all others in line, and may have one connection
beyond the pool's size: however many callers wait for somebody's lock, a worker must be able to say that it lives.
No threads, no timers: what is idle for long is closed by whoever comes next. psycopg_pool would start four threads in
every process that stores a single job.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shigoto.engine.postgres.address import BEYOND
from shigoto.engine.postgres.connection import LoopConnection, ThreadConnection, disown
from shigoto.model.errors import StoreUnavailable

IDLE_FOR = 300.0  # seconds
# What was in use a moment ago is not asked whether it is alive: should it have died since, the op finds that out, and
# takes another.
A_MOMENT = 0.1  # seconds


class _Place:
    """One who waits in line; `connection` is None if they are to open one."""

    __slots__ = ("connection", "lock", "urgent")

    def __init__(self, urgent: bool) -> None:
        self.urgent = urgent
        self.connection: ThreadConnection | None = None
        self.lock = threading.Lock()
        self.lock.acquire()


class ThreadConnections:
    """Connections of any thread."""

    def __init__(self, store: str, size: int, connect: Callable[[float], ThreadConnection]) -> None:
        self._store, self._size, self._connect = store, size, connect
        self._guard = threading.Lock()
        self._idle: deque[ThreadConnection] = deque()
        self._line: deque[_Place] = deque()
        self._busy = 0  # connections in use, or about to be opened
        self._open: set[ThreadConnection] = set()
        self._closed = False

    def take(self, until: float, *, urgent: bool = False) -> ThreadConnection:
        """A connection that is alive as far as is known. Raises StoreUnavailable if none can be had in time."""
        connection = self._first(until, urgent=urgent)
        while connection is not None:
            if time.monotonic() < connection.idle_since + A_MOMENT or connection.is_alive():
                return connection
            self._discard(connection)
            with self._guard:
                connection = self._idle.pop() if self._idle else None
        try:
            connection = self._connect(until)
        except BaseException:
            self._release(None)
            raise
        with self._guard:
            self._open.add(connection)
        return connection

    def _first(self, until: float, *, urgent: bool) -> ThreadConnection | None:
        with self._guard:
            if self._busy < self._size + urgent * BEYOND:
                self._busy += 1
                return self._idle.pop() if self._idle else None
            place = _Place(urgent)
            _stand_in(self._line, place)
        try:
            came = place.lock.acquire(timeout=max(0.0, until - time.monotonic()))
        except BaseException:
            if not self._leave_line(place):
                self._hand_on(place.connection)
            raise
        if not came and self._leave_line(place):
            raise exhausted(self._store, self._size)
        return place.connection

    def _leave_line(self, place: _Place) -> bool:
        """False if it has come, in this very moment."""
        with self._guard:
            if place not in self._line:
                return False
            self._line.remove(place)
            return True

    def _hand_on(self, connection: ThreadConnection | None) -> None:
        if connection is None:
            self._release(None)
        else:
            self.give_back(connection)

    def give_back(self, connection: ThreadConnection) -> None:
        """Let others have it."""
        if self._closed or not connection.wire.is_idle:
            self._discard(connection)
            self._release(None)
        else:
            connection.reused = True
            self._release(connection)

    def _release(self, connection: ThreadConnection | None) -> None:
        """Give up a place, with what is in it: for the next in line, who may open one if it is nothing."""
        stale = None
        with self._guard:
            self._busy -= 1
            if self._line and self._busy < self._size + self._line[0].urgent * BEYOND:
                self._busy += 1
                place = self._line.popleft()
                place.connection = self._idle.pop() if connection is None and self._idle else connection
                place.lock.release()
            elif connection is not None:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
                if self._idle[0].idle_since < connection.idle_since - IDLE_FOR:
                    stale = self._idle.popleft()
        if stale is not None:
            self._discard(stale)

    def lose(self, connection: ThreadConnection) -> None:
        """Close one that was of no use, before it is given back. If it had served before, then what lies idle has
        most likely met with the same: a server that has moved, or is none any more that can be written to."""
        connection.close()
        if connection.reused:
            self._close_idle()

    def _close_idle(self) -> None:
        with self._guard:
            idle, self._idle = self._idle, deque()
        for connection in idle:
            self._discard(connection)

    def _discard(self, connection: ThreadConnection) -> None:
        with self._guard:
            self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close what is idle, and from now on whatever comes back."""
        self._closed = True
        self._close_idle()

    def disown(self) -> None:
        """In a forked child: let go of the parent's connections."""
        for connection in list(self._open):
            disown(connection.wire)


class _LoopsPlace:
    """The same on an event loop."""

    __slots__ = ("handed", "urgent")

    def __init__(self, handed: "asyncio.Future[LoopConnection | None]", urgent: bool) -> None:
        self.handed = handed
        self.urgent = urgent


class LoopConnections:
    """Connections of one event loop; for use on it alone."""

    def __init__(self, store: str, size: int, connect: Callable[[float], Awaitable[LoopConnection]]) -> None:
        self.loop = asyncio.get_running_loop()
        self._store, self._size, self._connect = store, size, connect
        self._idle: deque[LoopConnection] = deque()
        self._line: deque[_LoopsPlace] = deque()
        self._busy = 0
        self._open: set[LoopConnection] = set()
        self._closed = False

    async def take(self, until: float, *, urgent: bool = False) -> LoopConnection:
        """A connection that is alive as far as is known. Raises StoreUnavailable if none can be had in time."""
        if self._busy < self._size + urgent * BEYOND:
            self._busy += 1
            connection = self._next_idle()
        else:
            connection = await self._wait_in_line(until, urgent=urgent)
        if connection is not None:
            return connection
        try:
            connection = await self._connect(until)
        except BaseException:
            self._release(None)
            raise
        self._open.add(connection)
        return connection

    def _next_idle(self) -> LoopConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_alive():
                return connection
            self._discard(connection)
        return None

    async def _wait_in_line(self, until: float, *, urgent: bool) -> LoopConnection | None:
        handed: asyncio.Future[LoopConnection | None] = self.loop.create_future()
        _stand_in(self._line, _LoopsPlace(handed, urgent))
        try:
            async with asyncio.timeout(until - time.monotonic()):
                return await handed
        except BaseException as error:
            if handed.done() and not handed.cancelled():  # it came in the moment of a cancellation
                self._hand_on(handed.result())
            if isinstance(error, TimeoutError):
                raise exhausted(self._store, self._size) from None
            raise

    def _hand_on(self, connection: LoopConnection | None) -> None:
        if connection is None:
            self._release(None)
        else:
            self.give_back(connection)

    def give_back(self, connection: LoopConnection) -> None:
        """Let others have it, once the answer has come whose asker was cancelled."""
        if connection.is_busy:
            connection.when_quiet = lambda: self.give_back(connection)
            return
        connection.when_quiet = None
        if self._closed or not connection.is_alive() or not connection.wire.is_idle:
            self._discard(connection)
            self._release(None)
        else:
            connection.reused = True
            self._release(connection)

    def _release(self, connection: LoopConnection | None) -> None:
        """Give up a place, with what is in it: for the next in line, who may open one if it is nothing."""
        self._busy -= 1
        while self._line and self._busy < self._size + self._line[0].urgent * BEYOND:
            place = self._line.popleft()
            if not place.handed.done():
                self._busy += 1
                place.handed.set_result(self._next_idle() if connection is None else connection)
                return
        if connection is not None:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
            if self._idle[0].idle_since < connection.idle_since - IDLE_FOR:
                self._discard(self._idle.popleft())

    def lose(self, connection: LoopConnection) -> None:
        """Close one that was of no use, and with it what lies idle; see `ThreadConnections.lose`."""
        connection.close()
        if connection.reused:
            self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            self._discard(self._idle.pop())

    def _discard(self, connection: LoopConnection) -> None:
        self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close what is idle, and from now on whatever comes back. On the loop, or if that does not run."""
        self._closed = True
        self._close_idle()
        if self.loop.is_closed():  # then nobody brings anything back
            for connection in list(self._open):
                self._discard(connection)

    def disown(self) -> None:
        """In a forked child: let go of the parent's connections."""
        for connection in list(self._open):
            disown(connection.wire)


P = TypeVar("P", _Place, _LoopsPlace)


def _stand_in(line: deque[P], place: P) -> None:
    """At the end of the line, or of those who are urgent too."""
    line.insert(sum(other.urgent for other in line) if place.urgent else len(line), place)


def exhausted(store: str, size: int) -> StoreUnavailable:
    """That all connections are in use, for too long."""
    return StoreUnavailable(
        f"{store}: all {size} connections that this process may have were in use until the deadline. See what keeps"
        " them (pg_stat_activity), or say pool=N in the address for more."
    )
