"""What Linux tells of a process and of all that descend from it."""

import os
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

TICKS = os.sysconf("SC_CLK_TCK")
# As it is where a package was installed: its modules are compiled once, not at every start.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Costs(Struct, frozen=True):
    """Of one process so far: its words, seconds of processor time, and kilobytes of memory.

    `pss` is the memory of its own and its share of what several processes have mapped; `private` only the former.
    """

    words: str
    cpu: float
    pss: int
    private: int


def cpu_of(command: Sequence[str]) -> float:
    """The seconds of processor time, in user and system mode, of a program from its start to its end."""
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def tree_of(pid: int) -> dict[int, Costs]:
    """The process, and all that descend from it."""
    found = {pid: _costs(pid)}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found |= tree_of(int(child))
    return found


def _costs(pid: int) -> Costs:
    folder = Path(f"/proc/{pid}")
    # The name comes first, in parentheses, and may hold anything. Then, of those that it has buried, too.
    fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
    memory = {
        name.rstrip(":"): int(value)
        for name, value, *_ in map(str.split, (folder / "smaps_rollup").read_text().splitlines()[1:])
    }
    return Costs(
        words=(folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip(),
        cpu=sum(map(int, fields[11:15])) / TICKS,
        pss=memory["Pss"],
        private=memory["Private_Clean"] + memory["Private_Dirty"],
    )


@contextmanager
def running(command: Sequence[str], folder: Path) -> "Generator[subprocess.Popen[bytes]]":
    """A program in this folder, stopped in the end; what it says is in the file `log` there."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
