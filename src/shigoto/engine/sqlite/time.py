"""Store time on SQLite: the host's clock, held back by the highest time that was seen (rule: model.clock.held_back).

All processes of a file share one host, so one clock. The mark lives in memory and starts from the file; every beat and
sweep takes over what others have written there and writes its own, so that after a small step all stand still together.
"""

import threading

from shigoto.engine.sql.commands import Steps, sql
from shigoto.model.time import Clock, Millis, held_back


class StoreClock:
    """One read per operation; never runs backward by a little, and reports when it ran backward by a lot."""

    def __init__(self, host: Clock) -> None:
        self._host = host
        self._mark: Millis = 0
        self._lock = threading.Lock()
        self.step: Millis = 0

    def now(self) -> Millis:
        """Store time."""
        if self._host() == self._mark:  # as mostly, when it is asked several times in a millisecond
            return self._mark
        with self._lock:
            host = self._host()  # anew: who was stopped before it had the lock has an old time
            now = held_back(host, self._mark)
            if now < self._mark:
                self.step = self._mark - now
            self._mark = now
            return now

    def remember(self, mark: Millis) -> None:
        """Take over the mark of the file, unless it dates from before a step that we have believed already."""
        with self._lock:
            if not self.step:
                self._mark = max(self._mark, mark)

    def step_handled(self, step: Millis) -> None:
        """The sweep that gave every lease its time again is committed."""
        if self.step == step:
            self.step = 0


def now_and_step(clock: StoreClock) -> Steps[tuple[Millis, Millis]]:
    """Store time, no earlier than any process of this file has seen it, and remembered for the others."""
    mark: object = (yield sql("meta", "clock")).fetchone()[0]
    if isinstance(mark, int):  # unless somebody has written it by hand; ours is written over it below
        clock.remember(mark)
    now = clock.now()
    yield sql("set_meta", "clock", now)
    return now, clock.step
