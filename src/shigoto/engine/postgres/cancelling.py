"""Cancels what the server does for a connection on which nobody waits any more.

A cancel is a connection of its own. To ask libpq for it in one call (PQcancel) is to connect and to wait for the server
with the interpreter's lock held: on a line that has fallen silent the whole process would stand still, beats included.
So we wait ourselves, in a thread, no longer than a deadline and never in more than a few at once. What is not cancelled
ends by its statement timeout, a little later.
"""

import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg import pq

WITHIN = 5.0  # seconds
MOST = 4  # threads
POLL = pq.PollingStatus
SAFELY = psycopg.capabilities.has_cancel_safe()  # libpq 17 lets us wait
ANYBODY_THERE = bytes.fromhex("00000008 04d2162f")  # whether the server speaks TLS: it says S or N

_threads = threading.BoundedSemaphore(MOST)


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
