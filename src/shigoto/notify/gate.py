"""Who may deliver to a target now: one that does not answer must not keep the threads of a worker from its jobs.

Deliveries are jobs like any other. If a server takes a connection and says nothing, each of them holds a thread for as
long as there is patience, and a hundred failures would hold all threads for minutes. So few at a time go to one target,
nobody waits for those that take long, and after one that has failed it is left alone for a few times as long as that
took. Whoever is not let in comes again later, which counts as no failure; but no job is put off more than a thousand
times, and one that is has failed (snoozed_out). At three seconds each, as it is on average, that is most of an hour.
"""

from collections.abc import Generator
from contextlib import contextmanager
from random import uniform
from threading import Condition
from time import monotonic

from shigoto.notify.targets import Undelivered
from shigoto.outcomes import Snooze

MOST = 2  # at a time, to one target and from one process
WAIT = 0.5  # seconds that another waits for one of them to end, or that they may take before nobody waits
REST = 4.0  # times that a delivery took which has failed
SOONEST, LATEST = 1.0, 5.0  # seconds after that


class Gate:
    """The deliveries of this process to one target. Safe across threads."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._begun: list[float] = []
        self._shut_until = 0.0

    @contextmanager
    def entered(self) -> Generator[None]:
        """Deliver in here. Raises Snooze if it is not the time."""
        with self._changed:
            if not self._is_slow():
                self._changed.wait_for(lambda: len(self._begun) < MOST, WAIT)
            left = self._shut_until - monotonic()
            if left > 0 or len(self._begun) >= MOST or self._is_slow():
                raise Snooze(max(0.0, left) + uniform(SOONEST, LATEST))
            at = monotonic()
            self._begun.append(at)
        try:
            yield
        except Undelivered:
            with self._changed:
                now = monotonic()
                self._shut_until = now + REST * (now - at)
            raise
        finally:
            with self._changed:
                self._begun.remove(at)
                self._changed.notify_all()

    def _is_slow(self) -> bool:
        return bool(self._begun) and monotonic() - self._begun[0] > WAIT
