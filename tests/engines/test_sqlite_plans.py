"""The hot statements of the SQLite engine look only at what they need, however much history and future there is.

Cost is counted in steps of SQLite's virtual machine, not in seconds: the same store gives the same number anywhere.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shigoto.bulk import BATCH, BulkPlan, clear_plan
from shigoto.engine.op import Op, drive
from shigoto.engine.sql import looking
from shigoto.engine.sql.commands import SqlText, StateTable
from shigoto.engine.sqlite import SqliteEngine, claiming, file
from shigoto.engine.sqlite.dialect import SQL, STATE_TABLES, execute
from shigoto.engine.sqlite.enqueueing import insertion
from shigoto.filters import Filters
from shigoto.model.ids import uuid7
from shigoto.model.job import FailureKind, JobFilter, JobSpec, Lease, State
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.model.service import FeedPosition as FeedPlace
from shigoto.model.worker import Announcement, Ending, Settlement, SweepOrder, Want

MANY = 1_000_000
WORKER = uuid7()

# A million finished jobs and a million that are due tomorrow at the best priority. Their ids come in order, as those of
# real jobs do. And ten thousand schedules with a hundred entries each, half of them declared in code.
FILL = """
PRAGMA synchronous = off;
DELETE FROM shigoto_done;
DELETE FROM shigoto_job;
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {many} * 2)
INSERT INTO shigoto_job (number, id, lane, payload, priority, run_at, created_at, max_failures, tenant)
SELECT i, CAST(printf('%016d', i) AS BLOB), 1, '{{}}',
  iif(i > {many}, 32767, 0), iif(i > {many}, 4102444800000, 0), 0, 6, '' FROM n;
INSERT INTO shigoto_done
  (number, state, token, settled_token, failures, crashes, releases, snoozes, finished_at, result)
SELECT number, iif(number % 1000 = 0, 4, 3), 1, 1, 0, 0, 0, 0, 4102444800000, 'null'
FROM shigoto_job WHERE number <= {many};
INSERT INTO shigoto_scheduled (run_at, number, lane) SELECT run_at, number, lane FROM shigoto_job WHERE number > {many};
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {many} / 100)
INSERT INTO shigoto_schedule (name, id, revision, definition, origin, paused_at, failed, held, look_at, decided_to,
  errors, counts, created_at, declared_at)
SELECT printf('s%06d', i), printf('%032x', i), 1, '{{}}', iif(i % 2, '', 'shop:tick'), NULL, 0, 0, 4102444800000 + i, 0,
  0, '{{}}', 0, 0 FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
