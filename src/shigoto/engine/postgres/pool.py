"""Connections that are kept: one pool for all threads of a process, and one for each event loop.

Whoever finds none waits in line. A connection that comes back goes to the first in line, and so does the right to open
one when a broken one comes back instead. What is urgent stands before all others in line, and may have one connection
beyond the pool's size: however many callers wait for somebody's lock, a worker must be able to say that it lives.
No threads, no timers: what is idle for long is closed by whoever comes next. psycopg_pool would start four threads in
every process that stores a single job.

Each event loop has its own connections, which are closed on it, and so has each process, which leaves those of its
parent alone. psycopg opens them, and nothing of its own connections is left behind by a fork, or by whoever waits no
longer.

A server that is down must not be greeted by all of us at once when it comes back. While all is well everybody connects
as they like. From the first failure on there is one attempt at a time in this process, with growing pauses in between.
Whoever needs a connection meanwhile waits for the outcome, as long as the outage is young enough to be a restart; later
they are told at once.
A worker makes pauses of its own then (worker/state.py), and those come on top: both are so short that a server that
is back is noticed within five seconds, also by one who was told just before the next attempt.
"""

import asyncio
import os
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Any, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.abc import PQGenConn
from psycopg.conninfo import make_conninfo

from shigoto.engine.postgres.address import BEYOND
from shigoto.engine.postgres.connection import LoopConnection, ThreadConnection, disown
from shigoto.engine.postgres.errors import ConnectionLost, refused_connection
from shigoto.engine.postgres.wire import WHO
from shigoto.model.errors import StoreUnavailable

IDLE_FOR = 300.0  # seconds
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds, give or take a fifth
LOOK_EVERY = 0.05  # seconds
SHORTEST = 2  # seconds; libpq takes a shorter time to connect for this one
ADDRESSES = 2  # of a name, as far as is known: one of either kind

T = TypeVar("T")
C = TypeVar("C", ThreadConnection, LoopConnection)

_begun: ContextVar[list[PQGenConn[Any]]] = ContextVar("_begun")
# A fork happens to all engines of a process at once.
_all: "WeakSet[Forked]" = WeakSet()


class _Place(Generic[C]):
    """A caller in line. Once `served`, it has the connection, or opens one if `connection` is None."""

    __slots__ = ("connection", "served", "urgent", "wake")

    def __init__(self, urgent: bool, wake: Callable[[], None]) -> None:
        self.urgent, self.wake = urgent, wake
        self.served = False
        self.connection: C | None = None


class _Connections(Generic[C]):
    """The idle connections of a pool, its size, and the line of callers who wait for one of its connections."""

    def __init__(self, store: str, size: int) -> None:
        self._store, self._size = store, size
        # Reentrant: a coroutine that is thrown away gives its connection back wherever the collector meets it.
        self._guard = threading.RLock()
        self._idle: deque[C] = deque()
        self._line: deque[_Place[C]] = deque()
        self._busy = 0  # connections in use, or about to be opened
        self._open: set[C] = set()
        self._closed = False

    def _enter(self, urgent: bool) -> tuple[bool, C | None]:
        """Tell whether there was room for the caller, and the idle connection that it got with it."""
        with self._guard:
            if self._busy >= self._size + urgent * BEYOND:
                return False, None
            self._busy += 1
            return True, self._idle.pop() if self._idle else None

    @contextmanager
    def _in_line(self, urgent: bool, wake: Callable[[], None]) -> Generator[_Place[C]]:
        """Stand in line for as long as the block waits. Raises StoreUnavailable if the block raises TimeoutError."""
        place: _Place[C] = _Place(urgent, wake)
        with self._guard:
            # At the end of the line, or of those who are urgent too.
            at = sum(other.urgent for other in self._line) if urgent else len(self._line)
            self._line.insert(at, place)
            self._serve_first(None)
        try:
            yield place
        except BaseException as error:
            # A connection that came in the same moment is given back: there is no time left to use it.
            if not self._leave_line(place):
                if place.connection is None:
                    self._release(None)
                else:
                    self.give_back(place.connection)
            if isinstance(error, TimeoutError):
                raise exhausted(self._store, self._size) from None
            raise

    def _leave_line(self, place: _Place[C]) -> bool:
        """Return False if its turn has come, perhaps in this very moment."""
        with self._guard:
            if not place.served:
                self._line.remove(place)
            return not place.served

    def _serve_first(self, connection: C | None) -> bool:
        """Give the connection, an idle one or the right to open one to the first in line, if there is room for it."""
        if not self._line or self._busy >= self._size + self._line[0].urgent * BEYOND:
            return False
        self._busy += 1
        place = self._line.popleft()
        place.connection = self._idle.pop() if connection is None and self._idle else connection
        place.served = True
        place.wake()
        return True

    def _alive(self, connection: C | None) -> C | None:
        """This connection, or an idle one in its place, if it is alive as far as is known."""
        while connection is not None and not connection.is_alive():
            self._discard(connection)
            with self._guard:
                connection = self._idle.pop() if self._idle else None
        return connection

    def _opened(self, connection: C) -> C:
        with self._guard:
            self._open.add(connection)
        return connection

    def give_back(self, connection: C) -> None:
        """Let others have it."""
        if self._closed or not connection.wire.is_idle:
            self._discard(connection)
            self._release(None)
        else:
            connection.reused = True
            self._release(connection)

    def _release(self, connection: C | None) -> None:
        """Give up a place, with what is in it: for the next in line, who may open one if it is nothing."""
        stale = None
        with self._guard:
            self._busy -= 1
            if not self._serve_first(connection) and connection is not None:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
                if self._idle[0].idle_since < connection.idle_since - IDLE_FOR:
                    stale = self._idle.popleft()
        if stale is not None:
            self._discard(stale)

    def lose(self, connection: C) -> None:
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

    def _discard(self, connection: C) -> None:
        with self._guard:
            self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        self._closed = True
        self._close_idle()

    def disown(self) -> None:
        for connection in list(self._open):
            disown(connection.wire)


