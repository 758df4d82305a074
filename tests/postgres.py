"""Private PostgreSQL servers for tests: one server for each version and run, and one database for each test.

This module is a pytest plugin; the root conftest.py loads it. All test processes of a run share one folder. The process
that first needs a version starts its server there; the others use it. The first process of the run (the controller of
xdist) ends the servers. If it is killed, the guard process of each server ends the server.

A test that takes the fixture `postgres` runs once on every version. `--postgres 15,18` or SHIGOTO_TEST_POSTGRES names
the versions, and these must start. Without names, the tests run on 18, unless the tier is `quick` also on 15, and at
night on all versions that are found; the tests of a version that does not start are skipped.
"""

import base64
import hashlib
import hmac
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import psycopg
import pytest
from _pytest.mark import ParameterSet
from psycopg import sql

from devtools.postgres import Server, available
from devtools.postgres.server import Owner, is_alive, wait_until
from shigoto.engine.postgres import PostgresEngine
from shigoto.model.errors import StoreError, StoreUnavailable
from shigoto.model.time import Millis
from shigoto.testing.store import START, VirtualClock

MAJORS = (15, 16, 18)
ENDS = (15, 18)  # the oldest and the newest bound the range
ALWAYS = 18
VARIABLE = "SHIGOTO_TEST_POSTGRES"
# A killed server loses nothing without these; only a machine that loses its power does. And nobody needs to look every
# few seconds whether there is anything to vacuum in one of many databases that live as long.
FAST: Mapping[str, str | int] = {
    "autovacuum_naptime": "1h",
    "checkpoint_timeout": "1h",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": 400,
    "max_wal_size": "256MB",
}

MISSING = "no PostgreSQL"
PREFIX = "shigoto-postgres-"
END_WITHIN = 30.0
# Rows that the migrations have written stand in `kept`, one table for each that has any.
KEEP = """
CREATE SCHEMA kept;
DO $$
DECLARE
  name text;
  filled boolean;
BEGIN
  FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'shigoto'::regnamespace AND relkind = 'r' LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM shigoto.%I)', name) INTO filled;
    IF filled THEN
      EXECUTE format('CREATE TABLE kept.%I AS TABLE shigoto.%I', name, name);
    END IF;
  END LOOP;
END $$;
"""
END_OTHERS = """
SELECT count(pg_terminate_backend(pid))
FROM pg_stat_activity
WHERE datname = %s AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
EMPTY = """
DO $$
DECLARE
  name text;
BEGIN
  FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'shigoto'::regnamespace AND relkind = 'r' LOOP
    EXECUTE format('DELETE FROM shigoto.%I', name);
    IF to_regclass(format('kept.%I', name)) IS NOT NULL THEN
      EXECUTE format('INSERT INTO shigoto.%I OVERRIDING SYSTEM VALUE TABLE kept.%I', name, name);
    END IF;
  END LOOP;
  PERFORM setval(oid::regclass, 1, false)
  FROM pg_class
  WHERE relnamespace = 'shigoto'::regnamespace AND relkind = 'S';
  FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' LOOP
    EXECUTE format('DROP TABLE public.%I CASCADE', name);
  END LOOP;
