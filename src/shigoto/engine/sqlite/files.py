"""The file itself: where it may lie, how a connection to it is set up, and how it is recognised again."""

import os
import re
import sqlite3
from pathlib import Path
from typing import Any

from shigoto.engine.sql.block import NO_TRANSACTION
from shigoto.engine.sqlite import checkpoint
from shigoto.model.errors import JobError, StoreError, StoreRefused, StoreUnavailable

MINIMUM_VERSION = (3, 38, 0)  # the ->> operator
# fmt: off
NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "fuse.vmhgfs-fuse", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs",
})
# fmt: on

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
    return PRAGMAS.format(synchronous=synchronous, limit=checkpoint.WAL_LIMIT)


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