INSERT INTO shigoto_tick (schedule, at, outcome, decided_at, count)
SELECT s.id, n.i, 'fired', n.i, 1 FROM shigoto_schedule s CROSS JOIN n;
COMMIT;
"""


def fresh(path: Path) -> SqliteEngine:
    engine = SqliteEngine(path, synchronous="normal")
    engine.run(engine.announce(announcement(WORKER)))
    engine.run(engine.enqueue_many([spec("warm")]))  # lane 1
    lease = engine.run(engine.claim(WORKER, [Want(tasks=("warm",), queues=None, limit=1)]))[0]
    engine.run(engine.settle(WORKER, [completed(lease)]))
    return engine


def fill(path: Path) -> None:
    """Store the jobs. The triggers that would find each its place take most of the time, and are away meanwhile."""
    with closing(sqlite3.connect(path)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.executescript(FILL.format(many=MANY))
        for _, definition in triggers:
            connection.execute(definition)


def announcement(worker: UUID) -> Announcement:
    return Announcement(
        id=worker, name="w", tasks=("warm",), queues=None, slots=1, version="0", lease=3_600_000
    )


def spec(task: str, *, queue: str = "default") -> JobSpec:
    return JobSpec(id=uuid7(), task=task, queue=queue, payload="{}")


def completed(lease: Lease) -> Settlement:
    return Settlement(
        number=lease.number, token=lease.token, queue=lease.queue, ending=Ending.COMPLETED, result="null"
    )


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteEngine]:
    engine = fresh(tmp_path_factory.mktemp("empty") / "jobs.db")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteEngine]:
    path = tmp_path_factory.mktemp("full") / "jobs.db"
    engine = fresh(path)
    fill(path)
    engine.run(engine.registry.watch())
    engine.run(engine.enqueue_many([spec("warm")]))
    yield engine
    engine.close()


def steps_of(engine: SqliteEngine, op: Op[Any]) -> int:
    """How many virtual machine steps an op takes, to the nearest hundred; nothing is committed."""
    connection = file.connect(engine.path, synchronous="normal")
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.set_progress_handler(count, 100)
    try:
        connection.execute("BEGIN IMMEDIATE")
        drive(op.start(), lambda command: execute(connection, command))
    finally:
        connection.close()
    return steps * 100


def costs_of_writes(engine: SqliteEngine, plan: BulkPlan[Any]) -> list[int]:
    """How many virtual machine steps each write of a plan takes; nothing is committed."""
    connection = file.connect(engine.path, synchronous="normal")
    costs: list[int] = []

    def count() -> int:
        costs[-1] += 100
        return 0

    try:
        connection.execute("BEGIN IMMEDIATE")
        op = next(plan)
        while True:
            costs.append(0)
            connection.set_progress_handler(None if op.mode == "read" else count, 100)
            op = plan.send(drive(op.start(), lambda command: execute(connection, command)))
    except StopIteration:
        return costs
    finally:
        connection.close()


def numbers_of(place: StateTable, wanted: JobFilter, order: looking.Order, after: int = 0) -> SqlText:
    dialect = SqliteEngine("unused.db")._dialect
    return looking.numbers_of(dialect, place, wanted, order, 100, after)


def plan_of(engine: SqliteEngine, statement: SqlText) -> list[str]:
    connection = file.connect(engine.path, synchronous="normal")
    rows = connection.execute("EXPLAIN QUERY PLAN " + statement.text, statement.values).fetchall()
    connection.close()
    return [row[3] for row in rows]


def ready(engine: SqliteEngine, count: int) -> None:
    engine.run(engine.enqueue_many([spec("warm") for _ in range(count)]))


def crowd(connection: sqlite3.Connection, *, lane: int, task: str, alone: int, pos: int = 0) -> None:
    """A hundred thousand jobs of the best priority in a lane of their own."""
    connection.execute(
        "INSERT INTO shigoto_lane (lane, queue, task, alone) VALUES (?, 'default', ?, ?)", (lane, task, alone)
    )
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)"
        " INSERT INTO shigoto_ready (lane, priority, pos, number) SELECT ?, -100, ?, -i FROM n",
        (lane, pos),
    )


@pytest.mark.engine("sqlite")
@pytest.mark.timeout(300)
class TestWithAMillionFinishedAndAMillionScheduled:
    """Both stores hold the same ready jobs; only one of them has a past and a future."""

    def test_a_claim_costs_the_same(self, empty: SqliteEngine, full: SqliteEngine) -> None:
        """S0-16: the next jobs are found through the index, not by a scan."""
        ready(empty, 100)
        ready(full, 100)
        want = [Want(tasks=("warm",), queues=None, limit=50)]

        assert steps_of(full, full.claim(WORKER, want)) <= 1.1 * steps_of(empty, empty.claim(WORKER, want))

    def test_a_settle_costs_the_same(self, empty: SqliteEngine, full: SqliteEngine) -> None:
        costs: list[int] = []
        for engine in (empty, full):
            ready(engine, 50)
            leases = engine.run(engine.claim(WORKER, [Want(tasks=("warm",), queues=None, limit=50)]))
            costs.append(steps_of(engine, engine.settle(WORKER, [completed(lease) for lease in leases])))
            engine.run(engine.settle(WORKER, [completed(lease) for lease in leases]))

        assert costs[1] <= 1.1 * costs[0]

    def test_enqueue_promote_and_beat_cost_the_same(self, empty: SqliteEngine, full: SqliteEngine) -> None:
        makers: tuple[Callable[[SqliteEngine], Op[Any]], ...] = (
            lambda engine: engine.enqueue_many([spec("warm") for _ in range(50)]),
            lambda engine: engine.promote(1000),
            lambda engine: engine.beat(WORKER, []),
        )
        for make in makers:
            assert steps_of(full, make(full)) <= 1.1 * steps_of(empty, make(empty)) + 100

    def test_a_look_at_schedules_and_a_tick_cost_the_same(
        self, empty: SqliteEngine, full: SqliteEngine
    ) -> None:
        """Ten thousand schedules, a million entries in their histories, a million jobs."""
        first = Schedule(
            id=UUID(int=1), name="s000001", definition="{}", look_at=2**45, decided_to=0, created_at=0
        )
        empty.run(empty.tick([Change(schedule=first, seen=0)]))
        now = empty.now()
        fired = TickEntry(at=now, outcome=TickOutcome.FIRED, decided_at=now)
        declared = [f"s{number:06}" for number in range(1, 6)]
        makers: tuple[Callable[[SqliteEngine], Op[Any]], ...] = (
            lambda engine: engine.due([], 200),
            lambda engine: engine.due(declared, 200),
            lambda engine: engine.tick(
                [Change(schedule=first, seen=1, firings=(Firing(entry=fired, spec=spec("warm")),))]
            ),
            lambda engine: engine.declare(["s000001"]),
            lambda engine: engine.remove_schedules(["s000001"]),
        )
        for make in makers:
            assert steps_of(full, make(full)) <= 1.1 * steps_of(empty, make(empty)) + 1_500
        assert steps_of(full, full.due([], 200)) <= 300

    def test_the_feed_costs_what_it_tells(self, full: SqliteEngine) -> None:
        """A25: a million ends of one instant, told in pages, and nothing of before and after."""
        registry, end = full.registry, 4102444800000
        pages = [FeedPlace(end), FeedPlace(end, MANY // 2), FeedPlace(end, MANY - 50)]

        costs = [steps_of(full, registry.happened(place, end + 1, 100)) for place in pages]

        assert steps_of(full, registry.happened(FeedPlace(end + 1), end + 2, 100)) <= 300
        assert steps_of(full, registry.happened(FeedPlace(0), full.now() + 10_000, 100)) <= 10_000
        assert max(costs) <= 20_000, costs

    def test_looking_at_one_page_does_not_grow_with_history(
        self, empty: SqliteEngine, full: SqliteEngine
    ) -> None:
        for state in (None, State.COMPLETED, State.FAILED, State.PROCESSING):
            op = full.find(JobFilter(state=state, limit=20))
            assert steps_of(full, op) < 20_000, state

    def test_filters_stop_early_too(self, full: SqliteEngine) -> None:
        for wanted in (
            JobFilter(since=0),
            JobFilter(since=0, state=State.FAILED),
            JobFilter(queue="default", state=State.COMPLETED),
            JobFilter(error="x", state=State.PROCESSING),
            JobFilter(worker="w"),
        ):
            assert steps_of(full, full.find(wanted)) < 20_000, wanted
        assert steps_of(full, full.find(JobFilter(args=(("x", "1"),), worker="w"))) < 20_000

    def test_counting_a_state_or_a_queue_does_not_grow_with_history(
        self, empty: SqliteEngine, full: SqliteEngine
    ) -> None:
        full.run(full.sweep(SweepOrder()))  # the jobs that were put in by hand are counted once
        for state in (State.COMPLETED, State.FAILED, State.PROCESSING):
            for queue in (None, "default"):
                wanted = JobFilter(state=state, queue=queue)
                # Stats, and so every count, have to look at what is scheduled, and at nothing else that grows.
                assert steps_of(full, full.count(wanted)) == steps_of(full, full.stats())

    @pytest.mark.parametrize("queue", [None, "default"])
    def test_deleting_a_batch_costs_the_same_whatever_is_left_and_was_deleted_before(
        self, full: SqliteEngine, queue: str | None
    ) -> None:
        wanted = JobFilter(state=State.COMPLETED, queue=queue, limit=100)
        costs: list[int] = []
        for _ in range(20):
            numbers = full.run(full.deletable(wanted))
            delete = full.delete(numbers, [State.COMPLETED])
            costs.append(steps_of(full, full.deletable(wanted)) + steps_of(full, delete))
            assert full.run(delete) == 100

        assert max(costs) <= 1.1 * costs[0]
        assert costs[0] < 100_000

    @pytest.mark.parametrize(
        "filters",
        [
            {"state": "completed", "args": {"x": 1}},
            {"state": "completed", "queue": "elsewhere"},
            {"state": "failed", "error": "nothing"},
            {"state": "failed"},
            {"state": "failed", "since": datetime(1970, 1, 1, tzinfo=UTC)},
            {"state": "pending", "limit": 1_200},
            {"state": "scheduled", "tag": "none"},
            {"state": "all", "tenant": "", "limit": 1_200},
        ],
    )
    def test_clearing_never_holds_the_write_lock_for_longer_than_a_batch_takes(
        self, empty: SqliteEngine, full: SqliteEngine, filters: Filters
    ) -> None:
        """Whoever waits to enqueue waits for one batch at most, however rare the jobs are that match."""
        with sqlite3.connect(full.path) as connection:  # what was put in by hand was never counted
            connection.execute("UPDATE shigoto_meta SET value = 0 WHERE name = 'counted_to'")
            connection.execute("DELETE FROM shigoto_counter")
        connection.close()
        ready(empty, BATCH)
        newest = empty.run(empty.find(JobFilter(state=State.PENDING, limit=1)))[0].number
        batch = list(range(newest - BATCH, newest))

        costs = costs_of_writes(full, clear_plan(full, filters, dry_run=False))

        assert max(costs, default=0) <= 1.5 * steps_of(empty, empty.delete(batch, [State.PENDING]))

    def test_a_hundred_thousand_jobs_of_an_unknown_task_at_the_head_cost_a_claim_nothing(
        self, empty: SqliteEngine
    ) -> None:
        want = [Want(tasks=("warm",), queues=None, limit=50)]
        ready(empty, 100)
        before = steps_of(empty, empty.claim(WORKER, want))
        with sqlite3.connect(empty.path) as connection:
            crowd(connection, lane=99, task="unknown", alone=0)
        connection.close()

        assert steps_of(empty, empty.claim(WORKER, want)) <= 1.1 * before

    def test_a_hundred_thousand_jobs_of_an_unknown_task_cost_a_sweep_nothing_until_they_are_overdue(
        self, empty: SqliteEngine
    ) -> None:
        order = SweepOrder(unknown_after=3_600_000)
        before = steps_of(empty, empty.sweep(order))
        with sqlite3.connect(empty.path) as connection:
            crowd(connection, lane=97, task="nonsense", alone=0, pos=4102444800000)
        connection.close()
        empty.run(empty.sweep(order))

        assert steps_of(empty, empty.sweep(order)) <= before + 500

    def test_a_hundred_thousand_suspects_at_the_head_cost_a_claim_of_other_jobs_nothing(
        self, empty: SqliteEngine
    ) -> None:
        want = [Want(tasks=("warm",), queues=None, limit=50, alone=False)]
        ready(empty, 100)
        before = steps_of(empty, empty.claim(WORKER, want))
        with sqlite3.connect(empty.path) as connection:
            crowd(connection, lane=98, task="warm", alone=1)
        connection.close()

        assert steps_of(empty, empty.claim(WORKER, want)) <= 1.1 * before


HOT = {
    "the next jobs": SqlText(claiming.best(2), (0, 10, 0, 0, 0, 9, 9, 9, 1, 2)),
    "the best of each lane": SqlText(SQL["heads"], ('["warm"]', None, 0)),
    "start": SqlText(SQL["start"], ("[1, 2]", 0, 0, 0, 0, b"w")),
    "leave the ready set": SqlText(SQL["unready"], ("[1, 2]", 0, 0, 0, 0)),
    "enqueue one": SqlText(insertion(1), ("t", "q", 0, 0, 0, 0, 0, 6, 3, "", *[None] * 7, b"1", "{}")),
    "enqueue some": SqlText(
        insertion(10), ("t", "q", 0, 0, 0, 0, 0, 6, 3, "", *[None] * 7, *[b"1", "{}"] * 10)
    ),
    "complete without results": SqlText(SQL["complete_plain"], ("[1]", b"w", 0, 1)),
    "complete": SqlText(SQL["complete"], ('[[1, 1, "null"]]', b"w", 0)),
    "held": SqlText(SQL["held"], ("[[1, 1]]", b"w")),
    "stop": SqlText(SQL["stop_running"], ("[1]",)),
    "promote": SqlText(SQL["promote"], (0, 10)),
    "unschedule": SqlText(SQL["unschedule_promoted"], (0, 10)),
    "next due": SqlText(SQL["next_due"]),
    "details": SqlText(SQL["details"], ("[1]",)),
    "delete ready": SqlText(SQL["delete_ready"], ("[1]",)),
    "delete scheduled": SqlText(SQL["delete_scheduled"], ("[1]",)),
    "what may be deleted": SqlText(SQL["states_of"], ("[1]",)),
    "newest completed": numbers_of(STATE_TABLES.by_state[State.COMPLETED], JobFilter(), "DESC"),
    "newest failed": numbers_of(STATE_TABLES.by_state[State.FAILED], JobFilter(), "DESC"),
    "newest of all": numbers_of(STATE_TABLES.everywhere, JobFilter(), "DESC"),
    "newest failed of a kind": numbers_of(
        STATE_TABLES.by_state[State.FAILED], JobFilter(failure_kind=FailureKind.CRASH_LOOP), "DESC"
    ),
    "by key": numbers_of(STATE_TABLES.everywhere, JobFilter(key="k"), "DESC"),
    "newest since": numbers_of(STATE_TABLES.everywhere, JobFilter(since=5), "DESC"),
    "newest failed by error": numbers_of(STATE_TABLES.by_state[State.FAILED], JobFilter(error="x"), "DESC"),
    "newest completed by args": numbers_of(
        STATE_TABLES.by_state[State.COMPLETED], JobFilter(args=(("x", "1"),)), "DESC"
    ),
    "payloads": SqlText(SQL["payloads"], ("[1]",)),
    "running on a worker": numbers_of(STATE_TABLES.by_state[State.PROCESSING], JobFilter(worker="w"), "DESC"),
    "oldest completed": numbers_of(STATE_TABLES.by_state[State.COMPLETED], JobFilter(queue="q"), "ASC"),
    "oldest failed": numbers_of(STATE_TABLES.by_state[State.FAILED], JobFilter(), "ASC"),
    "next to delete": numbers_of(STATE_TABLES.by_state[State.COMPLETED], JobFilter(), "ASC", after=5),
    "next failed to delete": numbers_of(
        STATE_TABLES.by_state[State.FAILED], JobFilter(tag="t"), "ASC", after=5
    ),
    "the lane beside": SqlText(SQL["other_lanes"], ("[1]",)),
    "log lines": SqlText(SQL["logs"], (b"",)),
    "log lines to drop": SqlText(SQL["drop_log_lines"], ("[[1,1,2]]",)),
    "lanes that nobody knows": SqlText(SQL["unknown_lanes"]),
    "overdue and unknown": SqlText(SQL["overdue_unknown"], ("[1]", 0, 0, 10)),
    "due expiries": SqlText(SQL["due_expiries"], (0, 10)),
    "the first look": SqlText(SQL["first_look"], (0,)),
    "the next look": SqlText(SQL["next_look"], (0, 0, '["s000001"]')),
    "the look after": SqlText(SQL["later_look"], (0, '["s000001"]')),
    "due schedules": SqlText(SQL["due_schedules"], (0, '["s000001"]', 10)),
    "lock schedules": SqlText(SQL["lock_schedules"], ('["s000001"]',)),
    "schedules": SqlText(SQL["schedules"], ('["s000001"]',)),
    "declare schedules": SqlText(SQL["declare_schedules"], ('["s000001"]', 0)),
    "fired entries": SqlText(SQL["fired_entries"], ('[["1", 1, 9]]',)),
    "forget later entries": SqlText(SQL["forget_later"], ("1", 90)),
    "forget entries": SqlText(SQL["forget_entries"], ("1", "[90]")),
    "put entries": SqlText(SQL["put_entries"], ('[["1", 1, "fired", 1, null, null, 1]]',)),
    "change schedules": SqlText(SQL["change_schedules"], ("[[]]",)),
    "prune histories": SqlText(SQL["prune_histories"], ('["1"]', 1000)),
    "delete entries": SqlText(SQL["delete_entries_of"], ('["s000001"]',)),
    "delete schedules": SqlText(SQL["delete_schedules"], ('["s000001"]',)),
    "history": SqlText(SQL["history"], ("s000001", None, 10)),
    "history to prune": SqlText(SQL["history_from"], (0, 10, 0, 0, 0)),
    "jobs that ended": SqlText(SQL["ended_jobs"], (5, 1, 1, 9, 10)),
    "runs that ended": SqlText(SQL["ended_runs"], (5, 1, 1, 9, 10)),
    "the audit": SqlText(SQL["noted"], (5, 10)),
    "the audit of one": SqlText(SQL["noted_of"], (5, 10, "mail")),
    "audit to prune": SqlText(SQL["prune_audit"], (5, 1000)),
}
GROWING = (
    "shigoto_job",
    "shigoto_done",
    "shigoto_ready",
    "shigoto_scheduled",
    "shigoto_attempt",
    "shigoto_key",
    "shigoto_log",
    "shigoto_schedule",
    "shigoto_tick",
    "shigoto_audit",
)
ALIASES = ("a", "b", "d", "r", "s")
WALKS = {  # in order, ended by LIMIT or by whoever has enough
    "newest of all": "b",
    "newest since": "b",
    "newest completed": "s",
    "newest completed by args": "s",
    "oldest completed": "s",
    "running on a worker": "s",
    "the first look": "shigoto_schedule",
}
SORTS = {
    "the next jobs",
    "lanes with work",
    "start",
    "schedules",
}  # of at most `limit` rows per lane, of the lanes, of the claimed, of those that are named


@pytest.fixture(scope="module")
def plans(full: SqliteEngine) -> dict[str, dict[str, list[str]]]:
    """The plan of every hot statement, before and after somebody runs ANALYZE on the store."""
    found = {"never analysed": {name: plan_of(full, statement) for name, statement in HOT.items()}}
    with sqlite3.connect(full.path) as connection:
        connection.execute("ANALYZE")
    connection.close()
    found["analysed"] = {name: plan_of(full, statement) for name, statement in HOT.items()}
    return found


@pytest.mark.engine("sqlite")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("statistics", ["never analysed", "analysed"])
@pytest.mark.parametrize("name", HOT)
def test_no_hot_statement_scans_or_sorts_a_growing_table(
    plans: dict[str, dict[str, list[str]]], name: str, statistics: str
) -> None:
    """S0-15, S0-16: status, type, run time and priority lookups are all served by an index."""
    plan = plans[statistics][name]

    limited = {step.split()[1] for step in plan if step.startswith("CO-ROUTINE ")}  # subqueries with a LIMIT
    scanned = {step.split()[1] for step in plan if step.startswith("SCAN ")} & {*GROWING, *ALIASES}
    assert scanned - limited - {WALKS.get(name)} == set(), plan
    assert name in SORTS or not any("TEMP B-TREE" in step for step in plan), plan
