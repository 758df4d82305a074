"""What happens when more threads want the file than there are connections."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import Shigoto
from shigoto.engine.op import Op, Steps
from shigoto.engine.sql.commands import SqlText
from shigoto.engine.sqlite.engine import SqliteEngine
from shigoto.engine.sqlite.file import MOST

pytestmark = pytest.mark.engine("sqlite")

THREADS = 4 * MOST
PATIENCE = 30.0  # seconds


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = Shigoto(engine=SqliteEngine(tmp_path / "jobs.db"))

    @app.task
    def note(number: int) -> None: ...

    yield app
    app.close()


def test_whoever_finds_no_connection_free_waits_for_one(app: Shigoto) -> None:
    """S0-76: all connections are lent out; those who enqueue meanwhile wait, and none of them gets an error."""
    app.tasks["note"].enqueue(0)
    lent, give_back = threading.Semaphore(0), threading.Event()

    def reading() -> Steps[None]:
        yield SqlText("SELECT 1")
        lent.release()
        assert give_back.wait(PATIENCE)

    readers = [
        threading.Thread(target=lambda: app.engine.run(Op(start=reading, mode="read"))) for _ in range(MOST)
    ]
    for reader in readers:
        reader.start()
    for _ in readers:
        assert lent.acquire(timeout=PATIENCE)
    stored = threading.Event()

    def enqueue() -> None:
        app.tasks["note"].enqueue(1)
        stored.set()

    writer = threading.Thread(target=enqueue)
    writer.start()

    assert not stored.wait(0.2), "a connection too many"
    give_back.set()
    assert stored.wait(PATIENCE)
    for thread in (*readers, writer):
        thread.join(PATIENCE)
    assert app.stats()["default"].pending == 2


def test_many_more_threads_than_connections_lose_nothing(app: Shigoto) -> None:
    """S0-76: each enqueues and looks again and again, all at once."""
    begin = threading.Barrier(THREADS)
    trouble: list[Exception] = []

    def work(thread: int) -> None:
        try:
            begin.wait(PATIENCE)
            for number in range(5):
                handle = app.tasks["note"].enqueue(5 * thread + number)
                assert app.job(handle.id).number == handle.number
        except Exception as error:
            trouble.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)

    assert trouble == []
    assert app.stats()["default"].pending == 5 * THREADS
