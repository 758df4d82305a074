"""The limits: what SQLite alone does, in a loop of inserts, each committed.

$TABLE is `insert`, a table of three columns with a rowid, or `row`: the very row that Shigoto stores for a job, in a
table of the same columns, with the unique index of its id; `row autocommit` is the same without a call to `commit`.
$SYNC is FULL or NORMAL.
"""

import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from bench import protocol
from bench.shigoto_app import STORE, app, noop

TABLE = os.environ.get("TABLE", "insert")
MOST = 100_000  # ids that are made in advance


class BareRunner(protocol.Runner):
    """No queue at all."""

    name = "bare"

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[tuple[protocol.One, None]]:
        """An insert."""
        connection = sqlite3.connect(self.store())
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {os.environ.get('SYNC', 'FULL')}")
        insert = (few_columns if TABLE == "insert" else same_row)(connection)
        if TABLE.endswith("autocommit"):
            connection.isolation_level = None
            yield insert, None
        else:
            commit = connection.commit

            def insert_and_commit(number: int) -> None:
                insert(number)
                commit()

            yield insert_and_commit, None
        connection.close()

    async def pending(self) -> int | None:
        """All rows."""
        return protocol.count(
            self.store(), f"SELECT count(*) FROM {'job' if TABLE == 'insert' else 'shigoto_job'}"
        )


def few_columns(connection: sqlite3.Connection) -> Callable[[int], Any]:
    """What the smallest queue would store."""
    connection.execute(
        "CREATE TABLE job (number INTEGER PRIMARY KEY, task TEXT, payload TEXT, created_at INTEGER)"
    )
    insert = "INSERT INTO job (task, payload, created_at) VALUES ('noop', ?, ?)"
    execute = connection.execute
    return lambda number: execute(insert, ('{"number": 1}', number))


def same_row(connection: sqlite3.Connection) -> Callable[[int], Any]:
    """The columns, the values and the unique index are those of a job that Shigoto has stored."""
    for path in STORE.parent.glob(f"{STORE.name}*"):
        path.unlink()
    noop.enqueue(1)
    users: sqlite3.Connection = app.connect()
    # The first unique index is that of the id; jobs without a key are not in the others.
    statements = users.execute(
        "SELECT sql FROM sqlite_master WHERE tbl_name = 'shigoto_job' AND sql IS NOT NULL"
        " AND (type = 'table' OR (type = 'index' AND sql LIKE '%UNIQUE%'))"
    ).fetchall()
    columns = [name for _, name, *_ in users.execute("PRAGMA table_info(shigoto_job)")]
    [stored] = users.execute("SELECT * FROM shigoto_job").fetchall()
    users.close()
    app.close()
    for (statement,) in statements:
        connection.execute(statement)
    row = dict(zip(columns, stored, strict=True))
    del row["number"]
    insert = f"INSERT INTO shigoto_job ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
    values, place = list(row.values()), list(row).index("id")
    rows = [(*values[:place], unique_id(), *values[place + 1 :]) for _ in range(MOST)]
    numbers, execute = count(), connection.execute
    return lambda number: execute(insert, rows[next(numbers)])


def unique_id() -> bytes:
    """Sixteen bytes that begin with the time, as the ids of jobs do, so that the index grows at its end."""
    return (time.time_ns() // 1000).to_bytes(8) + os.urandom(8)


if __name__ == "__main__":
    protocol.main(BareRunner())