class ThreadConnections(_Connections[ThreadConnection]):
    """Connections of any thread."""

    def __init__(self, store: str, size: int, connect: Callable[[float], ThreadConnection]) -> None:
        super().__init__(store, size)
        self._connect = connect

    def take(self, until: float, *, urgent: bool = False) -> ThreadConnection:
        """Return a connection that is alive as far as is known. Raises StoreUnavailable if none can be had in time."""
        entered, connection = self._enter(urgent)
        if not entered:
            turn = threading.Lock()
            turn.acquire()
            with self._in_line(urgent, turn.release) as place:
                if not turn.acquire(timeout=max(0.0, until - time.monotonic())):
                    raise TimeoutError
            connection = place.connection
        connection = self._alive(connection)
        if connection is not None:
            return connection
        try:
            return self._opened(self._connect(until))
        except BaseException:
            self._release(None)
            raise


class LoopConnections(_Connections[LoopConnection]):
    """Connections of one event loop; for use on it alone."""

    def __init__(self, store: str, size: int, connect: Callable[[float], Awaitable[LoopConnection]]) -> None:
        super().__init__(store, size)
        self._connect = connect
        self.loop = asyncio.get_running_loop()

    async def take(self, until: float, *, urgent: bool = False) -> LoopConnection:
        """Return a connection that is alive as far as is known. Raises StoreUnavailable if none can be had in time."""
        entered, connection = self._enter(urgent)
        if not entered:
            turn = asyncio.Event()
            with self._in_line(urgent, turn.set) as place:
                async with asyncio.timeout(until - time.monotonic()):
                    await turn.wait()
            connection = place.connection
        connection = self._alive(connection)
        if connection is not None:
            return connection
        try:
            return self._opened(await self._connect(until))
        except BaseException:
            self._release(None)
            raise

    def give_back(self, connection: LoopConnection) -> None:
        """Let others have it, once the answer has come whose asker was cancelled. A lost connection gets no answer."""
        if connection.is_busy and connection.lost is None:
            connection.when_quiet = lambda: self.give_back(connection)
        else:
            connection.when_quiet = None
            super().give_back(connection)

    def close(self) -> None:
        """Close what is idle, and from now on whatever comes back. On the loop, or if that does not run."""
        super().close()
        if self.loop.is_closed():  # then nobody brings anything back
            for connection in list(self._open):
                self._discard(connection)


def exhausted(store: str, size: int) -> StoreUnavailable:
    """That all connections are in use, for too long."""
    return StoreUnavailable(
        f"{store}: all {size} connections that this process may have were in use until the deadline. See what keeps"
        " them (pg_stat_activity), or say pool=N in the address for more."
    )


class OwnedByLoop(Protocol):
    """What a loop has."""

    def close(self) -> None:
        """Close it, on its loop, or when that does not run any more."""
        ...

    def disown(self) -> None:
        """In a forked child: let go of the parent's connections."""
        ...


B = TypeVar("B", bound=OwnedByLoop)


