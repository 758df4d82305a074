"""LISTEN and NOTIFY: what wakes an idle worker, and when a commit is to wake it.

Each event loop listens on a connection of its own, which is opened with the first doorbell, and opened again when it
is lost. A line that has fallen silent looks like one on which there is nothing to tell, so it is asked every now and
then; and behind a pooler nothing may ever come. Polling alone is always correct. Whoever waits is woken after a
reconnect, too, since something may have been missed.

In sparse flow each commit rings at once, in the very statement that makes work ready. In a crowd there is one ring in
50 ms: a listener that was woken looks until it finds nothing, so it needs no more; and commits that send a NOTIFY wait
for one another, which thousands a second would feel.
Who is told "not now" rings later, after its commit; sent before, it would wake somebody to find nothing. One such ring
is for all who are to ring until then.
"""

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable

import psycopg

from shigoto.engine.postgres.connection import LoopConnection, disown
from shigoto.engine.postgres.errors import ConnectionLost, one_line
from shigoto.engine.postgres.wire import WireRequest
from shigoto.model.errors import StoreError

APART = 0.004  # seconds between two rings at least
MANY_RINGS = 8  # within 50 ms are rung for together
COALESCE_FOR = 0.05  # seconds between two rings in a crowd
TOO_LATE = 1.0  # seconds after which a promise to ring is not believed any more: its loop has ended
CONNECT_WITHIN = 10.0  # seconds
CHECK_EVERY, CHECK_WITHIN = 15.0, 5.0  # seconds
CHECK = WireRequest(b"SELECT 1")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 4.0  # seconds, give or take a fifth

log = logging.getLogger("shigoto.postgres")


