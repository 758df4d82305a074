"""The audit of a PostgreSQL database, in a schema of its own.

Each statement that changes a table of the store fires one trigger for it, which writes a line for each row. Numbers of
lines are given while the rows are locked, so those of one job are in the order of the commits; between jobs the order
is about that of the statements.

The triggers act as whoever has installed them: the role that works needs no rights on any of this, and gets none but
to have effects. They add no locks and no index to the tables of the store, and leave the plans of its functions alone.
"""

from typing import Any
from uuid import UUID

import psycopg

from faults.evidence.audit import STATES, Announced, Change

TABLES = """
CREATE SCHEMA audit;
CREATE TABLE audit.change (
  sequence      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at            double precision NOT NULL,
  since         double precision NOT NULL,
  number        bigint NOT NULL,
  id            uuid,
  place         text NOT NULL,
  deed          text NOT NULL,
  token         integer NOT NULL,
  settled_token integer NOT NULL,
  worker        uuid,
  state         integer,
  crashes       integer NOT NULL,
  releases      integer NOT NULL,
  failures      integer NOT NULL,
  snoozes       integer NOT NULL
);
CREATE TABLE audit.worker (id uuid NOT NULL, pid bigint NOT NULL, lease bigint NOT NULL);
CREATE TABLE audit.fence (id uuid NOT NULL, sequence bigint NOT NULL, at double precision NOT NULL);
CREATE TABLE audit.lifted (id uuid NOT NULL);
CREATE TABLE public.effects (job text NOT NULL);
GRANT SELECT, INSERT ON public.effects TO PUBLIC;

CREATE FUNCTION audit.note_worker() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO audit.worker (id, pid, lease) VALUES (new.id, new.pid, new.lease);
  RETURN NULL;
END
$$;
CREATE TRIGGER audit_announced AFTER INSERT ON shigoto.worker FOR EACH ROW EXECUTE FUNCTION audit.note_worker();

CREATE FUNCTION audit.note_fence() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO audit.fence (id, sequence, at)
  SELECT new.id, CASE WHEN s.is_called THEN s.last_value ELSE 0 END, extract(epoch FROM clock_timestamp())
  FROM audit.change_sequence_seq s;
  RETURN NULL;
END
$$;
CREATE TRIGGER audit_fenced AFTER UPDATE ON shigoto.worker
  FOR EACH ROW WHEN (old.fenced_at IS NULL AND new.fenced_at IS NOT NULL) EXECUTE FUNCTION audit.note_fence();

CREATE FUNCTION audit.note_lifted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO audit.lifted (id) VALUES (new.id);
  RETURN NULL;
END
$$;
CREATE TRIGGER audit_lifted AFTER UPDATE ON shigoto.worker
  FOR EACH ROW WHEN (old.fenced_at IS NOT NULL AND new.fenced_at IS NULL) EXECUTE FUNCTION audit.note_lifted();
"""
# The id is looked up where a job comes in to wait, which it does before anything else; its number is never given again.
TRIGGER = """
CREATE FUNCTION audit.{place}_{deed}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO audit.change (at, since, number, id, place, deed, token, settled_token, worker, state,
    crashes, releases, failures, snoozes)
  SELECT extract(epoch FROM clock_timestamp()), extract(epoch FROM now()), c.number, {id}, '{place}', '{deed}', {values}
  FROM changed c;
  RETURN NULL;
END
$$;
CREATE TRIGGER audit_{deed} AFTER {event} ON shigoto.{place} REFERENCING {rows} TABLE AS changed
  FOR EACH STATEMENT EXECUTE FUNCTION audit.{place}_{deed}();
"""
ID = "(SELECT b.id FROM shigoto.job b WHERE b.number = c.number)"
EVENTS = {"in": ("INSERT", "NEW"), "out": ("DELETE", "OLD"), "change": ("UPDATE", "NEW")}
COUNTERS = "c.crashes, c.releases, c.failures, c.snoozes"
COLUMNS = {
    "ready": f"c.token, c.settled_token, NULL, NULL, {COUNTERS}",
    "scheduled": f"c.token, c.settled_token, NULL, NULL, {COUNTERS}",
    "blocked": "0, 0, NULL, NULL, 0, 0, 0, 0",
    "running": f"c.token, c.settled_token, c.worker, NULL, {COUNTERS}",
    "done": f"c.token, c.settled_token, NULL, c.state, {COUNTERS}",
}

