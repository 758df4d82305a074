"""A clock that a PostgreSQL server sees: it stands still until a test moves it."""

from types import TracebackType
from typing import Self

import psycopg

from shigoto.model.time import Millis
from shigoto.testing.virtual_time import START, VirtualClock

# Only the raw time is replaced, that of a transaction and that of a statement in it. What the store makes of it,
# `shigoto.now()`, is held back after a step as ever.
REPLACE = f"""
CREATE SCHEMA test;
CREATE TABLE test.instant (now bigint NOT NULL);
INSERT INTO test.instant VALUES ({START});
CREATE OR REPLACE FUNCTION shigoto.host_now()
RETURNS bigint
LANGUAGE sql
STABLE
AS 'SELECT now FROM test.instant';
CREATE OR REPLACE FUNCTION shigoto.host_statement_now()
RETURNS bigint
LANGUAGE sql
STABLE
AS 'SELECT now FROM test.instant';
"""


def take_time_from_test(address: str) -> None:
    """Let the store in this database, which has its schema, take the time from a `ServerClock`."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(REPLACE)


class ServerClock(VirtualClock):
    """Store time under the control of a test, on a server; whatever begins after a step sees it."""

    def __init__(self, address: str) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        super().__init__()

    @property
    def now(self) -> Millis:
        return self._now

    @now.setter
    def now(self, instant: Millis) -> None:
        self._now = instant
        self._connection.execute("UPDATE test.instant SET now = %s", [instant])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
