"""How operations reach a PostgreSQL server: transactions, restarts, pools, batches, threads and event loops."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from shigoto.engine.op import WRITE, Op, OpBatch
from shigoto.engine.postgres.address import read_address
from shigoto.engine.postgres.driver import ONE_TRIP, Driver
from shigoto.engine.postgres.wire import Script
from shigoto.engine.sql.commands import NamedSql, SqlText
from shigoto.model.errors import SchemaMissing, StoreRefused, StoreUnavailable
from tests.postgres import until_dozing

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

TEXTS = {
    "add": "INSERT INTO note (id, said) VALUES ($1::int, $2::text) RETURNING id",
    "add_all": "INSERT INTO note (id, said) SELECT x::int, 'batch' FROM json_array_elements_text($1::json) x",
    "notes": "SELECT id, said FROM note ORDER BY id",
    "level": "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')",
    "pid": "SELECT pg_backend_pid()",
    "doze": "SELECT pg_sleep($1::float8), pg_backend_pid()",
}

Open = Callable[..., Driver]


@pytest.fixture
def open_driver(postgres_database: str) -> Iterator[Open]:
    drivers: list[Driver] = []

    def open_one(parameters: str = "", deadline: float = 30.0) -> Driver:
        drivers.append(Driver(read_address(postgres_database + parameters), TEXTS, deadline=deadline))
        return drivers[-1]

    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE note (id int PRIMARY KEY, said text NOT NULL)")
    yield open_one
    for driver in drivers:
        driver.close()


@pytest.fixture
def driver(open_driver: Open) -> Driver:
    return open_driver()


def call(name: str, *values: Any, **options: Any) -> Op[Any]:
    """An op that makes one call, and whose value is all its rows."""

    def start() -> Any:
        return (yield NamedSql(name, values)).fetchall()

    return Op(start=start, **options)


def connections_of(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchone()
    assert row is not None
    return int(row[0])


# Transactions


def test_a_write_is_committed_and_seen_by_others(driver: Driver, open_driver: Open) -> None:
    assert driver.run(call("add", 1, "one")) == [(1,)]

    assert open_driver().run(call("notes", mode="read")) == [(1, "one")]


def test_a_write_that_fails_leaves_nothing(driver: Driver) -> None:
    def start() -> Any:
        yield NamedSql("add", (1, "one"))
        raise ValueError("changed my mind")

    with pytest.raises(ValueError, match="changed my mind"):
        driver.run(Op(start=start))

    assert driver.run(call("notes", mode="read")) == []


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_isolation_is_ours_whatever_the_role_has_set(
    driver: Driver, postgres_database: str, isolation: str
) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(
            f"ALTER DATABASE \"{database}\" SET default_transaction_isolation TO '{isolation}'"
        )
        connection.execute(f'ALTER DATABASE "{database}" SET default_transaction_read_only TO on')

    assert driver.run(call("level")) == [("read committed", "off")]
    assert driver.run(call("level", mode="probe")) == [("read committed", "off")]
    assert driver.run(call("level", mode="read")) == [("repeatable read", "on")]


def test_a_read_sees_one_snapshot(driver: Driver, open_driver: Open) -> None:
    other = open_driver()

    def start() -> Any:
        before = (yield NamedSql("notes")).fetchall()
        other.run(call("add", 1, "meanwhile"))
        after = (yield NamedSql("notes")).fetchall()
        return before, after

    assert driver.run(Op(start=start, mode="read")) == ([], [])


def test_a_probe_may_write(driver: Driver) -> None:
    def start() -> Any:
        yield WRITE
        yield NamedSql("add", (1, "one"))

    driver.run(Op(start=start, mode="probe"))

    assert driver.run(call("notes", mode="read")) == [(1, "one")]


def test_a_script_has_many_statements(driver: Driver) -> None:
    def start() -> Any:
        yield Script("CREATE TABLE a (b int); INSERT INTO a VALUES (1), (2); SELECT 1")
        return (yield SqlText("SELECT count(*) FROM a")).fetchone()

    assert driver.run(Op(start=start)) == (2,)


def test_a_single_op_needs_no_transaction(driver: Driver) -> None:
    def start() -> Any:
        return (yield SqlText("SELECT current_setting('statement_timeout')")).fetchone()

    assert driver.run(Op(start=start, hints=ONE_TRIP)) == ("0",)
    assert driver.run(Op(start=start)) == ("30s",)
    assert driver.run(Op(start=start), deadline=5) == ("5s",)
    assert driver.run(Op(start=start, hints=ONE_TRIP)) == ("0",)
    assert driver.run(call("add", 1, "one", hints=ONE_TRIP)) == [(1,)]
    assert driver.run(call("notes", mode="read")) == [(1, "one")]


async def test_a_single_op_that_asks_for_it_has_a_transaction(driver: Driver) -> None:
    def start() -> Any:
        yield WRITE
        yield SqlText("SAVEPOINT here")
        yield NamedSql("add", (1, "one"))
        yield SqlText("ROLLBACK TO SAVEPOINT here")
        yield NamedSql("add", (2, "two"))

    driver.run(Op(start=start, hints=ONE_TRIP))

    assert await driver.arun(call("notes", mode="read")) == [(2, "two")]


async def test_a_single_op_that_goes_on_goes_on_in_a_transaction(driver: Driver) -> None:
    driver.run(call("add", 1, "one"))

    def start() -> Any:
        try:
            yield NamedSql("add", (1, "again"))
        except psycopg.errors.UniqueViolation:
            yield NamedSql("add", (2, "two"))
            yield NamedSql("add", (1, "again"))

    with pytest.raises(psycopg.errors.UniqueViolation):
        await driver.arun(Op(start=start, hints=ONE_TRIP))
    with pytest.raises(psycopg.errors.UniqueViolation):
        driver.run(Op(start=start, hints=ONE_TRIP))

    assert driver.run(call("notes", mode="read")) == [(1, "one")]


def test_an_op_that_goes_on_after_an_error_in_its_transaction_is_never_called_committed(
    driver: Driver,
) -> None:
    def start() -> Any:
        yield NamedSql("add", (1, "one"))
        try:
            yield NamedSql("add", (1, "again"))
        except psycopg.errors.UniqueViolation:
            return "fine"

    with pytest.raises(psycopg.InternalError, match="went on after an error"):
        driver.run(Op(start=start))


def test_what_follows_a_commit_happens_once_and_cannot_undo_it(driver: Driver) -> None:
    seen: list[Any] = []

    def committed(value: Any) -> None:
        seen.append(value)
        raise RuntimeError("no matter")

    assert driver.run(call("add", 1, "one", committed=committed)) == [(1,)]
    assert seen == [[(1,)]]
    assert driver.run(call("notes", mode="read")) == [(1, "one")]


# Restarts


@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_a_lost_conflict_starts_the_op_again(driver: Driver, code: str) -> None:
    starts: list[int] = []

    def start() -> Any:
        starts.append(1)
        yield NamedSql("add", (len(starts), "kept only if it is the last"))
        if len(starts) % 3:
            yield SqlText(f"DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '{code}'; END $$")
        return "done"

    assert driver.run(Op(start=start)) == "done"
    assert await driver.arun(Op(start=start)) == "done"

    assert [id for id, _ in driver.run(call("notes", mode="read"))] == [3, 6]


def test_conflicts_without_end_are_told(driver: Driver) -> None:
    starts: list[int] = []

    def start() -> Any:
        starts.append(1)
        yield SqlText("DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$")

    with pytest.raises(StoreUnavailable, match="too busy"):
        driver.run(Op(start=start))

    assert 2 < len(starts) < 20


def test_two_that_block_each_other_both_get_through(driver: Driver) -> None:
    driver.run(call("add_all", "[1, 2]"))
    both_began = threading.Barrier(2, timeout=30)

    def crossing(first: int, second: int) -> Op[None]:
        tries: list[int] = []

        def start() -> Any:
            tries.append(1)
            yield SqlText("UPDATE note SET said = said || 'x' WHERE id = $1::int", (first,))
            if len(tries) == 1:
                both_began.wait()
            yield SqlText("UPDATE note SET said = said || 'x' WHERE id = $1::int", (second,))

        return Op(start=start)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(driver.run, crossing(1, 2)), pool.submit(driver.run, crossing(2, 1))]:
            done.result(60)

    assert driver.run(call("notes", mode="read")) == [(1, "batchxx"), (2, "batchxx")]


# Errors


def test_a_missing_table_says_what_to_do(driver: Driver) -> None:
    def start() -> Any:
        yield SqlText("SELECT 1 FROM shigoto.job")

    with pytest.raises(SchemaMissing, match="shigoto migrate"):
        driver.run(Op(start=start))


def test_what_a_role_may_not_do_is_refused(driver: Driver, postgres_database: str) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS nobody_much")
        connection.execute("CREATE ROLE nobody_much LOGIN PASSWORD 'hush'")
    scheme, rest = postgres_database.split("://")
    weak = Driver(read_address(f"{scheme}://nobody_much:hush@{rest.split('@')[1]}"), TEXTS)

    with pytest.raises(StoreRefused, match="permission denied for table note"):
        weak.run(call("notes"))
    weak.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("53100", "short of disk space: could not extend.* Make room"),
        ("53200", "short of memory: could not extend.* Give it more"),
        ("53300", "short of connections: could not extend.* Raise max_connections"),
    ],
)
async def test_a_server_that_starves_is_an_outage_with_a_remedy(
    driver: Driver, code: str, words: str
) -> None:
    """E27, F39: and no failure of whoever asked for something."""

    def start() -> Any:
        yield SqlText(f"DO $$ BEGIN RAISE EXCEPTION 'could not extend' USING ERRCODE = '{code}'; END $$")

    for hints in (None, ONE_TRIP):
        with pytest.raises(StoreUnavailable, match=words):
            driver.run(Op(start=start, hints=hints))
        with pytest.raises(StoreUnavailable, match=words):
            await driver.arun(Op(start=start, hints=hints))


async def test_a_server_that_takes_no_more_connections_is_waited_for(postgres_database: str) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS crowded")
        connection.execute("CREATE ROLE crowded LOGIN PASSWORD 'crowded' CONNECTION LIMIT 0")
    address = re.sub(r"//[^@]*@", "//crowded:crowded@", postgres_database)
    driver = Driver(read_address(address), TEXTS, deadline=1.0)
    began = time.monotonic()

    with pytest.raises(
        StoreUnavailable,
        match=r"short of connections: .*too many connections for role.* Raise max_connections",
    ):
        await driver.arun(call("pid"))
    assert time.monotonic() - began > 0.5

    driver.close()
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("DROP ROLE crowded")


@pytest.mark.parametrize("part", ["password", "database", "user"])
async def test_an_address_that_the_server_refuses_is_refused_at_once(
    postgres_database: str, part: str
) -> None:
    scheme, rest = postgres_database.split("://")
    who, where = rest.split("@")
    user, password = who.split(":")
    wrong = {
        "password": f"{scheme}://{user}:hush@{where}",
        "database": f"{postgres_database}_not",
        "user": f"{scheme}://nobody_at_all:{password}@{where}",
    }[part]
    driver = Driver(read_address(wrong), TEXTS)
    began = time.monotonic()

    with pytest.raises(StoreRefused) as caught:
        driver.run(call("pid"))
    with pytest.raises(StoreRefused):
        await driver.arun(call("pid"))

    assert time.monotonic() - began < 5
    assert "hush" not in str(caught.value)
    assert password not in str(caught.value)
    driver.close()


# Pools


def test_connections_are_used_again_and_closed_by_close(driver: Driver, postgres_database: str) -> None:
    pids = {driver.run(call("pid"))[0][0] for _ in range(5)}

    assert len(pids) == 1
    assert connections_of(postgres_database) == 1
    driver.close()
    driver.close()
    assert connections_gone(postgres_database)
    assert driver.run(call("pid"))[0][0] not in pids


def connections_gone(url: str) -> bool:
    end = time.monotonic() + 10
    while connections_of(url):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_threads_have_no_more_connections_than_they_may_and_wait_in_order(open_driver: Open) -> None:
    driver = open_driver("?pool=2")
    order: list[int] = []
    holds = threading.Event(), threading.Event()
    entered = threading.Semaphore(0)

    def holding(hold: threading.Event) -> Op[None]:
        def start() -> Any:
            yield NamedSql("pid")
            entered.release()
            hold.wait(30)

        return Op(start=start)

    def noting(number: int) -> Op[None]:
        def start() -> Any:
            yield NamedSql("pid")
            order.append(number)

        return Op(start=start)

    with ThreadPoolExecutor(12) as pool:
        busy = [pool.submit(driver.run, holding(hold)) for hold in holds]
        for _ in busy:
            assert entered.acquire(timeout=30)
        waiting = []
        for number in range(8):
            waiting.append(pool.submit(driver.run, noting(number)))
            _wait_for_line(driver, number + 1)
        # One connection serves them all: two side by side would let a slow one be passed.
        holds[0].set()
        for done in waiting:
            done.result(30)
        holds[1].set()
        for done in busy:
            done.result(30)

    assert order == list(range(8))


def test_whoever_waits_too_long_for_a_connection_is_told_why(open_driver: Open) -> None:
    driver = open_driver("?pool=1")

    def start() -> Any:
        yield NamedSql("pid")
        with pytest.raises(StoreUnavailable, match="pool=N"):
            driver.run(call("pid"), deadline=0.2)

    driver.run(Op(start=start))

    assert driver.run(call("pid"))


async def test_an_event_loop_has_no_more_connections_than_it_may(
    open_driver: Open, postgres_database: str
) -> None:
    driver = open_driver("?pool=3")

    await asyncio.gather(*(driver.arun(call("doze", 0.02)) for _ in range(12)))

    assert connections_of(postgres_database) == 3


async def test_those_who_wait_for_a_connection_get_it_in_order(open_driver: Open) -> None:
    driver = open_driver("?pool=1")
    order: list[int] = []

    async def one(number: int) -> None:
        await driver.arun(call("doze", 0.005))
        order.append(number)

    await asyncio.gather(*(one(number) for number in range(12)))

    assert order == list(range(12))


async def test_an_async_caller_who_waits_too_long_is_told_why_and_the_next_gets_through(
    open_driver: Open, postgres_database: str
) -> None:
    driver = open_driver("?pool=1")
    slow = asyncio.create_task(driver.arun(call("doze", 0.5)))
    await until_dozing(postgres_database)

    with pytest.raises(StoreUnavailable, match="pool=N"):
        await driver.arun(call("pid"), deadline=0.1)

    await slow
    assert await driver.arun(call("pid"))


async def test_different_ops_of_one_loop_run_side_by_side(driver: Driver) -> None:
    began = time.monotonic()

    await asyncio.gather(*(driver.arun(call("doze", 0.5)) for _ in range(4)))

    assert time.monotonic() - began < 1.5


async def test_a_cancelled_caller_costs_no_connection(open_driver: Open, postgres_database: str) -> None:
    driver = open_driver("?pool=1")
    [(pid,)] = await driver.arun(call("pid"))
    task = asyncio.create_task(driver.arun(call("doze", 0.3, hints=ONE_TRIP)))
    await until_dozing(postgres_database)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await driver.arun(call("pid")) == [(pid,)]


async def test_a_cancelled_transaction_is_rolled_back(open_driver: Open, postgres_database: str) -> None:
    driver = open_driver("?pool=1")

    def start() -> Any:
        yield NamedSql("add", (1, "one"))
        yield NamedSql("doze", (0.3,))

    task = asyncio.create_task(driver.arun(Op(start=start)))
    await until_dozing(postgres_database)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await driver.arun(call("notes", mode="read")) == []


def test_many_threads_at_once_lose_nothing(driver: Driver) -> None:
    with ThreadPoolExecutor(24) as pool:
        for done in [
            pool.submit(driver.run, call("add", n, "x", hints=ONE_TRIP if n % 2 else None))
            for n in range(300)
        ]:
            done.result(60)

    assert len(driver.run(call("notes", mode="read"))) == 300


def test_one_driver_serves_one_loop_after_the_other(driver: Driver, postgres_database: str) -> None:
    async def some() -> None:
        await asyncio.gather(*(driver.arun(call("doze", 0.01)) for _ in range(4)))

    for _ in range(4):
        asyncio.run(some())

    driver.close()
    assert connections_gone(postgres_database)


def test_a_loop_that_ended_in_the_midst_of_an_op_leaves_no_connection(
    driver: Driver, postgres_database: str
) -> None:
    async def cut_short() -> None:
        tasks = [asyncio.create_task(driver.arun(call("doze", 0.2))) for _ in range(3)]
        await until_dozing(postgres_database)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(cut_short())
    assert connections_gone(postgres_database)  # and no transaction, with its locks

    asyncio.run(asyncio.wait_for(driver.arun(call("pid")), 10))
    driver.close()
    assert connections_gone(postgres_database)


async def test_close_on_the_loop_closes_what_is_in_use_when_it_comes_back(
    driver: Driver, postgres_database: str
) -> None:
    task = asyncio.create_task(driver.arun(call("doze", 0.3)))
    await until_dozing(postgres_database)

    driver.close()

    assert await task
    assert await asyncio.to_thread(connections_gone, postgres_database)


def test_close_in_another_thread_than_the_loop(driver: Driver, postgres_database: str) -> None:
    opened, end = threading.Event(), threading.Event()

    async def live() -> None:
        await driver.arun(call("pid"))
        opened.set()
        await asyncio.to_thread(end.wait, 30)

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    assert opened.wait(30)

    driver.close()

    assert connections_gone(postgres_database)
    end.set()
    thread.join(30)


# Batches


class Batching:
    """Ops that can be done several at once, and what became of them."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.refused: set[int] = set()

    def op(self, id: int) -> Op[int]:
        def start() -> Any:
            self.batches.append([id])
            if id in self.refused:
                raise ValueError(id)
            yield NamedSql("add", (id, "alone"))
            return id

        return Op(start=start, batch=OpBatch("add", id, self.several))

    def several(self, ids: list[int]) -> Op[list[int]]:
        def start() -> Any:
            self.batches.append(list(ids))
            yield NamedSql("add_all", (str(ids),))
            return ids

        return Op(start=start)


