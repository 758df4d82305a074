"""Connections of the PostgreSQL engine in need: several hosts, a full pool, a server that has moved, a fork."""

import asyncio
import gc
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from shigoto.engine.op import Op, OpBatch
from shigoto.engine.postgres import PostgresEngine
from shigoto.engine.postgres.address import read_address
from shigoto.engine.postgres.connection import LoopConnection, ThreadConnection
from shigoto.engine.postgres.driver import ONE_TRIP, Driver, EnqueueBatcher
from shigoto.engine.postgres.pool import Connector, attempts
from shigoto.engine.sql.commands import NamedSql, SqlText
from shigoto.model.errors import StoreRefused, StoreUnavailable
from shigoto.model.ids import uuid7
from tests.postgres import until_dozing

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

TEXTS = {
    "pid": "SELECT pg_backend_pid()",
    "doze": "SELECT pg_sleep($1::float8)",
    "fail": "SELECT pg_backend_pid() FROM unnest(ARRAY[$1::int]) e WHERE e = 0",
}
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "postgresql.md"

Open = Callable[..., Driver]


@pytest.fixture
def open_driver(postgres_database: str) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_one(parameters: str = "", *, through: "Turnstile | None" = None) -> Driver:
            address = postgres_database
            if through is not None:
                address = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{through.port}", address)
            driver = Driver(read_address(address + parameters), TEXTS)
            stack.callback(driver.close)
            return driver

        yield open_one


def call(name: str, *values: Any, **options: Any) -> Op[Any]:
    def start() -> Any:
        return (yield NamedSql(name, values)).fetchall()

    return Op(start=start, **options)


# When an op is started


