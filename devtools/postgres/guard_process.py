"""The process between a private server and whoever started it: it sees to it that the server never outlives them.

    python -I -S guard_process.py PARENT ACCOUNT COMMAND …

PARENT is a process id. ACCOUNT is UID:GID, or - for the account of this process.

It starts the command, prints its process id, and ends when the command and all that came of it have ended. Its standard
input is a pipe or a FIFO that nothing is ever written to: when that ends, or the parent is gone, so is the command
soon. The parent is the process that started this one, or another one that holds the FIFO.

It imports the standard library alone, because a start must cost little.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

PATIENCE = 10.0
SET_CHILD_SUBREAPER = 36  # of prctl


def main(arguments: list[str]) -> int:
    parent, account, *words = arguments
    # Whoever has started us may ignore the ends of its children, and that is inherited.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    adopt_orphans()
    user, group = (int(part) for part in account.split(":")) if account != "-" else (None, None)
    server = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        user=user,
        group=group,
        extra_groups=None if user is None else [],
    )
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    threading.Thread(target=end_with_parent, args=(int(parent), server), daemon=True).start()
    code = server.wait()
    reap_the_rest()
    return code if code >= 0 else 128 - code


def adopt_orphans() -> None:
    """When a server is killed, its processes become ours: so we know when the last of them has ended."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_the_rest() -> None:
    with suppress(ChildProcessError):
        while True:
            os.wait()


def end_with_parent(parent: int, server: subprocess.Popen[bytes]) -> None:
    watched = [sys.stdin.fileno()]
    if sys.platform == "linux":
        # A fork of the parent may hold the other end of the pipe, and live on.
        try:
            watched.append(os.pidfd_open(parent))
        except ProcessLookupError:
            watched.clear()
        except OSError:
            pass
    if watched:
        select.select(watched, [], [])
    # Immediately, as if the power had failed: a server that is told to end so also kills those of its processes that do
    # not obey, such as stopped ones. Nothing is lost; the next start recovers.
    server.send_signal(signal.SIGCONT)
    server.send_signal(signal.SIGQUIT)
    time.sleep(PATIENCE)
    server.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
