"""Every change of every job's state, written down by the store itself, by triggers that only tests install.

A job's state is the table that holds its number, so a change is a row that comes or goes there. It is written in the
transaction of the change: what was rolled back has not happened, and what was committed is here, in this order.

The triggers of each engine are known to one class, which `store_of` finds. Those of SQLite cost a job a few
microseconds; the store's own statements do not see them, for SQLite restores `last_insert_rowid()` after a trigger,
and `changes()` does not count what triggers do.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from msgspec import Struct

STATES = {3: "completed", 4: "failed", 5: "cancelled"}


class Announced(Struct, frozen=True):
    """A worker as it was announced: its process, its lease in seconds, and after which change it was fenced."""

    pid: int
    lease: float
    fenced: int | None = None


class Change(Struct, frozen=True, kw_only=True):
    """A row came into a table of the store, or changed there, or went. In the order of the commits."""

    sequence: int
    at: float  # seconds of the wall clock
    number: int
    job: str  # the id
    table: str  # ready, scheduled, blocked, running, done
    deed: str  # in, out, change
    token: int
    settled_token: int
    worker: str = ""
    state: str = ""  # of what is done: completed, failed, cancelled
    crashes: int = 0
    releases: int = 0
    failures: int = 0
    snoozes: int = 0


class Audit(Protocol):
    """What an engine must be able to write down and to tell; the functions below say what each is."""

    def install(self) -> None: ...
    def changes(self) -> list[Change]: ...
    def effects(self) -> dict[str, int]: ...
    def workers(self) -> dict[str, Announced]: ...
    def states(self) -> dict[str, str]: ...
    def at_rest(self) -> bool: ...
    def id_of(self, number: int) -> str | None: ...


def install(store: Path) -> None:
    """Add the table and its triggers to a store that has its schema."""
    audit_of(store).install()


def changes(store: Path) -> list[Change]:
    """All that was written down, in order; nothing if no triggers are there."""
    return audit_of(store).changes()


def effects(store: Path) -> dict[str, int]:
    """How many rows each job has written into `effects`, a table without a unique constraint that `install` makes."""
    return audit_of(store).effects()


def workers(store: Path) -> dict[str, Announced]:
    """Every worker that was ever announced, by its id."""
    return audit_of(store).workers()


def states(store: Path) -> dict[str, str]:
    """The state of each job by its id, from the tables themselves; a job that has no place in them is not there."""
    return audit_of(store).states()


def at_rest(store: Path) -> bool:
    """Whether no table has a job that waits, is due later or runs."""
    return audit_of(store).at_rest()


def id_of(store: Path, number: int) -> str | None:
    """The id of a job that people know by its number."""
    return audit_of(store).id_of(number)


def audit_of(store: Path) -> Audit:
    """The audit of the engine that this store belongs to; a path is an SQLite file."""
    return SqliteAudit(store)


TABLES = """
CREATE TABLE audit (
  sequence      INTEGER PRIMARY KEY,
  at            REAL NOT NULL,
  number        INTEGER NOT NULL,
  id            BLOB,
  place         TEXT NOT NULL,
  deed          TEXT NOT NULL,
  token         INTEGER NOT NULL,
  settled_token INTEGER NOT NULL,
  worker        BLOB,
  state         INTEGER,
  crashes       INTEGER NOT NULL,
  releases      INTEGER NOT NULL,
  failures      INTEGER NOT NULL,
  snoozes       INTEGER NOT NULL
);
CREATE TABLE audit_worker (id BLOB NOT NULL, pid INTEGER NOT NULL, lease INTEGER NOT NULL);
CREATE TABLE audit_fence (id BLOB NOT NULL, sequence INTEGER NOT NULL);
CREATE TABLE effects (job TEXT NOT NULL);
CREATE TRIGGER audit_announced AFTER INSERT ON shigoto_worker
BEGIN
  INSERT INTO audit_worker (id, pid, lease) VALUES (new.id, new.pid, new.lease);
END;
CREATE TRIGGER audit_fenced AFTER UPDATE ON shigoto_worker WHEN old.fenced_at IS NULL AND new.fenced_at IS NOT NULL
BEGIN
  INSERT INTO audit_fence (id, sequence) VALUES (new.id, (SELECT coalesce(max(sequence), 0) FROM audit));
END;
"""
# The id is looked up where a job comes in to wait, which it does before anything else; its number is never given again.
TRIGGER = """
CREATE TRIGGER audit_{place}_{deed} AFTER {event} ON shigoto_{place}
BEGIN
  INSERT INTO audit (at, number, id, place, deed, token, settled_token, worker, state,
    crashes, releases, failures, snoozes)
  VALUES ((julianday('now') - 2440587.5) * 86400.0, {row}.number, {id}, '{place}', '{deed}', {values});
