"""What this process has used: processor time, and memory as its resident set."""

import resource
import sys
import time
from contextlib import suppress
from pathlib import Path

UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, of what getrusage tells


def processor() -> float:
    """Seconds of processor time of all threads so far, in user and system mode."""
    return time.process_time()


def memory() -> int:
    """Bytes in memory now; where the system does not tell, the most there have been."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
    return _most_ever()


def most_memory() -> int:
    """The most bytes there have been in memory, since `forget_most` if the system can forget.

    What getrusage tells on Linux may be that of the process which has started this one.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return _most_ever()


def forget_most() -> None:
    """Let `most_memory` begin anew, where the system can do that: on Linux."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _most_ever() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT
