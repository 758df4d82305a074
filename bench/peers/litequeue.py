"""litequeue: a queue, not a job system, so the loop of the worker is ours: pop, call, done, and 10 ms of sleep when it
is empty.

It has no call for many messages, but public transactions: many are put inside one of them, a thousand at a time.
"""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from bench import protocol

EMPTY = 0.01


class LitequeueRunner(protocol.Runner):
    """litequeue, which has no settings that matter here."""

    name = "litequeue"
    package = "litequeue"
    bulk = True
    keeps_history = True

    def open(self) -> Any:
        """The queue."""
        return import_module("litequeue").LiteQueue(str(self.store()))

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, protocol.Many]]:
        """The plain call, and as many of them as there are in one transaction."""
        queue = self.open()

        def one(number: int) -> None:
            queue.put(json.dumps({"number": number}))

        def many(numbers: list[int]) -> None:
            with queue.transaction():
                for number in numbers:
                    queue.put(json.dumps({"number": number}))

        yield one, many
        queue.close()

    def worker(self) -> None:
        """The fastest loop that its calls allow."""
        queue = self.open()
        while True:
            message = queue.pop()
            if message is None:
                time.sleep(EMPTY)
                continue
            protocol.hit(json.loads(message.data)["number"])
            queue.done(message.message_id, claim_id=message.claim_id)

    async def pending(self) -> int | None:
        """Neither done nor failed."""
        return protocol.count(self.store(), "SELECT count(*) FROM Queue WHERE status < 2")

    async def finished(self) -> int | None:
        """Done messages stay until somebody prunes them."""
        return protocol.count(self.store(), "SELECT count(*) FROM Queue WHERE status = 2")

    def promises(self) -> dict[str, str]:
        """From its source, but for the first two."""
        queue = self.open()
        synchronous, journal = protocol.ask(queue.conn)
        queue.close()
        return {
            "journal": journal,
            "synchronous": synchronous,
            "known from": "asked of its connection",
            "history": "yes, until it is pruned by hand",
            "fencing": "yes, a claim id in every call",
            "recovery": "by hand",
            "retries": "by hand",
            "worker": "ours",
        }


if __name__ == "__main__":
    protocol.main(LitequeueRunner())
