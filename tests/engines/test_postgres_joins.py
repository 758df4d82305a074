"""Jobs in callers' own transactions, on connections of all the libraries that people have them from."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any
from uuid import UUID

import asyncpg
import django
import psycopg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy
from django.conf import settings
from msgspec import structs
from psycopg.rows import dict_row
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from devtools.postgres import Server
from shigoto import JobError, LeaseLost, OptionInvalid, SchemaMissing, Shigoto, State, StoreRefused, Task
from shigoto.context import Context, JobServices, Signals
from shigoto.engine.op import Op
from shigoto.engine.postgres import PostgresEngine
from shigoto.engine.postgres.driver import ONE_TRIP
from shigoto.engine.postgres.wire import bigint_array, int_array, text_array, uuid_array
from shigoto.engine.sql.commands import SqlText, Steps
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.model.worker import Announcement, Want
from tests.postgres import Yard, make_store

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

INSERT = "INSERT INTO paid VALUES (1)"
NASTY = "日本語 % %s %(p1)s $1 \\ ' \" \u0000 😀"


class Shop:
    """A store in a database with a table `paid` beside the jobs."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.engine = PostgresEngine(address)
        self.app = Shigoto(engine=self.engine)
        self.pay = _pay(self.app)
        self.worker = uuid7()

    def paid(self) -> list[int]:
        with psycopg.connect(self.address) as connection:
            return [row[0] for row in connection.execute("SELECT invoice FROM paid ORDER BY 1").fetchall()]

    def texts(self) -> list[str]:
        """What the jobs that others can see were given, in the order in which they came."""
        return [job.payload for job in reversed(self.app.find())]

    def lanes(self) -> int:
        with psycopg.connect(self.address) as connection:
            [[count]] = connection.execute("SELECT count(*) FROM shigoto.lane").fetchall()
            assert isinstance(count, int)
            return count

    def start(self) -> tuple[Context, UUID]:
        """A job in a worker's hands."""
        self.engine.run(
            self.engine.announce(
                Announcement(id=self.worker, name="w", tasks=("pay",), queues=None, slots=9, version="1")
            )
        )
        handle = self.pay.enqueue("one")
        [lease] = self.engine.run(
            self.engine.claim(self.worker, [Want(tasks=("pay",), queues=None, limit=1)])
        )
        return self.context(lease), handle.id

    def context(self, lease: Lease) -> Context:
        return Context(
            lease, Signals(), JobServices(self.engine, self.worker), self.pay.signature.encode_result
        )


def _pay(app: Shigoto) -> Task[[str], str]:
    @app.task
    def pay(text: str) -> str:
        return text

    return pay


@pytest.fixture
def shop(postgres: Server, postgres_yard: Yard, postgres_major: int) -> Iterator[Shop]:
    assert postgres.running
    with postgres_yard.emptied(postgres_major, make_store) as address:
        with psycopg.connect(address) as connection:
            connection.execute("CREATE TABLE paid (invoice integer PRIMARY KEY)")
        shop = Shop(address)
        yield shop
        shop.engine.close()


class Caller:
    """A connection as its library hands it out, in a transaction that the test ends."""

    def __init__(
        self,
        connection: Any,
        execute: Callable[[str], object],
        commit: Callable[[], object],
        rollback: Callable[[], object],
    ) -> None:
        self.connection = connection
        self.execute = execute
        self.commit = commit
        self.rollback = rollback


Open = Callable[[str], AbstractContextManager[Caller]]


@contextmanager
def of_psycopg(address: str) -> Iterator[Caller]:
    with psycopg.connect(address) as connection:
        yield Caller(connection, connection.execute, connection.commit, connection.rollback)


@contextmanager
def of_psycopg_in_autocommit(address: str) -> Iterator[Caller]:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("BEGIN")
        yield Caller(
            connection,
            connection.execute,
            lambda: connection.execute("COMMIT"),
            lambda: connection.execute("ROLLBACK"),
        )


class Shouting(psycopg.adapt.Loader):
    """A loader that makes of everything what nobody expects."""

    def load(self, data: Any) -> str:
        return f"{bytes(data)!r}!"


