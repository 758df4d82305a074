"""One connection, for threads or for an event loop: asks, and waits for the answer, but never beyond a deadline.

psycopg's own connections wait for as long as it takes, which is for ever if the server's host vanishes or its process
is stopped. So the waiting is ours; psycopg connects, and keeps libpq.
A connection that belongs to an event loop stays registered there for all its life, since to register it for each answer
would cost a tenth of an awaited enqueue; thus it also notices at once that the server has closed it.

What the server does for a connection on which nobody waits any more is cancelled. A cancel is a connection of its own.
To ask libpq for it in one call (PQcancel) is to connect and to wait for the server with the interpreter's lock held: on
a line that has fallen silent the whole process would stand still, beats included. So we wait ourselves, in a thread, no
longer than a deadline and never in more than a few at once. What is not cancelled ends by its statement timeout, a
little later.
"""

import asyncio
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import pq

from shigoto.engine.postgres.errors import ConnectionLost, NoAnswer, one_line
from shigoto.engine.postgres.wire import BAD, LibpqConnection, ServerRows, WireRequest

WITHIN = 5.0  # seconds
# What was in use a moment ago is not asked whether it is alive: should it have died since, the op finds that out, and
# takes another.
A_MOMENT = 0.1  # seconds
MOST = 4  # threads
POLL = pq.PollingStatus
SAFELY = psycopg.capabilities.has_cancel_safe()  # libpq 17 lets us wait
ANYBODY_THERE = bytes.fromhex("00000008 04d2162f")  # whether the server speaks TLS: it says S or N

_threads = threading.BoundedSemaphore(MOST)

READABLE, WRITABLE = 1, 4  # POLLIN and POLLOUT
LOOK_EVERY = 1.0  # seconds, at a socket of whose end the event loop need not have told
COPY_AT_ONCE = 256 * 1024  # bytes

# libpq would say goodbye to the parent's server for whoever frees such a connection, so a child never does.
_inherited: list[LibpqConnection] = []

Ready = Callable[[int, float], int]


def cancel(pgconn: pq.abc.PGconn) -> None:
    """Cancel the statement under way on a connection, which may be closed meanwhile. Never waits, and never raises."""
    try:
        cancelling = _by_polling(pgconn.cancel_conn()) if SAFELY else _at_once(pgconn)
    except psycopg.Error:  # it is closed
        return
    if not _threads.acquire(blocking=False):
        return

    def work() -> None:
        try:
            with suppress(psycopg.Error, OSError):  # there was nothing to cancel, or nobody to tell
                cancelling()
        finally:
            _threads.release()

    try:
        threading.Thread(target=work, name="shigoto-cancel", daemon=True).start()
    except RuntimeError:  # no thread to be had
        _threads.release()


def _by_polling(line: pq.abc.PGcancelConn) -> Callable[[], None]:
    def work() -> None:
        until = time.monotonic() + WITHIN
        try:
            line.start()
            while (status := line.poll()) in (POLL.READING, POLL.WRITING):
                left = until - time.monotonic()
                reading, writing = ([line.socket], []) if status == POLL.READING else ([], [line.socket])
                if left <= 0.0 or not any(select.select(reading, writing, (), left)):
                    return
        finally:
            line.finish()

    return work


def _at_once(pgconn: pq.abc.PGconn) -> Callable[[], None]:
    """For an older libpq: nobody else can run meanwhile, so it is only for a server that has answered just now."""
    words, address, port = pgconn.get_cancel(), pgconn.hostaddr.decode(), int(pgconn.port or b"0")

    def work() -> None:
        if not address or _is_there(address, port):  # no address is a socket of this machine
            words.cancel()

    return work


def _is_there(address: str, port: int) -> bool:
    with socket.create_connection((address, port), timeout=WITHIN) as line:
        line.sendall(ANYBODY_THERE)
        return bool(line.recv(1))


def disown(wire: LibpqConnection) -> None:
    """Let go of a parent's connection in a forked child: close the socket here, and say nothing to the server."""
    with suppress(OSError, psycopg.Error):
        os.close(wire.pgconn.socket)
    _inherited.append(wire)


