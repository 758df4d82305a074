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
transaction is still there, and SQLite's authorizer refuses COMMIT, ROLLBACK and BEGIN but from us.
"""

import ctypes
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar
from weakref import WeakSet

from shigoto.engine.op import Op, drive
from shigoto.engine.sql.block import FOREIGN, GIVEN_UP, NOT_YOURS, ONCE, OVER, Watchdog
from shigoto.engine.sqlite import files
from shigoto.engine.sqlite.connections import Connections
from shigoto.engine.sqlite.lent import LentConnection, LentCursor, Use
from shigoto.engine.sqlite.statement import execute
from shigoto.model.errors import JobError, StoreUnavailable, TransactionTooLong

T = TypeVar("T")

log = logging.getLogger("shigoto.sqlite")

NOT_AUTHORIZED = 23
PRAGMAS = ("journal_mode", "locking_mode", "query_only", "wal_autocheckpoint", "writable_schema")
NO_PRAGMA = (
    "PRAGMA {} cannot be set in a transaction block: its connection also writes the completion of the job."
)
INTERRUPT_EVERY = 0.05  # seconds; one that comes before a statement has begun is lost

Stage = Literal["new", "open", "ending", "over", "expired", "foreign"]


class Host(Protocol):
    """What a block needs of the driver."""

    path: Path
    synchronous: str
    connections: Connections

    @property
    def watchdog(self) -> Watchdog:
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
    """One transaction, from `open` to `end`. `awaited.py` makes `with` and `async with` of it."""

    def __init__(self, host: Host, last: Callable[[], Op[Any]], limit: float) -> None:
        self.host = host
        self.stage: Stage = "new"
        self.rings = False  # whether what was joined to it made work ready
        self.cursors: WeakSet[LentCursor] = WeakSet()
        self._last = last
        self._limit = limit
        self._stepping = threading.Lock()  # from stage to stage
        self.use = Use(self)
        self._ending_thread = 0
        self._given_up = False
        self._refused_pragma = ""
        self._rolled_back = threading.Event()  # by the watchdog

    @property
    def is_open(self) -> bool:
        """Whether it holds the write lock, or is about to."""
        return self.stage in ("new", "open", "ending")

    @property
    def is_here(self) -> bool:
        """Whether the calling code is inside this block."""
        return _inside.get() is self

    def open(self) -> LentConnection:
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
                raise files.wrapped(error, self.host.path) from error
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
        connection: LentConnection | None = getattr(self, "_connection", None)
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

        def connect() -> LentConnection:
            connection = sqlite3.connect(
                host.path, timeout=0, isolation_level=None, check_same_thread=False, factory=LentConnection
            )
            connection.block = self
            pragmas = files.pragmas(host.synchronous) + files.FOR_USERS
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
            value = drive(op, lambda command: execute(self._connection, command))
            self._plainly("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._roll_back()
            # What a constraint says at the commit, it says about the block's own rows.
            if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
                raise self._refusal(error) from error
            if isinstance(error, sqlite3.IntegrityError) and (moved := files.refusal(error)):
                raise moved from error
            raise
        if op.committed is not None:
            op.committed(value)
        ring = self.rings or (op.rings is not None and op.rings(value))
        return lambda: self.host.wrote(ring=ring)

    def _refusal(self, error: sqlite3.Error) -> Exception:
        """What it means that the completion was not written: the file's trouble, or what the block has done to it."""
        if files.is_passing(error):
            return files.wrapped(error, self.host.path)
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
        connection: LentConnection | None = getattr(self, "_connection", None)
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


# Which block is open here: for refusing what would wait for it for ever. Tasks and threads that are started inside a
# block inherit it where they inherit variables at all.
_inside: ContextVar[Block | None] = ContextVar("shigoto_block", default=None)


def mark_here(block: Block) -> Callable[[], None]:
    """Say that the calling code is inside this block; gives how to take it back."""
    token = _inside.set(block)

    def unmark() -> None:
        with suppress(ValueError):  # left in another context than it was entered in, which keeps nothing open
            _inside.reset(token)

    return unmark


def expect_outside(path: Path) -> None:
    """Raise JobError where a write to the same file would wait for the block that it is in."""
    block = _inside.get()
    if block is not None and block.is_open and _is_same_file(block.host.path, path):
        raise JobError(
            "This write would wait for the transaction block that it is in, for ever. Enqueue with"
            " using(connection=tx) to make it a part of the block, or do it before the block or after it."
        )


def _is_same_file(one: Path, other: Path) -> bool:
    """Whether both name one file; by `stat`, since two apps may each have an engine for it."""
    try:
        return one == other or os.path.samefile(one, other)
    except OSError:
        return False
