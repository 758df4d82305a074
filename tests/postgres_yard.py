"""Private PostgreSQL servers for tests: one for each version in each test process, and a database for each test.

A test that takes the fixture `postgres` runs once on every version: on 18 always, on the others where they are found.
When versions are named, by `--postgres 15,18` or in SHIGOTO_TEST_POSTGRES, it runs on these and no others, and they
must start; else the tests of a version that does not start are skipped.
"""

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from devtools.postgres import Server, available
from devtools.postgres.server import is_alive
from shigoto.model.errors import StoreError

MAJORS = (15, 16, 18)
ALWAYS = 18
VARIABLE = "SHIGOTO_TEST_POSTGRES"
# A killed server loses nothing without these; only a machine that loses its power does. And nobody needs to look every
# few seconds whether there is anything to vacuum in one of many databases that live as long.
FAST: Mapping[str, str | int] = {
    "autovacuum_naptime": "1h",
    "checkpoint_timeout": "1h",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": 200,
    "max_wal_size": "256MB",
}

MISSING = "no PostgreSQL"
PREFIX = "shigoto-postgres-"
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
USES = 100  # of one database, before what they leave behind adds up


class Yard:
    """The servers of one test process; each is started when the first test asks for it."""

    def __init__(self) -> None:
        # Not pytest's own folder: in a container the server may have to run as `nobody`, who cannot reach that.
        remove_leftovers()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._folder.chmod(0o711)
        self._originals: dict[int, Server] = {}
        self._servers: dict[int, Server | StoreError] = {}
        self._templates: dict[tuple[int, str], str] = {}
        self._spares: dict[tuple[int, str], list[Spare]] = {}
        self._numbers = count(1)

    def server(self, major: int) -> Server:
        """The server of this version that tests share; they leave it running."""
        if major not in self._servers:
            try:
                server = self.prepared(major)
                server.start()
                with psycopg.connect(server.address, autocommit=True) as connection:
                    make_logins_cheap(connection)
                self._servers[major] = server
            except StoreError as error:
                self._servers[major] = error
        found = self._servers[major]
        if isinstance(found, StoreError):
            raise found
        found.start()
        return found

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
        """Where a server of one's own can be; nothing is there yet, and at the end it is removed."""
        return self._folder / f"own-{next(self._numbers)}"

    def prepared(
        self, major: int, *, settings: Mapping[str, str | int] = FAST, port: int | None = None
    ) -> Server:
        """A server that has its data, and is not started: copied data, which is made far sooner."""
        if major not in self._originals:
            original = Server(self._folder / f"fresh-{major}", major=major, settings=FAST)
            original.prepare()
            self._originals[major] = original
        original, folder = self._originals[major], self.folder()
        folder.mkdir(mode=0o700)
        # They may belong to somebody else, which shutil would forget.
        subprocess.run(
            ["cp", "-a", original.folder / "data", original.folder / "password", folder], check=True
        )
        return Server(folder, programs=original.programs, settings=settings, port=port)

    @contextmanager
    def database(self, major: int, prepare: Callable[[str], None] | None = None) -> Iterator[str]:
        """The URL of a fresh database, dropped at the end whoever is still connected.

        `prepare` is called once with the URL of a database that all later ones are copies of, and leaves no connection.
        """
        server, name = self.server(major), f"test_{next(self._numbers)}"
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
            server, name = self.server(major), f"template_{next(self._numbers)}"
            with psycopg.connect(server.address, autocommit=True) as connection:
                create(connection, name, "template1")
            prepare(server.address_of(name))
            with psycopg.connect(server.address_of(name), autocommit=True) as connection:
                if connection.execute("SELECT to_regnamespace('shigoto')").fetchone() != (None,):
                    connection.execute(KEEP)
            self._templates[key] = name
        return self._templates[key]

    def close(self) -> None:
        """End all of them, and leave nothing behind. Their data goes, so nobody needs to write it down before."""
        with ExitStack() as closing:
            closing.callback(shutil.rmtree, self._folder, ignore_errors=True)
            for server in self._servers.values():
                if isinstance(server, Server):
                    closing.callback(server.kill)
            for spares in self._spares.values():
                for spare in spares:
                    closing.callback(spare.drop)


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


def wanted_majors(config: pytest.Config) -> Sequence[int]:
    """The versions that tests run on."""
    named = named_majors(config)
    if named is not None:
        return named
    found = available()
    return [major for major in MAJORS if major in found or major == ALWAYS]


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


def parametrise(metafunc: pytest.Metafunc) -> None:
    """Run what uses a PostgreSQL once on each of the versions; or on the newest, if it is about us and not about it."""
    if "postgres_major" in metafunc.fixturenames:
        majors = wanted_majors(metafunc.config)
        if metafunc.definition.get_closest_marker("newest_postgres"):
            majors = [max(majors)]
        metafunc.parametrize(
            "postgres_major", majors, ids=[f"pg{major}" for major in majors], scope="session"
        )


def gather_skips(report: pytest.TestReport) -> None:
    """Let all tests that miss the same version be one line at the end of the run, with their number."""
    if isinstance(report.longrepr, tuple) and report.longrepr[2].startswith(f"Skipped: {MISSING}"):
        report.longrepr = (__file__, 1, report.longrepr[2])


@pytest.fixture(scope="session")
def postgres_yard() -> Iterator[Yard]:
    """All private servers of this test process."""
    yard = Yard()
    yield yard
    yard.close()


@pytest.fixture
def postgres(postgres_major: int, postgres_yard: Yard, pytestconfig: pytest.Config) -> Server:
    """A private server that other tests use too."""
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