END;
"""
ID = "(SELECT id FROM shigoto_job WHERE number = new.number)"
EVENTS = {"in": "INSERT", "out": "DELETE", "change": "UPDATE"}
COUNTERS = "{row}.crashes, {row}.releases, {row}.failures, {row}.snoozes"
COLUMNS = {
    "ready": "{row}.token, {row}.settled_token, NULL, NULL, " + COUNTERS,
    "scheduled": "{row}.token, {row}.settled_token, NULL, NULL, " + COUNTERS,
    "blocked": "0, 0, NULL, NULL, 0, 0, 0, 0",
    "running": "{row}.token, {row}.settled_token, {row}.worker, NULL, " + COUNTERS,
    "done": "{row}.token, {row}.settled_token, NULL, {row}.state, " + COUNTERS,
}

WORKERS = """
SELECT w.id, w.pid, w.lease / 1000.0, (SELECT min(f.sequence) FROM audit_fence f WHERE f.id = w.id)
FROM audit_worker w
"""
WAITING = ("ready", "scheduled", "blocked", "running")
PLACES = """
SELECT j.id, p.state
FROM (
  SELECT number, 'pending' AS state FROM shigoto_ready
  UNION ALL SELECT number, 'pending' FROM shigoto_scheduled
  UNION ALL SELECT number, 'blocked' FROM shigoto_blocked
  UNION ALL SELECT number, 'processing' FROM shigoto_running
  UNION ALL SELECT number, state FROM shigoto_done) p
CROSS JOIN shigoto_job j ON j.number = p.number
"""


class SqliteAudit:
    """The audit of an SQLite file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def install(self) -> None:
        """Add what is missing, in one transaction."""
        script = ["BEGIN IMMEDIATE;", TABLES]
        for place, columns in COLUMNS.items():
            for deed, event in EVENTS.items():
                row = "old" if deed == "out" else "new"
                id = ID if deed == "in" and place in ("ready", "scheduled", "blocked") else "NULL"
                values = columns.format(row=row)
                script.append(
                    TRIGGER.format(place=place, deed=deed, event=event, row=row, id=id, values=values)
                )
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as connection:
            connection.executescript("\n".join([*script, "COMMIT;"]))

    def changes(self) -> list[Change]:
        """Read them, each with the id of its job."""
        ids: dict[int, str] = {}
        found: list[Change] = []
        for row in self._read("SELECT * FROM audit ORDER BY sequence", "audit"):
            sequence, at, number, id, place, deed, token, settled_token, worker, state = row[:10]
            if id is not None:
                ids[number] = str(UUID(bytes=id))
            found.append(
                Change(
                    sequence=sequence,
                    at=at,
                    number=number,
                    job=ids.get(number) or f"number {number}",
                    table=place,
                    deed=deed,
                    token=token,
                    settled_token=settled_token,
                    worker="" if worker is None else str(UUID(bytes=worker)),
                    state=STATES.get(state, ""),
                    crashes=row[10],
                    releases=row[11],
                    failures=row[12],
                    snoozes=row[13],
                )
            )
        return found

    def effects(self) -> dict[str, int]:
        """Count them."""
        return dict(self._read("SELECT job, count(*) FROM effects GROUP BY job", "effects"))

    def workers(self) -> dict[str, Announced]:
        """Read them."""
        return {str(UUID(bytes=id)): Announced(*rest) for id, *rest in self._read(WORKERS, "audit_worker")}

    def states(self) -> dict[str, str]:
        """Read them."""
        return {
            str(UUID(bytes=id)): STATES.get(state, str(state))
            for id, state in self._read(PLACES, "shigoto_job")
        }

    def at_rest(self) -> bool:
        """Look for one that is not."""
        empty = " AND ".join(f"NOT EXISTS (SELECT 1 FROM shigoto_{table})" for table in WAITING)
        [[answer]] = self._read(f"SELECT {empty}", "shigoto_job")
        return bool(answer)

    def id_of(self, number: int) -> str | None:
        """Look it up."""
        rows = self._read(f"SELECT id FROM shigoto_job WHERE number = {number:d}", "shigoto_job")
        return str(UUID(bytes=rows[0][0])) if rows else None

    def _read(self, text: str, table: str) -> list[Any]:
        with closing(sqlite3.connect(self._path, timeout=30)) as connection:
            known = "SELECT 1 FROM sqlite_schema WHERE name = ?"
            if connection.execute(known, (table,)).fetchone() is None:
                return []
            return connection.execute(text).fetchall()
