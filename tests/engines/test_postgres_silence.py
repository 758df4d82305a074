"""A line to the server that falls silent: no end, no reset, just nothing. Only a deadline of one's own can tell."""

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest
from msgspec import structs

from faults.tools.proxy import HalfOpen, Pass, Proxy, Silent
from shigoto import Context, Shigoto, State
from shigoto.engine.op import Op
from shigoto.engine.postgres import PostgresEngine, connection, doorbell, transaction
from shigoto.engine.postgres import engine as postgres_engine
from shigoto.engine.postgres.address import read_address
from shigoto.engine.postgres.driver import Driver
from shigoto.engine.sql.commands import NamedSql
from shigoto.model.errors import StoreUnavailable, TransactionTooLong
from shigoto.model.job import Job
from shigoto.observe import events
from shigoto.worker import Worker, endings
from tests.fundamentals.shop import until
from tests.postgres import make_store

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

TEXTS = {"pid": "SELECT pg_backend_pid()"}


def pid(**options: Any) -> Op[Any]:
    def start() -> Any:
        return (yield NamedSql("pid")).fetchall()

    return Op(start=start, **options)


@pytest.fixture
def line(postgres_database: str) -> Iterator[Proxy]:
    """What lies between the tests and their server."""
    match = re.search(r"127\.0\.0\.1:(\d+)", postgres_database)
    assert match is not None
    with Proxy(int(match[1])) as proxy:
        yield proxy
        proxy.mode = Pass()


@pytest.fixture
def far(postgres_database: str, line: Proxy) -> str:
    """The address of the database, by that line."""
    return re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{line.port}", postgres_database)


@pytest.fixture
def driver(far: str) -> Iterator[Driver]:
    driver = Driver(read_address(far), TEXTS)
    yield driver
    driver.close()


@pytest.fixture
def engine(far: str, postgres_database: str) -> Iterator[PostgresEngine]:
    make_store(postgres_database)
    engine = PostgresEngine(far)
    yield engine
    engine.close()


@pytest.fixture
def near(postgres_database: str) -> Iterator[PostgresEngine]:
    """The same store as `engine`, by another line."""
    near = PostgresEngine(postgres_database)
    yield near
    near.close()


def job_of(engine: PostgresEngine, id: UUID) -> Job:
    [job] = engine.run(engine.get([id]))
    assert job is not None
    return job


async def soon(true: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, true, 20.0)


# Deadlines


async def test_an_op_may_say_how_long_it_is_worth_waiting_for(driver: Driver, line: Proxy) -> None:
    driver.run(pid())
    await driver.arun(pid())
    line.mode = Silent()
    began = time.monotonic()

    with pytest.raises(StoreUnavailable, match="not answered in time"):
        await asyncio.to_thread(driver.run, pid(deadline=0.5))
    with pytest.raises(StoreUnavailable, match="not answered in time"):
        await driver.arun(pid(deadline=0.5))

    assert 1.0 <= time.monotonic() - began < 10.0
    line.mode = Pass()


async def test_a_beat_on_a_line_that_has_died_is_given_up_and_sent_on_another_before_the_lease_ends(
    engine: PostgresEngine, line: Proxy
) -> None:
    """Semantics §4, E18: or else a firewall that forgets its connections costs a worker all of its jobs."""
    app = Shigoto(engine=engine)
    told: list[events.Event] = []
    app.bus.subscribe(told.append)

    async with Worker(app, lease=6.0, any_role=True, sweeps=False) as worker:
        await soon(lambda: worker.ready)
        engine.run(engine.stats())  # on the connection that beats will use
        line.mode = HalfOpen()
        line.mode = Pass()
        began = time.monotonic()
        await soon(lambda: any(isinstance(e, events.StoreRecovered) and e.part == "keeper" for e in told))
        assert time.monotonic() - began < 6.0


# The doorbell


