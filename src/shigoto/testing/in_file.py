"""The store of a test in an SQLite file: for handlers and code with transactions of their own, which are real there."""

import os
from pathlib import Path
from typing import Any, TypeGuard

from shigoto.app import Shigoto
from shigoto.engine.open import open_engine
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.errors import DeclarationError, OptionInvalid, StoreRefused
from shigoto.model.job import JobFilter
from shigoto.model.text import shown
from shigoto.model.time import Millis, host_clock
from shigoto.testing.clock import VirtualClock
from shigoto.testing.store import OwnStore


class StoreInFile(OwnStore):
    """Jobs in a file, for one test. Other tables may be there, other jobs not: they would be taken for the test's."""

    def __init__(self, app: Shigoto, store: object, now: Millis | None) -> None:
        path = _path("store", store)
        if path in _own_path(app.url):
            raise OptionInvalid(
                f"store= names {path}, the app's own store, whose jobs are not the test's. Name another file."
            )
        clock = VirtualClock(host_clock() if now is None else now)
        # Not "full": nobody minds whether the jobs of a test survive a power cut.
        self._sqlite = SqliteEngine(path, synchronous="normal", clock=clock)
        super().__init__(self._sqlite, clock, follows_host=now is None)

    def begin(self) -> None:
        """Create the store, or see that no jobs are in it; and be no earlier than anybody who was there before."""
        if self.quietly(self.engine.find(JobFilter(limit=1))):
            raise DeclarationError(
                f"{self._sqlite.path} has jobs in it already, which this test has not enqueued. Give each test a file"
                " of its own: app.test(store=tmp_path / 'jobs.db')."
            )
        self.clock.now = self._sqlite.now()
        super().begin()

    @property
    def url(self) -> str:
        """The address of the app's store, for as long as it is this one."""
        return self.address

    def connect(self) -> Any:
        """A connection for the user's own statements."""
        return self._sqlite.connect()


def _path(option: str, store: object) -> Path:
    if not _is_path(store):
        raise OptionInvalid(
            f"{option} takes the path of a file, such as tmp_path / 'jobs.db', not {shown(store)}."
        )
    engine = open_engine(os.fspath(store))
    if not isinstance(engine, SqliteEngine):
        raise OptionInvalid(
            f"{option} takes the path of a file, not {shown(store)}; without it jobs live in memory."
        )
    return engine.path


def _is_path(store: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(store, str | os.PathLike)


def _own_path(url: str) -> tuple[Path, ...]:
    try:
        engine = open_engine(url)
    except StoreRefused:  # an engine that was made by hand has no address that could be opened again
        return ()
    return (engine.path,) if isinstance(engine, SqliteEngine) else ()
