"""Transactions of one process: in the caller's thread, in the database threads, or on the caller's own connection.

    run(op)    sync callers      in the calling thread, one transaction per op
    arun(op)   async callers     a queue to a database thread; all writes waiting there share one commit
    join(op)   a caller's tx     the caller's connection; never begins, commits or rolls back
    block()    a handler's tx    a connection of its own; begins, and commits with an op at the end

Inside one process writers queue at a lock, so that SQLite's own file lock is contended only between processes; there we
try again every half millisecond or so, where SQLite's busy handler would sleep for up to 100 ms.

A database thread takes all the operations that wait, runs them as one group, and hands the answers back. Nothing waits
for company: an op that arrives at an idle thread runs at once, and whatever arrives meanwhile is the next group. One
hand-over to the event loop serves a whole group.

The connections that libraries wrap are known by what they look like: none of these libraries is imported for it. What
they would do before a statement of their own, they do before ours: SQLAlchemy begins its transaction then, without
which its commit would be none.
"""

import asyncio
import logging
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import iscoroutine
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from shigoto.engine.op import Op, Write, drive, merged
from shigoto.engine.sql.block import BlockTimer, held_in, started
from shigoto.engine.sql.commands import Command, SqlText, sql
from shigoto.engine.sqlite import file
from shigoto.engine.sqlite.dialect import execute
from shigoto.engine.sqlite.file import Checkpointer, Connections, OwnConnection, Prepare, expect_outside
from shigoto.engine.sqlite.transaction import AwaitedConnection, Block, BlockConnection
from shigoto.model.errors import JobError, StoreUnavailable

DEPTH = 4  # Session → Connection → pooled connection → sqlite3.Connection

MAX_GROUP = 256
_Waiting = tuple[Op[Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]

T = TypeVar("T")
Direct = Callable[[Callable[..., Any]], T | None]
log = logging.getLogger("shigoto.sqlite")
LOCK_DEADLINE = 60.0  # seconds; then somebody holds a transaction open, and waiting longer does not help
LOCK_SUSPICION = 5.0  # seconds after which somebody should know
BUSY = 5
AFTERWARDS = "A step after a commit to %s failed; it is tried again after the next one."


def unwrapped(connection: object) -> object:
    """The `sqlite3.Connection` inside an SQLAlchemy Session or Connection, or Django's connection; else what was given.

    What must be awaited has none that could be used here.
    """
    inner: Any = connection
    for _ in range(DEPTH):
        if isinstance(inner, sqlite3.Connection):
            return inner
        if hasattr(inner, "get_raw_connection"):
            break
        inner = held_in(inner, lambda held: isinstance(held, sqlite3.Connection))
        if iscoroutine(inner):
            inner.close()
            break
    return inner if isinstance(inner, sqlite3.Connection) else connection


class SqliteHints(Struct, frozen=True):
    """A shorter way to run an op on SQLite.

    `direct` runs the one command that does it all in the ordinary case. It takes a function that executes a command.
    If it returns None, the case is not ordinary and nothing was changed: then the op is started.
    """

    direct: Direct[Any]


def _direct(op: Op[Any]) -> Direct[Any] | None:
    return op.hints.direct if isinstance(op.hints, SqliteHints) else None


class OpResult:
    """What became of one op."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value, self.error = value, error


class DatabaseThread:
    """One thread."""

    def __init__(self, name: str, transact: Callable[[list[Op[Any]]], list[OpResult]]) -> None:
        self._transact = transact
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._door = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name=f"shigoto-{name}", daemon=True)
        started(self._thread)

    def submit(self, op: Op[Any]) -> "asyncio.Future[Any]":
        """Queue an op; the future belongs to the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._door:
            if self._stopping:
                raise StoreUnavailable("The store was closed while an operation was on its way to it.")
            self._queue.put((op, future, loop))
        return future

    def stop(self) -> None:
        """Finish what is queued and end."""
        with self._door:
            self._stopping = True
            self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        stopping = False
        while not stopping:
            group, stopping = self._next_group()
            if not group:
                continue
            try:
                results = self._transact([op for op, _, _ in group])
            except Exception as error:
                results = [OpResult(error=error) for _ in group]
            _hand_over(group, results)

    def _next_group(self) -> tuple[list[_Waiting], bool]:
        group: list[_Waiting] = []
        waiting = self._queue.get()
        while waiting is not None:
            group.append(waiting)
            if len(group) == MAX_GROUP:
                return group, False
            try:
                waiting = self._queue.get_nowait()
            except Empty:
                return group, False
        return group, True


def _hand_over(group: list[_Waiting], results: list[OpResult]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], OpResult]]] = {}
    for (_, future, loop), result in zip(group, results, strict=True):
        by_loop.setdefault(loop, []).append((future, result))
    for loop, answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, answers)
        except RuntimeError:
            continue  # the loop is closed: nobody is left to be told, and what was committed stays committed


