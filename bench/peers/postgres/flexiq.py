"""FlexiQ on PostgreSQL: the same as on SQLite, with the settings that helped there.

Its awaited call makes the plain one in a thread, so $CALLS=sync, the plain call, is the faster of the two.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench import protocol
from bench.postgres import PostgresRunner

TASK = "noop"


async def noop(number: int) -> None:
    """On its event loop."""
    protocol.hit(number)


class FlexiqRunner(PostgresRunner):
    """FlexiQ."""

    name = "flexiq"
    package = "flexiq"
    bulk = True
    keeps_history = True
    pending_jobs = "SELECT count(*) FROM flexiq.jobs WHERE status IN (0, 1)"

    def open(self) -> tuple[Any, Any]:
        """The queue and its task."""
        queue = import_module("flexiq").Queue(
            backend="postgres",
            db_url=self.address,
            workers=int(os.environ.get("WORKERS", "200")),
            scheduler_batch_size=int(os.environ.get("BATCH", "100")),
            scheduler_poll_interval_ms=int(os.environ.get("POLL_MS", "5")),
            async_concurrency=int(os.environ.get("ASYNC", "100")),
            push_dispatch=os.environ.get("PUSH") == "1",
        )
        return queue, queue.task(name=TASK)(noop)

    def install(self) -> None:
        """It makes its tables when it is opened."""
        queue, _ = self.open()
        queue.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, protocol.Many]]:
        """The plain calls."""
        queue, task = self.open()

        async def one(number: int) -> None:
            await queue.aenqueue(task_name=TASK, args=(number,))

        def many(numbers: list[int]) -> None:
            queue.enqueue_many(TASK, [(number,) for number in numbers])

        yield task.delay if os.environ.get("CALLS") == "sync" else one, many
        queue.close()

    def worker(self) -> None:
        """Its own worker."""
        queue, _ = self.open()
        queue.run_worker()

    async def finished(self) -> int | None:
        """As its statistics say: it moves them to another table, some time later."""
        queue, _ = self.open()
        completed: int = queue.stats().get("completed", 0)
        queue.close()
        return completed

    def promises(self) -> dict[str, str]:
        """From its source."""
        return {
            "history": "yes",
            "fencing": "yes, owner and attempt are compared before the write",
            "recovery": "yes, heartbeats",
            "retries": "yes",
            "worker": "its own",
        }


if __name__ == "__main__":
    protocol.main(FlexiqRunner())
