"""Where standard output goes while code of others runs: an answer must hold nothing that it prints."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress


@contextmanager
def only_answers() -> Generator[None]:
    """What is printed in the block goes to standard error, be it by this process or by one that it starts."""
    with redirect_stdout(sys.stderr), _joined(1, 2):
        yield


@contextmanager
def silence() -> Generator[None]:
    """What is printed in the block goes nowhere."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
        _joined(1, nowhere.fileno()),
        _joined(2, nowhere.fileno()),
    ):
        yield


@contextmanager
def _joined(fd: int, other: int) -> Generator[None]:
    """The file of this number is that of the other for a while; as it was, if there is no such file."""
    _flush()
    try:
        kept = os.dup(fd)
        os.dup2(other, fd)
    except OSError:  # somebody has closed it
        yield
        return
    try:
        yield
    finally:
        _flush()
        os.dup2(kept, fd)
        os.close(kept)


def _flush() -> None:
    """What is still to be written belongs where the stream leads now."""
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
