"""The driver's own connection inside what libraries wrap around it."""

import sqlite3

DEPTH = 4  # Session → Connection → pooled connection → sqlite3.Connection


def unwrapped(connection: object) -> object:
    """The `sqlite3.Connection` inside an SQLAlchemy Session or Connection, or Django's connection; else what was given.

    By what they look like: none of these libraries is imported for it.
    """
    inner = connection
    for _ in range(DEPTH):
        if isinstance(inner, sqlite3.Connection):
            return inner
        held = getattr(inner, "driver_connection", None) or getattr(inner, "connection", None)
        inner = held() if callable(held) and not isinstance(held, sqlite3.Connection) else held
    return inner if isinstance(inner, sqlite3.Connection) else connection
