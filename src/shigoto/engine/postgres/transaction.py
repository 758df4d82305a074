"""A transaction for somebody's own statements, with one operation of ours at its end.

    open ── left ──► ending ── last, COMMIT (or ROLLBACK) ──► over
      └──── the limit passes: the watchdog cuts the line ──► expired, or silent
      └──── its job has ended without it: the same, at once ► expired
      └──── the process forks: the child must not touch it ─► foreign

It keeps nobody from writing but for the rows that it has written itself. Still it may not last for ever: the server
cannot clean up behind it. When the limit has passed, what it is doing just then is cancelled; then the connection is
shut down, from whatever thread, and the server rolls back. If the server does not say that it has cancelled what it was
asked for, then the line has fallen silent, and that is no fault of the block.

A statement that came after the end of the transaction would be an effect without a completion. COMMIT as a text cannot
be kept away from the server; so each statement looks whether the transaction is still there, and it has a token, a
setting that ends with it. The commit and the look at the token are one trip to the server: without the token the COMMIT
is not reached.

Blocks get their connections from pools of their own, so that beats and settles never wait. Whoever finds all of them in
use waits in line.
"""

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar
from weakref import WeakSet

import psycopg
from psycopg import pq

from shigoto.engine.op import Op
from shigoto.engine.postgres import connection
from shigoto.engine.postgres.block_connection import AsyncBlockConnection, BlockConnection
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
from shigoto.engine.postgres.joining import Joiner
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

Stage = Literal["new", "open", "ending", "over", "expired", "silent", "foreign"]
LOOK_EVERY = 0.05  # seconds
SERVERS_GRACE = 1.0  # seconds that the server waits longer than we do, so that ours is the word people see
ANSWERED_WITHIN = 5.0  # seconds, by a server that was told to cancel
PROMPT = 0.25  # seconds; whoever is answered within these has met no silence
STATUS = pq.TransactionStatus


def beginning(seconds: int, token: bytes) -> WireRequest:
    """Begin; the server ends it by itself if it takes longer and nobody else has ended it."""
    return WireRequest(BEGIN % (1000 * seconds, 1000 * seconds, token))


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


def says_nothing_about_the_job(error: psycopg.Error, store: str, *, broken: bool) -> StoreUnavailable | None:
    """What an error means that has passed through a block; None if it is what it is."""
    if error.sqlstate in RESTARTABLE:
        return _conflict(error, store)
    if error.sqlstate in STARVING:
        return starving(store, error.sqlstate, one_line(error))
    if (broken and isinstance(error, psycopg.OperationalError)) or UNAVAILABLE.fullmatch(
        error.sqlstate or ""
    ):
        return unavailable(store, one_line(error))
    return None


def refusal(error: psycopg.Error, store: str) -> Exception:
    """What it means that the completion was not written: trouble of the store, or what the block has done to it."""
    if error.sqlstate in RESTARTABLE:
        return _conflict(error, store)
    if isinstance(error, psycopg.errors.InvalidTextRepresentation) and TOKEN_IS_GONE in str(error):
        return JobError(NOT_YOURS)
    if isinstance(error, psycopg.IntegrityError):
        return error  # what a constraint says at the commit, it says about the block's own rows
    meant = refined(error, store)
    if isinstance(meant, StoreUnavailable) and error.sqlstate != READ_ONLY:
        return meant
    return JobError(
        f"The completion of the job cannot be written after what the block did: {one_line(error)}"
    )


def _conflict(error: psycopg.Error, store: str) -> TransactionConflict:
    return TransactionConflict(
        f"{store} has rolled the transaction block back, because it was in conflict with another transaction:"
        f" {one_line(error)}. Nothing of it has happened; ctx.transact(fn) would run it again."
    )


def too_long(limit: float) -> TransactionTooLong:
    """That a block was open for too long, by its own fault."""
    return TransactionTooLong(
        f"The transaction block was open for more than {limit:g} s and was rolled back: it keeps the rows locked that"
        " it has written. Do slow work before the block, and only write in it."
    )


class OpenBlock(Protocol):
    """A block, as far as its process is concerned."""

    def disown(self) -> None:
        """This is a forked child's copy: nothing may touch the parent's connection any more."""
        ...