class NotifyRate:
    """When to ring, for all threads and loops of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # each commit once: by `ring_now` if it rings, and by `ring_later`
        self._asked_at: deque[float] = deque(maxlen=MANY_RINGS - 1)
        self._rung_at = -COALESCE_FOR
        self._due_at: float | None = None

    @property
    def is_ring_due(self) -> bool:
        """Whether somebody has promised to ring, and has not yet."""
        return self._due_at is not None

    def ring_now(self) -> bool:
        """Whether a statement is to ring by itself; if not, whoever sends it calls `ring_later` after the commit."""
        now = self._clock()
        with self._lock:
            if now < self._next_ring(now):
                return False
            self._asked_at.append(now)
            self._rung_at = now
            return True

    def ring_later(self) -> float | None:
        """In how many seconds the caller is to ring, 0.0 for now; None if somebody else will do it."""
        now = self._clock()
        with self._lock:
            next_ring = self._next_ring(now)
            self._asked_at.append(now)
            if self._due_at is not None and now < self._due_at + TOO_LATE:
                return None
            self._due_at = max(now, next_ring)
            return self._due_at - now

    def note_ring(self) -> None:
        """Say that the late ring is sent now; what is committed from now on needs another."""
        with self._lock:
            self._due_at = None
            self._rung_at = self._clock()

    def _next_ring(self, now: float) -> float:
        """When the next ring may be, if it is asked for now."""
        crowded = len(self._asked_at) == MANY_RINGS - 1 and now - self._asked_at[0] < COALESCE_FOR
        return self._rung_at + (COALESCE_FOR if crowded else APART)


class ListenConnection:
    """The listening connection of one event loop, and the doorbells that share it.

    A task is there only while it connects, or looks whether the line is well; after that the loop calls.
    """

    def __init__(
        self, store: str, channel: str, connect: Callable[[float], Awaitable[LoopConnection]]
    ) -> None:
        self._store, self._connect = store, connect
        self._listen = WireRequest(f'LISTEN "{channel}"'.encode())
        self._loop = asyncio.get_running_loop()
        self._doorbells: set[PostgresDoorbell] = set()
        self._connection: LoopConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause = 0.0
        self._told = False

    def add(self, doorbell: "PostgresDoorbell") -> None:
        self._doorbells.add(doorbell)
        if self._connection is None and self._task is None and self._timer is None:
            self._start()

    def remove(self, doorbell: "PostgresDoorbell") -> None:
        """Forget it; with the last one the connection goes."""
        self._doorbells.discard(doorbell)
        if not self._doorbells:
            self.close()

    def close(self) -> None:
        """Stop listening, until another doorbell is added. Those that are left hear nothing any more, and look."""
        self._doorbells.clear()
        connection, self._connection = self._connection, None
        task, self._task = self._task, None
        timer, self._timer = self._timer, None
        if connection is not None:
            connection.heard = None
            connection.close()
        if self._loop.is_closed():
            return
        if timer is not None:
            timer.cancel()
        if task is not None:
            task.cancel()

    def disown(self) -> None:
        if self._connection is not None:
            disown(self._connection.wire)

    def _start(self) -> None:
        self._timer = None
        if self._doorbells:
            self._task = self._loop.create_task(self._open(), name="shigoto-listen")

    async def _open(self) -> None:
        until = time.monotonic() + CONNECT_WITHIN
        try:
            connection = await self._connect(until)
            try:
                await connection.ask(self._listen, until)
            except BaseException:
                connection.close()
                raise
        except (StoreError, ConnectionLost, psycopg.Error) as error:
            self._task = None
            self._try_later(error)
            return
        if self._task is not asyncio.current_task():  # closed in this very moment
            connection.close()
            return
        self._task = None
        if self._told:
            log.info("%s tells of new jobs again.", self._store)
        self._pause = 0.0
        self._told = False
        self._connection = connection
        connection.heard = self._heard
        self._check_later()
        self._ring()

    def _check_later(self) -> None:
        self._timer = self._loop.call_later(CHECK_EVERY, self._start_check)

    def _start_check(self) -> None:
        self._timer = None
        if self._connection is not None:
            self._task = self._loop.create_task(self._check(self._connection), name="shigoto-listen-check")

    async def _check(self, connection: LoopConnection) -> None:
        """Ask something. If nobody answers, `_heard` is told by the connection itself."""
        try:
            await connection.ask(CHECK, time.monotonic() + CHECK_WITHIN)
        except ConnectionLost:
            return
        except psycopg.Error as error:
            connection.heard = None
            connection.close()
            if self._connection is connection:
                self._lost(error)
            return
        if self._connection is connection:
            self._task = None
            self._check_later()

    def _heard(self) -> None:
        connection = self._connection
        if connection is not None and not connection.is_alive():
            self._lost(connection.lost or ConnectionLost("it was closed"))
        else:
            self._ring()

    def _lost(self, error: Exception) -> None:
        self._connection = self._task = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._try_later(error)

    def _ring(self) -> None:
        for doorbell in self._doorbells:
            doorbell.rung.set()

    def _try_later(self, error: Exception) -> None:
        if not self._doorbells:
            return
        if not self._told:
            self._told = True
            log.warning(
                "%s does not tell of new jobs (%s): until it can be listened to again, they are found by looking.",
                self._store,
                one_line(error),
            )
        delay = self._pause * random.uniform(0.8, 1.2)
        self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2.0 * self._pause))
        self._timer = self._loop.call_later(delay, self._start)


class PostgresDoorbell:
    """One listener on the running event loop."""

    def __init__(self, listen_connection: ListenConnection) -> None:
        self.rung = asyncio.Event()
        self._listen_connection = listen_connection
        listen_connection.add(self)

    async def wait(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self.rung.wait()
        except TimeoutError:
            return False
        self.rung.clear()
        return True

    def close(self) -> None:
        """Stop listening. Closing twice is fine, and so is closing after the loop."""
        self._listen_connection.remove(self)


class NoDoorbell:
    """The doorbell of a store whose address says `listen=off`: it hears nothing."""

    async def wait(self, timeout: float) -> bool:
        await asyncio.sleep(timeout)
        return False

    def close(self) -> None:
        """Nothing to close."""
