"""Displays that are drawn again and again: the canvas, the rate at which jobs end, and `--watch`.

    Canvas(stream)               a few lines where the cursor stands; they stay when it ends
    Canvas(stream, whole=True)   the whole terminal, on its alternate screen; what was there comes back
    Pace                         how fast jobs end, from the counts of one query after the other
    watch(query, every)           `--watch [SECONDS]`: the query is repeated until Ctrl-C, which is no error

With `--watch`, each query is drawn over the one before on a terminal. On a pipe each is printed below it, after a blank
line; JSON has one line per query.
"""

import os
import select
import shutil
import signal
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import pairwise
from math import floor
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TextIO, TypeVar

import click
import msgspec
from msgspec import Struct

from shigoto.cli import output
from shigoto.cli.output import discard_output, harmless_json
from shigoto.model.job import Counts
from shigoto.model.time import read_duration

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
CLEAR_LINE, CLEAR_BELOW = "\x1b[K", "\x1b[J"

# Lines that turn out wider than we think must not wrap, or they would push all others down.
# What is pasted comes marked as such, so that it is not taken for keys.
ENTER = "\x1b[?1049h\x1b[?7l\x1b[?2004h\x1b[2J" + HIDE_CURSOR
LEAVE = "\x1b[0m\x1b[?2004l\x1b[?7h\x1b[?1049l" + SHOW_CURSOR

RATE_OVER = 10.0  # seconds
KEPT_FOR = 60.0
STEP = 2.0  # seconds that one column of the sparkline stands for
COLUMNS = int(KEPT_FOR / STEP)

EVERY = "2"
LEAST, MOST = 0.1, 86_400.0  # seconds
TERMINATED = 128 + signal.SIGTERM
F = TypeVar("F", bound=Callable[..., Any])


class Size(NamedTuple):
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

    def __exit__(self, *_: object) -> None:
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


class RateSample(Struct, frozen=True, kw_only=True):
    """How many jobs have been seen to end since the first query, by queue; and how many of all have failed."""

    at: float
    ended: dict[str, int]
    whole: int = 0
    failed: int = 0


class Pace(Struct, frozen=True, kw_only=True):
    """What the queries of the last minute say. Every query makes a new one."""

    samples: tuple[RateSample, ...] = ()
    counts: dict[str, Counts] = {}

    def after(self, at: float, counts: dict[str, Counts]) -> "Pace":
        """The pace after one more query, at a time in seconds.

        Counts also go down, when jobs are retried, pruned or deleted. That is no negative work: a count that went down
        says that nothing has ended, which may be too little, never too much.
        """
        if not self.samples:
            return Pace(samples=(RateSample(at=at, ended={}),), counts=counts)
        last = self.samples[-1]
        ended = dict(last.ended)
        failed = 0
        for queue, now in counts.items():
            before = self.counts.get(queue, Counts())
            failures = max(0, now.failed - before.failed)
            others = max(0, now.completed - before.completed) + max(0, now.cancelled - before.cancelled)
            ended[queue] = ended.get(queue, 0) + failures + others
            failed += failures
        sample = RateSample(at=at, ended=ended, whole=sum(ended.values()), failed=last.failed + failed)
        return Pace(samples=(*self._recent(at), sample), counts=counts)

    def per_second(self, queue: str | None = None) -> float:
        """Jobs that end per second, of one queue or of all."""
        count: Callable[[RateSample], int] = (
            (lambda sample: sample.whole) if queue is None else (lambda sample: sample.ended.get(queue, 0))
        )
        return self._rate(count, RATE_OVER)

    def since_last(self, queue: str) -> float | None:
        """Jobs of a queue that have ended per second since the query before; None where there was none."""
        if len(self.samples) < 2:
            return None
        before, last = self.samples[-2:]
        if last.at <= before.at:
            return None
        return (last.ended.get(queue, 0) - before.ended.get(queue, 0)) / (last.at - before.at)

    def failures_of_last_minute(self) -> int:
        """How many jobs were seen to fail for good."""
        if not self.samples:
            return 0
        last = self.samples[-1]
        return round(last.failed - self._at(last.at - KEPT_FOR, lambda sample: sample.failed))

    def columns(self) -> list[float]:
        """Jobs that ended in each of the last spans of two seconds, oldest first; only spans that are over."""
        if not self.samples:
            return [0.0] * COLUMNS
        end = floor(self.samples[-1].at / STEP) * STEP
        marks = [
            self._at(end - STEP * place, lambda sample: sample.whole) for place in range(COLUMNS, -1, -1)
        ]
        return [later - earlier for earlier, later in pairwise(marks)]

    def _recent(self, at: float) -> tuple[RateSample, ...]:
        """The samples of the last minute and the one before them, from which the oldest of it are counted."""
        first = bisect_right(self.samples, at - KEPT_FOR, key=lambda sample: sample.at)
        return self.samples[max(0, first - 1) :]

    def _rate(self, count: Callable[[RateSample], int], seconds: float) -> float:
        if len(self.samples) < 2:
            return 0.0
        last = self.samples[-1]
        since = max(self.samples[0].at, last.at - seconds)
        return (count(last) - self._at(since, count)) / (last.at - since) if last.at > since else 0.0

    def _at(self, at: float, count: Callable[[RateSample], int]) -> float:
        """The count at any time, as if jobs had ended evenly between two queries."""
        place = bisect_right(self.samples, at, key=lambda sample: sample.at)
        if place == 0:
            return count(self.samples[0])
        if place == len(self.samples):
            return count(self.samples[-1])
        before, after = self.samples[place - 1], self.samples[place]
        share = (at - before.at) / (after.at - before.at)
        return count(before) + (count(after) - count(before)) * share


