"""The tools that read a store's file from outside: one finds damage, the other holds a snapshot."""

from pathlib import Path

import pytest

from faults.tools.reader import Snapshot, damage
from shigoto import Shigoto

pytestmark = pytest.mark.engine("sqlite")


@pytest.fixture
def app(tmp_path: Path) -> Shigoto:
    app = Shigoto(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task
    def greet(name: str) -> None: ...

    app.enqueue_many([greet.call(name="x" * 500) for _ in range(500)])
    return app


def test_a_file_that_is_well_has_no_damage(app: Shigoto, tmp_path: Path) -> None:
    assert damage(tmp_path / "jobs.db") == []
    app.close()


def test_a_file_with_pages_of_rubbish_is_damaged(app: Shigoto, tmp_path: Path) -> None:
    """E30, E34: what the experiments look for can be found."""
    app.close()  # copies the log back
    store = tmp_path / "jobs.db"
    content = bytearray(store.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 8192] = b"rubbish!" * 1024
    store.write_bytes(content)
    store.with_name("jobs.db-shm").touch()
    store.with_name("jobs.db-wal").touch()

    assert damage(store)


def test_a_snapshot_sees_the_file_as_it_was(app: Shigoto, tmp_path: Path) -> None:
    """E33"""
    with Snapshot(tmp_path / "jobs.db") as snapshot:
        assert snapshot.look() == 500
        app.enqueue_many([app.tasks["greet"].call(name="y")])
        assert snapshot.holds

    with Snapshot(tmp_path / "jobs.db") as later:
        assert later.look() == 501
    app.close()
