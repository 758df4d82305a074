"""The hot operations of the PostgreSQL engine look only at what they need, however much past, present and future there
is.

Cost is what the server counts, rows and pages, and not time: two stores that differ only in how much they hold, a
thousand jobs of each kind and a million, must cost about the same. Once without any statistics, as a new or restored
database has none, and once with the best there are.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from msgspec.structs import replace

from conformance.engine_under_test import ended
from faults.tools.costs import Cost, Meter
from shigoto.engine.op import Op
from shigoto.engine.postgres import PostgresEngine, claiming
from shigoto.engine.postgres.claiming import LinePosition, ScanStarts, Slice, slices_of
from shigoto.engine.postgres.driver import ONE_TRIP
from shigoto.model.errors import StoreError
from shigoto.model.ids import uuid7
from shigoto.model.job import JobFilter, JobSpec, Lease, LogLine, State
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.model.service import AuditEntry, FeedPosition
from shigoto.model.worker import Announcement, Ending, LogTail, Report, Settlement, SweepOrder, Want
from tests.postgres import ALWAYS, Yard, make_store

pytestmark = [
    pytest.mark.engine("postgres"),
    pytest.mark.newest_postgres,
    pytest.mark.timeout(300),
]

FEW, MANY = 1_000, 1_000_000
BATCH = 50
FAILED = 50
TASKS = ("warm", "hot", "cold")
FINISHED, READY, SCHEDULED = 10_000_000, 20_000_000, 30_000_000  # the first numbers of each kind
PLANNED = 50_000_000  # the id before that of the first schedule
# No row of these is ever written twice in such a test, and nobody else shall look at them meanwhile.
PREPARE = """
DO $$
DECLARE
  name text;
BEGIN
  FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'shigoto'::regnamespace AND relkind = 'r' LOOP
    EXECUTE format('ALTER TABLE shigoto.%I SET UNLOGGED', name);
    EXECUTE format('ALTER TABLE shigoto.%I SET (autovacuum_enabled = off)', name);
  END LOOP;
END $$;
"""
# Finished, of which fifty have failed; ready, behind everything that tests put there; due in a year, and
# expiring later. Each finished one has said something. For each hundred of them there is a schedule with a hundred
# entries, half of them declared in code.
FILL = """
INSERT INTO shigoto.job (number, id, lane, priority, run_at, created_at, expires_at, max_failures, tenant, payload)
OVERRIDING SYSTEM VALUE
SELECT n, lpad(to_hex(n), 32, '0')::uuid, 1, first.priority, first.run_at, 1000,
  first.expires_at, 6, '', '{{}}'
FROM (VALUES
  ({finished}, 0, 1000::bigint, NULL),
  ({ready}, -10, 1000, NULL),
  ({scheduled}, 100, {later}, {later} + 1000)) first(number, priority, run_at, expires_at)
CROSS JOIN LATERAL generate_series(first.number + 1, first.number + {many}) n;

INSERT INTO shigoto.done (number, state, token, settled_token, failures, crashes, releases, snoozes,
  started_at, finished_at, result)
SELECT {finished} + i, CASE WHEN i % {rare} = 0 THEN 4 ELSE 3 END, 1, 1, 0, 0, 0, 0, 1000, {now}, 'null'
FROM generate_series(1, {many}) i;

INSERT INTO shigoto.ready (run_at, number, lane, priority)
SELECT 1000, {ready} + i, 1, 10 FROM generate_series(1, {many}) i;

INSERT INTO shigoto.scheduled (run_at, number, lane)
SELECT {later}, {scheduled} + i, 1 FROM generate_series(1, {many}) i;

INSERT INTO shigoto.expiry (expires_at, number)
SELECT {later} + 1000, {scheduled} + i FROM generate_series(1, {many}) i;

INSERT INTO shigoto.attempt (number, token, outcome, started_at, finished_at)
SELECT {finished} + i, 1, 'failed', 1000, 1000 FROM generate_series({rare}, {many}, {rare}) i;

INSERT INTO shigoto.log (number, at, token, line, level, text)
SELECT {finished} + i, 1000, 1, 1, 'info', 'done' FROM generate_series(1, {many}) i;

INSERT INTO shigoto.schedule (name, id, revision, definition, origin, paused_at, failed, held, look_at, decided_to,
  errors, counts, created_at, declared_at)
