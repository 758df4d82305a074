"""Runs operations on the file: in the caller's thread, in the database threads, or on the caller's own connection.

    run(op)    sync callers      in the calling thread, on a connection from a small pool, one transaction per op
    arun(op)   async callers     a queue to a database thread; all writes waiting there share one commit
    join(op)   a caller's tx     the caller's connection; never begins, commits or rolls back

Inside one process writers queue at a lock, so that SQLite's own file lock is contended only between processes; there we
try again every half millisecond or so, where SQLite's busy handler would sleep for up to 100 ms.
A connection never crosses a fork: the child opens its own and leaves the parent's alone.
"""

import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from shigoto.engine.op import Op, Write, drive
from shigoto.engine.sqlite import files
from shigoto.engine.sqlite.checkpoint import Checkpointer
from shigoto.engine.sqlite.statement import Statement, execute
from shigoto.engine.sqlite.thread import DatabaseThread, Outcome
from shigoto.model.errors import StoreUnavailable

T = TypeVar("T")

log = logging.getLogger("shigoto.sqlite")

LOCK_DEADLINE = 60.0  # seconds; then somebody holds a transaction open, and waiting longer does not help
BUSY = 5


class NeedsWrite(Exception):
    """A probe has found something to change and must be started again with the write lock."""


class Driver:
    """The connections of one process to one file."""

    def __init__(
        self,
        path: Path,
        *,
        synchronous: str,
        prepare: Callable[[sqlite3.Connection, bool], None],
        ring: Callable[[], None],
    ) -> None:
        self._path = path
        self._synchronous = synchronous
        self._prepare = prepare
        self._ring = ring
        self._abandoned: list[object] = []
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._writing = threading.Lock()
        self._opening = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._idle: list[sqlite3.Connection] = []
        self._checkpointing: sqlite3.Connection | None = None
        self._checkpointer = Checkpointer(self._path)
        self._prepared = False
        self._writer: DatabaseThread | None = None
        self._reader: DatabaseThread | None = None

    def run(self, op: Op[T]) -> T:
        """Run an op in the calling thread."""
        self._after_fork()
        connection = self._borrow()
        try:
            outcome = self._transact(connection, [op])[0]
        finally:
            self._idle.append(connection)
        if outcome.error is not None:
            raise outcome.error
        value: T = outcome.value
        return value

    async def arun(self, op: Op[T]) -> T:
        """Run an op in a database thread; reads have one of their own, so that a long list delays no claim."""
        self._after_fork()
        value: T = await self._thread(reads=op.mode == "read").submit(op)
        return value

    def join(self, connection: object, op: Op[T]) -> T:
        """Run an op on the caller's connection. Errors of SQLite are the caller's to see: it is their transaction."""
        theirs = files.check_same_file(connection, self._path)
        self.prepare(may_migrate=not theirs.in_transaction)
        return drive(op, lambda command: execute(theirs, command))

    def prepare(self, *, may_migrate: bool = True) -> None:
        """See that the schema is there. While the caller holds the write lock we must not wait for it."""
        self._after_fork()
        if not self._prepared:
            self._idle.append(self._open(may_migrate=may_migrate))

    def close(self) -> None:
        """Stop the threads and close every connection."""
        if self._pid != os.getpid():
            return
        for thread in (self._writer, self._reader):
            if thread is not None:
                thread.stop()
        with self._opening:
            for connection in self._connections:
                connection.close()
        self._start()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # Closing, even collecting, the parent's connections here could disturb the file; they are kept, unused.
            self._abandoned.append((self._connections, self._writer, self._reader))
            self._start()

    def _thread(self, *, reads: bool) -> DatabaseThread:
        thread = self._reader if reads else self._writer
        if thread is None:
            with self._opening:
                thread = self._reader if reads else self._writer
                if thread is None:
                    thread = DatabaseThread("reader" if reads else "writer", self._open, self._transact)
                    if reads:
                        self._reader = thread
                    else:
                        self._writer = thread
        return thread

    def _borrow(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._open()

    def _open(self, *, may_migrate: bool = True) -> sqlite3.Connection:
        with self._opening:
            try:
                return self._connect(may_migrate)
            except sqlite3.Error as error:
                raise files.wrapped(error, self._path) from error

    def _connect(self, may_migrate: bool) -> sqlite3.Connection:
        if not self._prepared:
            files.refuse_unfit(self._path)
        connection = self._patiently(lambda: files.connect(self._path, synchronous=self._synchronous))
        if not self._prepared:
            try:
                self._patiently(lambda: self._prepare(connection, may_migrate))
            except Exception:
                connection.close()
                raise
            self._prepared = True
        self._connections.append(connection)
        return connection

    def _transact(self, connection: sqlite3.Connection, ops: list[Op[Any]]) -> list[Outcome]:
        """Run ops together and answer for each; if the group fails, each is run again by itself."""
        try:
            return self._group(connection, ops)
        except Exception as error:
            if len(ops) == 1:
                return [
                    Outcome(
                        error=files.wrapped(error, self._path) if isinstance(error, sqlite3.Error) else error
                    )
                ]
        finally:
            if connection.in_transaction:  # also when an interrupt flies through
                connection.execute("ROLLBACK")
        return [self._transact(connection, [op])[0] for op in ops]

    def _group(self, connection: sqlite3.Connection, ops: list[Op[Any]]) -> list[Outcome]:
        outcomes = [Outcome() for _ in ops]
        writes = list(range(len(ops)))
        if any(op.mode in ("read", "probe") for op in ops):
            writes = self._look(connection, ops, outcomes)
        if writes:
            self._write(connection, ops, writes, outcomes)
        return outcomes

    def _look(self, connection: sqlite3.Connection, ops: list[Op[Any]], outcomes: list[Outcome]) -> list[int]:
        """Run the reads and probes on one snapshot; what is left needs the write lock."""
        left: list[int] = []
        self._patiently(lambda: connection.execute("BEGIN"))
        for index, op in enumerate(ops):
            if op.mode not in ("read", "probe"):
                left.append(index)
                continue
            try:
                outcomes[index].value = drive(op, lambda command: _execute_read(connection, command))
            except NeedsWrite:
                left.append(index)
        connection.execute("COMMIT")
        return left

    def _write(
        self, connection: sqlite3.Connection, ops: list[Op[Any]], indexes: list[int], outcomes: list[Outcome]
    ) -> None:
        single = len(indexes) == 1 and ops[indexes[0]].mode == "single"
        with self._writing:
            if single:
                op = ops[indexes[0]]
                outcomes[indexes[0]].value = self._patiently(
                    lambda: drive(op, lambda command: execute(connection, command))
                )
            else:
                self._begin(connection)
                for index in indexes:
                    outcomes[index].value = drive(ops[index], lambda command: execute(connection, command))
                connection.execute("COMMIT")
            try:
                self._after_commit(connection, ops, indexes, outcomes)
            except Exception:  # the ops are committed: nothing that happens now may make them look failed
                log.exception(
                    "A step after a commit to %s failed; it is tried again after the next one.", self._path
                )

    def _after_commit(
        self, connection: sqlite3.Connection, ops: list[Op[Any]], indexes: list[int], outcomes: list[Outcome]
    ) -> None:
        ring = False
        for index in indexes:
            op, value = ops[index], outcomes[index].value
            if op.committed is not None:
                op.committed(value)
            ring = ring or (op.rings is not None and op.rings(value))
        if ring:
            self._ring()
        if self._checkpointer.due():
            self._checkpointer.run(connection, self._begin, self._checkpoint_connection())

    def _checkpoint_connection(self) -> sqlite3.Connection:
        with self._opening:
            if self._checkpointing is None:
                self._checkpointing = files.connect(self._path, synchronous=self._synchronous)
                self._connections.append(self._checkpointing)
            return self._checkpointing

    def _begin(self, connection: sqlite3.Connection) -> None:
        self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"))

    def _patiently(self, action: Callable[[], T]) -> T:
        """Do what another process's lock may refuse for a moment."""
        deadline = 0.0
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF != BUSY:
                    raise
                now = time.monotonic()
                deadline = deadline or now + LOCK_DEADLINE
                if now > deadline:
                    raise StoreUnavailable(
                        f"{self._path} has been locked by another process for {LOCK_DEADLINE:.0f} s."
                        " Find who holds a write transaction open and end it."
                    ) from error
                time.sleep(random.uniform(0.0002, 0.001))


def _execute_read(connection: sqlite3.Connection, command: Statement | Write) -> sqlite3.Cursor:
    if isinstance(command, Write):
        raise NeedsWrite
    return execute(connection, command)
