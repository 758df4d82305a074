"""A command under strace: with system calls that fail, or with all of them written down."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

WRITES = ("write", "pwrite64", "fsync", "fdatasync", "ftruncate")


@cache
def why_not() -> str:
    """Why strace cannot be used here; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(
        ["strace", "-f", "-qq", "-o", os.devnull, "-e", "inject=getppid:error=EIO:when=1", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"strace may not trace here: {tried.stderr.strip()}" if tried.returncode else ""


def failing(
    calls: Sequence[str], error: str, *, when: int | str, paths: Sequence[Path] = (), log: Path
) -> list[str]:
    """What to put before a command so that its n-th such call fails; of calls on these files alone, if any are named.

    strace counts for each thread by itself. What it has done to whom stands in `log`, marked as INJECTED.
    """
    only = [word for path in paths for word in ("-P", str(path))]
    names = ",".join(calls)
    fault = ["-e", f"trace={names}", "-e", f"inject={names}:error={error}:when={when}"]
    return ["strace", "-f", "-qq", "-s", "0", "-o", str(log), *only, *fault]


def injected(log: Path) -> int:
    """How many calls were made to fail."""
    try:
        return log.read_bytes().count(b"(INJECTED)")
    except FileNotFoundError:
        return 0


def recording(calls: Sequence[str], *, log: Path) -> list[str]:
    """What to put before a command so that these calls are written down, with all of their data, in hexadecimal."""
    names = ",".join(calls)
    return ["strace", "-f", "-qq", "-y", "-xx", "-s", "16777216", "-e", f"trace={names}", "-o", str(log)]
