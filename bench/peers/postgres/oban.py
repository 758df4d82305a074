"""Oban for Python, the open edition, $CONCURRENCY jobs at once (200)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench import protocol
from bench.postgres import PostgresRunner

CONCURRENCY = int(os.environ.get("CONCURRENCY", "200"))


class Noop:
    """What it calls a worker: a class with a method."""

    async def process(self, job: Any) -> None:
        """On its event loop."""
        protocol.hit(job.args["number"])


class ObanRunner(PostgresRunner):
    """Oban, which keeps all jobs in one table."""

    name = "oban"
    package = "oban"
    bulk = True
    keeps_history = True
    pending_jobs = "SELECT count(*) FROM oban_jobs WHERE state IN ('available', 'executing', 'retryable')"
    finished_jobs = "SELECT count(*) FROM oban_jobs WHERE state = 'completed'"

    @asynccontextmanager
    async def pool(self, most: int) -> AsyncIterator[Any]:
        """Its connections."""
        pool = await import_module("oban").Oban.create_pool(dsn=self.address, min_size=1, max_size=most)
        yield pool
        await pool.close()

    async def install(self) -> None:
        """Its tables."""
        async with self.pool(2) as pool:
            await import_module("oban.schema").install(pool)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, protocol.Many]]:
        """The plain calls."""
        package = import_module("oban")
        noop = package.worker(queue="default")(Noop)
        async with self.pool(4) as pool:
            oban = package.Oban(pool=pool)

            async def one(number: int) -> None:
                await oban.enqueue(noop.new({"number": number}))

            async def many(numbers: list[int]) -> None:
                await oban.enqueue_many(*[noop.new({"number": number}) for number in numbers])

            yield one, many

    async def worker(self) -> None:
        """Its own worker."""
        package = import_module("oban")
        package.worker(queue="default")(Noop)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with self.pool(20) as pool, package.Oban(pool=pool, queues={"default": CONCURRENCY}):
            await stop.wait()

    def promises(self) -> dict[str, str]:
        """From its source."""
        return {
            "history": "yes, until it is pruned: a day",
            "fencing": "no",
            "recovery": "yes, heartbeats of its producers",
            "retries": "yes",
            "worker": "its own",
        }


if __name__ == "__main__":
    protocol.main(ObanRunner())
