"""What tests of the PostgreSQL engine stand on: a database for each, and a clock that the server sees."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from devtools.postgres import Server
from shigoto.testing.virtual_time import START
from tests.postgres_clock import ServerClock, take_time_from_test
from tests.postgres_yard import Yard

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

prepared: list[str] = []


def prepare(address: str) -> None:
    prepared.append(address)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE TABLE made_once (n integer)")


def test_a_database_is_fresh_and_goes_with_whoever_is_connected(
    postgres: Server, postgres_yard: Yard, postgres_major: int
) -> None:
    with postgres_yard.database(postgres_major, prepare) as address:
        connection = psycopg.connect(address, autocommit=True)
        connection.execute("INSERT INTO made_once VALUES (1)")
    with postgres_yard.database(postgres_major, prepare) as another, psycopg.connect(another) as fresh:
        assert fresh.execute("SELECT count(*) FROM made_once").fetchone() == (0,)

    assert prepared.count(prepared[-1]) == 1
    names = [conninfo_to_dict(each)["dbname"] for each in (address, another)]
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    with psycopg.connect(postgres.address) as connection:
        left = connection.execute(
            "SELECT count(*) FROM pg_database WHERE datname = ANY (%s)", [names]
        ).fetchone()
    assert left == (0,)


def make_store(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            "CREATE SCHEMA shigoto; "
            "CREATE TABLE shigoto.job (number bigint GENERATED ALWAYS AS IDENTITY, word text); "
            "CREATE TABLE shigoto.meta (name text); "
            "INSERT INTO shigoto.meta VALUES ('as migrated')"
        )


def test_an_emptied_database_is_like_a_fresh_one(
    postgres: Server, postgres_yard: Yard, postgres_major: int
) -> None:
    assert postgres.running
    with postgres_yard.emptied(postgres_major, make_store) as first:
        leaked = psycopg.connect(first, autocommit=True)
        leaked.execute("INSERT INTO shigoto.job (word) VALUES ('a'), ('b')")
        leaked.execute("UPDATE shigoto.meta SET name = 'changed'")
        leaked.execute("CREATE TABLE callers_own (n integer)")

    with postgres_yard.emptied(postgres_major, make_store) as second, psycopg.connect(second) as connection:
        rows = connection.execute("INSERT INTO shigoto.job (word) VALUES ('c') RETURNING number").fetchall()
        kept = connection.execute("SELECT name FROM shigoto.meta").fetchall()
        theirs = connection.execute("SELECT to_regclass('callers_own')").fetchone()

    assert second == first
    assert (rows, kept, theirs) == ([(1,)], [("as migrated",)], (None,))
    with pytest.raises(psycopg.OperationalError):
        leaked.execute("SELECT 1")


def test_a_database_that_a_test_has_failed_on_is_not_used_again(
    postgres: Server, postgres_yard: Yard, postgres_major: int
) -> None:
    assert postgres.running
    with pytest.raises(ZeroDivisionError), postgres_yard.emptied(postgres_major, make_store) as failed:
        raise ZeroDivisionError

    with postgres_yard.emptied(postgres_major, make_store) as next_one:
        assert next_one != failed


def test_the_server_sees_the_clock_of_the_test(postgres_database: str) -> None:
    """Also inside of a transaction, as the store's own time would be: a statement sees the time of its start."""
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shigoto")
        take_time_from_test(postgres_database)
        with ServerClock(postgres_database) as clock:
            assert connection.execute("SELECT shigoto.host_now()").fetchone() == (START,)
            clock.advance(1_500)
            assert connection.execute("SELECT shigoto.host_now()").fetchone() == (START + 1_500,)
            clock.advance(-2_000)
            assert connection.execute("SELECT shigoto.host_now()").fetchone() == (START - 500,)
            assert (clock.now, clock()) == (START - 500, START - 500)
