"""The jobs of `faults.apps.jobs`, with checkpoints all the time, as the hunt for the WAL-reset bug wants them.

    $SHIGOTO_LOG_LIMIT     bytes of log after which a checkpoint is due, instead of 8 MiB
    $SHIGOTO_CARELESS      if it is set, checkpoints run beside writers, as SQLite's own do

Without these variables nothing is changed: the process that plans an experiment imports this as well.
"""

import importlib
import os
import sqlite3
from collections.abc import Callable

from faults.apps import jobs
from shigoto.engine.sqlite import driver, file

app = importlib.reload(jobs).app


class Careless(file.Checkpointer):
    """Checkpoints without the write lock."""

    def run(
        self,
        writer: sqlite3.Connection,
        begin: Callable[[sqlite3.Connection], None],
        other: sqlite3.Connection,
    ) -> None:
        """Copy the log while others may write to it, or restart it."""
        other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


if "SHIGOTO_LOG_LIMIT" in os.environ:
    file.WAL_LIMIT = int(os.environ["SHIGOTO_LOG_LIMIT"])
if "SHIGOTO_CARELESS" in os.environ:
    vars(driver)["Checkpointer"] = Careless
