"""The store of a test: an engine in memory or in a file, on a clock that moves only when it is told to.

    drain    an enqueue stores its job, and nothing more
    inline   whatever an operation makes ready is claimed with its commit, and has run when the operation returns

What is committed and what is claimed for it is one step, so that two threads never take each other's jobs. The engine
is one in memory, which stands in for a database, or one in a file, for handlers and code with transactions of their
own, which are real there.

In memory, a job enqueued on a connection of the caller's own is stored at once, whether the caller commits or not. The
connection must be one that the app's own store would take, of sqlite3 or of a driver for PostgreSQL: any other it would
refuse, and so does this one. A run is never completed by a transaction: whether that was committed is nothing that a
store in memory could know.

`Ticks` fires schedules. What is decided and stored is in `schedule/fire.py`; here is only who asks, and that nobody
else does: so a change is always heard.
"""

import os
from asyncio import CancelledError
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard, TypeVar
from uuid import UUID

from msgspec import structs

from shigoto.app import Shigoto
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op, Steps, extended
from shigoto.engine.open import open_engine
from shigoto.engine.protocol import Engine, Relay
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.errors import DeclarationError, OptionInvalid, ResultTimeout, StoreRefused, Unsupported
from shigoto.model.ids import uuid7
from shigoto.model.job import Enqueued, Job, JobFilter, JobSpec, Lease, State
from shigoto.model.schedule import Change, Due, DueSchedule
from shigoto.model.text import shown
from shigoto.model.time import Millis, host_clock
from shigoto.model.worker import Promoted, Report, Settlement, SweepOrder, Verdict
from shigoto.schedule.decide import after_failure
from shigoto.schedule.declare import Declared, declare_op
from shigoto.schedule.fire import AT_ONCE, due_op, looked_at
from shigoto.schedule.recurrence import ZoneMissing

if TYPE_CHECKING:
    from shigoto.testing.worker import ManualWorker

T = TypeVar("T")

EVERYTHING = 2**62
BATCH = 1_000
OVER = "This job lives in an app.test() whose block is over."
# 2026-01-01T00:00:00Z: a fixed instant, so that a failure looks the same on every day of the year.
START: Millis = 1_767_225_600_000


class VirtualClock:
    """Store time under the control of a test; hand it to an engine as its `clock`."""

    def __init__(self, now: Millis = START) -> None:
        self.now = now

    def __call__(self) -> Millis:
        return self.now

    def advance(self, by: Millis) -> None:
        """Move on by so many milliseconds; a negative number sets the clock back."""
        self.now += by


class ProcessDied(BaseException):
    """The process of a run has died, right after a checkpoint; no handler should be able to catch that."""


