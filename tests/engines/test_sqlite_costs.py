"""What one operation asks of SQLite, counted: statements, rows handed to Python, transactions and commits.

Seconds depend on the machine and counts do not, so it is counts that guard the speed of the engine. COSTS is the whole
list. If a number there must change, change it on purpose: every statement, and every row that Python fetches, is a
hand-over of the interpreter lock between the database thread and the event loop, some 5 µs when both are busy; every
commit is a write to the disk, and at `synchronous = full` a wait for it.

Triggers are not counted: they run inside of their statement, without Python.
"""

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from bench.gauge import Gauge
from shigoto import Shigoto, Task
from shigoto.engine.op import Op
from shigoto.engine.sqlite import SqliteEngine, driver, file
from shigoto.model.ids import uuid7, uuids7
from shigoto.model.job import JobSpec, Lease
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.model.worker import Announcement, Ending, Settlement, Verdict, Want
from shigoto.worker import Worker

T = TypeVar("T")

pytestmark = pytest.mark.engine("sqlite")


class Cost(NamedTuple):
    """What was asked of SQLite.

    `statements` are those that Python had SQLite run, without BEGIN and COMMIT; one that runs for many rows counts once
    for each. `rows` are those that Python fetched. `transactions` are those that were begun, for a look or for a write,
    and `commits` those that changed the file; a statement by itself is a commit without a transaction.
    """

    statements: int
    rows: int
    transactions: int
    commits: int


NOTHING = Cost(0, 0, 0, 0)
COSTS = {
    # ENQUEUE. One job is one statement, whose commit is its own; the triggers do the rest.
    "one job": Cost(1, 0, 0, 1),
    # That one in vain, then all that a batch needs.
    "one job, into a lane that is not known yet": Cost(5, 1, 1, 1),
    # Its queues, its lanes, 250 rows at a time, the highest number; and five to count the batch, and what came before.
    "a thousand jobs of one call site": Cost(12, 2, 1, 1),
    "two call sites, one after the other": Cost(16, 2, 1, 1),
    # Only neighbours go in together: this is the worst order, and a statement for each.
    "two call sites in turns": Cost(1008, 2, 1, 1),
    # CLAIM. A look, and the same again with the write lock; then whether this worker lives, portions of leases (the
    # first, of 32, tells how large the next may be, up to 500), and two statements that move them.
    "a claim of nothing": Cost(1, 1, 1, 0),
    "a claim of one": Cost(6, 4, 2, 1),
    "a claim of a hundred": Cost(7, 5, 2, 1),
    "a claim of a thousand": Cost(8, 6, 2, 1),
    "a claim of four thousand": Cost(14, 12, 2, 1),
    "a claim of a thousand, from three lanes": Cost(8, 6, 2, 1),
    # SETTLE. Into history, out of running, and the counter of the queue.
    "a completion": Cost(3, 0, 1, 1),
    "a hundred completions": Cost(3, 0, 1, 1),
    "a thousand completions": Cost(3, 0, 1, 1),
    "a thousand completions with results": Cost(3, 0, 1, 1),
    "a settlement for the second time": Cost(3, 2, 1, 0),
    # What did not complete is read, decided on here, and written back, all of it together: out of running, the
    # attempts, and when and where to wait (retried), or history and the counter (failed).
    "a failure to be retried": Cost(5, 1, 1, 1),
    "a hundred failures to be retried": Cost(5, 1, 1, 1),
    "a failure for good": Cost(5, 1, 1, 1),
    "a hundred failures for good": Cost(5, 1, 1, 1),
    "five failures among a hundred": Cost(8, 1, 1, 1),
    # IDLE. What an idle worker asks with each poll, which writes nothing and takes no lock, and with each beat.
    "a promotion of nothing": Cost(1, 1, 1, 0),
    "a beat with nothing in hand": Cost(4, 1, 1, 1),
    # TICK. Of ten thousand schedules the first is asked for, and no name is compared. If one is due, it is read and the
    # next after it; if the first is another's, that is asked with all names.
    "a look at ten thousand schedules": Cost(1, 1, 1, 0),
    "a look at ten thousand schedules, of which the first is another's": Cost(2, 2, 1, 0),
    "a look that finds one that is due": Cost(3, 3, 1, 0),
    # Lock, has it fired before; the jobs as a batch; entries, schedules.
    "a tick of one": Cost(8, 2, 1, 1),
    "ticks of two hundred": Cost(16, 202, 1, 1),
    "a declaration of ten thousand": Cost(1, 0, 1, 1),
    # TOGETHER. What waits at the database thread shares one transaction, and single jobs go in as a batch would: 64 are
    # 50, 10 and four times one.
    "64 callers at once": Cost(9, 1, 1, 1),
    "a settle and a claim of a thousand": Cost(10, 5, 1, 1),
}

