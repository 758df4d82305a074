"""SqliteEngine: the verbs that SQLite has in its own way, and the few things that are not operations."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote
from uuid import UUID

from shigoto.engine.op import WRITE, Op, OpBatch
from shigoto.engine.protocol import Block, Capabilities, Doorbell
from shigoto.engine.sql import repairing, settling
from shigoto.engine.sql.commands import Dialect, SqlText, Steps, anything_new, sql, value
from shigoto.engine.sql.engine import SqlEngine
from shigoto.engine.sqlite import checkup, claiming, dialect, doorbell, enqueueing, file
from shigoto.engine.sqlite.claiming import is_damage
from shigoto.engine.sqlite.dialect import (
    SQL,
    STATE_TABLES,
    StoreClock,
    complete,
    fold_counters,
    forget,
    now_and_step,
    uncounted,
)
from shigoto.engine.sqlite.driver import Driver, SqliteHints
from shigoto.model.checkup import Checkup
from shigoto.model.job import Enqueued, JobSpec, Lease
from shigoto.model.text import storable
from shigoto.model.time import Clock, Millis, host_clock
from shigoto.model.worker import Ending, Promoted, Settlement, SweepOrder, Swept, Verdict, Want

if TYPE_CHECKING:
    from shigoto.engine.movable import Mover

T = TypeVar("T")

CAPABILITIES = Capabilities(name="sqlite", durable=True, shared=True, joins=True, moves=True)


class SqliteEngine(SqlEngine):
    """Jobs in one SQLite file. Opens lazily, creates the file and its schema when they are not there."""

    def __init__(self, path: str | Path, *, synchronous: str = "full", clock: Clock = host_clock) -> None:
        # Where SQLite puts the log, and where everybody must look for the doorbell.
        self._path = Path(path).resolve()
        self._doorbell = Path(f"{self._path}-bell")
        self._wal = Path(f"{self._path}-wal")
        self._synchronous = synchronous
        self._clock = StoreClock(clock)
        dialect = Dialect(
            locked=lambda numbers: value(()),  # whoever writes is alone
            now_and_step=lambda: now_and_step(self._clock),
            complete=complete,
            forget=forget,
            fold=fold_counters,
            uncounted=uncounted,
            numbers=enqueueing.numbers,
            lock_keys=enqueueing.lock_keys,
            is_damage=is_damage,
            submit=enqueueing.enqueue,
            state_tables=STATE_TABLES,
            statement=SqlText,
        )
        super().__init__(dialect, now=lambda: value(self._clock.now()), watch=_watch)
        self._applied: list[str] = []
        self._driver = Driver(
            self._path,
            synchronous=synchronous,
            prepare=self._prepare,
            ring=doorbell.DoorbellFile(self._doorbell).ring,
        )

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def address(self) -> str:
        options = "" if self._synchronous == "full" else f"?synchronous={self._synchronous}"
        return f"sqlite:///{quote(storable('The path of the store', str(self._path)))}{options}"

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def now(self) -> Millis:
        """Store time, as far as this process knows."""
        return self._clock.now()

    def run(self, op: Op[T]) -> T:
        return self._driver.run(op)

    async def arun(self, op: Op[T]) -> T:
        return await self._driver.arun(op)

    def join(self, connection: object, op: Op[T]) -> T:
        return self._driver.join(connection, op)

    async def ajoin(self, connection: object, op: Op[T]) -> T:
        return await self._driver.ajoin(connection, op)

    def block(self, last: Callable[[], Op[Any]], *, limit: float) -> Block:
        return self._driver.block(last, limit=limit)

    def listen(self) -> Doorbell:
        self._driver.prepare()
        doorbell.create(self._doorbell, self._path)
        return doorbell.SqliteDoorbell(self._doorbell, self._wal, self._driver.connections.version)

    def close(self) -> None:
        self._driver.close()

    def connect(self) -> sqlite3.Connection:
        """A connection for the user's own statements on the same file, fit for `using(connection=...)`."""
        self._driver.prepare()
        return file.connect_for_user(self._path, synchronous=self._synchronous)

    def migrate(self) -> list[str]:
        self._applied = []
        self._driver.prepare()
        return self._applied

    def expect_schema(self) -> None:
        """Raise SchemaMissing if the file is not a current store; creates and changes nothing."""
        self._driver.prepare(may_migrate=False)

    def checkup(self, *, deep: bool = False) -> Checkup:
        """What there is to know of the file's health, `deep` with a look at every page; changes nothing."""
        return checkup.examine(self._path, self._look, synchronous=self._synchronous, deep=deep)

    def _look(self, op: Op[T]) -> T:
        self.expect_schema()
        return self._driver.run(op)

    def _prepare(self, connection: sqlite3.Connection, may_migrate: bool) -> None:
        self._applied = file.migrate(connection, self._path, may_migrate=may_migrate)
        self._clock.remember(connection.execute(SQL["meta"], ("clock",)).fetchone()[0])

    def mover(self) -> "Mover":
        """The file, for whoever moves it."""
        from shigoto.engine.sqlite import moving

        return moving.mover(str(self._path), self._driver.run, self._clock.now)

    # A job's way: in, out, and ended.

    def enqueue_many(self, specs: Sequence[JobSpec]) -> Op[list[Enqueued]]:
        if not specs:
            return Op(start=lambda: value([]), mode="read")
        spec = specs[0]
        if len(specs) == 1 and spec.key is None:
            return Op(
                start=lambda: enqueueing.enqueue(self._clock.now(), specs),
                rings=anything_new,
                batch=OpBatch("enqueue", spec, self._enqueue_several),
                hints=SqliteHints(
                    lambda execute: enqueueing.insert_directly(self._clock.now(), spec, execute)
                ),
            )
        return Op(start=lambda: enqueueing.enqueue(self._clock.now(), specs), rings=anything_new)

    def _enqueue_several(self, specs: list[JobSpec]) -> Op[list[list[Enqueued]]]:
        def steps() -> Steps[list[list[Enqueued]]]:
            answers = yield from enqueueing.enqueue(self._clock.now(), specs)
            return [[answer] for answer in answers]

        return Op(start=steps)

    def claim(self, worker: UUID, wants: Sequence[Want]) -> Op[list[Lease]]:
        return Op(start=lambda: claiming.claim(self._clock.now(), worker, wants), mode="probe")

    def settle(self, worker: UUID, settlements: Sequence[Settlement]) -> Op[list[Verdict]]:
        back = any(s.ending not in (Ending.COMPLETED, Ending.CANCELLED) for s in settlements)
        return Op(
            start=lambda: settling.settle(self._dialect, self._clock.now(), worker, settlements),
            rings=(lambda _: True) if back else None,
        )

    def promote(self, limit: int) -> Op[Promoted]:
        return Op(
            start=lambda: dialect.promote(self._clock.now(), limit),
            mode="probe",
            rings=lambda promoted: promoted.count > 0,
        )

    def sweep(self, order: SweepOrder) -> Op[Swept]:
        return Op(
            start=lambda: repairing.sweep(self._dialect, order),
            rings=repairing.any_work,
            committed=lambda swept: self._clock.step_handled(swept.clock_step),
        )


def _watch() -> Steps[None]:
    """Have what happened in order. It takes a while on a large file, once, and nobody can write meanwhile."""
    [watched] = (yield sql("watched")).fetchone()
    if not watched:
        yield WRITE
        yield sql("watch_jobs")
        yield sql("watch_runs")
