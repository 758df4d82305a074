"""Where the lines of a log go if nobody may wait for them: a thread writes them, and whoever logs goes on.

Standard error is often a pipe. When its reader stops, whoever writes there is held up for ever, and would do nothing
else any more.
"""

import io
import logging
import os
import select
import threading
from collections import deque
from contextlib import suppress
from typing import TextIO

logger = logging.getLogger("shigoto.log")

MOST_WAITING = 1 << 20  # bytes
LINGER = 0.4  # seconds for what waits when the process ends


class Outlet:
    """Something to write to that takes no time. Lines wait while nobody reads, and are dropped when too many wait."""

    def __init__(self, fd: int, *, most: int = MOST_WAITING) -> None:
        self._fd = fd
        self._most = most
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="shigoto-log", daemon=True).start()

    @classmethod
    def instead_of(cls, stream: TextIO | None) -> "Outlet | None":
        """An outlet to the same open file, None if the stream has none.

        The file is written past the stream: its locks would be held by a writer that is stuck.
        """
        if stream is None:
            return None
        try:
            stream.flush()
            return cls(stream.fileno())
        except (OSError, ValueError, io.UnsupportedOperation):
            return None

    def write(self, text: str) -> None:
        """Let this be written, unless too much is waiting already."""
        line = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._size and self._size + len(line) > self._most:
                self._dropped += 1
                return
            self._waiting.append(line)
            self._size += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Nothing: the thread does not wait before it writes."""

    def drain(self, patience: float = LINGER) -> None:
        """Wait until everything is written, but no longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size, patience)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                line = self._waiting.popleft()
            self._put(line)
            with self._changed:
                self._size -= len(line)
                dropped, self._dropped = (0, self._dropped) if self._size else (self._dropped, 0)
                self._changed.notify_all()
            if dropped:
                logger.warning("%d lines of this log were dropped: nobody has read them in time", dropped)

    def _put(self, line: bytes) -> None:
        with suppress(OSError):  # nobody will ever read it; there is no better place to say so
            while line:
                try:
                    line = line[os.write(self._fd, line) :]
                except BlockingIOError:
                    select.select([], [self._fd], [])
