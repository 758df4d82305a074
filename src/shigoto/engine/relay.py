"""An engine that hands everything on to another one, to be overridden where somebody wants it otherwise."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar
from uuid import UUID

from shigoto.engine.op import Op
from shigoto.engine.protocol import Block, Capabilities, Doorbell, Engine
from shigoto.engine.registry import Registry
from shigoto.model.job import (
    Attempt,
    Counts,
    Enqueued,
    Job,
    JobFilter,
    JobSpec,
    Lease,
    LoggedLine,
    QueueSettings,
    State,
)
from shigoto.model.schedule import Change, Due, Entry, Schedule
from shigoto.model.time import Millis
from shigoto.model.worker import (
    Announcement,
    Death,
    Orders,
    Promoted,
    Report,
    Rescued,
    Settlement,
    SweepOrder,
    Swept,
    Verdict,
    Want,
    WorkerRecord,
)

T = TypeVar("T")


class Relay:
    """Every promise of the protocol, kept by `engine`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def capabilities(self) -> Capabilities:
        return self.engine.capabilities

    @property
    def address(self) -> str:
        return self.engine.address

    @property
    def registry(self) -> Registry:
        return self.engine.registry

    def run(self, op: Op[T]) -> T:
        return self.engine.run(op)

    async def arun(self, op: Op[T]) -> T:
        return await self.engine.arun(op)

    def join(self, connection: object, op: Op[T]) -> T:
        return self.engine.join(connection, op)

    async def ajoin(self, connection: object, op: Op[T]) -> T:
        return await self.engine.ajoin(connection, op)

    def block(self, last: Callable[[], Op[Any]], *, limit: float) -> Block:
        return self.engine.block(last, limit=limit)

    def listen(self) -> Doorbell:
        return self.engine.listen()

    def close(self) -> None:
        self.engine.close()

    def migrate(self) -> list[str]:
        return self.engine.migrate()

    def enqueue_many(self, specs: Sequence[JobSpec]) -> Op[list[Enqueued]]:
        return self.engine.enqueue_many(specs)

    def claim(self, worker: UUID, wants: Sequence[Want]) -> Op[list[Lease]]:
        return self.engine.claim(worker, wants)

    def beat(self, worker: UUID, held: Sequence[tuple[int, int]] | None) -> Op[Orders]:
        return self.engine.beat(worker, held)

    def report(self, worker: UUID, reports: Sequence[Report]) -> Op[list[bool]]:
        return self.engine.report(worker, reports)

    def settle(self, worker: UUID, settlements: Sequence[Settlement]) -> Op[list[Verdict]]:
        return self.engine.settle(worker, settlements)

    def announce(self, announcement: Announcement) -> Op[None]:
        return self.engine.announce(announcement)

    def leave(self, worker: UUID) -> Op[int]:
        return self.engine.leave(worker)

    def bury(self, worker: UUID, deaths: Sequence[Death]) -> Op[list[Rescued]]:
        return self.engine.bury(worker, deaths)

    def promote(self, limit: int) -> Op[Promoted]:
        return self.engine.promote(limit)

    def sweep(self, order: SweepOrder) -> Op[Swept]:
        return self.engine.sweep(order)

    def switch_notices(self, on: bool) -> Op[bool]:
        return self.engine.switch_notices(on)

    def cancel(self, ids: Sequence[UUID], *, force: bool = False) -> Op[list[State | None]]:
        return self.engine.cancel(ids, force=force)

    def retry(self, ids: Sequence[UUID]) -> Op[list[Enqueued]]:
        return self.engine.retry(ids)

    def deletable(self, wanted: JobFilter, *, after: int = 0) -> Op[list[int]]:
        return self.engine.deletable(wanted, after=after)

    def delete(self, numbers: Sequence[int], states: Collection[State]) -> Op[int]:
        return self.engine.delete(numbers, states)

    def count(self, wanted: JobFilter) -> Op[int]:
        return self.engine.count(wanted)

    def get(self, ids: Sequence[UUID]) -> Op[list[Job | None]]:
        return self.engine.get(ids)

    def find(self, wanted: JobFilter) -> Op[list[Job]]:
        return self.engine.find(wanted)

    def attempts(self, id: UUID) -> Op[list[Attempt]]:
        return self.engine.attempts(id)

    def logs(self, id: UUID) -> Op[list[LoggedLine]]:
        return self.engine.logs(id)

    def stats(self) -> Op[dict[str, Counts]]:
        return self.engine.stats()

    def oldest(self) -> Op[dict[str, Millis]]:
        return self.engine.oldest()

    def configure(self, settings: QueueSettings) -> Op[None]:
        return self.engine.configure(settings)

    def settings(self) -> Op[list[QueueSettings]]:
        return self.engine.settings()

    def workers(self) -> Op[list[WorkerRecord]]:
        return self.engine.workers()

    def time(self) -> Op[Millis]:
        return self.engine.time()

    def schedules(self, names: Sequence[str] | None = None) -> Op[list[Schedule]]:
        return self.engine.schedules(names)

    def due(self, declared: Collection[str], limit: int) -> Op[Due]:
        return self.engine.due(declared, limit)

    def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
        return self.engine.tick(changes)

    def remove_schedules(self, names: Sequence[str]) -> Op[list[bool]]:
        return self.engine.remove_schedules(names)

    def declare(self, names: Collection[str]) -> Op[int]:
        return self.engine.declare(names)

    def history(self, name: str, *, before: Millis | None = None, limit: int = 100) -> Op[list[Entry]]:
        return self.engine.history(name, before=before, limit=limit)
