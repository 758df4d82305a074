"""The file itself: where it may lie, its schema, its write-ahead log, and connections set up for it.

SQLite checkpoints by itself every 1000 pages, on whichever connection happens to commit. Below version 3.51.3 a writer
that restarts the log at the very moment another connection checkpoints it can corrupt the file (the WAL-reset bug), and
a queue writes and checkpoints all day. So ours run under the write lock: one at a time, and nobody writes meanwhile. It
also bounds the log, which a checkpoint beside a busy writer never does, because only a fully copied log is restarted.
The price is a pause of some 20 ms every 8 MiB.
"""

import os
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shigoto.engine.sql.block import NO_TRANSACTION
from shigoto.engine.sql.commands import Applied, load_migrations, pending
from shigoto.model.errors import JobError, SchemaMissing, StoreError, StoreRefused, StoreUnavailable
from shigoto.model.time import host_clock

# The log is cut to this when it starts over (files.PRAGMAS), so it is longer only when it is due again. Up to there it
# is overwritten, and to sync that takes less time than to sync a file that grows.
WAL_LIMIT = 8 * 1024 * 1024
LOOK_EVERY = 0.001  # seconds
RETRY_AFTER = 1.0  # seconds; a reader with an old snapshot can keep the log from being copied whole

MINIMUM_VERSION = (3, 38, 0)  # the ->> operator
# fmt: off
NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "fuse.vmhgfs-fuse", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs",
})

# The checkpoint is ours to run (see checkpoint.py), so the automatic one is off on every connection of ours.
# A log that starts over is cut down to its limit, so that it is longer only when it is due again (see checkpoint.py).
# Below that it is overwritten, not extended: at `synchronous = full` a commit then takes a fifth to a third less.
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


# fmt: on


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
        path,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        factory=OwnConnection,
    )
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


# Errors that say something about the file and its machine, and nothing about the statement.
# fmt: off
PASSING = frozenset({
    "BUSY", "CANTOPEN", "CORRUPT", "FULL", "IOERR", "LOCKED", "NOMEM", "NOTADB", "PERM", "PROTOCOL", "READONLY",
})
# fmt: on


def is_passing(error: sqlite3.Error) -> bool:
    """Whether the same may work at another time; an error that has no name may be anything."""
    name = getattr(error, "sqlite_errorname", "")
    return not name or name.split("_")[1] in PASSING


def refusal(error: sqlite3.Error) -> StoreError | None:
    """The error of a gate (`moving.py`), if it is one."""
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
