"""What time it is for a PostgreSQL store: in transactions that callers keep open, and whatever their search_path."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from devtools.postgres import Server
from shigoto.engine.postgres import PostgresEngine
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec, State
from shigoto.model.time import to_datetime
from shigoto.model.worker import Announcement, Ending, Settlement, Want
from tests.postgres import Yard, make_store

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

OPEN_FOR = 300  # milliseconds that a caller's transaction is open before it comes to us
WANT = (Want(tasks=("a",), queues=None, limit=10),)


@pytest.fixture
def address(postgres: Server, postgres_yard: Yard, postgres_major: int) -> Iterator[str]:
    assert postgres.running
    with postgres_yard.emptied(postgres_major, make_store) as address:
        yield address


@pytest.fixture
def engine(address: str) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(address)
    yield engine
    engine.close()


@pytest.fixture
def worker(engine: PostgresEngine) -> Any:
    id = uuid7()
    engine.run(
        engine.announce(Announcement(id=id, name="w", tasks=("a",), queues=None, slots=10, version="0"))
    )
    return id


def spec(**options: Any) -> JobSpec:
    return JobSpec(id=uuid7(), task="a", queue="default", payload="{}", max_failures=3, **options)


def open_for_long(connection: Any) -> int:
    """Let the transaction be open for a while; the time at which it began, in milliseconds."""
    connection.execute("SELECT pg_sleep(%s)", (OPEN_FOR / 1000,))
    [began] = connection.execute("SELECT floor(extract(epoch FROM now()) * 1000)::bigint").fetchone()
    return int(began)


@pytest.mark.parametrize("key", [None, "k"])
def test_what_is_said_relative_to_now_counts_from_the_enqueue_and_not_from_the_callers_begin(
    engine: PostgresEngine, address: str, worker: Any, key: str | None
) -> None:
    soon, later = spec(expires_in=OPEN_FOR // 2, key=key), spec(delay=60_000)
    with psycopg.connect(address) as connection:
        began = open_for_long(connection)
        engine.join(connection, engine.enqueue_many([soon]))
        engine.join(connection, engine.enqueue_many([later]))

    assert [lease.id for lease in engine.run(engine.claim(worker, WANT))] == [soon.id]
    [first, second] = engine.run(engine.get([soon.id, later.id]))
    assert first is not None
    assert second is not None
    assert first.created_at >= to_datetime(began + OPEN_FOR)
    assert second.run_at >= to_datetime(began + OPEN_FOR + 60_000)


def test_a_job_that_is_completed_in_a_block_ends_when_that_ends(engine: PostgresEngine, worker: Any) -> None:
    job = spec()
    engine.run(engine.enqueue_many([job]))
    [lease] = engine.run(engine.claim(worker, WANT))
    end = Settlement(
        number=lease.number, token=lease.token, queue="default", ending=Ending.COMPLETED, result="null"
    )

    with engine.block(lambda: engine.settle(worker, [end]), limit=10.0) as tx:
        began = open_for_long(tx)

    [ended] = engine.run(engine.get([job.id]))
    assert ended is not None
    assert ended.state is State.COMPLETED
    assert ended.finished_at is not None
    assert ended.finished_at >= to_datetime(began + OPEN_FOR)


def test_all_of_one_operation_is_one_instant(address: str) -> None:
    with psycopg.connect(address) as connection:
        open_for_long(connection)
        row = connection.execute(
            "SELECT shigoto.now() = floor(extract(epoch FROM now()) * 1000)::bigint,"
            " shigoto.statement_now() - shigoto.now(), shigoto.host_statement_now() - shigoto.host_now()"
        ).fetchone()

    assert row is not None
    assert row[0]
    assert OPEN_FOR <= row[1] == row[2] < OPEN_FOR + 10_000


def test_a_step_back_is_ridden_out_in_statements_too(address: str) -> None:
    with psycopg.connect(address) as connection:
        connection.execute("UPDATE shigoto.clock SET mark = shigoto.host_now() + 30000")
        held = connection.execute(
            "SELECT shigoto.statement_now() = c.mark, shigoto.now() = c.mark FROM shigoto.clock c"
        ).fetchone()
        connection.rollback()

    assert held == (True, True)


def test_one_job_by_itself_rides_it_out_too(engine: PostgresEngine, address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        engine.run(engine.enqueue_many([spec()]))  # whose lane is new
        connection.execute("UPDATE shigoto.clock SET mark = shigoto.host_now() + 30000")
        [held] = engine.run(engine.enqueue_many([spec()]))
        connection.execute("UPDATE shigoto.clock SET mark = shigoto.host_now() + 300000")
        [believed] = engine.run(engine.enqueue_many([spec()]))
        row = connection.execute(
            "SELECT array_agg(b.created_at - shigoto.host_now() > 0 ORDER BY b.number) FROM shigoto.job b"
            " WHERE b.number = ANY (%s)",
            [[held.number, believed.number]],
        ).fetchone()
        connection.execute("UPDATE shigoto.clock SET mark = 0")

    assert row == ([True, False],)


HOSTILE = """
CREATE SCHEMA hostile;
CREATE FUNCTION hostile.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''epoch''::timestamptz';
CREATE FUNCTION hostile.statement_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''epoch''::timestamptz';
CREATE FUNCTION hostile.floor(numeric) RETURNS numeric LANGUAGE sql AS 'SELECT 0::numeric';
CREATE FUNCTION hostile.cardinality(anyarray) RETURNS integer LANGUAGE sql AS 'SELECT 1000';
CREATE FUNCTION hostile.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT 1 / 0';
""" + "".join(
    f"""
