"""What a process has left behind, and what becomes of it when another worker takes over."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from uuid import UUID

from msgspec import Struct

from faults.apps import cycle
from faults.evidence import audit
from faults.evidence.checker import Evidence
from faults.evidence.records import Record
from faults.stage import app_of
from faults.tools.copies import Spot
from shigoto import State
from shigoto.engine.open import open_engine
from shigoto.engine.protocol import Engine
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.time import host_clock
from shigoto.model.worker import SweepOrder

LATER = 15_000  # milliseconds, until leases have run out and what was given back is due; less than clocks are held back


class Left(Struct, frozen=True):
    """What there is of one job, in the store and in the ledger."""

    tried: bool
    acknowledged: bool
    state: State | None
    starts: int
    ended: bool
    effects: int

    @property
    def word(self) -> str:
        """Where on its way it is (semantics, section 8)."""
        if not self.tried:
            return "not tried"
        match self.state:
            case None:
                return "not stored"
            case State.PENDING if not self.acknowledged:
                return "stored, not acknowledged"
            case State.PROCESSING if not self.starts:
                return "claimed"
            case State.PROCESSING:
                return "returned" if self.ended else "running"
            case state:
                return str(state)


def look(store: Spot, records: Sequence[Record], id: UUID) -> Left:
    """What there is of this job, as of now."""
    own = [record for record in records if record.job == str(id)]
    engine = open_engine(store.url)
    try:
        [job] = engine.run(engine.get([id]))
    finally:
        engine.close()
    return Left(
        tried=any(record.what == "try" for record in own),
        acknowledged=any(record.what == "ok" for record in own),
        state=None if job is None else job.state,
        starts=sum(record.what == "start" for record in own),
        ended=any(record.what == "end" for record in own),
        effects=audit.effects(store.audited).get(str(id), 0),
    )


def take_over(store: Spot, jobs: Sequence[tuple[str, UUID]]) -> None:
    """Fence whoever was there, enqueue the jobs again with their ids, as a caller would, and run all that is left."""
    late = _later(store)
    try:
        gone = tuple(worker.id for worker in late.run(late.workers()))
        late.run(late.sweep(SweepOrder(fence=gone)))
    finally:
        late.close()
    cycle.go_round(app_of("cycle", store.url), jobs, children=1)


def _later(store: Spot) -> Engine:
    """The store when leases have run out; where it has a clock of its own, it is so late for everybody from now on."""
    if isinstance(store.audited, Path):
        return SqliteEngine(store.audited, clock=lambda: host_clock() + LATER)
    from faults.tools.server_clock import ServerClock

    ServerClock(store.audited).step(LATER / 1000)
    return open_engine(store.url)


def evidence(store: Spot, records: Sequence[Record], after: Mapping[UUID, Left]) -> Evidence:
    """All that is known of these jobs, for the checker."""
    ids = {str(id) for id in after}
    return Evidence(
        records=[record for record in records if record.job in ids or record.what == "fault"],
        changes=audit.changes(store.audited),
        states={id: state for id, state in audit.states(store.audited).items() if id in ids},
        effects=audit.effects(store.audited),
        workers=audit.workers(store.audited),
    )


def intact(store: Path) -> bool:
    """Whether SQLite finds nothing wrong with the file."""
    with closing(sqlite3.connect(store)) as connection:
        return bool(connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)])
