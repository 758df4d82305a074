"""pgmq: a message queue, not a job system, so the loop of the worker is ours: read $BATCH messages (1000), call,
archive them, and 10 ms of sleep when it is empty. Its tables come with its package, without the extension.

$CALLS=sync stores messages without an event loop.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench import protocol
from bench.postgres import PostgresRunner

BATCH = int(os.environ.get("BATCH", "1000"))
HIDDEN_FOR = 60  # seconds
EMPTY = 0.01
QUEUE = "bench"


class PgmqRunner(PostgresRunner):
    """pgmq, with its archive as history."""

    name = "pgmq"
    package = "pgmq"
    bulk = True
    keeps_history = True
    pending_jobs = f"SELECT count(*) FROM pgmq.q_{QUEUE}"
    finished_jobs = f"SELECT count(*) FROM pgmq.a_{QUEUE}"

    def install(self) -> None:
        """Its schema, and a queue."""
        import_module("pgmq.install").install_pgmq_from_sql(dsn=self.address)
        queue = import_module("pgmq").SyncPGMQueue(conn_string=self.address, init_extension=False)
        queue.create_queue(QUEUE)
        queue.close()

    @asynccontextmanager
    async def queue(self) -> AsyncIterator[Any]:
        """The queue, connected."""
        queue = import_module("pgmq").AsyncPGMQueue(conn_string=self.address, init_extension=False)
        await queue.init()
        yield queue
        await queue.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, protocol.Many | None]]:
        """The plain calls."""
        if os.environ.get("CALLS") == "sync":
            plain = import_module("pgmq").SyncPGMQueue(conn_string=self.address, init_extension=False)
            yield lambda number: plain.send(QUEUE, {"number": number}), None
            plain.close()
            return
        async with self.queue() as queue:

            async def one(number: int) -> None:
                await queue.send(QUEUE, {"number": number})

            async def many(numbers: list[int]) -> None:
                await queue.send_batch(QUEUE, [{"number": number} for number in numbers])

            yield one, many

    async def worker(self) -> None:
        """The fastest loop that its calls allow."""
        async with self.queue() as queue:
            while True:
                messages = await queue.read_batch(QUEUE, vt=HIDDEN_FOR, batch_size=BATCH)
                if not messages:
                    await asyncio.sleep(EMPTY)
                    continue
                for message in messages:
                    protocol.hit(message.message["number"])
                await queue.archive_batch(QUEUE, [message.msg_id for message in messages])

    def promises(self) -> dict[str, str]:
        """From its source."""
        return {
            "history": "yes, an archive, until it is pruned by hand",
            "fencing": "no",
            "recovery": "yes, what is not archived in time is read again",
            "retries": "by hand",
            "worker": "ours",
        }


if __name__ == "__main__":
    protocol.main(PgmqRunner())
