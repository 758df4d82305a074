"""What a process does to die with its parent, and before it.

The parent-death signal belongs to the *thread* that started the process: when that thread ends, the process is killed,
even if its parent lives on. So children are started only from a thread that lasts, the one of the event loop. Linux
alone has this signal; everywhere a process also watches the socket to its parent, which ends with it. The signal is for
the case that native code keeps the watching thread from running.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

ORPHANED = 71  # the exit code of a process whose parent is gone
EXPENDABLE = 100  # what is added to the badness by which Linux chooses whom to kill when memory runs out
WORST = 1_000

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Be killed as soon as the parent, which has this process id, is gone; at once, if it is gone already."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have died before the kernel knew of our wish.
    if os.getppid() != parent:
        os._exit(ORPHANED)


def be_expendable() -> None:
    """When memory runs out, be killed before the parent, which shall live and tell of it; where Linux chooses.

    Whatever this process starts inherits that, and must not add to it: among processes that run jobs the largest shall
    go. A small one that offers itself first dies for the greed of others, again and again.
    """
    badness = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        badness.write_text(str(min(WORST, int(badness.read_text()) + EXPENDABLE)))
