"""The machine in general words: what a reader needs to judge the figures, and nothing that would name it."""

import os
import platform
import time
from pathlib import Path
from statistics import median

SYNCS = 200
PAGE = b"\0" * 4096


def describe() -> str:
    """Its cores and its kernel."""
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{os.cpu_count()} cores ({platform.machine()}), {platform.system()} {kernel}"


def sync_time(folder: Path) -> float:
    """The median time, in seconds, to append a page to a file and to sync it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sync"
    times: list[float] = []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            started = time.perf_counter()
            file.write(PAGE)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    path.unlink()
    return median(times)