SELECT 's' || lpad(i::text, 6, '0'), lpad(to_hex({planned} + i), 32, '0')::uuid, 1, '{{}}',
  CASE WHEN i % 2 = 0 THEN 'shop:tick' ELSE '' END, NULL, false, false, {later} + i, {now}, 0, '{{}}', {now}, {now}
FROM generate_series(1, {many} / 100) i;

INSERT INTO shigoto.tick (schedule, at, outcome, decided_at, job, count)
SELECT lpad(to_hex({planned} + i), 32, '0')::uuid, at, 'fired', at, NULL, 1
FROM generate_series(1, {many} / 100) i
CROSS JOIN generate_series(1, 100) at
ORDER BY 1, 2;

INSERT INTO shigoto.counter (queue, total, completed, failed) VALUES ('default', {many} * 3, {many}, 0)
ON CONFLICT (queue) DO UPDATE SET total = excluded.total, completed = excluded.completed;

INSERT INTO shigoto.audit (at, actor, action, target)
SELECT {now}, 'cli:ann@host', 'queue.pause', 'q' || i % {rare} FROM generate_series(1, {many}) i;

SELECT setval(pg_get_serial_sequence('shigoto.job', 'number'), 40000000);

-- What autovacuum does meanwhile elsewhere.
SELECT brin_summarize_new_values('shigoto.done_by_end');
"""


class Store:
    """A store with so many jobs of each kind, and a worker in it that has some."""

    def __init__(self, url: str, many: int) -> None:
        self.engine = PostgresEngine(url)
        self.engine.migrate()
        self.worker = uuid7()
        self.many = many
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(PREPARE)
        self._announce()
        self._enqueue("warm", 1)  # lane 1
        now = int(time.time() * 1000)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(FILL.format(**numbers(many, now)).encode())
        for task in TASKS:
            self._enqueue(task, 2 * BATCH)
        self.leases = self._run(BATCH)
        self.failed = [UUID(int=FINISHED + number * (many // FAILED)) for number in range(1, 11)]
        self.meter = Meter(url)

    def close(self) -> None:
        self.meter.close()
        self.engine.close()

    def _announce(self) -> None:
        self.engine.run(self.engine.announce(announcement(self.worker)))

    def _enqueue(self, task: str, count: int) -> None:
        self.engine.run(self.engine.enqueue_many([spec(task) for _ in range(count)]))

    def _run(self, count: int) -> list[Lease]:
        want = Want(tasks=("warm",), queues=None, limit=count)
        return self.engine.run(self.engine.claim(self.worker, [want]))


def numbers(many: int, now: int) -> dict[str, int]:
    return {
        "many": many,
        "rare": many // FAILED,
        "finished": FINISHED,
        "ready": READY,
        "scheduled": SCHEDULED,
        "planned": PLANNED,
        "now": now,
        "later": now + 10**10,
    }


def announcement(worker: UUID) -> Announcement:
    return Announcement(
        id=worker, name="w", tasks=TASKS, queues=None, slots=BATCH, version="0", lease=3_600_000
    )


def spec(task: str = "warm", **more: Any) -> JobSpec:
    return JobSpec(id=uuid7(), task=task, queue="default", payload="{}", **more)


def want(*tasks: str) -> list[Want]:
    return [Want(tasks=tasks, queues=None, limit=BATCH)]


class Behind(ScanStarts):
    """Has the scan starts that it is given."""

    def __init__(self, *starts: LinePosition) -> None:
        super().__init__()
        self.starts = starts

    def slices(self, want: Want) -> tuple[Slice, ...] | None:
        return slices_of(self.starts)


def claim_behind(store: Store, *starts: LinePosition) -> Op[Any]:
    wants = want("warm")
    return Op(start=lambda: claiming.claim(Behind(*starts), store.worker, wants), hints=ONE_TRIP)


def settle(store: Store, *endings: Ending) -> Op[Any]:
    return store.engine.settle(
        store.worker,
        [
            Settlement(
                number=lease.number,
                token=lease.token,
                queue=lease.queue,
                ending=endings[at % len(endings)],
                result="null",
                error="broken",
                delay=60_000,
            )
            for at, lease in enumerate(store.leases)
        ],
    )


def held(store: Store) -> list[tuple[int, int]]:
    return [(lease.number, lease.token) for lease in store.leases]


def reports(store: Store) -> list[Report]:
    tail = LogTail(first=2, lines=(LogLine(line=1, at=0, level="info", text="said"),))
    return [Report(number=lease.number, token=lease.token, progress=0.5, log=tail) for lease in store.leases]


def find(state: Any = None, **more: Any) -> Callable[[Store], Op[Any]]:
    return lambda store: store.engine.find(JobFilter(state=state, limit=20, **more))


def ids(first: int, count: int = 10) -> list[UUID]:
    return [UUID(int=first + number) for number in range(1, count + 1)]


def change(number: int, *, revision: int = 1) -> Change:
    """A tick of one of the schedules, which fires."""
    now = int(time.time() * 1000)
    schedule = Schedule(
        id=UUID(int=PLANNED + number), name=f"s{number:06}", definition="{}", revision=revision, look_at=now,
        decided_to=now, created_at=now,
    )  # fmt: skip
    fired = TickEntry(at=now, outcome=TickOutcome.FIRED, decided_at=now)
    return Change(schedule=schedule, seen=revision, firings=(Firing(entry=fired, spec=spec()),))


def names(first: int, count: int) -> list[str]:
    return [f"s{number:06}" for number in range(first, first + count)]


TICKING = "UPDATE shigoto.schedule SET look_at = 1 WHERE name <= 's000005'"
LONG = "UPDATE shigoto.schedule SET revision = 99 WHERE name = 's000001'"
DUE = f"UPDATE shigoto.scheduled SET run_at = 1 WHERE number BETWEEN {SCHEDULED + 1} AND {SCHEDULED + BATCH}"
EXPIRED = (
    f"UPDATE shigoto.expiry SET expires_at = 1 WHERE number BETWEEN {SCHEDULED + 1} AND {SCHEDULED + BATCH}"
)
# What has ended in a window of the feed that is after everything else: so it is when somebody follows it.
SOON = 4_102_444_800_000
ENDED = f"""
UPDATE shigoto.done SET finished_at = {SOON} + number % 10 WHERE number BETWEEN {FINISHED + 1} AND {FINISHED + 50};
UPDATE shigoto.attempt SET finished_at = {SOON} WHERE number IN (
  SELECT number FROM shigoto.attempt ORDER BY number LIMIT 10)
