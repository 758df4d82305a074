"""A transaction whose client is gone, which the server does not know yet, keeps the rows locked that it has changed. It
holds up its own job, and nobody else."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from shigoto import Shigoto, State, StoreBusy
from shigoto.engine.postgres import PostgresEngine, driver
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec, Lease
from shigoto.model.worker import CLAIM_DEADLINE, Announcement, Ending, Settlement, SweepOrder, Verdict, Want
from shigoto.worker import Worker
from tests.fundamentals.shop import until
from tests.postgres import make_store

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

SOON = 8.0  # seconds: far less than the deadline of an op, and more than it waits for a lock


@pytest.fixture
def engine(postgres_database: str) -> Iterator[PostgresEngine]:
    make_store(postgres_database)
    engine = PostgresEngine(postgres_database)
    yield engine
    engine.close()


@pytest.fixture
def orphan(postgres_database: str) -> Iterator[psycopg.Connection]:
    """A connection whose transaction is not committed."""
    with psycopg.connect(postgres_database) as connection:
        yield connection
        connection.rollback()


def announced(engine: PostgresEngine) -> UUID:
    worker = uuid7()
    told = Announcement(id=worker, name="one", tasks=("do",), queues=None, slots=9, version="0")
    engine.run(engine.announce(told))
    return worker


def claimed(engine: PostgresEngine, worker: UUID, count: int) -> list[Lease]:
    engine.run(
        engine.enqueue_many([JobSpec(id=uuid7(), payload="{}", task="do", queue="q") for _ in range(count)])
    )
    leases = engine.run(engine.claim(worker, [Want(tasks=("do",), queues=None, limit=count)]))
    assert len(leases) == count
    return leases


def ended(lease: Lease, ending: Ending) -> Settlement:
    return Settlement(
        number=lease.number,
        token=lease.token,
        queue=lease.queue,
        ending=ending,
        result="null" if ending is Ending.COMPLETED else None,
        error=None if ending is Ending.COMPLETED else "no",
    )


def complete_without_commit(orphan: psycopg.Connection, lease: Lease) -> None:
    orphan.execute("DELETE FROM shigoto.running WHERE number = %s", (lease.number,))


@pytest.mark.parametrize(
    "endings",
    [
        (Ending.COMPLETED, Ending.COMPLETED, Ending.COMPLETED),
        (Ending.FAILED, Ending.FAILED, Ending.FAILED),
        (Ending.COMPLETED, Ending.FAILED, Ending.COMPLETED),
        (Ending.FAILED, Ending.COMPLETED, Ending.FAILED),
    ],
)
def test_the_others_of_a_batch_are_settled_and_the_one_that_is_locked_later(
    engine: PostgresEngine, orphan: psycopg.Connection, endings: tuple[Ending, ...]
) -> None:
    """E18, C9: nobody can tell whether it was settled before, until the orphan is gone."""
    worker = announced(engine)
    leases = claimed(engine, worker, 3)
    settlements = [ended(lease, ending) for lease, ending in zip(leases, endings, strict=True)]
    complete_without_commit(orphan, leases[1])
    began = time.monotonic()

    verdicts = engine.run(engine.settle(worker, settlements))

    assert verdicts == [Verdict.ACCEPTED, Verdict.BUSY, Verdict.ACCEPTED]
    assert time.monotonic() - began < SOON
    orphan.rollback()
    assert engine.run(engine.settle(worker, settlements)) == [
        Verdict.REPEATED,
        Verdict.ACCEPTED,
        Verdict.REPEATED,
    ]


def test_one_that_is_settled_by_itself_is_told_that_it_is_busy(
    engine: PostgresEngine, orphan: psycopg.Connection
) -> None:
    worker = announced(engine)
    [lease] = claimed(engine, worker, 1)
    complete_without_commit(orphan, lease)

    for ending in (Ending.COMPLETED, Ending.FAILED):
        began = time.monotonic()
        with pytest.raises(StoreBusy, match="somebody else has locked"):
            engine.run(engine.settle(worker, [ended(lease, ending)]))
        assert time.monotonic() - began < SOON


async def test_a_worker_goes_on_with_all_other_jobs_and_outwaits_the_orphan(
    engine: PostgresEngine, orphan: psycopg.Connection
) -> None:
    app = Shigoto(engine=engine)
    locked: list[int] = []

    @app.task
    async def work(first: bool) -> None:
        if first and not locked:
            [[number]] = await asyncio.to_thread(
                lambda: orphan.execute("DELETE FROM shigoto.running RETURNING number").fetchall()
            )
            locked.append(number)

    first = await work.aenqueue(True)
    async with Worker(app, any_role=True):
        await asyncio.to_thread(until, lambda: locked)
        others = [await work.aenqueue(False) for _ in range(20)]
        began = time.monotonic()
        for handle in others:
            await handle.aresult(timeout=20)
        assert time.monotonic() - began < SOON
        assert (await first.ajob()).state is State.PROCESSING
        await asyncio.to_thread(orphan.rollback)
        await first.aresult(timeout=20)

    job = first.job()
    assert (job.state, job.attempt) == (State.COMPLETED, 1)


async def test_a_worker_that_stops_meanwhile_is_not_kept_for_longer_than_it_may_take(
    engine: PostgresEngine, orphan: psycopg.Connection
) -> None:
    app = Shigoto(engine=engine)
    locked: list[int] = []

    @app.task
    async def work() -> None:
        [[number]] = await asyncio.to_thread(
            lambda: orphan.execute("DELETE FROM shigoto.running RETURNING number").fetchall()
        )
        locked.append(number)

    await work.aenqueue()
    worker = Worker(app, any_role=True, stop_timeout=4.0)
    async with worker:
        await asyncio.to_thread(until, lambda: locked)
        began = time.monotonic()
    assert time.monotonic() - began < 8.0


def test_beats_and_sweeps_pass_over_what_an_orphan_has_locked(
    engine: PostgresEngine, orphan: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = announced(engine)
    leases = claimed(engine, worker, 2)
    with psycopg.connect(engine.address, autocommit=True) as other:  # so that they are taken for strays
        other.execute("UPDATE shigoto.running SET claimed_at = claimed_at - %s", (2 * CLAIM_DEADLINE,))
    complete_without_commit(orphan, leases[0])
    began = time.monotonic()

    orders = engine.run(engine.beat(worker, []))
    engine.run(engine.sweep(SweepOrder()))

    assert (orders.fenced, orders.released) == (False, 1)
    assert time.monotonic() - began < SOON


Act = Callable[[PostgresEngine, UUID], Any]


@pytest.mark.parametrize(
    "act",
    [
        lambda engine, id: engine.run(engine.cancel([id])),
        lambda engine, id: engine.run(engine.cancel([id], force=True)),
    ],
)
def test_an_operator_is_told_that_it_is_busy(
    engine: PostgresEngine, orphan: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, act: Act
) -> None:
    monkeypatch.setattr(driver, "LOCKED_FOR", 1.0)
    [lease, other] = claimed(engine, announced(engine), 2)
    complete_without_commit(orphan, lease)

    with pytest.raises(StoreBusy, match="somebody else has locked") as told:
        act(engine, lease.id)

    assert told.value.code == "STORE.BUSY"
    act(engine, other.id)
    orphan.rollback()
    act(engine, lease.id)
