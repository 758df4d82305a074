"""The open connections of one process to one file, lent to one user at a time.

Two things can go wrong beneath a connection, and both are watched here.

A fork. SQLite keeps a table of its file locks in the memory of the process. A child inherits the table but not the
locks, so whatever it opens later relies on locks that nobody holds, and its commits can vanish. So no connection of
ours is open while the process forks: those in use finish first, all are closed, and both sides open new ones when they
next need them. The connections of transaction blocks are waited for too; one that the forking code itself is inside of
is disowned in the child. If any connection to the file was open all the same, the child must not use the store at all.

A file that was moved, deleted or replaced. Connections would go on writing to what no longer has a name. To notice it
takes some microseconds, a tenth of an enqueue, so it is looked at once a millisecond.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import get_ident
from time import monotonic
from typing import Protocol

from shigoto.engine.sqlite import file
from shigoto.engine.sqlite.file import OwnConnection
from shigoto.model.errors import StoreUnavailable

MOST = 16
LOOK_EVERY = 0.001  # seconds
FORK_PATIENCE = 10.0  # seconds to wait for transactions under way

Prepare = Callable[[sqlite3.Connection, bool], None]
Identity = tuple[int, int]


class ConnectionUser(Protocol):
    """Somebody with a connection of its own to the file."""

    @property
    def is_open(self) -> bool:
        """Whether it is worth waiting for."""
        ...

    @property
    def is_here(self) -> bool:
        """Whether it is the calling code itself, which cannot wait for itself."""
        ...

    def disown(self) -> None:
        """Never touch the connection again: this is a forked child."""
        ...


class Connections:
    """Lends connections; opens at most sixteen, each prepared for use, the first one by creating what is missing.

    `in_child` is called after a fork in the child.
    """

    def __init__(
        self,
        path: Path,
        *,
        open_connection: Callable[[], OwnConnection],
        prepare: Prepare,
        in_child: Callable[[], None],
    ) -> None:
        self._path, self._name = path, str(path)
        self._open_connection = open_connection
        self._prepare = prepare
        self._in_child = in_child
        self._prepared = False
        self._inherited = False
        self._file: Identity | None = None
        self._look_at = 0.0
        self._watches = 0
        self._begin_again()
        _all.add(self)

    def _begin_again(self) -> None:
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._waiting = 0  # threads, for a change
        self._opening = threading.RLock()
        self._idle: list[OwnConnection] = []
        self._watching: sqlite3.Connection | None = None
        self._users: dict[int, int] = {}  # threads, and how often all had been closed when they came
        self._holders: set[ConnectionUser] = set()
        self._closings = 0
        self._forking = False

    @contextmanager
    def lend(self, *, may_migrate: bool = True) -> Generator[OwnConnection]:
        """A connection for the calling thread alone, which must not have one already."""
        connection = self.borrow(may_migrate=may_migrate)
        try:
            yield connection
        finally:
            self.give_back(connection)

    def borrow(self, *, may_migrate: bool = True) -> OwnConnection:
        """The same for callers who count microseconds; who borrows gives back."""
        me = get_ident()
        with self._guard:
            if self._forking or len(self._users) >= MOST:
                # An interrupt can keep a thread from signing out; whoever comes again has certainly left before.
                self._users.pop(me, None)
                self._wait_until(self._may_lend)
            self._users[me] = self._closings
            connection = self._idle.pop() if self._idle else None
        try:
            if connection is None:
                connection = self._open(may_migrate)
            if monotonic() >= self._look_at:
                self._expect_same_file()
        except BaseException:
            self.give_back(connection)
            raise
        return connection

    def give_back(self, connection: OwnConnection | None) -> None:
        """End a loan, also one that came to nothing."""
        with self._guard:
            closings = self._users.pop(get_ident(), self._closings)
            try:
                if connection is not None:
                    self._put_back(connection, closed_meanwhile=closings != self._closings)
            finally:
                if self._waiting:
                    self._changed.notify_all()

    def _wait_until(self, come_true: Callable[[], bool], patience: float | None = None) -> None:
        self._waiting += 1
        try:
            self._changed.wait_for(come_true, patience)
        finally:
            self._waiting -= 1

    def _may_lend(self) -> bool:
        # Who is inside a block goes on even when a fork is waiting for it, or both would wait.
        may_go_on = not self._forking or any(holder.is_here for holder in self._holders)
        return may_go_on and len(self._users) < MOST

    @contextmanager
    def lend_another(self) -> Generator[OwnConnection]:
        """A second connection for a thread that has one: not kept waiting by a fork that waits for the first."""
        with self._guard:
            closings = self._closings
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._open(may_migrate=False)
        try:
            self._expect_same_file()
            yield connection
        finally:
            with self._guard:
                self._put_back(connection, closed_meanwhile=closings != self._closings)

    def sign_in(self, holder: ConnectionUser) -> None:
        """Say that somebody is about to open a connection of its own; forks will wait for it."""
        with self._guard:
            self._wait_until(lambda: not self._forking)
            self._expect_not_inherited()
            self._expect_same_file()
            self._holders.add(holder)

    def sign_out(self, holder: ConnectionUser) -> None:
        """Say that its connection is closed."""
        with self._guard:
            self._holders.discard(holder)
            self._changed.notify_all()

    def look_again(self) -> None:
        """Say that a holder is no longer worth waiting for."""
        with self._guard:
            self._changed.notify_all()

    def prepare(self, *, may_migrate: bool) -> None:
        """See that the schema is there."""
        if not self._prepared:
            with self.lend(may_migrate=may_migrate):
                pass

    def version(self) -> tuple[int, int] | None:
        """What changes with every commit that this method has not seen yet; None if that cannot be known just now.

        Takes about 20 µs and never waits for a lock of the file, so that an event loop may ask.
        """
        with self._guard:
            if self._forking or not self._prepared:
                return None
            try:
                if self._watching is None:
                    if _identity(self._name) != self._file:
                        return None
                    # It must not create the file, should that vanish in this moment.
                    uri = f"{self._path.absolute().as_uri()}?mode=rw"
                    self._watching = sqlite3.connect(uri, uri=True, timeout=0, check_same_thread=False)
                    self._watches += 1  # the number below counts for one connection only
                [version] = self._watching.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error:
                return None
            return self._watches, version

    def close(self) -> None:
        """Close all connections, those in use when they come back, and forget the file."""
        with self._guard:
            self._closings += 1
            self._close_idle()
            self._prepared = False
            self._file = None

    def _put_back(self, connection: OwnConnection, *, closed_meanwhile: bool) -> None:
        if connection.in_transaction:  # an error or an interrupt flew through
            connection.execute("ROLLBACK")
        if closed_meanwhile:
            connection.close()
        else:
            self._idle.append(connection)

    def _open(self, may_migrate: bool) -> OwnConnection:
        with self._opening:
            self._expect_not_inherited()
            if not self._prepared:
                file.refuse_unfit(self._path)
            connection = self._open_connection()
            try:
                if not self._prepared:
                    self._prepare(connection, may_migrate)
                    self._file = _identity(self._name)
                    self._prepared = True
            except BaseException:
                connection.close()
                raise
            return connection

    def _expect_not_inherited(self) -> None:
        if self._inherited:
            raise StoreUnavailable(
                f"This process was forked while a connection to {self._path} was open, so SQLite's locks on it"
                " cannot be trusted here. Close connections of your own (also those of app.connect()) before the"
                " fork, or start the process anew instead of forking."
            )

    def _expect_same_file(self) -> None:
        self._look_at = monotonic() + LOOK_EVERY
        # No file means that the store was closed meanwhile by somebody else in this process, which is fine.
        file = self._file
        if file is not None and _identity(self._name) != file:
            self._look_at = 0.0
            raise StoreUnavailable(
                f"{self._path} was moved, deleted or replaced while it was in use. Nothing was written."
                " Stop every process that uses it, put the right file in its place, and start them again."
            )

    def _close_idle(self) -> None:
        if self._watching is not None:
            self._watching.close()
            self._watching = None
        while self._idle:
            self._idle.pop().close()

    def before_fork(self) -> None:
        """Wait until nothing is in use, then close everything."""
        with self._guard:
            self._forking = True
            self._users.pop(get_ident(), None)
            self._wait_until(lambda: not self._users and not self._held_elsewhere(), FORK_PATIENCE)
            self._close_idle()

    def _held_elsewhere(self) -> bool:
        return any(holder.is_open and not holder.is_here for holder in self._holders)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        with self._guard:
            self._forking = False
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Begin again, with locks that nobody holds, unless somebody left the file open."""
        holders = self._holders
        self._begin_again()
        for holder in holders:
            holder.disown()
        self._inherited = self._inherited or _is_open(self._file or _identity(self._name))
        self._in_child()


def _identity(path: str) -> Identity | None:
    """Which file it is; None if there is none, or none that can be reached."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _is_open(file: Identity | None) -> bool:
    """Whether this process has the file open. Looks with `stat` alone: opening and closing it would drop locks."""
    if file is None:
        return False
    with suppress(OSError):
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                status = os.fstat(int(descriptor))
                if (status.st_dev, status.st_ino) == file:
                    return True
    return False


# The one piece of state that belongs to the process: a fork happens to all engines in it at once.
_all: "weakref.WeakSet[Connections]" = weakref.WeakSet()


def _each(action: Callable[[Connections], None]) -> Callable[[], None]:
    """The action on all, also if it fails on one: a store left behind as forking would wait for ever."""

    def act() -> None:
        with ExitStack() as stack:
            for connections in list(_all):
                stack.callback(action, connections)

    return act


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_each(Connections.before_fork),
        after_in_parent=_each(Connections.after_fork_in_parent),
        after_in_child=_each(Connections.after_fork_in_child),
    )
