"""A write transaction on the file for somebody's own statements, with one operation of ours at its end.

    open ── left ──► ending ── last, COMMIT (or ROLLBACK) ──► over
      └──── the limit passes: the watchdog rolls back ─────► expired
      └──── its job has ended without it: the same, at once ► expired
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
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, RLock, Thread
from types import TracebackType
from typing import Any, Literal, NoReturn, Protocol, TypeVar
from weakref import WeakSet

from shigoto.engine.op import Op, drive
from shigoto.engine.sql.block import FOREIGN, GIVEN_UP, NOT_YOURS, ONCE, OVER, BlockTimer, started, to_its_end
from shigoto.engine.sqlite import file
from shigoto.engine.sqlite.dialect import execute
from shigoto.engine.sqlite.file import Connections, expect_outside, is_inside, mark_here
from shigoto.model.errors import JobError, StoreUnavailable, TransactionTooLong

NO_SCRIPTS = (
    "executescript() commits before it begins, so it cannot be used inside a transaction block."
    " Execute the statements one by one."
)

T = TypeVar("T")
log = logging.getLogger("shigoto.sqlite")
NOT_AUTHORIZED = 23
PRAGMAS = ("journal_mode", "locking_mode", "query_only", "wal_autocheckpoint", "writable_schema")
NO_PRAGMA = (
    "PRAGMA {} cannot be set in a transaction block: its connection also writes the completion of the job."
)
INTERRUPT_EVERY = 0.05  # seconds; one that comes before a statement has begun is lost
Stage = Literal["new", "open", "ending", "over", "expired", "foreign"]

BROKEN = (
    "A statement of the transaction block has raised what ends a thread, such as SystemExit, so all of it was rolled"
    " back. Raise errors that are an Exception in adapters and in functions that SQL calls."
)
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class ConnectionOwner(Protocol):
    """The block, as its connection sees it."""

    cursors: "WeakSet[BlockCursor]"
    use: "Use"
    rings: bool

    def expect_usable(self) -> None:
        """Raise if the transaction is not there, so that nothing is written beside it."""
        ...

    def explain(self, error: sqlite3.Error) -> None:
        """Raise what an error of SQLite means here, if it means something more."""
        ...


class Use:
    """The right to use the connection: one thread at a time, while the block stands."""

    __slots__ = ("_keeper", "lock")

    def __init__(self, keeper: ConnectionOwner) -> None:
        self._keeper = keeper
        self.lock = RLock()

    def __enter__(self) -> None:
        self.lock.acquire()
        try:
            self._keeper.expect_usable()
        except BaseException:
            self.lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()
        if isinstance(error, sqlite3.Error):
            self._keeper.explain(error)


class BlockCursor(sqlite3.Cursor):
    """A cursor that knows whether its block is still open."""

    def __init__(self, connection: sqlite3.Connection, block: ConnectionOwner) -> None:
        super().__init__(connection)
        self._block = block
        block.cursors.add(self)

    def execute(self, sql: str, parameters: Any = (), /) -> "BlockCursor":
        with self._block.use:
            super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> "BlockCursor":
        rows = list(
            parameters
        )  # first: whoever makes them may take its time, and must not keep the watchdog out
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

    block: ConnectionOwner
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


class Host(Protocol):
    """What a block needs of the driver."""

    path: Path
    synchronous: str
    connections: Connections

    @property
    def watchdog(self) -> BlockTimer:
        """What ends blocks that stay open for too long."""
        ...

    def prepare(self) -> None:
        """See that the schema is there."""
        ...

    def take_turn(self) -> threading.Lock:
        """Become the one writer of this process; whoever releases the lock ends the turn."""
        ...

    def patiently(self, action: Callable[[], T]) -> T:
        """Do what another process's lock may refuse for a moment."""
        ...

    def wrote(self, *, ring: bool) -> None:
        """Do what follows a commit, when the turn is over. Never raises."""
        ...


