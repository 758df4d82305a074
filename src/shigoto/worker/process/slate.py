"""Where a worker notes what it is doing, so that it can be read after its death.

An array of numbers in memory that is shared with the supervisor, one place for each job that can run at once. The
number of a job is written there before its handler starts, and zero when it has ended: two stores of eight bytes, 30 ns
each. A job in a child process is written with a minus, beside the id of that process: the death of the worker is not
that job's doing, but before the job may run again the process must be dead.

    cells   0  42  0  0  17  0   -23  0 …        in here: 42 and 17; in a child: 23
    pids    0   0  0  0   0  0  4711  0 …        which is process 4711
    marks   0   1  86400000                      what the worker says of its own end, and when it last claimed

Marks are for what an exit code cannot prove, since any handler can end its process with any code; and for what must be
seen from outside even if the worker is too busy to say it.
"""

import mmap
import os
from enum import IntEnum

WIDTH = 8  # bytes of one number


class Mark(IntEnum):
    """LEAVING: about to leave the store. OVERDUE: ended by its own watchdog, and nothing in it has crashed. CYCLED: has
    finished a claim cycle, and when, in milliseconds of `lease_clock`."""

    LEAVING = 0
    OVERDUE = 1
    CYCLED = 2


class Slate:
    """`size` places. Whoever runs a job writes `cells[place]`, and first `pids[place]` if it is a child's; nobody
    else writes there."""

    def __init__(
        self, numbers: memoryview, *, fd: int | None = None, memory: mmap.mmap | None = None
    ) -> None:
        every: memoryview[int] = numbers.cast("q")
        self.size = (len(every) - len(Mark)) // 2
        self.cells = every[: self.size]
        self.pids = every[self.size : 2 * self.size]
        self._marks = every[2 * self.size :]
        self.fd = fd
        self._memory = memory

    @classmethod
    def create(cls, size: int) -> "Slate":
        """A slate to be shared: another process attaches to its `fd`."""
        fd = unnamed_file("shigoto-slate")
        # Written, not only made longer: a place that the disk has no room for would kill whoever writes there.
        os.write(fd, bytes(_length(size)))
        return cls.attach(fd, size)

    @classmethod
    def attach(cls, fd: int, size: int) -> "Slate":
        """The slate that another process has created, by the open file that it has passed on."""
        memory = mmap.mmap(fd, _length(size))
        return cls(memoryview(memory), fd=fd, memory=memory)

    @classmethod
    def private(cls, size: int) -> "Slate":
        """A slate that nobody else can read."""
        return cls(memoryview(bytearray(_length(size))))

    def running(self) -> list[int]:
        """The numbers of the jobs that run in the process itself."""
        return [number for number in self.cells if number > 0]

    def in_children(self) -> list[int]:
        """The numbers of the jobs that run in its child processes."""
        return [-number for number in self.cells if number < 0]

    def children(self) -> list[int]:
        """The ids of the child processes in which jobs run; each is also that of a process group."""
        return [pid for number, pid in zip(self.cells, self.pids, strict=True) if number < 0]

    def mark(self, mark: Mark, value: int = 1) -> None:
        """Say this; it stays said."""
        self._marks[mark] = value

    def has(self, mark: Mark) -> bool:
        """Whether this was said."""
        return bool(self._marks[mark])

    def cycled_at(self) -> float | None:
        """When the worker has finished its newest claim cycle, in seconds of `lease_clock`; None if it never has."""
        return self._marks[Mark.CYCLED] / 1000 or None

    def close(self) -> None:
        """Close the open file; the memory stays for as long as somebody looks at it."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def unnamed_file(label: str) -> int:
    """An open file without a name, in memory where the system has such files; `label` is for people who look."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(label)
    from tempfile import TemporaryFile

    with TemporaryFile() as file:
        return os.dup(file.fileno())


def _length(size: int) -> int:
    """In bytes."""
    return (2 * size + len(Mark)) * WIDTH
