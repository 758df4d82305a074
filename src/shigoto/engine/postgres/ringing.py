"""The doorbell's button: when a commit of ours is to send a NOTIFY.

In sparse flow each rings at once, in the very statement that makes work ready. In a crowd there is one ring in 50 ms:
a listener that was woken looks until it finds nothing, so it needs no more; and commits that send a NOTIFY wait for one
another, which thousands a second would feel.
Who is told "not now" owes a ring after its commit; sent before, it would wake somebody to find nothing. One such ring
is for all who owe one until then.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

APART = 0.004  # seconds between two rings at least
CROWD = 8  # wishes to ring within 50 ms
COALESCE_FOR = 0.05  # seconds between two rings in a crowd
TOO_LATE = (
    1.0  # seconds after which whoever had promised to ring is not believed any more: its loop has ended
)


class Bell:
    """When to ring, for all threads and loops of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wishes: deque[float] = deque(maxlen=CROWD - 1)  # each once: when it rings, or owes it
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
            if now < self._next_ring(now):
                return False
            self._wishes.append(now)
            self._rung_at = now
            return True

    def owe(self) -> float | None:
        """In how many seconds the caller is to ring, 0.0 for now; None if somebody else will do it."""
        now = self._clock()
        with self._lock:
            next_ring = self._next_ring(now)
            self._wishes.append(now)
            if self._due_at is not None and now < self._due_at + TOO_LATE:
                return None
            self._due_at = max(now, next_ring)
            return self._due_at - now

    def pay(self) -> None:
        """Say that the ring that was owed is sent now; what is committed from now on owes another."""
        with self._lock:
            self._due_at = None
            self._rung_at = self._clock()

    def _next_ring(self, now: float) -> float:
        """When the bell may ring for one more who wishes it to, now."""
        crowded = len(self._wishes) == CROWD - 1 and now - self._wishes[0] < COALESCE_FOR
        return self._rung_at + (COALESCE_FOR if crowded else APART)
