"""Control groups: processes that may have only so much memory."""

import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

VERSIONS = (  # where groups are made, and the files with the limits of memory, and of memory and swap
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"),
)
EMPTY_WITHIN = 20.0  # seconds


@contextmanager
def small_memory(most: int) -> Generator[list[str] | None]:
    """Words that start a command whose processes have only so many bytes together; None where that cannot be had."""
    group = _make(most)
    if group is None:
        yield None
        return
    try:
        yield ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    finally:
        deadline = time.monotonic() + EMPTY_WITHIN
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        with suppress(OSError):
            group.rmdir()


def _make(most: int) -> Path | None:
    for parent, memory, swap in VERSIONS:
        group = parent / f"shigoto-{uuid4().hex[:8]}"
        with suppress(OSError):
            group.mkdir()
            try:
                (group / memory).write_text(str(most))
            except OSError:
                group.rmdir()
                continue
            with suppress(OSError):  # there may be no swap at all
                (group / swap).write_text("0" if swap.endswith(".max") else str(most))
            return group
    return None
