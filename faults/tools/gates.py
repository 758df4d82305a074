"""The moments of a move, as the two stores show them: where the gate of the old one stands, how much has come into the
new one, and when that was opened.

The gate of the old store is looked at again and again; what is seen stands in the ledger, with the time at which it was
last seen otherwise. The opening of the new one is written down by the server, in the transaction that does it: nobody
else can change anything meanwhile, so each line of the audit was written before it or after it.
"""

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from types import TracebackType

import psycopg

from faults.evidence.joined import GATE
from faults.evidence.records import Pen

LOOK = 0.005  # seconds
SHUT = ("closed", "moved")
OPENING = """
CREATE TABLE audit.opened (sequence bigint NOT NULL, at double precision NOT NULL);
CREATE FUNCTION audit.note_opening() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO audit.opened (sequence, at)
  SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END, extract(epoch FROM clock_timestamp())
  FROM audit.change_sequence_seq s
  WHERE EXISTS (SELECT 1 FROM pg_event_trigger_dropped_objects() d WHERE d.object_identity = 'shigoto.gate');
END
$$;
CREATE EVENT TRIGGER note_opening ON sql_drop EXECUTE FUNCTION audit.note_opening();
"""


class Gates:
    """Watches an SQLite file that is moved to the database at this URL, as its superuser, until the end of the block.

    `kind` is what stands before the old store now: nothing, or a gate of that kind.
    """

    def __init__(self, old: Path, new: str, pen: Pen) -> None:
        self._old, self._new, self._pen = old, new, pen
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gates")
        self.kind = ""
        with psycopg.connect(new) as connection:
            connection.execute(OPENING)

    def __enter__(self) -> "Gates":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enough.set()
        self._thread.join()

    @property
    def shut(self) -> bool:
        """Whether nothing can change in the old store."""
        return self.kind in SHUT

    def has_copied(self, jobs: int) -> bool:
        """Whether so many jobs are in the new store."""
        counted = "SELECT count(*) FROM (SELECT 1 FROM shigoto.job LIMIT %s) j"
        with psycopg.connect(self._new) as connection:
            row = connection.execute(counted, (jobs,)).fetchone()
        return row == (jobs,)

    def opened(self) -> tuple[int, float] | None:
        """After which line of its audit the new store was opened, and when, by the wall clock; None if it was not."""
        with psycopg.connect(self._new) as connection:
            row = connection.execute(
                "SELECT sequence, at FROM audit.opened ORDER BY at DESC LIMIT 1"
            ).fetchone()
        return None if row is None else (row[0], row[1])

    def _watch(self) -> None:
        with closing(sqlite3.connect(self._old, timeout=30, isolation_level=None)) as connection:
            otherwise = time.monotonic()
            while not self._enough.wait(LOOK):
                before = time.monotonic()
                kind = _kind(connection)
                if kind != self.kind:
                    self._pen.write(
                        "fault", deed=GATE, outcome=kind or "none", due=otherwise, pid=0, parent=0
                    )
                    self.kind = kind
                otherwise = before


def _kind(connection: sqlite3.Connection) -> str:
    try:
        row = connection.execute("SELECT kind FROM shigoto_gate").fetchone()
    except sqlite3.OperationalError:
        return ""  # there is no such table
    return "" if row is None else str(row[0])
