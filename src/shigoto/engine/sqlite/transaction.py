"""A write transaction on the file for somebody's own statements, with one operation of ours at its end.

    open ── left ──► ending ── last, COMMIT (or ROLLBACK) ──► over
      └──── the limit passes: the watchdog rolls back ─────► expired
      └──── its job has ended without it: the same, at once ► expired
      └──── a statement raises SystemExit: rolled back ─────► broken
      └──── the process forks: the child must not touch it ─► foreign

It holds the only write lock there is, so it may not last: a timer rolls it back even while its owner sleeps. From then
on the connection refuses everything. Two threads may thus want the connection at once, and SQLite's own lock is not
enough for that: whoever waits for it keeps the interpreter's lock, and whoever has it may be waiting for that one, in a
callback. So every use of the connection is under a lock of ours.

A statement that came after the rollback would be a transaction of its own, an effect without a completion. The same
after SQLite itself has rolled back (`ON CONFLICT ROLLBACK`, a full disk). So each use looks first whether the
transaction is still there, and SQLite's authorizer refuses COMMIT, ROLLBACK and BEGIN but from us. A cursor made past
the connection (`sqlite3.Cursor(tx)`) escapes our lock, but not the authorizer.

A block that is entered with `async with` has a thread of its own, where all of it happens: the event loop never waits
for the disk or for the write lock. A cancel may strike at any `await`:

    while the block is being entered   the thread goes on, enters it, and finds the order to roll back
    at a statement                     the statement goes on, and the rollback comes after it
    while the block is being left      the cancel waits: whether it was committed must be known
"""

import asyncio
import ctypes
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar
from weakref import WeakSet

from shigoto.engine.op import Op, drive
from shigoto.engine.sql.block import FOREIGN, GIVEN_UP, NOT_YOURS, ONCE, OVER, started, to_its_end
from shigoto.engine.sqlite import file
from shigoto.engine.sqlite.dialect import execute
from shigoto.engine.sqlite.file import expect_outside, mark_here
from shigoto.model.errors import JobError, StoreUnavailable, TransactionTooLong

if TYPE_CHECKING:
    from shigoto.engine.sqlite.driver import Driver

NO_SCRIPTS = (
    "executescript() commits before it begins, so it cannot be used inside a transaction block."
    " Execute the statements one by one."
)
NOT_AUTHORIZED = 23
PRAGMAS = ("journal_mode", "locking_mode", "query_only", "wal_autocheckpoint", "writable_schema")
NO_PRAGMA = (
    "PRAGMA {} cannot be set in a transaction block: its connection also writes the completion of the job."
)
ROLLED_BACK = (
    "SQLite has rolled the transaction back after an earlier error, so the block cannot go on: let the error pass"
    " through it. For a part that may fail there are savepoints."
)
TOO_LONG = (
    "The transaction block was open for more than {:g} s and was rolled back: it keeps everybody else from writing."
    " Do slow work before the block, and only write in it."
)
BROKEN = (
    "A statement of the transaction block has raised what ends a thread, such as SystemExit, so all of it was rolled"
    " back. Raise errors that are an Exception in adapters and in functions that SQL calls."
)
INTERRUPT_EVERY = 0.05  # seconds; one that comes before a statement has begun is lost
Stage = Literal["new", "open", "ending", "over", "expired", "broken", "foreign"]

T = TypeVar("T")
log = logging.getLogger("shigoto.sqlite")


class Use:
    """The right to use the connection: one thread at a time, while the block stands. Each row takes it anew."""

    __slots__ = ("_block", "lock")

    def __init__(self, block: "Block") -> None:
        self._block = block
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        self.lock.acquire()
        try:
            self._block.expect_usable()
        except BaseException:
            self.lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()
        if isinstance(error, sqlite3.Error):
            self._block.explain(error)