class ThreadConnection:
    """For one thread at a time."""

    def __init__(self, inner: psycopg.Connection[Any], *, prepares: bool) -> None:
        self.wire = LibpqConnection(inner, prepares=prepares)
        self.reused = False
        self.idle_since = 0.0
        self._ready = _readiness(self.wire.pgconn.socket)

    def ask(self, request: WireRequest, until: float) -> ServerRows:
        """What the server answers. Raises psycopg.Error if it says no, ConnectionLost if it says nothing."""
        wire = self.wire
        if wire.prepares and wire.must_prepare(request):
            wire.send_prepare(request)
            try:
                wire.answer(self._results(until))
            except psycopg.Error:
                wire.forget_prepared(request)
                raise
        wire.send(request)
        return wire.answer(self._results(until, request.copied))

    def _results(self, until: float, copied: bytes | None = None) -> list[pq.abc.PGresult]:
        pgconn = self.wire.pgconn
        results: list[pq.abc.PGresult] = []
        try:
            self._flush(until)
            while True:
                while pgconn.is_busy():
                    self._wait(READABLE, until)
                    pgconn.consume_input()
                result = pgconn.get_result()
                if result is None:
                    return results
                if copied is not None and result.status == pq.ExecStatus.COPY_IN:
                    self._copy(copied, until)
                else:
                    results.append(result)
        except psycopg.OperationalError as error:
            raise ConnectionLost(one_line(error)) from error

    def _flush(self, until: float) -> None:
        pgconn = self.wire.pgconn
        while pgconn.flush():
            if self._wait(READABLE | WRITABLE, until) & READABLE:
                pgconn.consume_input()

    def _copy(self, rows: bytes, until: float) -> None:
        """Hand over the rows, no more at a time than the server takes: libpq would keep all of them."""
        pgconn = self.wire.pgconn
        for at in range(0, len(rows), COPY_AT_ONCE):
            while not pgconn.put_copy_data(rows[at : at + COPY_AT_ONCE]):
                self._flush(until)
            self._flush(until)
        while not pgconn.put_copy_end():
            self._flush(until)
        self._flush(until)

    def _wait(self, events: int, until: float) -> int:
        ready = self._ready(events, until - time.monotonic())
        if not ready:
            raise NoAnswer("the server has not answered in time")
        return ready

    def is_alive(self) -> bool:
        """Whether an idle connection has not been closed by the server, as far as is known here."""
        if time.monotonic() < self.idle_since + A_MOMENT:
            return True
        pgconn = self.wire.pgconn
        try:
            while self._ready(READABLE, 0.0):
                pgconn.consume_input()  # a notice, a change of a setting, or the end
        except psycopg.OperationalError:
            return False
        _notified(pgconn)
        return pgconn.status != BAD

    def close(self) -> None:
        self.wire.finish()


def _readiness(descriptor: int) -> Ready:
    """What tells which of the events have come, after some seconds at most: 0 if none."""
    if sys.platform == "win32":

        def selected(events: int, patience: float) -> int:
            writing = (descriptor,) if events & WRITABLE else ()
            readable, writable, _ = select.select((descriptor,), writing, (), max(0.0, patience))
            return (READABLE if readable else 0) | (WRITABLE if writable else 0)

        return selected

    poller = select.poll()
    poller.register(descriptor, READABLE)
    current = READABLE

    def polled(events: int, patience: float) -> int:
        nonlocal current
        if events != current:
            poller.modify(descriptor, events)
            current = events
        found = poller.poll(max(0.0, patience * 1000.0))
        # An error of the socket is seen by whoever reads.
        return found[0][1] & events or READABLE if found else 0

    return polled