class Block:
    """One transaction, from `open` to `end`. `EitherBlock` makes `with` and `async with` of it."""

    def __init__(self, host: Host, last: Callable[[], Op[Any]], limit: float) -> None:
        self.host = host
        self.stage: Stage = "new"
        self.rings = False  # whether what was joined to it made work ready
        self.cursors: WeakSet[BlockCursor] = WeakSet()
        self._last = last
        self._limit = limit
        self._stepping = threading.Lock()  # from stage to stage
        self.use = Use(self)
        self._ending_thread = 0
        self._given_up = False
        self._refused_pragma = ""
        self._rolled_back = threading.Event()  # by the watchdog

    @property
    def path(self) -> Path:
        """The file that the block writes to."""
        return self.host.path

    @property
    def is_open(self) -> bool:
        """Whether it holds the write lock, or is about to."""
        return self.stage in ("new", "open", "ending")

    @property
    def is_here(self) -> bool:
        """Whether the calling code is inside this block."""
        return is_inside(self)

    def open(self) -> BlockConnection:
        """Wait for the write lock, begin, and set the watchdog."""
        if self.stage != "new":
            raise JobError(ONCE)
        self.host.prepare()
        self._turn = self.host.take_turn()
        try:
            self.host.connections.sign_in(self)
            self._begin()
            self._watchdog = self.host.watchdog
            self._watchdog.watch(self, 0.0 if self._given_up else self._limit)
        except BaseException as error:
            self.stage = "over"
            try:
                self._close()
            finally:
                self._turn.release()
            if isinstance(error, sqlite3.Error):
                raise file.wrapped(error, self.host.path) from error
            raise
        return self._connection

    def end(self, error: BaseException | None) -> None:
        """Commit with the last operation, or roll back because of this error."""
        if self.stage == "foreign":
            if error is None:
                self.expect_usable()
            return
        with self.use.lock:  # another thread's statement may have it; until then the watchdog stays
            with self._stepping:
                in_time = self.stage == "open"
                self.stage = "ending" if in_time else "expired"
            committed = self._end_in_time(error) if in_time else None
        if not in_time:
            self._leave_late(error)
        elif committed is not None:
            committed()

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
            self.stage = "over"
            try:
                self._close()
            finally:
                self._turn.release()

    def give_up(self) -> None:
        """Roll back soon, whoever is in it: its job has ended without it. Never waits."""
        self._given_up = True
        if self.stage == "open":
            self._watchdog.watch(self, 0.0)

    def abandon(self) -> None:
        """Roll back if it was opened; for an owner who has not waited for that."""
        if self.stage in ("open", "expired"):
            self.end(InterruptedError())

    def disown(self) -> None:
        """This is a forked child's copy: SQLite's locks stayed with the parent, so nothing may touch it any more.

        Not even the garbage collector, which would close it, and so roll back what the parent is writing.
        """
        self.stage = "foreign"
        connection: BlockConnection | None = getattr(self, "_connection", None)
        if connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

    def expect_usable(self) -> None:
        """Raise if the transaction is not there, so that nothing is written beside it."""
        match self.stage:
            case "expired":
                raise self._late()
            case "foreign":
                raise StoreUnavailable(FOREIGN)
            case "over":
                raise JobError(OVER)
            case "open" | "ending" if not self._connection.in_transaction:
                raise JobError(
                    "SQLite has rolled the transaction back after an earlier error, so the block cannot go on: let the"
                    " error pass through it. For a part that may fail there are savepoints."
                )
            case _:
                return

    def explain(self, error: sqlite3.Error) -> None:
        """Raise what an error of SQLite means here, if it means something more."""
        if self.stage == "expired":
            raise self._late() from error
        if getattr(error, "sqlite_errorcode", 0) == NOT_AUTHORIZED:
            refused, self._refused_pragma = self._refused_pragma, ""
            raise JobError(NO_PRAGMA.format(refused) if refused else NOT_YOURS) from error

    def _begin(self) -> None:
        host = self.host

        def connect() -> BlockConnection:
            connection = sqlite3.connect(
                host.path, timeout=0, isolation_level=None, check_same_thread=False, factory=BlockConnection
            )
            connection.block = self
            pragmas = file.pragmas(host.synchronous) + file.FOR_USERS
            sqlite3.Cursor(connection).executescript(pragmas)
            return connection

        self._connection = host.patiently(connect)
        host.patiently(lambda: self._plainly("BEGIN IMMEDIATE"))
        sqlite3.Connection.set_authorizer(self._connection, self._authorize)
        self.stage = "open"

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
            # What a constraint says at the commit, it says about the block's own rows.
            if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
                raise self._refusal(error) from error
            if isinstance(error, sqlite3.IntegrityError) and (moved := file.refusal(error)):
                raise moved from error
            raise
        if op.committed is not None:
            op.committed(value)
        ring = self.rings or (op.rings is not None and op.rings(value))
        return lambda: self.host.wrote(ring=ring)

    def _refusal(self, error: sqlite3.Error) -> Exception:
        """What it means that the completion was not written: the file's trouble, or what the block has done to it."""
        if file.is_passing(error):
            return file.wrapped(error, self.host.path)
        return JobError(f"The completion of the job cannot be written after what the block did: {error}")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._plainly("ROLLBACK")

    def _leave_late(self, error: BaseException | None) -> None:
        self._rolled_back.wait()
        self._close()
        if error is None or isinstance(error, sqlite3.Error):
            raise self._late() from error

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
                "A transaction block of %s was open for too long, and its rollback failed.", self.host.path
            )
        finally:
            self.use.lock.release()
            self._turn.release()
            self.host.connections.look_again()
            self._rolled_back.set()

    def _close(self) -> None:
        connection: BlockConnection | None = getattr(self, "_connection", None)
        if connection is not None:
            sqlite3.Connection.close(connection)
        self.host.connections.sign_out(self)

    def _plainly(self, statement: str) -> None:
        sqlite3.Cursor(self._connection).execute(statement)

    def _authorize(self, action: int, name: str | None, value: str | None, *_: object) -> int:
        if self._ending_thread == threading.get_ident():
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA and value is not None and (name or "").lower() in PRAGMAS:
            self._refused_pragma = (name or "").lower()
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK

    def _late(self) -> JobError | TransactionTooLong:
        if self._given_up:
            return JobError(GIVEN_UP)
        return TransactionTooLong(
            f"The transaction block was open for more than {self._limit:g} s and was rolled back: it keeps everybody"
            " else from writing. Do slow work before the block, and only write in it."
        )


