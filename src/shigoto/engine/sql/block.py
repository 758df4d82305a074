"""Words, time limit and threads that transaction blocks of all SQL engines share.

Blocks that stay open for too long are ended by one thread for all blocks of a process, there only while blocks are
used: starting one for each block would take longer than the block.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from shigoto.model.errors import StoreUnavailable

NOT_YOURS = (
    "The transaction of a block is not ended by hand: leave the block to commit it together with the job's completion,"
    " or raise out of it to roll it back. For a part that may fail there are savepoints."
)
ONCE = "A transaction block is entered once."
OVER = "The transaction block is over: its connection cannot be used any more."
GIVEN_UP = "The handler has returned while this transaction block was open, so it was rolled back."
NO_TRANSACTION = (
    "The connection that was handed in is in no transaction, so the job would be committed at once, whatever becomes of"
    " your own changes."
)
FOREIGN = (
    "This process was forked inside a transaction block, which belongs to the process that opened it."
    " Start processes before the block or after it."
)

LOOK_EVERY = 0.1  # seconds
IDLE_FOR = 10.0  # seconds without a block, then the thread ends


def started(thread: threading.Thread) -> None:
    """Start it. Raises StoreUnavailable where the system has no room for one more."""
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreUnavailable(f"No thread for the store could be started: {error}.") from error


async def to_its_end(future: "asyncio.Future[Any]") -> None:
    """Wait for what must be known, however often the waiting is cancelled; the cancel comes through afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    failed = future.exception()
    if cancelled is not None:
        raise cancelled
    if failed is not None:
        raise failed


def held_in(connection: Any, is_driver_s: Callable[[object], bool]) -> Any:
    """Return what a connection of SQLAlchemy's or Django's, or a pool's, is wrapped around.

    A Connection of SQLAlchemy's begins first, as it does before a statement of its own; a Session has done it by now.
    """
    if hasattr(connection, "exec_driver_sql") and not connection.in_transaction():
        connection.exec_driver_sql("SELECT 1").close()
    held = getattr(connection, "driver_connection", None) or getattr(connection, "connection", None)
    return held() if callable(held) and not is_driver_s(held) else held


class Watched(Protocol):
    """A block, as its watchdog sees it."""

    def expire(self) -> None:
        """Roll back, unless it has ended meanwhile. Never raises."""
        ...


class BlockTimer:
    """Watches blocks from `watch` until `forget`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deadlines: dict[Watched, float] = {}
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        self._used_at = 0.0

    def watch(self, block: Watched, limit: float) -> None:
        """Expire the block in so many seconds, or a little later."""
        with self._lock:
            self._used_at = time.monotonic()
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="shigoto-watchdog", daemon=True)
                started(thread)
                self._thread = thread
            self._deadlines[block] = self._used_at + limit

    def forget(self, block: Watched) -> None:
        with self._lock:
            self._deadlines.pop(block, None)

    def stop(self) -> None:
        """End the thread as soon as no block is left."""
        self._hurry.set()

    def _serve(self) -> None:
        while True:
            if self._hurry.is_set():
                time.sleep(LOOK_EVERY)
            else:
                self._hurry.wait(LOOK_EVERY)
            now = time.monotonic()
            with self._lock:
                late = [block for block, deadline in self._deadlines.items() if deadline <= now]
                for block in late:
                    del self._deadlines[block]
                if (
                    not self._deadlines
                    and not late
                    and (self._hurry.is_set() or now - self._used_at > IDLE_FOR)
                ):
                    self._thread = None
                    return
            for block in late:
                block.expire()
