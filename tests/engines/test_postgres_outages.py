"""A PostgreSQL server that is killed, restarted, stopped in its tracks or cut off, and processes that fork."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from devtools.postgres import Server
from shigoto.engine.op import Op
from shigoto.engine.postgres import pool
from shigoto.engine.postgres.address import read_address
from shigoto.engine.postgres.driver import ONE_TRIP, Driver
from shigoto.engine.postgres.pool import LONGEST_PAUSE, Reconnect
from shigoto.engine.sql.commands import NamedSql, SqlText
from shigoto.model.errors import StoreError, StoreUnavailable
from shigoto.worker.state import Trouble, longest_pause
from tests.postgres import ALWAYS, Yard

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

TEXTS = {
    "add": "INSERT INTO note (id) VALUES ($1::int) ON CONFLICT DO NOTHING",
    "notes": "SELECT id FROM note ORDER BY id",
    "pid": "SELECT pg_backend_pid()",
    "doze": "SELECT pg_sleep($1::float8)",
    "big": "SELECT length($1::text)",
}

Open = Callable[..., Driver]


@pytest.fixture(scope="module")
def own_server(postgres_yard: Yard) -> Iterator[Server]:
    """A server that these tests may harm. Its version does not matter to the driver."""
    try:
        server = postgres_yard.server_of_its_own(ALWAYS)
        running = server.__enter__()
    except StoreError as error:
        pytest.skip(f"no PostgreSQL {ALWAYS}: {error}")
    with psycopg.connect(running.address, autocommit=True) as connection:
        connection.execute("CREATE TABLE note (id int PRIMARY KEY)")
    yield running
    server.__exit__(None, None, None)


@pytest.fixture
def server(own_server: Server) -> Iterator[Server]:
    own_server.start()
    with psycopg.connect(own_server.address, autocommit=True) as connection:
        connection.execute("TRUNCATE note")
    yield own_server
    if own_server.running:
        own_server.thaw()


@pytest.fixture
def open_driver(server: Server) -> Iterator[Open]:
    drivers: list[Driver] = []

    def open_one(parameters: str = "", deadline: float = 30.0) -> Driver:
        drivers.append(Driver(read_address(server.address + parameters), TEXTS, deadline=deadline))
        return drivers[-1]

    yield open_one
    for driver in drivers:
        driver.close()


def call(name: str, *values: Any, **options: Any) -> Op[Any]:
    def start() -> Any:
        return (yield NamedSql(name, values)).fetchall()

    return Op(start=start, **options)


# Restarts and kills


@pytest.mark.parametrize("hints", [None, ONE_TRIP])
async def test_idle_connections_that_a_restart_has_closed_are_replaced_without_a_word(
    open_driver: Open, server: Server, hints: object
) -> None:
    driver = open_driver()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(driver.run, [call("doze", 0.1)] * 4))
    await asyncio.gather(*(driver.arun(call("doze", 0.05)) for _ in range(4)))

    server.restart()

    assert driver.run(call("notes", hints=hints)) == []
    assert await driver.arun(call("notes", hints=hints)) == []


async def test_idle_connections_of_a_killed_server_are_replaced_when_it_is_back(
    open_driver: Open, server: Server
) -> None:
    driver = open_driver()
    driver.run(call("pid"))
    await driver.arun(call("pid"))

    server.kill()
    server.start()

    assert driver.run(call("notes")) == []
    assert await driver.arun(call("notes")) == []


async def test_a_transaction_that_loses_its_server_before_the_commit_is_started_again(
    open_driver: Open, server: Server
) -> None:
    driver = open_driver()

    def op() -> Op[int]:
        starts: list[int] = []

        def start() -> Any:
            starts.append(1)
            yield NamedSql("add", (1,))
            if len(starts) == 1:
                server.restart()
            yield NamedSql("add", (2,))
            return len(starts)

        return Op(start=start)

    assert driver.run(op()) == 2
    assert await driver.arun(op()) == 2
    assert driver.run(call("notes")) == [(1,), (2,)]


def test_a_short_outage_is_waited_for(open_driver: Open, server: Server) -> None:
    driver = open_driver()
    driver.run(call("pid"))
    server.kill()
    back = threading.Timer(1.0, server.start)
    back.start()

    driver.run(call("add", 1))

    back.join()
    assert driver.run(call("notes")) == [(1,)]


async def test_a_short_outage_is_waited_for_on_a_loop_by_all_at_once(
    open_driver: Open, server: Server
) -> None:
    driver = open_driver()
    await driver.arun(call("pid"))
    await asyncio.to_thread(server.kill)
    back = asyncio.create_task(_later(1.0, server.start))

    await asyncio.gather(*(driver.arun(call("add", id)) for id in range(40)))

    await back
    assert len(await driver.arun(call("notes"))) == 40


async def _later(delay: float, action: Callable[[], None]) -> None:
    await asyncio.sleep(delay)
    await asyncio.to_thread(action)


def test_a_long_outage_is_told_at_once_and_its_end_is_noticed(open_driver: Open, server: Server) -> None:
    driver = open_driver(deadline=1.0)
    driver.run(call("pid"))
    server.kill()

    with pytest.raises(StoreUnavailable) as caught:
        driver.run(call("pid"))
    password = server._place.password()
    assert password not in str(caught.value)
    assert f":{server.port}/postgres cannot be reached" in str(caught.value)
    began = time.monotonic()
    for _ in range(50):
        with pytest.raises(StoreUnavailable):
            driver.run(call("pid"))
    assert time.monotonic() - began < 2

    server.start()
    began = time.monotonic()
    while True:
        try:
            driver.run(call("pid"))
            break
        except StoreUnavailable:
            assert time.monotonic() - began < 5
            time.sleep(0.05)


def test_an_outage_lets_one_try_at_a_time_with_growing_pauses() -> None:
    now = [100.0]
    reconnect = Reconnect(10.0, clock=lambda: now[0])
    failure = StoreUnavailable("down")
    assert reconnect.admit(200.0) == 0.0
    assert reconnect.admit(200.0) == 0.0  # all is well: nobody waits for anybody

    reconnect.ended(failure)
    reconnect.ended(failure)
    tries: list[float] = []
    while now[0] < 160.0:
        admitted = []
        for _ in range(5):
            try:
                admitted.append(reconnect.admit(now[0] + 30.0) == 0.0)
            except StoreUnavailable:
                assert now[0] >= 110.0
        assert admitted.count(True) <= 1
        if True in admitted:
            tries.append(now[0])
            reconnect.ended(failure)
        now[0] += 0.01

    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert 0.05 < tries[0] - 100.0 < 0.2
    assert max(pauses) < 1.25 * LONGEST_PAUSE
    assert min(pauses[-5:]) > 0.75 * LONGEST_PAUSE
    now[0] += 5.0
    assert reconnect.admit(now[0] + 30.0) == 0.0
    reconnect.ended(None)
    assert reconnect.admit(0.0) == reconnect.admit(0.0) == 0.0


@pytest.mark.parametrize("lease", [30.0, 300.0])
def test_a_server_that_is_back_is_noticed_within_five_seconds_in_every_phase_of_all_pauses(
    lease: float,
) -> None:
    """A worker waits for the reconnect, and then for itself; both start at any moment of an outage."""
    waits = [_until_noticed(phase, lease) for phase in range(200)]

    assert max(max(wait) for wait in waits) < 4.5


def _until_noticed(phase: int, lease: float) -> list[float]:
    """How long a claimer and a keeper take to get through, from the end of a long outage on a clock of its own."""
    random = Random(phase)
    state: Any = SimpleNamespace(random=random, lease=lease)
    now = 100.0
    back_at = 160.0 + phase * 0.031
    reconnect = Reconnect(10.0, clock=lambda: now)
    reconnect.ended(StoreUnavailable("down"))
    asking = [
        (now + random.random(), 0, Trouble(state, "claimer")),
        (now + random.random(), 1, Trouble(state, "keeper", longest=longest_pause(lease))),
    ]
    through: list[float] = []
    while asking:
        asking.sort()
        now, part, trouble = asking.pop(0)
        try:
            pause = reconnect.admit(now + 30.0)
            if pause == 0.0:
                reconnect.ended(StoreUnavailable("down") if now < back_at else None)
        except StoreUnavailable:
            pause = trouble.next_pause()
        if pause == 0.0 and now >= back_at:
            through.append(now - back_at)
        else:
            asking.append((now + pause, part, trouble))
    return through


def test_a_try_that_was_given_up_lets_another_begin() -> None:
    now = [100.0]
    reconnect = Reconnect(10.0, clock=lambda: now[0])
    reconnect.ended(StoreUnavailable("down"))
    now[0] += 1
    assert reconnect.admit(200.0) == 0.0
    assert reconnect.admit(200.0) == pool.LOOK_EVERY

    reconnect.given_up()

    assert reconnect.admit(200.0) == 0.0


# Deadlines


def test_a_server_that_stands_still_in_the_midst_of_a_statement_costs_no_more_than_the_deadline(
    open_driver: Open, server: Server
) -> None:
    driver = open_driver()
    driver.run(call("pid"))
    stop = threading.Timer(0.3, server.freeze)
    stop.start()
    began = time.monotonic()

    with pytest.raises(StoreUnavailable, match="has not answered in time"):
        driver.run(call("doze", 0.6), deadline=1.5)

    assert 1.0 < time.monotonic() - began < 4.0
    stop.join()
    server.thaw()
    assert driver.run(call("notes")) == []


async def test_a_server_that_stands_still_costs_a_loop_no_more_than_the_deadline(
    open_driver: Open, server: Server
) -> None:
    driver = open_driver()
    await driver.arun(call("pid"))
    await asyncio.to_thread(server.freeze)
    began = time.monotonic()

    outcomes = await asyncio.gather(
        *(driver.arun(call("pid"), deadline=1.5) for _ in range(20)), return_exceptions=True
    )

    assert time.monotonic() - began < 5.0
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    await asyncio.to_thread(server.thaw)
    assert await driver.arun(call("notes")) == []


def test_a_deadline_holds_while_a_large_value_is_sent(open_driver: Open, server: Server) -> None:
    driver = open_driver()
    driver.run(call("pid"))
    server.freeze()
    began = time.monotonic()

    with pytest.raises(StoreUnavailable):
        driver.run(call("big", "x" * 50_000_000), deadline=1.0)

    assert time.monotonic() - began < 4.0
    server.thaw()
    assert driver.run(call("big", "x" * 50_000_000)) == [(50_000_000,)]


async def test_large_values_are_sent_by_a_loop_which_goes_on_meanwhile(
    open_driver: Open, server: Server
) -> None:
    driver = open_driver()
    await driver.arun(call("pid"))
    await asyncio.to_thread(server.freeze)
    with pytest.raises(StoreUnavailable):
        await driver.arun(call("big", "x" * 50_000_000), deadline=1.0)
    await asyncio.to_thread(server.thaw)

    assert await driver.arun(call("big", "x" * 50_000_000)) == [(50_000_000,)]


def test_a_short_deadline_counts_though_a_long_one_went_before(open_driver: Open, server: Server) -> None:
    driver = open_driver()

    async def both() -> float:
        await driver.arun(call("pid"), deadline=60)
        await asyncio.to_thread(server.freeze)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await driver.arun(call("pid"), deadline=0.5)
        return time.monotonic() - began

    assert asyncio.run(both()) < 3.0


async def test_a_host_that_swallows_everything_costs_no_more_than_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts by its backlog, and never answers
        address = f"postgresql://app@127.0.0.1:{silent.getsockname()[1]}/jobs"
        driver = Driver(read_address(address), TEXTS, deadline=2.0)
        began = time.monotonic()

        with pytest.raises(StoreUnavailable, match="timeout"):
            await asyncio.to_thread(driver.run, call("pid"))
        with pytest.raises(StoreUnavailable):
            await driver.arun(call("pid"))

        assert time.monotonic() - began < 8.0
        driver.close()


def test_the_server_ends_a_transaction_of_a_process_that_stands_still(open_driver: Open) -> None:
    """Or else the locks of a stopped worker would be kept for as long as it lives."""

    def start() -> Any:
        return (yield SqlText("SELECT current_setting('idle_in_transaction_session_timeout')")).fetchone()

    driver = open_driver()

    assert driver.run(Op(start=start)) == ("30s",)
    assert driver.run(Op(start=start, hints=ONE_TRIP)) == ("0",)


# Forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_connections_of_its_own_and_leaves_those_of_its_parent_alone(
    open_driver: Open, server: Server
) -> None:
    driver = open_driver()
    [(pid,)] = driver.run(call("pid"))
    program = """
