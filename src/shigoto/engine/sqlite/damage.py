"""What becomes of jobs that somebody has written into the file by hand, so that no worker can be given them.

One such row would stop every claim that meets it, and with it everybody's jobs (F12). So a claim that cannot be read is
read job by job, and what still cannot be is failed, as payload_invalid; nobody pays for that before it happens.
"""

import sqlite3

import msgspec

from shigoto.engine.sql.commands import Steps, sql, sql_each
from shigoto.engine.sql.settling import count
from shigoto.model.job import FailureKind, State
from shigoto.model.text import fit
from shigoto.model.time import Millis

LONGEST_REASON = 500
FAILED = 4
# What reading a row can raise if it holds something else than what we have written.
UNREADABLE = (sqlite3.Error, msgspec.DecodeError, ValueError, TypeError, KeyError, OverflowError)

Key = tuple[int, object, object, int]  # of a ready row, as it is: lane, priority, pos, number


def is_damage(error: Exception) -> bool:
    """Whether it is what a row holds that SQLite, or we, could not read; and not the file, the disk or a lock."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR
    return isinstance(error, UNREADABLE)


def fail_unreadable(now: Millis, key: Key, error: Exception) -> Steps[None]:
    """End a job that is in the ready set and cannot be read."""
    lane, priority, pos, number = key
    [queue] = (yield sql("queue_of_lane", lane)).fetchone()
    reason = fit(str(error), LONGEST_REASON)
    text = f"The row of this job was not written by us, and cannot be read: {reason}"
    [remembered] = (yield sql("drop_ready_row", lane, priority, pos, number)).fetchall()
    kind = FailureKind.PAYLOAD_INVALID
    yield sql_each("add_done", [(number, FAILED, *remembered, None, now, None, kind, text)])
    yield from count(ended=[(queue, State.FAILED)])