async def test_a_lone_caller_waits_for_nobody(driver: Driver) -> None:
    batching = Batching()

    for id in range(3):
        assert await driver.arun(batching.op(id)) == id

    assert batching.batches == [[0], [1], [2]]


async def test_callers_who_wait_together_share_an_op_and_each_gets_its_own_value(driver: Driver) -> None:
    batching = Batching()

    values = await asyncio.gather(*(driver.arun(batching.op(id)) for id in range(100)))

    assert values == list(range(100))
    assert batching.batches == [[0], list(range(1, 100))]
    assert len(await driver.arun(call("notes", mode="read"))) == 100


async def test_callers_who_come_back_at_once_are_one_batch_again(driver: Driver) -> None:
    batching = Batching()

    async def one(caller: int) -> None:
        for turn in range(5):
            await driver.arun(batching.op(10 * turn + caller))

    await asyncio.gather(*(one(caller) for caller in range(10)))

    assert [len(batch) for batch in batching.batches] == [1, 9, 10, 10, 10, 10]


async def test_a_refused_batch_is_tried_one_by_one(driver: Driver) -> None:
    batching = Batching()
    await driver.arun(call("add", 5, "there already"))

    values = await asyncio.gather(*(driver.arun(batching.op(id)) for id in range(10)), return_exceptions=True)

    assert [value for value in values if not isinstance(value, Exception)] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert isinstance(values[5], psycopg.errors.UniqueViolation)


