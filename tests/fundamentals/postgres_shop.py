"""The shop of `shop.py` in a PostgreSQL database."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from msgspec import structs

from shigoto.engine.postgres import PostgresEngine
from shigoto.engine.postgres import engine as postgres_engine
from shigoto.engine.postgres.connection import LoopConnection, ThreadConnection
from shigoto.engine.postgres.errors import ConnectionLost
from shigoto.engine.postgres.wire import WireRequest
from tests.fundamentals.shop import SHORT, Shop, until
from tests.postgres import ServerClock

IN_TRANSACTION = "state LIKE 'idle in transaction%' OR state = 'active'"


class PostgresShop(Shop):
    """One on a database; `options` are said in the store's address."""

    insert = "INSERT INTO paid VALUES (%s)"
    endless = "SELECT pg_sleep(60)"
    done = "shigoto.done"
    no_such_table = "does not exist"
    integrity_error = psycopg.IntegrityError

    def __init__(self, address: str, clock: ServerClock, options: str = "") -> None:
        self.address = address
        # Whoever looks beside the blocks does so without a login of its own each time.
        self._looks = self.open()
        self._looks.execute("CREATE TABLE IF NOT EXISTS paid (invoice integer PRIMARY KEY)")
        super().__init__(PostgresEngine(with_options(address, options)), clock)

    def open(self) -> psycopg.Connection:
        """A connection beside everything."""
        return psycopg.connect(self.address, autocommit=True)

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.address)

    def paid(self) -> list[int]:
        return [row[0] for row in self._looks.execute("SELECT invoice FROM paid ORDER BY invoice")]

    def backends(self, condition: str = IN_TRANSACTION) -> int:
        """How many connections are in a transaction, or what else is asked for, apart from the one that asks."""
        look = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            f" AND backend_type = 'client backend' AND ({condition})"
        )
        [[count]] = self._looks.execute(look.encode()).fetchall()
        assert isinstance(count, int)
        return count

    def until_free(self) -> None:
        until(lambda: self.backends() == 0)

    def begin_statement(self, tx: object, start: Callable[[], None]) -> None:
        start()
        self.until_asleep()

    def until_asleep(self) -> None:
        """Wait until the endless statement is at work."""
        until(lambda: self.backends("query LIKE '%pg_sleep%' AND state = 'active'") == 1)

    def shorten_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert postgres_engine.CAPABILITIES.block_limit == 60.0
        short = structs.replace(postgres_engine.CAPABILITIES, block_limit=SHORT)
        monkeypatch.setattr(postgres_engine, "CAPABILITIES", short)

    def lose_the_answer(self, monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> str:
        ask = ThreadConnection.ask

        def lose(connection: ThreadConnection, request: WireRequest, until: float) -> Any:
            if not request.text.endswith(b"COMMIT"):
                return ask(connection, request, until)
            if committed:
                ask(connection, request, until)
            raise ConnectionLost("the line is dead")

        monkeypatch.setattr(ThreadConnection, "ask", lose)
        return "the line is dead. The change may have been made"

    def hold_commits(
        self, monkeypatch: pytest.MonkeyPatch, committing: threading.Event, go_on: threading.Event
    ) -> None:
        ask = LoopConnection.ask

        async def slowly(connection: LoopConnection, request: WireRequest, until: float) -> Any:
            if request.text.endswith(b"COMMIT") and b"shigoto.block" in request.text:
                committing.set()
                assert await asyncio.to_thread(go_on.wait, 10)
            return await ask(connection, request, until)

        monkeypatch.setattr(LoopConnection, "ask", slowly)

    def close(self) -> None:
        super().close()
        self._looks.close()


def with_options(address: str, options: str) -> str:
    """The address with further parameters."""
    return f"{address}{'&' if '?' in address else '?'}{options}" if options else address
