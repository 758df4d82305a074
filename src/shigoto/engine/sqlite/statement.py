"""How a command of an operation is executed on a connection."""

import sqlite3
from pathlib import Path

from shigoto.engine.op import Write
from shigoto.engine.sql.commands import Call, Command, Statement, load_statements

SQL = load_statements(Path(__file__).parent / "statements")


def execute(connection: sqlite3.Connection, command: Command) -> sqlite3.Cursor:
    """Run one command. The cursor's row factory is ours, whatever the caller's connection has set."""
    cursor = connection.cursor()
    cursor.row_factory = None
    if isinstance(command, Write):
        return cursor
    text = SQL[command.name] if isinstance(command, Call) else command.text
    if isinstance(command, Statement) and command.many:
        return cursor.executemany(text, command.values)
    return cursor.execute(text, command.values)
