"""The doorbell's button: when a commit of ours is to send a NOTIFY.

The first rings at once, in the very statement that makes work ready. Those that follow within 50 ms leave it to one
more at the end of that time: a listener that was woken looks until it finds nothing, and a NOTIFY for each of thousands
of commits a second would make them wait for one another.
The later one is owed only after the commit; sent before, it would wake somebody to find nothing.
"""

import threading
import time
from collections.abc import Callable

COALESCE_FOR = 0.05  # seconds
TOO_LATE = (
    1.0  # seconds after which whoever had promised to ring is not believed any more: its loop has ended
)


class Bell:
    """When to ring, for all threads and loops of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rung_at = -COALESCE_FOR
        self._due_at: float | None = None

    @property
    def is_owed(self) -> bool:
        """Whether somebody has promised to ring, and has not yet."""
        return self._due_at is not None

    def may_ring(self) -> bool:
        """Whether a statement is to ring by itself; if not, whoever sends it calls `owe` after the commit."""
        now = self._clock()
        with self._lock:
            if now - self._rung_at < COALESCE_FOR:
                return False
            self._rung_at = now
            return True

    def owe(self) -> float | None:
        """In how many seconds the caller is to ring, 0.0 for now; None if somebody else will do it."""
        now = self._clock()
        with self._lock:
            if self._due_at is not None and now < self._due_at + TOO_LATE:
                return None
            self._due_at = max(now, self._rung_at + COALESCE_FOR)
            return self._due_at - now

    def pay(self) -> None:
        """Say that the ring that was owed is sent now; what is committed from now on owes another."""
        with self._lock:
            self._due_at = None
            self._rung_at = self._clock()
