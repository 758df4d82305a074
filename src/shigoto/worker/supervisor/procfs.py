"""What Linux tells of processes and lets us ask for; elsewhere these know nothing and do nothing."""

import os
import resource
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

SET_CHILD_SUBREAPER = 36  # of prctl


def is_paused(pid: int) -> bool:
    """Whether a process is stopped by a signal, and does nothing until it is continued."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_bytes()
        # The name comes before it, in parentheses, and may hold anything.
        return status[status.rindex(b")") + 2 :].startswith(b"T")
    return False


class Process(Struct, frozen=True):
    """A process as the system lists it; one that is not alive only waits to be reaped."""

    parent: int
    group: int
    alive: bool


def processes() -> dict[int, Process]:
    """Every process that there is."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc") if os.path.exists("/proc/self/stat") else ():
        if name.isdecimal():
            with suppress(OSError):
                status = Path(f"/proc/{name}/stat").read_bytes()
                state, parent, group = status[status.rindex(b")") + 2 :].split(maxsplit=3)[:3]
                found[int(name)] = Process(int(parent), int(group), state not in (b"Z", b"X"))
    return found


def memory_of(pid: int) -> int | None:
    """The bytes of memory that a process has for itself, None if that cannot be known.

    Pages of files that it reads are not counted: the system takes those back when it needs them.
    """
    with suppress(OSError):
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_bytes().split()
        return (int(resident) - int(shared)) * resource.getpagesize()
    return None


@contextmanager
def orphans_adopted() -> Generator[None]:
    """Let processes that descend from this one become its children when their own parents die."""
    _adopt(1)
    try:
        yield
    finally:
        _adopt(0)


def _adopt(yes: int) -> None:
    if os.path.exists("/proc/self/stat"):
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, yes, 0, 0, 0)
