"""Connections that are kept: one pool for all threads of a process, and one for each event loop.

Whoever finds none waits in line. A connection that comes back goes to the first in line, and so does the right to open
one when a broken one comes back instead. No threads, no timers: what is idle for long is closed by whoever comes next.
psycopg_pool would start four threads in every process that stores a single job.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable

from shigoto.engine.postgres.connection import LoopConnection, ThreadConnection, disown
from shigoto.model.errors import StoreUnavailable

IDLE_FOR = 300.0  # seconds


class _Place:
    """One who waits in line; `connection` is None if they are to open one."""

    __slots__ = ("connection", "lock")

    def __init__(self) -> None:
        self.connection: ThreadConnection | None = None
        self.lock = threading.Lock()
        self.lock.acquire()


class ThreadPool:
    """Connections of any thread."""

    def __init__(self, store: str, size: int, connect: Callable[[float], ThreadConnection]) -> None:
        self._store, self._size, self._connect = store, size, connect
        self._guard = threading.Lock()
        self._idle: deque[ThreadConnection] = deque()
        self._line: deque[_Place] = deque()
        self._places = 0  # connections in use, idle, or about to be opened
        self._open: set[ThreadConnection] = set()
        self._closed = False

    def take(self, until: float) -> ThreadConnection:
        """A connection that is alive as far as is known. Raises StoreUnavailable if none can be had in time."""
        connection = self._first(until)
        while connection is not None:
            if connection.is_alive():
                return connection
            self._discard(connection)
            with self._guard:
                connection = self._idle.pop() if self._idle else None
                if connection is not None:
                    self._places -= 1  # we have two now
        try:
            connection = self._connect(until)
        except BaseException:
            self._release()
            raise
        with self._guard:
            self._open.add(connection)
        return connection

    def _first(self, until: float) -> ThreadConnection | None:
        with self._guard:
            if self._idle:
                return self._idle.pop()
            if self._places < self._size:
                self._places += 1
                return None
            place = _Place()
            self._line.append(place)
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
            self._release()
        else:
            self.give_back(connection)

    def give_back(self, connection: ThreadConnection) -> None:
        """Let others have it."""
        if self._closed or not connection.wire.is_idle:
            self._discard(connection)
            self._release()
            return
        connection.reused = True
        stale = None
        with self._guard:
            if self._line:
                place = self._line.popleft()
                place.connection = connection
                place.lock.release()
                return
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
            if self._idle[0].idle_since < connection.idle_since - IDLE_FOR:
                stale = self._idle.popleft()
                self._places -= 1
        if stale is not None:
            self._discard(stale)

    def _release(self) -> None:
        """Give up a place: the next in line may open a connection in it."""
        with self._guard:
            if self._line:
                self._line.popleft().lock.release()
            else:
                self._places = max(0, self._places - 1)

    def _discard(self, connection: ThreadConnection) -> None:
        with self._guard:
            self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close what is idle, and from now on whatever comes back."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, deque()
            self._places -= len(idle)
        for connection in idle:
            self._discard(connection)

    def disown(self) -> None:
        """In a forked child: let go of the parent's connections."""
        for connection in list(self._open):
            disown(connection.wire)


class LoopPool:
    """Connections of one event loop; for use on it alone."""

    def __init__(self, store: str, size: int, connect: Callable[[float], Awaitable[LoopConnection]]) -> None:
        self.loop = asyncio.get_running_loop()
        self._store, self._size, self._connect = store, size, connect
        self._idle: deque[LoopConnection] = deque()
        self._line: deque[asyncio.Future[LoopConnection | None]] = deque()
        self._places = 0
        self._open: set[LoopConnection] = set()
        self._closed = False

    async def take(self, until: float) -> LoopConnection:
        """A connection that is alive as far as is known. Raises StoreUnavailable if none can be had in time."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_alive():
                return connection
            self._discard(connection)
            self._places -= 1
        if self._places < self._size:
            self._places += 1
        else:
            handed = await self._wait_in_line(until)
            if handed is not None:
                return handed
        try:
            connection = await self._connect(until)
        except BaseException:
            self._release()
            raise
        self._open.add(connection)
        return connection

    async def _wait_in_line(self, until: float) -> LoopConnection | None:
        place: asyncio.Future[LoopConnection | None] = self.loop.create_future()
        self._line.append(place)
        try:
            async with asyncio.timeout(until - time.monotonic()):
                return await place
        except BaseException as error:
            if place.done() and not place.cancelled():  # it came in the moment of a cancellation
                self._hand_on(place.result())
            if isinstance(error, TimeoutError):
                raise exhausted(self._store, self._size) from None
            raise

    def _hand_on(self, connection: LoopConnection | None) -> None:
        if connection is None:
            self._release()
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
            self._release()
            return
        connection.reused = True
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(connection)
                return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._idle[0].idle_since < connection.idle_since - IDLE_FOR:
            self._discard(self._idle.popleft())
            self._places -= 1

    def _release(self) -> None:
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._places = max(0, self._places - 1)

    def _discard(self, connection: LoopConnection) -> None:
        self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close what is idle, and from now on whatever comes back. On the loop, or if that does not run."""
        self._closed = True
        while self._idle:
            self._discard(self._idle.pop())
            self._places -= 1
        if self.loop.is_closed():  # then nobody brings anything back
            for connection in list(self._open):
                self._discard(connection)

    def disown(self) -> None:
        """In a forked child: let go of the parent's connections."""
        for connection in list(self._open):
            disown(connection.wire)


def exhausted(store: str, size: int) -> StoreUnavailable:
    """That all connections are in use, for too long."""
    return StoreUnavailable(
        f"{store}: all {size} connections that this process may have were in use until the deadline. See what keeps"
        " them (pg_stat_activity), or say pool=N in the address for more."
    )