import asyncio, gc, os, sys, warnings
from shigoto.engine.op import Op
from shigoto.engine.postgres.address import read_address
from shigoto.engine.postgres.driver import Driver
from shigoto.engine.sql.commands import NamedSql
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "unclosed")  # a child has a copy of the loop, and must not close that
driver = Driver(read_address(sys.argv[1]), {"pid": "SELECT pg_backend_pid()"})
def start():
    return (yield NamedSql("pid")).fetchone()[0]
op = Op(start=start)
loop = asyncio.new_event_loop()
async def begin():
    doorbell = driver.listen()
    assert await doorbell.wait(20)
    return await driver.arun(op)
first = driver.run(op)
mine = loop.run_until_complete(begin())
for way in range(3):
    child = os.fork()
    if child == 0:
        other = driver.run(op)
        assert other not in (first, mine)
        assert driver.run(op) == other
        assert asyncio.run(driver.arun(op)) not in (first, mine)
        driver.close()
        gc.collect()
        if way == 0: os._exit(0)
        if way == 1: sys.exit(0)   # with all the goodbyes of an interpreter
        os.execvp(sys.executable, [sys.executable, "-c", ""])
    _, status = os.waitpid(child, 0)
    assert status == 0, (way, status)
    assert loop.run_until_complete(driver.arun(op)) == mine
    assert driver.run(op) == first
