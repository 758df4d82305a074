"""Chancy with its executor for async jobs, $CONCURRENCY of them at once (500), and eager polling, without which it
waits for a second after every batch.

$CALLS=sync stores jobs without an event loop.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench import protocol
from bench.peers.postgres.chancy_jobs import noop
from bench.postgres import PostgresRunner

CONCURRENCY = int(os.environ.get("CONCURRENCY", "500"))


class ChancyRunner(PostgresRunner):
    """Chancy, which keeps all jobs in one table."""

    name = "chancy"
    package = "chancy"
    bulk = True
    keeps_history = True
    pending_jobs = (
        "SELECT count(*) FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying')"
        " AND scheduled_at <= now()"
    )
    finished_jobs = "SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded'"

    async def install(self) -> None:
        """Its tables and its queue."""
        package = import_module("chancy")
        queue = package.Queue(
            "default",
            concurrency=CONCURRENCY,
            executor=package.Chancy.Executor.Async,
            polling_interval=1,
            eager_polling=True,
        )
        async with package.Chancy(self.address) as chancy:
            await chancy.migrate()
            await chancy.declare(queue)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, protocol.Many | None]]:
        """The plain calls."""
        package = import_module("chancy")
        job = package.job(queue="default")(noop).job
        if os.environ.get("CALLS") == "sync":
            with package.Chancy(self.address) as chancy:
                yield lambda number: chancy.sync_push(job.with_kwargs(number=number)), None
            return
        async with package.Chancy(self.address) as chancy:

            async def one(number: int) -> None:
                await chancy.push(job.with_kwargs(number=number))

            async def many(numbers: list[int]) -> None:
                jobs: list[Any] = [job.with_kwargs(number=number) for number in numbers]
                async for _ in chancy.push_many(jobs):
                    pass

            yield one, many

    async def worker(self) -> None:
        """Its own worker."""
        package = import_module("chancy")
        async with package.Chancy(self.address) as chancy, package.Worker(chancy) as worker:
            await worker.wait_for_shutdown()

    def promises(self) -> dict[str, str]:
        """From its source."""
        return {
            "history": "yes, until it is pruned",
            "fencing": "no",
            "recovery": "yes, by a plugin",
            "retries": "yes",
            "worker": "its own",
        }


if __name__ == "__main__":
    protocol.main(ChancyRunner())
