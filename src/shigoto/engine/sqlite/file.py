"""The database file: its schema, and the connections to it.

SQLite checkpoints by itself every 1000 pages, on whichever connection happens to commit. Below version 3.51.3 a writer
that restarts the log at the very moment another connection checkpoints it can corrupt the file (the WAL-reset bug), and
a queue writes and checkpoints all day. So ours run under the write lock: one at a time, and nobody writes meanwhile. It
also bounds the log, which a checkpoint beside a busy writer never does, because only a fully copied log is restarted.
The price is a pause of some 20 ms every 8 MiB.

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
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from threading import get_ident
from time import monotonic
from typing import Any, Protocol

from shigoto.engine.sql.block import NO_TRANSACTION
from shigoto.engine.sql.commands import Applied, load_migrations, pending
from shigoto.model.errors import JobError, SchemaMissing, StoreError, StoreRefused, StoreUnavailable
from shigoto.model.time import host_clock

# The log is cut to this when it starts over, so that it is longer only when it is due again (see `Checkpointer`). Up to
# there it is overwritten, not extended: at `synchronous = full` a commit then takes a fifth to a third less.
WAL_LIMIT = 8 * 1024 * 1024
LOOK_EVERY = 0.001  # seconds
FORK_PATIENCE = 10.0  # seconds to wait for transactions under way
MOST = 16  # connections
RETRY_AFTER = 1.0  # seconds; a reader with an old snapshot can keep the log from being copied whole

MINIMUM_VERSION = (3, 38, 0)  # the ->> operator
NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "fuse.vmhgfs-fuse", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs",
})  # fmt: skip
# Errors that say something about the file and its machine, and nothing about the statement.
PASSING = frozenset({
    "BUSY", "CANTOPEN", "CORRUPT", "FULL", "IOERR", "LOCKED", "NOMEM", "NOTADB", "PERM", "PROTOCOL", "READONLY",
})  # fmt: skip

# The checkpoint is ours to run (see `Checkpointer`), so the automatic one is off on every connection of ours.
PRAGMAS = """
PRAGMA synchronous = {synchronous};
PRAGMA wal_autocheckpoint = 0;
PRAGMA journal_size_limit = {limit};
PRAGMA temp_store = memory;
PRAGMA cache_size = -16000;
"""
# SQLite ignores this one inside a transaction, so that nobody could turn it on in a block. Our own tables have no
# foreign keys; on connections of our own it stays off, in case somebody's table has one into ours.
FOR_USERS = "PRAGMA foreign_keys = ON;"

Prepare = Callable[[sqlite3.Connection, bool], None]
Identity = tuple[int, int]

MIGRATIONS = Path(__file__).parent / "migrations"
# Half of SQLite's own. A commit writes every page that it has touched, and a single enqueue touches three of them: it
# takes a tenth less. Batches are as fast with either, and payloads of 10 KB a tenth slower.
PAGE_SIZE = 2048
REMEMBER = """
CREATE TABLE IF NOT EXISTS shigoto_migration (
  version    INTEGER PRIMARY KEY,
  name       TEXT NOT NULL,
  checksum   TEXT NOT NULL,
  applied_at INTEGER NOT NULL)
