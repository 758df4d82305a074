"""How a commit on PostgreSQL wakes those who wait: LISTEN and NOTIFY, coalesced, self-healing, and never needed."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from shigoto.engine.op import Op
from shigoto.engine.postgres.address import read_address
from shigoto.engine.postgres.doorbell import APART, COALESCE_FOR, MANY_RINGS
from shigoto.engine.postgres.driver import ONE_TRIP, Driver
from shigoto.engine.postgres.wire import RING
from shigoto.engine.protocol import Doorbell
from shigoto.engine.sql.commands import SqlText

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

Open = Callable[..., Driver]


@pytest.fixture
def open_driver(postgres_database: str) -> Iterator[Open]:
    drivers: list[Driver] = []

    def open_one(parameters: str = "") -> Driver:
        drivers.append(Driver(read_address(postgres_database + parameters), {}))
        return drivers[-1]

    yield open_one
    for driver in drivers:
        driver.close()


@pytest.fixture
def driver(open_driver: Open) -> Driver:
    return open_driver()


async def doorbells_of(driver: Driver, count: int) -> list[Doorbell]:
    """Doorbells that listen by now: the first connect rings, too."""
    doorbells = [driver.listen() for _ in range(count)]
    for doorbell in doorbells:
        assert await doorbell.wait(20)
    return doorbells


async def doorbell_of(driver: Driver) -> Doorbell:
    [doorbell] = await doorbells_of(driver, 1)
    return doorbell


def after_commit() -> Op[None]:
    """Something that is known to want a worker only when it is done."""

    def start() -> Any:
        yield SqlText("SELECT 1")

    return Op(start=start, rings=lambda _: True)


def in_statement() -> Op[bool]:
    """Something that rings by itself, if it may."""

    def start() -> Any:
        text = "SELECT $1::int::boolean, CASE WHEN $1::int::boolean THEN pg_notify('shigoto', '') END"
        return (yield SqlText(text, (RING,))).fetchone()[0]

    return Op(start=start, hints=ONE_TRIP, rings=lambda _: True)


class Heard:
    """Every single notification, as another connection hears it."""

    def __init__(self, url: str, channel: str = "shigoto") -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(f'LISTEN "{channel}"')

    def count(self, seconds: float) -> int:
        return len(list(self._connection.notifies(timeout=seconds)))

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def heard(postgres_database: str) -> Iterator[Heard]:
    heard = Heard(postgres_database)
    yield heard
    heard.close()


async def test_a_ring_wakes_every_doorbell_soon(driver: Driver, open_driver: Open) -> None:
    doorbells = [*await doorbells_of(driver, 2), await doorbell_of(open_driver())]
    began = time.monotonic()

    await asyncio.to_thread(open_driver().run, after_commit())

    assert all(await asyncio.gather(*(doorbell.wait(10) for doorbell in doorbells)))
    assert time.monotonic() - began < 2
    for doorbell in doorbells:
        doorbell.close()
        doorbell.close()


async def test_a_doorbell_without_a_ring_waits_in_vain(driver: Driver) -> None:
    doorbell = await doorbell_of(driver)

    assert await doorbell.wait(0.2) is False
    assert await doorbell.wait(0) is False
    doorbell.close()


async def test_all_doorbells_of_a_loop_share_one_connection_and_the_last_takes_it_along(
    driver: Driver, postgres_database: str
) -> None:
    doorbells = await doorbells_of(driver, 3)
    assert listeners(postgres_database) == 1

    for doorbell in doorbells[:2]:
        doorbell.close()
    assert listeners(postgres_database) == 1
    doorbells[2].close()
    await eventually(lambda: listeners(postgres_database) == 0)

    again = await doorbell_of(driver)
    assert listeners(postgres_database) == 1
    again.close()


def listeners(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


async def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def test_a_doorbell_heals_itself_and_rings_since_something_may_have_been_missed(
    driver: Driver, postgres_database: str
) -> None:
    doorbell = await doorbell_of(driver)
    for _ in range(2):
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
                " AND datname = current_database()"
            )
        assert await doorbell.wait(20)

    await driver.arun(after_commit())
    assert await doorbell.wait(10)
    doorbell.close()


async def test_where_the_address_says_so_nobody_listens(open_driver: Open, postgres_database: str) -> None:
    doorbell = open_driver("?listen=off").listen()

    assert await doorbell.wait(0.1) is False
    assert listeners(postgres_database) == 0
    doorbell.close()


async def test_listening_may_have_an_address_of_its_own(open_driver: Open, postgres_database: str) -> None:
    from urllib.parse import quote

    driver = open_driver(f"?listen={quote(postgres_database, safe='')}")
    doorbell = await doorbell_of(driver)

    await driver.arun(after_commit())

    assert await doorbell.wait(10)
    doorbell.close()


async def test_each_schema_has_a_bell_of_its_own(open_driver: Open) -> None:
    ours, theirs = open_driver("?schema=ours"), open_driver("?schema=theirs")
    doorbell = await doorbell_of(ours)

    await theirs.arun(after_commit())
    assert await doorbell.wait(0.3) is False
    await ours.arun(after_commit())
    assert await doorbell.wait(10)
    doorbell.close()


def test_a_doorbell_whose_loop_is_gone_does_no_harm(driver: Driver) -> None:
    doorbells: list[Doorbell] = []

    async def listen() -> None:
        doorbells.append(await doorbell_of(driver))
        doorbells.append(driver.listen())

    asyncio.run(listen())
    driver.run(after_commit())

    for doorbell in doorbells:
        doorbell.close()
    asyncio.run(listen())
    driver.close()
    for doorbell in doorbells:
        doorbell.close()


async def test_a_doorbell_that_is_closed_while_it_connects_leaves_nothing(
    driver: Driver, postgres_database: str
) -> None:
    for _ in range(5):
        doorbell = driver.listen()
        await asyncio.sleep(0)
        doorbell.close()

    await eventually(lambda: listeners(postgres_database) == 0)


# The button


def most_rings(seconds: float) -> int:
    """How many are allowed in that time, until a crowd is seen and in it, the last one included."""
    return 2 + min(int(seconds / APART), MANY_RINGS + int(seconds / COALESCE_FOR))


def test_the_first_rings_at_once_and_a_crowd_after_it_not_each(driver: Driver, heard: Heard) -> None:
    began = time.monotonic()
    rung = [driver.run(in_statement()) for _ in range(20)]
    took = time.monotonic() - began

    assert rung[0] is True
    assert not all(rung)
    assert 2 <= heard.count(1.0) <= most_rings(took)


async def test_the_same_on_a_loop(driver: Driver, heard: Heard) -> None:
    began = time.monotonic()
    rung = [await driver.arun(in_statement()) for _ in range(20)]
    took = time.monotonic() - began

    assert rung[0] is True
    assert not all(rung)
    assert 2 <= await asyncio.to_thread(heard.count, 1.0) <= most_rings(took)


def test_one_alone_rings_once(driver: Driver, heard: Heard) -> None:
    assert driver.run(in_statement()) is True

    assert heard.count(0.3) == 1


async def test_what_rings_after_its_commit_rings_at_once_and_then_not_for_a_while(
    driver: Driver, heard: Heard
) -> None:
    began = time.monotonic()
    for _ in range(10):
        await driver.arun(after_commit())
    took = time.monotonic() - began
    assert 1 <= await asyncio.to_thread(heard.count, 0.5) <= most_rings(took)

    began = time.monotonic()
    for _ in range(10):
        await asyncio.to_thread(driver.run, after_commit())
    took = time.monotonic() - began
    assert 1 <= await asyncio.to_thread(heard.count, 0.5) <= most_rings(took)


def test_a_ring_that_was_rolled_back_is_rung_again_by_what_comes_in_its_place(
    driver: Driver, heard: Heard
) -> None:
    def start() -> Any:
        try:
            yield SqlText("SELECT pg_notify('shigoto', ''), 1 / 0 WHERE $1::boolean", (RING,))
        except psycopg.errors.DivisionByZero:
            yield SqlText("SELECT pg_notify('shigoto', '') WHERE $1::boolean", (RING,))
            yield SqlText("SELECT pg_notify('shigoto', '') WHERE $1::boolean", (RING,))

    driver.run(Op(start=start, hints=ONE_TRIP))

    assert heard.count(0.3) == 1


def test_a_ring_by_itself_leaves_no_setting_behind(driver: Driver, heard: Heard) -> None:
    def start() -> Any:
        return (yield SqlText("SELECT pg_backend_pid(), current_setting('synchronous_commit')")).fetchone()

    before = driver.run(Op(start=start, mode="read", hints=ONE_TRIP))
    driver.run(after_commit())

    assert heard.count(0.3) == 1
    assert driver.run(Op(start=start, mode="read", hints=ONE_TRIP)) == before
    assert before[1] == "on"


def test_what_fails_rings_nobody(driver: Driver, heard: Heard) -> None:
    def start() -> Any:
        yield SqlText("SELECT 1 / 0")

    with pytest.raises(psycopg.errors.DivisionByZero):
        driver.run(Op(start=start, rings=lambda _: True))

    assert heard.count(0.2) == 0


def test_close_rings_what_is_still_owed(driver: Driver, heard: Heard) -> None:
    rung = [driver.run(in_statement()) for _ in range(3)]

    driver.close()

    assert not any(thread.name == "shigoto-ring" for thread in threading.enumerate())
    assert heard.count(0.3) >= rung.count(True) + (not rung[-1])


ENDING = """
import asyncio, os, sys
from shigoto.engine.postgres.address import read_address
from shigoto.engine.postgres.driver import Driver

driver = Driver(read_address(sys.argv[1]), {})
loop = asyncio.new_event_loop()

async def be_about_to_ring(turns):
    here = driver._loops.here()
    driver._start_ringing(here)
    for _ in range(turns):
        await asyncio.sleep(0)

for turns in (0, 3):
    loop.run_until_complete(be_about_to_ring(turns))
if (child := os.fork()):
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it forks")
def test_a_program_may_end_when_it_is_about_to_ring(postgres_database: str) -> None:
    """E13: nor has anybody to read of that in a child that was forked then."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING, postgres_database],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
