"""The limit that a disk sets: rows that are inserted and committed one by one, and nothing else."""

import sqlite3
import time
from pathlib import Path

from shigoto.bench.figures import Rate
from shigoto.bench.usage import processor


def bare_inserts(path: Path, count: int, *, synchronous: str, within: float) -> Rate:
    """Insert so many rows of one column into a new file, or as many as there is time for, and remove it."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.executescript(
            f"PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; CREATE TABLE job (payload TEXT)"
        )
        before, began = processor(), time.perf_counter()
        deadline, done = began + within, 0
        while done < count and (not done or time.perf_counter() < deadline):
            connection.execute("INSERT INTO job VALUES ('{}')")
            done += 1
        return Rate(jobs=done, seconds=time.perf_counter() - began, cpu=processor() - before)
    finally:
        connection.close()
        path.unlink()
