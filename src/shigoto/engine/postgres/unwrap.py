"""The driver's own connection inside what libraries wrap around it: SQLAlchemy's sessions, Django's connections.

By what they look like: none of these libraries is imported for it. What they would do before a statement of their own,
they do before ours: SQLAlchemy begins its transaction then, without which its commit would be none.
"""

from inspect import isawaitable, iscoroutine
from typing import Any

import psycopg

from shigoto.engine.postgres.adapters import (
    AsyncTheirs,
    Theirs,
    adapted,
    async_adapted,
    is_asyncpg,
)
from shigoto.model.errors import JobError, StoreRefused

DEPTH = 5  # Session → Connection → pooled connection → the driver's

AWAIT_IT = (
    "The statements of the {} that was handed in are awaited, so the job must be, too: write"
    " `await task.using(connection=…).aenqueue(…)`, or `async with ctx.transaction(…)`."
)


def opened(connection: object) -> Theirs:
    """What executes statements on the connection. Raises JobError for one that is to be awaited."""
    inner: Any = connection
    for _ in range(DEPTH):
        theirs = adapted(inner)
        if theirs is not None:
            return theirs
        _expect_blocking(inner, connection)
        _begin(inner)
        inner = _held(inner)
        if iscoroutine(inner):
            inner.close()
            raise JobError(AWAIT_IT.format(type(connection).__name__))
    raise _unknown(connection)


async def aopened(connection: object) -> Theirs | AsyncTheirs:
    """What executes statements on the connection, awaited or not."""
    inner: Any = connection
    for _ in range(DEPTH):
        theirs = async_adapted(inner) or adapted(inner)
        if theirs is not None:
            return theirs
        if hasattr(inner, "get_raw_connection"):
            inner = await _driven(inner)
            continue
        _begin(inner)
        inner = _held(inner)
        if isawaitable(inner):
            inner = await inner
    raise _unknown(connection)


async def _driven(connection: Any) -> Any:
    """The driver's connection of an AsyncConnection of SQLAlchemy's, in its transaction."""
    if not connection.in_transaction():
        await connection.exec_driver_sql("SELECT 1")
    inner = (await connection.get_raw_connection()).driver_connection
    if is_asyncpg(inner) and not inner.is_in_transaction():
        await connection.exec_driver_sql("SELECT 1")  # before which it only means to begin
    return inner


def _begin(inner: Any) -> None:
    """Let a Connection of SQLAlchemy's begin, as it does before a statement; a Session has done it by now."""
    if hasattr(inner, "exec_driver_sql") and not inner.in_transaction():
        inner.exec_driver_sql("SELECT 1").close()


def _held(inner: Any) -> Any:
    held = getattr(inner, "driver_connection", None) or getattr(inner, "connection", None)
    return held() if callable(held) and adapted(held) is None and async_adapted(held) is None else held


def _expect_blocking(inner: object, given: object) -> None:
    if (
        isinstance(inner, psycopg.AsyncConnection)
        or is_asyncpg(inner)
        or hasattr(inner, "get_raw_connection")
    ):
        raise JobError(AWAIT_IT.format(type(given).__name__))


def _unknown(connection: object) -> StoreRefused:
    return StoreRefused(
        f"connection= got a {type(connection).__name__}, in which there is no open connection of psycopg, psycopg2 or"
        " asyncpg. Hand in one of theirs, or what SQLAlchemy or Django give, inside your transaction."
    )
