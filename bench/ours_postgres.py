"""Shigoto on PostgreSQL in the comparison, through its public face; protocol.py has the common commands.

Its workers have the log level `warning` ($LOG is another), and work as a superuser because nobody else is there.
Everything else is as it is by default. $CALLS is `async`, and then one job is stored by `aenqueue`, or `sync`.

What is asked of Shigoto alone:

    concurrent N               N jobs by $CALLERS concurrent callers of `aenqueue`
    look N                     median times of what is done one by one: an enqueue, a claim, the counts, one job
    flow N                     N jobs are stored and run at the same time, $RATE a second (0 is as many as can be), and
                               the sizes of the tables and their indexes are told every now and then
    prepare N KIND             a database with N finished jobs (history), or N due tomorrow at a better priority
                               (future)

With $PREPARED the database is one of these, and taken as it is, with the traces of the last run vacuumed.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

from bench import filling, flowing, protocol
from bench.concurrent_callers import concurrent
from bench.ours import PATH, SHIGOTO, SLOTS, WORKER, store_many
from bench.postgres import PostgresRunner
from bench.shigoto_app import CALLS, DATABASE, KIND, ONE_IN, app, noop, sync_noop
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.model.version import VERSION
from shigoto.model.worker import Announcement, Ending, Settlement, Want

ANY_ROLE = "--any-role"
FEW = 50
HOT = ("ready", "running", "scheduled", "tally")


class ShigotoOnPostgres(PostgresRunner):
    """Our own package."""

    name = "shigoto"
    package = "shigoto"
    bulk = True
    keeps_history = True
    env: Mapping[str, str] = {"PYTHONPATH": PATH}
    pending_jobs = "SELECT (SELECT count(*) FROM shigoto.ready) + (SELECT count(*) FROM shigoto.running)"
    # To count ten million rows takes its time.
    finished_jobs = (
        "SELECT coalesce((SELECT sum(completed) FROM shigoto.counter), 0)"
        " + coalesce((SELECT sum(completed) FROM shigoto.tally), 0)"
    )

    def __init__(self) -> None:
        super().__init__()
        self.database = DATABASE

    def reset(self) -> None:
        """A new database, or the one that was prepared."""
        app.close()
        if not os.environ.get("PREPARED"):
            super().reset()
            return
        # As whoever sweeps does: nobody does here, and the counts of the last run are no part of what has grown.
        self.asking.do("SELECT shigoto.fold_tally()")
        for table in HOT:
            self.asking.do(f"VACUUM ANALYZE shigoto.{table}")
        self.asking.do("CHECKPOINT")

    def install(self) -> None:
        """As `shigoto migrate` does."""
        app.engine.migrate()
        app.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, protocol.Many]]:
        """The plain calls."""
        call = CALLS[KIND]
        task = sync_noop if KIND == "sync" else noop
        if os.environ.get("CALLS") == "async":
            yield task.aenqueue, lambda numbers: app.aenqueue_many(map(call, numbers))
        else:
            yield task.enqueue, lambda numbers: app.enqueue_many(map(call, numbers))
        app.close()

    def commands(self, processes: int) -> list[list[str]]:
        """A supervisor with so many runner processes."""
        return [[*SHIGOTO, *WORKER, ANY_ROLE, "--processes", str(processes), *SLOTS]]

    async def left(self) -> int | None:
        """Begun and not settled. What has not begun yet is known."""
        return int(self.asking.one("SELECT count(*) FROM shigoto.running")[0])

    def hits(self, jobs: int) -> int:
        """Those that fail begin twice."""
        return jobs + -(-jobs // ONE_IN) if KIND == "failures" else jobs

    def fill_history(self, jobs: int) -> None:
        """Jobs like those that a worker has run."""
        filling.history(self, jobs)

    def fill_future(self, jobs: int) -> None:
        """Ahead of all others, once they are due."""
        filling.future(self, jobs)

    def promises(self) -> dict[str, str]:
        """What our documentation says."""
        return {
            "history": "yes, 7 days",
            "fencing": "yes, a token in every settlement",
            "recovery": "yes, leases and a supervisor",
            "retries": "yes",
            "worker": "its own",
        }

    def version(self) -> str:
        """Of the source in this checkout."""
        return VERSION


def look(runner: ShigotoOnPostgres, times: int) -> dict[str, Any]:
    """What is done one by one, in turns, so that whatever disturbs the machine disturbs all of it."""
    runner.reset()
    store_many(app, noop.call, FEW)
    engine, worker = app.engine, uuid7()
    hello = Announcement(
        id=worker, name="bench", tasks=("noop",), queues=None, slots=1, version="0", lease=3_600_000
    )
    engine.run(engine.announce(hello))
    wants = (Want(tasks=("noop",), queues=None, limit=1),)
    leases: list[Lease] = []
    newest = noop.enqueue(0).id

    def claim() -> None:
        claimed = engine.run(engine.claim(worker, wants))
        leases.extend(claimed)

    questions: dict[str, Callable[[], object]] = {
        "enqueue_ms": lambda: noop.enqueue(1),
        "claim_ms": claim,
        "stats_ms": app.stats,
        "get_ms": lambda: app.job(newest),
    }
    took: dict[str, list[float]] = {name: [] for name in questions}
    for _ in range(times):
        for name, ask in questions.items():
            started = time.perf_counter()
            ask()
            took[name].append((time.perf_counter() - started) * 1000)
        engine.run(engine.settle(worker, [_completed(lease) for lease in leases]))
        leases.clear()
    while leases := engine.run(engine.claim(worker, (Want(tasks=("noop",), queues=None, limit=FEW),))):
        engine.run(engine.settle(worker, [_completed(lease) for lease in leases]))
    engine.run(engine.leave(worker))
    finished = sum(counts.completed for counts in app.stats().values())
    app.close()
    return {"n": times, "finished": finished, **{name: round(median(each), 4) for name, each in took.items()}}


def _completed(lease: Lease) -> Settlement:
    return Settlement(
        number=lease.number, token=lease.token, queue=lease.queue, ending=Ending.COMPLETED, result="null"
    )


def prepare(runner: ShigotoOnPostgres, jobs: int, kind: str) -> dict[str, Any]:
    """Make a database once, for several measures."""
    runner.reset()
    started = time.monotonic()
    {"history": runner.fill_history, "future": runner.fill_future}[kind](jobs)
    counts = app.stats()["default"]
    app.close()
    there = {"history": counts.completed, "future": counts.scheduled}[kind]
    if there < jobs:
        raise SystemExit(f"{jobs} jobs were to be stored ({kind}), but the store says {counts}")
    (size,) = runner.asking.one("SELECT pg_database_size(current_database())")
    return {"n": jobs, "seconds": round(time.monotonic() - started, 1), "bytes": int(size)}


def main() -> None:
    """Our own commands, or the common ones."""
    runner = ShigotoOnPostgres()
    if sys.argv[1:2] not in (["concurrent"], ["look"], ["flow"], ["prepare"]):
        protocol.main(runner)
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("jobs", type=int)
    parser.add_argument("kind", nargs="?", default="history", choices=["history", "future"])
    options = parser.parse_args()
    match options.command:
        case "concurrent":
            answer = concurrent(runner, options.jobs)
        case "look":
            answer = look(runner, options.jobs)
        case "flow":
            answer = flowing.flow(runner, options.jobs, float(os.environ.get("RATE", "0")))
        case _:
            answer = prepare(runner, options.jobs, options.kind)
    print(json.dumps({"runner": runner.name, "cmd": options.command, **answer}))
