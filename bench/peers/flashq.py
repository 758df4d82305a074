"""flashq on SQLite, with its own worker.

Its loop sleeps for 100 ms whenever as many jobs run as it allows at once, so the limit is set so high that this never
happens ($CONCURRENCY); what is left is one claim after the other. $KIND is the handler: a plain function is faster
there, because each run of an async one gets an event loop of its own.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from importlib import import_module
from os import environ
from typing import Any

from bench import protocol

POLL = 0.01


async def noop(number: int) -> None:
    """On an event loop of its own."""
    protocol.hit(number)


def sync_noop(number: int) -> None:
    """In one of its threads."""
    protocol.hit(number)


class FlashqRunner(protocol.Runner):
    """flashq, with the settings above."""

    name = "flashq"
    package = "flashq"
    keeps_history = True

    @cached_property
    def app(self) -> Any:
        """The app."""
        backend = import_module("flashq.backends.sqlite").SQLiteBackend(path=str(self.store()))
        return import_module("flashq").FlashQ(backend=backend)

    @cached_property
    def task(self) -> Any:
        """Its task."""
        return self.app.task(name="noop")(noop if environ.get("KIND") == "async" else sync_noop)

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, None]]:
        """The plain call; there is none for many."""
        yield self.task.delay, None

    def worker(self) -> None:
        """Its own worker."""
        logging.disable(logging.WARNING)
        _ = self.task
        concurrency = int(environ.get("CONCURRENCY", "1000"))
        worker = import_module("flashq.worker").Worker(self.app, concurrency=concurrency, poll_interval=POLL)
        worker.start()

    async def pending(self) -> int | None:
        """Neither succeeded nor failed."""
        return protocol.count(
            self.store(), "SELECT count(*) FROM tasks WHERE state IN ('pending', 'running')"
        )

    async def finished(self) -> int | None:
        """Those that succeeded."""
        return protocol.count(self.store(), "SELECT count(*) FROM tasks WHERE state = 'success'")

    def promises(self) -> dict[str, str]:
        """From its source, but for the first two."""
        _ = self.task
        synchronous, journal = protocol.ask(self.app.backend.conn)
        return {
            "journal": journal,
            "synchronous": synchronous,
            "known from": "asked of its connection",
            "history": "yes",
            "fencing": "no",
            "recovery": "no: what a dead worker had taken stays taken",
            "retries": "yes",
            "worker": "its own",
        }


if __name__ == "__main__":
    protocol.main(FlashqRunner())
