"""An event loop on virtual time, for tests: it reads a `VirtualClock`, and jumps over every wait.

    clock = VirtualClock()

    async def a_day() -> None:
        await asyncio.sleep(86_400)

    run_virtual(a_day, clock)       # returns within a millisecond; clock.now is a day later

The loop and the store read the same clock, so a lease, a delay and a timer mean the same hours. Nothing but
the loop moves the clock by itself: when no callback is ready, time jumps to the next timer. What other
threads do takes real time, during which virtual time may run far ahead: they can take part, but nothing timed
should depend on them.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from math import ceil
from typing import Any, TypeVar

from shigoto.testing.store import VirtualClock

T = TypeVar("T")

# How long a loop without a single timer waits for a thread or a socket before it is called stuck, in real
# seconds.
PATIENCE = 10.0


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]], clock: VirtualClock) -> T:
    """Run `main()` on a new virtual loop to its end."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main())


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop that reads its time from `clock`, in whole milliseconds, and jumps over every wait."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(_JumpingSelector(clock))
        self._clock = clock
        # Counted from the loop's birth: a float of seconds since 1970 has too few digits left for sums of
        # delays.
        self._born_at = clock.now

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return (self._clock.now - self._born_at) / 1000


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits for a timer: if nothing else happened, it moves the clock to where the timer is due."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return self._wait_for_others()
        happened = super().select(0)
        if not happened and timeout > 0:
            # Rounded up, or the timer would not be due yet; less a trifle, or a sum of floats would cost a
            # millisecond.
            self._clock.advance(max(1, ceil(timeout * 1000 - 1e-3)))
        return happened

    def _wait_for_others(self) -> list[tuple[selectors.SelectorKey, int]]:
        happened = super().select(PATIENCE)
        if not happened:
            raise RuntimeError(
                "The virtual loop is stuck: it has no timer left, and no thread or socket has woken it"
                f" for {PATIENCE:g} real seconds."
            )
        return happened