class BlockCursor(sqlite3.Cursor):
    """A cursor that knows whether its block is still open."""

    def __init__(self, connection: sqlite3.Connection, block: "Block") -> None:
        super().__init__(connection)
        self._block = block
        block.cursors.add(self)

    def execute(self, sql: str, parameters: Any = (), /) -> "BlockCursor":
        with self._block.use:
            super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> "BlockCursor":
        # First: the generator of the rows may take its time, and must not keep the watchdog out.
        rows = list(parameters)
        with self._block.use:
            super().executemany(sql, rows)
        return self

    def executescript(self, sql_script: str, /) -> NoReturn:
        raise JobError(NO_SCRIPTS)

    def fetchone(self) -> Any:
        with self._block.use:
            return super().fetchone()

    def fetchmany(self, size: int | None = None) -> list[Any]:
        with self._block.use:
            return super().fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[Any]:
        with self._block.use:
            return super().fetchall()

    def __next__(self) -> Any:
        with self._block.use:
            return super().__next__()


class BlockConnection(sqlite3.Connection):
    """A connection with an open transaction, for as long as its block lasts."""

    block: "Block"
    finish: Callable[[object], None]

    def cursor(self, factory: object = None) -> Any:
        if factory is not None:
            raise JobError("A transaction block has cursors of its own: call cursor() without a factory.")
        with self.block.use:
            return super().cursor(lambda connection: BlockCursor(connection, self.block))

    def execute(self, sql: str, parameters: Any = (), /) -> BlockCursor:
        cursor: BlockCursor = self.cursor()
        return cursor.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> BlockCursor:
        cursor: BlockCursor = self.cursor()
        return cursor.executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> NoReturn:
        raise JobError(NO_SCRIPTS)

    def commit(self) -> None:
        raise JobError(NOT_YOURS)

    def rollback(self) -> None:
        raise JobError(NOT_YOURS)

    def close(self) -> None:
        raise JobError(NOT_YOURS)

    def set_authorizer(self, authorizer_callback: object) -> NoReturn:
        raise JobError("A transaction block has an authorizer of its own, which keeps it in one piece.")

    def __exit__(self, *error: object) -> Literal[False]:
        raise JobError(NOT_YOURS)


class FetchedRows:
    """What a statement has found, fetched already."""

    __slots__ = ("_rows", "description", "lastrowid", "rowcount")

    def __init__(self, rows: list[Any], rowcount: int, lastrowid: int | None, description: Any) -> None:
        self._rows = iter(rows)
        self.rowcount, self.lastrowid, self.description = rowcount, lastrowid, description

    async def fetchone(self) -> Any:
        return next(self._rows, None)

    async def fetchall(self) -> list[Any]:
        return list(self._rows)


class AwaitedConnection:
    """The connection of an async block: its statements run in the block's thread, one after the other."""

    finish: Callable[[object], None]

    def __init__(self, block_connection: BlockConnection, thread: "BlockThread") -> None:
        self.block_connection, self._thread = block_connection, thread

    async def execute(self, statement: str, parameters: Any = (), /) -> FetchedRows:
        """Run one statement, and fetch what it finds."""
        return await self.call(lambda: _fetched(self.block_connection.execute(statement, parameters)))

    async def executemany(self, statement: str, parameters: Iterable[Any], /) -> FetchedRows:
        rows = list(parameters)
        return await self.call(lambda: _fetched(self.block_connection.executemany(statement, rows)))

    async def call(self, action: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._thread.submit(action))


def _fetched(cursor: BlockCursor) -> FetchedRows:
    rows: list[Any] = [] if cursor.description is None else cursor.fetchall()
    return FetchedRows(rows, cursor.rowcount, cursor.lastrowid, cursor.description)


