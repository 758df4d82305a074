"""The users table: every statement that touches it, and nothing else."""

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

SCHEMA = """
CREATE TABLE IF NOT EXISTS users (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  email TEXT NOT NULL UNIQUE COLLATE NOCASE,
  additional_properties TEXT NOT NULL,
  created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  welcomed_at TEXT
)
"""

COLUMNS = "id, name, email, additional_properties, created_at, welcomed_at"


class EmailTaken(Exception):
    """Another user has this e-mail address."""


@dataclass(frozen=True, slots=True)
class User:
    """One row of the table; times are UTC."""

    id: int
    name: str
    email: str
    additional_properties: dict[str, Any]
    created_at: str
    welcomed_at: str | None


def create_tables(connection: sqlite3.Connection) -> None:
    """Make the table if it is missing."""
    connection.execute(SCHEMA)


def insert_user(
    connection: sqlite3.Connection, name: str, email: str, additional_properties: dict[str, Any]
) -> User:
    """A new row, in the transaction of this connection. Raises EmailTaken."""
    try:
        rows = connection.execute(
            f"INSERT INTO users (name, email, additional_properties) VALUES (?, ?, ?) RETURNING {COLUMNS}",
            (name, email, json.dumps(additional_properties)),
        )
        return _user(rows.fetchone())
    except sqlite3.IntegrityError as error:
        raise EmailTaken(f"There is a user with the e-mail address {email} already.") from error


def find_user(connection: sqlite3.Connection, user_id: int) -> User | None:
    """The user with this id."""
    row = connection.execute(f"SELECT {COLUMNS} FROM users WHERE id = ?", (user_id,)).fetchone()
    return None if row is None else _user(row)


def mark_welcomed(connection: sqlite3.Connection, user_id: int) -> None:
    """Note that this user was welcomed just now, in the transaction of this connection."""
    connection.execute(
        "UPDATE users SET welcomed_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE id = ?", (user_id,)
    )


def _user(row: tuple[Any, ...]) -> User:
    user_id, name, email, properties, created_at, welcomed_at = row
    return User(user_id, name, email, json.loads(properties), created_at, welcomed_at)
