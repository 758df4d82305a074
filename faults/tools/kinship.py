"""Processes as the system knows them, from outside: who lives, who was never reaped, who was seen until when."""

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from faults.stage import descendants

LOOK = 0.01  # seconds between two looks


def state_of(pid: int) -> str:
    """The letter that Linux has for the state of a process; nothing if there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The name comes before it, in parentheses, and may hold anything.
    return status[status.rindex(")") + 2]


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and more of it than what its parent has to reap."""
    return state_of(pid) not in ("", "Z", "X")


def zombies_below(pid: int) -> list[int]:
    """The descendants of a process that have ended and were not reaped."""
    return [each for each in descendants(pid) if state_of(each) == "Z"]


def wait_for_end(pids: Iterable[int], seconds: float, ended: Callable[[int], None]) -> list[int]:
    """Tell of each process when it is gone; those that live on after so many seconds are the answer."""
    deadline, left = time.monotonic() + seconds, list(pids)
    while left and time.monotonic() < deadline:
        for pid in [pid for pid in left if not is_alive(pid)]:
            left.remove(pid)
            ended(pid)
        time.sleep(LOOK)
    return left


class Sightings:
    """Notes when each process below one was seen for the last time, in a thread of its own, within the block."""

    def __init__(self, pid: int, *, every: float = LOOK) -> None:
        self._pid = pid
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="sightings")
        self.last: dict[int, float] = {}

    def __enter__(self) -> "Sightings":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(self._every):
            for pid in descendants(self._pid):
                if is_alive(pid):
                    self.last[pid] = time.monotonic()