class OwnStore(Relay):
    """The jobs of one test. `asked` has each job as it was when it was enqueued; `ours` are the workers of the test,
    and `crashing` those of them that die at their next checkpoint.

    Its worker uses `engine` itself: what comes by way of this one comes from the test, from the code under test or
    from handlers.
    """

    job_runner: "ManualWorker"

    def __init__(self, engine: Engine, clock: VirtualClock, *, follows_host: bool) -> None:
        super().__init__(engine)
        self.clock = clock
        self._follows_host = follows_host
        self._moved: Millis = 0
        self._gate = Lock()
        self._noted: dict[UUID, Job] = {}
        self.asked: dict[UUID, Job] = {}
        self.ours: set[UUID] = set()
        self.crashing: set[UUID] = set()
        self.is_open = False

    @property
    def url(self) -> str:
        """The address of the app's store, for as long as it is this one."""
        return f"{self.capabilities.name}:"

    def now(self) -> Millis:
        """Store time."""
        return self.clock.now

    def begin(self) -> None:
        """The block is entered."""
        self.is_open = True

    def end(self) -> None:
        """The block is over; what was enqueued in it can still be asked for."""
        try:
            self.everything()
        finally:
            self.is_open = False
            self.engine.close()

    def run(self, op: Op[T]) -> T:
        """Run an op in the calling thread, and then what it has made ready, if jobs run inline."""
        value, leases = self._commit(op)
        if leases:
            self.job_runner.run_ready(leases)
        return value

    async def arun(self, op: Op[T]) -> T:
        """Run an op, and then what it has made ready, if jobs run inline, on the running event loop."""
        value, leases = self._commit(op)
        if leases:
            await self.job_runner.arun_ready(leases)
        return value

    def between_commits(self, claim: Callable[[], list[Lease]]) -> list[Lease]:
        """Claim, but nothing of which another thread has committed just now and is about to claim it."""
        with self._gate:
            return claim()

    def quietly(self, op: Op[T]) -> T:
        """Run an op and nothing else."""
        return self.engine.run(op)

    def join(self, connection: object, op: Op[T]) -> T:
        """Run an op in the caller's transaction. Nobody tells us of its commit, so nothing runs inline for it."""
        self._expect_open(op)
        return self.engine.join(connection, op)

    async def ajoin(self, connection: object, op: Op[T]) -> T:
        """The same as `join`, where the connection has a thread of its own without blocking the event loop."""
        self._expect_open(op)
        return await self.engine.ajoin(connection, op)

    def enqueue_many(self, specs: Sequence[JobSpec]) -> Op[list[Enqueued]]:
        """T1, T17; and note what was asked for."""
        op, read = self.engine.enqueue_many(specs), self.engine.get

        def steps() -> Steps[list[Enqueued]]:
            if any(spec.run_at is not None or spec.expires_at is not None for spec in specs):
                self._catch_up()
            answers = yield from op.start()
            new = [answer.id for answer in answers if answer.status != "existing"]
            jobs = yield from read(new).start()
            self.asked.update((job.id, job) for job in jobs if job is not None)
            return answers

        def committed(answers: list[Enqueued]) -> None:
            if op.committed is not None:
                op.committed(answers)
            self._noted.update(
                (answer.id, self.asked[answer.id]) for answer in answers if answer.id in self.asked
            )

        return structs.replace(extended(op, steps), committed=committed)

    def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
        """Fire; and note what was asked for."""
        op = self.engine.tick(changes)
        specs = [firing.spec for change in changes for firing in change.firings]
        ids = [spec.id for spec in specs if spec is not None]

        def steps() -> Steps[list[Change | None]]:
            done = yield from op.start()
            jobs = yield from self.engine.get(ids).start()
            for job in jobs:
                if job is not None:
                    self.asked.setdefault(job.id, job)
            return done

        return structs.replace(op, start=steps)

    def report(self, worker: UUID, reports: Sequence[Report]) -> Op[list[bool]]:
        """T3; a worker that is to die at a checkpoint does so when that is committed."""
        op = self.engine.report(worker, reports)
        fatal = worker in self.crashing and any(report.checkpoint is not None for report in reports)
        return structs.replace(op, committed=partial(self._die, worker)) if fatal else op

    def cancel(self, ids: Sequence[UUID], *, force: bool = False) -> Op[list[State | None]]:
        """T11, T12, T14; and note what has ended by it."""
        op = self.engine.cancel(ids, force=force)

        def steps() -> Steps[list[State | None]]:
            states = yield from op.start()
            yield from self._noting(self.engine.get(ids))
            return states

        return structs.replace(op, start=steps)

    def delete(self, numbers: Sequence[int], states: Collection[State]) -> Op[int]:
        """Delete jobs; the test still knows of them."""
        op = self.engine.delete(numbers, states)

        def steps() -> Steps[int]:
            yield from self._noting(self.engine.find(JobFilter(limit=EVERYTHING)))
            return (yield from op.start())

        return structs.replace(op, start=steps)

    def settled(self, worker: UUID, settlement: Settlement, job_id: UUID) -> tuple[Verdict, Job | None]:
        """Tell how a run ended; gives what the store makes of it, and the job as it is then."""
        [verdict] = self.quietly(self.engine.settle(worker, [settlement]))
        return verdict, self.read(job_id)

    def read(self, job_id: UUID) -> Job | None:
        """A job as it is now, which is noted."""
        [job] = self.quietly(self.engine.get([job_id]))
        if job is not None:
            self._noted[job.id] = job
        return job

    def expect_end(self, job_id: UUID) -> None:
        """Let the job get on. Raises ResultTimeout if nobody will run it while somebody waits for it."""
        if leases := self._awaited(job_id):
            self.job_runner.run_ready(leases)

    async def aexpect_end(self, job_id: UUID) -> None:
        """The same on the running event loop."""
        if leases := self._awaited(job_id):
            await self.job_runner.arun_ready(leases)

    def everything(self) -> list[Job]:
        """Every job that was enqueued, in order; of those that are gone from the store, what was last seen of them."""
        if self.is_open:
            jobs = self.quietly(self.engine.find(JobFilter(limit=EVERYTHING)))
            self._noted.update((job.id, job) for job in jobs)
        return sorted(self._noted.values(), key=lambda job: job.number)

    def move(self, to: Millis) -> None:
        """Set the clock forward."""
        self._moved += max(0, to - self.clock.now)
        self.clock.now = max(self.clock.now, to)

    def promote_due(self) -> Millis | None:
        """Make everything ready that is due, and tell in how many milliseconds the next job will be."""
        promoted = Promoted(BATCH, None)
        while promoted.count == BATCH:
            promoted = self.quietly(self.engine.promote(BATCH))
        return promoted.next_in

    def tidy(self, order: SweepOrder) -> None:
        """Promote what is due, then fence, expire and prune, as any worker does every few seconds."""
        self.promote_due()
        order = structs.replace(order, longest_gap=EVERYTHING)  # a worker would have swept all the while
        more = True
        while more:
            swept = self.quietly(self.engine.sweep(order))
            if swept.rescued or swept.expired or swept.unknown:
                self.everything()  # they have ended without a run, and a later sweep may prune them
            more = swept.more

    def _commit(self, op: Op[T]) -> tuple[T, list[Lease]]:
        self._expect_open(op)
        with self._gate:
            value = self.engine.run(op)
            if op.rings is None or not op.rings(value):
                return value, []
            self.job_runner.obey()
            return value, self.job_runner.claim_ready()

    def _expect_open(self, op: Op[Any]) -> None:
        if not self.is_open and (op.mode != "read" or self.capabilities.durable):
            raise DeclarationError(f"{OVER} Do it inside of the block.")

    def _awaited(self, job_id: UUID) -> list[Lease]:
        job = self.read(job_id) if self.is_open else self._noted.get(job_id)
        if job is None or job.state.terminal:
            return []
        if not self.is_open:
            raise ResultTimeout(f"{OVER} Job #{job.number} ({job.task}) was {job.state} at its end.")
        return self.job_runner.awaited(job)

    def _noting(self, op: Op[Any]) -> Steps[None]:
        jobs: list[Job | None] = yield from op.start()
        self._noted.update((job.id, job) for job in jobs if job is not None)

    def _catch_up(self) -> None:
        """Whoever names an instant has looked at the host's clock, which does not stand still."""
        if self._follows_host:
            self.clock.now = max(self.clock.now, host_clock() + self._moved)

    def _die(self, worker: UUID, _: object) -> NoReturn:
        self.crashing.discard(worker)
        raise ProcessDied


