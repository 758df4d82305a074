"""How long child processes are kept that have nothing to do: a ready one saves the next job 0.3 s, and costs 20 MB."""

from collections.abc import Callable

KEPT_FOR = 60.0  # seconds from the last use


class Warmth:
    """The two instants of one pool: until when to have a child ready, and until when to keep those that are there."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._ready_until = 0.0
        self._kept_until = 0.0

    @property
    def wanted(self) -> bool:
        """Whether one should be ready."""
        return self._time() < self._ready_until

    @property
    def over(self) -> bool:
        """Whether those that have nothing to do may go."""
        return self._time() >= max(self._ready_until, self._kept_until)

    def want(self, seconds: float) -> None:
        """Have one ready for so long."""
        self._ready_until = max(self._ready_until, self._time() + seconds)

    def use(self) -> None:
        """There was work for one."""
        self._kept_until = self._time() + KEPT_FOR
