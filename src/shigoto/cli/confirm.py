"""The question before a command acts on many jobs, how far it is, and what it has done."""

import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Self

import click

from shigoto.cli import output

SHOWN = 10  # jobs named in a line of a report


class StatusLine:
    """A line on standard error that is drawn over itself while somebody looks, and cleared at the end."""

    def __init__(self, *, wanted: bool = True) -> None:
        self.is_drawn = wanted and output.can_redraw(sys.stderr)
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the line, if it was drawn."""
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)

    def draw(self, text: str) -> None:
        """Show the text, as much of it as there is room for: a line that wraps could not be drawn over."""
        if self.is_drawn:
            start, self._shown = "\r\x1b[K" if self._shown else "\r", True
            room = (output.width_of(sys.stderr) or len(text) + 1) - 1
            click.echo(f"{start}{output.clip(text, room)}", nl=False, err=True)


class ProgressBar:
    """How far long work is: a bar where somebody looks. Ctrl-C ends it after the batch in hand, a second at once."""

    def __init__(self, whole: int, *, batch: int) -> None:
        self._whole = whole
        self._line = StatusLine(wanted=whole > batch)
        self._asked = False
        self._former: Any = None
        self.interrupted = False

    def __enter__(self) -> "ProgressBar":
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as behind nohup
            self._former = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)
        self._line.clear()

    def after_batch(self, done: int) -> bool:
        """Show how many are done, and say whether to go on."""
        share = min(1.0, done / self._whole) if self._whole else 1.0
        self._line.draw(f"{output.bar(share)} {done} of {self._whole}")
        self.interrupted = self._asked
        return not self.interrupted

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True


def expect_confirmation(ctx: click.Context, *, given: bool, hint: str = "") -> None:
    """Raise a usage error if nobody has agreed and nobody can be asked."""
    if not given and not output.can_ask():
        raise click.UsageError(f"There is no terminal to ask on: add --yes{hint}.", ctx)


def confirmed(question: str) -> bool:
    yes = click.confirm(question, err=True)
    if not yes:
        click.echo("Nothing was changed.", err=True)
    return yes


def print_or_warn(say: Callable[[], None], done: str) -> None:
    """Say it. If that cannot be written, what was done goes to the other stream: doing it again would be wrong."""
    try:
        say()
    except OSError as error:
        output.discard_output()
        click.echo(f"Warning: standard output cannot be written: {error.strerror}. {done}", err=True)


def print_result(record: object, text: str, *, as_json: bool, done: str | None = None) -> None:
    """Print what was done, for programs or for people; `done` is what to say of it if that cannot be written."""
    print_or_warn(lambda: output.print_json(record) if as_json else click.echo(text), done or text)


def counted(count: int, state: str) -> str:
    return f"{count} {state} job{'' if count == 1 else 's'}" if state else jobs(count)


def jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"


def jobs_and_schedules(count: int, schedules: int) -> str:
    """So many of both, in words; of schedules nothing is said if there are none."""
    return (
        f"{jobs(count)} and {schedules} schedule{'' if schedules == 1 else 's'}" if schedules else jobs(count)
    )


def names(words: Sequence[str], most: int = SHOWN, between: str = ", ") -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return between.join(words[:most]) + more
