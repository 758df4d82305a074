"""A transaction for somebody's own statements, with one operation of ours at its end.

    open ── left ──► ending ── last, COMMIT (or ROLLBACK) ──► over
      └──── the limit passes: the watchdog cuts the line ──► expired, or silent
      └──── its job has ended without it: the same, at once ► expired
      └──── the process forks: the child must not touch it ─► foreign

It keeps nobody from writing but for the rows that it has written itself. Still it may not last for ever: the server
cannot clean up behind it. When the limit has passed, what it is doing just then is cancelled; then the connection is
shut down, from whatever thread, and the server rolls back. If the server answers what it was asked for long after the
limit, or never, then the line has fallen silent, and that is no fault of the block.

A statement that came after the end of the transaction would be an effect without a completion. COMMIT as a text cannot
be kept away from the server; so each statement looks whether the transaction is still there, and it has a token, a
setting that ends with it. The commit and the look at the token are one trip to the server: without the token the COMMIT
is not reached.

The handler gets a connection of psycopg's. It is not in psycopg's own `transaction()`, which sends a COMMIT of its own
when it is left; and what psycopg waits for goes through `wait`, also what cursors do that were made past the block. The
server's end of it goes on to serve other blocks: so the connection of a block refuses everything afterwards.

Blocks get their connections from pools of their own, so that beats and settles never wait. Whoever finds all of them in
use waits in line.
"""

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from functools import partial
from math import ceil, inf
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen

from shigoto.engine.op import Op
from shigoto.engine.postgres import connection
from shigoto.engine.postgres.connection import LoopConnection, ThreadConnection
from shigoto.engine.postgres.driver import ROLLBACK, Driver, OneAttempt, Requests, adrive, drive
from shigoto.engine.postgres.errors import (
    READ_ONLY,
    RESTARTABLE,
    STARVING,
    UNAVAILABLE,
    ConnectionLost,
    OpAttempts,
    one_line,
    refined,
    starving,
    unavailable,
)
from shigoto.engine.postgres.pool import (
    Connector,
    LoopConnections,
    PerLoop,
    ThreadConnections,
    begins_again_in_child,
)
from shigoto.engine.postgres.wire import BAD, WireRequest
from shigoto.engine.sql.block import FOREIGN, GIVEN_UP, NOT_YOURS, ONCE, OVER, BlockTimer, to_its_end
from shigoto.model.errors import JobError, StoreUnavailable, TransactionConflict, TransactionTooLong

T = TypeVar("T")
RV = TypeVar("RV")

# What an earlier block may have left behind on the connection. Plans stay: they make the completion quick.
CLEAN = WireRequest(
    b"RESET SESSION AUTHORIZATION; RESET ALL; DEALLOCATE ALL; CLOSE ALL; UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES;"
    b" SELECT pg_catalog.pg_advisory_unlock_all()"
)
BEGIN = (
    b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = %d;"
    b" SET LOCAL idle_in_transaction_session_timeout = %d; SET LOCAL shigoto.block = '%s'"
)
# What is no number is an error. DO and RAISE would say it more plainly, but not every user may use them.
COMMIT = (
    b"SELECT CASE WHEN pg_catalog.current_setting('shigoto.block', true) = '%s' THEN 0"
    b" ELSE (coalesce(pg_catalog.current_setting('shigoto.block', true), '') || ' is another block')::int END; COMMIT"
)
TOKEN_IS_GONE = " is another block"
SILENT = "the server has not answered while a transaction block was open"
STILL_BUSY = (
    "A statement of the transaction block is still under way, such as a stream, a COPY or a pipeline, so it cannot be"
    " committed. Leave these before the block."
)
ROLLED_BACK = (
    "PostgreSQL takes nothing more after an error in a transaction, so the block cannot go on: let the error pass"
    " through it. For a part that may fail there are savepoints: `with tx.transaction():`."
)
TOO_LONG = (
    "The transaction block was open for more than {:g} s and was rolled back: it keeps the rows locked that it has"
    " written. Do slow work before the block, and only write in it."
)