async def test_a_silent_listener_notices_by_itself_and_listens_again(
    engine: PostgresEngine, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F31, E21: a line on which nothing comes looks like one on which there is nothing to tell."""
    monkeypatch.setattr(doorbell, "CHECK_EVERY", 0.2, raising=False)
    monkeypatch.setattr(doorbell, "CHECK_WITHIN", 0.5, raising=False)
    app = Shigoto(engine=engine)

    @app.task
    async def work() -> None: ...

    listener = engine.listen()
    assert await listener.wait(20)  # it listens
    line.mode = HalfOpen()
    line.mode = Pass()
    assert await listener.wait(20)  # it listens again
    await asyncio.to_thread(work.enqueue)
    assert await listener.wait(20)
    listener.close()


async def test_a_listener_whose_line_is_well_is_left_alone(
    engine: PostgresEngine, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "CHECK_EVERY", 0.05, raising=False)
    listener = engine.listen()
    assert await listener.wait(20)
    before, passed = line.accepted, line.passed["to_server"]

    assert not await listener.wait(1.0)

    assert line.accepted == before
    assert line.passed["to_server"] > passed
    listener.close()


# Cancels

EXPIRES_IN_SILENCE = """
import sys, threading, time
from shigoto.engine.op import Op
from shigoto.engine.postgres import PostgresEngine, connection
connection.SAFELY = connection.SAFELY and sys.argv[2] == "safely"
engine = PostgresEngine(sys.argv[1])
gaps = []
def tick():
    before = time.monotonic()
    while True:
        time.sleep(0.01)
        now = time.monotonic()
        gaps.append(now - before)
        before = now
threading.Thread(target=tick, daemon=True).start()
with engine.block(lambda: None, limit=0.5) as tx:
    tx.execute("SELECT 1")
    print("begun", flush=True)
    sys.stdin.readline()
    try:
        tx.execute("SELECT pg_sleep(60)")
    except Exception as error:
        print(type(error).__name__, flush=True)
    time.sleep(2.0)
    print("ticks" if max(gaps) < 1.0 else f"stood still for {max(gaps)} s", flush=True)
    import os
    os._exit(0)
"""


@pytest.mark.parametrize("way", ["safely", "otherwise"])
def test_a_cancel_on_a_silent_line_does_not_stop_the_process(
    engine: PostgresEngine, line: Proxy, way: str
) -> None:
    """E18, S1-13: libpq's own waits for the server while nobody else can run, beats included."""
    with subprocess.Popen(
        [sys.executable, "-c", EXPIRES_IN_SILENCE, engine.address, way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        line.mode = Silent()
        process.stdin.write("\n")
        process.stdin.flush()
        try:
            said, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert said == "StoreUnavailable\nticks\n"


@pytest.mark.parametrize("safely", [True, False])
def test_what_a_block_was_doing_at_its_limit_is_cancelled_on_the_server(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch, safely: bool
) -> None:
    monkeypatch.setattr(connection, "SAFELY", safely and connection.SAFELY)
    make_store(postgres_database)
    engine = PostgresEngine(
        postgres_database
    )  # no proxy of this process may lie between: it would stand still, too

    def linger() -> None:
        with engine.block(pid, limit=0.3) as tx:
            tx.execute("SELECT pg_sleep(60)")

    with pytest.raises(TransactionTooLong):
        linger()

    with psycopg.connect(postgres_database, autocommit=True) as watcher:
        look = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE '%pg_sleep(60)' AND state = 'active'"
        )
        until(lambda: watcher.execute(look).fetchall() == [(0,)])
    engine.close()


def test_so_many_cancels_on_a_silent_line_take_no_more_than_a_few_threads(
    engine: PostgresEngine, line: Proxy
) -> None:
    blocks: list[Any] = [engine.block(pid, limit=0.3) for _ in range(8)]
    for block in blocks:
        block.__enter__().execute("SELECT 1")
    line.mode = Silent()

    until(lambda: all(block.stage == "expired" for block in blocks))

    assert sum(thread.name == "shigoto-cancel" for thread in threading.enumerate()) <= connection.MOST
    line.mode = Pass()
    until(lambda: not any(thread.name == "shigoto-cancel" for thread in threading.enumerate()))
    for block in blocks:
        with pytest.raises(TransactionTooLong):
            block.__exit__(None, None, None)


# Transactions


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_line_that_falls_silent_inside_a_transaction_is_no_failure_of_the_job(
    engine: PostgresEngine,
    near: PostgresEngine,
    line: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """Semantics §7, E18: nobody knows what has become of the statement, and the handler cannot do anything about it."""
    short = structs.replace(postgres_engine.CAPABILITIES, block_limit=0.5)
    monkeypatch.setattr(postgres_engine, "CAPABILITIES", short)
    monkeypatch.setattr(transaction, "ANSWERED_WITHIN", 0.5, raising=False)
    monkeypatch.setattr(endings, "TROUBLE_DELAY", 10)
    engine._driver.deadline = 1.5  # of everything else that goes by this line
    app = Shigoto(engine=engine)
    runs: list[int] = []

    def fall_silent_once() -> None:
        runs.append(1)
        if len(runs) == 1:
            line.mode = HalfOpen()
            line.mode = Pass()

    @app.task(name="work", retries=0)
    def work(ctx: Context) -> None:
        with ctx.transaction() as tx:
            fall_silent_once()
            tx.execute("SELECT 1")

    @app.task(name="awork", retries=0)
    async def awork(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            fall_silent_once()
            await tx.execute("SELECT 1")

    handle = await (work if way == "sync" else awork).aenqueue()
    async with Worker(app, any_role=True):
        await soon(lambda: job_of(near, handle.id).state in (State.COMPLETED, State.FAILED))

    assert len(runs) == 2
    job = job_of(near, handle.id)
    assert (job.state, job.failures, job.attempt, job.releases) == (State.COMPLETED, 0, 1, 1)


def test_so_many_blocks_on_a_silent_line_are_all_told_that_it_is_silent(
    engine: PostgresEngine, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are not as many threads that cancel."""
    monkeypatch.setattr(transaction, "ANSWERED_WITHIN", 0.5)
    together = threading.Barrier(2 * connection.MOST + 1)

    def use() -> None:
        with engine.block(pid, limit=1.0) as tx:
            together.wait(20)
            together.wait(20)
            tx.execute("SELECT 1")

    with ThreadPoolExecutor(2 * connection.MOST) as pool:
        uses = [pool.submit(use) for _ in range(2 * connection.MOST)]
        together.wait(20)
        line.mode = Silent()
        together.wait(20)
        errors = [type(use.exception(20)) for use in uses]

    assert errors == [StoreUnavailable] * len(uses)


def test_a_statement_that_takes_too_long_on_a_line_that_is_well_is_the_blocks_own_fault(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "ANSWERED_WITHIN", 60.0, raising=False)

    def linger() -> None:
        with engine.block(pid, limit=0.3) as tx:
            tx.execute("SELECT pg_sleep(60)")

    with pytest.raises(TransactionTooLong):
        linger()


def test_a_line_that_speaks_again_just_after_the_limit_was_silent_all_the_same(
    engine: PostgresEngine, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E18: what was asked arrives late, and is answered at once, before the request to cancel it."""
    monkeypatch.setattr(connection, "cancel", lambda pgconn: None)
    spoken = threading.Timer(0.6, lambda: setattr(line, "mode", Pass()))

    def use() -> None:
        with engine.block(pid, limit=0.3) as tx:
            line.mode = Silent()
            spoken.start()
            tx.execute("SELECT 1")

    with pytest.raises(StoreUnavailable, match="has not answered"):
        use()
    spoken.join()


def test_so_it_was_if_the_cancel_arrived_first(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What decides is the time between the limit and the answer, not what the server answered."""
    monkeypatch.setattr(transaction, "CANCELLED_WITHIN", 0.2)
    cancel, timers = connection.cancel, list[threading.Timer]()

    def cancel_late(pgconn: Any) -> None:
        timers.append(threading.Timer(0.4, cancel, (pgconn,)))
        timers[-1].start()

    monkeypatch.setattr(connection, "cancel", cancel_late)

    def use() -> None:
        with engine.block(pid, limit=0.3) as tx:
            tx.execute("SELECT pg_sleep(60)")

    with pytest.raises(StoreUnavailable, match="has not answered") as raised:
        use()
    assert isinstance(raised.value.__cause__, StoreUnavailable)
    assert isinstance(raised.value.__cause__.__cause__, psycopg.errors.QueryCanceled)
    for timer in timers:
        timer.join()


def test_a_block_that_reads_slowly_from_a_stream_has_taken_too_long(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "ANSWERED_WITHIN", 0.2)

    def read() -> None:
        with engine.block(pid, limit=0.3) as tx:
            for _ in tx.cursor().stream("SELECT generate_series(1, 1000)"):
                time.sleep(0.1)

    with pytest.raises(TransactionTooLong):
        read()


def test_a_statement_that_was_answered_promptly_has_met_no_silence(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was under way when the limit passed, and done before the server heard of the cancel."""
    monkeypatch.setattr(connection, "cancel", lambda pgconn: None)

    def use() -> None:
        with engine.block(pid, limit=0.3) as tx:
            time.sleep(0.25)
            tx.execute("SELECT pg_sleep(0.1)")

    with pytest.raises(TransactionTooLong):
        use()


def test_an_error_that_came_promptly_is_no_silence_either(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "cancel", lambda pgconn: None)

    def use() -> None:
        with engine.block(pid, limit=0.3) as tx:
            time.sleep(0.25)
            tx.execute("SELECT 1 / (SELECT 0 FROM (SELECT pg_sleep(0.1) OFFSET 0) s)")

    with pytest.raises(TransactionTooLong):
        use()
