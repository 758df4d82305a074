"""Callers' own connections, whatever driver they are of, as something that executes our statements.

psycopg and asyncpg understand `$1`; for psycopg2 it is rewritten. Rows are tuples, whatever row factories and loaders
the caller has set, and arrays go as lists, which every driver has its own way to encode.
Only psycopg is ours: the other drivers are known by what is loaded already, since whoever has a connection of theirs
has loaded them.
"""

import re
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Literal, Protocol, TypeGuard, cast
from uuid import UUID

import psycopg
from psycopg import pq
from psycopg.adapt import AdaptersMap
from psycopg.postgres import register_default_adapters
from psycopg.rows import tuple_row
from psycopg.types.array import register_all_arrays

from shigoto.engine.postgres.arrays import Array
from shigoto.engine.postgres.statement import Answer, Ring, Row

Standing = Literal["none", "open", "failed", "unknown"]  # of the caller's transaction

_STANDINGS: dict[int, Standing] = {
    pq.TransactionStatus.IDLE: "none",
    pq.TransactionStatus.INTRANS: "open",
    pq.TransactionStatus.INERROR: "failed",
}
_PLACEHOLDER = re.compile(r"\$(\d+)|%")
_ANSWERS = re.compile(r"(?is)\s*(SELECT|WITH|VALUES)\b|.*\bRETURNING\b")


class Theirs(Protocol):
    """A connection whose statements block."""

    @property
    def connection(self) -> object:
        """The driver's own connection."""
        ...

    def standing(self) -> Standing:
        """Whether it is in a transaction, or begins one by itself."""
        ...

    def execute(self, text: str, values: Sequence[Any]) -> Answer:
        """Run one statement. Raises the driver's own errors."""
        ...


class AsyncTheirs(Protocol):
    """A connection whose statements are awaited."""

    @property
    def connection(self) -> object:
        """The driver's own connection."""
        ...

    def standing(self) -> Standing:
        """Whether it is in a transaction, or begins one by itself."""
        ...

    async def execute(self, text: str, values: Sequence[Any]) -> Answer:
        """Run one statement. Raises the driver's own errors."""
        ...


def adapted(connection: object) -> Theirs | None:
    """The connection, if it is one of a driver whose statements block."""
    if _is_psycopg(connection):
        return OfPsycopg(connection)
    if isinstance(connection, _types("psycopg2.extensions", "connection")):
        return OfPsycopg2(connection)
    return None


def async_adapted(connection: object) -> AsyncTheirs | None:
    """The connection, if it is one of a driver whose statements are awaited."""
    if _is_async_psycopg(connection):
        return OfAsyncPsycopg(connection)
    if is_asyncpg(connection):
        return OfAsyncpg(connection)
    return None


def _is_psycopg(connection: object) -> TypeGuard[psycopg.Connection[Any]]:
    return isinstance(connection, psycopg.Connection)


def _is_async_psycopg(connection: object) -> TypeGuard[psycopg.AsyncConnection[Any]]:
    return isinstance(connection, psycopg.AsyncConnection)


def is_asyncpg(connection: object) -> bool:
    """Whether it is asyncpg's, or lent out by a pool of asyncpg's."""
    return isinstance(
        connection,
        (*_types("asyncpg.connection", "Connection"), *_types("asyncpg.pool", "PoolConnectionProxy")),
    )


def code_of(error: BaseException) -> str | None:
    """PostgreSQL's code for an error of any driver; empty if a driver has raised it and there is none."""
    if isinstance(error, psycopg.Error):
        return error.sqlstate or ""
    if isinstance(error, _types("psycopg2", "Error")):
        code: str | None = getattr(error, "pgcode", None)
        return code or ""
    if isinstance(error, (*_types("asyncpg", "PostgresError"), *_types("asyncpg", "InterfaceError"))):
        return getattr(error, "sqlstate", None) or ""
    return None


def _types(module: str, name: str) -> tuple[type, ...]:
    loaded = sys.modules.get(module)
    return () if loaded is None else (getattr(loaded, name),)


def _value(value: Any) -> Any:
    """A value of ours in what every driver understands."""
    if isinstance(value, Array):
        return [_value(element) for element in value.elements]
    if isinstance(value, Ring):  # the notification goes out with the caller's commit, or never
        return 1
    return int(value) if isinstance(value, bool) else value