Stage = Literal["new", "open", "ending", "over", "expired", "silent", "foreign"]
LOOK_EVERY = 0.05  # seconds
SERVERS_GRACE = 1.0  # seconds that the server waits longer than we do, so that ours is the word people see
ANSWERED_WITHIN = 5.0  # seconds, by a server that was told to cancel
PROMPT = 0.25  # seconds after the limit; what is answered later has met silence
CANCELLED_WITHIN = 2.0  # seconds: the same for what was cancelled, since a cancel is a connection of its own
STATUS = pq.TransactionStatus


class CheckedCommit(OneAttempt[T]):
    """The last operation of a block: its transaction has begun already, and must be the same until the commit."""

    __slots__ = ("_token",)

    def __init__(self, op: Op[T], driver: Driver, until: float, token: bytes) -> None:
        super().__init__(op, driver.texts, driver.notify_rate, until)
        self.begun = True
        self._token = token

    def _begin(self) -> Requests[None]:
        yield from ()

    def _commit(self) -> Requests[None]:
        self.committing = True
        answer = yield WireRequest(COMMIT % self._token)
        if answer.tag != b"COMMIT":
            raise psycopg.InternalError("the transaction had failed")


def says_nothing_about_the_job(error: psycopg.Error, store: str) -> StoreUnavailable | None:
    """What an error means that has passed through a block; None if it is what it is."""
    if error.sqlstate in RESTARTABLE:
        return TransactionConflict(
            f"{store} has rolled the transaction block back, because it was in conflict with another transaction:"
            f" {one_line(error)}. Nothing of it has happened; ctx.transact(fn) would run it again."
        )
    if error.sqlstate in STARVING:
        return starving(store, error.sqlstate, one_line(error))
    return unavailable(store, one_line(error)) if UNAVAILABLE.fullmatch(error.sqlstate or "") else None


def refusal(error: psycopg.Error, store: str) -> Exception:
    """What it means that the completion was not written: trouble of the store, or what the block has done to it."""
    if isinstance(error, psycopg.errors.InvalidTextRepresentation) and TOKEN_IS_GONE in str(error):
        return JobError(NOT_YOURS)
    if isinstance(error, psycopg.IntegrityError):
        return error  # what a constraint says at the commit, it says about the block's own rows
    if error.sqlstate != READ_ONLY:
        meant = says_nothing_about_the_job(error, store) or refined(error, store)
        if isinstance(meant, StoreUnavailable):
            return meant
    return JobError(
        f"The completion of the job cannot be written after what the block did: {one_line(error)}"
    )


class _OfBlock:
    """What connections of blocks have in common: they do not end the transaction, which is the block's."""

    pgconn: pq.abc.PGconn
    block: "Block"
    finish: Callable[[object], None]

    def cancel(self) -> None:
        """Cancel the statement that is under way, without waiting for it."""
        connection.cancel(self.pgconn)

    def commit(self) -> NoReturn:
        raise JobError(NOT_YOURS)

    def rollback(self) -> NoReturn:
        raise JobError(NOT_YOURS)

    def close(self) -> NoReturn:
        raise JobError(NOT_YOURS)

    def set_autocommit(self, value: bool) -> NoReturn:
        raise JobError(NOT_YOURS)

    def __del__(self, _: Any = None, /) -> None: ...  # psycopg's would warn


class BlockConnection(_OfBlock, psycopg.Connection[Any]):
    """A connection with an open transaction, for as long as its block lasts."""

    def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        with self.block.statement():
            return super().wait(gen, *args, **options)

    def executemany(self, query: Any, params_seq: Iterable[Any]) -> psycopg.Cursor[Any]:
        """Run one statement for each of many rows, as a block of any store can."""
        cursor = self.cursor()
        cursor.executemany(query, params_seq)
        return cursor


class AsyncBlockConnection(_OfBlock, psycopg.AsyncConnection[Any]):
    """The same for event loops."""

    async def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        with self.block.statement():
            return await super().wait(gen, *args, **options)

    async def executemany(self, query: Any, params_seq: Iterable[Any]) -> psycopg.AsyncCursor[Any]:
        cursor = self.cursor()
        await cursor.executemany(query, params_seq)
        return cursor


