"""Who may deliver to a target now: one that is slow, or silent, must not keep the threads of a worker from its jobs.

Deliveries are jobs like any other. If a server takes a connection and says nothing, each of them holds a thread for as
long as there is patience, and a hundred failures would hold all threads for minutes; so would a thousand of 0.3 s each,
if all that cannot go yet waited for half a second. So few at a time go to one target, one more waits, and nobody waits
for those that take long; after one that has failed the target is left alone for a few times as long as that took. Only
where all are through in a moment may a crowd wait: at a target that answers at once, to come again would take longer.

Whoever is not let in comes again later, which counts as no failure; but no job is put off more than a thousand times,
and one that is has failed (snoozed_out). So each is told to come when those before it will be through, by what the last
delivery took. 5 000 messages that come at once, to a target that takes 0.3 s, are a line of 750 s: in a simulation
where nobody waits at the gate each is put off four times, and the unluckiest nine. A target may become faster
meanwhile, so nobody is sent away for more than five minutes: at 3 s each (two hours) the unluckiest is put off fifty
times, and at 30 s (a day), the longest that mail may take, 370 times.
"""

from collections.abc import Generator
from contextlib import contextmanager
from random import uniform
from threading import Condition
from time import monotonic

from shigoto.context import Snooze
from shigoto.notify.targets import Undelivered

MOST = 2  # at a time, to one target and from one process
WAITING = 1  # who waits for one of them to end: with four threads, one is left for jobs
WAIT = 0.5  # seconds that it waits, or that they may take before nobody waits
BRIEF = 0.02  # seconds that any number may wait, if all are through by then
REST = 4.0  # times that a delivery took which has failed
# Seconds after which the next in line and the last of it come again, or after half of that.
SOONEST, LATEST = 2.0, 300.0


class Gate:
    """The deliveries of this process to one target. Safe across threads."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._begun: list[float] = []
        self._waiting = 0
        self._took = 0.0
        self._shut_until = 0.0
        self._taken_until = 0.0  # the end of the line of those who were told to come again

    @contextmanager
    def entered(self) -> Generator[None]:
        """Deliver in here. Raises Snooze if it is not the time."""
        with self._changed:
            self._wait()
            if self._is_shut() or self._is_full() or self._is_slow():
                raise Snooze(self._pause())
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
                self._took = monotonic() - at
                self._begun.remove(at)
                self._changed.notify_all()

    def _wait(self) -> None:
        """Wait for a place, if there is none and it is worth a thread."""
        if self._is_shut() or self._is_slow() or not self._is_full():
            return
        if self._waiting < WAITING:
            patience = WAIT
        elif (self._waiting + 1) * self._step() <= BRIEF:
            patience = BRIEF
        else:
            return
        self._waiting += 1
        try:
            self._changed.wait_for(lambda: not self._is_full(), patience)
        finally:
            self._waiting -= 1

    def _pause(self) -> float:
        """Seconds until those before are through. Not a moment earlier than a second, or a line that is short would be
        asked for ever; and anything from the half to the whole, so that those who came together part ways."""
        now = monotonic()
        self._taken_until = min(max(now, self._taken_until) + self._step(), now + LATEST)
        ahead = max(SOONEST, self._taken_until - now)
        return max(0.0, self._shut_until - now) + ahead * uniform(0.5, 1.0)

    def _step(self) -> float:
        """Seconds by which each in line comes later than the one before: what the last has taken, or what those inside
        have until now, among the places that there are."""
        until_now = monotonic() - self._begun[0] if self._begun else 0.0
        return max(self._took, until_now) / MOST

    def _is_shut(self) -> bool:
        return self._shut_until > monotonic()

    def _is_full(self) -> bool:
        return len(self._begun) >= MOST

    def _is_slow(self) -> bool:
        return bool(self._begun) and monotonic() - self._begun[0] > WAIT
