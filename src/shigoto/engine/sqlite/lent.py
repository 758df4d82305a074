"""The connection that a transaction block lends out: an `sqlite3.Connection` that minds whether its block still stands.

A cursor made past it (`sqlite3.Cursor(tx)`) escapes our lock, but not SQLite's authorizer, which the block has set.
"""

import sqlite3
from collections.abc import Callable, Iterable
from threading import RLock
from types import TracebackType
from typing import Any, Literal, NoReturn, Protocol
from weakref import WeakSet

from shigoto.engine.sql.block import NOT_YOURS
from shigoto.model.errors import JobError

NO_SCRIPTS = (
    "executescript() commits before it begins, so it cannot be used inside a transaction block."
    " Execute the statements one by one."
)


class Keeper(Protocol):
    """The block, as its connection sees it."""

    cursors: "WeakSet[LentCursor]"
    use: "Use"
    rings: bool

    def expect_usable(self) -> None:
        """Raise if the transaction is not there, so that nothing is written beside it."""
        ...

    def explain(self, error: sqlite3.Error) -> None:
        """Raise what an error of SQLite means here, if it means something more."""
        ...


class Use:
    """The right to use the connection: one thread at a time, while the block stands."""

    __slots__ = ("_keeper", "lock")

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.lock = RLock()

    def __enter__(self) -> None:
        self.lock.acquire()
        try:
            self._keeper.expect_usable()
        except BaseException:
            self.lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()
        if isinstance(error, sqlite3.Error):
            self._keeper.explain(error)


class LentCursor(sqlite3.Cursor):
    """A cursor that knows whether its block is still open."""

    def __init__(self, connection: sqlite3.Connection, block: Keeper) -> None:
        super().__init__(connection)
        self._block = block
        block.cursors.add(self)

    def execute(self, sql: str, parameters: Any = (), /) -> "LentCursor":
        with self._block.use:
            super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> "LentCursor":
        rows = list(
            parameters
        )  # first: whoever makes them may take its time, and must not keep the watchdog out
        with self._block.use:
            super().executemany(sql, rows)
        return self

    def executescript(self, sql_script: str, /) -> NoReturn:
        raise JobError(NO_SCRIPTS)

    def fetchone(self) -> Any:
        with self._block.use:
            return super().fetchone()

    def fetchmany(self, size: int | None = None) -> list[Any]:
        with self._block.use:
            return super().fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[Any]:
        with self._block.use:
            return super().fetchall()

    def __next__(self) -> Any:
        with self._block.use:
            return super().__next__()


class LentConnection(sqlite3.Connection):
    """A connection with an open transaction, for as long as its block lasts."""

    block: Keeper
    finish: Callable[[object], None]

    def cursor(self, factory: object = None) -> Any:
        if factory is not None:
            raise JobError("A transaction block has cursors of its own: call cursor() without a factory.")
        with self.block.use:
            return super().cursor(lambda connection: LentCursor(connection, self.block))

    def execute(self, sql: str, parameters: Any = (), /) -> LentCursor:
        cursor: LentCursor = self.cursor()
        return cursor.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> LentCursor:
        cursor: LentCursor = self.cursor()
        return cursor.executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> NoReturn:
        raise JobError(NO_SCRIPTS)

    def commit(self) -> None:
        raise JobError(NOT_YOURS)

    def rollback(self) -> None:
        raise JobError(NOT_YOURS)

    def close(self) -> None:
        raise JobError(NOT_YOURS)

    def set_authorizer(self, authorizer_callback: object) -> NoReturn:
        raise JobError("A transaction block has an authorizer of its own, which keeps it in one piece.")

    def __exit__(self, *error: object) -> Literal[False]:
        raise JobError(NOT_YOURS)