# A worker that drains short jobs claims and settles them by the dozen. How many at a time depends on the machine: about
# a hundred on the event loop and twenty in threads, and more on a slow one, where look-ahead begins. For each job that
# is 0.012 and 0.06 round trips, 0.011 and 0.06 commits, 0.11 and 0.5 statements, 0.07 and 0.25 rows. The bounds leave
# room for batches a quarter of that; a batch of one would be 2 round trips, 2 commits, and 10 statements.
DRAINED = 5_000
MOST = {
    # A beat reads a row for each job that is held, which may be most of them: there is one in such a short drain.
    "loop": {"round trips": 0.05, "commits": 0.05, "statements": 0.5, "rows": 1.5},
    "thread": {"round trips": 0.25, "commits": 0.25, "statements": 2.0, "rows": 1.0},
}

WORKER = uuid7()


class Counted:
    """What the connections of this process were asked."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.statements = self.rows = self.transactions = self.commits = 0

    def __call__(self) -> Cost:
        """All of it so far."""
        return Cost(self.statements, self.rows, self.transactions, self.commits)


class CountingCursor(sqlite3.Cursor):
    """Tells what it is asked."""

    connection: "CountingConnection"

    def execute(self, sql: str, parameters: Any = (), /) -> "CountingCursor":
        self.connection.begins(sql)
        super().execute(sql, parameters)
        self.connection.ended(sql)
        return self

    def executemany(self, sql: str, parameters: Any, /) -> "CountingCursor":
        rows = list(parameters)
        self.connection.begins(sql, times=len(rows))
        super().executemany(sql, rows)
        self.connection.ended(sql)
        return self

    def __next__(self) -> Any:
        row = super().__next__()
        self.connection.counted.rows += 1
        return row

    def fetchone(self) -> Any:
        row = super().fetchone()
        self.connection.counted.rows += row is not None
        return row

    def fetchall(self) -> list[Any]:
        rows = super().fetchall()
        self.connection.counted.rows += len(rows)
        return rows


class CountingConnection(file.OwnConnection):
    """Tells what it is asked. (`set_trace_callback` would tell a statement again for every row of a trigger.)"""

    def __init__(self, counted: Counted, *args: Any, **kwargs: Any) -> None:
        self.counted = counted
        self._changes = 0
        super().__init__(*args, **kwargs)

    def cursor(self, factory: Any = CountingCursor) -> Any:
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> Any:
        return self.cursor().executemany(sql, parameters)

    def begins(self, sql: str, times: int = 1) -> None:
        """A statement is about to run."""
        word = sql.split(maxsplit=1)[0]
        if not self.in_transaction:
            self._changes = self.total_changes
        self.counted.transactions += word == "BEGIN"
        if word not in ("BEGIN", "COMMIT", "ROLLBACK"):
            self.counted.statements += times
            self.counted.texts += [sql] * times

    def ended(self, sql: str) -> None:
        """It has run; if that has ended a transaction that changed something, this was a commit."""
        changed = self.total_changes != self._changes and sql != "ROLLBACK"
        self.counted.commits += changed and not self.in_transaction


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Counts for all connections that are opened from now on."""
    counted = Counted()
    factory: Any = partial(CountingConnection, counted)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=factory))
    monkeypatch.setattr(file, "OwnConnection", factory)
    return counted


@pytest.fixture
def engine(tmp_path: Path, counted: Counted) -> Iterator[SqliteEngine]:
    """A store that knows a worker and the lane of the task `a`, with no job in it."""
    engine = SqliteEngine(tmp_path / "jobs.db", synchronous="normal")
    engine.run(
        engine.announce(
            Announcement(
                id=WORKER, name="w", tasks=("a", "b", "c"), queues=None, slots=1, version="0", lease=3_600_000
            )
        )
    )
    engine.run(engine.enqueue_many(specs(1)))
    engine.run(engine.settle(WORKER, completions(claimed(engine, 1))))
    yield engine
    engine.close()