END $$;
"""
RUN = pytest.StashKey["Run"]()
USES = 100  # of one database, before what they leave behind adds up


class Run:
    """The folder that the test processes of one run share, made and removed by the first of them.

    The folder is not pytest's own: in a container the servers may run as `nobody`, who cannot reach that one.
    """

    def __init__(self) -> None:
        remove_leftovers()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.folder.chmod(0o711)
        owner = owner_of(self.folder)
        os.mkfifo(owner.fifo)
        # Open for both, since opening for writing alone would wait for a reader.
        self._fifo = os.open(owner.fifo, os.O_RDWR)

    def close(self) -> None:
        """End all servers, and remove the folder."""
        started = [read_shared(path) for path in self.folder.glob("*.json")]
        for each in started:
            if is_alive(each["guard"]):
                # Immediately, as if the power had failed: no test needs the data.
                os.kill(each["pid"], signal.SIGQUIT)
        wait_until(lambda: not any(is_alive(each["guard"]) for each in started), END_WITHIN)
        os.close(self._fifo)
        shutil.rmtree(self.folder, ignore_errors=True)


def owner_of(folder: Path) -> Owner:
    """Return the first process of a run, whose id is in the name of the folder."""
    return Owner(int(folder.name.removeprefix(PREFIX).partition("-")[0]), folder / "alive")


def read_shared(path: Path) -> dict[str, int]:
    """Return the port, the server process and the guard process of a server that has been started."""
    found: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    return found


class SharedServer(Server):
    """The server that all test processes of a run share. Tests use it and leave it running."""

    def __init__(self, folder: Path, major: int, port: int, pid: int) -> None:
        super().__init__(folder, major=major, port=port)
        self._pid = pid

    @property
    def running(self) -> bool:
        return is_alive(self._pid)

    def start(self) -> None:
        """Raise StoreUnavailable if it has ended; only `Yard.server` starts it again."""
        if not self.running:
            raise StoreUnavailable(f"The shared PostgreSQL in {self.folder} has ended.")

    def stop(self) -> NoReturn:
        """Refuse: other processes use it. Use `Yard.server_of_its_own`."""
        raise AssertionError("this server is shared; use Yard.server_of_its_own")

    kill = freeze = thaw = restart = stop


class Yard:
    """The servers as one test process uses them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._originals: dict[int, Server] = {}
        self._errors: dict[int, StoreError] = {}
        self._templates: dict[tuple[int, str], str] = {}
        self._spares: dict[tuple[int, str], list[Spare]] = {}
        self._numbers = count(1)

    def server(self, major: int) -> Server:
        """Return the server of this version that all tests share, and start it if no process has done so."""
        if major in self._errors:
            raise self._errors[major]
        try:
            with self._locked(major):
                return self._shared(major)
        except StoreError as error:
            self._errors[major] = error
            raise

    def _shared(self, major: int) -> Server:
        folder, path = self._folder / f"shared-{major}", self._folder / f"{major}.json"
        found = read_shared(path) if path.exists() else None
        if not folder.exists():
            self._copy_original(major, folder)
        if found is None or not is_alive(found["pid"]):
            port = found["port"] if found else None
            server = Server(folder, major=major, port=port, settings=FAST, owner=owner_of(self._folder))
            server.start()
            with psycopg.connect(server.address, autocommit=True) as connection:
                make_logins_cheap(connection)
            assert server.port is not None
            found = {"port": server.port, "pid": server.pid, "guard": server.leave()}
            path.write_text(json.dumps(found), encoding="utf-8")
        return SharedServer(folder, major, found["port"], found["pid"])

    @contextmanager
    def _locked(self, major: int) -> Iterator[None]:
        """Let one process at a time prepare a version."""
        import fcntl  # absent on Windows, where the other tests run

        with (self._folder / f"{major}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def server_of_its_own(
        self, major: int, *, settings: Mapping[str, str | int] = FAST, port: int | None = None
    ) -> Iterator[Server]:
        """A server for a test that kills it, freezes it or fills it up."""
        server = self.prepared(major, settings=settings, port=port)
        try:
            server.start()
            yield server
        finally:
            server.kill()
            shutil.rmtree(server.folder, ignore_errors=True)

    def folder(self) -> Path:
        """Return a path for a server of a test; nothing is there yet, and the end of the run removes it."""
        return self._folder / f"own-{os.getpid()}-{next(self._numbers)}"

    def prepared(
        self, major: int, *, settings: Mapping[str, str | int] = FAST, port: int | None = None
    ) -> Server:
        """Return a server that has its data and is not started. The data are a copy, which takes less time."""
        folder = self.folder()
        with self._locked(major):
            original = self._copy_original(major, folder)
        return Server(folder, programs=original.programs, settings=settings, port=port)

    def _copy_original(self, major: int, folder: Path) -> Server:
        if major not in self._originals:
            original = Server(self._folder / f"fresh-{major}", major=major, settings=FAST)
            original.prepare()
            self._originals[major] = original
        original = self._originals[major]
        folder.mkdir(mode=0o700)
        # The files may belong to another account, which shutil would not keep.
        subprocess.run(
            ["cp", "-a", original.folder / "data", original.folder / "password", folder], check=True
        )
        return original

    @contextmanager
    def database(self, major: int, prepare: Callable[[str], None] | None = None) -> Iterator[str]:
        """The URL of a fresh database, dropped at the end whoever is still connected.

        `prepare` is called once with the URL of a database that all later ones are copies of, and leaves no connection.
        """
        server, name = self.server(major), f"test_{os.getpid()}_{next(self._numbers)}"
        template = "template1" if prepare is None else self._template(major, prepare)
        with psycopg.connect(server.address, autocommit=True) as connection:
            create(connection, name, template)
            try:
                yield server.address_of(name)
            finally:
                end_others(connection, name)
                drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                connection.execute(drop.format(sql.Identifier(name)))

    @contextmanager
    def emptied(self, major: int, prepare: Callable[[str], None]) -> Iterator[str]:
        """The URL of a database with an empty store, which an earlier test may have used: it takes far less time.

        For tests that change rows of the store, and have tables of their own in the schema `public`; no more.
        """
        self.server(major)
        spares = self._spares.setdefault(key_of(major, prepare), [])
        spare = spares.pop() if spares else Spare(self.database(major, prepare))
        emptied = False
        try:
            yield spare.address
            emptied = spare.empty()
        finally:
            if emptied:
                spares.append(spare)
            else:
                spare.drop()

    def _template(self, major: int, prepare: Callable[[str], None]) -> str:
        key = key_of(major, prepare)
        if key not in self._templates:
            server, name = self.server(major), f"template_{os.getpid()}_{next(self._numbers)}"
            with psycopg.connect(server.address, autocommit=True) as connection:
                create(connection, name, "template1")
            prepare(server.address_of(name))
            with psycopg.connect(server.address_of(name), autocommit=True) as connection:
                if connection.execute("SELECT to_regnamespace('shigoto')").fetchone() != (None,):
                    connection.execute(KEEP)
            self._templates[key] = name
        return self._templates[key]

    def close(self) -> None:
        """Drop the databases of this process. The end of the run ends the servers."""
        for spares in self._spares.values():
            for spare in spares:
                spare.drop()


