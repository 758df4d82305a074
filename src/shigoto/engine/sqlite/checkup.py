"""The health of the file, as far as it can be known. Nothing here changes anything.

The file and its companions are looked at with `stat` and `access` alone: closing a descriptor of one of them would drop
the locks that this process holds on it.
"""

import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

from shigoto.engine.op import Op
from shigoto.engine.sql.commands import SqlText, Steps, sql
from shigoto.engine.sqlite import file
from shigoto.model.checkup import Checkup, FileFacts, LaneFacts, MoveFacts, StoreFacts
from shigoto.model.errors import StoreError
from shigoto.model.time import to_datetime

COMPANIONS = ("", "-wal", "-shm", "-bell")
MOST_DAMAGE = 10  # lines


def examine(
    path: Path, run: Callable[[Op[StoreFacts]], StoreFacts], *, synchronous: str, deep: bool
) -> Checkup:
    """Look at the file from outside first, since closing it can make its log vanish; then from inside."""
    outside = look_at(path)
    if not os.path.exists(path):
        return Checkup(
            version=sqlite3.sqlite_version, file=outside, refusal=f"There is no such file: {path}."
        )
    try:
        inside = run(Op(start=lambda: look_into(synchronous=synchronous, deep=deep), mode="read"))
    except StoreError as error:
        return Checkup(version=sqlite3.sqlite_version, file=outside, refusal=str(error))
    return Checkup(version=sqlite3.sqlite_version, file=outside, store=inside)


def look_at(path: Path) -> FileFacts:
    """The file, its companions and its folder."""
    found = [Path(f"{path}{end}") for end in COMPANIONS if os.path.exists(f"{path}{end}")]
    return FileFacts(
        path=str(path),
        file_system=file.file_system(path.parent),
        size=_size(path),
        log_size=_size(Path(f"{path}-wal")),
        free=_free(path.parent),
        forbidden=tuple(str(each) for each in (*found, path.parent) if not _may_write(each)),
        exposed=tuple(str(each) for each in (*found, path.parent) if _is_exposed(each)),
    )


def look_into(*, synchronous: str, deep: bool) -> Steps[StoreFacts]:
    """The settings, the clock, and what waits or runs without anybody."""
    [mode] = (yield SqlText("PRAGMA journal_mode")).fetchone()
    [clock] = (yield sql("meta", "clock")).fetchone()
    lanes = (yield sql("ready_by_lane")).fetchall()
    [orphans] = (yield sql("count_orphans")).fetchone()
    damage: tuple[str, ...] | None = None
    if deep:
        rows = (yield SqlText(f"PRAGMA quick_check({MOST_DAMAGE})")).fetchall()
        damage = tuple(text for (text,) in rows if text != "ok")
    return StoreFacts(
        journal_mode=mode,
        synchronous=synchronous,
        clock=clock,
        lanes=tuple(
            LaneFacts(queue=queue, task=task, alone=bool(alone), ready=ready, oldest=to_datetime(oldest))
            for queue, task, alone, ready, oldest in lanes
        ),
        orphans=orphans,
        damage=damage,
        move=(yield from _move()),
    )


def _move() -> Steps[MoveFacts | None]:
    known = yield SqlText("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'shigoto_gate'")
    if known.fetchone() is None:
        return None
    row = (yield SqlText("SELECT kind, other FROM shigoto_gate")).fetchone()
    return None if row is None else MoveFacts(kind=row[0], other=row[1])


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _free(folder: Path) -> int | None:
    import shutil  # brings half a megabyte along, for doctors only

    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _may_write(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK | (os.X_OK if os.path.isdir(path) else 0))


def _is_exposed(path: Path) -> bool:
    """Whether anybody may change it; in a sticky folder, such as /tmp, only its owner may replace a file."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH) and not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX)
