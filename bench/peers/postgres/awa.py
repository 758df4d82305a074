"""awa, a job system with a core in Rust, on its queue storage, $CONCURRENCY jobs at once (1024), claimed $BATCH
at a time (512), and a look every 10 ms.

Many jobs are stored by its direct COPY. $CALLS=sync stores them through its client without an event loop. What is
completed it keeps for seconds, so history is not asked.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bench import protocol
from bench.postgres import PostgresRunner

CONCURRENCY = int(os.environ.get("CONCURRENCY", "1024"))
BATCH = int(os.environ.get("BATCH", "512"))
QUEUE = "bench"


@dataclass
class Noop:
    """The arguments of a job."""

    number: int


async def noop(job: Any) -> None:
    """On its event loop."""
    protocol.hit(job.args.number)


class AwaRunner(PostgresRunner):
    """awa."""

    name = "awa"
    package = "awa-pg"
    bulk = True

    def client(self) -> Any:
        """Its client."""
        return import_module("awa").AsyncClient(self.address)

    async def install(self) -> None:
        """Its tables."""
        client = self.client()
        await client.migrate()
        await client.install_queue_storage(reset=True)
        await client.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, protocol.Many | None]]:
        """The plain calls."""
        if os.environ.get("CALLS") == "sync":
            plain = import_module("awa").Client(self.address)
            yield lambda number: plain.insert(Noop(number), queue=QUEUE), None
            plain.close()
            return
        client = self.client()

        async def one(number: int) -> None:
            await client.insert(Noop(number), queue=QUEUE)

        async def many(numbers: list[int]) -> None:
            await client.enqueue_many_copy([Noop(number) for number in numbers], queue=QUEUE)

        yield one, many
        await client.close()

    async def worker(self) -> None:
        """Its own worker."""
        client = self.client()
        client.task(Noop, queue=QUEUE)(noop)
        queue = {"name": QUEUE, "max_workers": CONCURRENCY, "claim_batch_size": BATCH}
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await client.start([queue], poll_interval_ms=10)
        await stop.wait()
        await client.shutdown()

    async def pending(self) -> int | None:
        """As its statistics say."""
        client = self.client()
        stats = await client.queue_stats()
        await client.close()
        return sum(
            int(each.available + each.running + each.retryable) for each in stats if each.queue == QUEUE
        )

    def promises(self) -> dict[str, str]:
        """From its source."""
        return {
            "history": "seconds",
            "fencing": "yes, in every write",
            "recovery": "yes, heartbeats",
            "retries": "yes",
            "worker": "its own",
        }


if __name__ == "__main__":
    protocol.main(AwaRunner())
