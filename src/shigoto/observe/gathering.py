"""Where the lines of a log go if none may be lost: whoever logs waits for whoever reads.

A line for every job would have its price: a system call, at which a thread gives way to all others and waits for its
turn again. So these lines, and no others, wait a hundredth of a second for each other, and a thread writes them all.
Whatever else is logged is written at once, behind them: what a handler has said last is there, whatever becomes of its
process.
"""

import os
import threading
import time
from collections import deque
from typing import TextIO

from shigoto.observe.outlet import PIPE, is_file, number_of, portions, put

PAUSE = 0.010  # seconds for which lines wait for each other; with 0.002 a line takes half a microsecond more
MOST_LINES = 4096  # that may wait


class Gatherer:
    """Something to write to that loses nothing. Safe from any thread.

    Whoever has a line that may wait appends it to `lines`, and calls `wake` if it is `asleep`; that is all, for each
    call more is one for every job. Not for forked children.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_file = is_file(fd)
        self.lines: deque[str] = deque()
        self.asleep = False
        self._more = threading.Event()
        # Re-entrant: the handler of a signal may log while its thread is in here.
        self._writing = threading.RLock()
        self._process = os.getpid()
        threading.Thread(target=self._run, name="shigoto-log", daemon=True).start()

    @classmethod
    def instead_of(cls, stream: TextIO | None) -> "Gatherer | None":
        """One that writes to the same open file, past the stream; None if the stream has none."""
        fd = number_of(stream)
        return None if fd is None else cls(fd)

    @property
    def is_forked(self) -> bool:
        """Whether this is the copy of a forked child: what waits is its parent's, and a lock may be held for ever."""
        return os.getpid() != self._process

    def wake(self) -> None:
        """Let what waits be written in a moment."""
        self.asleep = False
        self._more.set()

    def write(self, text: str) -> None:
        """Write this now, behind all that waits."""
        line = _encoded(text)
        if self.is_forked:
            put(self._fd, line)
            return
        with self._writing:
            self.drain()
            put(self._fd, line)

    def flush(self) -> None:
        """Nothing: what must be written at once is."""

    def drain(self) -> None:
        """Write what waits."""
        if self.is_forked:
            return
        with self._writing:
            lines = self.lines
            while count := len(lines):
                taken = [lines.popleft() for _ in range(count)]
                if self._is_file:
                    put(self._fd, _encoded("".join(taken)))
                    continue
                for some in portions([_encoded(line) for line in taken], PIPE):
                    put(self._fd, b"".join(some))

    def _run(self) -> None:
        while True:
            self._more.clear()
            self.asleep = True
            # Asked after that was said: whoever has not seen it has brought its line before.
            if not self.lines:
                self._more.wait()
            self.asleep = False
            time.sleep(PAUSE)
            self.drain()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
