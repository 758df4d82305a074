"""The engine itself: every operation of the contract, one lock around each, doorbells rung after it."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from threading import Lock
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from shigoto.engine.memory import people, ticking, work
from shigoto.engine.memory.service import MemoryRegistry
from shigoto.engine.memory.store import Store, change, read
from shigoto.engine.op import Op, drive
from shigoto.engine.protocol import Capabilities
from shigoto.model.errors import Unsupported
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
from shigoto.model.schedule import Change, Due, Schedule, TickEntry
from shigoto.model.time import Clock, Millis, host_clock
from shigoto.model.worker import (
    Announcement,
    Death,
    Ending,
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
# Ends that lead neither back to pending nor to a notice, so that nobody needs to look.
FINAL = frozenset({Ending.COMPLETED, Ending.CANCELLED})


class MemoryDoorbell:
    """Rings until it is closed; a ring that nobody waits for is kept for the next wait."""

    def __init__(self, closed: "Callable[[MemoryDoorbell], None]") -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._closed = closed

    async def wait(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True

    def ring(self) -> None:
        """Wake the waiter. Safe from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._rung.set)
        except RuntimeError:
            # The loop is closed, and its waiter with it.
            self.close()

    def close(self) -> None:
        self._closed(self)


class MemoryEngine:
    """Jobs in the memory of one process, for tests, scripts and first steps."""

    def __init__(self, *, clock: Clock = host_clock) -> None:
        self._store = Store(clock)
        self._lock = Lock()
        self._doorbells: set[MemoryDoorbell] = set()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="memory", durable=False, shared=False, joins=False)

    @property
    def registry(self) -> MemoryRegistry:
        return MemoryRegistry(self._store)

    @property
    def address(self) -> NoReturn:
        raise Unsupported("A memory store has no address: it lives in this process only. Use a file.")

    def now(self) -> Millis:
        """Store time."""
        with self._lock:
            return self._store.now()

    def run(self, op: Op[T]) -> T:
        """Run an op in the calling thread; no op takes long, so neither does the wait for the lock."""
        with self._lock:
            value = drive(op.start(), _refuse_command)
            self._store.tell_failures()
            doorbells = tuple(self._doorbells) if op.rings is not None and op.rings(value) else ()
        # Outside the lock: what they call may well want to run the next op.
        for doorbell in doorbells:
            doorbell.ring()
        if op.committed is not None:
            op.committed(value)
        return value

    async def arun(self, op: Op[T]) -> T:
        """Run an op on the loop itself: it is shorter than a hop to another thread."""
        return self.run(op)

    def join(self, connection: object, op: Op[T]) -> T:
        raise Unsupported(
            f"The memory engine cannot join the transaction of a {type(connection).__name__}: its jobs live "
            "in this process, not in your database. Use a sqlite:// store to commit both together, or "
            "enqueue after your commit."
        )

    async def ajoin(self, connection: object, op: Op[T]) -> T:
        return self.join(connection, op)

    def block(self, last: Callable[[], Op[Any]], *, limit: float) -> NoReturn:
        raise Unsupported(
            "The memory engine has no transaction to give to a handler: its jobs live in this process, not in a "
            "database. Use a sqlite:// store, or write your effects so that a second run does no harm."
        )

    def listen(self) -> MemoryDoorbell:
        doorbell = MemoryDoorbell(self._forget_doorbell)
        with self._lock:
            self._doorbells.add(doorbell)
        return doorbell

    def close(self) -> None:
        """Stop ringing. The jobs stay: a later call finds them as they were."""
        with self._lock:
            self._doorbells.clear()

    def migrate(self) -> list[str]:
        return []

    def enqueue_many(self, specs: Sequence[JobSpec]) -> Op[list[Enqueued]]:
        return change(lambda: work.enqueue_many(self._store, specs), rings=_any_new)

    def claim(self, worker: UUID, wants: Sequence[Want]) -> Op[list[Lease]]:
        return change(lambda: work.claim(self._store, worker, wants))

    def beat(self, worker: UUID, held: Sequence[tuple[int, int]] | None) -> Op[Orders]:
        return change(lambda: work.beat(self._store, worker, held), rings=lambda orders: orders.released > 0)

    def report(self, worker: UUID, reports: Sequence[Report]) -> Op[list[bool]]:
        return change(lambda: work.report(self._store, worker, reports))

    def settle(self, worker: UUID, settlements: Sequence[Settlement]) -> Op[list[Verdict]]:
        return change(
            lambda: work.settle(self._store, worker, settlements),
            rings=lambda verdicts: any(map(_back_in_line, settlements, verdicts)),
        )

    def switch_notices(self, on: bool) -> Op[bool]:
        return change(lambda: people.switch_notices(self._store, on))

    def announce(self, announcement: Announcement) -> Op[None]:
        return change(lambda: work.announce(self._store, announcement))

    def leave(self, worker: UUID) -> Op[int]:
        return change(lambda: work.leave(self._store, worker), rings=bool)

    def report_dead(self, worker: UUID, deaths: Sequence[Death]) -> Op[list[Rescued]]:
        return change(lambda: work.report_dead(self._store, worker, deaths), rings=_any_freed)

    def promote(self, limit: int) -> Op[Promoted]:
        return change(lambda: work.promote(self._store, limit), rings=lambda promoted: promoted.count > 0)

    def sweep(self, order: SweepOrder) -> Op[Swept]:
        return change(lambda: work.sweep(self._store, order), rings=_any_work)

    def cancel(self, ids: Sequence[UUID], *, force: bool = False) -> Op[list[State | None]]:
        """T11, T12, T14; it rings so that the worker hears of it before its next beat is due."""
        heard = State.CANCELLED if force else State.PROCESSING
        return change(
            lambda: people.cancel(self._store, ids, force=force), rings=lambda states: heard in states
        )

    def retry(self, ids: Sequence[UUID]) -> Op[list[Enqueued]]:
        return change(lambda: people.retry(self._store, ids), rings=bool)

    def deletable(self, wanted: JobFilter, *, after: int = 0) -> Op[list[int]]:
        return read(lambda: people.deletable(self._store, wanted, after))

    def delete(self, numbers: Sequence[int], states: Collection[State]) -> Op[int]:
        return change(lambda: people.delete(self._store, numbers, states))

    def count(self, wanted: JobFilter) -> Op[int]:
        return read(lambda: people.count(self._store, wanted))

    def get(self, ids: Sequence[UUID]) -> Op[list[Job | None]]:
        return read(lambda: people.get(self._store, ids))

    def find(self, wanted: JobFilter) -> Op[list[Job]]:
        return read(lambda: people.find(self._store, wanted))

    def attempts(self, id: UUID) -> Op[list[Attempt]]:
        return read(lambda: people.attempts(self._store, id))

    def logs(self, id: UUID) -> Op[list[LoggedLine]]:
        return read(lambda: people.logs(self._store, id))

    def stats(self) -> Op[dict[str, Counts]]:
        return read(lambda: people.stats(self._store))

    def oldest(self) -> Op[dict[str, Millis]]:
        return read(lambda: people.oldest(self._store))

    def configure(self, settings: QueueSettings) -> Op[None]:
        return change(lambda: people.configure(self._store, settings), rings=lambda _: not settings.paused)

    def settings(self) -> Op[list[QueueSettings]]:
        return read(lambda: people.settings(self._store))

    def workers(self) -> Op[list[WorkerRecord]]:
        return read(lambda: people.workers(self._store))

    def time(self) -> Op[Millis]:
        return read(self._store.now)

    def schedules(self, names: Sequence[str] | None = None) -> Op[list[Schedule]]:
        return read(lambda: ticking.schedules(self._store, names))

    def due(self, declared: Collection[str], limit: int) -> Op[Due]:
        return read(lambda: ticking.due(self._store, declared, limit))

    def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
        return change(lambda: ticking.tick(self._store, changes), rings=any)

    def remove_schedules(self, names: Sequence[str]) -> Op[list[bool]]:
        return change(lambda: ticking.remove(self._store, names))

    def declare(self, names: Collection[str]) -> Op[int]:
        return change(lambda: ticking.declare(self._store, names))

    def history(self, name: str, *, before: Millis | None = None, limit: int = 100) -> Op[list[TickEntry]]:
        return read(lambda: ticking.history(self._store, name, before, limit))

    def _forget_doorbell(self, doorbell: MemoryDoorbell) -> None:
        with self._lock:
            self._doorbells.discard(doorbell)


def _any_new(enqueued: Sequence[Enqueued]) -> bool:
    # A job for later rings too: it may be due before the instant that promoters are waiting for.
    return any(job.status != "existing" for job in enqueued)


def _back_in_line(settlement: Settlement, verdict: Verdict) -> bool:
    return verdict is Verdict.ACCEPTED and settlement.ending not in FINAL


def _any_freed(rescued: Sequence[Rescued]) -> bool:
    # Also one that has failed: there may be a notice of it.
    return any(job.state in (State.PENDING, State.FAILED) for job in rescued)


def _any_work(swept: Swept) -> bool:
    return bool(swept.fenced or swept.expired or swept.unknown) or _any_freed(swept.rescued)


def _refuse_command(command: object) -> NoReturn:
    raise AssertionError(f"the memory engine runs its own ops only, and those yield no commands: {command!r}")
