"""What a command that runs for long makes sure of before it begins: standard input, folders, signals."""

import os
import signal
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

import click

from shigoto.model.text import without_secrets


def begin_quietly() -> None:
    """A stop that is asked for while all the rest is imported and started is heard later: process 1 would never hear
    it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


class Surroundings(Protocol):
    """What a command that runs for long is told of the world around it."""

    @property
    def stop_on_eof(self) -> bool:
        """Whether it ends with standard input."""
        ...

    @property
    def ready_file(self) -> Path | None:
        """The file that is there while it is ready."""
        ...


def expect_surroundings(address: str | None, wishes: Surroundings) -> None:
    """Raise UsageError if the world is not as it should be for these options."""
    _warn_of_password(address)
    if wishes.stop_on_eof:
        _expect_stream()
    if wishes.ready_file is not None and not wishes.ready_file.parent.is_dir():
        raise click.UsageError(f"--ready-file needs a folder that is there, not {wishes.ready_file.parent}.")


def _warn_of_password(address: str | None) -> None:
    """For as long as a process runs, every user of the machine can read the words that it was started with."""
    if address is not None and without_secrets(address) != address:
        click.echo(
            "Warning: the command line has a password in it, which every user of this machine can read there. Put the"
            " address into $SHIGOTO_URL, or the password into a passfile.",
            err=True,
        )


def _expect_stream() -> None:
    """A file has no end that anybody could wait for: more may be written to it at any time."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        mode = 0
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and sys.stdin.isatty())):
        raise click.UsageError("--stop-on-eof needs a pipe, a socket or a terminal as standard input.")


@contextmanager
def signals_interrupt() -> Generator[None]:
    """Let SIGTERM and a closed terminal do what Ctrl-C does, so that all is put away before the end."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        at_ctrl_c = signal.getsignal(signal.SIGINT)
        if callable(at_ctrl_c):  # where an event loop runs, it cancels what runs there
            at_ctrl_c(number, frame)
        else:
            raise KeyboardInterrupt

    # One that is ignored (by nohup, say) stays ignored.
    numbers = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN
    ]
    former = [(number, signal.signal(number, interrupt)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in former:
            signal.signal(number, handler)