class FetchedRows:
    """What a statement has found, fetched already."""

    __slots__ = ("_rows", "description", "lastrowid", "rowcount")

    def __init__(self, rows: list[Any], rowcount: int, lastrowid: int | None, description: Any) -> None:
        self._rows = iter(rows)
        self.rowcount = rowcount
        self.lastrowid = lastrowid
        self.description = description

    async def fetchone(self) -> Any:
        """The next row, or None."""
        return next(self._rows, None)

    async def fetchall(self) -> list[Any]:
        """The rows that are left."""
        return list(self._rows)


class AwaitedConnection:
    """The connection of an async block: its statements run in the block's thread, one after the other."""

    finish: Callable[[object], None]

    def __init__(self, block_connection: BlockConnection, thread: "BlockThread") -> None:
        self.block_connection = block_connection
        self._thread = thread

    async def execute(self, statement: str, parameters: Any = (), /) -> FetchedRows:
        """Run one statement, and fetch what it finds."""
        return await self.call(lambda: _fetched(self.block_connection.execute(statement, parameters)))

    async def executemany(self, statement: str, parameters: Iterable[Any], /) -> FetchedRows:
        """Run one statement for each of many rows."""
        rows = list(parameters)
        return await self.call(lambda: _fetched(self.block_connection.executemany(statement, rows)))

    async def call(self, action: Callable[[], T]) -> T:
        """Do something in the block's thread."""
        value: T = await self._thread.submit(action)
        return value


