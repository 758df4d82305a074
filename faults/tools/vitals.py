"""What processes hold, looked at again and again: memory, open files, threads; and how long the write-ahead log is.

All of it comes from /proc, from outside: a process does not know that it is watched. Whether something grows is said
by the least-squares line through what was seen after a warm-up, so that one look at an unlucky moment decides nothing.
"""

import csv
import os
import resource
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from msgspec import Struct

from faults.stage import children_of

MB = 1_000_000
MIB = 1024 * 1024


class Sample(Struct, frozen=True, kw_only=True):
    """What one process held at one moment; `at` are seconds since the watch began, memory is in bytes.

    `private` is the part of `rss` that no other process shares.
    """

    at: float
    pid: int
    role: str
    rss: int
    private: int
    files: int
    threads: int


class Trend(Struct, frozen=True, kw_only=True):
    """How one process has changed over `seconds`: growth by the least-squares line, from its first look to its last."""

    pid: int
    role: str
    seconds: float
    rss: float  # bytes in a second
    private: float
    files: float  # in all that time
    threads: float
    last_rss: int

    @property
    def rss_in_ten_minutes(self) -> float:
        """Megabytes that it would gain in ten minutes."""
        return self.rss * 600 / MB


class Vitals:
    """Looks every so many seconds, in a thread of its own, at whoever `who` names then, with their roles."""

    def __init__(self, who: Callable[[], Mapping[int, str]], store: Path, *, every: float) -> None:
        self.samples: list[Sample] = []
        self.logs: list[tuple[float, int]] = []
        self._who = who
        self._log = f"{store}-wal"
        self._every = every
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vitals", daemon=True)

    def __enter__(self) -> "Vitals":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def now(self) -> float:
        """Seconds since the watch began."""
        return time.monotonic() - self._began

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.look()

    def look(self) -> None:
        """Look once."""
        at = self.now
        self.logs.append((at, size_of(self._log)))
        for pid, role in self._who().items():
            sample = sample_of(pid, role, at)
            if sample is not None:
                self.samples.append(sample)

    def longest_log(self, *, outside: Sequence[tuple[float, float]] = ()) -> int:
        """The most bytes the log has had, but for some stretches of time."""
        return max((size for at, size in self.logs if not any(a <= at <= b for a, b in outside)), default=0)

    def save(self, path: Path) -> None:
        """All that was seen, as a table: one line for each process and look, and one for the log with pid 0."""
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["at", "pid", "role", "rss", "private", "files", "threads"])
            for at, size in self.logs:
                writer.writerow([f"{at:.1f}", 0, "log", size, 0, 0, 0])
            for each in self.samples:
                row = [each.pid, each.role, each.rss, each.private, each.files, each.threads]
                writer.writerow([f"{each.at:.1f}", *row])


def sample_of(pid: int, role: str, at: float) -> Sample | None:
    """What a process holds now, None if it is gone."""
    place = f"/proc/{pid}"
    try:
        _, resident, shared, *_ = (int(word) for word in Path(place, "statm").read_bytes().split())
        files = len(os.listdir(f"{place}/fd"))
        threads = len(os.listdir(f"{place}/task"))
    except OSError:
        return None
    if not resident:  # it only waits to be reaped
        return None
    page = resource.getpagesize()
    return Sample(
        at=at,
        pid=pid,
        role=role,
        rss=resident * page,
        private=(resident - shared) * page,
        files=files,
        threads=threads,
    )


def size_of(path: str | Path) -> int:
    """Bytes of a file, 0 if there is none. Never opens it: closing it would drop the locks that SQLite has on it."""
    with suppress(OSError):
        return os.stat(path).st_size
    return 0


def family(supervisors: Iterable[int]) -> dict[int, str]:
    """Workers as they stand in /proc: supervisors, their runners, and what these have started."""
    roles: dict[int, str] = {}
    for supervisor in supervisors:
        roles[supervisor] = "supervisor"
        for runner in children_of(supervisor):
            roles[runner] = "runner"
            roles |= dict.fromkeys(children_of(runner), "child")
    return roles


def trends(samples: Sequence[Sample], *, warm_up: float, at_least: float) -> list[Trend]:
    """The trend of every process that was seen for `at_least` seconds after its own first `warm_up` seconds."""
    by_process: dict[tuple[int, str], list[Sample]] = {}
    for sample in samples:
        by_process.setdefault((sample.pid, sample.role), []).append(sample)
    found: list[Trend] = []
    for (pid, role), seen in by_process.items():
        warm = [sample for sample in seen if sample.at >= seen[0].at + warm_up]
        if len(warm) < 3 or warm[-1].at - warm[0].at < at_least:
            continue
        seconds = warm[-1].at - warm[0].at
        found.append(
            Trend(
                pid=pid,
                role=role,
                seconds=seconds,
                rss=slope([(sample.at, sample.rss) for sample in warm]),
                private=slope([(sample.at, sample.private) for sample in warm]),
                files=slope([(sample.at, sample.files) for sample in warm]) * seconds,
                threads=slope([(sample.at, sample.threads) for sample in warm]) * seconds,
                last_rss=warm[-1].rss,
            )
        )
    return found


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How steep the least-squares line through these points is; 0 where there is no line."""
    if not points:
        return 0.0
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0


def grown(trend: Trend, *, rss_in_ten_minutes: float) -> list[str]:
    """What is wrong with a trend: memory by more than so many megabytes, files and threads by one or more."""
    who = f"{trend.role} {trend.pid}, in {trend.seconds:.0f} s"
    wrong: list[str] = []
    if trend.rss_in_ten_minutes > rss_in_ten_minutes:
        wrong.append(f"{who}: memory grows by {trend.rss_in_ten_minutes:.2f} MB in ten minutes")
    if round(abs(trend.files)) > 0:
        wrong.append(f"{who}: {trend.files:+.1f} open files")
    if round(abs(trend.threads)) > 0:
        wrong.append(f"{who}: {trend.threads:+.1f} threads")
    return wrong


def told(trend: Trend) -> dict[str, object]:
    """A trend for the figures of an experiment."""
    return {
        "role": trend.role,
        "seconds": round(trend.seconds),
        "rss_mb": round(trend.last_rss / MB, 1),
        "rss_mb_in_ten_minutes": round(trend.rss_in_ten_minutes, 3),
        "private_mb_in_ten_minutes": round(trend.private * 600 / MB, 3),
        "files": round(trend.files, 2),
        "threads": round(trend.threads, 2),
    }
