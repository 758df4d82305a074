"""The driver's own connection inside what libraries wrap around it.

By what they look like: none of these libraries is imported for it. What they would do before a statement of their own,
they do before ours: SQLAlchemy begins its transaction then, without which its commit would be none.
"""

import sqlite3
from inspect import iscoroutine
from typing import Any

DEPTH = 4  # Session → Connection → pooled connection → sqlite3.Connection


def unwrapped(connection: object) -> object:
    """The `sqlite3.Connection` inside an SQLAlchemy Session or Connection, or Django's connection; else what was given.

    What must be awaited has none that could be used here.
    """
    inner: Any = connection
    for _ in range(DEPTH):
        if isinstance(inner, sqlite3.Connection):
            return inner
        if hasattr(inner, "get_raw_connection"):
            break
        _begin(inner)
        held = getattr(inner, "driver_connection", None) or getattr(inner, "connection", None)
        inner = held() if callable(held) and not isinstance(held, sqlite3.Connection) else held
        if iscoroutine(inner):
            inner.close()
            break
    return inner if isinstance(inner, sqlite3.Connection) else connection


def _begin(inner: Any) -> None:
    """Let a Connection of SQLAlchemy's begin, as it does before a statement; a Session has done it by now."""
    if hasattr(inner, "exec_driver_sql") and not inner.in_transaction():
        inner.exec_driver_sql("SELECT 1").close()
