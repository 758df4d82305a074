"""How processes of ours are started, and told how they ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PACKAGE = __name__.partition(".")[0]


def launch(
    module: str,
    arguments: Sequence[int],
    *,
    files: Sequence[int],
    own_group: bool,
    folder: bytes | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a module of this package as a program, which gets these open files, in this folder if it is there.

    May raise OSError.
    """
    if folder is not None and not os.path.isdir(folder):
        folder = None
    return subprocess.Popen(
        command(module, arguments, folder),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        pass_fds=files,
        process_group=0 if own_group else None,
    )


def command(module: str, arguments: Sequence[int], folder: bytes | None = None) -> list[str]:
    """The words that start it.

    Modules in the working directory must not stand before those of the same name that we need, and the app finds them
    later: -P. But if this package itself is found there, it may be nowhere else.
    """
    safely = [] if _is_in(folder) else ["-P"]
    return [sys.executable, *safely, "-m", module, *map(str, arguments)]


@contextmanager
def interrupts_held_back() -> Generator[None]:
    """Let a process that is started in here begin with Ctrl-C held back, until it is able to leave that to us."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def how_it_ended(code: int) -> str:
    """An exit code as `subprocess` knows it, in words that go on from what the process was."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _is_in(folder: bytes | None) -> bool:
    with suppress(OSError):  # somebody may have removed the folder we are in
        here = Path.cwd() if folder is None else Path(os.fsdecode(folder))
        return Path(__file__).is_relative_to(here / PACKAGE)
    return False
