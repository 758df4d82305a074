"""Connections of transaction blocks: psycopg's own, which mind whether their block is still open.

Everything that psycopg sends and waits for goes through `wait`, also what cursors do that were made past the block. The
server's end of it goes on to serve other blocks: so the connection of a block refuses everything afterwards.
"""

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NoReturn, Protocol, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen

from shigoto.engine.postgres import connection
from shigoto.engine.sql.block import NOT_YOURS
from shigoto.model.errors import JobError

RV = TypeVar("RV")


class ConnectionKeeper(Protocol):
    """The block, as its connection sees it. `waiting` is since when somebody waits for the server."""

    waiting: float | None

    def expect_usable(self) -> None:
        """Raise if the transaction is not there, so that nothing is written beside it."""
        ...

    def expect_in_transaction(self) -> None:
        """Raise if a statement has ended the transaction."""
        ...

    def explain(self, error: psycopg.Error) -> None:
        """Raise what an error means here, if it means something more."""
        ...


class BlockConnection(psycopg.Connection[Any]):
    """A connection with an open transaction, for as long as its block lasts."""

    finish: Callable[[object], None]

    def __init__(self, pgconn: pq.abc.PGconn, keeper: ConnectionKeeper) -> None:
        self.keeper = keeper
        super().__init__(pgconn)
        self.prepare_threshold = None  # what is prepared would be left behind on the server

    def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        self.keeper.expect_usable()
        self.keeper.waiting = time.monotonic()
        try:
            value = super().wait(gen, *args, **options)
            self.keeper.expect_in_transaction()
            return value
        except psycopg.Error as error:
            self.keeper.explain(error)
            raise
        finally:
            self.keeper.waiting = None

    def executemany(self, query: Any, params_seq: Iterable[Any]) -> psycopg.Cursor[Any]:
        """Run one statement for each of many rows, as a block of any store can."""
        cursor = self.cursor()
        cursor.executemany(query, params_seq)
        return cursor

    def cancel(self) -> None:
        """Cancel the statement that is under way, without waiting for it."""
        connection.cancel(self.pgconn)

    def commit(self) -> NoReturn:
        raise JobError(NOT_YOURS)

    def rollback(self) -> NoReturn:
        raise JobError(NOT_YOURS)

    def close(self) -> NoReturn:
        raise JobError(NOT_YOURS)

    @property
    def autocommit(self) -> bool:
        return False

    @autocommit.setter
    def autocommit(self, value: bool) -> NoReturn:
        raise JobError(NOT_YOURS)

    def set_autocommit(self, value: bool) -> NoReturn:
        raise JobError(NOT_YOURS)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> NoReturn:
        raise JobError(NOT_YOURS)

    def __del__(self, _: Any = None, /) -> None: ...


class AsyncBlockConnection(psycopg.AsyncConnection[Any]):
    """The same for event loops."""

    finish: Callable[[object], None]

    def __init__(self, pgconn: pq.abc.PGconn, keeper: ConnectionKeeper) -> None:
        self.keeper = keeper
        super().__init__(pgconn)
        self.prepare_threshold = None

    async def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        self.keeper.expect_usable()
        self.keeper.waiting = time.monotonic()
        try:
            value = await super().wait(gen, *args, **options)
            self.keeper.expect_in_transaction()
            return value
        except psycopg.Error as error:
            self.keeper.explain(error)
            raise
        finally:
            self.keeper.waiting = None

    async def executemany(self, query: Any, params_seq: Iterable[Any]) -> psycopg.AsyncCursor[Any]:
        """Run one statement for each of many rows, as a block of any store can."""
        cursor = self.cursor()
        await cursor.executemany(query, params_seq)
        return cursor

    def cancel(self) -> None:
        """Cancel the statement that is under way, without waiting for it."""
        connection.cancel(self.pgconn)

    async def commit(self) -> NoReturn:
        raise JobError(NOT_YOURS)

    async def rollback(self) -> NoReturn:
        raise JobError(NOT_YOURS)

    async def close(self) -> NoReturn:
        raise JobError(NOT_YOURS)

    async def set_autocommit(self, value: bool) -> NoReturn:
        raise JobError(NOT_YOURS)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> NoReturn:
        raise JobError(NOT_YOURS)

    def __del__(self, _: Any = None, /) -> None: ...
