"""What a queue costs, counted from outside and the same way for everybody.

Commits: in write-ahead mode the header of the index of the log, the file `-shm`, has a counter that goes up by one with
each commit (iChange, four bytes at offset 8); otherwise the header of the database has one (at offset 24).

Closing any descriptor of a file drops all POSIX locks that the process has on it, so nobody may read these files in a
process in which SQLite has them open for some other purpose, be it SQLite's own copy in a peer's library. That is why
`Gauge` asks a process of its own, `python -m bench.gauge FILE`, whose open connection also keeps the `-shm` file there.

Processor time and written bytes: what /proc says of the workers and all that descend from them. Written bytes are
those that were handed to write calls (wchar): unlike what reaches the disk, they do not depend on how soon the system
writes pages back.
"""

import mmap
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
CHANGES_OF_LOG = 8
CHANGES_OF_FILE = 24


class Usage(NamedTuple):
    """Seconds of processor time, and bytes handed to write calls."""

    cpu: float
    written: int


class CommitCounter:
    """Counts the commits to a database file, by anybody, for as long as it is open."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        (mode,) = self._connection.execute("PRAGMA journal_mode").fetchone()
        # The first look makes the -shm file, if nobody has it open.
        self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        self.in_log = mode == "wal"
        self._file = os.open(f"{path}-shm" if self.in_log else path, os.O_RDONLY)
        self._map = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)

    def read(self) -> int:
        """The counter, which starts anywhere and wraps around after four billion commits."""
        if self.in_log:
            return int.from_bytes(self._map[CHANGES_OF_LOG : CHANGES_OF_LOG + 4], sys.byteorder)
        return int.from_bytes(self._map[CHANGES_OF_FILE : CHANGES_OF_FILE + 4], "big")

    def close(self) -> None:
        """Close the connection, then the file: the other way round would drop its locks."""
        self._connection.close()
        self._map.close()
        os.close(self._file)


class Gauge:
    """A commit counter in a process of its own."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.gauge", str(path)],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Gauge":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def read(self) -> int:
        """The counter now."""
        asks, answers = self._process.stdin, self._process.stdout
        assert asks is not None
        assert answers is not None
        asks.write("\n")
        asks.flush()
        return int(answers.readline())


def usage_of(roots: Iterable[int]) -> Usage:
    """What these processes and all that descend from them have used so far."""
    parents: dict[int, int] = {}
    cpu: dict[int, float] = {}
    for entry in os.listdir("/proc"):
        # Gone meanwhile, or not ours to look at.
        with suppress(OSError, ValueError):
            pid = int(entry)
            # The name comes first, in parentheses, and may hold anything.
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            parents[pid] = int(fields[1])
            cpu[pid] = sum(map(int, fields[11:15])) / TICKS
    family = {pid for pid in roots if pid in parents}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return Usage(sum(cpu[pid] for pid in family), sum(map(_written, family)))


def _written(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "wchar":
                return int(value)
    return 0


def main(path: Path) -> None:
    """Print the counter for each line of standard input, until it ends."""
    counter = CommitCounter(path)
    for _ in sys.stdin:
        print(counter.read(), flush=True)
    counter.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
