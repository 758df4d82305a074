"""The shop of `shop.py` in a PostgreSQL database."""

import psycopg

from shigoto.engine.postgres import PostgresEngine
from tests.fundamentals.shop import AnyShop
from tests.postgres_clock import ServerClock, take_time_from_test


class PostgresShop(AnyShop):
    """One on a database; `options` are said in the store's address."""

    insert = "INSERT INTO paid VALUES (%s)"
    integrity_error = psycopg.IntegrityError

    def __init__(self, address: str, clock: ServerClock, options: str = "") -> None:
        self.address = address
        with self.open() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS paid (invoice integer PRIMARY KEY)")
        super().__init__(PostgresEngine(with_options(address, options)), clock)

    def open(self) -> psycopg.Connection:
        """A connection beside everything."""
        return psycopg.connect(self.address, autocommit=True)

    def paid(self) -> list[int]:
        with self.open() as connection:
            return [row[0] for row in connection.execute("SELECT invoice FROM paid ORDER BY invoice")]


def with_options(address: str, options: str) -> str:
    """The address with further parameters."""
    return f"{address}{'&' if '?' in address else '?'}{options}" if options else address


def prepare(address: str) -> None:
    """Migrate, once for all tests, and let the store ask the test for the time."""
    engine = PostgresEngine(address)
    engine.migrate()
    engine.close()
    take_time_from_test(address)