async def test_a_cancelled_caller_takes_nobody_with_it(driver: Driver) -> None:
    batching = Batching()
    tasks = [asyncio.create_task(driver.arun(batching.op(id))) for id in range(6)]
    await asyncio.sleep(0)

    tasks[0].cancel()
    tasks[3].cancel()
    values = await asyncio.gather(*tasks, return_exceptions=True)

    assert [values[id] for id in (1, 2, 4, 5)] == [1, 2, 4, 5]
    assert isinstance(values[3], asyncio.CancelledError)
    assert 3 not in {id for batch in batching.batches for id in batch}


async def test_committed_and_rings_of_a_batch_are_those_of_its_members(driver: Driver) -> None:
    batching = Batching()
    seen: list[int] = []

    def op(id: int) -> Op[int]:
        plain = batching.op(id)
        return Op(
            start=plain.start,
            batch=plain.batch,
            committed=seen.append,
            rings=lambda _: False,
        )

    await asyncio.gather(*(driver.arun(op(id)) for id in range(5)))

    assert sorted(seen) == [0, 1, 2, 3, 4]


# Prepared statements


async def test_statements_are_prepared_where_nobody_is_in_between_unless_the_address_says_no(
    open_driver: Open,
) -> None:
    def start() -> Any:
        return (
            yield SqlText("SELECT count(*) FROM pg_prepared_statements WHERE $1::int = 1", (1,))
        ).fetchone()

    plain, preparing, unprepared = open_driver(), open_driver("?prepare=on"), open_driver("?prepare=off")
    for driver in (plain, preparing, unprepared):
        for _ in range(4):
            driver.run(Op(start=start))
            await driver.arun(Op(start=start))

    for driver, prepared in ((plain, 1), (preparing, 1), (unprepared, 0)):
        assert driver.run(Op(start=start)) == (prepared,)
        assert await driver.arun(Op(start=start)) == (prepared,)


def test_a_statement_that_cannot_be_prepared_can_still_be_understood_later(open_driver: Open) -> None:
    driver = open_driver("?prepare=on")

    def start() -> Any:
        return (yield SqlText("SELECT x FROM later WHERE x = $1::int", (1,))).fetchall()

    for _ in range(3):
        with pytest.raises(SchemaMissing):
            driver.run(Op(start=start))
    driver.run(Op(start=lambda: (yield SqlText("CREATE TABLE later (x int)"))))

    for _ in range(3):
        assert driver.run(Op(start=start)) == []


def _wait_for_line(driver: Driver, length: int) -> None:
    end = time.monotonic() + 30
    while len(driver._threads._line) != length:
        assert time.monotonic() < end
        time.sleep(0.001)