def _resolve(answers: list[tuple["asyncio.Future[Any]", OpResult]]) -> None:
    for future, result in answers:
        if future.cancelled():
            continue
        if result.error is not None:
            future.set_exception(result.error)
        else:
            future.set_result(result.value)


class NeedsWrite(Exception):
    """A probe has found something to change and must be started again with the write lock."""


class Driver:
    """Transactions of one process on one file."""

    def __init__(self, path: Path, *, synchronous: str, prepare: Prepare, ring: Callable[[], None]) -> None:
        self.path, self.synchronous = path, synchronous
        self.connections = Connections(
            path,
            open_connection=lambda: self.patiently(lambda: file.connect(path, synchronous=synchronous)),
            prepare=lambda connection, may_migrate: self.patiently(lambda: prepare(connection, may_migrate)),
            in_child=self._begin_again,  # the parent's threads do not exist there, and its locks may be held for ever
        )
        self._ring = ring
        self._begin_again()

    def _begin_again(self) -> None:
        self._writing = threading.Lock()
        self._starting = threading.Lock()
        self._checkpointer = Checkpointer(self.path)
        self.watchdog = BlockTimer()
        self._writer: DatabaseThread | None = None
        self._reader: DatabaseThread | None = None

    def run(self, op: Op[T]) -> T:
        """Run an op in the calling thread."""
        if op.mode != "read":
            expect_outside(self.path)
        direct = _direct(op)
        if direct is not None:
            value = self._run_directly(direct, op)
            if value is not None:
                return value
            op = replace(op, hints=None)
        result = self._transact([op])[0]
        if result.error is not None:
            raise result.error
        return cast("T", result.value)

    def _run_directly(self, direct: Direct[T], op: Op[T]) -> T | None:
        """What `_transact` does, without what groups need: a sync enqueue spends a quarter of the time here."""
        writing = self._writing
        try:
            if not writing.acquire(blocking=False):
                writing = self.take_turn()
            try:
                connection = self.connections.borrow()
                try:
                    value = self._write_directly(connection, direct)
                    if value is not None:
                        self._follow_up(connection, ((op, value),))
                finally:
                    self.connections.give_back(connection)
            finally:
                writing.release()
        except sqlite3.Error as error:
            raise file.wrapped(error, self.path) from error
        return value

    def _write_directly(self, connection: OwnConnection, direct: Direct[T]) -> T | None:
        execute = connection.writer.execute
        try:
            return direct(execute)
        except sqlite3.OperationalError:
            return self.patiently(lambda: direct(execute))

    async def arun(self, op: Op[T]) -> T:
        """Run an op in a database thread; reads have one of their own, so that a long list delays no claim."""
        if op.mode != "read":
            expect_outside(self.path)
        value: T = await self._thread(reads=op.mode == "read").submit(op)
        return value

    def join(self, connection: object, op: Op[T]) -> T:
        """Run an op on the caller's connection. Errors of SQLite are the caller's to see: it is their transaction.

        The write lock comes first: an op that looked before it had the lock could decide by what is no longer true. The
        savepoint makes the op all or nothing inside the transaction; it is ours, and gone when we return.
        """
        if isinstance(connection, AwaitedConnection):
            raise JobError(
                "The connection of an async transaction block must be awaited: use aenqueue() with it."
            )
        theirs = file.check_same_file(unwrapped(connection), self.path)
        self.prepare(may_migrate=not theirs.in_transaction)
        execute(theirs, sql("take_write_lock"))
        execute(theirs, SqlText("SAVEPOINT shigoto"))
        try:
            direct = _direct(op)
            value = None if direct is None else direct(partial(_execute_on, theirs))
            if value is None:
                value = drive(op.start(), lambda command: execute(theirs, command))
            if isinstance(theirs, BlockConnection) and op.rings is not None and op.rings(value):
                theirs.block.rings = True
            return value
        except BaseException as error:
            # Else SQLite has rolled everything back by itself, as when the disk is full.
            if theirs.in_transaction:
                execute(theirs, SqlText("ROLLBACK TO shigoto"))
            if isinstance(error, sqlite3.IntegrityError) and (moved := file.refusal(error)):
                raise moved from error
            raise
        finally:
            if theirs.in_transaction:
                execute(theirs, SqlText("RELEASE shigoto"))
            if self._checkpointer.due():
                # Not here, where the caller holds the lock; and there may be nobody else who ever commits.
                threading.Thread(target=self._checkpoint, name="shigoto-checkpoint", daemon=True).start()

    async def ajoin(self, connection: object, op: Op[T]) -> T:
        """Run an op on the caller's connection: in the thread of an async block, or else here."""
        if not isinstance(connection, AwaitedConnection):
            return self.join(connection, op)
        value: T = await connection.call(lambda: self.join(connection.block_connection, op))
        return value

    def block(self, last: Callable[[], Op[Any]], *, limit: float) -> Block:
        return Block(self, last, limit)

    def prepare(self, *, may_migrate: bool = True) -> None:
        """See that the schema is there. While the caller holds the write lock we must not wait for it."""
        try:
            self.connections.prepare(may_migrate=may_migrate)
        except sqlite3.Error as error:
            raise file.wrapped(error, self.path) from error

    def close(self) -> None:
        for thread in (self._writer, self._reader):
            if thread is not None:
                thread.stop()
        self.watchdog.stop()
        self.connections.close()
        self._begin_again()

    def _thread(self, *, reads: bool) -> DatabaseThread:
        with self._starting:
            if reads:
                self._reader = self._reader or DatabaseThread("reader", self._transact)
                return self._reader
            self._writer = self._writer or DatabaseThread("writer", self._transact)
            return self._writer

    def _transact(self, ops: list[Op[Any]]) -> list[OpResult]:
        """Run ops together and answer for each; if the group fails, each is run again by itself."""
        try:
            return self._group(ops)
        except StoreUnavailable as error:
            # Nobody can write: trying each by itself would only take as many times longer.
            return [OpResult(error=error) for _ in ops]
        except Exception as error:
            if len(ops) == 1:
                ours = file.wrapped(error, self.path) if isinstance(error, sqlite3.Error) else error
                return [OpResult(error=ours)]
        return [self._transact([op])[0] for op in ops]

    def _group(self, ops: list[Op[Any]]) -> list[OpResult]:
        results = [OpResult() for _ in ops]
        writes = list(range(len(ops)))
        modes = {op.mode for op in ops}
        # A probe beside a write has the write lock anyway, and need not look first.
        if "read" in modes or modes == {"probe"}:
            with self.connections.lend() as connection:
                writes = self._look(connection, ops, results)
        if writes:
            with self._turn_to_write(), self.connections.lend() as connection:
                self._write(connection, ops, writes, results)
        return results

    def _look(self, connection: sqlite3.Connection, ops: list[Op[Any]], results: list[OpResult]) -> list[int]:
        """Run the reads and probes on one snapshot; what is left needs the write lock."""
        left: list[int] = []
        self.patiently(lambda: connection.execute("BEGIN"))
        for index, op in enumerate(ops):
            if op.mode not in ("read", "probe"):
                left.append(index)
                continue
            try:
                results[index].value = drive(op.start(), lambda command: _execute_read(connection, command))
            except NeedsWrite:
                left.append(index)
        connection.execute("COMMIT")
        return left

    def _write(
        self, connection: OwnConnection, ops: list[Op[Any]], indexes: list[int], results: list[OpResult]
    ) -> None:
        direct = _direct(ops[indexes[0]]) if len(indexes) == 1 else None
        value = None if direct is None else self._write_directly(connection, direct)
        if value is not None:
            results[indexes[0]].value = value
        else:
            self._begin(connection)
            for op, those in _merged(ops, indexes):
                value = drive(op.start(), lambda command: execute(connection, command))
                for index, own in zip(those, value if len(those) > 1 else [value], strict=True):
                    results[index].value = own
            connection.execute("COMMIT")
        self._follow_up(connection, [(ops[index], results[index].value) for index in indexes])

    def _follow_up(self, connection: sqlite3.Connection, done: Iterable[tuple[Op[Any], Any]]) -> None:
        """Do what follows a commit. The ops are committed: nothing that happens now may make them look failed."""
        try:
            ring = False
            for op, value in done:
                if op.committed is not None:
                    op.committed(value)
                ring = ring or (op.rings is not None and op.rings(value))
            self.wrote(ring=ring, connection=connection)
        except Exception:
            log.exception(AFTERWARDS, self.path)

    def _checkpoint(self) -> None:
        try:
            with self._turn_to_write(), self.connections.lend() as connection:
                self._checkpoint_beside(connection)
        except (sqlite3.Error, StoreUnavailable) as error:
            log.warning("%s was not checkpointed (%s); a later commit tries again.", self.path, error)

    def _checkpoint_beside(self, connection: sqlite3.Connection) -> None:
        with self.connections.lend_another() as other:
            self._checkpointer.run(connection, self._begin, other)

    def wrote(self, *, ring: bool, connection: sqlite3.Connection | None = None) -> None:
        """Ring and checkpoint after a commit: on this connection, which has the turn to write, or with a new turn."""
        try:
            if ring:
                self._ring()
            if self._checkpointer.due():
                if connection is None:
                    self._checkpoint()
                else:
                    self._checkpoint_beside(connection)
        except Exception:
            log.exception(AFTERWARDS, self.path)

    @contextmanager
    def _turn_to_write(self) -> Generator[None]:
        writing = self.take_turn()
        try:
            yield
        finally:
            writing.release()

    def take_turn(self) -> threading.Lock:
        """Become the one writer of this process; whoever releases the lock ends the turn."""
        writing = self._writing
        if not writing.acquire(timeout=LOCK_DEADLINE):
            raise self._locked_for_too_long()
        return writing

    def _begin(self, connection: sqlite3.Connection) -> None:
        self.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))

    def patiently(self, action: Callable[[], T]) -> T:
        """Do what another process's lock may refuse for a moment."""
        since, told = 0.0, False
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF != BUSY:
                    raise
                now = time.monotonic()
                since = since or now
                if now > since + LOCK_DEADLINE:
                    raise self._locked_for_too_long() from error
                if now > since + LOCK_SUSPICION and not told:
                    told = True
                    log.warning(
                        "%s is locked by another's transaction; we have waited %.0f s", self.path, now - since
                    )
                time.sleep(random.uniform(0.0002, 0.001))

    def _locked_for_too_long(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.path} has been locked for {LOCK_DEADLINE:.0f} s by a write transaction that somebody holds open."
            " If it is one of your own, in this very process, pass it as using(connection=...); else find the process"
            " that holds it, and end it."
        )


def _merged(ops: list[Op[Any]], indexes: list[int]) -> list[tuple[Op[Any], list[int]]]:
    """The ops to run, and for each whose it is: those that can be done at once become one."""
    same: dict[object, list[int]] = {}
    for index in indexes:
        batch = ops[index].batch
        same.setdefault(index if batch is None else batch.key, []).append(index)
    return [
        (ops[those[0]] if len(those) == 1 else merged([ops[index] for index in those]), those)
        for those in same.values()
    ]


def _execute_on(connection: sqlite3.Connection, text: str, values: Sequence[Any]) -> sqlite3.Cursor:
    return execute(connection, SqlText(text, values))


def _execute_read(connection: sqlite3.Connection, command: Command) -> sqlite3.Cursor:
    if isinstance(command, Write):
        raise NeedsWrite
    return execute(connection, command)