POSTGRES = ("postgresql:", "postgres:")
REMEDY = "Give the test a file: app.test(store=tmp_path / 'jobs.db')."


class StoreInMemory(OwnStore):
    """Jobs in memory, for one test; `url` is the address of the store that it stands in for."""

    def __init__(self, url: str, now: Millis | None) -> None:
        clock = VirtualClock(host_clock() if now is None else now)
        super().__init__(MemoryEngine(clock=clock), clock, follows_host=now is None)
        self._in_place_of = url

    def join(self, connection: object, op: Op[T]) -> T:
        """Run an op as if the caller's transaction had been committed at once: nobody tells us when it is."""
        self._expect_open(op)
        if self._in_place_of.startswith("memory:"):
            return self.engine.join(connection, op)
        if self._in_place_of.startswith(POSTGRES):
            from shigoto.engine.postgres.joining import adapter_of

            adapter_of(connection)
        else:
            _expect_of_sqlite(connection)
        return self._stored(op)

    async def ajoin(self, connection: object, op: Op[T]) -> T:
        """The same as `join`, also for connections whose statements are awaited."""
        if not self._in_place_of.startswith(POSTGRES):
            return self.join(connection, op)
        from shigoto.engine.postgres.joining import async_adapter_of

        self._expect_open(op)
        await async_adapter_of(connection)
        return self._stored(op)

    def _stored(self, op: Op[T]) -> T:
        return self.engine.run(structs.replace(op, rings=None))

    def block(self, last: Callable[[], Op[Any]], *, limit: float) -> NoReturn:
        """Refuse: there is no database here."""
        raise Unsupported(f"Jobs live in memory here, so ctx.transaction() has no database to give. {REMEDY}")

    def connect(self) -> NoReturn:
        """Refuse: there is no database here."""
        raise Unsupported(
            f"Jobs live in memory here, so app.connect() has no database to connect to. {REMEDY}"
        )

    def settle(self, worker: UUID, settlements: Sequence[Settlement]) -> Op[list[Verdict]]:
        """Refuse the completion of a job in a transaction of its handler's; our worker settles at the engine."""
        return Op(start=_refusing) if worker in self.ours else self.engine.settle(worker, settlements)


def _refusing() -> Steps[NoReturn]:
    yield from ()
    raise Unsupported(
        "Jobs live in memory here, so ctx.transaction(connection) cannot complete the job together with what you"
        f" commit. {REMEDY}"
    )


def _expect_of_sqlite(connection: object) -> None:
    """Refuse what the app's own store would refuse, so that a test with a fake does not pass in its place."""
    import sqlite3

    from shigoto.engine.sqlite.driver import unwrapped

    if not isinstance(unwrapped(connection), sqlite3.Connection):
        raise StoreRefused(
            f"connection= got a {type(connection).__name__}; the app's own store would take a sqlite3.Connection, or"
            " something of SQLAlchemy's or Django's that has one, and nothing else."
        )


