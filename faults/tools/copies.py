"""Stores for one attempt each: copies of one that was prepared for all of them."""

import shutil
import time
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from faults.evidence.audit import Store

COPY = "attempt"
QUIET_WITHIN = 30.0  # seconds


class Spot(Struct, frozen=True):
    """One store: its address for apps, and for the audit."""

    url: str
    audited: Store


class Copies(Protocol):
    """Makes copies; each takes the place of the one before."""

    def fresh(self) -> Spot:
        """The next one."""
        ...

    def settle(self) -> None:
        """Wait until nobody does anything any more for a client of the copy that was killed."""
        ...


def in_file(path: Path) -> Spot:
    """A file as a store."""
    return Spot(f"sqlite:///{path}", path)


class Files:
    """Copies of a file that nobody has open, in a folder that is emptied for each."""

    def __init__(self, template: Path, folder: Path) -> None:
        self._template = template
        self._folder = folder

    def fresh(self) -> Spot:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        return in_file(Path(shutil.copy(self._template, self._folder / "jobs.db")))

    def settle(self) -> None:
        """Whoever wrote into the file is dead."""


class Databases:
    """Copies of a database that nobody is connected to, known by its URL for a superuser and for apps."""

    def __init__(self, template: str, url: str) -> None:
        self._name = template.rpartition("/")[2]
        self._console = _beside(template, "postgres")
        self._spot = Spot(_beside(url, COPY), _beside(template, COPY))

    def fresh(self) -> Spot:
        self._execute(f"DROP DATABASE IF EXISTS {COPY} WITH (FORCE)")
        self._execute(f"CREATE DATABASE {COPY} TEMPLATE {self._name}")
        return self._spot

    def settle(self) -> None:
        """What a client has sent before it was killed is still done, and committed, or the server finds it gone."""
        deadline = time.monotonic() + QUIET_WITHIN
        look = (
            f"SELECT pid FROM pg_stat_activity WHERE datname = '{COPY}' AND backend_type = 'client backend'"
        )
        while served := self._execute(look):
            if time.monotonic() > deadline:
                raise TimeoutError(f"The server still serves clients that are dead: {served}")
            time.sleep(0.005)

    def _execute(self, text: str) -> list[tuple[object, ...]]:
        import psycopg

        with psycopg.connect(self._console, autocommit=True) as connection:
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else []


def _beside(url: str, database: str) -> str:
    return f"{url.rpartition('/')[0]}/{database}"
