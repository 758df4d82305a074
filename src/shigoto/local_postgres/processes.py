"""The processes of a server: which they are, and whether they stand still."""

import os
import subprocess
from pathlib import Path

PROC = Path("/proc")


def children_of(parent: int) -> list[int]:
    """Those that this process has started itself; a server starts all of its own itself."""
    if not (PROC / "self" / "stat").exists():
        return children_told_by_ps(parent)
    return [
        int(entry.name)
        for entry in PROC.iterdir()
        if entry.name.isdigit() and (fields := status_of(int(entry.name))) and int(fields[1]) == parent
    ]


def stands_still(pid: int) -> bool:
    """Whether it is stopped, or gone; where nobody can say, yes."""
    fields = status_of(pid)
    return not fields or fields[0] in "TtZX"


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    fields = status_of(pid)
    return not fields or fields[0] not in "ZX"


def status_of(pid: int) -> list[str]:
    """State, parent and so on, as proc(5) has them after the name; nothing without such a process, or without /proc."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return []


def children_told_by_ps(parent: int) -> list[int]:
    told = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = (line.split() for line in told.splitlines())
    return [int(pid) for pid, its_parent in pairs if int(its_parent) == parent]
