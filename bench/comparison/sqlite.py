"""The comparison on one SQLite file: `python3 dev.py bench --peers sqlite`."""

import shutil
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.comparison import environment
from bench.comparison.contest import Column, Contest, Ground, Wishes, Words
from bench.comparison.sqlite_goals import goals
from bench.comparison.sqlite_plan import LEVELS, NORMAL, PACKAGES, PEERS, PREPARED, entries

STORES = environment.FOLDER / "stores"
RUN = STORES / "run"
SETTLE_LIMIT = 30.0
TITLES = {
    "enqueue": "Enqueue, one by one",
    "bulk": "Bulk enqueue, 1000 jobs per call",
    "drain": "Drain, one worker process",
    "threads": "Drain, sync functions in threads",
    "drain3": "Drain, three worker processes",
    "concurrent": "Concurrent callers of `aenqueue`",
    "payload": "Drain, payloads of 10 KB",
    "failures": "Drain, 5 % fail once",
    "latency": "Latency, one job at a time on an idle worker",
    "history": "Drain with {history:,} finished jobs",
    "future": "Drain with {future:,} jobs due tomorrow",
    "unknown": "Drain with {unknown:,} jobs of an unknown task at the head",
    "look": "Questions to a store with {history:,} finished jobs",
    "idle": "An idle worker",
}
NOTES = {
    "enqueue": "Plain calls in a plain program, each committed before the next."
    " `bare insert` is a loop of `execute` and `commit` on a table of three columns, with nothing else around it;"
    " `bare row` inserts the row that Shigoto stores for a job, with the unique index of its id,"
    " and with `autocommit` leaves the commit to SQLite."
    " It has the pages of 4 KiB that SQLite makes; a new store of Shigoto has pages of 2 KiB, which is one of its"
    " optimisations.",
    "bulk": "litequeue has no such call, but transactions: 1000 calls stand in each.",
    "drain": "No-op handlers, async where there is such a thing; from the start of the first handler to the moment"
    " when the store says that nothing is left."
    " With `log lines on` the worker writes its two lines for each job into a file, as it does by default;"
    " no goal is about it.",
    "threads": "Peers whose handlers are plain functions anyway stand in the table before this one.",
    "concurrent": "Coroutines on one event loop, each of which awaits one call after the other.",
    "failures": "`Retry.immediate()`: the retry is due at once. Until all jobs are completed. A retry is a warning in"
    " the log: like the lines of other jobs it is left out here, and `log lines on` has it.",
    "latency": "From the call to the start of the handler, in another process.",
    "future": "They have a better priority than the jobs that are drained.",
    "unknown": "They have a better priority than the jobs that are drained.",
    "look": "Milliseconds, medians."
    " The empty store has one page of finished jobs, so that there is as much to answer.",
    "idle": "Pick-up is the time from the commit of a job, by another process, to the start of its handler.",
}
PROMISES = (
    "version",
    "synchronous",
    "journal",
    "known from",
    "history",
    "fencing",
    "recovery",
    "retries",
    "worker",
)
COUNTED = (
    "Commits are counted by SQLite's own counter in the file; processor time and written bytes (those handed to write"
    " calls) are those of the worker processes."
)
COSTS = (
    Column("commits_per_job", "commits per job", ".3f"),
    Column("written_bytes_per_job", "bytes per job", ",.0f"),
    Column("cpu_us_per_job", "CPU µs per job", ",.0f"),
)
PLAIN = {
    "latency": {"p50_ms": "p50 ms", "p99_ms": "p99 ms"},
    "look": {
        "stats_ms": "stats",
        "get_ms": "get",
        "list_ms": "list",
        "list_completed_ms": "list of completed",
    },
}


class Files:
    """Stores in a folder, and the peers in an environment."""

    folder = STORES
    env: Mapping[str, str] = {"BENCH_SQLITE_DIR": str(RUN)}

    def __init__(self, there: environment.Environment, python: Path) -> None:
        self.python = python
        self.missing = there.missing
        self.software = (
            f"Python {there.python} with SQLite {there.sqlite} and uvloop; some peers bring their own SQLite."
        )

    def settle(self) -> None:
        """It is deleted, and the rest brought to the disk."""
        shutil.rmtree(RUN, ignore_errors=True)
        RUN.mkdir(parents=True)
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["sync", "-f", str(RUN)], check=False, timeout=SETTLE_LIMIT)

    def words_for(self, store: str) -> list[str]:
        """Its folder."""
        return ["--store", str(STORES / store)]

    def prepare(self, store: str) -> tuple[list[str], Mapping[str, str]]:
        """The kind, and its folder."""
        return [store, *self.words_for(store)], LEVELS[NORMAL]


@contextmanager
def ground(wishes: Wishes) -> Generator[Ground]:
    """The stores are removed in the end: they are large."""
    venv = environment.FOLDER / "venv"
    there = environment.prepare(PACKAGES, venv=venv, python=wishes.python, renew=wishes.renew)
    try:
        yield Files(there, environment.python_of(venv))
    finally:
        shutil.rmtree(STORES, ignore_errors=True)


CONTEST = Contest(
    engine="sqlite",
    ours=LEVELS,
    peers=PEERS,
    entries=entries(),
    prepared=PREPARED,
    goals=goals(),
    words=Words(
        title="Speed on one file",
        preface=[
            "The settings of each peer are the best that we could find; its file in `bench/peers` names them."
        ],
        counted=COUNTED,
        titles=TITLES,
        notes=NOTES,
        promises=PROMISES,
        costs=COSTS,
        plain=PLAIN,
    ),
    ground=ground,
)