driver.close()
loop.close()
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, server.address],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)
    assert driver.run(call("pid")) == [(pid,)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_forked_in_the_midst_of_another_threads_op_begins_anew(open_driver: Open) -> None:
    driver = open_driver("?pool=1")
    began, go_on = threading.Event(), threading.Event()

    def start() -> Any:
        yield NamedSql("pid")
        began.set()
        go_on.wait(30)
        return (yield NamedSql("pid")).fetchone()

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(driver.run, Op(start=start))
        assert began.wait(30)
        child = os.fork()
        if child == 0:
            try:
                driver.run(call("notes"))
                driver.close()
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        go_on.set()
        assert busy.result(30)

    assert status == 0


def test_a_program_that_never_closes_ends_without_a_word(server: Server) -> None:
    program = """
import asyncio, sys
from shigoto.engine.op import Op
from shigoto.engine.postgres.address import read_address
from shigoto.engine.postgres.driver import Driver
from shigoto.engine.sql.commands import NamedSql
driver = Driver(read_address(sys.argv[1]), {"pid": "SELECT pg_backend_pid()"})
def start():
    return (yield NamedSql("pid")).fetchone()[0]
op = Op(start=start)
driver.run(op)
async def main():
    doorbell = driver.listen()
    await asyncio.gather(*(driver.arun(op) for _ in range(4)))
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program, server.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stderr, done.returncode) == ("", 0)


def test_an_interrupt_reaches_a_caller_who_waits_for_the_server(server: Server) -> None:
    program = """
import sys
from shigoto.engine.op import Op
from shigoto.engine.postgres.address import read_address
from shigoto.engine.postgres.driver import Driver
from shigoto.engine.sql.commands import NamedSql
driver = Driver(read_address(sys.argv[1]), {"doze": "SELECT pg_sleep(60)", "pid": "SELECT 1"})
def doing(name):
    def start():
        print("began", flush=True)
        return (yield NamedSql(name)).fetchone()
    return Op(start=start)
try:
    driver.run(doing("doze"), deadline=60)
except KeyboardInterrupt:
    print(driver.run(doing("pid")))
driver.close()
"""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program, server.address], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "began\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)

    assert out == "began\n(1,)\n"
    assert process.returncode == 0
