"""Wall clocks that are wrong, for Python programs and all that they start; the monotonic clock stays right.

    clock = WrongClock(folder / "clock", seconds=3600)
    stage.worker(environment=clock.environment())
    clock.step(-300)

Whatever shares a clock shares its steps, at the same moment. What is not Python reads the host's own.
"""

import os
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from faults.tools.shim.sitecustomize import VARIABLE

SHIM = Path(__file__).parent / "shim"


class WrongClock:
    """A clock that is off by this many seconds, for every process that gets its environment."""

    def __init__(self, path: Path, seconds: float = 0.0) -> None:
        self.path = path
        self._offset = 0
        path.write_bytes(struct.pack("q", 0))
        self.set(seconds)

    def set(self, seconds: float) -> None:
        """Be off by this much from now on."""
        self._offset = round(seconds * 1e9)
        file = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(file, struct.pack("q", self._offset), 0)
        finally:
            os.close(file)

    def step(self, seconds: float) -> None:
        """Jump forward, or backward if it is negative."""
        self.set(self._offset / 1e9 + seconds)

    @property
    def offset(self) -> float:
        """By how many seconds it is off."""
        return self._offset / 1e9

    def now(self) -> float:
        """What it shows."""
        return time.time() + self.offset

    def environment(self, path: Sequence[str] | None = None) -> dict[str, str]:
        """The variables for a process that shall have this clock, and look for modules in `path`, or where we do."""
        entries = [str(SHIM), *filter(None, sys.path if path is None else path)]
        return {VARIABLE: str(self.path), "PYTHONPATH": os.pathsep.join(entries)}
