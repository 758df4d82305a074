"""Brings the file's schema up to date, or says why it must not be touched."""

import sqlite3
from pathlib import Path

from shigoto.engine.sql.migrations import Applied, load_migrations, pending
from shigoto.model.errors import SchemaMissing, StoreRefused
from shigoto.model.time import host_clock

MIGRATIONS = Path(__file__).parent / "migrations"
# Half of SQLite's own. A commit writes every page that it has touched, and a single enqueue touches three of them: it
# takes a tenth less. Batches are as fast with either, and payloads of 10 KB a tenth slower.
PAGE_SIZE = 2048

REMEMBER = """
CREATE TABLE IF NOT EXISTS shigoto_migration (
  version    INTEGER PRIMARY KEY,
  name       TEXT NOT NULL,
  checksum   TEXT NOT NULL,
  applied_at INTEGER NOT NULL)
"""


def migrate(connection: sqlite3.Connection, path: Path, *, may_migrate: bool = True) -> list[str]:
    """Apply what is missing, under the write lock, so that two processes never apply the same step."""
    shipped = load_migrations(MIGRATIONS)
    if not pending(shipped, _applied(connection), store=str(path)):
        return []
    if not may_migrate:
        raise SchemaMissing(
            f"{path} does not have the current schema of shigoto. Run `shigoto migrate` or a worker to create it;"
            " for jobs in a transaction of your own, open the connection with app.connect()."
        )
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")  # of a new file; another keeps the one it has
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreRefused(
            f"{path} cannot have a write-ahead log (its journal mode stays {mode!r}): the file system lacks shared"
            " memory. Put the file on an ordinary local disk."
        )
    connection.execute("BEGIN IMMEDIATE")
    try:
        missing = pending(shipped, _applied(connection), store=str(path))
        connection.execute(REMEMBER)
        for migration in missing:
            for statement in split(migration.sql):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO shigoto_migration VALUES (?, ?, ?, ?)",
                (migration.version, migration.name, migration.checksum, host_clock()),
            )
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return [f"{migration.version:04d}_{migration.name}" for migration in missing]


def split(script: str) -> list[str]:
    """The statements of a script; `executescript` would commit the transaction that makes a migration atomic."""
    statements: list[str] = []
    current = ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current.strip())
            current = ""
    return statements


def _applied(connection: sqlite3.Connection) -> list[Applied]:
    known = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'shigoto_migration'").fetchone()
    if known is None:
        return []
    rows = connection.execute("SELECT version, name, checksum FROM shigoto_migration ORDER BY version")
    return [Applied(*row) for row in rows]