class Watching(click.Command):
    """A command with `--watch`, whose value may be left out, whatever stands behind it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Say the value where it was left out: else the next word would be taken for it."""
        return super().parse_args(ctx, spelt_out(args))


def spelt_out(words: Sequence[str]) -> list[str]:
    """The words, with a value for every `--watch`."""
    spelt: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*spelt, word, *rest]
        if word == "--watch":
            given = bool(rest) and read_duration(rest[0]) is not None
            word = f"--watch={rest.pop(0) if given else EVERY}"
        spelt.append(word)
    return spelt


def takes_watch(command: F) -> F:
    """The option itself; its value is in seconds, or None."""
    return click.option(
        "--watch",
        metavar="[SECONDS]",
        callback=_seconds,
        help=f"Look again every {EVERY} seconds, or as often as told, until Ctrl-C.",
    )(command)


def _seconds(ctx: click.Context, option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    every = read_duration(text)
    if every is None or not LEAST <= every.total_seconds() <= MOST:
        raise click.BadParameter(
            f"{text!r} is no time to wait between looks: write seconds, from {LEAST} on.", ctx, option
        )
    return every.total_seconds()


def watch(query: Callable[[], list[str]], every: float, *, as_json: bool) -> None:
    """Print what each query gives, until Ctrl-C."""
    try:
        if not as_json and output.can_redraw():
            _redraw(query, every)
        _print(query, every, gap=not as_json)
    except KeyboardInterrupt:
        return


def _redraw(query: Callable[[], list[str]], every: float) -> NoReturn:
    colour = output.in_colour()
    with _ended_by_sigterm(), Canvas(sys.stdout) as canvas:
        while True:
            lines = query()
            title = f"{datetime.now(UTC).astimezone():%H:%M:%S}, every {every:g} s until Ctrl-C"
            title = output.clip(title, output.width_of() or len(title))
            canvas.draw([title, *(line if colour else click.unstyle(line) for line in lines)])
            time.sleep(every)


def _print(query: Callable[[], list[str]], every: float, *, gap: bool) -> NoReturn:
    first = True
    while True:
        lines = query()
        output.print_lines(lines if first or not gap else ["", *lines])
        first = False
        time.sleep(every)


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """Leave in good order when told to end: the cursor is hidden meanwhile."""

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(TERMINATED)

    former = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def json_line(value: object) -> str:
    """One JSON document on one line, wherever it is printed."""
    return harmless_json(msgspec.json.encode(value)).decode()


class EndRates:
    """How many jobs of each queue have ended per second, from one query to the next."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pace = Pace()

    def since_last(self, queues: dict[str, Counts]) -> dict[str, float | None]:
        """The rates of these queues; None at the first query, when nobody can know."""
        self._pace = self._pace.after(self._clock(), queues)
        return {name: self._pace.since_last(name) for name in queues}
