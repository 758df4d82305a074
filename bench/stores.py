"""Empty stores to measure on, and what is told of them."""

import platform
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

TITLES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


@contextmanager
def store(engine: str, url: str | None) -> Generator[str]:
    """The address of an empty store."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="shigoto-bench-") as folder:
        Path(folder).chmod(0o711)  # a server of root's may run as `nobody`, who has to reach it
        if engine == "sqlite":
            yield f"sqlite:///{Path(folder) / 'jobs.db'}"
            return
        from devtools.postgres import Server

        with Server(Path(folder) / "server") as server:
            yield server.address


def software(engine: str, url: str | None) -> str:
    """What is measured with."""
    python = f"Python {platform.python_version()}"
    if engine == "sqlite":
        return f"{python} with SQLite {sqlite3.sqlite_version}"
    import psycopg

    with store(engine, url) as address, psycopg.connect(address) as connection:
        return f"{python} with PostgreSQL {connection.info.server_version // 10_000}"
