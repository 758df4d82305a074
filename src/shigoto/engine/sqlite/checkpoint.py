"""When and how the write-ahead log goes back into the file.

SQLite checkpoints by itself every 1000 pages, on whichever connection happens to commit. Below version 3.51.3 a writer
that restarts the log at the very moment another connection checkpoints it can corrupt the file (the WAL-reset bug), and
a queue writes and checkpoints all day. So ours run under the write lock: one at a time, and nobody writes meanwhile. It
also bounds the log, which a checkpoint beside a busy writer never does, because only a fully copied log is restarted.
The price is a pause of some 20 ms every 8 MiB.
"""

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

# The log is cut to this when it starts over (files.PRAGMAS), so it is longer only when it is due again. Up to there it
# is overwritten, and to sync that takes less time than to sync a file that grows.
WAL_LIMIT = 8 * 1024 * 1024
LOOK_EVERY = 0.001  # seconds
RETRY_AFTER = 1.0  # seconds; a reader with an old snapshot can keep the log from being copied whole


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
