"""Shigoto in the comparison, through its public face; protocol.py has the common commands.

Its workers have the log level `warning` ($LOG is another), because a line in the log for each job is left out for
everybody. Everything else is as it is by default, but for what is measured: how it syncs, and how many processes work.
This is the one for SQLite; ours_postgres.py is the other.

What is asked of Shigoto alone:

    concurrent N               N jobs by $CALLERS concurrent callers of `aenqueue`
    look N                     median times of questions about a store, each asked N times: the counts, one job, the
                               first page of a list; --store FOLDER to ask about a copy of the one in there
    prepare N KIND --store FOLDER
                               a store with N finished jobs (history), or N due tomorrow at a better priority (future),
                               or N of a task that the measured worker does not know, at a better priority (unknown)
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.concurrent_callers import concurrent
from bench.shigoto_app import CALLS, KIND, ONE_IN, STORE, app, noop, stranger, sync_noop, unmeasured
from shigoto import Call, Shigoto
from shigoto.model.version import VERSION

if TYPE_CHECKING:
    from bench import protocol
else:
    from bench.choice import protocol

ROOT = Path(__file__).resolve().parent.parent
BETTER = 5  # a priority above the default
TOMORROW = 86_400
PAGE = 50
CHUNK = 1000
PATH = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
SHIGOTO = [sys.executable, "-m", "shigoto", "--app", "bench.shigoto_app:app"]
# A line in the log for each job is left out for everybody, ours and the peers.
SLOTS = ["--concurrency", os.environ["SLOTS"]] if "SLOTS" in os.environ else []
WORKER = ["worker", "--log-level", os.environ.get("LOG", "warning")]


class ShigotoRunner(protocol.Runner):
    """Our own package."""

    name = "shigoto"
    engine = "sqlite"
    package = "shigoto"
    bulk = True
    keeps_history = True
    env: Mapping[str, str] = {"PYTHONPATH": PATH}

    def reset(self) -> None:
        """Delete the file and what is beside it."""
        app.close()
        empty(STORE)

    def store(self) -> Path:
        """The database file."""
        return STORE

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[Callable[[int], Any], Callable[[list[int]], Any]]]:
        """The plain calls, on a store that is open and has its schema."""
        app.stats()
        call = CALLS[KIND]
        task = sync_noop if KIND == "sync" else noop
        one: Callable[[int], Any] = task.aenqueue if os.environ.get("CALLS") == "async" else task.enqueue
        yield one, lambda numbers: app.enqueue_many(map(call, numbers))
        app.close()

    def worker_cmd(self) -> list[str]:
        """A supervisor with one runner process."""
        return [*SHIGOTO, *WORKER, "--processes", "1"]

    def commands(self, processes: int) -> list[list[str]]:
        """A supervisor with so many runner processes."""
        return [[*SHIGOTO, *WORKER, "--processes", str(processes), *SLOTS]]

    async def pending(self) -> int | None:
        """Due and not finished."""
        counts = (await app.astats()).values()
        return sum(each.pending - each.scheduled + each.processing for each in counts)

    async def left(self) -> int | None:
        """Begun and not settled. What has not begun yet is known; to count what is due tomorrow takes its time."""
        return await app.acount(state="processing")

    async def finished(self) -> int | None:
        """From history."""
        return sum(counts.completed for counts in (await app.astats()).values())

    def hits(self, jobs: int) -> int:
        """Those that fail begin twice."""
        return jobs + -(-jobs // ONE_IN) if KIND == "failures" else jobs

    def fill_history(self, jobs: int) -> None:
        """Jobs that a worker has really run."""
        store_many(app, unmeasured.call, jobs)
        app.close()
        environment = {**os.environ, **self.env}
        drain = [*self.worker_cmd(), "--drain"]
        subprocess.run(drain, env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    def fill_future(self, jobs: int) -> None:
        """Ahead of all others, once they are due."""
        store_many(app, noop.using(delay=TOMORROW, priority=BETTER).call, jobs)

    def fill_unknown(self, jobs: int) -> None:
        """At the head of the line, for a worker that does not come."""
        other = Shigoto(app.url)
        other.adopt(stranger)
        store_many(other, stranger.using(priority=BETTER).call, jobs)
        other.close()

    def promises(self) -> dict[str, str]:
        """What our documentation says."""
        connection: sqlite3.Connection = app.connect()
        (level,) = connection.execute("PRAGMA synchronous").fetchone()
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        connection.close()
        return {
            "journal": mode,
            "synchronous": {1: "NORMAL", 2: "FULL"}[level],
            "known from": "asked of its connection",
            "history": "yes, 7 days",
            "fencing": "yes, a token in every settlement",
            "recovery": "yes, leases and a supervisor",
            "retries": "yes",
            "worker": "its own",
        }

    def version(self) -> str:
        """Of the source in this checkout."""
        return VERSION


def empty(store: Path) -> None:
    """No store, but a folder for one."""
    store.parent.mkdir(parents=True, exist_ok=True)
    for path in store.parent.glob(f"{store.name}*"):
        path.unlink()


def store_many(where: Shigoto, call: Callable[[int], Call[Any]], jobs: int) -> None:
    """Through the bulk call."""
    for first in range(0, jobs, CHUNK):
        where.enqueue_many(call(number) for number in range(first, min(first + CHUNK, jobs)))


def look(runner: ShigotoRunner, times: int, store: str | None) -> dict[str, Any]:
    """What operators wait for. A store that is as good as empty has one page of finished jobs, so that there is as
    much to answer."""
    runner.reset()
    if store is None:
        runner.fill_history(PAGE)
    else:
        protocol.copy(Path(store) / STORE.name, STORE)
    [newest, *_] = app.find(limit=1)
    questions: dict[str, Callable[[], object]] = {
        "stats_ms": app.stats,
        "get_ms": lambda: app.job(newest.id),
        "list_ms": lambda: app.find(limit=PAGE),
        "list_completed_ms": lambda: app.find(state="completed", limit=PAGE),
    }
    # In turns, so that whatever disturbs the machine disturbs all of them.
    took: dict[str, list[float]] = {name: [] for name in questions}
    for _ in range(times):
        for name, ask in questions.items():
            started = time.perf_counter()
            ask()
            took[name].append((time.perf_counter() - started) * 1000)
    finished = sum(counts.completed for counts in app.stats().values())
    app.close()
    return {"n": times, "finished": finished, **{name: round(median(each), 4) for name, each in took.items()}}


def prepare(runner: ShigotoRunner, jobs: int, kind: str, store: Path) -> dict[str, Any]:
    """Make a store once, to be copied for every measure."""
    runner.reset()
    started = time.monotonic()
    {"history": runner.fill_history, "future": runner.fill_future, "unknown": runner.fill_unknown}[kind](jobs)
    counts = app.stats()["default"]
    app.close()
    there = {"history": counts.completed, "future": counts.scheduled, "unknown": counts.pending}[kind]
    if there != jobs:
        raise SystemExit(f"{jobs} jobs were to be stored ({kind}), but the store says {counts}")
    # What is still in the log goes into the file, which is then all there is.
    connection = sqlite3.connect(STORE)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.close()
    empty(store / STORE.name)
    protocol.copy(STORE, store / STORE.name)
    return {"n": jobs, "seconds": round(time.monotonic() - started, 1), "bytes": STORE.stat().st_size}


def main() -> None:
    """Our own commands, or the common ones."""
    runner = ShigotoRunner()
    if sys.argv[1:2] not in (["concurrent"], ["look"], ["prepare"]):
        protocol.main(runner)
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("jobs", type=int)
    parser.add_argument("kind", nargs="?", default="history", choices=["history", "future", "unknown"])
    parser.add_argument("--store")
    options = parser.parse_args()
    match options.command:
        case "concurrent":
            answer = concurrent(runner, options.jobs)
        case "look":
            answer = look(runner, options.jobs, options.store)
        case _:
            answer = prepare(runner, options.jobs, options.kind, Path(options.store))
    print(json.dumps({"runner": runner.name, "cmd": options.command, **answer}))
