"""Opens connections, in threads and on event loops, and tells an outage from a refusal."""

import asyncio
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

import psycopg
from psycopg.conninfo import make_conninfo

from shigoto.engine.postgres.connection import LoopConnection, LoopsInner, ThreadConnection, ThreadsInner
from shigoto.engine.postgres.failures import refused_connection
from shigoto.engine.postgres.outage import Outage
from shigoto.model.errors import StoreUnavailable

SHORTEST = 2  # seconds; libpq takes a shorter time to connect for this one


class Connector:
    """Opens connections to one server, for any thread and any loop."""

    def __init__(self, store: str, parameters: Mapping[str, str], *, prepares: bool, patience: float) -> None:
        self._store = store
        self._parameters = parameters
        self._prepares = prepares
        self._patience = patience
        self._begin_again()

    def _begin_again(self) -> None:
        self._outage = Outage(self._patience)

    def open(self, until: float) -> ThreadConnection:
        """A new connection. Raises StoreUnavailable or StoreRefused."""
        while True:
            pause = self._outage.admit(until)
            if pause > 0.0:
                time.sleep(pause)
                continue
            with suppress(StoreUnavailable), self._attempt():
                inner = ThreadsInner.connect(
                    make_conninfo(**self._limited(until)), autocommit=True, prepare_threshold=None
                )
                return ThreadConnection(inner, prepares=self._prepares)

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
        parameters = self._limited(until)
        try:
            async with asyncio.timeout(float(parameters["connect_timeout"])):
                inner = await LoopsInner.connect(
                    make_conninfo(**parameters), autocommit=True, prepare_threshold=None
                )
        except TimeoutError as error:
            raise psycopg.OperationalError("connection timeout expired") from error
        return LoopConnection(inner, prepares=self._prepares)

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

    def _limited(self, until: float) -> dict[str, str]:
        """The parameters, with no more time to connect than the caller has."""
        limit = self._patience
        said = self._parameters.get("connect_timeout", "")
        if said.isdigit() and int(said) > 0:
            limit = min(limit, float(said))
        limit = max(SHORTEST, min(limit, until - time.monotonic()))
        return {**self._parameters, "connect_timeout": str(int(limit))}
