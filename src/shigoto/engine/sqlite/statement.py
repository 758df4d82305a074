"""The currency between the operations of this engine and its driver."""

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct, json

from shigoto.engine.op import Write
from shigoto.engine.sql.statements import load_statements

T = TypeVar("T")

SQL = load_statements("shigoto.engine.sqlite.statements")


class Statement(Struct, frozen=True):
    """One SQL statement, or one statement for each of many rows; the answer is the cursor it ran on."""

    text: str
    values: Sequence[Any] | Mapping[str, Any] = ()
    many: bool = False


Steps = Generator[Statement | Write, sqlite3.Cursor, T]


def sql(name: str, *values: Any) -> Statement:
    """The named statement with its values."""
    return Statement(SQL[name], values)


def sql_many(name: str, rows: Sequence[Sequence[Any]]) -> Statement:
    """The named statement, once for each row."""
    return Statement(SQL[name], rows, many=True)


def sql_each(name: str, rows: Sequence[Sequence[Any]]) -> Statement:
    """The named statement for all rows at once: they travel as one JSON text, and SQLite takes them apart.

    With `executemany` the interpreter lock would be handed over for every row, to and from a busy event loop.
    """
    return Statement(SQL[name], (json.encode(rows).decode(),))


def execute(connection: sqlite3.Connection, command: Statement | Write) -> sqlite3.Cursor:
    """Run one command. The cursor's row factory is ours, whatever the caller's connection has set."""
    cursor = connection.cursor()
    cursor.row_factory = None
    if isinstance(command, Write):
        return cursor
    if command.many:
        return cursor.executemany(command.text, command.values)
    return cursor.execute(command.text, command.values)