class StoreInFile(OwnStore):
    """Jobs in a file, for one test. Other tables may be there, other jobs not: they would be taken for the test's."""

    def __init__(self, app: Shigoto, store: object, now: Millis | None) -> None:
        path = _checked_path("store", store)
        if path in _own_path(app.url):
            raise OptionInvalid(
                f"store= names {path}, the app's own store, whose jobs are not the test's. Name another file."
            )
        clock = VirtualClock(host_clock() if now is None else now)
        # Not "full": nobody minds whether the jobs of a test survive a power cut.
        self._sqlite = SqliteEngine(path, synchronous="normal", clock=clock)
        super().__init__(self._sqlite, clock, follows_host=now is None)

    def begin(self) -> None:
        """Create the store, or see that no jobs are in it; and be no earlier than anybody who was there before."""
        if self.quietly(self.engine.find(JobFilter(limit=1))):
            raise DeclarationError(
                f"{self._sqlite.path} has jobs in it already, which this test has not enqueued. Give each test a file"
                " of its own: app.test(store=tmp_path / 'jobs.db')."
            )
        self.clock.now = self._sqlite.now()
        super().begin()

    @property
    def url(self) -> str:
        """The address of the app's store, for as long as it is this one."""
        return self.address

    def connect(self) -> Any:
        """A connection for the user's own statements."""
        return self._sqlite.connect()


def _checked_path(option: str, store: object) -> Path:
    if not _is_path(store):
        raise OptionInvalid(
            f"{option} takes the path of a file, such as tmp_path / 'jobs.db', not {shown(store)}."
        )
    engine = open_engine(os.fspath(store))
    if not isinstance(engine, SqliteEngine):
        raise OptionInvalid(
            f"{option} takes the path of a file, not {shown(store)}; without it jobs live in memory."
        )
    return engine.path


def _is_path(store: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(store, str | os.PathLike)


def _own_path(url: str) -> tuple[Path, ...]:
    try:
        engine = open_engine(url)
    except StoreRefused:  # an engine that was made by hand has no address that could be opened again
        return ()
    return (engine.path,) if isinstance(engine, SqliteEngine) else ()


class Ticks:
    """Fires the schedules of the app, and those that were added in the test. `errors` has what their code has raised,
    since it was last asked for."""

    def __init__(self, app: Shigoto, store: OwnStore, *, on: bool) -> None:
        self._app = app
        self._store = store
        self._on = on
        self._declared: dict[str, Declared] = {}
        self._errors: list[BaseException] = []
        self._left_alone: set[str] = set()  # schedules that are due, but whose time zone is not known here

    def begin(self) -> None:
        """Declare what the code declares so far, as a worker does that starts."""
        if self._on:
            self._declare(self._app.declared)

    def fire(self) -> int:
        """Fire what is due now, in as many looks as it takes, and tell how many these were; the clock does not move."""
        if not self._on:
            return 0
        self._app.load()
        self._declare(self._app.declared)
        left_alone, fired = set[str](), 0
        while True:
            due = self._due(AT_ONCE + len(left_alone))
            some = [each for each in due.schedules if each.schedule.name not in left_alone]
            if not some:
                self._left_alone = left_alone
                return fired
            left_alone |= {each.schedule.name for each in some if not self._change(each, due.now)}
            fired += len(some)

    def _due(self, limit: int) -> Due:
        return self._store.quietly(due_op(self._store.engine, list(self._declared), limit))

    def next_in(self) -> Millis | None:
        """In how many milliseconds something is due; None if never."""
        if not self._on:
            return None
        due = self._due(len(self._left_alone))
        return due.next_in if {each.schedule.name for each in due.schedules} <= self._left_alone else 0

    def taken_errors(self) -> list[BaseException]:
        """What the code of schedules has raised; the next one who asks hears of later ones only."""
        errors, self._errors = self._errors, []
        return errors

    def _declare(self, declared: Mapping[str, Declared]) -> None:
        engine = self._store.engine
        if self._declared != declared:
            self._store.quietly(declare_op(engine, declared, uuid7))
            self._declared = dict(declared)
        elif declared:
            self._store.quietly(engine.declare(list(declared)))

    def _change(self, due: DueSchedule, now: Millis) -> bool:
        """As in a worker; but what ends a test (an interrupt, `pytest.fail`) does so. False if it is left alone."""
        try:
            self._commit(looked_at(due, self._declared, now))
        except ZoneMissing as error:
            if due.schedule.name not in self._left_alone:
                self._errors.append(error)
            return False
        except (Exception, SystemExit, CancelledError) as error:
            self._errors.append(error)
            self._commit(after_failure(due.schedule, error, now))
        return True

    def _commit(self, change: Change) -> None:
        self._store.quietly(self._store.tick([change]))
