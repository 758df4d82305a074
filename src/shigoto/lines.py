"""What a run writes down for people to read later: its last lines, numbered, on their way to the store.

A run may write more than anybody wants to keep, so this is a ring: the newest thousand lines, or fewer if they are
long. `tail` gives what is new since the last time, and the number of the oldest line that still counts; the store drops
what lies before it, so both sides keep the same.
"""

import re
from collections import deque
from collections.abc import Callable
from threading import Lock

from shigoto.model.clock import Millis
from shigoto.model.job import LogLine
from shigoto.model.outcome import LogTail

MOST_LINES = 1_000
MOST_BYTES = 64 * 1024
LONGEST_LINE = 2_000
LONGEST_TEXT = 4 * MOST_BYTES

# What a database or a terminal would trip over: control characters but the tab, and half a surrogate pair.
_UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Lines:
    """The lines of one run. Safe across threads."""

    __slots__ = ("_added", "_bytes", "_last", "_lines", "_lock", "_sent")

    def __init__(self, added: Callable[[], None] | None = None) -> None:
        """`added` is called after every text, in the thread that has added it."""
        self._added = added
        self._lock = Lock()
        self._lines: deque[tuple[LogLine, int]] = deque()
        self._bytes = 0
        self._last = 0
        self._sent = 0

    def add(self, at: Millis, level: str, text: str) -> None:
        """Write a line, or several if the text has several."""
        with self._lock:
            for line in text[:LONGEST_TEXT].splitlines() or [""]:
                self._add(at, level, _storable(line))
        if self._added is not None:
            self._added()

    def tail(self) -> LogTail | None:
        """What is new since the last call; None if nothing is."""
        with self._lock:
            if self._sent == self._last:
                return None
            fresh = tuple(line for line, _ in self._lines if line.line > self._sent)
            self._sent = self._last
            return LogTail(first=self._lines[0][0].line, lines=fresh)

    def whole(self) -> LogTail | None:
        """Everything that is kept, told or not."""
        with self._lock:
            if not self._lines:
                return None
            return LogTail(first=self._lines[0][0].line, lines=tuple(line for line, _ in self._lines))

    def unsend(self, tail: LogTail) -> None:
        """This tail did not arrive: give its lines out again with the next one, as far as they are still kept."""
        with self._lock:
            self._sent = min(self._sent, tail.lines[0].line - 1)

    def _add(self, at: Millis, level: str, text: str) -> None:
        size = len(text.encode())
        self._last += 1
        self._lines.append((LogLine(self._last, at, level, text), size))
        self._bytes += size
        while len(self._lines) > MOST_LINES or self._bytes > MOST_BYTES:
            self._bytes -= self._lines.popleft()[1]


def _storable(line: str) -> str:
    if len(line) > LONGEST_LINE:
        line = f"{line[: LONGEST_LINE - 1]}…"
    return _UNFIT.sub(lambda found: f"\\x{ord(found[0]):02x}", line)[:LONGEST_LINE]
