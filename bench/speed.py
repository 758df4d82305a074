"""How fast one SQLite file is on this machine, beside a bare insert loop in the same run.

    enqueue    one by one, each committed
    bulk       1000 jobs per call
    drain      no-op jobs, history kept, one worker in this process; async functions, then sync ones in threads
    latency    from enqueue in this process to the start of the handler, one job at a time on an idle worker

Rounds are interleaved and medians are printed, because small machines are noisy.
"""

import argparse
import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from shigoto import Shigoto, Task
from shigoto.worker import Worker

Measure = Callable[[Path, int, str], float]


def bare_inserts(folder: Path, jobs: int, synchronous: str) -> float:
    """The limit: a table of one text column, insert and commit, nothing else."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.executescript(
        f"PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; CREATE TABLE job (payload TEXT)"
    )
    started = time.perf_counter()
    for _ in range(jobs):
        connection.execute("INSERT INTO job VALUES ('{}')")
    seconds = time.perf_counter() - started
    connection.close()
    return jobs / seconds


def enqueue(folder: Path, jobs: int, synchronous: str) -> float:
    app, noop, _ = make_app(folder / "enqueue.db", synchronous)
    noop.enqueue(0)
    started = time.perf_counter()
    for number in range(jobs):
        noop.enqueue(number)
    seconds = time.perf_counter() - started
    app.close()
    return jobs / seconds


def bulk(folder: Path, jobs: int, synchronous: str) -> float:
    app, noop, _ = make_app(folder / "bulk.db", synchronous)
    jobs = max(jobs, 1000) * 10
    started = time.perf_counter()
    for first in range(0, jobs, 1000):
        app.enqueue_many(noop.call(number) for number in range(first, first + 1000))
    seconds = time.perf_counter() - started
    app.close()
    return jobs / seconds


def drain(folder: Path, jobs: int, synchronous: str) -> float:
    return asyncio.run(_drain(folder / "drain.db", jobs * 20, synchronous, threads=False))


def drain_threads(folder: Path, jobs: int, synchronous: str) -> float:
    return asyncio.run(_drain(folder / "threads.db", jobs * 20, synchronous, threads=True))


async def _drain(path: Path, jobs: int, synchronous: str, *, threads: bool) -> float:
    app, noop, sync_noop = make_app(path, synchronous)
    task = sync_noop if threads else noop
    for first in range(0, jobs, 1000):
        await app.aenqueue_many(task.call(number) for number in range(first, first + 1000))
    started = time.perf_counter()
    await Worker(app, drain=True).run()
    seconds = time.perf_counter() - started
    done = (await app.astats())["default"].completed
    if done != jobs // 1000 * 1000:
        raise SystemExit(f"{jobs} jobs were enqueued, but the store says that {done} completed")
    app.close()
    return done / seconds


def latency(folder: Path, jobs: int, synchronous: str) -> float:
    """Milliseconds, the median."""
    return asyncio.run(_latency(folder / "latency.db", min(jobs, 200), synchronous))


async def _latency(path: Path, jobs: int, synchronous: str) -> float:
    app = Shigoto(f"sqlite:///{path}?synchronous={synchronous}")
    started: asyncio.Queue[float] = asyncio.Queue()

    @app.task
    async def tell() -> None:
        started.put_nowait(time.perf_counter())

    waits: list[float] = []
    async with Worker(app):
        for _ in range(jobs):
            before = time.perf_counter()
            await tell.aenqueue()
            waits.append((await started.get() - before) * 1000)
    app.close()
    return median(waits)


def make_app(
    path: Path, synchronous: str
) -> tuple[Shigoto, Task[[int], Coroutine[Any, Any, None]], Task[[int], None]]:
    app = Shigoto(f"sqlite:///{path}?synchronous={synchronous}")

    @app.task
    async def noop(number: int) -> None: ...

    @app.task
    def sync_noop(number: int) -> None: ...

    return app, noop, sync_noop


MEASURES: dict[str, Measure] = {
    "bare insert": bare_inserts,
    "enqueue": enqueue,
    "bulk": bulk,
    "drain": drain,
    "drain, threads": drain_threads,
    "latency ms": latency,
}


def main(arguments: Sequence[str]) -> None:
    """Measure in rounds, and print the medians."""
    parser = argparse.ArgumentParser(
        prog="dev.py bench speed", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--jobs", type=int, default=2000, help="single enqueues per round; the others scale with it"
    )
    parser.add_argument("--synchronous", choices=("full", "normal"), default="full")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    figures: dict[str, list[float]] = {name: [] for name in MEASURES}
    for number in range(options.rounds):
        for name, measure in MEASURES.items():
            with tempfile.TemporaryDirectory() as folder:
                figures[name].append(measure(Path(folder), options.jobs, options.synchronous))
            print(f"round {number + 1}: {name}: {figures[name][-1]:,.2f}", file=sys.stderr)
    report(figures, as_json=options.json)


def report(figures: dict[str, list[float]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(figures))
        return
    limit = median(figures["bare insert"])
    print(f"{'':16}{'median':>12}{'lowest':>12}{'highest':>12}{'× bare insert':>15}")
    for name, values in figures.items():
        ratio = "" if "latency" in name else f"{median(values) / limit:.2f}"
        print(f"{name:16}{median(values):12,.1f}{min(values):12,.1f}{max(values):12,.1f}{ratio:>15}")
