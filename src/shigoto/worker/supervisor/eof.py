"""Noticing the end of standard input: for `--stop-on-eof`."""

import os
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress

EOF_LOOK = 65_536  # bytes; whatever is written to standard input is thrown away


def call_at_eof(loop: AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call `stop` when standard input ends, or whoever holds it."""
    stdin = sys.stdin.fileno()

    def look() -> None:
        with suppress(OSError):
            if os.read(stdin, EOF_LOOK):
                return
        loop.remove_reader(stdin)
        stop()

    loop.add_reader(stdin, look)
