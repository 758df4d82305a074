"""Where the jobs of a world are, and how a witness sees them: in memory, or in a file."""

import sqlite3
from pathlib import Path
from typing import Protocol
from uuid import UUID

from msgspec import Struct

from shigoto.engine.memory import MemoryEngine
from shigoto.engine.memory.store import Row
from shigoto.engine.protocol import Engine
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.job import State
from shigoto.model.time import Clock, Millis


class Seen(Struct, frozen=True, array_like=True):
    """A job at one moment."""

    id: UUID
    state: State
    token: int
    settled_token: int
    worker: UUID | None
    failures: int
    crashes: int
    releases: int
    snoozes: int
    run_at: Millis
    queue: str
    max_failures: int


class Store(Protocol):
    """An engine, and a look behind it."""

    @property
    def engine(self) -> Engine: ...

    @property
    def patience(self) -> float:
        """Virtual seconds until a suspect is run by workers that cannot isolate it."""
        ...

    def look(self) -> dict[int, Seen]:
        """Every job, by its number."""
        ...

    def is_live(self, worker: UUID) -> bool:
        """Whether a worker is registered and not fenced."""
        ...

    def paused(self, queue: str) -> bool:
        """Whether nothing may be claimed from a queue."""
        ...

    def close(self) -> None:
        """The world is over."""
        ...


class InMemory:
    """The engine that is the model of the semantics."""

    patience = 0.0

    def __init__(self, clock: Clock) -> None:
        self.engine = MemoryEngine(clock=clock)
        self._store = self.engine._store

    def look(self) -> dict[int, Seen]:
        return {number: _seen(row) for number, row in self._store.rows.items()}

    def is_live(self, worker: UUID) -> bool:
        return self._store.alive(worker) is not None

    def paused(self, queue: str) -> bool:
        return self._store.paused(queue)

    def close(self) -> None:
        self.engine.close()


def _seen(row: Row) -> Seen:
    counters = row.counters
    return Seen(
        row.spec.id,
        row.state,
        row.token,
        row.settled_token,
        row.worker,
        counters.failures,
        counters.crashes,
        counters.releases,
        counters.snoozes,
        row.run_at,
        row.spec.queue,
        row.spec.max_failures,
    )


LOOK = """
SELECT b.number, b.id, p.state, p.token, p.settled_token, p.worker, p.failures, p.crashes, p.releases, p.snoozes,
  b.run_at, l.queue, b.max_failures
FROM (
  SELECT number, 1 AS state, token, settled_token, NULL AS worker, failures, crashes, releases, snoozes
  FROM shigoto_ready
  UNION ALL
  SELECT number, 1, token, settled_token, NULL, failures, crashes, releases, snoozes FROM shigoto_scheduled
  UNION ALL
  SELECT number, 2, token, settled_token, worker, failures, crashes, releases, snoozes FROM shigoto_running
  UNION ALL
  SELECT number, state, token, settled_token, NULL, failures, crashes, releases, snoozes FROM shigoto_done) p
CROSS JOIN shigoto_job b ON b.number = p.number
LEFT JOIN shigoto_lane l ON l.lane = b.lane
"""
STATES = {1: State.PENDING, 2: State.PROCESSING, 3: State.COMPLETED, 4: State.FAILED, 5: State.CANCELLED}


class InFile:
    """The engine that ships, on a file that need not survive a power cut."""

    patience = 700.0

    def __init__(self, clock: Clock, path: Path) -> None:
        self.engine = SqliteEngine(path, synchronous="off", clock=clock)
        self.engine.migrate()
        self._witness = sqlite3.connect(path, isolation_level=None)

    def look(self) -> dict[int, Seen]:
        found: dict[int, Seen] = {}
        for number, id, state, token, settled_token, worker, *rest in self._witness.execute(LOOK):
            assert number not in found, f"job {number} is in two tables"
            owner = None if worker is None else UUID(bytes=worker)
            found[number] = Seen(UUID(bytes=id), STATES[state], token, settled_token, owner, *rest)
        return found

    def is_live(self, worker: UUID) -> bool:
        sql = "SELECT 1 FROM shigoto_worker WHERE id = ? AND fenced_at IS NULL"
        return self._witness.execute(sql, (worker.bytes,)).fetchone() is not None

    def paused(self, queue: str) -> bool:
        row = self._witness.execute("SELECT paused FROM shigoto_queue WHERE name = ?", (queue,)).fetchone()
        return row is not None and bool(row[0])

    def close(self) -> None:
        self._witness.close()
        self.engine.close()
