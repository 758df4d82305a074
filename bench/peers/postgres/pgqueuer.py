"""PgQueuer with asyncpg, the driver that its documentation calls fastest, in batches of $BATCH jobs (100).

$CALLS=sync stores jobs through its driver for psycopg, which has no event loop.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any

from bench import protocol
from bench.postgres import PostgresRunner


async def noop(job: Any) -> None:
    """On its event loop."""
    protocol.hit(int(job.payload))


class PgqueuerRunner(PostgresRunner):
    """PgQueuer, which moves what has ended into its log."""

    name = "pgqueuer"
    package = "pgqueuer"
    bulk = True
    keeps_history = True
    pending_jobs = "SELECT count(*) FROM pgqueuer WHERE execute_after <= now()"
    finished_jobs = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"

    async def install(self) -> None:
        """Its tables."""
        async with self.connected() as driver:
            await import_module("pgqueuer.queries").Queries(driver).install()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        """A driver."""
        connection = await import_module("asyncpg").connect(self.address)
        yield import_module("pgqueuer.db").AsyncpgDriver(connection)
        await connection.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, protocol.Many | None]]:
        """Its queries, which take bytes."""
        queries = import_module("pgqueuer.queries")
        if os.environ.get("CALLS") == "sync":
            connection = import_module("psycopg").connect(self.address, autocommit=True)
            plain = queries.SyncQueries(import_module("pgqueuer.db").SyncPsycopgDriver(connection))
            yield lambda number: plain.enqueue("noop", b"%d" % number), None
            connection.close()
            return
        async with self.connected() as driver:
            asked = queries.Queries(driver)

            async def one(number: int) -> None:
                await asked.enqueue("noop", b"%d" % number)

            async def many(numbers: list[int]) -> None:
                await asked.enqueue(
                    ["noop"] * len(numbers), [b"%d" % number for number in numbers], [0] * len(numbers)
                )

            yield one, many

    async def worker(self) -> None:
        """Its own worker."""
        async with self.connected() as driver:
            queuer = import_module("pgqueuer").PgQueuer(driver)
            queuer.entrypoint("noop")(noop)
            await queuer.run(
                batch_size=int(os.environ.get("BATCH", "100")), dequeue_timeout=timedelta(seconds=10)
            )

    def promises(self) -> dict[str, str]:
        """From its source."""
        return {
            "history": "yes, in a log of its own",
            "fencing": "no",
            "recovery": "yes, heartbeats",
            "retries": "yes",
            "worker": "its own",
        }


if __name__ == "__main__":
    protocol.main(PgqueuerRunner())