class BlockPool:
    """The blocks of one process on one store."""

    def __init__(self, driver: Driver, trust: Callable[[object], None]) -> None:
        self.driver = driver
        self.store = driver.settings.shown
        self.trust = trust  # a connection is one to this database
        self._begin_again()
        begins_again_in_child(self)

    def _begin_again(self) -> None:
        settings = self.driver.settings
        patience = min(settings.patience, self.driver.deadline)
        # What a block prepares is gone after it: so is what we would have prepared.
        self._connector = Connector(self.store, settings.parameters, prepares=False, patience=patience)
        self.threads = self._new_pool()
        self.watchdog = BlockTimer()
        self._loops = PerLoop(lambda: LoopConnections(self.store, settings.on_a_loop, self._connector.aopen))

    def _new_pool(self) -> ThreadConnections:
        return ThreadConnections(self.store, self.driver.settings.on_a_loop, self._connector.open)

    def on_loop(self) -> LoopConnections:
        return self._loops.here()

    def close(self) -> None:
        """Close what nobody uses now, and the rest when it comes back. A later block opens again."""
        self.watchdog.stop()
        self.watchdog = BlockTimer()
        threads, self.threads = self.threads, self._new_pool()
        threads.close()
        self._loops.close()

    def after_fork_in_child(self) -> None:
        self.threads.disown()
        self._loops.disown()
        self._begin_again()