def specs(count: int, task: str = "a") -> list[JobSpec]:
    return [JobSpec(id=id, task=task, queue="default", payload="{}") for id in uuids7(count)]


def claim(engine: SqliteEngine, limit: int) -> Op[list[Lease]]:
    return engine.claim(WORKER, [Want(tasks=("a", "b", "c"), queues=None, limit=limit)])


def claimed(engine: SqliteEngine, count: int) -> list[Lease]:
    leases = engine.run(claim(engine, count))
    assert len(leases) == count
    return leases


def leased(engine: SqliteEngine, count: int) -> list[Lease]:
    """So many new jobs, in the hands of the worker."""
    engine.run(engine.enqueue_many(specs(count)))
    return claimed(engine, count)


def completions(leases: Sequence[Lease], result: str = "null") -> list[Settlement]:
    return [ended(lease, Ending.COMPLETED, result=result) for lease in leases]


def ended(lease: Lease, ending: Ending, **more: Any) -> Settlement:
    return Settlement(number=lease.number, token=lease.token, queue=lease.queue, ending=ending, **more)


def errors(leases: Sequence[Lease], ending: Ending) -> list[Settlement]:
    return [ended(lease, ending, error="ValueError: no", traceback="…", delay=10_000) for lease in leases]


class Tally:
    """What is asked from now on."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self._before, self._seen = counted(), len(counted.texts)

    def cost(self) -> Cost:
        return Cost(*(now - then for now, then in zip(self._counted(), self._before, strict=True)))

    def expect(self, name: str, *, less: Cost = NOTHING) -> None:
        """Compare it with what stands in COSTS, but for what belongs to the test."""
        cost = Cost(*(all - own for all, own in zip(self.cost(), less, strict=True)))
        assert cost == COSTS[name], _explain(name, cost, self._counted.texts[self._seen :])


def expect(name: str, counted: Counted, action: Callable[[], T]) -> T:
    """Do it, and compare what it asked for with what stands in COSTS."""
    tally = Tally(counted)
    value = action()
    tally.expect(name)
    return value


def _explain(name: str, cost: Cost, texts: list[str]) -> str:
    lines = [f"The cost of {name} has changed."]
    for what, now, then in zip(Cost._fields, cost, COSTS[name], strict=True):
        if now != then:
            lines.append(f"  {what}: {then} expected, {now} counted")
    lines.append(
        "What grew must be worth it: each statement and row is a hand-over of the interpreter lock, each commit a write"
        " to the disk."
        if any(now > then for now, then in zip(cost, COSTS[name], strict=True))
        else "It shrank: write the smaller numbers into COSTS, so that they stay."
    )
    kinds = Counter(" ".join(text.split())[:100] for text in texts)
    return "\n".join([*lines, "What SQLite was asked:", *(f"  {n} × {text}" for text, n in kinds.items())])


class TestEnqueue:
    def test_one_job_is_one_statement_and_its_own_commit(
        self, engine: SqliteEngine, counted: Counted
    ) -> None:
        expect("one job", counted, lambda: engine.run(engine.enqueue_many(specs(1))))

    def test_the_first_job_of_a_task_makes_its_lane(self, engine: SqliteEngine, counted: Counted) -> None:
        new = specs(1, "b")

        expect(
            "one job, into a lane that is not known yet",
            counted,
            lambda: engine.run(engine.enqueue_many(new)),
        )
        expect("one job", counted, lambda: engine.run(engine.enqueue_many(specs(1, "b"))))

    def test_jobs_of_one_call_site_go_in_together(self, engine: SqliteEngine, counted: Counted) -> None:
        stored = expect(
            "a thousand jobs of one call site",
            counted,
            lambda: engine.run(engine.enqueue_many(specs(1000))),
        )

        assert len(stored) == 1000

    def test_call_sites_one_after_the_other_cost_no_more_than_each_alone(
        self, engine: SqliteEngine, counted: Counted
    ) -> None:
        both = specs(1000) + specs(1000, "b")

        expect("two call sites, one after the other", counted, lambda: engine.run(engine.enqueue_many(both)))

    def test_call_sites_in_turns_cost_a_statement_for_each_job(
        self, engine: SqliteEngine, counted: Counted
    ) -> None:
        turns = [spec for pair in zip(specs(500), specs(500, "b"), strict=True) for spec in pair]

        expect("two call sites in turns", counted, lambda: engine.run(engine.enqueue_many(turns)))


class TestClaim:
    def test_with_nothing_ready_it_is_a_look(self, engine: SqliteEngine, counted: Counted) -> None:
        assert expect("a claim of nothing", counted, lambda: engine.run(claim(engine, 1000))) == []

    @pytest.mark.parametrize(
        ("name", "limit"),
        [
            ("a claim of one", 1),
            ("a claim of a hundred", 100),
            ("a claim of a thousand", 1000),
            ("a claim of four thousand", 4000),
        ],
    )
    def test_it_costs_the_same_however_many_are_claimed_but_for_one_more_statement_for_500(
        self, engine: SqliteEngine, counted: Counted, name: str, limit: int
    ) -> None:
        engine.run(engine.enqueue_many(specs(5000)))

        leases = expect(name, counted, lambda: engine.run(claim(engine, limit)))

        assert len(leases) == limit

    def test_several_lanes_are_merged_by_one_statement(self, engine: SqliteEngine, counted: Counted) -> None:
        engine.run(engine.enqueue_many(specs(400) + specs(400, "b") + specs(400, "c")))

        name = "a claim of a thousand, from three lanes"
        leases = expect(name, counted, lambda: engine.run(claim(engine, 1000)))

        assert len(leases) == 1000


class TestSettle:
    @pytest.mark.parametrize(
        ("name", "count", "result"),
        [
            ("a completion", 1, "null"),
            ("a hundred completions", 100, "null"),
            ("a thousand completions", 1000, "null"),
            ("a thousand completions with results", 1000, '{"total": 7}'),
        ],
    )
    def test_completions_cost_the_same_however_many(
        self, engine: SqliteEngine, counted: Counted, name: str, count: int, result: str
    ) -> None:
        settlements = completions(leased(engine, count), result)

        verdicts = expect(name, counted, lambda: engine.run(engine.settle(WORKER, settlements)))

        assert verdicts == [Verdict.ACCEPTED] * count

    def test_a_repetition_writes_nothing(self, engine: SqliteEngine, counted: Counted) -> None:
        settlements = completions(leased(engine, 1))
        engine.run(engine.settle(WORKER, settlements))

        name = "a settlement for the second time"
        verdicts = expect(name, counted, lambda: engine.run(engine.settle(WORKER, settlements)))

        assert verdicts == [Verdict.REPEATED]

    @pytest.mark.parametrize(
        ("name", "count", "ending"),
        [
            ("a failure to be retried", 1, Ending.ERRORED),
            ("a hundred failures to be retried", 100, Ending.ERRORED),
            ("a failure for good", 1, Ending.FAILED),
            ("a hundred failures for good", 100, Ending.FAILED),
        ],
    )
    def test_failures_cost_the_same_however_many(
        self, engine: SqliteEngine, counted: Counted, name: str, count: int, ending: Ending
    ) -> None:
        settlements = errors(leased(engine, count), ending)

        verdicts = expect(name, counted, lambda: engine.run(engine.settle(WORKER, settlements)))

        assert verdicts == [Verdict.ACCEPTED] * count

    def test_failures_among_completions_cost_no_more_than_by_themselves(
        self, engine: SqliteEngine, counted: Counted
    ) -> None:
        leases = leased(engine, 100)
        settlements = completions(leases[:95]) + errors(leases[95:], Ending.ERRORED)

        name = "five failures among a hundred"
        expect(name, counted, lambda: engine.run(engine.settle(WORKER, settlements)))


class TestIdle:
    def test_a_promotion_of_nothing_is_a_look(self, engine: SqliteEngine, counted: Counted) -> None:
        expect("a promotion of nothing", counted, lambda: engine.run(engine.promote(1000)))

    def test_a_beat_costs_a_few_statements_and_a_commit(self, engine: SqliteEngine, counted: Counted) -> None:
        expect("a beat with nothing in hand", counted, lambda: engine.run(engine.beat(WORKER, [])))


def planned(engine: SqliteEngine, count: int, *, origin: str = "", look_at: int = 2**45) -> list[Schedule]:
    """So many schedules, none of which is due unless that is said."""
    names = [f"s{number:05}" for number in range(count)]
    changes = [
        Change(
            schedule=Schedule(
                id=uuid7(),
                name=name,
                definition="{}",
                origin=origin,
                look_at=look_at,
                decided_to=0,
                created_at=0,
            ),
            seen=0,
        )
        for name in names
    ]
    engine.run(engine.tick(changes))
    return engine.run(engine.schedules(names))


def fired(schedule: Schedule, at: int) -> Change:
    [job] = specs(1)
    entry = TickEntry(at=at, outcome=TickOutcome.FIRED, decided_at=at, job=job.id)
    return Change(schedule=schedule, seen=schedule.revision, firings=(Firing(entry=entry, spec=job),))


class TestTick:
    """Ten thousand schedules cost what one costs, as long as they are not due."""

    @pytest.mark.parametrize("origin", ["", "shop:tick"])
    def test_a_look_at_many_of_which_none_is_due(
        self, engine: SqliteEngine, counted: Counted, origin: str
    ) -> None:
        names = [each.name for each in planned(engine, 10_000, origin=origin)]
        mine = names if origin else []

        name = "a look at ten thousand schedules"
        due = expect(name, counted, lambda: engine.run(engine.due(mine, 200)))
        assert due.next_in is not None
        if origin:
            name = "a look at ten thousand schedules, of which the first is another's"
            due = expect(name, counted, lambda: engine.run(engine.due(names[1:], 200)))
            assert due.next_in is not None
        expect("a declaration of ten thousand", counted, lambda: engine.run(engine.declare(names)))

    def test_a_look_that_finds_something(self, engine: SqliteEngine, counted: Counted) -> None:
        [schedule] = planned(engine, 1, look_at=1)

        due = expect("a look that finds one that is due", counted, lambda: engine.run(engine.due([], 200)))

        assert [each.schedule for each in due.schedules] == [schedule]

    @pytest.mark.parametrize(("name", "count"), [("a tick of one", 1), ("ticks of two hundred", 200)])
    def test_ticks_cost_the_same_however_many(
        self, engine: SqliteEngine, counted: Counted, name: str, count: int
    ) -> None:
        changes = [fired(each, engine.now()) for each in planned(engine, count)]

        assert expect(name, counted, lambda: engine.run(engine.tick(changes))) == changes


class Trips:
    """Counts what event loops hand to database threads, and how often a thread hands answers back."""

    def __init__(self) -> None:
        self.ops = self.groups = 0
        self._awaited = 0
        self._reached = asyncio.Event()

    def submitted(self) -> None:
        """An op is on its way."""
        self.ops += 1
        if self.ops == self._awaited:
            self._reached.set()

    async def more(self, ops: int) -> None:
        """Wait for so many more ops."""
        self._awaited = self.ops + ops
        self._reached.clear()
        await asyncio.wait_for(self._reached.wait(), 60)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    """Counts for all engines of this process."""
    trips = Trips()
    submit, hand_over = driver.DatabaseThread.submit, driver.__dict__["_hand_over"]

    def counting_submit(self: driver.DatabaseThread, op: Op[Any]) -> "asyncio.Future[Any]":
        trips.submitted()
        return submit(self, op)

    def counting_hand_over(group: list[Any], outcomes: list[Any]) -> None:
        trips.groups += 1
        hand_over(group, outcomes)

    monkeypatch.setattr(driver.DatabaseThread, "submit", counting_submit)
    monkeypatch.setattr(driver, "_hand_over", counting_hand_over)
    return trips


class Busy:
    """Keeps the database thread of an engine at work, so that what arrives meanwhile is the next group."""

    def __init__(self) -> None:
        self._begun, self._free = threading.Event(), threading.Event()

    def _wait(self) -> Generator[Any, Any, None]:
        self._begun.set()
        assert self._free.wait(30)
        yield from ()

    async def meanwhile(self, engine: SqliteEngine, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Start these while the thread is busy, then let it go on."""
        busy = asyncio.ensure_future(engine.arun(Op(start=self._wait)))
        await asyncio.to_thread(self._begun.wait, 30)
        waiting = [asyncio.ensure_future(one) for one in work]
        await asyncio.sleep(0)  # each runs up to where it has handed its op over
        self._free.set()
        await busy
        return await asyncio.gather(*waiting)


