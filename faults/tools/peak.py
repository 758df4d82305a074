"""The most memory that processes have ever had, as the kernel remembers it.

Not what `getrusage` says of children: that is of all whom this process has ever waited for, other experiments' too, and
a child's mark begins with the most that its parent has had before it was started.
"""

from contextlib import suppress
from pathlib import Path

from faults.stage import descendants


class Peak:
    """Asked again and again, because a process that is gone takes its mark with it; in MB."""

    def __init__(self) -> None:
        self.by_process: dict[int, float] = {}

    def look(self, pid: int) -> None:
        """Look at a process and all that descend from it."""
        for each in (pid, *descendants(pid)):
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{each}/status").read_text().splitlines()
                mark = next(line for line in lines if line.startswith("VmHWM"))
                self.by_process[each] = max(self.by_process.get(each, 0.0), int(mark.split()[1]) / 1000)

    @property
    def highest(self) -> float:
        """Of all processes that were seen."""
        return max(self.by_process.values(), default=0.0)