class BlockPool:
    """The blocks of one process on one store."""

    def __init__(self, driver: Driver, joiner: Joiner) -> None:
        self.driver = driver
        self.store = driver.settings.shown
        self._joiner = joiner
        self._blocks: WeakSet[OpenBlock] = WeakSet()
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
        """The pool of the running event loop."""
        return self._loops.here()

    def sign_in(self, block: OpenBlock, block_connection: object) -> None:
        """A block has begun, with this connection."""
        self._blocks.add(block)
        self._joiner.trust(block_connection)

    def sign_out(self, block: OpenBlock) -> None:
        """A block has ended."""
        self._blocks.discard(block)

    def close(self) -> None:
        """Close what nobody uses now, and the rest when it comes back. A later block opens again."""
        self.watchdog.stop()
        self.watchdog = BlockTimer()
        threads, self.threads = self.threads, self._new_pool()
        threads.close()
        self._loops.close()

    def after_fork_in_child(self) -> None:
        """Begin again, without the parent's connections."""
        for block in list(self._blocks):
            block.disown()
        self._blocks = WeakSet()
        self.threads.disown()
        self._loops.disown()
        self._begin_again()


class Block:
    """One transaction, entered once, with `with` or `async with`."""

    def __init__(self, block_pool: BlockPool, last: Callable[[], Op[Any]], limit: float) -> None:
        self.stage: Stage = "new"
        self._block_pool = block_pool
        self._last = last
        self._limit = limit
        self._token = secrets.token_hex(16).encode()
        self._stepping = threading.Lock()  # from stage to stage
        self._given_up = False
        self.waiting: float | None = None
        self._overdue: float | None = None  # who waited for the server when the limit passed
        self._conflict: psycopg.Error | None = None
        self._line: socket.socket | None = None
        self._ending: CheckedCommit[Any] | None = None

    # As `with`.

    def __enter__(self) -> BlockConnection:
        self._expect_new()
        self._pool: ThreadConnections = self._block_pool.threads
        until = time.monotonic() + self._block_pool.driver.deadline
        attempts = OpAttempts(self._block_pool.store, until)
        while True:
            connection = self._pool.take(until)
            try:
                drive(connection, self._entering(reused=connection.reused), until)
                block_connection = BlockConnection(connection.wire.pgconn, self)
                self._opened(connection, block_connection)
                return block_connection
            except BaseException as error:
                self._pool.lose(connection)
                self._pool.give_back(connection)
                pause = self._pause_after(error, attempts)
            time.sleep(pause)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stage == "foreign":
            self._leave_foreign(error)
            return
        block_connection, connection = self._block_connection, self._connection
        assert isinstance(block_connection, BlockConnection)
        assert isinstance(connection, ThreadConnection)
        # Another thread's statement may have it, or a stream that nobody exhausts; until the limit passes.
        while not (held := block_connection.lock.acquire(timeout=LOOK_EVERY)) and self.stage == "open":
            pass
        in_time = self._begin_to_leave()
        if held:
            block_connection.lock.release()
        rings = False
        try:
            if in_time:
                until = time.monotonic() + self._block_pool.driver.deadline
                rings = drive(connection, self._leaving(error, until), until)
            else:
                connection.close()
        except (ConnectionLost, psycopg.Error) as failed:
            self._explain(failed, connection, error)
        finally:
            self._pool.give_back(connection)
            self._over()
        self._explain_inside(error, in_time=in_time)
        if rings:
            self._block_pool.driver.ring_from_thread()

    # As `async with`.

    async def __aenter__(self) -> AsyncBlockConnection:
        self._expect_new()
        self._loop_pool: LoopConnections = self._block_pool.on_loop()
        until = time.monotonic() + self._block_pool.driver.deadline
        attempts = OpAttempts(self._block_pool.store, until)
        while True:
            connection = await self._loop_pool.take(until)
            try:
                await adrive(connection, self._entering(reused=connection.reused), until)
                connection.stop_waiting()
                block_connection = AsyncBlockConnection(connection.wire.pgconn, self)
                self._opened(connection, block_connection)
                return block_connection
            except BaseException as error:
                self._loop_pool.lose(connection)
                self._loop_pool.give_back(connection)
                pause = self._pause_after(error, attempts)
            await asyncio.sleep(pause)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stage == "foreign":
            self._leave_foreign(error)
        elif kind is GeneratorExit:  # of a coroutine that is thrown away, and must not wait any more
            self._begin_to_leave()
            self._drop()
        else:
            await to_its_end(asyncio.ensure_future(self._aleave(error)))

    async def _aleave(self, error: BaseException | None) -> None:
        block_connection, connection = self._block_connection, self._connection
        assert isinstance(block_connection, AsyncBlockConnection)
        assert isinstance(connection, LoopConnection)
        if block_connection.lock.locked():
            await self._wait_for_statement(block_connection.lock)
        in_time = self._begin_to_leave()
        rings = False
        try:
            if in_time:
                until = time.monotonic() + self._block_pool.driver.deadline
                connection.wait_again()
                rings = await adrive(connection, self._leaving(error, until), until)
            else:
                connection.close()
        except (ConnectionLost, psycopg.Error) as failed:
            self._explain(failed, connection, error)
        finally:
            self._loop_pool.give_back(connection)
            self._over()
        self._explain_inside(error, in_time=in_time)
        if rings:
            self._block_pool.driver.ring_from_loop()

    async def _wait_for_statement(self, lock: asyncio.Lock) -> None:
        """Wait for another task's statement, or for a stream that nobody may exhaust: until the limit passes."""
        free = asyncio.ensure_future(lock.acquire())
        while self.stage == "open" and not free.done():
            await asyncio.wait([free], timeout=LOOK_EVERY)
        if not free.cancel():
            lock.release()

    def _drop(self) -> None:
        connection = self._connection
        assert isinstance(connection, LoopConnection)
        connection.close()
        self._loop_pool.give_back(connection)
        self._over()

    # Entering.

    def _expect_new(self) -> None:
        if self.stage != "new":
            raise JobError(ONCE)

    def _entering(self, *, reused: bool) -> Requests[None]:
        if reused:
            yield CLEAN
        yield beginning(ceil(self._limit + SERVERS_GRACE), self._token)

    def _pause_after(self, error: BaseException, attempts: OpAttempts) -> float:
        """How long to wait before another attempt; raises if there shall be none."""
        if isinstance(error, ConnectionLost):
            error.again, error.uncertain = True, False
        self._over()
        if isinstance(error, (ConnectionLost, psycopg.Error)):
            return attempts.pause_after(error)
        raise error

    def _opened(
        self,
        connection: ThreadConnection | LoopConnection,
        block_connection: BlockConnection | AsyncBlockConnection,
    ) -> None:
        pgconn = connection.wire.pgconn
        self._connection, self._block_connection = connection, block_connection
        # One of our own to the same end: libpq may close its own in the moment when we shut it down.
        self._line = socket.fromfd(pgconn.socket, socket.AF_INET, socket.SOCK_STREAM)
        self._watchdog = self._block_pool.watchdog
        self.stage = "open"
        self._block_pool.sign_in(self, block_connection)
        self._watchdog.watch(self, 0.0 if self._given_up else self._limit)

    # While it is open.

    def expect_usable(self) -> None:
        """Raise if the transaction is not there, so that nothing is written beside it."""
        match self.stage:
            case "expired" | "silent":
                raise self._late()
            case "foreign":
                raise StoreUnavailable(FOREIGN)
            case "over" | "ending":
                raise JobError(OVER)
            case _:
                self.expect_in_transaction()

    def expect_in_transaction(self) -> None:
        """Raise if a statement has ended the transaction."""
        if self.stage == "open" and self._block_connection.pgconn.transaction_status == STATUS.IDLE:
            raise JobError(NOT_YOURS)
        if self._is_overdue() and self._status != STATUS.ACTIVE:
            self._judge_silent()  # the server had done all of it when it was told to cancel, or has only now begun
            raise self._late()

    def explain(self, error: psycopg.Error) -> None:
        """Raise what an error means here, if it means something more."""
        if self._is_overdue() and not isinstance(error, psycopg.errors.QueryCanceled):
            self._judge_silent(broken=error.sqlstate is None)
        if self.stage in ("expired", "silent"):
            raise self._late() from error
        if error.sqlstate in RESTARTABLE:
            self._conflict = error

    def give_up(self) -> None:
        """Roll back soon, whoever is in it: its job has ended without it. Never waits."""
        self._given_up = True
        if self.stage == "open":
            self._watchdog.watch(self, 0.0)

    def expire(self) -> None:
        """The limit has passed: let the server roll back. Never raises."""
        with self._stepping:
            if self.stage == "open":
                self.stage = "expired"
                connection.cancel(self._connection.wire.pgconn)
                self._overdue = self.waiting
                if self._is_overdue() and not self._given_up:
                    self._watchdog.watch(self, ANSWERED_WITHIN)  # look again, whether it has answered
                    return
            elif self.stage != "expired":
                return
            elif self._is_overdue():
                self.stage = "silent"
            self._cut()

    def _is_overdue(self) -> bool:
        return self.stage == "expired" and self._overdue is not None and self.waiting == self._overdue

    def _judge_silent(self, *, broken: bool = False) -> None:
        """Unless the server has answered at once, and the limit passed in the midst of it by chance."""
        if broken or self.waiting is None or time.monotonic() > self.waiting + PROMPT:
            self.stage = "silent"

    def _cut(self) -> None:
        if self._line is not None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)

    def disown(self) -> None:
        """This is a forked child's copy: nothing may touch the parent's connection any more."""
        self.stage = "foreign"
        if self._line is not None:
            self._line.close()

    # Leaving.

    def _begin_to_leave(self) -> bool:
        with self._stepping:
            in_time = self.stage == "open"
            if in_time:
                self.stage = "ending"
            else:
                self._overdue = None  # whoever still waits is cut off by us, not by a server that is silent
                self._cut()
        self._watchdog.forget(self)
        return in_time

    def _leaving(self, error: BaseException | None, until: float) -> Requests[bool]:
        """Commit with the last operation, or roll back because of this error. Tells whether to ring."""
        driver = self._block_pool.driver
        try:
            if error is not None:
                raise error
            self._expect_complete()
            op = self._last()
        except BaseException as failed:
            if self._status in (
                STATUS.INTRANS,
                STATUS.INERROR,
            ):  # else there is nothing, or nobody who would listen
                yield ROLLBACK
            if failed is error:
                return False
            raise
        ending = self._ending = CheckedCommit(op, driver, until, self._token)
        value = yield from ending.requests()
        return driver.after(op, value, ending)

    @property
    def _status(self) -> int:
        return self._connection.wire.pgconn.transaction_status

    def _expect_complete(self) -> None:
        match self._status:
            case STATUS.IDLE:
                raise JobError(NOT_YOURS)
            case STATUS.ACTIVE:
                raise JobError(STILL_BUSY)
            case STATUS.INERROR:
                if self._conflict is not None:
                    raise self._conflict
                raise JobError(ROLLED_BACK)
            case _:
                return

    def _explain(
        self,
        failed: ConnectionLost | psycopg.Error,
        connection: ThreadConnection | LoopConnection,
        error: BaseException | None,
    ) -> None:
        """Raise what it means that the end has failed; nothing if it was a rollback, which comes by itself then."""
        store = self._block_pool.store
        if isinstance(failed, ConnectionLost):
            connection.close()
            if error is None:
                uncertain = self._ending is not None and self._ending.committing
                raise unavailable(store, failed.reason, uncertain=uncertain) from failed
        elif error is None:
            raise refusal(failed, store) from failed

    def _explain_inside(self, error: BaseException | None, *, in_time: bool) -> None:
        """Raise if there is more to say about what has happened in the block."""
        expected = (psycopg.Error, StoreUnavailable) if self.stage == "silent" else psycopg.Error
        if not in_time and (error is None or isinstance(error, expected)):
            raise self._late() from error
        if isinstance(error, psycopg.Error):
            broken = self._connection.wire.pgconn.status == BAD
            meant = says_nothing_about_the_job(error, self._block_pool.store, broken=broken)
            if meant is not None:
                raise meant from error

    def _leave_foreign(self, error: BaseException | None) -> None:
        if error is None:
            self.expect_usable()

    def _over(self) -> None:
        if self.stage not in ("expired", "silent"):
            self.stage = "over"
        self._block_pool.sign_out(self)
        if self._line is not None:
            self._line.close()

    def _late(self) -> Exception:
        if self._given_up:
            return JobError(GIVEN_UP)
        return (
            unavailable(self._block_pool.store, SILENT) if self.stage == "silent" else too_long(self._limit)
        )
