"""huey on SQLite, with its own consumer.

One worker thread: more only wait for each other. The delays when it is idle are 10 ms (its default, 100 ms and more,
would only show in the latency).
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from importlib import import_module
from os import environ
from typing import Any

from bench import protocol

IDLE = 0.01


def noop(number: int) -> None:
    """In its thread."""
    protocol.hit(number)


class HueyRunner(protocol.Runner):
    """huey with its defaults in everything that a job relies on; results of None are not stored anyway."""

    name = "huey"
    package = "huey"

    @cached_property
    def huey(self) -> Any:
        """The queue."""
        return import_module("huey").SqliteHuey("bench", filename=str(self.store()))

    @cached_property
    def task(self) -> Any:
        """Its task."""
        return self.huey.task(name="noop")(noop)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, None]]:
        """The plain call; there is none for many."""
        yield self.task, None

    def worker(self) -> None:
        """Its consumer."""
        logging.disable(logging.WARNING)
        _ = self.task
        workers = int(environ.get("WORKERS", "1"))
        self.huey.create_consumer(workers=workers, periodic=False, initial_delay=IDLE, max_delay=IDLE).run()

    async def pending(self) -> int | None:
        """Those that nobody has taken: a job is deleted when it is taken, not when it is finished."""
        return int(self.huey.pending_count())

    def promises(self) -> dict[str, str]:
        """From its source, but for the first two."""
        synchronous, journal = protocol.ask(self.huey.storage.conn)
        return {
            "journal": journal,
            "synchronous": synchronous,
            "known from": "asked of its connection",
            "history": "no",
            "fencing": "no",
            "recovery": "no: deleted when it is taken, lost if the worker dies",
            "retries": "yes",
            "worker": "its own",
        }


if __name__ == "__main__":
    protocol.main(HueyRunner())
