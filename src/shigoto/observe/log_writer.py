"""Threads that write the lines of a log: one loses no line, the other one never lets its callers wait.

A line that is written by itself has its price: a system call, at which a thread gives way to all others and waits for
its turn again. A thread that takes all lines that wait, and writes them together, is cheaper.

    DroppingWriter  drops lines for which there is no room: standard error is often a pipe, and when its reader stops,
                    whoever writes there is held up for ever, and would do nothing else any more
    LosslessWriter  drops none, and lets its callers wait for whoever reads. The lines of jobs that go well, and no
                    others, wait a hundredth of a second for each other. Whatever else is logged is written at once,
                    behind them: what a handler has said last is there, whatever becomes of its process
"""

import io
import logging
import os
import select
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol, Self, TextIO

logger = logging.getLogger("shigoto.log")

MOST_WAITING = 1 << 20  # bytes
LINGER = 0.4  # seconds for what waits when the process ends
PAUSE = 0.010  # seconds for which lines wait for each other; with 0.002 a line takes half a microsecond more
MOST_LINES = 4096  # that may wait

_FILE = 1 << 16  # bytes of a regular file that are written at once
PIPE: int = getattr(select, "PIPE_BUF", 512)  # and of anything else


class Stream(Protocol):
    """Where lines are written."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class _Writer(ABC):
    """An open file, and a thread that writes there. In a forked child the thread is not there, what waits is written by
    the parent, and a lock may be held for ever."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._process = os.getpid()
        threading.Thread(target=self._run, name="shigoto-log", daemon=True).start()

    @classmethod
    def instead_of(cls, stream: TextIO | None) -> Self | None:
        """One that writes to the same open file, None if the stream has none. The file is written past the stream: its
        locks would be held by a writer that is stuck."""
        fd = number_of(stream)
        return None if fd is None else cls(fd)

    @property
    def is_forked(self) -> bool:
        """Whether this is the copy of a forked child."""
        return os.getpid() != self._process

    def flush(self) -> None:
        """Nothing: what must be written at once is, and for the rest there is the thread."""
        return

    @abstractmethod
    def _run(self) -> None: ...


class DroppingWriter(_Writer):
    """Something to write to that takes no time. Lines wait while nobody reads, and are dropped when too many wait."""

    def __init__(self, fd: int, *, most: int = MOST_WAITING) -> None:
        self._most = most
        self._at_once = _at_once(fd)
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._asleep = False
        self._changed = threading.Condition()
        super().__init__(fd)

    def write(self, text: str) -> None:
        """Let this be written, unless too much is waiting already."""
        line = _encoded(text)
        if self.is_forked:
            put(self._fd, line)
            return
        with self._changed:
            if self._size and self._size + len(line) > self._most:
                self._dropped += 1
                return
            self._waiting.append(line)
            self._size += len(line)
            if self._asleep:
                self._asleep = False
                self._changed.notify_all()

    def drain(self, patience: float = LINGER) -> None:
        """Wait until everything is written, but no longer than this."""
        if not self.is_forked:
            with self._changed:
                self._changed.wait_for(lambda: not self._size, patience)

    def _run(self) -> None:
        while True:
            lines = self._next()
            put(self._fd, lines)
            dropped = 0
            with self._changed:
                self._size -= len(lines)
                if not self._size:
                    dropped, self._dropped = self._dropped, 0
                    self._changed.notify_all()
            if dropped:
                logger.warning("%d lines of this log were dropped: nobody has read them in time", dropped)

    def _next(self) -> bytes:
        """Wait for lines, and take as many as may be written at once."""
        with self._changed:
            while not self._waiting:
                self._asleep = True
                self._changed.wait()
            lines = [self._waiting.popleft()]
            room = self._at_once - len(lines[0])
            while self._waiting and len(self._waiting[0]) <= room:
                lines.append(self._waiting.popleft())
                room -= len(lines[-1])
            return b"".join(lines)


def number_of(stream: TextIO | None) -> int | None:
    """The open file behind a stream, which has nothing left to write there; None if there is none."""
    if stream is None:
        return None
    try:
        stream.flush()
        return stream.fileno()
    except (OSError, ValueError, io.UnsupportedOperation):
        return None


def put(fd: int, lines: bytes) -> None:
    """Write all of it, however long that takes."""
    with suppress(OSError):  # nobody will ever read it; there is no better place to say so
        while lines:
            try:
                lines = lines[os.write(fd, lines) :]
            except BlockingIOError:
                select.select([], [fd], [])


def _at_once(fd: int) -> int:
    """How many bytes can be written there at once: not so many that what other processes write could get in between.

    A runner, its supervisor and others have the same standard error.
    """
    return _FILE if is_file(fd) else PIPE


def is_file(fd: int) -> bool:
    """Whether it is a regular file: whatever is written there at once stays together."""
    return stat.S_ISREG(os.fstat(fd).st_mode)


def portions(lines: Sequence[bytes], most: int) -> Iterator[list[bytes]]:
    """As many lines at a time as have so many bytes together; one that is longer by itself."""
    some: list[bytes] = []
    size = 0
    for line in lines:
        if some and size + len(line) > most:
            yield some
            some, size = [], 0
        some.append(line)
        size += len(line)
    if some:
        yield some


class LosslessWriter(_Writer):
    """Something to write to that loses nothing. Safe from any thread.

    Whoever has a line that may wait appends it to `lines`, and calls `wake` if it is `asleep`; that is all, for each
    call more is one for every job. Not for forked children.
    """

    def __init__(self, fd: int) -> None:
        self._is_file = is_file(fd)
        self.lines: deque[str] = deque()
        self.asleep = False
        self._more = threading.Event()
        # Re-entrant: the handler of a signal may log while its thread is in here.
        self._writing = threading.RLock()
        super().__init__(fd)

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

    def drain(self) -> None:
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