class _Cursor(psycopg.RawCursor[Row]):
    """One that knows nothing of how its connection's owner wants to see values."""

    @property
    def adapters(self) -> AdaptersMap:
        return _plain_adapters()


class _AsyncCursor(psycopg.AsyncRawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return _plain_adapters()


@cache
def _plain_adapters() -> AdaptersMap:
    """psycopg's own ways, without what anybody has registered for the whole process."""
    adapters = AdaptersMap(types=AdaptersMap(psycopg.adapters).types)  # a copy of them
    register_default_adapters(adapters)
    register_all_arrays(adapters)
    return adapters


class OfPsycopg:
    """psycopg 3."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def standing(self) -> Standing:
        return _standing_of(self.connection)

    def execute(self, text: str, values: Sequence[Any]) -> Answer:
        with _Cursor(self.connection, row_factory=tuple_row) as cursor:
            cursor.execute(text.encode(), [_value(value) for value in values])
            rows = [] if cursor.description is None else cursor.fetchall()
            return Answer(rows, cursor.rowcount)


class OfAsyncPsycopg:
    """psycopg 3 on an event loop."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    def standing(self) -> Standing:
        return _standing_of(self.connection)

    async def execute(self, text: str, values: Sequence[Any]) -> Answer:
        async with _AsyncCursor(self.connection, row_factory=tuple_row) as cursor:
            await cursor.execute(text.encode(), [_value(value) for value in values])
            rows = [] if cursor.description is None else await cursor.fetchall()
            return Answer(rows, cursor.rowcount)


def _standing_of(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Standing:
    standing = _STANDINGS.get(connection.pgconn.transaction_status, "unknown")
    return "open" if standing == "none" and not connection.autocommit else standing


class OfPsycopg2:
    """psycopg2, which puts the values into the text itself."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def standing(self) -> Standing:
        standing = _STANDINGS.get(self.connection.get_transaction_status(), "unknown")
        return "open" if standing == "none" and not self.connection.autocommit else standing

    def execute(self, text: str, values: Sequence[Any]) -> Answer:
        cursor = sys.modules["psycopg2.extensions"].cursor(self.connection)  # of no factory of the caller's
        try:
            cursor.execute(
                _rewritten(text), {f"p{at}": _literal(value) for at, value in enumerate(values, 1)}
            )
            rows: list[Row] = [] if cursor.description is None else cursor.fetchall()
            return Answer([tuple(_bytes(value) for value in row) for row in rows], cursor.rowcount)
        finally:
            cursor.close()


@lru_cache(maxsize=256)
def _rewritten(text: str) -> str:
    # In parentheses: -1::smallint would be the negative of 1::smallint, and there is no 32768::smallint.
    return _PLACEHOLDER.sub(lambda match: f"(%(p{match[1]})s)" if match[1] else "%%", text)


def _literal(value: Any) -> Any:
    if isinstance(value, Array):
        return [_literal(element) for element in value.elements]
    return str(value) if isinstance(value, UUID) else _value(value)


def _bytes(value: Any) -> Any:
    return bytes(cast("memoryview[int]", value)) if isinstance(value, memoryview) else value


class OfAsyncpg:
    """asyncpg. Its own choice whether a statement is prepared is left to it, as behind a pooler it must not be."""

    def __init__(self, connection: Any) -> None:
        self._execute = connection.execute
        self._fetch = connection.fetch
        self._is_in_transaction = connection.is_in_transaction
        # A pool lends out a new proxy each time; what is to be remembered is behind it.
        self.connection: object = getattr(connection, "_con", None) or connection

    def standing(self) -> Standing:
        return "open" if self._is_in_transaction() else "none"

    async def execute(self, text: str, values: Sequence[Any]) -> Answer:
        values = [_value(value) for value in values]
        if _ANSWERS.match(text) is None:
            status = await self._execute(text, *values)
            count = status.rpartition(" ")[2]
            return Answer([], int(count) if count.isdigit() else -1)
        plain = sys.modules["asyncpg"].Record
        rows = [tuple(row) for row in await self._fetch(text, *values, record_class=plain)]
        return Answer(rows, len(rows))