"""


class Checkpointer:
    """Says when the log is due; any process that writes may find that it is."""

    def __init__(self, path: Path) -> None:
        self._wal = f"{path}-wal"
        self._not_before = 0.0

    def due(self) -> bool:
        """Whether the log has outgrown its limit. Asked after every commit; looks at most once a millisecond."""
        now = time.monotonic()
        if now < self._not_before:
            return False
        self._not_before = now + LOOK_EVERY
        try:
            return os.stat(self._wal).st_size > WAL_LIMIT
        except OSError:
            return False

    def run(
        self,
        writer: sqlite3.Connection,
        begin: Callable[[sqlite3.Connection], None],
        other: sqlite3.Connection,
    ) -> None:
        """Copy the log into the file through `other`, while `writer` holds the write lock."""
        begin(writer)
        try:
            _, in_log, copied = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        finally:
            writer.execute("ROLLBACK")
        # A reader is in the way: the log cannot restart now, and trying at every commit would not help.
        if copied < in_log:
            self._not_before = time.monotonic() + RETRY_AFTER


def refuse_unfit(path: Path) -> None:
    """Refuse what cannot be kept safe: an old SQLite, a folder that is not there, a network file system."""
    if sqlite3.sqlite_version_info < MINIMUM_VERSION:
        raise StoreRefused(
            f"SQLite {sqlite3.sqlite_version} is too old: shigoto needs 3.38 or newer. Use a newer Python build."
        )
    try:
        if not path.parent.is_dir():
            raise StoreRefused(f"The folder of {path} does not exist. Create it, or give another path.")
        if path.is_dir():
            raise StoreRefused(
                f"{path} is a folder. Give the path of a file in it, such as {path / 'jobs.db'}."
            )
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise StoreRefused(f"{path} cannot be the path of a store: {error.strerror}.") from error
    kind = file_system(path.parent)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreRefused(
            f"{path} lies on a network file system ({kind}), where SQLite's locks and shared memory do not work"
            " and jobs would be lost. Put the file on a local disk, or use a database server."
        )


def file_system(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system a folder lies on; empty where the system does not tell.

    `os.statvfs` has no type, and opening files beside the store is dangerous: POSIX locks of the process are dropped
    when any descriptor of a locked file is closed.
    """
    try:
        lines = mountinfo.read_bytes().splitlines()
    except OSError:
        return ""
    inside = os.fsencode(folder.resolve())
    best, kind = b"", b""
    for line in lines:
        left, _, right = line.partition(b" - ")
        mount = re.sub(rb"\\([0-7]{3})", lambda escape: bytes([int(escape[1], 8)]), left.split(b" ")[4])
        holds = mount == b"/" or inside == mount or inside.startswith(mount + b"/")
        if holds and len(mount) >= len(best):
            best, kind = mount, right.split(b" ")[0]
    return kind.decode("ascii", "replace")


def pragmas(synchronous: str) -> str:
    """How every connection of ours is set up."""
    return PRAGMAS.format(synchronous=synchronous, limit=WAL_LIMIT)


class OwnConnection(sqlite3.Connection):
    """One for the engine's own use, with a cursor that stays, for statements that return nothing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.writer = self.cursor()

    def close(self) -> None:
        """Close it, the cursor first: SQLite keeps the file open for as long as there is a statement."""
        self.writer.close()
        super().close()


def connect(path: Path, *, synchronous: str) -> OwnConnection:
    """A connection for the engine's own use: autocommit, never waiting by itself, usable from any thread."""
    connection = sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256, factory=OwnConnection
    )  # fmt: skip
    connection.executescript(pragmas(synchronous))
    return connection