class BlockThread:
    """The thread of an async block. Not an executor's, for which the interpreter would wait when it ends."""

    def __init__(self, break_off: Callable[[BaseException], None]) -> None:
        self._break_off = break_off
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any], bool]] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        started(threading.Thread(target=self._serve, name="shigoto-block", daemon=True))

    def submit(self, action: Callable[[], T], *, last: bool = False) -> "Future[T]":
        """Do this next; after the last one the thread ends."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise JobError(OVER)
            self._closed = last
            self._queue.put((future, action, last))
        return future

    def _serve(self) -> None:
        last = False
        while not last:
            future, action, last = self._queue.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(action())
                except StopIteration:  # which no future of an event loop can carry
                    future.set_exception(
                        RuntimeError("A statement of the transaction block raised StopIteration.")
                    )
                except Exception as error:
                    future.set_exception(error)
                except BaseException as error:
                    # It would end the event loop, too, if it came up in a task there.
                    self._break_off(error)
                    broken = JobError(f"{BROKEN} It was {type(error).__qualname__}.")
                    broken.__cause__ = error
                    future.set_exception(broken)


class Block:
    """One transaction, entered once, with `with` or `async with`."""

    def __init__(self, driver: "Driver", last: Callable[[], Op[Any]], limit: float) -> None:
        self.stage: Stage = "new"
        self.path = driver.path
        self.rings = False  # whether what was joined to it made work ready
        self.cursors: WeakSet[BlockCursor] = WeakSet()
        self._driver, self._last, self._limit = driver, last, limit
        self.use = Use(self)
        self._stepping = threading.Lock()  # from stage to stage
        self._ending_thread = 0
        self._given_up = False
        self._refused_pragma = ""
        self._rolled_back = threading.Event()  # by the watchdog

    @property
    def is_open(self) -> bool:
        """Whether it holds the write lock, or is about to."""
        return self.stage in ("new", "open", "ending")

    def __enter__(self) -> BlockConnection:
        expect_outside(self.path)
        block_connection = self._open()
        self._unmark = mark_here(self)
        return block_connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unmark()
        self._end(error)

    async def __aenter__(self) -> AwaitedConnection:
        expect_outside(self.path)
        thread = self._thread = BlockThread(self._break_off)
        try:
            block_connection = await asyncio.wrap_future(thread.submit(self._open))
        except BaseException:
            thread.submit(partial(self._end, InterruptedError()), last=True)
            raise
        self._unmark = mark_here(self)
        return AwaitedConnection(block_connection, thread)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unmark()
        left = self._thread.submit(partial(self._end, error), last=True)
        if kind is not GeneratorExit:  # of a coroutine that is thrown away, and must not wait any more
            await to_its_end(asyncio.wrap_future(left))

    def give_up(self) -> None:
        self._given_up = True
        if self.stage == "open":
            self._watchdog.watch(self, 0.0)

    def disown(self) -> None:
        """This is a forked child's copy: SQLite's locks stayed with the parent, so nothing may touch it any more.

        Not even the garbage collector, which would close it, and so roll back what the parent is writing.
        """
        self.stage = "foreign"
        connection: BlockConnection | None = getattr(self, "_connection", None)
        if connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

    # While it is open.

    def explain(self, error: sqlite3.Error) -> None:
        """Raise what an error of SQLite means here, if it means something more."""
        if self.stage == "expired":
            raise (self._refusal() or error) from error
        if getattr(error, "sqlite_errorcode", 0) == NOT_AUTHORIZED:
            pragma, self._refused_pragma = self._refused_pragma, ""
            raise JobError(NO_PRAGMA.format(pragma) if pragma else NOT_YOURS) from error

    def expect_usable(self) -> None:
        """Raise if the transaction is not there, so that nothing is written beside it."""
        if refusal := self._refusal():
            raise refusal

    def _refusal(self) -> Exception | None:
        match self.stage:
            case "open" | "ending" if not self._connection.in_transaction:
                return JobError(ROLLED_BACK)
            case "over":
                return JobError(OVER)
            case "expired":
                return (
                    JobError(GIVEN_UP) if self._given_up else TransactionTooLong(TOO_LONG.format(self._limit))
                )
            case "broken":
                return JobError(BROKEN)
            case "foreign":
                return StoreUnavailable(FOREIGN)
            case _:
                return None

    def _authorize(self, action: int, name: str | None, value: str | None, *_: object) -> int:
        if self._ending_thread == threading.get_ident():
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA and value is not None and (name or "").lower() in PRAGMAS:
            self._refused_pragma = (name or "").lower()
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK

    # Its beginning and its ends.

    def _open(self) -> BlockConnection:
        """Wait for the write lock, begin, and set the watchdog."""
        if self.stage != "new":
            raise JobError(ONCE)
        self._driver.prepare()
        self._turn = self._driver.take_turn()
        try:
            self._driver.connections.sign_in(self)
            self._begin()
            self._watchdog = self._driver.watchdog
            self._watchdog.watch(self, 0.0 if self._given_up else self._limit)
        except BaseException as error:
            self._free()
            if isinstance(error, sqlite3.Error):
                raise file.wrapped(error, self.path) from error
            raise
        return self._connection

    def _begin(self) -> None:
        def connect() -> BlockConnection:
            connection = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False, factory=BlockConnection
            )
            connection.block = self
            pragmas = file.pragmas(self._driver.synchronous) + file.FOR_USERS
            sqlite3.Cursor(connection).executescript(pragmas)
            return connection

        self._connection = self._driver.patiently(connect)
        self._driver.patiently(lambda: self._plainly("BEGIN IMMEDIATE"))
        sqlite3.Connection.set_authorizer(self._connection, self._authorize)
        self.stage = "open"

    def _end(self, error: BaseException | None) -> None:
        """Commit with the last operation, or roll back because of this error."""
        if self.stage in ("open", "expired"):
            with self.use.lock:  # another thread's statement may have it; until then the watchdog stays
                with self._stepping:
                    in_time = self.stage == "open"
                    if in_time:
                        self.stage = "ending"
                committed = self._end_in_time(error) if in_time else None
            if in_time:
                if committed is not None:
                    committed()
                return
            self._rolled_back.wait()
            self._close()
        if (error is None or isinstance(error, sqlite3.Error)) and (refusal := self._refusal()):
            raise refusal from error

    def _end_in_time(self, error: BaseException | None) -> Callable[[], None] | None:
        self._watchdog.forget(self)
        self._ending_thread = threading.get_ident()
        try:
            if error is None:
                return self._commit()
            with suppress(sqlite3.Error):  # the close does the same
                self._roll_back()
            return None
        finally:
            self._free()

    def _commit(self) -> Callable[[], None]:
        """Run the last operation and commit; gives what is left to do then."""
        try:
            self.expect_usable()
            op = self._last()
            value = drive(op.start(), lambda command: execute(self._connection, command))
            self._plainly("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._roll_back()
            if isinstance(error, sqlite3.Error) and (meant := self._meaning(error)):
                raise meant from error
            raise
        if op.committed is not None:
            op.committed(value)
        ring = self.rings or (op.rings is not None and op.rings(value))
        return lambda: self._driver.wrote(ring=ring)

    def _meaning(self, error: sqlite3.Error) -> Exception | None:
        """What it means that the completion was not written: the file's trouble, or what the block has done to it."""
        if isinstance(error, sqlite3.IntegrityError):
            # Else what a constraint says at the commit, it says about the block's own rows.
            return file.refusal(error)
        if file.is_passing(error):
            return file.wrapped(error, self.path)
        return JobError(f"The completion of the job cannot be written after what the block did: {error}")

    def expire(self) -> None:
        """The limit has passed: roll back, and let others write."""
        with self._stepping:
            if self.stage != "open":
                return
            self.stage = "expired"
        while not self.use.lock.acquire(timeout=INTERRUPT_EVERY):
            self._connection.interrupt()
        try:
            self._ending_thread = threading.get_ident()
            # An interrupt is in force until no statement is active, so it would strike the rollback too.
            for cursor in list(self.cursors):
                cursor.close()
            self._plainly("PRAGMA query_only = 1")  # for cursors that are not ours
            self._roll_back()
        except Exception:
            log.exception(
                "A transaction block of %s was open for too long, and its rollback failed.", self.path
            )
        finally:
            self.use.lock.release()
            self._turn.release()
            self._driver.connections.look_again()
            self._rolled_back.set()

    def _break_off(self, error: BaseException) -> None:
        """Roll back because of what ends a thread."""
        self._end(error)
        self.stage = "broken"

    def _free(self) -> None:
        self.stage = "over"
        try:
            self._close()
        finally:
            self._turn.release()

    def _close(self) -> None:
        connection: BlockConnection | None = getattr(self, "_connection", None)
        if connection is not None:
            sqlite3.Connection.close(connection)
        self._driver.connections.sign_out(self)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._plainly("ROLLBACK")

    def _plainly(self, statement: str) -> None:
        sqlite3.Cursor(self._connection).execute(statement)
