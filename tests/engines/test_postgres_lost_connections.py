"""A connection that the server has ended is noticed at once, on every event loop: uvloop tells of it only once."""

import asyncio
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import psycopg
import pytest

from shigoto.engine.postgres.address import read_address
from shigoto.engine.postgres.connection import LoopConnection
from shigoto.engine.postgres.driver import Driver
from shigoto.engine.postgres.errors import ConnectionLost
from shigoto.engine.postgres.pool import LoopConnections
from shigoto.engine.postgres.wire import WireRequest
from shigoto.model.errors import StoreUnavailable

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

DEADLINE = 10.0
AT_ONCE = 3.0  # seconds: far less than the deadline
LOOPS = ["asyncio", "uvloop"]


def factory_of(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if name == "asyncio":
        return asyncio.new_event_loop
    if find_spec("uvloop") is None:
        pytest.skip("no uvloop")
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


async def ended_by_the_server(url: str, pool: LoopConnections, *, in_block: bool) -> LoopConnection:
    """A connection in the midst of a transaction, which has been ended; nobody has looked at it since."""
    connection = await pool.take(time.monotonic() + DEADLINE)
    await connection.ask(WireRequest(b"BEGIN"), time.monotonic() + DEADLINE)
    if in_block:
        connection.stop_waiting()
    pid = connection.wire.pgconn.backend_pid
    # Not on a thread: the loop must not have a moment to notice.
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    return connection


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("in_block", [True, False])
def test_who_asks_on_a_connection_that_was_ended_is_told_at_once(
    postgres_database: str, loop: str, in_block: bool
) -> None:
    """S1-13, E15, E17: else a transaction block would wait for the whole deadline of its last statement."""

    async def ask() -> float:
        driver = Driver(read_address(postgres_database), {})
        pool = LoopConnections("a store", 1, driver._connector.aopen)
        connection = await ended_by_the_server(postgres_database, pool, in_block=in_block)
        if in_block:
            connection.wait_again()
        began = time.monotonic()
        with pytest.raises(ConnectionLost):
            await connection.ask(WireRequest(b"SELECT 1"), began + DEADLINE)
        return time.monotonic() - began

    with asyncio.Runner(loop_factory=factory_of(loop)) as runner:
        assert runner.run(ask()) < AT_ONCE


async def test_a_connection_that_is_closed_before_its_answer_came_gives_its_place_free(
    postgres_database: str,
) -> None:
    """So it is if somebody is cancelled who has just begun a transaction block."""
    driver = Driver(read_address(postgres_database), {})
    pool = LoopConnections("a store", 1, driver._connector.aopen)
    connection = await pool.take(time.monotonic() + DEADLINE)
    asking = asyncio.create_task(
        connection.ask(WireRequest(b"SELECT pg_sleep(30)"), time.monotonic() + DEADLINE)
    )
    await asyncio.wait([asking], timeout=0.05)
    asking.cancel()
    await asyncio.wait([asking])

    pool.lose(connection)
    pool.give_back(connection)

    another = await pool.take(time.monotonic() + AT_ONCE)
    assert another is not connection
    pool.give_back(another)
    pool.close()


async def test_a_connection_that_comes_at_the_deadline_is_left_to_others(postgres_database: str) -> None:
    """Whoever got it would send a statement, and be told at once that no answer came in time."""
    driver = Driver(read_address(postgres_database), {})
    pool = LoopConnections("a store", 1, driver._connector.aopen)
    connection = await pool.take(time.monotonic() + DEADLINE)
    waiting = asyncio.create_task(pool.take(time.monotonic() + 0.02))
    await asyncio.sleep(0)

    asyncio.get_running_loop().call_soon(pool.give_back, connection)
    time.sleep(0.05)  # noqa: ASYNC251 (the loop is to be late)

    with pytest.raises(StoreUnavailable, match="until the deadline"):
        await waiting
    assert await pool.take(time.monotonic() + AT_ONCE) is connection
    pool.give_back(connection)
    pool.close()
