"""Evidence that is kept outside the system under test, and what can be read from it.

Every process appends to a file of its own, one line per record, one write each: what was written survives a kill -9,
because the page cache does. Times are those of the monotonic clock, which all processes of one host share.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from msgspec import Struct, json


class Record(Struct, frozen=True, kw_only=True):
    """One thing that happened: a run began or ended (in process `pid`, a child of `parent`), or somebody was killed."""

    what: Literal["start", "end", "kill"]
    pid: int
    at: float
    parent: int = 0
    job: str = ""
    fence: int = 0


class Pen:
    """Writes the records of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, int] = {}  # by process: a fork does not inherit its parent's

    def write(self, what: Literal["start", "end"], job: object, fence: int) -> None:
        """Write that a run has begun or ended here."""
        pid, at = os.getpid(), time.monotonic()
        file = self._files.get(pid)
        if file is None:  # two threads may both open it, and both may write
            path = self._folder / f"runs-{pid}.jsonl"
            file = self._files[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        record = Record(what=what, pid=pid, parent=os.getppid(), job=str(job), fence=fence, at=at)
        os.write(file, json.encode(record) + b"\n")


class Reader:
    """Follows one process's file while it is written, to know what is in flight there."""

    def __init__(self, folder: Path, pid: int) -> None:
        self._path = folder / f"runs-{pid}.jsonl"
        self._read = 0
        self.in_flight: set[tuple[str, int]] = set()

    def look(self) -> int:
        """Read what is new, and tell how many runs have begun there and not ended."""
        if not self._path.exists():
            return 0
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text.rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            record = json.decode(line, type=Record)
            run = (record.job, record.fence)
            if record.what == "start":
                self.in_flight.add(run)
            else:
                self.in_flight.discard(run)
        return len(self.in_flight)


def read(folder: Path) -> list[Record]:
    """All that was written, in order of time. A line cut short by a kill never began or ended anything."""
    lines = [line for path in folder.glob("runs-*.jsonl") for line in path.read_bytes().split(b"\n")]
    records = [json.decode(line, type=Record) for line in lines if line.endswith(b"}")]
    return sorted(records, key=lambda record: record.at)


class Run(Struct, frozen=True, kw_only=True):
    """One run of one job; without an end if it was cut short."""

    job: str
    fence: int
    pid: int
    parent: int
    began: float
    ended: float | None


def runs(records: Iterable[Record]) -> dict[str, list[Run]]:
    """The runs of each job, in the order in which they began."""
    ends = {(r.job, r.fence): r.at for r in records if r.what == "end"}
    by_job: dict[str, list[Run]] = defaultdict(list)
    for r in records:
        if r.what == "start":
            run = Run(
                job=r.job,
                fence=r.fence,
                pid=r.pid,
                parent=r.parent,
                began=r.at,
                ended=ends.get((r.job, r.fence)),
            )
            by_job[r.job].append(run)
    return by_job


def unlicensed(by_job: dict[str, list[Run]], killed: dict[int, float]) -> list[Run]:
    """The runs after a job's first that nothing excuses: the one before was not in a process that was killed, or in a
    child of one, or it began before that kill."""
    faults: list[Run] = []
    for story in by_job.values():
        for before, after in pairwise(story):
            deaths = [killed[pid] for pid in (before.pid, before.parent) if pid in killed]
            if not any(before.began <= at <= after.began for at in deaths):
                faults.append(after)
    return faults


def overlaps(by_job: dict[str, list[Run]], killed: dict[int, float]) -> list[Run]:
    """The runs that began while an earlier run of the same job was going on; a killed one ended with its process."""
    faults: list[Run] = []
    for story in by_job.values():
        for before, after in pairwise(story):
            deaths = [killed[pid] for pid in (before.pid, before.parent) if pid in killed]
            until = before.ended if before.ended is not None else min(deaths, default=float("inf"))
            if after.began < until:
                faults.append(after)
    return faults


def stale_fences(by_job: dict[str, list[Run]]) -> list[Run]:
    """The runs whose fence is not above that of every run before."""
    return [
        after for story in by_job.values() for before, after in pairwise(story) if after.fence <= before.fence
    ]


def recoveries(by_job: dict[str, list[Run]], kills: Sequence[Record]) -> list[float]:
    """For every run that a kill cut short, the seconds until the job's next run began."""
    killed = {kill.pid: kill.at for kill in kills}
    waits: list[float] = []
    for story in by_job.values():
        for before, after in pairwise(story):
            at = killed.get(before.pid, killed.get(before.parent))
            if at is not None and before.began <= at and (before.ended is None or before.ended > at):
                waits.append(after.began - at)
    return sorted(waits)
