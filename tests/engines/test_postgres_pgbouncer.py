"""Everything through PgBouncer in transaction mode: a few connections to the server, and each transaction on another.

The pooler hands out its connections in turn, so that whatever relied on a session would find itself in somebody else's.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from devtools.postgres.install import NOBODY
from devtools.postgres.server import free_port
from shigoto import Context, RetryLater, Shigoto, State, StoreRefused
from shigoto.engine.postgres import PostgresEngine
from shigoto.worker import Worker
from tests.journeys.yard import SHIGOTO

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
CONNECTIONS = 3
STARTS_WITHIN = 20.0  # seconds
CONFIG = """
[databases]
{database} = host={host} port={server} dbname={database} user={user} password={password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 200
server_round_robin = 1
"""
# What belongs to a session, of all that the pooler has: nothing of it may be ours.
SESSIONS = """
SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())),
  (SELECT count(*) FROM pg_stat_activity
   WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in%')
"""
SETTINGS = """
SELECT pg_backend_pid(), (SELECT count(*) FROM pg_prepared_statements),
  (SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding')),
  (SELECT count(*) FROM pg_listening_channels())
"""
SHOP = """
import os
from shigoto import Shigoto

app = Shigoto(os.environ["SHIGOTO_URL"])

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}"

@app.task(executor="process")
def apart(name: str) -> str:
    return f"Apart, {name}"
"""


@pytest.fixture
def pooled(postgres_database: str) -> Iterator[str]:
    """The address of a database with an empty store, through a pooler."""
    if PROGRAM is None:
        pytest.skip(
            "no PgBouncer: there is no program pgbouncer on the path; on Debian: apt-get install pgbouncer"
        )
    with closing(PostgresEngine(postgres_database)) as engine:
        engine.migrate()
    with bouncing(postgres_database) as address:
        yield address


@contextmanager
def bouncing(address: str) -> Iterator[str]:
    """A pooler before the database at this address."""
    assert PROGRAM is not None
    server, port = urlsplit(address), free_port()
    database = server.path.removeprefix("/")
    # Not pytest's own folder: as root it runs as `nobody`, who could not reach that.
    with tempfile.TemporaryDirectory(prefix="shigoto-pgbouncer-") as name:
        folder = Path(name)
        config, log = folder / "pgbouncer.ini", folder / "log"
        config.write_text(
            CONFIG.format(
                database=database, host=server.hostname, server=server.port, user=server.username,
                password=server.password, port=port, connections=CONNECTIONS,
            )
        )  # fmt: skip
        user = NOBODY if os.geteuid() == 0 else None
        if user is not None:
            os.chown(folder, user, user)
            os.chown(config, user, user)
        with log.open("wb") as out:
            process = subprocess.Popen(
                [PROGRAM, str(config)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                user=user,
                group=user,
            )
        try:
            pooled = f"postgresql://anybody@127.0.0.1:{port}/{database}"
            until_it_answers(pooled, process, log)
            open_all(pooled)
            yield pooled
        finally:
            process.kill()
            process.wait()


def until_it_answers(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < until and process.poll() is None:
        with suppress(psycopg.OperationalError):
            psycopg.connect(address, connect_timeout=5).close()
            return
        time.sleep(0.02)
    raise AssertionError(f"PgBouncer has not started: {log.read_text()}")


def open_all(address: str) -> None:
    """Let the pooler open all its connections to the server: as many transactions at once."""
    with ExitStack() as closing_all:
        for _ in range(CONNECTIONS):
            connection = closing_all.enter_context(psycopg.connect(address))
            connection.execute("SELECT 1")


def with_listen(pooled: str, listen: str, direct: str) -> str:
    said = {"nothing": "", "off": "?listen=off", "direct": f"?listen={quote(direct, safe='')}"}
    return pooled + said[listen]


def expect_clean(direct: str, pooled: str, *, listening: bool = False) -> None:
    """No session of the server has anything of ours."""
    with psycopg.connect(direct, autocommit=True) as connection:
        assert connection.execute(SESSIONS).fetchone() == (0, 0)
    seen: dict[int, tuple[int, int, int]] = {}
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as connection:
        for _ in range(4 * CONNECTIONS):
            pid, *state = connection.execute(SETTINGS).fetchall()[0]
            seen[pid] = (state[0], state[1], 0 if listening else state[2])
    assert len(seen) > 1
    assert set(seen.values()) == {(0, 0, 0)}


class Shop:
    """An app with a table of its own beside the jobs."""

    def __init__(self, url: str, direct: str) -> None:
        self.direct = direct
        with psycopg.connect(direct, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS public.paid (invoice integer PRIMARY KEY)")
        app = self.app = Shigoto(url)

        @app.task
        async def greet(name: str) -> str:
            return f"Hello, {name}"

        @app.task
        def talk(ctx: Context, name: str) -> str:
            ctx.log(f"about {name}")
            ctx.progress(0.5, "half")
            return name

        @app.task
        async def fickle(ctx: Context) -> int:
            if ctx.attempt < 3:
                raise RetryLater(0)
            return ctx.attempt

        @app.task(retries=0)
        async def fail() -> None:
            raise ValueError("on purpose")

        @app.task
        def pay(ctx: Context, invoice: int) -> None:
            with ctx.transaction() as tx:
                tx.execute("INSERT INTO public.paid VALUES (%s)", (invoice,))
                greet.using(connection=tx).enqueue(f"payer {invoice}")

        @app.task
        async def apay(ctx: Context, invoice: int) -> None:
            async with ctx.transaction() as tx:
                await tx.execute("INSERT INTO public.paid VALUES (%s)", (invoice,))
                await greet.using(connection=tx).aenqueue(f"payer {invoice}")

        self.greet, self.talk, self.fickle, self.fail, self.pay, self.apay = (
            greet,
            talk,
            fickle,
            fail,
            pay,
            apay,
        )

    def paid(self) -> list[int]:
        with psycopg.connect(self.direct) as connection:
            return [row[0] for row in connection.execute("SELECT invoice FROM public.paid ORDER BY 1")]

    def pending(self) -> int:
        return self.app.count(state="pending")


def test_jobs_come_in_by_every_door(pooled: str, postgres_database: str) -> None:
    shop = Shop(pooled, postgres_database)
    greet, app = shop.greet, shop.app

    async def awaited() -> None:
        await asyncio.gather(*(greet.aenqueue(f"async {index}") for index in range(50)))
        await app.aenqueue_many([greet.call(f"bulk {index}") for index in range(1_500)])
        again = [greet.using(key=f"akey {index % 7}").aenqueue("keyed") for index in range(21)]
        assert len({handle.id for handle in await asyncio.gather(*again)}) == 7
        app.close()

    try:
        for index in range(20):
            greet.enqueue(f"sync {index}")
        app.enqueue_many([greet.call(f"bulk {index}") for index in range(1_500)])
        app.enqueue_many([greet.using(priority=index).call("mixed") for index in range(30)])
        keys = [greet.using(key=f"key {index % 7}", key_mode="replace").call("keyed") for index in range(21)]
        assert len({handle.id for handle in app.enqueue_many(keys)}) == 7
        asyncio.run(awaited())
        with psycopg.connect(pooled, prepare_threshold=None) as theirs:
            greet.using(connection=theirs).enqueue("joined")
            theirs.execute("INSERT INTO public.paid VALUES (1)")
            greet.using(connection=theirs, key="key 1").enqueue("joined")
        with psycopg.connect(pooled, prepare_threshold=None) as theirs:
            greet.using(connection=theirs).enqueue("never")
            theirs.rollback()

        assert shop.pending() == 20 + 1_500 + 30 + 7 + 50 + 1_500 + 7 + 1
    finally:
        app.close()
    expect_clean(postgres_database, pooled)


@pytest.mark.parametrize("listen", ["direct", "off", "nothing"])
def test_a_worker_does_all_its_work(pooled: str, postgres_database: str, listen: str) -> None:
    shop = Shop(with_listen(pooled, listen, postgres_database), postgres_database)
    try:
        greeted = [shop.greet.enqueue(f"n{index}") for index in range(200)]
        talked = [shop.talk.enqueue(f"n{index}") for index in range(5)]
        tried, failed = [shop.fickle.enqueue() for _ in range(5)], [shop.fail.enqueue() for _ in range(5)]
        paid = [shop.pay.enqueue(index) for index in range(10)]
        paid += [shop.apay.enqueue(100 + index) for index in range(10)]
        # A handler in a transaction keeps a connection of the pooler's: one of three must be left for all else.
        worker = Worker(shop.app, any_role=True, drain=True, concurrency=1, threads=1)
        assert asyncio.run(worker.run()).reason == "drained"

        assert {handle.status() for handle in (*greeted, *talked, *tried, *paid)} == {State.COMPLETED}
        assert {handle.status() for handle in failed} == {State.FAILED}
        assert {handle.result() for handle in tried} == {3}
        assert {handle.job().progress for handle in talked} == {0.5}
        assert [line.text for line in talked[0].logs()] == ["about n0"]
        assert shop.paid() == [*range(10), *range(100, 110)]
        assert shop.app.count(task="greet", state="completed") == 220
    finally:
        shop.app.close()
    expect_clean(postgres_database, pooled, listening=listen == "nothing")


@pytest.mark.parametrize("listen", ["direct", "off", "nothing"])
def test_an_idle_worker_finds_new_jobs(pooled: str, postgres_database: str, listen: str) -> None:
    """Soon if it can listen, beside the pooler; else by looking."""
    shop = Shop(with_listen(pooled, listen, postgres_database), postgres_database)
    poll = 60.0 if listen == "direct" else 0.2

    async def picked_up() -> None:
        async with Worker(shop.app, any_role=True, poll=poll):
            for index in range(3):
                handle = await shop.greet.aenqueue(f"n{index}")
                assert await handle.aresult(timeout=20) == f"Hello, n{index}"
        shop.app.close()

    try:
        asyncio.run(picked_up())
    finally:
        shop.app.close()


def test_processes_work_and_beat_through_it(pooled: str, postgres_database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    url = with_listen(pooled, "direct", postgres_database)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SHIGOTO_", "PG"))
    }

    def shigoto(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*SHIGOTO, "--app", "shop", *words],
            cwd=tmp_path,
            env=environment | {"SHIGOTO_URL": url},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    for task in ("greet", "apart"):
        assert shigoto("enqueue", task, "--arg", "name=Ada").returncode == 0
    ran = shigoto("worker", "--any-role", "--drain", "--processes", "2")
    assert ran.returncode == 0, ran.stderr
    assert '"completed":2' in shigoto("stats", "--json").stdout
    assert "pooler" in shigoto("doctor").stdout
    expect_clean(postgres_database, pooled)


def test_a_store_can_be_migrated_through_it(pooled: str, postgres_database: str) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA shigoto CASCADE")
    with closing(PostgresEngine(pooled)) as engine:
        assert len(engine.migrate()) > 1
        assert engine.migrate() == []
    expect_clean(postgres_database, pooled)


def test_nothing_is_prepared_behind_it_although_nobody_says_so(pooled: str, postgres_database: str) -> None:
    """X7: a connection finds out by itself that it does not go straight to the server."""
    with closing(Shigoto(pooled)) as app:
        for _ in range(100):
            app.enqueue_by_name("greet", {}, allow_unknown=True)
    expect_clean(postgres_database, pooled)


def test_prepared_statements_are_not_for_it_and_whoever_wants_them_is_told(
    pooled: str, postgres_database: str
) -> None:
    app = Shigoto(f"{pooled}?prepare=on")

    def enqueue_many_times() -> None:
        for _ in range(100):
            app.enqueue_by_name("greet", {}, allow_unknown=True)

    with closing(app), pytest.raises(StoreRefused, match="say prepare=off"):
        enqueue_many_times()
