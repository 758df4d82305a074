"""What databases of tests have in them before a test begins.

The yard makes each kind once in a test process, and empties its databases for the next test, whatever module has it.
"""

from shigoto.engine.postgres import PostgresEngine
from tests.postgres_clock import take_time_from_test


def make_store(address: str) -> None:
    """A store, migrated."""
    engine = PostgresEngine(address)
    engine.migrate()
    engine.close()


def make_store_on_test_time(address: str) -> None:
    """A store that asks the test for the time, by a `ServerClock`."""
    make_store(address)
    take_time_from_test(address)