async def test_an_op_is_started_when_its_transaction_has_begun(
    open_driver: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat that waits for its BEGIN would disown what was claimed meanwhile."""
    seen: list[str] = []
    ask, aask = ThreadConnection.ask, LoopConnection.ask

    def noting(self: ThreadConnection, request: Any, until: float) -> Any:
        answer = ask(self, request, until)
        seen.append(request.text.split()[0].decode())
        return answer

    async def anoting(self: LoopConnection, request: Any, until: float) -> Any:
        answer = await aask(self, request, until)
        seen.append(request.text.split()[0].decode())
        return answer

    def start() -> Any:
        seen.append("started")
        return (yield NamedSql("pid")).fetchone()

    monkeypatch.setattr(ThreadConnection, "ask", noting)
    monkeypatch.setattr(LoopConnection, "ask", anoting)
    driver = open_driver("?prepare=off")

    driver.run(Op(start=start))
    await driver.arun(Op(start=start))
    driver.run(Op(start=start, hints=ONE_TRIP))

    in_a_transaction = ["BEGIN", "started", "SELECT", "COMMIT"]
    assert seen == [*in_a_transaction, *in_a_transaction, "started", "SELECT"]


async def test_an_op_that_cannot_be_started_leaves_no_transaction_behind(open_driver: Open) -> None:
    driver = open_driver("?pool=1")
    [(pid,)] = driver.run(call("pid"))
    [(loops_pid,)] = await driver.arun(call("pid"))

    def start() -> Any:
        raise ValueError("not today")

    for _ in range(2):
        with pytest.raises(ValueError, match="not today"):
            driver.run(Op(start=start))
        with pytest.raises(ValueError, match="not today"):
            await driver.arun(Op(start=start))

    assert driver.run(call("pid")) == [(pid,)]
    assert await driver.arun(call("pid")) == [(loops_pid,)]


# Several hosts


async def test_a_host_that_swallows_everything_leaves_time_for_the_next(postgres_database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        two = re.sub("@", f"@127.0.0.1:{silent.getsockname()[1]},", postgres_database, count=1)
        connector = Connector("two hosts", read_address(two).parameters, prepares=False, patience=4.0)
        until = time.monotonic() + 30

        on_loop, in_thread = await asyncio.gather(
            connector.aopen(until), asyncio.to_thread(connector.open, until)
        )

    assert on_loop.is_alive()
    assert in_thread.is_alive()
    on_loop.close()
    in_thread.close()


@pytest.mark.parametrize(
    ("hosts", "patience", "left", "each", "all_of_them"),
    [
        ("10.0.0.1", 10.0, 30.0, "10", 10.0),
        ("10.0.0.1", 10.0, 4.0, "4", 4.0),
        ("10.0.0.1,10.0.0.2", 10.0, 30.0, "5", 10.0),
        ("db", 10.0, 30.0, "5", 10.0),
        ("a,b,c,d", 10.0, 30.0, "2", 16.0),  # libpq takes no less
        ("a,b,c,d", 10.0, 5.0, "2", 5.0),
    ],
)
def test_all_hosts_share_the_time_of_one(
    hosts: str, patience: float, left: float, each: str, all_of_them: float
) -> None:
    parameters = {"host": hosts, "connect_timeout": "10"}
    connector = Connector("several", parameters, prepares=False, patience=patience)

    conninfo, limit = connector._limited(time.monotonic() + left + 0.01)

    assert conninfo_to_dict(conninfo)["connect_timeout"] == each
    assert limit == pytest.approx(all_of_them, abs=0.05)


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ({}, 1),
        ({"host": "/run/postgresql"}, 1),
        ({"host": "10.0.0.1"}, 1),
        ({"host": "::1"}, 1),
        ({"host": "db"}, 2),  # which may have an address of either kind
        ({"host": "db", "hostaddr": "10.0.0.1"}, 1),
        ({"host": "db1,db2,10.0.0.3"}, 5),
        ({"host": "a,b", "hostaddr": "10.0.0.1,10.0.0.2"}, 2),
        ({"host": "10.0.0.1", "target_session_attrs": "prefer-standby"}, 2),
    ],
)
def test_as_many_attempts_share_the_time(
    parameters: dict[str, str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    assert attempts(parameters) == count


def test_hosts_from_the_environment_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db1,db2")
    assert attempts({}) == 4


# A pool that others have taken


def test_an_urgent_op_gets_through_though_all_connections_are_in_use(
    open_driver: Open, postgres_database: str
) -> None:
    """Or handlers that wait for somebody's lock would cost their worker its lease."""
    driver = open_driver("?pool=2")
    entered, hold = threading.Semaphore(0), threading.Event()

    def start() -> Any:
        yield NamedSql("pid")
        entered.release()
        assert hold.wait(30)

    with ThreadPoolExecutor(4) as pool:
        busy = [pool.submit(driver.run, Op(start=start)) for _ in range(2)]
        for _ in busy:
            assert entered.acquire(timeout=30)
        waiting = pool.submit(driver.run, call("pid"))

        pids = {driver.run(call("pid", urgent=True), deadline=5)[0][0] for _ in range(3)}

        assert len(pids) == 1  # kept for the next urgent one, and not given to those in line
        assert not waiting.done()
        assert connections_of(postgres_database) == 3
        hold.set()
        for done in [*busy, waiting]:
            done.result(30)


async def test_an_urgent_op_gets_through_on_a_loop_whose_connections_are_all_in_use(
    open_driver: Open, postgres_database: str
) -> None:
    driver = open_driver("?pool=2")
    await asyncio.gather(*(driver.arun(call("pid")) for _ in range(2)))
    busy = [asyncio.create_task(driver.arun(call("doze", 0.5))) for _ in range(2)]
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(driver.arun(call("doze", 0.01))) for _ in range(3)]
    await asyncio.sleep(0)

    pids = {(await driver.arun(call("pid", urgent=True), deadline=5))[0][0] for _ in range(3)}

    assert len(pids) == 1
    assert not any(task.done() for task in (*busy, *waiting))
    assert await asyncio.to_thread(connections_of, postgres_database) == 3
    await asyncio.gather(*busy, *waiting)


