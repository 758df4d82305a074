"""What only PostgreSQL can lack or refuse, and what people are told of it."""

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from conformance.engine_under_test import EngineUnderTest
from conformance.filters import fail, numbers
from devtools.postgres import Server
from shigoto import Context, JobError, OptionInvalid, SchemaMissing, Shigoto, StoreRefused
from shigoto.engine.op import Op
from shigoto.engine.postgres import PostgresEngine
from shigoto.model.job import JobFilter
from shigoto.testing.store import VirtualClock
from shigoto.worker import Worker

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

# How a schema can have a hole although its migrations are all written down.
HOLES = {
    "3F000": "DROP SCHEMA shigoto CASCADE",
    "42P01": "DROP TABLE shigoto.worker",
    "42703": "ALTER TABLE shigoto.worker RENAME COLUMN lease_until TO lease_up_to",
    "42883": "ALTER FUNCTION shigoto.now() RENAME TO what_time",
}


@pytest.fixture
def engine(postgres_database: str) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(postgres_database)
    engine.migrate()
    yield engine
    engine.close()


def change(address: str, text: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(text.encode())


def test_whatever_a_handler_says_is_stored_and_spelt_out(engine: PostgresEngine) -> None:
    """U+0000 and half a surrogate pair in what describes a run; in data U+0000 is data."""
    app = Shigoto(engine=engine)

    @app.task(retries=0)
    def talk(ctx: Context, text: str) -> str:
        ctx.log("line \0 \x07")
        ctx.progress(0.5, "half \0 \udfff")
        if text == "fail":
            raise ValueError("broken \0 \ud800")
        return f"{text}\0"

    done, failed = talk.enqueue("a\0b"), talk.enqueue("fail")
    asyncio.run(Worker(app, drain=True, any_role=True).run())

    assert done.result() == "a\0b\0"
    assert [line.text for line in done.logs()] == ["line \\x00 \\x07"]
    assert done.job().progress_text == "half \\x00 \\udfff"
    assert failed.job().error == "ValueError: broken \\x00 \\ud800"
    assert "\0" not in str(failed.attempts()[0].traceback)
    assert [job.id for job in app.find(args={"text": "a\0b"})] == [done.id]


@pytest.mark.parametrize("code", HOLES)
def test_what_the_schema_lacks_is_told_with_the_remedy(
    engine: PostgresEngine, postgres_database: str, code: str
) -> None:
    """S3-22, S3-23: WORKER.SCHEMA_MISSING for sync and async callers, in their transactions, and for a worker."""
    app = Shigoto(engine=engine)
    stored = app.enqueue_by_name("greet", {}, allow_unknown=True)
    change(postgres_database, HOLES[code])
    op: Op[Any] = engine.cancel([stored.id]) if code == "42883" else engine.workers()

    with pytest.raises(SchemaMissing, match="shigoto migrate") as told:
        engine.run(op)
    assert isinstance(told.value.__cause__, psycopg.Error)
    assert told.value.__cause__.sqlstate in (code, "42P01", "3F000")
    with pytest.raises(SchemaMissing, match="shigoto migrate"):
        asyncio.run(arun(engine, op))
    with psycopg.connect(postgres_database) as theirs, pytest.raises(SchemaMissing, match="shigoto migrate"):
        engine.join(theirs, op)
    with pytest.raises(SchemaMissing, match="shigoto migrate"):
        asyncio.run(ajoin(engine, postgres_database, op))
    with pytest.raises(SchemaMissing, match="shigoto migrate"):
        asyncio.run(Worker(app, drain=True, any_role=True).run())


async def arun(engine: PostgresEngine, op: Op[Any]) -> None:
    try:
        await engine.arun(op)
    finally:
        engine.close()


async def ajoin(engine: PostgresEngine, address: str, op: Op[Any]) -> None:
    async with await psycopg.AsyncConnection.connect(address) as theirs:
        try:
            await engine.ajoin(theirs, op)
        finally:
            await theirs.rollback()
            engine.close()


def test_a_filter_by_error_folds_the_same_letters_in_every_locale(postgres: Server) -> None:
    """A database may have its own idea of small letters; engines agree on those of ASCII."""
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE learned TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'"
            " LOCALE 'C' ENCODING 'UTF8'"
        )
        try:
            assert connection.execute("SELECT 1").fetchone()
            with closing(PostgresEngine(postgres.address_of("learned"))) as engine:
                engine.migrate()
                store = EngineUnderTest(engine, VirtualClock())
                failed = fail(store, "RÉSUMÉ is missing")

                assert numbers(store, JobFilter(error="rÉsumÉ IS")) == [failed.number]
                assert numbers(store, JobFilter(error="résumé")) == []
        finally:
            connection.execute("DROP DATABASE learned WITH (FORCE)")


def test_letters_that_the_database_does_not_have_are_told_apart_from_ours(postgres: Server) -> None:
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        try:
            with closing(PostgresEngine(postgres.address_of("latin"))) as engine:
                with psycopg.connect(engine.address) as by_hand:
                    by_hand.execute(engine.migration_script(everything=True).encode())
                app = Shigoto(engine=engine)
                handle = app.enqueue_by_name("greet", {"name": "Zoë"}, allow_unknown=True)

                assert handle.job().payload == '{"name":"Zoë"}'
                with pytest.raises(OptionInvalid, match="whose encoding is not UTF8"):
                    app.enqueue_by_name("greet", {"name": "名前"}, allow_unknown=True)
        finally:
            connection.execute("DROP DATABASE latin WITH (FORCE)")


async def test_a_test_in_memory_takes_connections_that_the_real_store_would_take(
    postgres_database: str,
) -> None:
    """And no others; the job is there at once, and nothing is written to the database."""
    app = Shigoto(postgres_database)

    @app.task
    def note() -> None: ...

    mine = sqlite3.connect(":memory:")
    async with await psycopg.AsyncConnection.connect(postgres_database) as awaited:
        with app.test() as jobs, psycopg.connect(postgres_database) as theirs, closing(mine):
            note.using(connection=theirs).enqueue()
            await note.using(connection=awaited).aenqueue()
            await note.using(connection=theirs).aenqueue()
            assert len(jobs.enqueued(note)) == 3
            with pytest.raises(StoreRefused, match=r"no open connection of psycopg, psycopg2 or asyncpg"):
                note.using(connection=mine).enqueue()
            with pytest.raises(StoreRefused, match=r"no open connection of psycopg, psycopg2 or asyncpg"):
                await note.using(connection=mine).aenqueue()
            with pytest.raises(JobError, match="must be, too"):
                note.using(connection=awaited).enqueue()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_another_encoding_is_not_made_a_store(postgres_database: str, encoding: str) -> None:
    """It would be found out by the first job with a letter that it does not have."""
    other = f"other_{encoding.lower()}"
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {other}".encode())
        connection.execute(
            f"CREATE DATABASE {other} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0".encode()
        )
    engine = PostgresEngine(re.sub(r"/[^/]*$", f"/{other}", postgres_database))
    try:
        with pytest.raises(StoreRefused, match=rf"has the encoding {encoding}.* ENCODING 'UTF8'"):
            engine.migrate()
        with pytest.raises(StoreRefused, match=f"has the encoding {encoding}"):
            engine.migration_script()
        server = engine.checkup().server
        assert server is not None
        assert server.settings["server_encoding"] == encoding
        with psycopg.connect(engine.address, autocommit=True) as connection:
            assert connection.execute("SELECT to_regnamespace('shigoto')::text").fetchall() == [(None,)]
    finally:
        engine.close()
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {other}".encode())
