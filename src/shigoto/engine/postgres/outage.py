"""When to try to connect: a server that is down must not be greeted by all of us at once when it comes back.

While all is well everybody connects as they like. From the first failure on there is one attempt at a time in this
process, with growing pauses in between. Whoever needs a connection meanwhile waits for the outcome, as long as the
outage is young enough to be a restart; later they are told at once.
A worker makes pauses of its own then (worker/station.py), and those come on top: both are so short that a server that
is back is noticed within five seconds, also by one who was told just before the next attempt.
"""

import random
import threading
import time
from collections.abc import Callable

from shigoto.model.errors import StoreUnavailable

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds, give or take a fifth
LOOK_EVERY = 0.05  # seconds


class Outage:
    """What is known of whether one server can be reached. For any thread."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._clock = clock
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
        """Say that an attempt was given up without an outcome."""
        with self._lock:
            self._trying = False
