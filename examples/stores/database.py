"""The tables of the stores, and what is done to them. Everything here is SQL for one store, but for the list of all."""

import sqlite3
from contextlib import closing

from shigoto import Shigoto

SCHEMA = """
CREATE TABLE IF NOT EXISTS store (id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS reservation (store TEXT, held_until TEXT, state TEXT);
CREATE TABLE IF NOT EXISTS sale (store TEXT, day TEXT, amount INTEGER);
CREATE TABLE IF NOT EXISTS daily_sales (store TEXT, day TEXT, total INTEGER, PRIMARY KEY (store, day));
CREATE TABLE IF NOT EXISTS customer (store TEXT, name TEXT, deleted_at TEXT);
CREATE TABLE IF NOT EXISTS note (store TEXT, text TEXT, deleted_at TEXT);
CREATE TABLE IF NOT EXISTS session (operator TEXT, expires_at TEXT);
CREATE TABLE IF NOT EXISTS invitation (id TEXT PRIMARY KEY, store TEXT, expires_at TEXT);
"""


def open_database(app: Shigoto) -> sqlite3.Connection:
    """A connection to the database that the jobs are in, with the tables of the stores."""
    connection: sqlite3.Connection = app.connect()
    connection.executescript(SCHEMA)
    return connection


def store_ids(app: Shigoto) -> list[str]:
    """All stores, in a stable order. With row security this is the function that `shigoto sql fan-out` prints."""
    with closing(open_database(app)) as connection:
        return [id for (id,) in connection.execute("SELECT id FROM store ORDER BY id")]
