"""Looking again and again: `--watch [SECONDS]`.

On a terminal each look is drawn over the one before. On a pipe each is printed below it, after a blank line; JSON has
one line per look. Ctrl-C ends it, which is no error.
"""

import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from shigoto.cli import output
from shigoto.cli.canvas import Canvas
from shigoto.cli.output import harmless_json
from shigoto.cli.pace import Pace
from shigoto.model.job import Counts
from shigoto.model.time import read_duration

EVERY = "2"
LEAST, MOST = 0.1, 86_400.0  # seconds
TERMINATED = 128 + signal.SIGTERM

F = TypeVar("F", bound=Callable[..., Any])


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


def watch(look: Callable[[], list[str]], every: float, *, as_json: bool) -> None:
    """Print what each look gives, until Ctrl-C."""
    try:
        if not as_json and output.can_redraw():
            _redraw(look, every)
        _print(look, every, gap=not as_json)
    except KeyboardInterrupt:
        return


def _redraw(look: Callable[[], list[str]], every: float) -> NoReturn:
    colour = output.in_colour()
    with _ended_by_sigterm(), Canvas(sys.stdout) as canvas:
        while True:
            lines = look()
            title = f"{datetime.now(UTC).astimezone():%H:%M:%S}, every {every:g} s until Ctrl-C"
            title = output.clip(title, output.width_of() or len(title))
            canvas.draw([title, *(line if colour else click.unstyle(line) for line in lines)])
            time.sleep(every)


def _print(look: Callable[[], list[str]], every: float, *, gap: bool) -> NoReturn:
    first = True
    while True:
        lines = look()
        click.echo("\n".join(lines if first or not gap else ["", *lines]), color=output.in_colour())
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


class Rates:
    """How many jobs of each queue have ended per second, from one look to the next."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pace = Pace()

    def since_last(self, queues: dict[str, Counts]) -> dict[str, float | None]:
        """The rates of these queues; None at the first look, when nobody can know."""
        self._pace = self._pace.after(self._clock(), queues)
        return {name: self._pace.since_last(name) for name in queues}
