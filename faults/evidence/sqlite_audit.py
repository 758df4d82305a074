"""The audit of an SQLite file.

The triggers cost a job a few microseconds; the store's own statements do not see them, for SQLite restores
`last_insert_rowid()` after a trigger, and `changes()` does not count what triggers do.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

from faults.evidence.audit import STATES, Announced, Change

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
CREATE TABLE audit_lifted (id BLOB NOT NULL);
CREATE TABLE effects (job TEXT NOT NULL);
CREATE TRIGGER audit_announced AFTER INSERT ON shigoto_worker
BEGIN
  INSERT INTO audit_worker (id, pid, lease) VALUES (new.id, new.pid, new.lease);
END;
CREATE TRIGGER audit_fenced AFTER UPDATE ON shigoto_worker WHEN old.fenced_at IS NULL AND new.fenced_at IS NOT NULL
BEGIN
  INSERT INTO audit_fence (id, sequence) VALUES (new.id, (SELECT coalesce(max(sequence), 0) FROM audit));
END;
CREATE TRIGGER audit_lifted AFTER UPDATE ON shigoto_worker WHEN old.fenced_at IS NOT NULL AND new.fenced_at IS NULL
BEGIN
  INSERT INTO audit_lifted (id) VALUES (new.id);
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
SELECT w.id, w.pid, w.lease / 1000.0, (SELECT min(f.sequence) FROM audit_fence f WHERE f.id = w.id),
  EXISTS (SELECT 1 FROM audit_lifted f WHERE f.id = w.id)
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
        return {
            str(UUID(bytes=id)): Announced(pid, lease, fenced, lifted=bool(lifted))
            for id, pid, lease, fenced, lifted in self._read(WORKERS, "audit_worker")
        }

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

    def close(self) -> None:
        """Nothing is kept open."""