class Spare:
    """A database between two tests."""

    def __init__(self, database: AbstractContextManager[str]) -> None:
        self._database = database
        self._uses = 0
        self.address = database.__enter__()
        self._connection = psycopg.connect(self.address, autocommit=True)

    def empty(self) -> bool:
        """Make it as it was, unless it has served long enough."""
        self._uses += 1
        if self._uses == USES:
            return False
        end_others(self._connection, self._connection.info.dbname)
        self._connection.execute(EMPTY)
        return True

    def drop(self) -> None:
        self._connection.close()
        self._database.__exit__(None, None, None)


def key_of(major: int, prepare: Callable[[str], None]) -> tuple[int, str]:
    return major, f"{prepare.__module__}.{prepare.__qualname__}"


def remove_leftovers() -> None:
    """What test runs have left that were killed themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def create(connection: psycopg.Connection, name: str, template: str) -> None:
    connection.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
    )


def make_logins_cheap(connection: psycopg.Connection) -> None:
    """Keep the password, but let it be hashed once where it is hashed 4096 times to slow down those who guess.

    Each of many thousand connections of the tests would cost milliseconds for it, on both sides. Nobody guesses a
    password as long as this one. Versions before 16 have no setting for the number, but all take a hash that is ready.
    """
    password, salt = connection.info.password.encode(), os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password, salt, iterations=1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    served = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(each).decode() for each in (salt, stored, served)]
    verifier = "SCRAM-SHA-256$1:{}${}:{}".format(*encoded)
    connection.execute(sql.SQL("ALTER ROLE CURRENT_USER PASSWORD {}").format(verifier))


def end_others(connection: psycopg.Connection, database: str) -> None:
    """End all other connections to a database, and wait for it.

    The server can wait itself, in `pg_terminate_backend` and in `DROP DATABASE`. But it then sleeps for 100 ms between
    two looks, and clients that have just left are nearly always seen: it is gone in a few.
    """
    deadline = time.monotonic() + 10
    while connection.execute(END_OTHERS, [database]).fetchone() != (0,):
        assert time.monotonic() < deadline, f"somebody is still connected to {database}"
        time.sleep(0.001)


# Only the raw time is replaced, that of a transaction and that of a statement in it. What the store makes of it,
# `shigoto.now()`, is held back after a step as ever.
REPLACE = f"""
CREATE SCHEMA test;
CREATE TABLE test.instant (now bigint NOT NULL);
INSERT INTO test.instant VALUES ({START});
CREATE OR REPLACE FUNCTION shigoto.host_now()
RETURNS bigint
LANGUAGE sql
STABLE
AS 'SELECT now FROM test.instant';
CREATE OR REPLACE FUNCTION shigoto.host_statement_now()
RETURNS bigint
LANGUAGE sql
STABLE
AS 'SELECT now FROM test.instant';
"""


def take_time_from_test(address: str) -> None:
    """Let the store in this database, which has its schema, take the time from a `ServerClock`."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(REPLACE)


class ServerClock(VirtualClock):
    """Store time under the control of a test, on a server; whatever begins after a step sees it."""

    def __init__(self, address: str) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        super().__init__()

    @property
    def now(self) -> Millis:
        return self._now

    @now.setter
    def now(self, instant: Millis) -> None:
        self._now = instant
        self._connection.execute("UPDATE test.instant SET now = %s", [instant])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()


