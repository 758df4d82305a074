"""FlexiQ, the newest release of what was taskito: a job system with a core in Rust.

$KIND is the handler, sync or async. With its defaults it drains about eighty jobs per second: it claims one job per
50 ms. What helped: claims of a hundred jobs ($BATCH), a look every 5 ms ($POLL_MS), and, for async handlers, many
workers ($WORKERS), which bound how many jobs it hands out at once. More of any of these did not help. `push_dispatch`
must be off: in release 2.1.0 a worker that is told to wait for pushes takes one batch per second from what is there.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench import protocol

TASK = "noop"
KIND = os.environ.get("KIND", "async")


async def noop(number: int) -> None:
    """On its event loop."""
    protocol.hit(number)


def sync_noop(number: int) -> None:
    """In one of its threads."""
    protocol.hit(number)


class FlexiqRunner(protocol.Runner):
    """FlexiQ on SQLite."""

    name = "flexiq"
    package = "flexiq"
    bulk = True
    keeps_history = True

    def open(self) -> tuple[Any, Any]:
        """The queue and its task."""
        queue = import_module("flexiq").Queue(
            db_path=str(self.store()),
            workers=int(os.environ.get("WORKERS", "200" if KIND == "async" else "8")),
            scheduler_batch_size=int(os.environ.get("BATCH", "100")),
            scheduler_poll_interval_ms=int(os.environ.get("POLL_MS", "5")),
            async_concurrency=int(os.environ.get("ASYNC", "100")),
            push_dispatch=os.environ.get("PUSH") == "1",
        )
        return queue, queue.task(name=TASK)(noop if KIND == "async" else sync_noop)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, protocol.Many]]:
        """The plain calls."""
        queue, task = self.open()
        yield task.delay, lambda numbers: queue.enqueue_many(TASK, [(number,) for number in numbers])
        queue.close()

    def worker(self) -> None:
        """Its own worker."""
        queue, _ = self.open()
        queue.run_worker()

    async def pending(self) -> int | None:
        """As its statistics say."""
        queue, _ = self.open()
        stats = queue.stats()
        queue.close()
        return int(stats.get("pending", 0) + stats.get("running", 0))

    async def finished(self) -> int | None:
        """As its statistics say."""
        queue, _ = self.open()
        stats = queue.stats()
        queue.close()
        return int(stats.get("completed", 0))

    def promises(self) -> dict[str, str]:
        """From its source. Its connections are out of reach, so its syncs were counted: 11 for 220 jobs."""
        return {
            "journal": protocol.journal(self.store(), self.open),
            "synchronous": "NORMAL",
            "known from": "its source, and its system calls",
            "history": "yes",
            "fencing": "yes, owner and attempt are compared before the write",
            "recovery": "yes, heartbeats",
            "retries": "yes",
            "worker": "its own",
        }


if __name__ == "__main__":
    protocol.main(FlexiqRunner())