def connect_for_user(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """A connection for the user's own statements, set up so that it does not disturb the queue.

    Transactions begin IMMEDIATE: one that reads first and then writes cannot lose its snapshot half-way. Foreign keys
    are enforced, as in a transaction block.
    """
    connection = sqlite3.connect(path, timeout=30, isolation_level="IMMEDIATE")
    # These read the schema, which has to wait while SQLite recovers the log of a process that was killed.
    connection.executescript(pragmas(synchronous) + FOR_USERS)
    return connection


def check_same_file(connection: object, path: Path) -> sqlite3.Connection:
    """The caller's connection, if it can carry our statements in one transaction with the caller's own."""
    if not isinstance(connection, sqlite3.Connection):
        raise StoreRefused(
            f"connection= got a {type(connection).__name__}; the store is an SQLite file, so it must be a"
            " sqlite3.Connection to that file, or something of SQLAlchemy's or Django's that has one, and is not async."
        )
    cursor = connection.cursor()
    cursor.row_factory = None
    for position, schema, file in cursor.execute("PRAGMA database_list"):
        if file and os.path.exists(file) and os.path.exists(path) and os.path.samefile(file, path):
            if position != 0:  # the main one; names and paths may be bytes, by the caller's text_factory
                raise StoreRefused(
                    f"{path} is only attached to the connection (as {schema!r}). Commits across attached files are not"
                    " atomic; open the store's own file as the main one."
                )
            return _in_transaction(connection)
    raise StoreRefused(f"The connection given as connection= is not open on the store's file {path}.")


def _in_transaction(connection: sqlite3.Connection) -> sqlite3.Connection:
    # In its default mode sqlite3 begins a transaction before the first INSERT, which is what the caller expects of it.
    # A connection in autocommit mode would commit half an operation.
    # (From Python 3.12 on it has two ways of being in it.)
    autocommits = connection.isolation_level is None or getattr(connection, "autocommit", False) is True
    if autocommits and not connection.in_transaction:
        raise JobError(
            f"{NO_TRANSACTION} Begin one first: `connection.execute('BEGIN')` with sqlite3,"
            " `with transaction.atomic():` with Django. Or leave out connection=."
        )
    return connection


def is_passing(error: sqlite3.Error) -> bool:
    """Whether the same may work at another time; an error that has no name may be anything."""
    name = getattr(error, "sqlite_errorname", "")
    return not name or name.split("_")[1] in PASSING


def refusal(error: sqlite3.Error) -> StoreError | None:
    """The error of a move lock (`moving.py`), if it is one."""
    if getattr(error, "sqlite_errorname", "") != "SQLITE_CONSTRAINT_TRIGGER":
        return None
    from shigoto.engine.movable import refused  # who is never moved never needs it

    code, _, text = str(error).partition(" ")
    return refused(code, text)


def wrapped(error: sqlite3.Error, path: Path) -> Exception:
    """Our error for one of SQLite's, with what to do about it."""
    name = getattr(error, "sqlite_errorname", "")
    match name.split("_")[1] if name.startswith("SQLITE_") else "":
        case "NOTADB":
            return StoreRefused(f"{path} is not an SQLite database. Give another path; nothing was changed.")
        case "CORRUPT":
            return StoreUnavailable(f"{path} is damaged ({error}). Stop all processes and restore a backup.")
        case "FULL":
            return StoreUnavailable(
                f"The disk of {path} is full. Nothing was written; free space and try again."
            )
        case "READONLY" | "PERM" | "CANTOPEN":
            return StoreUnavailable(
                f"{path} cannot be opened for writing ({error}). Check the owner and mode of file and folder."
            )
        case "BUSY" | "LOCKED":
            return StoreUnavailable(
                f"{path} stayed locked by another process ({error}). Find who holds a write transaction open."
            )
        case _:
            return refusal(error) or StoreUnavailable(f"SQLite refused an operation on {path}: {error}")


def migrate(connection: sqlite3.Connection, path: Path, *, may_migrate: bool = True) -> list[str]:
    """Apply what is missing, under the write lock, so that two processes never apply the same step."""
    shipped = load_migrations(MIGRATIONS)
    if not pending(shipped, _applied(connection), store=str(path)):
        return []
    if not may_migrate:
        raise SchemaMissing(
            f"{path} does not have the current schema of shigoto. Run `shigoto migrate` or a worker to create it;"
            " for jobs in a transaction of your own, open the connection with app.connect()."
        )
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")  # of a new file; another keeps the one it has
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreRefused(
            f"{path} cannot have a write-ahead log (its journal mode stays {mode!r}): the file system lacks shared"
            " memory. Put the file on an ordinary local disk."
        )
    connection.execute("BEGIN IMMEDIATE")
    try:
        missing = pending(shipped, _applied(connection), store=str(path))
        connection.execute(REMEMBER)
        for migration in missing:
            for statement in split(migration.sql):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO shigoto_migration VALUES (?, ?, ?, ?)",
                (migration.version, migration.name, migration.checksum, host_clock()),
            )
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return [f"{migration.version:04d}_{migration.name}" for migration in missing]


def split(script: str) -> list[str]:
    """The statements of a script; `executescript` would commit the transaction that makes a migration atomic."""
    statements: list[str] = []
    current = ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current.strip())
            current = ""
    return statements


def _applied(connection: sqlite3.Connection) -> list[Applied]:
    known = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'shigoto_migration'").fetchone()
    if known is None:
        return []
    rows = connection.execute("SELECT version, name, checksum FROM shigoto_migration ORDER BY version")
    return [Applied(*row) for row in rows]


class ConnectionUser(Protocol):
    """A handler's block, which has a connection of its own to the file."""

    @property
    def path(self) -> Path: ...

    @property
    def is_open(self) -> bool:
        """Whether it is worth waiting for."""
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
        self._open_connection, self._prepare, self._in_child = open_connection, prepare, in_child
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
        may_go_on = not self._forking or _inside.get() in self._holders
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
                refuse_unfit(self._path)
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
        here = _inside.get()  # the calling code itself, which cannot wait for itself
        return any(holder.is_open and holder is not here for holder in self._holders)

    def after_fork_in_parent(self) -> None:
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


# Which block is open here: for refusing what would wait for it for ever. Tasks and threads that are started inside a
# block inherit it where they inherit variables at all.
_inside: ContextVar[ConnectionUser | None] = ContextVar("shigoto_block", default=None)


def mark_here(block: ConnectionUser) -> Callable[[], None]:
    """Say that the calling code is inside this block; gives how to take it back."""
    token = _inside.set(block)

    def unmark() -> None:
        with suppress(ValueError):  # left in another context than it was entered in, which keeps nothing open
            _inside.reset(token)

    return unmark


def expect_outside(path: Path) -> None:
    """Raise JobError where a write to the same file would wait for the block that it is in."""
    block = _inside.get()
    if block is not None and block.is_open and _is_same_file(block.path, path):
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
