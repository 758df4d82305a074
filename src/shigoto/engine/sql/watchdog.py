"""Ends transaction blocks that stay open for too long.

One thread for all blocks of a process, there only while blocks are used: starting one for each block would take longer
than the block.
"""

import threading
import time
from typing import Protocol

from shigoto.engine.sql.threads import started

LOOK_EVERY = 0.1  # seconds
IDLE_FOR = 10.0  # seconds without a block, then the thread ends


class Watched(Protocol):
    """A block, as its watchdog sees it."""

    def expire(self) -> None:
        """Roll back, unless it has ended meanwhile. Never raises."""
        ...


class Watchdog:
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
        """The block has ended."""
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
