"""What handlers leave behind in a measured worker: how many began, when the first and the last did, and how long
each had waited.

One small mapped file per process, in the folder $BENCH_PROBE, so that the process that measures can look at any moment
without taking time from the worker. The clock is the monotonic one, which all processes of a machine share.
"""

import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEADER = struct.Struct("=qqqq")  # began, first and last of them in ns, waits
WAIT = struct.Struct("=q")
MOST_WAITS = 65_536
SIZE = HEADER.size + WAIT.size * MOST_WAITS
A_MOMENT = 1_000_000_000  # an argument above it is the moment of the call in ns, below it the number of a job
SUFFIX = ".probe"


class Seen(NamedTuple):
    """What all processes together have noted: counts and moments in ns."""

    began: int = 0
    first: int = 0
    last: int = 0


class Probe:
    """The file of this process."""

    def __init__(self) -> None:
        self.file: mmap.mmap | None = None
        self.forget()

    def forget(self) -> None:
        """Begin anew: a forked process has a file of its own."""
        self.lock = threading.Lock()  # handlers may be in threads
        self.file = None
        self.began = self.first = self.waits = 0

    def open(self) -> mmap.mmap:
        path = Path(os.environ["BENCH_PROBE"]) / f"{os.getpid()}{SUFFIX}"
        with path.open("w+b") as file:
            file.truncate(SIZE)
            self.file = mmap.mmap(file.fileno(), SIZE)
        return self.file


_probe = Probe()


def hit(argument: int) -> None:
    """What every measured handler calls, and all that it does."""
    now = time.monotonic_ns()
    probe = _probe
    with probe.lock:
        file = probe.file or probe.open()
        probe.first = probe.first or now
        probe.began += 1
        if argument > A_MOMENT and probe.waits < MOST_WAITS:
            WAIT.pack_into(file, HEADER.size + WAIT.size * probe.waits, now - argument)
            probe.waits += 1
        HEADER.pack_into(file, 0, probe.began, probe.first, now, probe.waits)


os.register_at_fork(after_in_child=_probe.forget)


def look(folder: Path) -> Seen:
    """What has been noted so far. Asked two hundred times a second of a machine that is to be left alone: it reads no
    more than it needs, by plain calls of the system, and takes 20 µs."""
    notes = [HEADER.unpack(noted) for noted in _read(folder, HEADER.size) if len(noted) == HEADER.size]
    return Seen(
        began=sum(note[0] for note in notes),
        first=min((note[1] for note in notes if note[1]), default=0),
        last=max((note[2] for note in notes), default=0),
    )


def waits(folder: Path) -> list[int]:
    """How long each of the jobs had waited, in ns."""
    return [
        wait
        for noted in _read(folder, SIZE)
        if len(noted) == SIZE
        for (wait,) in WAIT.iter_unpack(noted[HEADER.size :][: WAIT.size * HEADER.unpack_from(noted)[3]])
    ]


def _read(folder: Path, size: int) -> Iterator[bytes]:
    for name in os.listdir(folder):
        if name.endswith(SUFFIX):
            file = os.open(f"{folder}/{name}", os.O_RDONLY)
            try:
                yield os.read(file, size)
            finally:
                os.close(file)
