"""A clock that stands still until it is told to move."""

from shigoto.model.time import Millis

# 2026-01-01T00:00:00Z: a fixed instant, so that a failure looks the same on every day of the year.
START: Millis = 1_767_225_600_000


class VirtualClock:
    """Store time under the control of a test; hand it to an engine as its `clock`."""

    def __init__(self, now: Millis = START) -> None:
        self.now = now

    def __call__(self) -> Millis:
        return self.now

    def advance(self, by: Millis) -> None:
        """Move on by so many milliseconds; a negative number sets the clock back."""
        self.now += by