class PerLoop(Generic[B]):
    """One of these for each event loop, made on it when it is first needed."""

    def __init__(self, make: Callable[[], B]) -> None:
        self._make = make
        self._guard = threading.Lock()
        self._of: dict[asyncio.AbstractEventLoop, B] = {}

    def here(self) -> B:
        """That of the running loop. Closes what belongs to loops that have ended."""
        loop = asyncio.get_running_loop()
        own = self._of.get(loop)
        if own is None:
            own = self._make()
            with self._guard:
                gone = [self._of.pop(other) for other in list(self._of) if other.is_closed()]
                self._of[loop] = own
            for other in gone:
                other.close()
        return own

    def close(self) -> None:
        """Close all: what belongs to a loop of another thread there. A later call makes anew."""
        with self._guard:
            closing, self._of = self._of, {}
        for loop, own in closing.items():
            if not loop.is_running() or loop is _running_loop():
                own.close()
            else:
                with suppress(RuntimeError):  # it was closed in this moment, and its connections with it
                    loop.call_soon_threadsafe(own.close)

    def disown(self) -> None:
        for own in self._of.values():
            own.disown()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Forked(Protocol):
    """What begins again in a forked child."""

    def after_fork_in_child(self) -> None:
        """Begin again, without the parent's connections and with locks that nobody holds."""
        ...


def begins_again_in_child(owner: Forked) -> None:
    """Tell it of forks, for as long as it lives."""
    _all.add(owner)


def _in_child() -> None:
    for owner in list(_all):
        owner.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class Reconnect:
    """What is known of whether one server can be reached. For any thread."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._lock = threading.Lock()
        self._since: float | None = None
        self._reason = ""
        self._pause = 0.0
        self._next_at = 0.0
        self._trying = False

    def admit(self, until: float) -> float:
        """0.0 if the caller is to try to connect now, and then to call `ended`; else when to ask again, in seconds.

        Raises StoreUnavailable if waiting is in vain.
        """
        with self._lock:
            if self._since is None:
                return 0.0
            now = self._clock()
            if now < until and not self._trying and now >= self._next_at:
                self._trying = True
                return 0.0
            if now >= min(until, self._since + self._patience):
                raise StoreUnavailable(self._reason)
            return LOOK_EVERY

    def ended(self, failure: StoreUnavailable | None) -> None:
        """Say how an attempt has ended."""
        with self._lock:
            if failure is None:
                self._since, self._trying, self._pause = None, False, 0.0
                return
            now = self._clock()
            self._reason = str(failure)
            if self._since is None:
                self._since = now
            elif not self._trying:
                return  # one of those who tried together when it began
            self._trying = False
            self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2.0 * self._pause))
            self._next_at = now + self._pause * random.uniform(0.8, 1.2)

    def given_up(self) -> None:
        with self._lock:
            self._trying = False


class ThreadOpening(psycopg.Connection[Any]):
    """psycopg's connection, without its warning when it goes: a forked child must not close what it has inherited."""

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> PQGenConn[Self]:
        return _noting(super()._connect_gen(*args, **options))

    def __del__(self, _: Any = None, /) -> None: ...


class LoopOpening(psycopg.AsyncConnection[Any]):
    """The same for event loops."""

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> PQGenConn[Self]:
        attempt = _noting(super()._connect_gen(*args, **options))
        _begun.get().append(attempt)
        return attempt

    def __del__(self, _: Any = None, /) -> None: ...


@contextmanager
def connecting() -> Generator[None]:
    """Around whoever connects on an event loop: what he does not wait for any more is closed. psycopg leaves that to
    the garbage collector, until which the server would wait for a password."""
    begun: list[PQGenConn[Any]] = []
    _begun.set(begun)  # and not reset: who is thrown away may end in another context
    try:
        yield
    finally:
        while begun:
            begun.pop().close()


