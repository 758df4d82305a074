"""The open connections of one process to one file, lent to one user at a time.

Two things can go wrong beneath a connection, and both are watched here.

A fork. SQLite keeps a table of its file locks in the memory of the process. A child inherits the table but not the
locks, so whatever it opens later relies on locks that nobody holds, and its commits can vanish. So no connection of
ours is open while the process forks: those in use finish first, all are closed, and both sides open new ones when they
next need them.

A file that was moved, deleted or replaced. Connections would go on writing to what no longer has a name. It costs one
`stat` to notice, 1.5 µs.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from shigoto.engine.sqlite import files
from shigoto.model.errors import StoreUnavailable

MOST = 16
FORK_PATIENCE = 10.0  # seconds to wait for transactions under way

Prepare = Callable[[sqlite3.Connection, bool], None]


class Connections:
    """Lends connections; opens at most sixteen, each prepared for use, the first one by creating what is missing."""

    def __init__(
        self, path: Path, *, open_connection: Callable[[], sqlite3.Connection], prepare: Prepare
    ) -> None:
        self._path = path
        self._open_connection = open_connection
        self._prepare = prepare
        self._prepared = False
        self._file: tuple[int, int] | None = None
        self._begin_again()
        _all.add(self)

    def _begin_again(self) -> None:
        self._changed = threading.Condition()
        self._opening = threading.RLock()
        self._idle: list[sqlite3.Connection] = []
        self._lent = 0
        self._closings = 0
        self._forking = False

    @contextmanager
    def lend(self, *, may_migrate: bool = True) -> Generator[sqlite3.Connection]:
        """A connection for the caller alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking and (self._idle or self._lent < MOST))
            self._lent += 1
            closings = self._closings
            connection = self._idle.pop() if self._idle else None
        try:
            if connection is None:
                connection = self._open(may_migrate)
            else:
                self._expect_same_file()
            yield connection
        finally:
            with self._changed:
                self._lent -= 1
                self._changed.notify_all()
                if connection is not None:
                    self._put_back(connection, closed_meanwhile=closings != self._closings)

    def prepare(self, *, may_migrate: bool) -> None:
        """See that the schema is there."""
        if not self._prepared:
            with self.lend(may_migrate=may_migrate):
                pass

    def close(self) -> None:
        """Close all connections, those in use when they come back, and forget the file."""
        with self._changed:
            self._closings += 1
            self._close_idle()
            self._prepared = False
            self._file = None

    def _put_back(self, connection: sqlite3.Connection, *, closed_meanwhile: bool) -> None:
        if connection.in_transaction:  # an error or an interrupt flew through
            connection.execute("ROLLBACK")
        if closed_meanwhile:
            connection.close()
        else:
            self._idle.append(connection)

    def _open(self, may_migrate: bool) -> sqlite3.Connection:
        with self._opening:
            if self._prepared:
                self._expect_same_file()
            else:
                files.refuse_unfit(self._path)
            connection = self._open_connection()
            try:
                if not self._prepared:
                    self._prepare(connection, may_migrate)
                    self._file = _identity(self._path)
                    self._prepared = True
            except BaseException:
                connection.close()
                raise
            return connection

    def _expect_same_file(self) -> None:
        if _identity(self._path) != self._file:
            raise StoreUnavailable(
                f"{self._path} was moved, deleted or replaced while it was in use. Nothing was written."
                " Stop every process that uses it, put the right file in its place, and start them again."
            )

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def before_fork(self) -> None:
        """Wait until nothing is in use, then close everything."""
        self._changed.acquire()
        self._forking = True
        self._changed.wait_for(lambda: self._lent == 0, FORK_PATIENCE)
        self._close_idle()
        self._changed.release()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Begin again, with locks that nobody holds."""
        self._begin_again()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


# The one piece of state that belongs to the process: a fork happens to all engines in it at once.
_all: "weakref.WeakSet[Connections]" = weakref.WeakSet()


def _each(action: Callable[[Connections], None]) -> Callable[[], None]:
    def act() -> None:
        for connections in list(_all):
            action(connections)

    return act


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_each(Connections.before_fork),
        after_in_parent=_each(Connections.after_fork_in_parent),
        after_in_child=_each(Connections.after_fork_in_child),
    )
