"""quebec: a job system with a core in Rust and the tables of Solid Queue.

Three threads ($WORKERS) and a look every 10 ms ($POLL) drained best. It leaves the journal mode of the file as it is:
put into write-ahead mode beforehand, as here, it stores single jobs several times faster, and drains as before.
"""

import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from os import environ
from typing import Any

from bench import protocol


def perform(job: object, number: int) -> None:
    """In one of its threads."""
    protocol.hit(number)


class QuebecRunner(protocol.Runner):
    """quebec on SQLite."""

    name = "quebec"
    package = "quebec"
    bulk = True
    keeps_history = True

    @cached_property
    def task(self) -> Any:
        """The class of its jobs."""
        module = import_module("quebec")
        return type("Noop", (module.BaseClass,), {"queue_as": "default", "perform": perform})

    @cached_property
    def quebec(self) -> Any:
        """The queue."""
        quebec = import_module("quebec").Quebec(
            f"sqlite:///{self.store()}?mode=rwc",
            worker_threads=int(environ.get("WORKERS", "3")),
            worker_polling_interval=timedelta(seconds=float(environ.get("POLL", "0.01"))),
        )
        quebec.register_job_class(self.task)
        return quebec

    def reset(self) -> None:
        """It must be told to make its tables."""
        super().reset()
        self.quebec.create_tables()
        connection = sqlite3.connect(self.store())
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, protocol.Many]]:
        """The plain calls."""
        quebec, task = self.quebec, self.task
        yield (
            task.perform_later,
            lambda numbers: quebec.perform_all_later([task.build(each) for each in numbers]),
        )

    def worker(self) -> None:
        """Its own worker."""
        logging.disable(logging.WARNING)
        self.quebec.run()

    async def pending(self) -> int | None:
        """Those that are not finished."""
        return protocol.count(self.store(), "SELECT count(*) FROM solid_queue_jobs WHERE finished_at IS NULL")

    async def finished(self) -> int | None:
        """Those that are."""
        return protocol.count(
            self.store(), "SELECT count(*) FROM solid_queue_jobs WHERE finished_at IS NOT NULL"
        )

    def promises(self) -> dict[str, str]:
        """From its source and documentation; its connections are out of reach, so its syncs were counted from outside:
        one and more for each commit."""
        return {
            "journal": protocol.journal(self.store(), lambda: self.quebec),
            "synchronous": "FULL",
            "known from": "its system calls",
            "history": "yes",
            "fencing": "no",
            "recovery": "yes, heartbeats",
            "retries": "yes",
            "worker": "its own",
        }


if __name__ == "__main__":
    protocol.main(QuebecRunner())