class LoopConnection:
    """For one event loop, one statement at a time.

    An answer whose asker was cancelled is still read: `is_busy` until then, and `when_quiet` is told.
    """

    def __init__(self, inner: psycopg.AsyncConnection[Any], *, prepares: bool) -> None:
        self.wire = LibpqConnection(inner, prepares=prepares)
        self.reused = False
        self.idle_since = 0.0
        self.heard: Callable[[], None] | None = None  # a notification, or the end of the connection
        self.when_quiet: Callable[[], None] | None = None
        self.lost: ConnectionLost | None = None
        self._loop = asyncio.get_running_loop()
        self._socket = self.wire.pgconn.socket
        self._asker: asyncio.Future[list[pq.abc.PGresult]] | None = None
        self._results: list[pq.abc.PGresult] = []
        self._until = self._timer_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._ready = _readiness(self._socket)
        self._loop.add_reader(self._socket, self._readable)
        self._registered = True

    @property
    def is_busy(self) -> bool:
        return self._asker is not None

    async def ask(self, request: WireRequest, until: float) -> ServerRows:
        """Return the answer. Raises psycopg.Error if the server refuses, ConnectionLost if no answer comes in time."""
        wire = self.wire
        if wire.prepares and wire.must_prepare(request):
            wire.send_prepare(request)
            try:
                wire.answer(await self._answered(until))
            except psycopg.Error:
                wire.forget_prepared(request)
                raise
        if self.lost is not None:
            raise self.lost
        assert request.copied is None, "rows are copied by threads only"
        wire.send(request)
        return wire.answer(await self._answered(until))

    def _answered(self, until: float) -> "asyncio.Future[list[pq.abc.PGresult]]":
        asker = self._asker = self._loop.create_future()
        self._results = []
        self._until = until
        if self._timer is None or until < self._timer_at:
            self._set_timer()
        self._write()
        return asker

    def _write(self) -> None:
        try:
            more = bool(self.wire.pgconn.flush())
        except psycopg.OperationalError as error:
            self._fail(ConnectionLost(one_line(error)))
            return
        if more != self._writing:
            self._writing = more
            if more:
                self._loop.add_writer(self._socket, self._write)
            else:
                self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        """Read all there is: uvloop tells of a socket with an error once, and never again."""
        pgconn = self.wire.pgconn
        try:
            while True:
                pgconn.consume_input()
                if self.heard is not None and _notified(pgconn):
                    self.heard()
                if self._asker is not None and self._is_answered():
                    return
                if not self._ready(READABLE, 0.0):
                    return
        except psycopg.OperationalError as error:
            self._fail(ConnectionLost(one_line(error)))

    def _is_answered(self) -> bool:
        pgconn = self.wire.pgconn
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                self._resolve(None)
                return True
            self._results.append(result)
        return False

    def _resolve(self, lost: ConnectionLost | None) -> None:
        asker, self._asker = self._asker, None
        if asker is None:
            return
        if asker.cancelled():
            if self.when_quiet is not None:
                self.when_quiet()
        elif lost is not None:
            asker.set_exception(lost)
        else:
            asker.set_result(self._results)

    def _fail(self, lost: ConnectionLost) -> None:
        # The server's own last words are still to be read, and tell more than the socket does.
        final = [result for result in self._results if result.status == pq.ExecStatus.FATAL_ERROR]
        self.lost = lost
        self.close()
        self._resolve(None if final else lost)
        if self.heard is not None:
            self.heard()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = time.monotonic()
        self._timer_at = min(self._until, now + LOOK_EVERY)
        self._timer = self._loop.call_later(self._timer_at - now, self._late)

    def _late(self) -> None:
        """One timer serves many answers: it is set again only when it has run out."""
        self._timer = None
        if self._asker is not None and self._ready(READABLE, 0.0):
            self._readable()
        if self._asker is None:
            return
        if self._until - time.monotonic() > 0.0:
            self._set_timer()
        else:
            self._fail(NoAnswer("the server has not answered in time"))

    def abandon(self) -> None:
        """Close it in the midst of a transaction: should the loop end now, nobody would, and its locks would stay."""
        self._fail(ConnectionLost("whoever asked was cancelled"))

    def stop_waiting(self) -> None:
        """Let somebody else wait at the socket, until `wait_again`."""
        if self._registered:
            self._registered = False
            self._loop.remove_reader(self._socket)

    def wait_again(self) -> None:
        """Wait at the socket again, unless there is none any more."""
        if self.wire.pgconn.status == BAD:
            self.close()
        elif self.lost is None and not self._registered:
            self._registered = True
            self._loop.add_reader(self._socket, self._readable)

    def is_alive(self) -> bool:
        if self.heard is None:
            _notified(self.wire.pgconn)
        return self.lost is None and self.wire.pgconn.status != BAD

    def close(self) -> None:
        """Close it: on its loop, or when that does not run any more."""
        if self.lost is None:
            self.lost = ConnectionLost("the store was closed meanwhile")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._registered and not self._loop.is_closed():
            self._registered = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self.wire.finish()


def _notified(pgconn: pq.abc.PGconn) -> bool:
    """Take all notifications, also those that another client of the same pooler listens to: libpq would keep them."""
    found = False
    while pgconn.notifies() is not None:
        found = True
    return found