class _Sockets:
    """The sockets of this process, from the moment when they begin to connect: nobody else has them yet, and a child
    that is forked by another thread just then would keep them open."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # by their descriptors, which others may have by now: what they were

    def note(self, descriptor: int) -> None:
        with suppress(OSError):
            self._known[descriptor] = os.fstat(descriptor).st_ino

    def after_fork_in_child(self) -> None:
        """Close those that are still what they were."""
        known, self._known = self._known, {}
        for descriptor, inode in known.items():
            with suppress(OSError):
                if os.fstat(descriptor).st_ino == inode:
                    os.close(descriptor)


_sockets = _Sockets()
begins_again_in_child(_sockets)


def _noting(attempt: PQGenConn[T]) -> PQGenConn[T]:
    try:
        waiting_for = next(attempt)
        while True:
            _sockets.note(waiting_for[0])
            waiting_for = attempt.send((yield waiting_for))
    except StopIteration as stop:
        connection: T = stop.value
        return connection
    finally:
        attempt.close()


class Connector:
    """Opens connections to one server, for any thread and any loop.

    `prepares` None leaves it to each connection to find out whether it goes straight to the server.
    """

    def __init__(
        self, store: str, parameters: Mapping[str, str], *, prepares: bool | None, patience: float
    ) -> None:
        self._store, self._parameters, self._prepares, self._patience = store, parameters, prepares, patience
        self._reconnect = Reconnect(patience)

    def hurry(self) -> None:
        self._reconnect = Reconnect(0.0)

    def open(self, until: float) -> ThreadConnection:
        """A new connection. Raises StoreUnavailable or StoreRefused."""
        while True:
            pause = self._reconnect.admit(until)
            if pause > 0.0:
                time.sleep(pause)
                continue
            with suppress(StoreUnavailable), self._attempt():
                conninfo, _ = self._limited(until)
                inner = ThreadOpening.connect(conninfo, autocommit=True, prepare_threshold=None)
                connection = ThreadConnection(inner, prepares=bool(self._prepares))
                if self._prepares is None:
                    with _or_closed(connection):
                        connection.wire.found_out(connection.ask(WHO, until))
                return connection

    async def aopen(self, until: float) -> LoopConnection:
        """A new connection of the running event loop. Raises StoreUnavailable or StoreRefused."""
        while True:
            pause = self._reconnect.admit(until)
            if pause > 0.0:
                await asyncio.sleep(pause)
                continue
            with suppress(StoreUnavailable), self._attempt():
                return await self._aconnect(until)

    async def _aconnect(self, until: float) -> LoopConnection:
        conninfo, limit = self._limited(until)
        try:
            with connecting():
                async with asyncio.timeout(limit):
                    inner = await LoopOpening.connect(conninfo, autocommit=True, prepare_threshold=None)
        except TimeoutError as error:
            raise psycopg.OperationalError("connection timeout expired") from error
        connection = LoopConnection(inner, prepares=bool(self._prepares))
        if self._prepares is None:
            with _or_closed(connection):
                connection.wire.found_out(await connection.ask(WHO, time.monotonic() + limit))
        return connection

    @contextmanager
    def _attempt(self) -> Generator[None]:
        """Tell the others how it ends. Who has failed is told by `admit` whether it is worth while to try again."""
        try:
            yield
        except psycopg.Error as error:
            failure = refused_connection(error, self._store)
            # A server that refuses us can be reached.
            self._reconnect.ended(failure if isinstance(failure, StoreUnavailable) else None)
            raise failure from error
        except BaseException:
            self._reconnect.given_up()
            raise
        else:
            self._reconnect.ended(None)

    def _limited(self, until: float) -> tuple[str, float]:
        """What libpq is told, with no more time for all attempts than the caller has; and that time, in seconds.

        psycopg gives each of its attempts all of the time that it is told: so each gets its share.
        """
        left = max(SHORTEST, until - time.monotonic())
        count = attempts(self._parameters)
        each = max(SHORTEST, int(min(self._patience, left) / count))
        conninfo = make_conninfo(**{**self._parameters, "connect_timeout": str(each)})
        return conninfo, min(left, max(self._patience, float(each * count)))


@contextmanager
def _or_closed(connection: ThreadConnection | LoopConnection) -> Generator[None]:
    """Leave nothing behind of a connection that does not answer; in the words of psycopg, it was not made."""
    try:
        yield
    except BaseException as error:
        connection.close()
        if isinstance(error, ConnectionLost):
            raise psycopg.OperationalError(error.reason) from error
        raise


def attempts(parameters: Mapping[str, str]) -> int:
    """In how many ways psycopg will try to connect, one after the other: each host, and each address of a name."""
    hosts = (parameters.get("host") or os.environ.get("PGHOST", "")).split(",")
    addresses = parameters.get("hostaddr") or os.environ.get("PGHOSTADDR", "")
    count = len(addresses.split(",")) if addresses else sum(map(_addresses_of, hosts))
    return 2 * count if parameters.get("target_session_attrs") == "prefer-standby" else count


def _addresses_of(host: str) -> int:
    if not host or host.startswith(("/", "@")) or host[1:2] == ":":
        return 1  # a socket of this machine
    try:
        ip_address(host)
    except ValueError:
        return ADDRESSES
    return 1
