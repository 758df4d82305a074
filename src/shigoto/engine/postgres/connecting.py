"""Opens connections, in threads and on event loops, and tells an outage from a refusal."""

import asyncio
import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from ipaddress import ip_address

import psycopg
from psycopg.conninfo import make_conninfo

from shigoto.engine.postgres.connection import LoopConnection, ThreadConnection
from shigoto.engine.postgres.failures import ConnectionLost, refused_connection
from shigoto.engine.postgres.inner import LoopsInner, ThreadsInner, connecting
from shigoto.engine.postgres.outage import Outage
from shigoto.engine.postgres.wire import WHO
from shigoto.model.errors import StoreUnavailable

SHORTEST = 2  # seconds; libpq takes a shorter time to connect for this one
ADDRESSES = 2  # of a name, as far as is known: one of either kind


class Connector:
    """Opens connections to one server, for any thread and any loop.

    `prepares` None leaves it to each connection to find out whether it goes straight to the server.
    """

    def __init__(
        self, store: str, parameters: Mapping[str, str], *, prepares: bool | None, patience: float
    ) -> None:
        self._store = store
        self._parameters = parameters
        self._prepares = prepares
        self._patience = patience
        self._outage = Outage(patience)

    def hurry(self) -> None:
        """From now on the first failure is told, and nobody waits for a server to come back."""
        self._outage = Outage(0.0)

    def open(self, until: float) -> ThreadConnection:
        """A new connection. Raises StoreUnavailable or StoreRefused."""
        while True:
            pause = self._outage.admit(until)
            if pause > 0.0:
                time.sleep(pause)
                continue
            with suppress(StoreUnavailable), self._attempt():
                conninfo, _ = self._limited(until)
                inner = ThreadsInner.connect(conninfo, autocommit=True, prepare_threshold=None)
                connection = ThreadConnection(inner, prepares=bool(self._prepares))
                if self._prepares is None:
                    with _or_closed(connection):
                        connection.wire.found_out(connection.ask(WHO, until))
                return connection

    async def aopen(self, until: float) -> LoopConnection:
        """A new connection of the running event loop. Raises StoreUnavailable or StoreRefused."""
        while True:
            pause = self._outage.admit(until)
            if pause > 0.0:
                await asyncio.sleep(pause)
                continue
            with suppress(StoreUnavailable), self._attempt():
                return await self._aconnect(until)

    async def _aconnect(self, until: float) -> LoopConnection:
        conninfo, limit = self._limited(until)
        try:
            with connecting():
                async with asyncio.timeout(limit):
                    inner = await LoopsInner.connect(conninfo, autocommit=True, prepare_threshold=None)
        except TimeoutError as error:
            raise psycopg.OperationalError("connection timeout expired") from error
        connection = LoopConnection(inner, prepares=bool(self._prepares))
        if self._prepares is None:
            with _or_closed(connection):
                connection.wire.found_out(await connection.ask(WHO, time.monotonic() + limit))
        return connection

    @contextmanager
    def _attempt(self) -> Generator[None]:
        """Tell the others how it ends. Who has failed is told by `admit` whether it is worth while to try again."""
        try:
            yield
        except psycopg.Error as error:
            failure = refused_connection(error, self._store)
            # A server that refuses us can be reached.
            self._outage.ended(failure if isinstance(failure, StoreUnavailable) else None)
            raise failure from error
        except BaseException:
            self._outage.given_up()
            raise
        else:
            self._outage.ended(None)

    def _limited(self, until: float) -> tuple[str, float]:
        """What libpq is told, with no more time for all attempts than the caller has; and that time, in seconds.

        psycopg gives each of its attempts all of the time that it is told: so each gets its share.
        """
        left = max(SHORTEST, until - time.monotonic())
        count = attempts(self._parameters)
        each = max(SHORTEST, int(min(self._patience, left) / count))
        conninfo = make_conninfo(**{**self._parameters, "connect_timeout": str(each)})
        return conninfo, min(left, max(self._patience, float(each * count)))


@contextmanager
def _or_closed(connection: ThreadConnection | LoopConnection) -> Generator[None]:
    """Leave nothing behind of a connection that does not answer; in the words of psycopg, it was not made."""
    try:
        yield
    except BaseException as error:
        connection.close()
        if isinstance(error, ConnectionLost):
            raise psycopg.OperationalError(error.reason) from error
        raise


def attempts(parameters: Mapping[str, str]) -> int:
    """In how many ways psycopg will try to connect, one after the other: each host, and each address of a name."""
    hosts = (parameters.get("host") or os.environ.get("PGHOST", "")).split(",")
    addresses = parameters.get("hostaddr") or os.environ.get("PGHOSTADDR", "")
    count = len(addresses.split(",")) if addresses else sum(map(_addresses_of, hosts))
    return 2 * count if parameters.get("target_session_attrs") == "prefer-standby" else count


def _addresses_of(host: str) -> int:
    if not host or host.startswith(("/", "@")) or host[1:2] == ":":
        return 1  # a socket of this machine
    try:
        ip_address(host)
    except ValueError:
        return ADDRESSES
    return 1
