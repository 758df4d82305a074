"""The store of a test in memory, which stands in for a database: it takes what that one would take, as far as it can.

A job enqueued on a connection of the caller's own is stored at once, whether the caller commits or not. The connection
must be one that the app's own store would take, of sqlite3 or of a driver for PostgreSQL: any other it would refuse,
and so does this one. A run is never completed by a transaction: whether that was committed is nothing that a store in
memory could know.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from msgspec import structs

from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op, Steps
from shigoto.model.errors import StoreRefused, Unsupported
from shigoto.model.time import Millis, host_clock
from shigoto.model.worker import Settlement, Verdict
from shigoto.testing.clock import VirtualClock
from shigoto.testing.store import OwnStore

T = TypeVar("T")

POSTGRES = ("postgresql:", "postgres:")
REMEDY = "Give the test a file: app.test(store=tmp_path / 'jobs.db')."


class StoreInMemory(OwnStore):
    """Jobs in memory, for one test; `url` is the address of the store that it stands in for."""

    def __init__(self, url: str, now: Millis | None) -> None:
        clock = VirtualClock(host_clock() if now is None else now)
        super().__init__(MemoryEngine(clock=clock), clock, follows_host=now is None)
        self._in_place_of = url

    def join(self, connection: object, op: Op[T]) -> T:
        """Run an op as if the caller's transaction had been committed at once: nobody tells us when it is."""
        self._expect_open(op)
        if self._in_place_of.startswith("memory:"):
            return self.engine.join(connection, op)
        if self._in_place_of.startswith(POSTGRES):
            from shigoto.engine.postgres.joining import opened

            opened(connection)
        else:
            _expect_of_sqlite(connection)
        return self._stored(op)

    async def ajoin(self, connection: object, op: Op[T]) -> T:
        """The same as `join`, also for connections whose statements are awaited."""
        if not self._in_place_of.startswith(POSTGRES):
            return self.join(connection, op)
        from shigoto.engine.postgres.joining import aopened

        self._expect_open(op)
        await aopened(connection)
        return self._stored(op)

    def _stored(self, op: Op[T]) -> T:
        return self.engine.run(structs.replace(op, rings=None))

    def block(self, last: Callable[[], Op[Any]], *, limit: float) -> NoReturn:
        """Refuse: there is no database here."""
        raise Unsupported(f"Jobs live in memory here, so ctx.transaction() has no database to give. {REMEDY}")

    def connect(self) -> NoReturn:
        """Refuse: there is no database here."""
        raise Unsupported(
            f"Jobs live in memory here, so app.connect() has no database to connect to. {REMEDY}"
        )

    def settle(self, worker: UUID, settlements: Sequence[Settlement]) -> Op[list[Verdict]]:
        """Refuse the completion of a job in a transaction of its handler's; our worker settles at the engine."""
        return Op(start=_refusing) if worker in self.ours else self.engine.settle(worker, settlements)


def _refusing() -> Steps[NoReturn]:
    yield from ()
    raise Unsupported(
        "Jobs live in memory here, so ctx.transaction(connection) cannot complete the job together with what you"
        f" commit. {REMEDY}"
    )


def _expect_of_sqlite(connection: object) -> None:
    """Refuse what the app's own store would refuse, so that a test with a fake does not pass in its place."""
    import sqlite3

    from shigoto.engine.sqlite.driver import unwrapped

    if not isinstance(unwrapped(connection), sqlite3.Connection):
        raise StoreRefused(
            f"connection= got a {type(connection).__name__}; the app's own store would take a sqlite3.Connection, or"
            " something of SQLAlchemy's or Django's that has one, and nothing else."
        )
