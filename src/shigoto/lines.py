"""What a run writes down for people to read later: its last lines, numbered, on their way to the store.

A run may write more than anybody wants to keep, so this is a ring: the newest thousand lines, or fewer if they are
long. `tail` gives what is new since the last time, and the number of the oldest line that still counts; the store drops
what lies before it, so both sides keep the same.

The collector calls destructors between any two steps, and some of them log. So a line may be added in the midst of
anything here, by the thread that is at it: it waits in `_fresh` until that is done.
"""

from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import RLock

from shigoto.model.job import LogLine
from shigoto.model.text import spelt_out
from shigoto.model.time import Millis
from shigoto.model.worker import LogTail

MOST_LINES = 1_000
MOST_BYTES = 64 * 1024
LONGEST_LINE = 2_000
LONGEST_LEVEL = 20
LONGEST_TEXT = 4 * MOST_BYTES


class Lines:
    """The lines of one run. Safe across threads."""

    __slots__ = ("_added", "_busy", "_bytes", "_fresh", "_last", "_lines", "_lock", "_sent")

    def __init__(self, added: Callable[[], None] | None = None) -> None:
        """`added` is called after every text, in the thread that has added it."""
        self._added = added
        self._lock = RLock()
        self._busy = False
        self._fresh: deque[tuple[Millis, str, str]] = deque()
        self._lines: deque[tuple[LogLine, int]] = deque()
        self._bytes = 0
        self._last = 0
        self._sent = 0

    def add(self, at: Millis, level: str, text: str) -> None:
        """Write a line, or several if the text has several."""
        # Made plain: one line that cannot be written would keep those of other runs from the store.
        lines = str.__str__(text)[:LONGEST_TEXT].splitlines() or [""]
        level = storable_level(str.__str__(level))
        self._fresh.extend([(at, level, _storable(line)) for line in lines])
        with self._lock:
            if self._busy:
                return
            with self._undisturbed():
                pass
        if self._added is not None:
            self._added()

    def tail(self) -> LogTail | None:
        """What is new since the last call; None if nothing is."""
        with self._undisturbed():
            if self._sent == self._last:
                return None
            fresh = tuple(line for line, _ in self._lines if line.line > self._sent)
            tail = LogTail(first=self._lines[0][0].line, lines=fresh)
            self._sent = self._last
            return tail

    def whole(self) -> LogTail | None:
        """Everything that is kept, told or not."""
        with self._undisturbed():
            if not self._lines:
                return None
            return LogTail(first=self._lines[0][0].line, lines=tuple(line for line, _ in self._lines))

    def unsend(self, tail: LogTail) -> None:
        """This tail did not arrive: give its lines out again with the next one, as far as they are still kept."""
        with self._lock:
            self._sent = min(self._sent, tail.lines[0].line - 1)

    @contextmanager
    def _undisturbed(self) -> Generator[None]:
        """Alone with the lines, and with all that were added before."""
        with self._lock:
            self._busy = True
            try:
                while self._fresh:
                    self._keep(*self._fresh.popleft())
                yield
            finally:
                self._busy = False

    def _keep(self, at: Millis, level: str, text: str) -> None:
        size = len(level.encode()) + len(text.encode())
        self._lines.append((LogLine(self._last + 1, at, level, text), size))
        self._last += 1
        self._bytes += size
        while len(self._lines) > MOST_LINES or self._bytes > MOST_BYTES:
            self._bytes -= self._lines.popleft()[1]


def storable_level(level: str) -> str:
    """A level has any name that somebody gives it with `logging.addLevelName`."""
    return level if level.isalpha() and len(level) <= LONGEST_LEVEL else _storable(level)[:LONGEST_LEVEL]


def _storable(line: str) -> str:
    if len(line) > LONGEST_LINE:
        line = f"{line[: LONGEST_LINE - 1]}…"
    return spelt_out(line)[:LONGEST_LINE]
