"""The ground of tests on PostgreSQL: a server for each run, a database for each test, a clock that the server sees."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from devtools.postgres import Server
from devtools.postgres.server import is_alive, wait_until
from shigoto.testing.store import START
from tests.postgres import ServerClock, Yard, take_time_from_test

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres, pytest.mark.timeout(300)]

prepared: list[str] = []


def prepare(address: str) -> None:
    prepared.append(address)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE TABLE made_once (n integer)")


def test_a_database_is_fresh_and_goes_with_whoever_is_connected(
    postgres: Server, postgres_yard: Yard, postgres_major: int
) -> None:
    with postgres_yard.database(postgres_major, prepare) as address:
        connection = psycopg.connect(address, autocommit=True)
        connection.execute("INSERT INTO made_once VALUES (1)")
    with postgres_yard.database(postgres_major, prepare) as another, psycopg.connect(another) as fresh:
        assert fresh.execute("SELECT count(*) FROM made_once").fetchone() == (0,)

    assert prepared.count(prepared[-1]) == 1
    names = [conninfo_to_dict(each)["dbname"] for each in (address, another)]
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    with psycopg.connect(postgres.address) as connection:
        left = connection.execute(
            "SELECT count(*) FROM pg_database WHERE datname = ANY (%s)", [names]
        ).fetchone()
    assert left == (0,)


def make_store(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            "CREATE SCHEMA shigoto; "
            "CREATE TABLE shigoto.job (number bigint GENERATED ALWAYS AS IDENTITY, word text); "
            "CREATE TABLE shigoto.meta (name text); "
            "INSERT INTO shigoto.meta VALUES ('as migrated')"
        )


def test_an_emptied_database_is_like_a_fresh_one(
    postgres: Server, postgres_yard: Yard, postgres_major: int
) -> None:
    assert postgres.running
    with postgres_yard.emptied(postgres_major, make_store) as first:
        leaked = psycopg.connect(first, autocommit=True)
        leaked.execute("INSERT INTO shigoto.job (word) VALUES ('a'), ('b')")
        leaked.execute("UPDATE shigoto.meta SET name = 'changed'")
        leaked.execute("CREATE TABLE callers_own (n integer)")

    with postgres_yard.emptied(postgres_major, make_store) as second, psycopg.connect(second) as connection:
        rows = connection.execute("INSERT INTO shigoto.job (word) VALUES ('c') RETURNING number").fetchall()
        kept = connection.execute("SELECT name FROM shigoto.meta").fetchall()
        theirs = connection.execute("SELECT to_regclass('callers_own')").fetchone()

    assert second == first
    assert (rows, kept, theirs) == ([(1,)], [("as migrated",)], (None,))
    with pytest.raises(psycopg.OperationalError):
        leaked.execute("SELECT 1")


def test_a_database_that_a_test_has_failed_on_is_not_used_again(
    postgres: Server, postgres_yard: Yard, postgres_major: int
) -> None:
    assert postgres.running
    with pytest.raises(ZeroDivisionError), postgres_yard.emptied(postgres_major, make_store) as failed:
        raise ZeroDivisionError

    with postgres_yard.emptied(postgres_major, make_store) as next_one:
        assert next_one != failed


def test_the_server_sees_the_clock_of_the_test(postgres_database: str) -> None:
    """Also inside of a transaction, as the store's own time would be: a statement sees the time of its start."""
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shigoto")
        take_time_from_test(postgres_database)
        with ServerClock(postgres_database) as clock:
            assert connection.execute("SELECT shigoto.host_now()").fetchone() == (START,)
            clock.advance(1_500)
            assert connection.execute("SELECT shigoto.host_now()").fetchone() == (START + 1_500,)
            clock.advance(-2_000)
            assert connection.execute("SELECT shigoto.host_now()").fetchone() == (START - 500,)
            assert (clock.now, clock()) == (START - 500, START - 500)


class Runs:
    """Runs of pytest that use the servers of tests/postgres.py, each in its own folder for temporary files."""

    def __init__(self, folder: Path, major: int) -> None:
        self.folder = folder
        self.places = folder / "tmp"
        self.places.mkdir()
        # A server may run under another account, which has to reach its folder.
        for each in (self.places, *self.places.parents):
            if each.stat().st_uid == os.geteuid():
                each.chmod(each.stat().st_mode | 0o111)
        (folder / "test_it.py").write_text(TEST)
        (folder / "pytest.ini").write_text("[pytest]\n")
        self._environment = os.environ | {
            "TMPDIR": str(self.places),
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        self._words = [
            "-p",
            "xdist",
            "-p",
            "tests.postgres",
            "-p",
            "no:cacheprovider",
            "--tx=2*popen",
            "--dist=each",
        ]
        self._words.append(f"--postgres={major}")

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *self._words, *words],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def servers(self) -> list[int]:
        """Return what each test process has seen: the process id of its server."""
        return [int(path.read_text()) for path in self.folder.glob("server-*")]


ROOT = Path(__file__).parents[2]
TEST = """
import os, pathlib

def test_it(postgres_database, postgres):
    seen = pathlib.Path(f"seen-{os.getpid()}")
    seen.write_text(str(postgres.pid))
    seen.rename(f"server-{os.getpid()}")
    if os.path.exists("stay"):
        os.read(os.open("stay", os.O_RDWR), 1)
"""


@pytest.fixture
def runs(postgres: Server, tmp_path: Path, postgres_major: int) -> Runs:
    assert postgres.running, "a version that does not start here is skipped"
    return Runs(tmp_path, postgres_major)


def test_the_test_processes_of_a_run_share_one_server(runs: Runs) -> None:
    run = runs.start()
    said, _ = run.communicate(timeout=100)

    assert run.returncode == 0, said
    servers = runs.servers()
    assert len(servers) == 2
    assert len({*servers}) == 1
    assert not is_alive(servers[0])
    assert list(runs.places.glob("shigoto-postgres-*")) == []


def test_a_killed_run_leaves_no_server(runs: Runs) -> None:
    os.mkfifo(runs.folder / "stay")
    run = runs.start()
    wait_until(lambda: len(runs.servers()) == 2 or run.poll() is not None, 100)
    servers = runs.servers()
    assert len(servers) == 2
    [left] = runs.places.glob("shigoto-postgres-*")

    run.send_signal(signal.SIGKILL)
    run.communicate()

    wait_until(lambda: not is_alive(servers[0]), 30)
    assert not is_alive(servers[0])
    (runs.folder / "stay").unlink()
    next_one = runs.start()
    said, _ = next_one.communicate(timeout=100)
    assert next_one.returncode == 0, said
    assert not left.exists()
