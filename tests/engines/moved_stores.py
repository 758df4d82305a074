"""Stores of any engine, for tests that move, export and import what they hold."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shigoto.engine.open import open_engine
from shigoto.engine.protocol import Engine
from shigoto.moving.move import StoreMove
from tests.postgres import Yard, wanted_majors

POSTGRES = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]
SQLITE = [pytest.mark.engine("sqlite")]


class Stores:
    """Opens stores of any engine, each new; those on PostgreSQL are schemas of one database."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self._folder, self._request = folder, request
        self._stack = ExitStack()
        self.database = ""

    def __call__(self, words: str) -> Engine:
        """The store of `sqlite a` or `postgres a`."""
        kind, name = words.split()
        url = f"sqlite:///{self._folder / name}'s.db?synchronous=normal"  # a quote means something in SQL
        if kind == "postgres":
            self.database = self.database or self._new_database()
            url = f"{self.database}?schema={name}"
        engine = open_engine(url)
        self._stack.callback(engine.close)
        engine.migrate()
        return engine

    def _new_database(self) -> str:
        # Not the fixture `postgres_database`: which engine a test is about, it says only when it runs.
        yard: Yard = self._request.getfixturevalue("postgres_yard")
        return self._stack.enter_context(yard.database(max(wanted_majors(self._request.config))))

    def close(self) -> None:
        self._stack.close()


def on(*pairs: str) -> pytest.MarkDecorator:
    """Runs a test for each pair of engines; those with PostgreSQL where that is asked for."""
    cases = [
        pytest.param(*pair.split(">"), marks=POSTGRES if "postgres" in pair else SQLITE, id=pair)
        for pair in pairs
    ]
    return pytest.mark.parametrize(("kind", "other"), cases)


ALL_PAIRS = on("sqlite>sqlite", "sqlite>postgres", "postgres>sqlite", "postgres>postgres")
EACH = on("sqlite>sqlite", "postgres>postgres")


def moved(old: Engine, new: Engine, **more: Any) -> Any:
    """Move everything, at once unless something else is said."""
    usual: dict[str, Any] = {"wait": 0.0, "tell": lambda progress: None}
    return StoreMove(old, new, **(usual | more)).run()