class EitherBlock:
    """A block that may be entered with `with` or with `async with`."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def __enter__(self) -> BlockConnection:
        expect_outside(self._block.host.path)
        block_connection = self._block.open()
        self._unmark = mark_here(self._block)
        return block_connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unmark()
        self._block.end(error)

    async def __aenter__(self) -> AwaitedConnection:
        expect_outside(self._block.host.path)
        self._thread = BlockThread(self._block.abandon)
        try:
            block_connection: BlockConnection = await self._thread.submit(self._block.open)
        except BaseException:
            self._thread.finish(self._block.abandon)
            raise
        self._unmark = mark_here(self._block)
        return AwaitedConnection(block_connection, self._thread)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unmark()
        left = self._thread.finish(partial(self._block.end, error))
        if left is None:
            if error is None:
                raise JobError(BROKEN)
        elif kind is not GeneratorExit:  # of a coroutine that is thrown away, and must not wait any more
            await to_its_end(left)

    def give_up(self) -> None:
        """Roll back soon: the job has ended without it. Never waits."""
        self._block.give_up()


class BlockThread:
    """A thread that lives as long as one block; if something ends it before, the block is abandoned."""

    def __init__(self, abandon: Callable[[], None]) -> None:
        self._abandon = abandon
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._refusal: str | None = None
        started(Thread(target=self._serve, name="shigoto-block", daemon=True))

    def submit(self, action: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Do this next; the future belongs to the event loop that the block was entered on."""
        with self._lock:
            if self._refusal is not None:
                raise JobError(self._refusal)
            future: asyncio.Future[Any] = self._loop.create_future()
            self._queue.put((action, future))
            return future

    def finish(self, action: Callable[[], Any]) -> "asyncio.Future[Any] | None":
        """Do this and end; None if the thread has ended already, with the block."""
        with self._lock:
            if self._refusal is not None:
                return None
            self._refusal = OVER
            future: asyncio.Future[Any] = self._loop.create_future()
            self._queue.put((action, future))
            self._queue.put(None)
            return future

    def _serve(self) -> None:
        ordinary = False
        try:
            while (job := self._queue.get()) is not None:
                self._do(*job)
            ordinary = True
        finally:
            if not ordinary:
                self._break_off()

    def _do(self, action: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        try:
            value = action()
        except StopIteration:  # which a future cannot carry
            self._tell(
                future, None, RuntimeError("A statement of the transaction block raised StopIteration.")
            )
        except Exception as raised:
            self._tell(future, None, raised)
        except BaseException as raised:  # which would end the event loop, too, if it came up in a task there
            broken = JobError(f"{BROKEN} It was {type(raised).__qualname__}.")
            broken.__cause__ = raised
            self._tell(future, None, broken)
            raise
        else:
            self._tell(future, value, None)

    def _break_off(self) -> None:
        """Roll back, and leave nobody waiting."""
        with self._lock:
            self._refusal = self._refusal or BROKEN
        try:
            self._abandon()
        finally:
            while not self._queue.empty():
                job = self._queue.get()
                if job is not None:
                    self._tell(job[1], None, JobError(BROKEN))

    def _tell(self, future: "asyncio.Future[Any]", value: Any, error: Exception | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(_resolve, future, value, error)


def _resolve(future: "asyncio.Future[Any]", value: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _fetched(cursor: BlockCursor) -> FetchedRows:
    rows: list[Any] = [] if cursor.description is None else cursor.fetchall()
    return FetchedRows(rows, cursor.rowcount, cursor.lastrowid, cursor.description)