async def expect_meanwhile(
    name: str, counted: Counted, engine: SqliteEngine, work: Sequence[Coroutine[Any, Any, T]]
) -> list[T]:
    """Run these together, and compare what they asked for with what stands in COSTS."""
    await engine.arun(engine.promote(1))  # the thread is there, and its connection open
    tally = Tally(counted)
    values = await Busy().meanwhile(engine, work)
    tally.expect(name, less=Cost(0, 0, 1, 0))  # the transaction of what kept it busy
    return values


class TestTogether:
    async def test_callers_who_wait_at_the_same_time_share_one_commit(
        self, engine: SqliteEngine, counted: Counted, trips: Trips
    ) -> None:
        calls = [engine.arun(engine.enqueue_many(specs(1))) for _ in range(64)]

        await expect_meanwhile("64 callers at once", counted, engine, calls)

        assert (trips.ops, trips.groups) == (66, 3), (
            "one to begin with, one to keep the thread busy, and all 64 in one trip"
        )

    async def test_a_settle_and_the_next_claim_share_one_commit(
        self, engine: SqliteEngine, counted: Counted, trips: Trips
    ) -> None:
        settlements = completions(leased(engine, 1000))
        engine.run(engine.enqueue_many(specs(1000)))
        both: list[Coroutine[Any, Any, list[Any]]] = [
            engine.arun(engine.settle(WORKER, settlements)),
            engine.arun(claim(engine, 1000)),
        ]

        verdicts, leases = await expect_meanwhile("a settle and a claim of a thousand", counted, engine, both)

        assert (len(verdicts), len(leases)) == (1000, 1000)
        assert (trips.ops, trips.groups) == (4, 3)