async def test_the_urgent_come_before_all_others_in_line_and_in_their_own_order(
    open_driver: Open, postgres_database: str
) -> None:
    driver = open_driver("?pool=1")
    order: list[str] = []

    async def one(name: str, **options: Any) -> None:
        await driver.arun(call("pid", **options))
        order.append(name)

    busy = [asyncio.create_task(driver.arun(call("doze", 1, urgent=True))) for _ in range(2)]
    await until_dozing(postgres_database, len(busy))
    line = [asyncio.create_task(one(name)) for name in ("a", "b")]
    await asyncio.sleep(0)
    line += [asyncio.create_task(one(name, urgent=True)) for name in ("urgent a", "urgent b")]
    await asyncio.gather(*busy, *line)

    assert order.index("urgent a") < order.index("a")
    assert order.index("urgent b") < order.index("b")


def test_what_keeps_a_worker_alive_is_urgent() -> None:
    engine, worker = PostgresEngine("postgresql://app@db/jobs"), uuid7()

    assert engine.beat(worker, []).urgent
    assert engine.settle(worker, []).urgent
    assert engine.leave(worker).urgent
    assert engine.report_dead(worker, []).urgent
    assert not engine.claim(worker, []).urgent


def test_the_guide_and_the_doctor_count_all_connections() -> None:
    usual = read_address("postgresql://app@db/jobs")
    few = read_address("postgresql://app@db/jobs?pool=4&listen=off")

    assert usual.connections == (16 + 1) + (8 + 1) + 8 + 8 + 1
    assert few.connections == (4 + 1) + (4 + 1) + 4 + 4
    assert f"{usual.connections} connections" in GUIDE.read_text()


# A server that has moved


class Turnstile:
    """A proxy that from some moment on resets whatever was connected before, at its next byte."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._old: set[socket.socket] = set()
        self.accepted = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def turn(self) -> None:
        self._old = {client for client, _ in self._pairs}

    def __enter__(self) -> "Turnstile":
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)
        for end in (self._listener, *(end for pair in self._pairs for end in pair)):
            end.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            others = {a: b for client, server in self._pairs for a, b in ((client, server), (server, client))}
            readable, _, _ = select.select([self._listener, *others], [], [], 0.05)
            for end in readable:
                if end is self._listener:
                    client, _ = self._listener.accept()
                    self.accepted += 1
                    self._pairs.append((client, socket.create_connection(("127.0.0.1", self._target))))
                elif end.fileno() >= 0:
                    self._pass_on(end, others[end])

    def _pass_on(self, end: socket.socket, other: socket.socket) -> None:
        said = end.recv(65536)
        if said and end not in self._old:
            other.sendall(said)
            return
        if end in self._old:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._pairs = [pair for pair in self._pairs if end not in pair]
        end.close()
        other.close()


@pytest.mark.parametrize("hints", [None, ONE_TRIP])
async def test_connections_that_have_all_died_unseen_cost_no_caller_more_than_a_second_try(
    open_driver: Open, postgres_database: str, hints: object
) -> None:
    with Turnstile(int(read_address(postgres_database).parameters["port"])) as turnstile:
        driver = open_driver(through=turnstile)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(driver.run, [call("doze", 0.1)] * 3))
        await asyncio.gather(*(driver.arun(call("doze", 0.1)) for _ in range(3)))
        assert turnstile.accepted == 6

        turnstile.turn()

        assert await asyncio.to_thread(driver.run, call("pid", hints=hints))
        assert await driver.arun(call("pid", hints=hints))
        assert turnstile.accepted == 8
        driver.close()


@pytest.mark.parametrize("code", ["25006", "26000", "42P05"])
async def test_a_connection_that_can_never_do_it_is_not_used_again(open_driver: Open, code: str) -> None:
    driver = open_driver("?pool=1")

    def start() -> Any:
        yield SqlText(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$")

    [(pid,)] = driver.run(call("pid"))
    [(loops_pid,)] = await driver.arun(call("pid"))

    with pytest.raises((StoreUnavailable, StoreRefused)):
        driver.run(Op(start=start))
    with pytest.raises((StoreUnavailable, StoreRefused)):
        await driver.arun(Op(start=start))

    assert driver.run(call("pid")) != [(pid,)]
    assert await driver.arun(call("pid")) != [(loops_pid,)]


async def test_one_that_is_not_waited_for_any_more_is_closed_at_once() -> None:
    """Not when the garbage is collected: until then the server waits for its password, and keeps its place."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        loop, port = asyncio.get_running_loop(), silent.getsockname()[1]
        driver = Driver(read_address(f"postgresql://app@127.0.0.1:{port}/jobs"), TEXTS)
        gc.disable()
        try:
            waiting = asyncio.create_task(driver.arun(call("pid")))
            accepted, _ = await loop.sock_accept(silent)
            with accepted:
                assert await loop.sock_recv(accepted, 4096)  # so it waits for the answer

                waiting.cancel()
                await asyncio.wait([waiting])

                assert await asyncio.wait_for(loop.sock_recv(accepted, 4096), 5) == b""
        finally:
            gc.enable()
    driver.close()


