"""Commands in an empty folder, and a store in it; modules that want either otherwise have their own."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.unit.cli.pages import SnapshotCheck, compare
from tests.unit.commands import Command, Store, command


@pytest.fixture
def shigoto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in an empty current directory."""
    for name in ("SHIGOTO_APP", "SHIGOTO_URL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return command(capsys)


@pytest.fixture
def store(shigoto: Command) -> Iterator[Store]:
    """The store jobs.db in the current directory."""
    store = Store()
    yield store
    store.engine.close()


@pytest.fixture
def snapshot(pytestconfig: pytest.Config) -> SnapshotCheck:
    """Compares the pages of a command with its file, or writes the file if `--renew` is set."""
    return partial(compare, renew=pytestconfig.getoption("--renew"))
