"""X8: while a snapshot is held, claims begin at scan starts. What comes to stand before them is found all the same."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import psycopg
import pytest

from devtools.postgres import Server
from faults.tools.costs import Meter
from shigoto.engine.postgres import PostgresEngine
from shigoto.engine.postgres.claiming import LONGEST, SUSPICIOUS, ScanStarts
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec, Lease
from shigoto.model.worker import Announcement, Ending, Settlement, SweepOrder, Want
from tests.postgres import Yard, make_store

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

TASKS = ("one", "other")
GONE = 3_000


class Shop:
    """A store in which a snapshot is held, and a worker who knows it. For the scan starts, time stands still."""

    def __init__(self, address: str, tasks: tuple[str, ...]) -> None:
        self.engine = PostgresEngine(address)
        self.address = address
        self.tasks = tasks
        self.now = 0.0
        self.engine._scan_starts = ScanStarts(lambda: self.now)
        self.workers = [self._announce() for _ in range(2)]
        self.holder = psycopg.connect(address)
        self.hold()

    def close(self) -> None:
        self.holder.close()
        self.engine.close()

    def hold(self) -> None:
        """Keep everything from now on, let the line pass by, and let the worker see that it is still there."""
        self.holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.holder.execute("SELECT 1")
        self.put(GONE)
        self.claim(GONE)
        for _ in range(SUSPICIOUS):
            self.put()
            assert self.claim()

    def put(self, count: int = 1, **more: Any) -> list[UUID]:
        specs = [self.spec(at, **more) for at in range(count)]
        self.engine.run(self.engine.enqueue_many(specs))
        return [spec.id for spec in specs]

    def spec(self, at: int = 0, **more: Any) -> JobSpec:
        return JobSpec(
            id=uuid7(), task=self.tasks[at % len(self.tasks)], queue="default", payload="{}", **more
        )

    def wants(self, limit: int = 50, *, thorough: bool = False) -> list[Want]:
        return [Want(tasks=self.tasks, queues=None, limit=limit, thorough=thorough)]

    def claim(self, limit: int = 50, *, thorough: bool = False, worker: int = 0) -> list[Lease]:
        wants = self.wants(limit, thorough=thorough)
        return self.engine.run(self.engine.claim(self.workers[worker], wants))

    def settle(self, leases: list[Lease], ending: Ending, delay: int | None = None) -> None:
        settlements = [
            Settlement(number=one.number, token=one.token, queue=one.queue, ending=ending, delay=delay)
            for one in leases
        ]
        self.engine.run(self.engine.settle(self.workers[0], settlements))

    def taken(self) -> list[Lease]:
        """Jobs that this worker has, and that others have overtaken."""
        self.put(5)
        leases = self.claim()
        self.put(GONE)
        assert len(self.claim(GONE)) == GONE
        assert self.claim() == []
        return leases

    def _announce(self) -> UUID:
        id = uuid7()
        announcement = Announcement(id=id, name="w", tasks=self.tasks, queues=None, slots=50, version="0")
        self.engine.run(self.engine.announce(announcement))
        return id


@pytest.fixture(params=[TASKS[:1], TASKS], ids=["one lane", "two lanes"])
def shop(
    request: pytest.FixtureRequest, postgres: Server, postgres_yard: Yard, postgres_major: int
) -> Iterator[Shop]:
    assert postgres.running
    with (
        postgres_yard.emptied(postgres_major, make_store) as address,
        closing(Shop(address, request.param)) as shop,
    ):
        yield shop


def ids(leases: list[Lease]) -> list[UUID]:
    return [lease.id for lease in leases]


def test_a_claim_looks_at_few_pages_whatever_is_gone(shop: Shop) -> None:
    """E24: also one that finds nothing."""
    with closing(Meter(shop.address)) as meter:
        for count in (0, 5):
            shop.put(count)
            few = meter.weigh(shop.engine.claim(shop.workers[0], shop.wants()))
            all = meter.weigh(shop.engine.claim(shop.workers[0], shop.wants(thorough=True)))

            assert few.pages + 30 < all.pages


@pytest.mark.parametrize("priority", [-3, 0, 8])
def test_what_is_new_is_found_at_once_whatever_its_priority(shop: Shop, priority: int) -> None:
    """X8: an urgent newcomer."""
    shop.taken()
    for _ in range(3):
        new = shop.put(priority=priority)

        assert ids(shop.claim()) == new


def test_a_job_that_is_given_back_is_found_by_the_next_thorough_claim(shop: Shop) -> None:
    leases = shop.taken()
    shop.settle(leases, Ending.RELEASED)

    assert shop.claim() == []
    assert ids(shop.claim(thorough=True)) == ids(leases)


def test_a_job_that_is_given_back_is_found_by_anybody_within_a_second(shop: Shop) -> None:
    leases = shop.taken()
    shop.settle(leases, Ending.RELEASED)
    shop.now += LONGEST

    assert ids(shop.claim(worker=1)) == ids(leases)


def test_a_transaction_that_is_committed_late_is_found_within_a_second(shop: Shop) -> None:
    """X8, I2: its jobs have early places, and nobody could see them when others were taken."""
    with closing(psycopg.connect(shop.address)) as late:
        first, second = shop.spec(), shop.spec(priority=5)
        shop.engine.join(late, shop.engine.enqueue_many([first, second]))
        shop.taken()
        late.commit()

    assert ids(shop.claim()) == [second.id]  # nobody has taken anything so urgent
    shop.now += LONGEST
    assert ids(shop.claim()) == [first.id]


def test_a_retry_is_found_where_it_stands(shop: Shop) -> None:
    """At once if it is due by now, like anything new; and if others were promoted before it, within a second."""
    leases = shop.taken()
    shop.settle(leases, Ending.ERRORED, delay=0)
    shop.engine.run(shop.engine.promote(100))

    assert ids(shop.claim()) == ids(leases)

    old = shop.put(run_at=1_000)
    shop.engine.run(shop.engine.promote(100))
    shop.now += LONGEST

    assert ids(shop.claim()) == old


def test_jobs_of_a_worker_that_died_are_found_within_a_second(shop: Shop) -> None:
    leases = shop.taken()
    with closing(psycopg.connect(shop.address, autocommit=True)) as connection:
        connection.execute("UPDATE shigoto.worker SET lease_until = 0 WHERE id = %s", (shop.workers[0],))
    shop.engine.run(shop.engine.sweep(SweepOrder(fence=(shop.workers[0],), batch=100_000)))
    shop.now += LONGEST
    found = ids(shop.claim(100_000, worker=1))

    assert set(ids(leases)) <= set(found)


def test_what_somebody_had_locked_and_left_is_found_within_a_second(shop: Shop) -> None:
    """A claimer dies in the middle of its claim, and others have passed by."""
    new = shop.put(5)
    with closing(psycopg.connect(shop.address)) as dying:
        dying.execute("SELECT 1 FROM shigoto.ready FOR UPDATE")
        assert shop.claim() == []
        shop.put(GONE)
        while shop.claim(GONE):
            pass
        dying.rollback()
    shop.now += LONGEST

    assert ids(shop.claim()) == new


def test_once_nobody_holds_a_snapshot_everything_is_looked_at_again(shop: Shop) -> None:
    leases = shop.taken()
    shop.holder.rollback()
    for _ in range(100):
        shop.now += 0.05
        shop.put()
        assert shop.claim()
    shop.settle(leases, Ending.RELEASED)

    assert ids(shop.claim()) == ids(leases)