class Block:
    """One transaction, entered once, with `with` or `async with`."""

    def __init__(self, block_pool: BlockPool, last: Callable[[], Op[Any]], limit: float) -> None:
        self.stage: Stage = "new"
        self._block_pool = block_pool
        self._store = block_pool.store
        self._last, self._limit = last, limit
        self._limit_at = inf
        self._token = secrets.token_hex(16).encode()
        self._stepping = threading.Lock()  # from stage to stage
        self._given_up = False
        self._waits = False  # for the server
        self._conflict: psycopg.Error | None = None
        self._line: socket.socket | None = None
        self._ending: CheckedCommit[Any] | None = None

    # As `with`.

    def __enter__(self) -> BlockConnection:
        self._expect_new()
        pool, until = self._block_pool.threads, self._deadline()
        attempts = OpAttempts(self._store, until)
        while True:
            connection = pool.take(until)
            try:
                drive(connection, self._entering(reused=connection.reused), until)
                block_connection = BlockConnection(connection.wire.pgconn)
                self._opened(connection, block_connection, partial(pool.give_back, connection))
                return block_connection
            except BaseException as error:
                pool.lose(connection)
                pool.give_back(connection)
                self._expect_another(error, attempts)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_foreign(error):
            return
        connection, lock, rings = self._connection, self._block_connection.lock, False
        assert isinstance(connection, ThreadConnection)
        assert not isinstance(lock, asyncio.Lock)
        # Another thread's statement may have it, or a stream that nobody exhausts; until the limit passes.
        while not (held := lock.acquire(timeout=LOOK_EVERY)) and self.stage == "open":
            pass
        until = self._deadline()
        with self._leaving(error, until) as requests:
            if held:
                lock.release()
            if requests is not None:
                rings = drive(connection, requests, until)
        if rings:
            self._block_pool.driver.ring_from_thread()

    # As `async with`.

    async def __aenter__(self) -> AsyncBlockConnection:
        self._expect_new()
        pool, until = self._block_pool.on_loop(), self._deadline()
        attempts = OpAttempts(self._store, until)
        while True:
            connection = await pool.take(until)
            try:
                await adrive(connection, self._entering(reused=connection.reused), until)
                connection.stop_waiting()
                block_connection = AsyncBlockConnection(connection.wire.pgconn)
                self._opened(connection, block_connection, partial(pool.give_back, connection))
                return block_connection
            except BaseException as error:
                pool.lose(connection)
                pool.give_back(connection)
                self._expect_another(error, attempts)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_foreign(error):
            return
        if kind is not GeneratorExit:
            await to_its_end(asyncio.ensure_future(self._aleave(error)))
            return
        with self._leaving(error, 0.0):
            pass  # a coroutine that is thrown away must not wait any more

    async def _aleave(self, error: BaseException | None) -> None:
        connection, lock, rings = self._connection, self._block_connection.lock, False
        assert isinstance(connection, LoopConnection)
        assert isinstance(lock, asyncio.Lock)
        if lock.locked():
            await self._wait_for_statement(lock)
        until = self._deadline()
        with self._leaving(error, until) as requests:
            if requests is not None:
                connection.wait_again()
                rings = await adrive(connection, requests, until)
        if rings:
            self._block_pool.driver.ring_from_loop()

    async def _wait_for_statement(self, lock: asyncio.Lock) -> None:
        """Wait for another task's statement, or for a stream that nobody may exhaust: until the limit passes."""
        free = asyncio.ensure_future(lock.acquire())
        while self.stage == "open" and not free.done():
            await asyncio.wait([free], timeout=LOOK_EVERY)
        if not free.cancel():
            lock.release()

    # Entering.

    def _deadline(self) -> float:
        return time.monotonic() + self._block_pool.driver.deadline

    def _expect_new(self) -> None:
        if self.stage != "new":
            raise JobError(ONCE)

    def _entering(self, *, reused: bool) -> Requests[None]:
        if reused:
            yield CLEAN
        # The server ends it by itself if it takes longer and nobody else has ended it.
        patience = 1000 * ceil(self._limit + SERVERS_GRACE)
        yield WireRequest(BEGIN % (patience, patience, self._token))

    def _expect_another(self, error: BaseException, attempts: OpAttempts) -> None:
        """Raise what it means that the block was not entered, unless another connection is worth an attempt."""
        self._over()
        if isinstance(error, ConnectionLost):
            error.again, error.uncertain = True, False
        if not isinstance(error, (ConnectionLost, psycopg.Error)):
            raise error
        attempts.pause_after(error)

    def _opened(
        self,
        connection: ThreadConnection | LoopConnection,
        block_connection: BlockConnection | AsyncBlockConnection,
        give_back: Callable[[], None],
    ) -> None:
        block_connection.block = self
        block_connection.prepare_threshold = None  # what is prepared would be left behind on the server
        self._connection, self._block_connection, self._give_back = connection, block_connection, give_back
        self._pgconn = connection.wire.pgconn
        # One of our own to the same end: libpq may close its own in the moment when we shut it down.
        self._line = socket.fromfd(self._pgconn.socket, socket.AF_INET, socket.SOCK_STREAM)
        self._limit_at = time.monotonic() + self._limit
        self._watchdog = self._block_pool.watchdog
        self.stage = "open"
        begins_again_in_child(self)
        self._block_pool.trust(block_connection)
        self._watchdog.watch(self, 0.0 if self._given_up else self._limit)

    # While it is open.

    @contextmanager
    def statement(self) -> Generator[None]:
        """Ask the server something for the handler. Raises what the answer means here, if it means something more."""
        self.expect_usable()
        self._waits = True
        try:
            yield
            self._judge(PROMPT)
        except psycopg.Error as error:
            self._judge(CANCELLED_WITHIN if isinstance(error, psycopg.errors.QueryCanceled) else PROMPT)
            if self.stage in ("expired", "silent"):
                raise (self._refusal() or error) from error
            if error.sqlstate in RESTARTABLE:
                self._conflict = error
            raise
        finally:
            self._waits = False
        self.expect_usable()

    def _judge(self, patience: float) -> None:
        if self.stage == "expired" and time.monotonic() > self._limit_at + patience:
            self.stage = "silent"

    def expect_usable(self) -> None:
        """Raise if the transaction is not there, so that nothing is written beside it."""
        if refusal := self._refusal():
            raise refusal

    def _refusal(self) -> Exception | None:
        match self.stage:
            case "expired" | "silent" if self._given_up:
                return JobError(GIVEN_UP)
            case "expired":
                return TransactionTooLong(TOO_LONG.format(self._limit))
            case "silent":
                return unavailable(self._store, SILENT)
            case "foreign":
                return StoreUnavailable(FOREIGN)
            case "ending" | "over":
                return JobError(OVER)
            case "open" if self._pgconn.transaction_status == STATUS.IDLE:
                return JobError(NOT_YOURS)
            case _:
                return None

    def give_up(self) -> None:
        self._given_up = True
        if self.stage == "open":
            self._watchdog.watch(self, 0.0)

    def expire(self) -> None:
        """The limit has passed: let the server roll back. Never raises."""
        with self._stepping:
            if self.stage == "open":
                self.stage = "expired"
                connection.cancel(self._pgconn)
                if self._waits and not self._given_up:
                    self._watchdog.watch(self, ANSWERED_WITHIN)  # look again, whether it has answered
                    return
            elif self.stage != "expired":
                return
            elif self._waits:
                self.stage = "silent"
            self._cut()

    def _cut(self) -> None:
        if self._line is not None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)

    def after_fork_in_child(self) -> None:
        """This is a forked child's copy: nothing may touch the parent's connection any more."""
        if self.stage != "over":
            self._over()
            self.stage = "foreign"

    def _is_foreign(self, error: BaseException | None) -> bool:
        if self.stage == "foreign" and error is None:
            self.expect_usable()
        return self.stage == "foreign"

    # Leaving.

    @contextmanager
    def _leaving(self, error: BaseException | None, until: float) -> Generator[Requests[bool] | None]:
        """Give what to send, or None if it is too late; then free the connection, and raise what has become of it."""
        with self._stepping:
            in_time = self.stage == "open"
            if in_time:
                self.stage = "ending"
            else:
                self._limit_at = inf  # whoever still waits is cut off by us, not by a server that is silent
                self._cut()
        self._watchdog.forget(self)
        try:
            if not in_time:
                self._connection.close()
            yield self._requests(error, until) if in_time else None
        except ConnectionLost as lost:
            self._connection.close()
            if error is None:  # else it was a rollback, which comes by itself then
                uncertain = self._ending is not None and self._ending.committing
                raise unavailable(self._store, lost.reason, uncertain=uncertain) from lost
        except psycopg.Error as failed:
            if error is None:
                raise refusal(failed, self._store) from failed
        finally:
            self._give_back()
            self._over()
        expected = (psycopg.Error, StoreUnavailable) if self.stage == "silent" else psycopg.Error
        if not in_time and (error is None or isinstance(error, expected)) and (late := self._refusal()):
            raise late from error
        if isinstance(error, psycopg.Error):
            meant = says_nothing_about_the_job(error, self._store)
            broken = isinstance(error, psycopg.OperationalError) and self._pgconn.status == BAD
            if meant is None and broken:
                meant = unavailable(self._store, one_line(error))
            if meant is not None:
                raise meant from error

    def _over(self) -> None:
        if self.stage not in ("expired", "silent"):
            self.stage = "over"
        if self._line is not None:
            self._line.close()

    def _requests(self, error: BaseException | None, until: float) -> Requests[bool]:
        """Commit with the last operation, or roll back because of this error. Tells whether to ring."""
        driver, op = self._block_pool.driver, None
        try:
            if error is None:
                self._expect_complete()
                op = self._last()
        finally:
            # In any other status there is no transaction, or no server that listens.
            if op is None and self._pgconn.transaction_status in (STATUS.INTRANS, STATUS.INERROR):
                yield ROLLBACK
        if op is None:
            return False
        ending = self._ending = CheckedCommit(op, driver, until, self._token)
        value = yield from ending.requests()
        return driver.after(op, value, ending)

    def _expect_complete(self) -> None:
        match self._pgconn.transaction_status:
            case STATUS.IDLE:
                raise JobError(NOT_YOURS)
            case STATUS.ACTIVE:
                raise JobError(STILL_BUSY)
            case STATUS.INERROR:
                raise self._conflict or JobError(ROLLED_BACK)
            case _:
                return
