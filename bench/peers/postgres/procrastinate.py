"""procrastinate with psycopg, $CONCURRENCY jobs at once (5): more of them only wait for each other.

$CALLS=sync stores jobs through its connector without an event loop.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench import protocol
from bench.postgres import PostgresRunner

CONCURRENCY = int(os.environ.get("CONCURRENCY", "5"))


async def noop(number: int) -> None:
    """On its event loop."""
    protocol.hit(number)


class ProcrastinateRunner(PostgresRunner):
    """procrastinate, which keeps all jobs in one table."""

    name = "procrastinate"
    package = "procrastinate"
    bulk = True
    keeps_history = True
    pending_jobs = (
        "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        " AND (scheduled_at IS NULL OR scheduled_at <= now())"
    )
    finished_jobs = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"

    def open(self, *, sync: bool = False) -> tuple[Any, Any]:
        """The app and its task."""
        package = import_module("procrastinate")
        if sync:
            connector = package.SyncPsycopgConnector(conninfo=self.address)
        else:
            connector = package.PsycopgConnector(conninfo=self.address, min_size=4, max_size=CONCURRENCY + 5)
        app = package.App(connector=connector)
        return app, app.task(name="noop", queue="default")(noop)

    async def install(self) -> None:
        """Its tables."""
        app, _ = self.open()
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, protocol.Many | None]]:
        """The plain calls."""
        if os.environ.get("CALLS") == "sync":
            app, task = self.open(sync=True)
            with app.open():
                yield lambda number: task.defer(number=number), None
            return
        app, task = self.open()
        async with app.open_async():

            async def one(number: int) -> None:
                await task.defer_async(number=number)

            async def many(numbers: list[int]) -> None:
                await task.batch_defer_async(*[{"number": number} for number in numbers])

            yield one, many

    async def worker(self) -> None:
        """Its own worker."""
        app, _ = self.open()
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY, wait=True)

    def promises(self) -> dict[str, str]:
        """From its source."""
        return {
            "history": "yes",
            "fencing": "no",
            "recovery": "heartbeats, and a task of one's own that asks for stalled jobs",
            "retries": "yes",
            "worker": "its own",
        }


if __name__ == "__main__":
    protocol.main(ProcrastinateRunner())