CHANGES = """
SELECT sequence, at, number, id, place, deed, token, settled_token, worker, state, crashes, releases, failures, snoozes,
  since
FROM audit.change
ORDER BY sequence
"""
WORKERS = """
SELECT w.id, w.pid, w.lease / 1000.0::double precision,
  (SELECT min(f.sequence) FROM audit.fence f WHERE f.id = w.id),
  (SELECT min(f.at) FROM audit.fence f WHERE f.id = w.id),
  EXISTS (SELECT 1 FROM audit.lifted f WHERE f.id = w.id)
FROM audit.worker w
"""
WAITING = ("ready", "scheduled", "blocked", "running")
PLACES = """
SELECT b.id, coalesce(p.word, p.state::text)
FROM (
  SELECT number, 'pending' AS word, 0 AS state FROM shigoto.ready
  UNION ALL SELECT number, 'pending', 0 FROM shigoto.scheduled
  UNION ALL SELECT number, 'blocked', 0 FROM shigoto.blocked
  UNION ALL SELECT number, 'processing', 0 FROM shigoto.running
  UNION ALL SELECT number, (ARRAY['completed', 'failed', 'cancelled'])[state - 2], state FROM shigoto.done) p
JOIN shigoto.job b ON b.number = p.number
"""


class PostgresAudit:
    """The audit of the database at this URL, which is that of a superuser."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None

    def install(self) -> None:
        """Add it, in one transaction."""
        script = [TABLES]
        for place, values in COLUMNS.items():
            for deed, (event, rows) in EVENTS.items():
                id = ID if deed == "in" and place in ("ready", "scheduled", "blocked") else "NULL"
                script.append(
                    TRIGGER.format(place=place, deed=deed, event=event, rows=rows, id=id, values=values)
                )
        with psycopg.connect(self._url) as connection:
            connection.execute("\n".join(script))

    def changes(self) -> list[Change]:
        """Read them, each with the id of its job."""
        ids: dict[int, str] = {}
        found: list[Change] = []
        for row in self._read(CHANGES, "audit.change"):
            sequence, at, number, id, place, deed, token, settled_token, worker, state = row[:10]
            if id is not None:
                ids[number] = str(id)
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
                    worker="" if worker is None else str(worker),
                    state=STATES.get(state, ""),
                    crashes=row[10],
                    releases=row[11],
                    failures=row[12],
                    snoozes=row[13],
                    since=row[14],
                )
            )
        return found

    def effects(self) -> dict[str, int]:
        """Count them."""
        return dict(self._read("SELECT job, count(*) FROM public.effects GROUP BY job", "public.effects"))

    def workers(self) -> dict[str, Announced]:
        """Read them."""
        return {str(id): Announced(*rest) for id, *rest in self._read(WORKERS, "audit.worker")}

    def states(self) -> dict[str, str]:
        """Read them."""
        return {str(id): state for id, state in self._read(PLACES, "shigoto.job")}

    def at_rest(self) -> bool:
        """Look for one that is not; who cannot be asked is not at rest."""
        empty = " AND ".join(f"NOT EXISTS (SELECT 1 FROM shigoto.{table})" for table in WAITING)
        try:
            [[answer]] = self._read(f"SELECT {empty}", "shigoto.job")
        except psycopg.OperationalError:
            return False
        return bool(answer)

    def id_of(self, number: int) -> str | None:
        """Look it up."""
        rows: list[tuple[UUID]] = self._read(
            f"SELECT id FROM shigoto.job WHERE number = {number:d}", "shigoto.job"
        )
        return str(rows[0][0]) if rows else None

    def close(self) -> None:
        """Let go of the server; whoever asks next connects again."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _read(self, text: str, table: str) -> list[Any]:
        """What it answers, nothing if there is no such table.

        A connection is kept for those who ask again and again, and may be one to a server that is no more.
        """
        if self._connection is not None:
            try:
                return self._ask(text, table)
            except psycopg.OperationalError:
                self.close()
        return self._ask(text, table)

    def _ask(self, text: str, table: str) -> list[Any]:
        if self._connection is None:
            self._connection = psycopg.connect(self._url, autocommit=True)
        known = self._connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
        return self._connection.execute(text).fetchall() if known == (True,) else []