CREATE FUNCTION hostile.{name}({kinds}) RETURNS {result} LANGUAGE sql AS 'SELECT {value}';
CREATE OPERATOR hostile.{sign} (FUNCTION = hostile.{name}, {arguments});
"""
    for name, sign, kinds, arguments, result, value in (
        *(
            (
                f"{word}_{kind}",
                sign,
                f"{kind}, {kind}",
                f"LEFTARG = {kind}, RIGHTARG = {kind}",
                "bool",
                "false",
            )
            for word, sign in (("same", "="), ("less", "<="), ("more", ">"))
            for kind in ("text", "bool", "bigint")
        ),
        *(
            (f"{word}_{kind}", sign, f"bigint, {kind}", f"LEFTARG = bigint, RIGHTARG = {kind}", "bigint", "1")
            for word, sign in (("plus", "+"), ("rest", "%"))
            for kind in ("integer", "bigint")
        ),
        ("minus", "-", "integer", "RIGHTARG = integer", "integer", "77"),
    )
)
ONE = (
    "SELECT shigoto.enqueue_one('', 'default', 'a', false, 5, 0, NULL, NULL, NULL, 20, 3, NULL, NULL, NULL, NULL,"
    " NULL, %s, '{}', false)"
)


def test_the_callers_search_path_changes_nothing(engine: PostgresEngine, address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(HOSTILE)
        connection.execute("SET search_path = hostile, pg_catalog")
        row = connection.execute(
            "SELECT shigoto.now() - n, shigoto.statement_now() - n, shigoto.host_now() - n FROM"
            " (SELECT (extract(epoch FROM pg_catalog.now()) * 1000)::bigint AS n) n"
        ).fetchone()
        with connection.transaction():
            engine.join(connection, engine.enqueue_many([spec(), spec()]))
        connection.execute(ONE, [uuid7()])
        one = connection.execute(
            "SELECT max(r.priority OPERATOR(pg_catalog.*) -1) FROM shigoto.ready r"
        ).fetchone()
        connection.execute("DROP SCHEMA hostile CASCADE")
        bare = connection.execute(
            "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'shigoto'::regnamespace"
            " AND NOT coalesce('search_path=pg_catalog' = ANY (p.proconfig), false) ORDER BY 1"
        ).fetchall()

    assert row is not None
    assert all(abs(ahead) <= 1 for ahead in row)
    assert engine.run(engine.stats())["default"].pending == 3
    assert one == (5,)
    assert bare == [
        ("enqueue_one",),
        ("host_now",),
        ("host_statement_now",),
    ]  # which say pg_catalog themselves