@contextmanager
def of_psycopg_with_its_own_taste(address: str) -> Iterator[Caller]:
    with psycopg.connect(address, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        for kind in ("int4", "int8", "bytea", "text", "json", "bool", "int8[]"):
            connection.adapters.register_loader(kind, Shouting)
        yield Caller(connection, connection.execute, connection.commit, connection.rollback)


@contextmanager
def of_psycopg2(address: str) -> Iterator[Caller]:
    connection = psycopg2.connect(address)
    try:
        yield Caller(
            connection, lambda text: connection.cursor().execute(text), connection.commit, connection.rollback
        )
    finally:
        connection.close()


@contextmanager
def of_psycopg2_with_its_own_taste(address: str) -> Iterator[Caller]:
    connection = psycopg2.connect(address, cursor_factory=psycopg2.extras.RealDictCursor)
    try:
        yield Caller(
            connection, lambda text: connection.cursor().execute(text), connection.commit, connection.rollback
        )
    finally:
        connection.close()


def _sqlalchemy(address: str, driver: str) -> str:
    return address.replace("postgresql://", f"postgresql+{driver}://")


def sessions(driver: str) -> Open:
    @contextmanager
    def of_a_session(address: str) -> Iterator[Caller]:
        database = sqlalchemy.create_engine(_sqlalchemy(address, driver))
        with orm.Session(database) as session:
            yield Caller(
                session, lambda text: session.execute(sqlalchemy.text(text)), session.commit, session.rollback
            )
        database.dispose()

    return of_a_session


def connections(driver: str) -> Open:
    @contextmanager
    def of_a_connection(address: str) -> Iterator[Caller]:
        database = sqlalchemy.create_engine(_sqlalchemy(address, driver))
        with database.connect() as connection:
            yield Caller(
                connection,
                lambda text: connection.execute(sqlalchemy.text(text)),
                connection.commit,
                connection.rollback,
            )
        database.dispose()

    return of_a_connection


@contextmanager
def of_django(address: str) -> Iterator[Caller]:
    with django_connection(address) as connection:
        from django.db import transaction

        atomic = transaction.Atomic(using="shop", savepoint=True, durable=False)
        atomic.__enter__()
        ended = False

        def end(*, well: bool) -> None:
            nonlocal ended
            ended = True
            if not well:
                connection.set_rollback(True)
            atomic.__exit__(None, None, None)

        def execute(text: str) -> None:
            with connection.cursor() as cursor:
                cursor.execute(text)

        yield Caller(connection, execute, lambda: end(well=True), lambda: end(well=False))
        if not ended:
            end(well=False)


@contextmanager
def django_connection(address: str) -> Iterator[Any]:
    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    from django.db import connections as all_of_them

    said = psycopg.conninfo.conninfo_to_dict(address)
    all_of_them.settings["shop"] = {
        **all_of_them.settings["default"],
        "ENGINE": "django.db.backends.postgresql",
        "NAME": said["dbname"],
        "USER": said["user"],
        "PASSWORD": said.get("password", ""),
        "HOST": said["host"],
        "PORT": said["port"],
    }
    yield all_of_them["shop"]
    all_of_them["shop"].close()
    del all_of_them["shop"], all_of_them.settings["shop"]


CALLERS = {
    "psycopg": of_psycopg,
    "psycopg-autocommit": of_psycopg_in_autocommit,
    "psycopg-own-taste": of_psycopg_with_its_own_taste,
    "psycopg2": of_psycopg2,
    "psycopg2-own-taste": of_psycopg2_with_its_own_taste,
    "session-psycopg": sessions("psycopg"),
    "session-psycopg2": sessions("psycopg2"),
    "connection-psycopg": connections("psycopg"),
    "connection-psycopg2": connections("psycopg2"),
    "django": of_django,
}


@pytest.mark.parametrize("open_caller", CALLERS.values(), ids=CALLERS)
class TestCallers:
    """Whatever library the connection is from."""

    def test_a_commit_makes_the_job_and_nobody_sees_it_before(self, shop: Shop, open_caller: Open) -> None:
        with open_caller(shop.address) as caller:
            caller.execute(INSERT)
            handle = shop.pay.using(connection=caller.connection).enqueue(NASTY)
            assert (shop.paid(), shop.texts()) == ([], [])
            caller.commit()

        assert shop.paid() == [1]
        job = handle.job()
        assert (job.state, job.number) == (State.PENDING, handle.number)
        assert shop.pay.signature.decode(job.payload) == {"text": NASTY}

    def test_a_job_may_be_the_first_that_happens_in_it(self, shop: Shop, open_caller: Open) -> None:
        """Where a library begins its transaction with the first statement, ours is one."""
        with open_caller(shop.address) as caller:
            handle = shop.pay.using(connection=caller.connection).enqueue("first")
            caller.execute(INSERT)
            assert shop.texts() == []
            caller.commit()

        assert (shop.paid(), handle.status()) == ([1], State.PENDING)

    def test_a_rollback_leaves_no_trace(self, shop: Shop, open_caller: Open) -> None:
        with open_caller(shop.address) as caller:
            caller.execute(INSERT)
            shop.pay.using(connection=caller.connection).enqueue("no")
            shop.pay.using(connection=caller.connection, key="k").enqueue("no")
            caller.rollback()

        assert (shop.paid(), shop.texts()) == ([], [])
        assert shop.pay.using(key="k").enqueue("yes").status() is State.PENDING

    def test_keys_and_batches_of_all_kinds_are_taken(self, shop: Shop, open_caller: Open) -> None:
        with open_caller(shop.address) as caller:
            given = shop.pay.using(connection=caller.connection)
            first = given.using(key="k", priority=-32768, tags=["a", "b"]).enqueue("1")
            again = given.using(key="k").enqueue("2")
            replaced = given.using(key="k", key_mode="replace", priority=-32768).enqueue("3")
            many = shop.app.enqueue_many(given.call(str(n)) for n in range(1_500))
            caller.commit()

        assert first.id == again.id == replaced.id
        assert (again.status(), first.job().priority) == (State.PENDING, -32768)
        assert shop.engine.run(shop.engine.stats())["default"].pending == len(many) + 1

    def test_an_effect_and_its_completion_commit_together(self, shop: Shop, open_caller: Open) -> None:
        """I9."""
        context, id = shop.start()
        with open_caller(shop.address) as caller:
            caller.execute(INSERT)
            with context.transaction(caller.connection) as tx:
                tx.finish(NASTY)
            assert shop.app.job(id).status() is State.PROCESSING
            caller.commit()

        assert (shop.paid(), shop.app.job(id).result()) == ([1], NASTY)

    def test_a_lease_that_is_lost_is_told_and_the_transaction_can_go_on(
        self, shop: Shop, open_caller: Open
    ) -> None:
        context, id = shop.start()
        shop.app.job(id).cancel(force=True)
        with open_caller(shop.address) as caller:
            with pytest.raises(LeaseLost), context.transaction(caller.connection):
                pass
            caller.execute(INSERT)
            caller.commit()

        assert (shop.paid(), shop.app.job(id).status()) == ([1], State.CANCELLED)

    def test_an_error_of_several_commands_leaves_the_transaction_usable(
        self, shop: Shop, open_caller: Open
    ) -> None:
        op = shop.engine.enqueue_many([structs.replace(_spec(shop), key="k"), _spec(shop, task="a\0b")])
        with open_caller(shop.address) as caller:
            caller.execute(INSERT)
            with pytest.raises(OptionInvalid, match=r"U\+0000"):
                shop.engine.join(caller.connection, op)
            caller.commit()

        assert (shop.paid(), shop.texts()) == ([1], [])

    def test_a_failed_transaction_is_refused_in_plain_words(self, shop: Shop, open_caller: Open) -> None:
        with open_caller(shop.address) as caller:
            with pytest.raises(Exception, match="nowhere"):
                caller.execute("SELECT * FROM nowhere")
            with pytest.raises(JobError, match="has failed: after an error PostgreSQL takes nothing more"):
                shop.pay.using(connection=caller.connection).enqueue("no")
            caller.rollback()

    def test_all_kinds_of_values_arrive_and_come_back(self, shop: Shop, open_caller: Open) -> None:
        with open_caller(shop.address) as caller:
            assert shop.engine.join(caller.connection, Op(start=all_kinds, hints=ONE_TRIP)) == EXPECTED
            assert shop.engine.join(caller.connection, Op(start=touching)) == (2, 1)
            caller.rollback()


# Django's refuse to be used on an event loop.
@pytest.mark.parametrize("name", [name for name in CALLERS if name != "django"])
async def test_async_code_may_hand_in_a_connection_that_blocks(shop: Shop, name: str) -> None:
    with CALLERS[name](shop.address) as caller:
        await shop.pay.using(connection=caller.connection).aenqueue("yes")
        assert shop.texts() == []
        caller.commit()

    assert len(shop.texts()) == 1


def _spec(shop: Shop, task: str = "pay") -> Any:
    return structs.replace(shop.pay.call("x").spec(uuid7()), task=task)


IDS = [UUID(int=0), UUID(int=2**128 - 1)]
WITHOUT_NUL = NASTY.replace("\0", "")
EXPECTED: tuple[Any, ...] = (
    f"50%{WITHOUT_NUL}", bytes(range(256)), -32768, [str(id) for id in IDS], ["a", None, ""], [-1, 2**40], 1.5,
    None, True, [], str(IDS[1]),
)  # fmt: skip


def all_kinds() -> Steps[Any]:
    text = (
        "SELECT '50%' || $1::text, $2::bytea, $3::smallint, $4::uuid[]::text[], $5::text[], $6::bigint[], $7::float8,"
        " $8::text, $9::int::boolean, $10::int[], $11::uuid::text"
    )
    values = (
        WITHOUT_NUL, bytes(range(256)), -32768, uuid_array(IDS), text_array(["a", None, ""]),
        bigint_array([-1, 2**40]), 1.5, None, True, int_array([]), IDS[1],
    )  # fmt: skip
    return (yield SqlText(text, values)).fetchone()


def touching() -> Steps[Any]:
    """How many rows were touched."""
    both = yield SqlText("INSERT INTO paid SELECT * FROM unnest($1::int[])", (int_array([7, 8]),))
    one = yield SqlText("DELETE FROM paid WHERE invoice IN ($1::int, $2::int)", (7, 9))
    return both.rowcount, one.rowcount


class AsyncCaller:
    """The same with everything awaited."""

    def __init__(
        self,
        connection: Any,
        execute: Callable[[str], Awaitable[object]],
        commit: Callable[[], Awaitable[object]],
        rollback: Callable[[], Awaitable[object]],
    ) -> None:
        self.connection = connection
        self.execute = execute
        self.commit = commit
        self.rollback = rollback


@asynccontextmanager
async def of_async_psycopg(address: str) -> AsyncIterator[AsyncCaller]:
    async with await psycopg.AsyncConnection.connect(address, row_factory=dict_row) as connection:
        yield AsyncCaller(connection, connection.execute, connection.commit, connection.rollback)


@asynccontextmanager
async def of_asyncpg(address: str) -> AsyncIterator[AsyncCaller]:
    connection = await asyncpg.connect(address)
    try:
        transaction = connection.transaction()
        await transaction.start()
        yield AsyncCaller(connection, connection.execute, transaction.commit, transaction.rollback)
    finally:
        await connection.close()


@asynccontextmanager
async def of_an_asyncpg_pool(address: str) -> AsyncIterator[AsyncCaller]:
    """As behind a pooler, where nothing may be prepared by name, and with records of its own."""

    def not_what_you_want(record: object) -> Any:
        return iter(("not", "what", "you", "want"))

    own = type("Own", (asyncpg.Record,), {"__iter__": not_what_you_want})

    async with (
        asyncpg.create_pool(
            address, min_size=1, max_size=2, statement_cache_size=0, record_class=own
        ) as pool,
        pool.acquire() as connection,
    ):
        transaction = connection.transaction()
        await transaction.start()
        yield AsyncCaller(connection, connection.execute, transaction.commit, transaction.rollback)


def async_sessions(driver: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def of_an_async_session(address: str) -> AsyncIterator[AsyncCaller]:
        database = sqlalchemy_asyncio.create_async_engine(_sqlalchemy(address, driver))
        async with sqlalchemy_asyncio.AsyncSession(database) as session:
            yield AsyncCaller(
                session, lambda text: session.execute(sqlalchemy.text(text)), session.commit, session.rollback
            )
        await database.dispose()

    return of_an_async_session


def async_connections(driver: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def of_an_async_connection(address: str) -> AsyncIterator[AsyncCaller]:
        database = sqlalchemy_asyncio.create_async_engine(_sqlalchemy(address, driver))
        async with database.connect() as connection:
            yield AsyncCaller(
                connection,
                lambda text: connection.execute(sqlalchemy.text(text)),
                connection.commit,
                connection.rollback,
            )
        await database.dispose()

    return of_an_async_connection


ASYNC_CALLERS: dict[str, Callable[[str], Any]] = {
    "psycopg": of_async_psycopg,
    "asyncpg": of_asyncpg,
    "asyncpg-pool": of_an_asyncpg_pool,
    "session-psycopg": async_sessions("psycopg"),
    "session-asyncpg": async_sessions("asyncpg"),
    "connection-psycopg": async_connections("psycopg"),
    "connection-asyncpg": async_connections("asyncpg"),
}


@pytest.mark.parametrize("open_caller", ASYNC_CALLERS.values(), ids=ASYNC_CALLERS)
class TestAsyncCallers:
    async def test_a_commit_makes_the_job_and_nobody_sees_it_before(
        self, shop: Shop, open_caller: Callable[[str], Any]
    ) -> None:
        async with open_caller(shop.address) as caller:
            await caller.execute(INSERT)
            handle = await shop.pay.using(connection=caller.connection).aenqueue(NASTY)
            assert (shop.paid(), shop.texts()) == ([], [])
            await caller.commit()

        assert shop.paid() == [1]
        assert shop.pay.signature.decode(handle.job().payload) == {"text": NASTY}

    async def test_a_job_may_be_the_first_that_happens_in_it(
        self, shop: Shop, open_caller: Callable[[str], Any]
    ) -> None:
        async with open_caller(shop.address) as caller:
            handle = await shop.pay.using(connection=caller.connection).aenqueue("first")
            assert shop.texts() == []
            await caller.commit()

        assert (await handle.ajob()).state is State.PENDING

    async def test_a_rollback_leaves_no_trace(self, shop: Shop, open_caller: Callable[[str], Any]) -> None:
        async with open_caller(shop.address) as caller:
            await caller.execute(INSERT)
            await shop.pay.using(connection=caller.connection).aenqueue("no")
            await shop.pay.using(connection=caller.connection, key="k").aenqueue("no")
            await caller.rollback()

        assert (shop.paid(), shop.texts()) == ([], [])

    async def test_keys_and_batches_of_all_kinds_are_taken(
        self, shop: Shop, open_caller: Callable[[str], Any]
    ) -> None:
        async with open_caller(shop.address) as caller:
            given = shop.pay.using(connection=caller.connection)
            first = await given.using(key="k", priority=-32768, tags=["a", "b"]).aenqueue("1")
            again = await given.using(key="k").aenqueue("2")
            replaced = await given.using(key="k", key_mode="replace", priority=-32768).aenqueue("3")
            many = await shop.app.aenqueue_many(given.call(str(n)) for n in range(1_500))
            await caller.commit()

        assert first.id == again.id == replaced.id
        assert shop.engine.run(shop.engine.stats())["default"].pending == len(many) + 1

    async def test_an_effect_and_its_completion_commit_together(
        self, shop: Shop, open_caller: Callable[[str], Any]
    ) -> None:
        """I9."""
        context, id = shop.start()
        async with open_caller(shop.address) as caller:
            await caller.execute(INSERT)
            async with context.transaction(caller.connection) as tx:
                tx.finish(NASTY)
            assert shop.app.job(id).status() is State.PROCESSING
            await caller.commit()

        assert (shop.paid(), shop.app.job(id).result()) == ([1], NASTY)

    async def test_a_lease_that_is_lost_is_told_and_the_transaction_can_go_on(
        self, shop: Shop, open_caller: Callable[[str], Any]
    ) -> None:
        context, id = shop.start()
        shop.app.job(id).cancel(force=True)
        async with open_caller(shop.address) as caller:
            with pytest.raises(LeaseLost):
                async with context.transaction(caller.connection):
                    pass
            await caller.execute(INSERT)
            await caller.commit()

        assert (shop.paid(), shop.app.job(id).status()) == ([1], State.CANCELLED)

    async def test_an_error_of_several_commands_leaves_the_transaction_usable(
        self, shop: Shop, open_caller: Callable[[str], Any]
    ) -> None:
        op = shop.engine.enqueue_many([structs.replace(_spec(shop), key="k"), _spec(shop, task="a\0b")])
        async with open_caller(shop.address) as caller:
            await caller.execute(INSERT)
            with pytest.raises(OptionInvalid, match=r"U\+0000"):
                await shop.engine.ajoin(caller.connection, op)
            await caller.commit()

        assert (shop.paid(), shop.texts()) == ([1], [])

    async def test_a_failed_transaction_is_refused_in_plain_words(
        self, shop: Shop, open_caller: Callable[[str], Any]
    ) -> None:
        async with open_caller(shop.address) as caller:
            with pytest.raises(Exception, match="nowhere"):
                await caller.execute("SELECT * FROM nowhere")
            with pytest.raises(JobError, match="has failed: after an error PostgreSQL takes nothing more"):
                await shop.pay.using(connection=caller.connection).aenqueue("no")
            await caller.rollback()

    async def test_all_kinds_of_values_arrive_and_come_back(
        self, shop: Shop, open_caller: Callable[[str], Any]
    ) -> None:
        async with open_caller(shop.address) as caller:
            assert await shop.engine.ajoin(caller.connection, Op(start=all_kinds, hints=ONE_TRIP)) == EXPECTED
            assert await shop.engine.ajoin(caller.connection, Op(start=touching)) == (2, 1)
            await caller.rollback()

    async def test_it_is_not_for_sync_calls(self, shop: Shop, open_caller: Callable[[str], Any]) -> None:
        async with open_caller(shop.address) as caller:
            with pytest.raises(JobError, match=r"await task\.using\(connection=…\)\.aenqueue"):
                shop.pay.using(connection=caller.connection).enqueue("no")
            await caller.rollback()


class TestRefusals:
    def test_a_connection_in_no_transaction_is_refused(self, shop: Shop) -> None:
        with (
            psycopg.connect(shop.address, autocommit=True) as connection,
            pytest.raises(JobError, match=r"is in no transaction.*connection\.transaction\(\).*atomic\(\)"),
        ):
            shop.pay.using(connection=connection).enqueue("no")
        with django_connection(shop.address) as connection:
            connection.ensure_connection()
            with pytest.raises(JobError, match="is in no transaction"):
                shop.pay.using(connection=connection).enqueue("no")
        database = sqlalchemy.create_engine(
            _sqlalchemy(shop.address, "psycopg2"), isolation_level="AUTOCOMMIT"
        )
        with database.connect() as connection, pytest.raises(JobError, match="is in no transaction"):
            shop.pay.using(connection=connection).enqueue("no")
        database.dispose()

        assert shop.texts() == []

    async def test_nor_is_an_async_one_taken(self, shop: Shop) -> None:
        connection = await asyncpg.connect(shop.address)
        with pytest.raises(JobError, match="is in no transaction"):
            await shop.pay.using(connection=connection).aenqueue("no")
        await connection.close()
        database = sqlalchemy_asyncio.create_async_engine(
            _sqlalchemy(shop.address, "asyncpg"), isolation_level="AUTOCOMMIT"
        )
        async with database.connect() as theirs:
            with pytest.raises(JobError, match="is in no transaction"):
                await shop.pay.using(connection=theirs).aenqueue("no")
        await database.dispose()

        assert shop.texts() == []

    def test_django_that_is_not_connected_yet_is_refused(self, shop: Shop) -> None:
        with (
            django_connection(shop.address) as connection,
            pytest.raises(StoreRefused, match=r"no open connection .* inside your transaction"),
        ):
            shop.pay.using(connection=connection).enqueue("no")

    @pytest.mark.parametrize("given", [object(), 5, "postgresql://"])
    def test_what_is_no_connection_is_refused(self, shop: Shop, given: object) -> None:
        with pytest.raises(StoreRefused, match=f"connection= got a {type(given).__name__}"):
            shop.pay.using(connection=given).enqueue("no")

    async def test_nor_is_it_in_async_code(self, shop: Shop) -> None:
        with pytest.raises(StoreRefused, match="connection= got a object"):
            await shop.pay.using(connection=object()).aenqueue("no")

    def test_another_database_is_refused_though_it_has_a_store(
        self, shop: Shop, postgres_database: str
    ) -> None:
        make_store(postgres_database)
        with psycopg.connect(postgres_database) as connection:
            with pytest.raises(StoreRefused, match="not to the database of the store, postgresql://"):
                shop.pay.using(connection=connection).enqueue("no")
            connection.execute("SELECT 1")  # and still usable
            assert connection.execute("SELECT count(*) FROM shigoto.job").fetchone() == (0,)

    async def test_so_it_is_in_async_code(self, shop: Shop, postgres_database: str) -> None:
        async with await psycopg.AsyncConnection.connect(postgres_database) as connection:
            for _ in range(2):
                with pytest.raises(StoreRefused, match="not to the database of the store"):
                    await shop.pay.using(connection=connection).aenqueue("no")

    @pytest.mark.parametrize("open_caller", [of_psycopg, of_psycopg2], ids=["psycopg", "psycopg2"])
    def test_a_connection_is_asked_once_where_it_leads(self, shop: Shop, open_caller: Open) -> None:
        with open_caller(shop.address) as caller:
            shop.pay.using(connection=caller.connection).enqueue("one")
            assert caller.connection in shop.engine._joiner._checked

    async def test_so_is_what_a_pool_lends_out(self, shop: Shop) -> None:
        async with of_an_asyncpg_pool(shop.address) as caller:
            await shop.pay.using(connection=caller.connection).aenqueue("one")
            assert len(shop.engine._joiner._checked) == 1
            await caller.rollback()

    def test_a_database_without_a_schema_is_told_what_to_run(self, postgres_database: str) -> None:
        shop = Shop(postgres_database)
        with (
            psycopg.connect(postgres_database) as connection,
            pytest.raises(SchemaMissing, match="shigoto migrate"),
        ):
            shop.pay.using(connection=connection).enqueue("no")
        shop.engine.close()


class TestOthers:
    """What a caller's open transaction means for everybody else."""

    def test_a_new_lane_keeps_nobody_waiting(self, shop: Shop) -> None:
        """It would: the second to insert it waits for the first one's commit."""
        with psycopg.connect(shop.address) as connection:
            shop.pay.using(connection=connection, queue="new").enqueue("slow")
            shop.pay.using(queue="new").enqueue("quick")
            with psycopg.connect(shop.address) as other:
                shop.pay.using(connection=other, queue="new").enqueue("joined")
            assert len(shop.texts()) == 2
            connection.rollback()

        assert shop.lanes() == 1

    def test_one_that_a_caller_has_made_by_other_means_does_not_stop_it(self, shop: Shop) -> None:
        lane = "INSERT INTO shigoto.lane (queue, task, alone) VALUES ('default', 'pay', false)"
        with psycopg.connect(shop.address) as connection:
            connection.execute(lane)
            shop.pay.using(connection=connection).enqueue("yes")

        assert len(shop.texts()) == 1

    def test_the_doorbell_rings_with_the_commit_and_not_before(self, shop: Shop) -> None:
        with psycopg.connect(shop.address, autocommit=True) as listener:
            listener.execute("LISTEN shigoto")
            with psycopg.connect(shop.address) as connection:
                shop.pay.using(connection=connection).enqueue("one")
                shop.pay.using(connection=connection).enqueue("two")
                assert list(listener.notifies(timeout=0.1)) == []
                connection.commit()
                assert len(list(listener.notifies(timeout=10, stop_after=1))) == 1
                shop.pay.using(connection=connection).enqueue("three")
                connection.rollback()
            assert list(listener.notifies(timeout=0.1)) == []

    def test_a_release_in_a_callers_transaction_rings_too(self, shop: Shop) -> None:
        context, _ = shop.start()
        lease = context._lease
        from shigoto.model.worker import Ending, Settlement

        back = Settlement(
            number=lease.number, token=lease.token, queue="default", ending=Ending.RELEASED, ran=False
        )
        with psycopg.connect(shop.address, autocommit=True) as listener:
            listener.execute("LISTEN shigoto")
            with psycopg.connect(shop.address) as connection:
                shop.engine.join(connection, shop.engine.settle(shop.worker, [back]))
                assert list(listener.notifies(timeout=0.1)) == []
            assert len(list(listener.notifies(timeout=10, stop_after=1))) == 1

    def test_two_of_one_key_queue_up_and_the_second_finds_the_first(self, shop: Shop) -> None:
        """A2."""
        begun, ids = threading.Event(), list[UUID]()

        def second() -> None:
            with psycopg.connect(shop.address) as other:
                begun.set()
                ids.append(shop.pay.using(connection=other, key="k").enqueue("2").id)

        with psycopg.connect(shop.address) as connection:
            first = shop.pay.using(connection=connection, key="k").enqueue("1")
            thread = threading.Thread(target=second)
            thread.start()
            assert begun.wait(10)
            thread.join(0.1)
            assert thread.is_alive()
        thread.join(10)

        assert ids == [first.id]
        assert len(shop.texts()) == 1

    @pytest.mark.parametrize("open_caller", [of_psycopg, of_psycopg2], ids=["psycopg", "psycopg2"])
    def test_a_serialization_failure_is_the_callers_to_see(self, shop: Shop, open_caller: Open) -> None:
        shop.pay.using(key="k").enqueue("0")
        with open_caller(shop.address) as caller:
            caller.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            caller.execute("SELECT 1 FROM paid")
            shop.pay.using(key="k", key_mode="replace").enqueue("1")
            with pytest.raises(
                (psycopg.errors.SerializationFailure, psycopg2.errors.SerializationFailure)
            ) as e:
                shop.pay.using(connection=caller.connection, key="k", key_mode="replace").enqueue("2")
            assert type(e.value).__module__.startswith(
                "psycopg2" if open_caller is of_psycopg2 else "psycopg."
            )
            caller.execute(INSERT)  # nothing of ours was left behind, and the transaction is theirs
            caller.rollback()


def test_django_on_psycopg2_is_taken_as_well(shop: Shop) -> None:
    """It prefers psycopg 3 where that is installed, as it is with us: so it must not find it."""
    script = f"""
import sys
sys.modules["psycopg"] = None
from django.conf import settings
address = {shop.address!r}
import psycopg2.extensions
said = psycopg2.extensions.parse_dsn(address)
settings.configure(USE_TZ=True, DATABASES={{"default": {{"ENGINE": "django.db.backends.postgresql",
    "NAME": said["dbname"], "USER": said["user"], "PASSWORD": said.get("password", ""), "HOST": said["host"],
    "PORT": said["port"]}}}})
import django
django.setup()
from django.db import connection, transaction
connection.ensure_connection()
assert type(connection.connection).__module__.startswith("psycopg2")
del sys.modules["psycopg"]
from shigoto import Shigoto
app = Shigoto(address)
@app.task
def pay(text: str) -> None: ...
with transaction.atomic():
    pay.using(connection=connection).enqueue("one")
    assert app.find() == []
assert len(app.find()) == 1
"""
    run = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_no_driver_is_loaded_that_nobody_uses() -> None:
    script = """
import sys
from shigoto.engine.postgres import PostgresEngine
from shigoto import StoreRefused
engine = PostgresEngine("postgresql://localhost/x")
try:
    engine.join(object(), engine.enqueue_many([]))
except StoreRefused:
    pass
loaded = {"psycopg2", "asyncpg", "sqlalchemy", "django"} & set(sys.modules)
assert not loaded, loaded
"""
    run = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")


async def test_the_event_loop_goes_on_while_an_async_connection_waits(shop: Shop) -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.01)

    with psycopg.connect(shop.address) as holder:
        shop.pay.using(connection=holder, key="k").enqueue("1")
        beating = asyncio.create_task(beat())
        async with await psycopg.AsyncConnection.connect(shop.address) as connection:
            waiting = asyncio.create_task(shop.pay.using(connection=connection, key="k").aenqueue("2"))
            await asyncio.wait([waiting], timeout=0.3)
            assert not waiting.done()
            holder.commit()
            assert (await waiting).status() is State.PENDING
        beating.cancel()
    assert beats > 10


@pytest.mark.parametrize("count", [1, 2])
def test_a_refused_job_is_left_out_and_the_callers_transaction_goes_on(shop: Shop, count: int) -> None:
    with psycopg.connect(shop.address) as connection:
        connection.execute("GRANT INSERT ON paid TO pg_read_all_data")
        connection.execute("SET LOCAL ROLE pg_read_all_data")  # which may not write jobs
        pay = shop.pay.using(connection=connection, on_error="log")

        handles = shop.app.enqueue_many([pay.call("one")] * count) if count > 1 else [pay.enqueue("one")]
        connection.execute(INSERT)

        assert {handle.enqueued for handle in handles} == {"not_enqueued"}
    assert (shop.paid(), shop.texts()) == ([1], [])