def make_store(address: str) -> None:
    """A store, migrated."""
    engine = PostgresEngine(address)
    engine.migrate()
    engine.close()


def make_store_on_test_time(address: str) -> None:
    """A store that asks the test for the time, by a `ServerClock`."""
    make_store(address)
    take_time_from_test(address)


def wanted_majors(config: pytest.Config) -> Sequence[int]:
    """Return the versions that tests run on."""
    named = named_majors(config)
    if named is not None:
        return named
    found = available()
    tier = config.getoption("--tier", None)
    wanted = {"quick": (ALWAYS,), "rest": ENDS, "all": ENDS}.get(tier, MAJORS)
    return [major for major in wanted if major in found or major == ALWAYS]


def named_majors(config: pytest.Config) -> list[int] | None:
    """The versions that somebody has asked for, or None when nobody has."""
    words: str = config.getoption("--postgres") or os.environ.get(VARIABLE, "")
    if not words:
        return None
    try:
        return sorted({int(word) for word in words.split(",")})
    except ValueError:
        raise pytest.UsageError(
            f"--postgres and {VARIABLE} take major versions of PostgreSQL, such as 15,18, not {words!r}."
        ) from None


def shared_server(yard: Yard, major: int, config: pytest.Config) -> Server:
    """The server of this version; without one the test is skipped, unless somebody has asked for the version."""
    try:
        return yard.server(major)
    except StoreError as error:
        if named_majors(config) is not None:
            raise
        pytest.skip(f"{MISSING} {major}: {error}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres", metavar="MAJOR,…", default=None, help="versions of PostgreSQL to test on, such as 15,18"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "newest_postgres: runs on the newest PostgreSQL that is wanted, and on no other"
    )
    named_majors(config)  # a word that is not a version is reported before anything runs
    if not hasattr(config, "workerinput") and os.name == "posix":
        config.stash[RUN] = Run()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a test process of xdist where the servers of this run are."""
    if run := node.config.stash.get(RUN, None):
        node.workerinput["postgres_folder"] = str(run.folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers; by now the test processes have ended."""
    if run := config.stash.get(RUN, None):
        run.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses PostgreSQL once on each version, or on the newest if it has the mark."""
    if "postgres_major" in metafunc.fixturenames:
        majors = wanted_majors(metafunc.config)
        if metafunc.definition.get_closest_marker("newest_postgres"):
            majors = [max(majors)]
        engines = "engines" in metafunc.definition.path.parts
        metafunc.parametrize(
            "postgres_major", versions(majors, older="full" if engines else "nightly"), scope="session"
        )


def versions(
    majors: Sequence[int], *marks: pytest.MarkDecorator, older: str = "nightly"
) -> list[ParameterSet]:
    """Return one parameter for each version. What runs on older ones than the newest is of the tier `older`."""
    return [
        pytest.param(
            major,
            id=f"pg{major}",
            marks=[*marks, *([] if major == max(majors) else [pytest.mark.tier(older)])],
        )
        for major in majors
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show all tests that miss the same version as one line at the end of the run, with their number."""
    report = yield
    if isinstance(report.longrepr, tuple) and report.longrepr[2].startswith(f"Skipped: {MISSING}"):
        report.longrepr = (__file__, 1, report.longrepr[2])
    return report


@pytest.fixture(scope="session")
def postgres_yard(pytestconfig: pytest.Config) -> Iterator[Yard]:
    """All private servers, as this test process uses them."""
    given = getattr(pytestconfig, "workerinput", {}).get("postgres_folder")
    yard = Yard(Path(given) if given else pytestconfig.stash[RUN].folder)
    yield yard
    yard.close()


@pytest.fixture
def postgres(postgres_major: int, postgres_yard: Yard, pytestconfig: pytest.Config) -> Server:
    """The private server that other tests use too."""
    return shared_server(postgres_yard, postgres_major, pytestconfig)


@pytest.fixture
def postgres_database(postgres: Server, postgres_yard: Yard, postgres_major: int) -> Iterator[str]:
    """The URL of a fresh, empty database."""
    assert postgres.running
    with postgres_yard.database(postgres_major) as address:
        yield address


async def until_dozing(url: str, count: int = 1) -> None:
    """Wait until the server is at so many statements that take their time."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while True:
            found = await connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
            )
            if (await found.fetchone() or (0,))[0] >= count:
                return