# Batches


def of_batch(number: int) -> Op[Any]:
    return Op(start=lambda: nothing([number]), batch=OpBatch("number", number, merge))


def merge(numbers: list[int]) -> Op[list[Any]]:
    return Op(start=lambda: nothing(numbers))


def nothing(numbers: list[int]) -> Any:
    yield from numbers


def subjects(op: Op[Any]) -> list[int]:
    return list(op.start())


async def test_one_that_hangs_holds_up_nobody_else_for_long() -> None:
    """Such as an enqueue of an id that another transaction has stored and not committed."""
    hang, began = asyncio.Event(), asyncio.Event()
    batches: list[int] = []

    async def run(op: Op[Any], until: float) -> Any:
        [number] = subjects(op)
        if number == 0:
            began.set()
            await hang.wait()
        batches.append(number)
        return number

    batcher = EnqueueBatcher(run)
    ops: list[Op[Any]] = [of_batch(number) for number in range(3)]
    until = asyncio.get_running_loop().time() + 30
    first = asyncio.create_task(batcher.run(ops[0], until))
    await began.wait()

    assert await asyncio.wait_for(batcher.run(ops[1], until), 5) == 1
    assert await asyncio.wait_for(batcher.run(ops[2], until), 5) == 2

    assert not first.done()
    hang.set()
    assert await first == 0
    assert batches == [1, 2, 0]


async def test_while_a_batch_is_under_way_all_who_come_wait_for_the_next_one() -> None:
    sizes: list[int] = []
    under_way = most = 0

    async def run(op: Op[Any], until: float) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        numbers = subjects(op)
        sizes.append(len(numbers))
        await asyncio.sleep(0.001)
        under_way -= 1
        return numbers if op.batch is None else numbers[0]

    batcher = EnqueueBatcher(run)
    until = asyncio.get_running_loop().time() + 30

    async def caller(number: int) -> None:
        for _ in range(10):
            assert await batcher.run(of_batch(number), until) == number

    await asyncio.gather(*(caller(number) for number in range(64)))

    assert sizes[:3] == [1, 63, 64]
    assert sum(sizes) == 640
    assert most == 1
    assert len(sizes) <= 10 + 2


# Forks


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of what is open")
def test_a_child_forked_while_another_thread_connects_does_not_keep_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        driver = Driver(read_address(f"postgresql://app@127.0.0.1:{port}/jobs"), TEXTS, deadline=0.1)
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(driver.run, call("pid"))
            accepted, _ = silent.accept()
            assert accepted.recv(1)  # so it waits for the answer
            child = os.fork()
            if child == 0:
                os._exit(sockets_to(port))
            _, status = os.waitpid(child, 0)
            accepted.close()
            assert isinstance(connecting.exception(30), StoreUnavailable)

    assert status == 0


def sockets_to(port: int) -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as end:
                found += end.getpeername()[1] == port
        except OSError:
            continue
    return found


def connections_of(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchone()
    assert row is not None
    return int(row[0])
