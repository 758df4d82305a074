"""What live displays draw on: lines of a terminal, drawn again and again in the same place.

Canvas(stream)               a few lines where the cursor stands; they stay when it ends
Canvas(stream, whole=True)   the whole terminal, on its alternate screen; what was there comes back
"""

import os
import select
import shutil
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, TextIO

from shigoto.cli.output import discard_output

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
CLEAR_LINE, CLEAR_BELOW = "\x1b[K", "\x1b[J"

# Lines that turn out wider than we think must not wrap, or they would push all others down.
# What is pasted comes marked as such, so that it is not taken for keys.
ENTER = "\x1b[?1049h\x1b[?7l\x1b[?2004h\x1b[2J" + HIDE_CURSOR
LEAVE = "\x1b[0m\x1b[?2004l\x1b[?7h\x1b[?1049l" + SHOW_CURSOR


class Size(NamedTuple):
    """How large a terminal is, in cells."""

    columns: int
    lines: int


class Canvas:
    """Lines of a terminal. Enter it before drawing; it may be left and entered again."""

    def __init__(self, stream: TextIO, *, whole: bool = False) -> None:
        self._stream = stream
        self._whole = whole
        self._drawn: list[str] = []

    def __enter__(self) -> "Canvas":
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def enter(self) -> None:
        """Hide the cursor; take the whole terminal if that is wanted."""
        self._drawn = []
        self._stream.write(ENTER if self._whole else HIDE_CURSOR)
        self._stream.flush()

    def leave(self) -> None:
        """Give everything back; a terminal that is gone needs nothing."""
        try:
            self._stream.write(LEAVE if self._whole else SHOW_CURSOR)
            self._stream.flush()
        except OSError:
            discard_output()

    def abandon(self) -> None:
        """Give back what can be given without waiting: the terminal may take nothing more, ever."""
        with suppress(OSError, ValueError):
            out = self._stream.fileno()
            if select.select([], [out], [], 0)[1]:
                os.write(out, (LEAVE if self._whole else SHOW_CURSOR).encode())

    @property
    def size(self) -> Size:
        """The size now. The whole terminal is as large as it says, whatever $COLUMNS and $LINES once were."""
        if self._whole:
            with suppress(OSError, ValueError):
                size = Size(*os.get_terminal_size(self._stream.fileno()))
                if all(size):  # a terminal that was never told its size says nothing
                    return size
        return Size(*shutil.get_terminal_size())

    def redraw(self) -> None:
        """Forget what was drawn: the terminal may show something else by now."""
        self._drawn = []

    def draw(self, lines: Sequence[str]) -> None:
        """Draw the lines, as many as there is room for, in one write so that nothing flickers."""
        if self._whole:
            kept = list(lines[: self.size.lines])
            self._stream.write(self._changes(kept))
        else:
            kept = list(lines[: self.size.lines - 1])  # one more would scroll
            up = f"\x1b[{len(self._drawn)}F" if self._drawn else ""
            self._stream.write(up + "".join(f"{line}{CLEAR_LINE}\n" for line in kept) + CLEAR_BELOW)
        self._stream.flush()
        self._drawn = kept

    def _changes(self, lines: Sequence[str]) -> str:
        """Only what differs from what was drawn: a terminal may be at the other end of a slow line."""
        if len(lines) != len(self._drawn):
            return "\x1b[2J" + "".join(_placed(row, line) for row, line in enumerate(lines))
        return "".join(
            _placed(row, line)
            for row, (line, before) in enumerate(zip(lines, self._drawn, strict=True))
            if line != before
        )


def filled(lines: Sequence[str], count: int) -> list[str]:
    """Exactly so many lines: blank ones at the end, or none of those that are too many."""
    return [*lines, *[""] * (count - len(lines))][:count]


def _placed(row: int, line: str) -> str:
    # Cleared first: after a line that is as wide as the terminal, the cursor still stands on its last letter.
    return f"\x1b[{row + 1};1H{CLEAR_LINE}{line}"
