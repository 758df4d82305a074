"""Runners on PostgreSQL: where their database is, and what the server says of their costs.

$BENCH_POSTGRES is the address of a superuser on a server that is there for nothing else, $BENCH_POSTGRES_PID its
process. Each runner has a database of its own, made anew by each command: as a copy of one in which the queue has made
its tables, which for some takes seconds.

WAL: how far the server's log went. Commits: what the database says of its transactions, those included that only look,
without our own questions. Dead rows: those updated and deleted, all of which a vacuum has to remove, whenever it comes.
A server process tells of these when it ends, so they are asked when the workers are gone.
"""

import os
import time
from collections.abc import Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from bench.contract import Meter, Runner, event_loop

ADMIN = os.environ.get("BENCH_POSTGRES", "")
SERVER = os.environ.get("BENCH_POSTGRES_PID")
GONE_WITHIN = 1.0  # seconds for the server to notice that its clients have ended
ALONE_WITHIN = 10.0
LOOK_EVERY = 0.02
SETTLED = """
SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn,
  (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
  (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables)
"""
OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
  AND application_name <> 'holder'
"""
END_OTHERS = OTHERS.replace("count(*)", "count(pg_terminate_backend(pid))")
# The longest that any transaction can be: it has a number, as one that writes, and a view of all that was there.
HOLD = "SELECT pg_current_xact_id(), count(*) FROM pg_class"


def address_of(database: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(ADMIN)._replace(path=f"/{database}"))


def recreate(connection: psycopg.Connection, name: str, pattern: str = "template1") -> None:
    """Drop a database, and make it again."""
    names = sql.Identifier(name), sql.Identifier(pattern)
    connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(names[0]))
    connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))


class Asking:
    """A connection of ours, which counts what is asked through it."""

    def __init__(self, database: str) -> None:
        self._connection = psycopg.connect(address_of(database), autocommit=True)
        self.asked = 0

    def one(self, statement: str) -> tuple[Any, ...]:
        """The row that a question is answered with."""
        self.asked += 1
        row = self._connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row

    def do(self, statement: str) -> None:
        """Anything without an answer."""
        self.asked += 1
        self._connection.execute(statement.encode())

    def be_alone(self, after: float) -> None:
        """Wait until nobody else is connected to the database, and end those who stay longer."""
        started = time.monotonic()
        while self.one(OTHERS) != (0,) and time.monotonic() < started + after + ALONE_WITHIN:
            if time.monotonic() > started + after:
                self.one(END_OTHERS)
            time.sleep(LOOK_EVERY)

    def close(self) -> None:
        """Leave the server."""
        self._connection.close()


class ServerMeter:
    """What one database has cost its server."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._before: tuple[int, int, int] = (0, 0, 0)
        self._asked = 0
        self._wal = 0

    def begin(self) -> None:
        """Remember where the counters stand."""
        self._before = self._read()
        self._asked = self._asking.asked

    def end(self) -> None:
        """Remember where the log stands."""
        (self._wal,) = self._asking.one("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")

    def costs(self, jobs: int) -> dict[str, float]:
        """For each job; the others have left by now, or are about to."""
        # A library that keeps its connections open would keep what it has done to itself.
        self._asking.be_alone(after=GONE_WITHIN)
        _, commits, dead = self._read()
        ours = self._asking.asked - self._asked
        return {
            "wal_bytes_per_job": round(float(self._wal - self._before[0]) / jobs, 1),
            "commits_per_job": round(max(0, commits - self._before[1] - ours) / jobs, 4),
            "dead_rows_per_job": round(float(dead - self._before[2]) / jobs, 3),
        }

    def _read(self) -> tuple[int, int, int]:
        # What this connection has done until now is told with the next statement, not some time later.
        self._asking.one("SELECT pg_stat_force_next_flush()")
        wal, commits, dead = self._asking.one(SETTLED)
        return int(wal), int(commits), int(dead)


class PostgresRunner(Runner):
    """One queue on PostgreSQL. Its two statements count jobs that are due and not finished, and those in history."""

    engine = "postgres"
    pending_jobs: ClassVar[str]
    finished_jobs: ClassVar[str | None] = None

    def __init__(self) -> None:
        self.server = None if SERVER is None else int(SERVER)
        self.database = f"bench_{self.name.replace('-', '_')}"

    @property
    def address(self) -> str:
        """Of its database, with the password in it."""
        return address_of(self.database)

    @cached_property
    def asking(self) -> Asking:
        """Our own connection to its database."""
        return Asking(self.database)

    def reset(self) -> None:
        """An empty database, with the tables of the queue."""
        if not ADMIN:
            raise SystemExit(
                "$BENCH_POSTGRES has no address: `python3 dev.py bench --peers postgres` sets it."
            )
        self.close()
        pattern = f"pattern_{self.name.replace('-', '_')}"
        with psycopg.connect(ADMIN, autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [pattern]).fetchone()
            if found is None:
                recreate(connection, self.database)
                self._install()
                rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
                connection.execute(rename.format(sql.Identifier(self.database), sql.Identifier(pattern)))
            recreate(connection, self.database, pattern)

    def _install(self) -> None:
        work = self.install()
        if work is not None:
            with event_loop() as loop:
                loop.run(work)
        # Some libraries keep connections that nobody can close.
        asking = Asking(self.database)
        asking.be_alone(after=0.0)
        asking.close()

    def close(self) -> None:
        """Let go of the database."""
        if "asking" in vars(self):
            self.asking.close()
            del self.asking

    def install(self) -> Coroutine[Any, Any, None] | None:
        """Make the tables."""
        raise NotImplementedError

    def store(self) -> Path:
        """There is no file."""
        raise NotImplementedError

    async def pending(self) -> int | None:
        """As the queue's own tables say."""
        return int(self.asking.one(self.pending_jobs)[0])

    async def finished(self) -> int | None:
        """As the queue's own tables say."""
        return None if self.finished_jobs is None else int(self.asking.one(self.finished_jobs)[0])

    def filled(self) -> None:
        """Tell the planner of the jobs, as a vacuum would within a minute or two: some are lost without it."""
        self.asking.do("ANALYZE")

    def meter(self) -> AbstractContextManager[Meter]:
        """The server's own counters."""
        return self._metered()

    def storing_meter(self) -> AbstractContextManager[Meter] | None:
        """The same."""
        return self._metered()

    @contextmanager
    def _metered(self) -> Generator[Meter]:
        yield ServerMeter(self.asking)

    @contextmanager
    def hold(self) -> Generator[None]:
        """A transaction that has written, or could have, and sees what was there when it began."""
        with psycopg.connect(self.address, application_name="holder") as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute(HOLD)
            yield
            connection.rollback()
