"""persist-queue, the SQLite queue of it that has acknowledgements: a queue, not a job system, so the loop of the worker
is ours: get, call, ack, and 10 ms of sleep when it is empty."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from bench import protocol

EMPTY = 0.01


class PersistQueueRunner(protocol.Runner):
    """SQLiteAckQueue, one connection. It cannot be told to commit less often."""

    name = "persist-queue"
    package = "persist-queue"
    keeps_history = True

    def open(self) -> Any:
        """The queue. Every one that is opened takes back what another has not acknowledged."""
        return import_module("persistqueue").SQLiteAckQueue(
            str(Path(protocol.SQLITE_DIR)),
            multithreading=False,
            serializer=import_module("persistqueue.serializers.json"),
            db_file_name=self.store().name,
        )

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, None]]:
        """The plain call; there is none for many."""
        queue = self.open()
        yield lambda number: queue.put({"number": number}), None
        queue.close()

    def worker(self) -> None:
        """The fastest loop that its calls allow."""
        queue = self.open()
        nothing = import_module("persistqueue").Empty
        while True:
            try:
                item = queue.get(block=False, raw=True)
            except nothing:
                time.sleep(EMPTY)
                continue
            protocol.hit(item["data"]["number"])
            queue.ack(id=item["pqid"])

    async def pending(self) -> int | None:
        """Those that are not acknowledged."""
        return protocol.count(self.store(), "SELECT count(*) FROM ack_queue_default WHERE status < 5")

    async def finished(self) -> int | None:
        """Those that are acknowledged stay until somebody clears them."""
        return protocol.count(self.store(), "SELECT count(*) FROM ack_queue_default WHERE status = 5")

    def promises(self) -> dict[str, str]:
        """From its source, but for the first two; the connection that it was asked of is not public."""
        queue = self.open()
        synchronous, journal = protocol.ask(queue._conn)
        queue.close()
        return {
            "journal": journal,
            "synchronous": synchronous,
            "known from": "asked of its connection",
            "history": "yes, until it is cleared by hand",
            "fencing": "no",
            "recovery": "at the next start, for a single process only",
            "retries": "by hand",
            "worker": "ours",
        }


if __name__ == "__main__":
    protocol.main(PersistQueueRunner())
