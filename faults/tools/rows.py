"""Hostile input by hand: rows written straight into the tables of a store in SQLite, past everything that checks.

Each deed spoils one thing of one row. What the schema itself refuses is refused; the rest must do no harm to others.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from shigoto.model.ids import uuid7

NOT_UTF8 = "CAST(x'c328fffe' AS TEXT)"
DEEP = "[" * 200_000

WHOLE: tuple[str, ...] = (
    "-1",
    "0",
    "9223372036854775807",
    "-9223372036854775808",
    "1.5",
    "1e300",
    "'abc'",
    "''",
    "x'ff'",
    "NULL",
)
TEXT: tuple[str, ...] = (
    "''",
    "char(27) || '[31m'",
    "char(0)",
    "char(30)",
    "'a' || char(30) || 'b'",
    "x'fffe'",
    NOT_UTF8,
    "12",
    "1.5",
    "NULL",
    "replace(hex(zeroblob(100000)), '0', 'x')",
)
JSON: tuple[str, ...] = (
    *TEXT,
    "'{'",
    "'[]'",
    "'[1'",
    "'[1,null,{}]'",
    "'{}'",
    "'{\"a\":'",
    "'null'",
    "'NaN'",
    '\'{"value":1,"value":2}\'',
    "'{\"value\":1e999}'",
    f"'{DEEP}'",
    "'{\"retries\":-5}'",
    '\'{"retries":3,"curve":{"type":"linear","base":-1}}\'',
    "char(65279) || '{}'",
)
# With what the columns of a job can be spoilt.
COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ("x''", "x'00'", "zeroblob(17)", "'text of 16 bytes'", "12", "NULL", NOT_UTF8),
    "priority": WHOLE,
    "run_at": WHOLE,
    "created_at": WHOLE,
    "max_failures": WHOLE,
    "max_crashes": WHOLE,
    "tenant": TEXT,
    "key": TEXT,
    "expires_at": WHOLE,
    "retry": JSON,
    "timeout": WHOLE,
    "soft_timeout": WHOLE,
    "tags": JSON,
    "meta": JSON,
    "alone": WHOLE,
    "payload": JSON,
}
READY = (
    "expires_at",
    "token",
    "settled_token",
    "failures",
    "crashes",
    "solo_crashes",
    "releases",
    "snoozes",
    "solo",
)
# Rows of other tables: the statement, with the number, the lane and the time of a sound job that stands beside it.
OTHERS: dict[str, str] = {
    "ready without a body": "INSERT INTO shigoto_ready (lane, priority, pos, number) VALUES (:lane, 0, :now, 900001)",
    "scheduled without a body": "INSERT INTO shigoto_scheduled (run_at, number, lane) VALUES (1, 900002, :lane)",
    "running without a body": (
        "INSERT INTO shigoto_running VALUES (900003, 1, randomblob(16), 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL)"
    ),
    "done without a body": (
        "INSERT INTO shigoto_done (number, state, token, settled_token, failures, crashes, releases, snoozes,"
        " finished_at) VALUES (900004, 4, 1, 1, 0, 0, 0, 0, 1)"
    ),
    "done in no state": (
        "INSERT INTO shigoto_done (number, state, token, settled_token, failures, crashes, releases, snoozes,"
        " finished_at) VALUES (900005, 9, 1, 1, 0, 0, 0, 0, 'x')"
    ),
    "blocked without a body": "INSERT INTO shigoto_blocked VALUES (900006, 'x')",
    "expiry without a body": "INSERT INTO shigoto_expiry VALUES (1, 900007)",
    "key without a job": "INSERT INTO shigoto_key VALUES ('', 'taken by nobody', 900008)",
    "attempt without a body": "INSERT INTO shigoto_attempt VALUES (900009, 'x', 7, x'ff', x'ff', 'x', -1)",
    "log without a body": "INSERT INTO shigoto_log VALUES (900010, 1, 1, 'x', x'ff', x'ff')",
    "lane of nothing": "INSERT INTO shigoto_lane (queue, task, alone) VALUES ('', '', 7)",
    "lane in bytes": "INSERT INTO shigoto_lane (queue, task, alone) VALUES (x'ff', x'fe', 'x')",
    "clock of the far future": "UPDATE shigoto_meta SET value = 4611686018427387904 WHERE name = 'clock'",
    "clock without a number": "UPDATE shigoto_meta SET value = 'noon' WHERE name = 'clock'",
    "clock before all": "UPDATE shigoto_meta SET value = -4611686018427387904 WHERE name = 'clock'",
    "worker from the past": (
        "INSERT INTO shigoto_worker VALUES"
        " (900012, randomblob(16), 'old', '[]', NULL, NULL, 1, '', '', 1, 0, 0, 30000, 0, 0, NULL)"
    ),
}


class Rows:
    """Writes rows into a store that has a task's lane already."""

    def __init__(self, store: Path, task: str) -> None:
        self._store = store
        self._task = task

    def deeds(self) -> Iterator[tuple[str, str]]:
        """All there is: a name, and a statement for `spoil`, one after the other."""
        for column, values in COLUMNS.items():
            for value in values:
                yield f"{column} = {value[:60]}", _insert(column, value)
        for column in READY:
            for value in WHOLE:
                yield (
                    f"ready.{column} = {value}",
                    f"UPDATE shigoto_ready SET {column} = {value} WHERE number = :number",
                )
        for value in JSON:
            words = f"INSERT INTO shigoto_progress VALUES (:number, 0.5, {value}, {value})"
            yield f"progress and checkpoint = {value[:60]}", words
        yield from OTHERS.items()

    def spoil(self, statement: str) -> int:
        """Do it to a fresh row, and give that one's number. Raises sqlite3.IntegrityError if the schema refuses."""
        with closing(self.connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            now = time.time_ns() // 1_000_000
            [lane] = connection.execute(
                "SELECT lane FROM shigoto_lane WHERE task = ? AND alone = 0", (self._task,)
            ).fetchone()
            known = {"lane": lane, "now": now, "id": uuid7().bytes, "number": 0}
            if not statement.startswith("INSERT INTO shigoto_job"):
                cursor = connection.execute(_insert("payload", "'{\"value\":1}'"), known)
                known["number"], known["id"] = cursor.lastrowid or 0, uuid7().bytes
            cursor = connection.execute(
                statement, {name: known[name] for name in known if f":{name}" in statement}
            )
            return known["number"] or cursor.lastrowid or 0

    def place_of(self, number: int) -> str:
        """Where the row is now: the state of its job, as the tables have it."""
        with closing(self.connect()) as connection:
            for table in ("ready", "scheduled", "running", "blocked"):
                if connection.execute(
                    f"SELECT 1 FROM shigoto_{table} WHERE number = ?", (number,)
                ).fetchone():
                    return table
            row = connection.execute(
                "SELECT state, failure_kind FROM shigoto_done WHERE number = ?", (number,)
            ).fetchone()
            return "nowhere" if row is None else f"{row[0]} {row[1] or ''}".strip()

    def remove(self, number: int) -> None:
        """Take it away again, with everything that belongs to it."""
        with closing(self.connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            for table in ("job", "ready", "scheduled", "running", "blocked", "done", "progress", "expiry"):
                connection.execute(
                    f"DELETE FROM shigoto_{table} WHERE number IN (?, 900001, 900002, 900003)", (number,)
                )

    def connect(self) -> sqlite3.Connection:
        """A connection of our own, that waits for others, and makes nothing of bytes that are no text."""
        connection = sqlite3.connect(self._store, timeout=20, isolation_level=None)
        connection.text_factory = bytes
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection


def _insert(column: str, value: str) -> str:
    """A job like any other, but for one column."""
    sound: dict[str, Any] = {
        "id": ":id",
        "lane": ":lane",
        "priority": "0",
        "run_at": ":now",
        "created_at": ":now",
        "max_failures": "1",
        "max_crashes": "3",
        "tenant": "''",
        "payload": "'{\"value\":1}'",
    } | {column: value}
    return f"INSERT INTO shigoto_job ({', '.join(sound)}) VALUES ({', '.join(sound.values())})"