def test_a_sync_caller_never_waits_for_another_thread(engine: SqliteEngine, trips: Trips) -> None:
    engine.run(engine.enqueue_many(specs(1)))
    engine.run(engine.enqueue_many(specs(1000)))

    assert trips.ops == 0


def test_what_is_called_a_commit_here_is_one(engine: SqliteEngine, counted: Counted) -> None:
    """The file has a counter of its own."""
    with Gauge(engine.path) as gauge:
        written, before = gauge.read(), counted().commits

        engine.run(engine.enqueue_many(specs(1)))
        engine.run(engine.enqueue_many(specs(100)))
        settlements = completions(claimed(engine, 50))
        engine.run(engine.settle(WORKER, settlements))
        engine.run(engine.settle(WORKER, settlements))

        assert gauge.read() - written == counted().commits - before == 4


@pytest.mark.parametrize("kind", ["loop", "thread"])
async def test_a_worker_claims_and_settles_by_the_dozen(
    tmp_path: Path, counted: Counted, trips: Trips, kind: str
) -> None:
    app = Shigoto(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal")
    task = declare(app, kind)
    await app.aenqueue_many(task.call() for _ in range(DRAINED))
    tally, groups = Tally(counted), trips.groups

    await Worker(app, drain=True).run()

    cost = tally.cost()
    assert (await app.astats())["default"].completed == DRAINED
    app.close()
    found = {
        "round trips": trips.groups - groups,
        "commits": cost.commits,
        "statements": cost.statements,
        "rows": cost.rows,
    }
    for what, most in MOST[kind].items():
        each = found[what] / DRAINED
        assert each <= most, f"{each:.3f} {what} for each job, at most {most} expected: are batches gone?"


def declare(app: Shigoto, kind: str) -> Task[[], Any]:
    if kind == "thread":

        @app.task
        def noop() -> None: ...

        return noop

    @app.task
    async def anoop() -> None: ...

    return anoop


async def test_an_idle_worker_asks_one_statement_at_a_time_and_writes_nothing(
    tmp_path: Path, counted: Counted, trips: Trips
) -> None:
    """Beats and sweeps, which do write, are minutes apart here."""
    app = Shigoto(f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal")
    declare(app, "loop")
    async with Worker(app, poll=0.010, lease=3_600, sweeps=False):
        await trips.more(20)
        tally, ops = Tally(counted), trips.ops
        await trips.more(40)
        cost, asked = tally.cost(), trips.ops - ops
    app.close()

    assert cost.commits == 0
    assert cost.statements <= asked + 2, "an op may have been on its way when the counting began"
    assert cost.rows <= asked + 2