"""
A_RANGE = 2_000  # rows of 16 pages
NOTE = AuditEntry(actor="cli:ann@host", action="queue.pause", target="q1")
DEAD = "UPDATE shigoto.worker SET lease_until = 0"
STRAY = "UPDATE shigoto.running SET claimed_at = 0"
NOBODY = "UPDATE shigoto.worker SET tasks = '[]'"
EMPTY = "TRUNCATE shigoto.ready"
PRUNING = SweepOrder(batch=BATCH, keep_completed_for=-3_600_000, keep_failed_for=-3_600_000)

# What is done, and what is true before it.
HOT: dict[str, tuple[Callable[[Store], Op[Any]], str]] = {
    "enqueue one": (lambda store: store.engine.enqueue_many([spec()]), ""),
    "enqueue some": (lambda store: store.engine.enqueue_many([spec() for _ in range(BATCH)]), ""),
    "enqueue for later": (lambda store: store.engine.enqueue_many([spec(delay=60_000, expires_in=9**9)]), ""),
    "enqueue any": (
        lambda store: store.engine.enqueue_many([spec(priority=each % 7) for each in range(BATCH)]),
        "",
    ),
    "enqueue with a key": (lambda store: store.engine.enqueue_many([spec(key="k")]), ""),
    "claim": (lambda store: store.engine.claim(store.worker, want("warm")), ""),
    "claim of several tasks": (lambda store: store.engine.claim(store.worker, want(*TASKS)), ""),
    "claim of nothing": (lambda store: store.engine.claim(store.worker, want("unheard of")), ""),
    "claim behind scan starts": (
        lambda store: claim_behind(store, (0, 1_000, 0), (10, 1_000, READY + store.many // 2)),
        "",
    ),
    "claim of nothing behind scan starts": (
        lambda store: claim_behind(store, (0, 2**62, 0), (10, 1_000, READY + store.many)),
        "",
    ),
    "complete": (lambda store: settle(store, Ending.COMPLETED), ""),
    "fail, retry and release": (
        lambda store: settle(store, Ending.FAILED, Ending.ERRORED, Ending.RELEASED),
        "",
    ),
    "beat": (lambda store: store.engine.beat(store.worker, held(store)), ""),
    "beat that releases": (lambda store: store.engine.beat(store.worker, []), STRAY),
    "report": (lambda store: store.engine.report(store.worker, reports(store)), ""),
    "leave": (lambda store: store.engine.leave(store.worker), ""),
    "report_dead": (lambda store: store.engine.report_dead(store.worker, []), ""),
    "promote nothing": (lambda store: store.engine.promote(BATCH), ""),
    "promote": (lambda store: store.engine.promote(BATCH), DUE),
    "sweep": (lambda store: store.engine.sweep(SweepOrder(batch=BATCH)), ""),
    "fence and rescue": (
        lambda store: store.engine.sweep(SweepOrder(fence=(store.worker,), batch=100)),
        DEAD,
    ),
    "expire": (lambda store: store.engine.sweep(SweepOrder(batch=BATCH)), EXPIRED),
    "look for unknown tasks": (
        lambda store: store.engine.sweep(SweepOrder(batch=BATCH, unknown_after=3_600_000)),
        "",
    ),
    "find unknown tasks": (
        lambda store: store.engine.sweep(SweepOrder(batch=BATCH, unknown_after=3_600_000)),
        NOBODY,
    ),
    "prune": (lambda store: store.engine.sweep(PRUNING), ""),
    "get finished": (lambda store: store.engine.get(ids(FINISHED)), ""),
    "get waiting": (lambda store: store.engine.get([*ids(READY), *ids(SCHEDULED)]), ""),
    "find the newest": (find(), ""),
    "find completed": (find(State.COMPLETED), ""),
    "find failed": (find(State.FAILED), ""),
    "find processing": (find(State.PROCESSING), ""),
    "find by key": (find(key="k"), ""),
    "find the next page": (find(State.COMPLETED, before=FINISHED + 500), ""),
    "attempts": (lambda store: store.engine.attempts(store.failed[0]), ""),
    "logs": (lambda store: store.engine.logs(store.failed[0]), ""),
    "stats": (lambda store: store.engine.stats(), EMPTY),
    "cancel ready": (lambda store: store.engine.cancel(ids(READY)), ""),
    "cancel scheduled": (lambda store: store.engine.cancel(ids(SCHEDULED)), ""),
    "retry": (lambda store: store.engine.retry(store.failed), ""),
    "delete finished": (
        lambda store: store.engine.delete([FINISHED + n for n in range(1, BATCH)], [State.COMPLETED]),
        "",
    ),
    "delete ready": (
        lambda store: store.engine.delete([READY + n for n in range(1, BATCH)], [State.PENDING]),
        "",
    ),
    "look at schedules": (lambda store: store.engine.due([], BATCH), ""),
    "look at declared schedules": (lambda store: store.engine.due(names(1, 10), BATCH), ""),
    "find schedules that are due": (lambda store: store.engine.due(names(1, 10), BATCH), TICKING),
    "find one of many that are due": (lambda store: store.engine.due(names(1, 10), 1), TICKING),
    "tick": (lambda store: store.engine.tick([change(1)]), ""),
    "tick some": (lambda store: store.engine.tick([change(number) for number in range(1, 6)]), ""),
    "tick and prune": (lambda store: store.engine.tick([change(1, revision=99)]), LONG),
    "tick when the clock went back": (
        lambda store: store.engine.tick([replace(change(1), back_to=95)]),
        "",
    ),
    "add a schedule": (lambda store: store.engine.tick([change(0, revision=0)]), ""),
    "remove a schedule": (lambda store: store.engine.remove_schedules(names(1, 1)), ""),
    "declare": (lambda store: store.engine.declare(names(1, 5)), ""),
    "schedules": (lambda store: store.engine.schedules(names(1, 5)), ""),
    "history": (lambda store: store.engine.history("s000001", before=90, limit=20), ""),
    "workers": (lambda store: store.engine.workers(), ""),
    "feed of nothing": (
        lambda store: store.engine.registry.happened(FeedPosition(SOON), SOON + 10_000, 100),
        "",
    ),
    "feed": (lambda store: store.engine.registry.happened(FeedPosition(SOON), SOON + 10_000, 100), ENDED),
    "note": (lambda store: store.engine.registry.note([NOTE] * 5), ""),
    "audit": (lambda store: store.engine.registry.noted(before=500, limit=20), ""),
    "audit of one": (lambda store: store.engine.registry.noted(target="q1", limit=10), ""),
    "settings": (lambda store: store.engine.settings(), ""),
}

Costs = dict[str, dict[str, tuple[Cost, Cost]]]


@pytest.fixture(scope="module")
def stores(postgres_yard: Yard) -> Iterator[tuple[Store, Store]]:
    try:
        postgres_yard.server(ALWAYS)
    except StoreError as error:
        pytest.skip(f"no PostgreSQL {ALWAYS}: {error}")
    with postgres_yard.database(ALWAYS) as one, postgres_yard.database(ALWAYS) as other:
        few, many = Store(one, FEW), Store(other, MANY)
        yield few, many
        few.close()
        many.close()


@pytest.fixture(scope="module")
def costs(stores: tuple[Store, Store]) -> Costs:
    """What everything costs in the small store and in the large one, without statistics, with some and with all."""

    def weigh() -> dict[str, tuple[Cost, Cost]]:
        few, many = stores
        return {
            name: (few.meter.weigh(make(few), first=first), many.meter.weigh(make(many), first=first))
            for name, (make, first) in HOT.items()
        }

    found = {"never analysed": weigh()}
    for store in stores:
        store.meter.say("VACUUM shigoto.lane")
    found["lanes counted"] = weigh()
    for store in stores:
        store.meter.say("ANALYZE")
    found["analysed"] = weigh()
    return found


@pytest.mark.parametrize("statistics", ["never analysed", "lanes counted", "analysed"])
@pytest.mark.parametrize("name", HOT)
def test_a_million_jobs_of_each_kind_cost_what_a_thousand_cost(
    costs: Costs, name: str, statistics: str
) -> None:
    """S0-15, S0-16: what is looked for is found through an index. An index of a million has a level or two more."""
    few, many = costs[statistics][name]
    more = A_RANGE if name.startswith("feed") else 10  # the summary of history knows pages, not rows

    assert many.all_rows <= 1.1 * few.all_rows + more, (dict(few.rows), dict(many.rows))
    assert many.pages <= 3 * few.pages + 30, (few, many)
    assert many.all_rows <= 50 * BATCH, dict(many.rows)
    assert many.pages <= 100 * BATCH, many


@pytest.mark.parametrize("statistics", ["never analysed", "analysed"])
def test_a_claim_reads_what_it_takes_and_as_much_of_each_other_lane(costs: Costs, statistics: str) -> None:
    """S0-16: one lane is read from its front; of several, each may have the best."""
    _, one = costs[statistics]["claim"]
    _, several = costs[statistics]["claim of several tasks"]

    assert one.rows["ready"] == BATCH
    assert several.rows["ready"] <= (len(TASKS) + 1) * BATCH + len(TASKS)
    assert one.rows["job"] == several.rows["job"] == BATCH


@pytest.mark.parametrize("statistics", ["never analysed", "analysed"])
def test_a_claim_behind_scan_starts_reads_nothing_before_them(costs: Costs, statistics: str) -> None:
    """X8: the first of each stretch, how many of each, and what is wanted."""
    _, some = costs[statistics]["claim behind scan starts"]
    _, nothing = costs[statistics]["claim of nothing behind scan starts"]

    assert some.rows["ready"] <= 3 * BATCH + 2
    assert "ready" not in nothing.rows


def test_stats_never_look_at_what_is_finished(stores: tuple[Store, Store]) -> None:
    """With many ready jobs, those are counted that are due later; history is not, whatever there is of it."""
    _, many = stores

    rows = many.meter.weigh(many.engine.stats()).rows

    assert {"job", "done"}.isdisjoint(rows), dict(rows)
    # And a few that an earlier test has left behind; none at all where a vacuum came by: the index tells by itself.
    assert rows.get("ready", 0) <= 10_100


def test_stats_do_not_walk_over_what_a_rush_has_left(postgres_yard: Yard) -> None:
    """The tables keep their pages, which a vacuum has emptied."""
    with postgres_yard.emptied(ALWAYS, make_store) as url:
        engine, meter, worker = PostgresEngine(url), Meter(url), uuid7()
        engine.run(engine.announce(announcement(worker)))
        at_rest = meter.weigh(engine.stats()).pages

        for _ in range(10):
            engine.run(engine.enqueue_many([spec("warm") for _ in range(1_000)]))
        leases = engine.run(engine.claim(worker, [Want(tasks=("warm",), queues=None, limit=10_000)]))
        engine.run(engine.settle(worker, [ended(lease, Ending.COMPLETED) for lease in leases]))
        for table in ("ready", "running"):
            meter.say(f"VACUUM (TRUNCATE off, ANALYZE) shigoto.{table}")
        engine.run(engine.sweep(SweepOrder()))

        assert len(leases) == 10_000
        assert meter.weigh(engine.stats()).pages <= at_rest + 20
        meter.close()
        engine.close()
