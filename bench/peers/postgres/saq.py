"""SAQ on PostgreSQL, $CONCURRENCY jobs at once (32). It has no call for many jobs."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench import protocol
from bench.postgres import PostgresRunner


async def noop(context: Any, *, number: int) -> None:
    """On its event loop."""
    protocol.hit(number)


class SaqRunner(PostgresRunner):
    """SAQ with its defaults in all that a job relies on."""

    name = "saq"
    package = "saq"
    keeps_history = True
    pending_jobs = (
        "SELECT count(*) FROM saq_jobs WHERE status NOT IN ('complete', 'failed', 'aborted')"
        " AND scheduled <= extract(epoch FROM now())"
    )
    finished_jobs = "SELECT count(*) FROM saq_jobs WHERE status = 'complete'"

    @asynccontextmanager
    async def queue(self) -> AsyncIterator[Any]:
        """The queue, connected."""
        queue = import_module("saq").Queue.from_url(self.address)
        await queue.connect()
        yield queue
        await queue.disconnect()

    async def install(self) -> None:
        """It makes its tables when it connects."""
        async with self.queue():
            pass

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, None]]:
        """The plain call."""
        async with self.queue() as queue:

            async def one(number: int) -> None:
                await queue.enqueue("noop", number=number)

            yield one, None

    async def worker(self) -> None:
        """Its own worker."""
        concurrency = int(os.environ.get("CONCURRENCY", "32"))
        async with self.queue() as queue:
            await (
                import_module("saq")
                .Worker(queue, functions=[("noop", noop)], concurrency=concurrency)
                .start()
            )

    def promises(self) -> dict[str, str]:
        """From its source."""
        return {
            "history": "yes, ten minutes",
            "fencing": "no",
            "recovery": "yes, a sweep of what its heart-beat or its time says",
            "retries": "yes",
            "worker": "its own",
        }


if __name__ == "__main__":
    protocol.main(SaqRunner())
