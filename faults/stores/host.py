"""The PostgreSQL server of an experiment, and what can be done to it.

It is durable as PostgreSQL ships: a commit that was answered is on the disk. What is done to it stands in the ledger,
as a fault with the deed `server`, which is no excuse for anything that happens to a job.
"""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psycopg

from devtools.postgres import Server
from devtools.postgres.server import is_alive, wait_until
from faults.evidence.records import Pen

How = Literal["smart", "fast", "immediate"]
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
# Processes come and go by the dozen in some experiments, each with a few connections.
SETTINGS: Mapping[str, str | int] = {"max_connections": 500}
STOP_WITHIN = 60.0
LOOK = 0.005  # seconds
CLIENTS = """
SELECT pid FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND datname = current_database()
  AND usename <> 'postgres' AND application_name LIKE %s AND query ILIKE %s
ORDER BY pid
"""


class Host:
    """A server of our own on loopback, in a folder of its own; it ends with this process, however that ends.

    Its address stays the same from start to start.
    """

    def __init__(
        self, folder: Path, pen: Pen, *, database: str, settings: Mapping[str, str | int] | None = None
    ) -> None:
        self._server = Server(folder, settings={**SETTINGS, **(settings or {})})
        self._database = database
        self._pen = pen

    @property
    def folder(self) -> Path:
        """Where its data is, in `data`, and its log."""
        return self._server.folder

    @property
    def programs(self) -> Path:
        """The folder of pg_basebackup, pg_ctl, psql and the others that came with it."""
        return self._server.programs

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1; or did, and will again."""
        assert self._server.port is not None
        return self._server.port

    @property
    def pid(self) -> int:
        """The postmaster: all other processes of it are children of this one. Raises StoreUnavailable if it is down."""
        return self._server.pid

    @property
    def running(self) -> bool:
        """Whether it runs, frozen or not."""
        return self._server.running

    @property
    def log(self) -> str:
        """The last that it has written into its log."""
        return self._server.log_tail()

    def url_of(self, database: str) -> str:
        """The URL of one of its databases, as a superuser."""
        return self._server.address_of(database)

    def connect(self, database: str | None = None) -> psycopg.Connection[Any]:
        """A connection of our own, as a superuser and in autocommit, to the store's database unless said otherwise."""
        return psycopg.connect(self.url_of(database or self._database), autocommit=True)

    def start(self) -> None:
        """Start it, and wait until it takes connections; nothing happens if it runs."""
        self._server.start()

    def stop(self, how: How = "fast", *, within: float = STOP_WITHIN) -> None:
        """Stop it in one of PostgreSQL's ways, and wait until all of its processes are gone.

        `smart` waits until every client has gone by itself. What has not ended in time is told to end at once.
        """
        if self.running:
            self._note(how)
            os.kill(self.pid, SIGNALS[how])
            wait_until(lambda: not self.running, within)
        self._server.stop()  # which also clears away what is left of one that has ended

    def kill(self) -> None:
        """SIGKILL to the postmaster, as if the machine had crashed; its other processes end when they notice."""
        self._note("kill")
        self._server.kill()

    def restart(self, how: How | Literal["kill"] = "fast", *, down_for: float = 0.0) -> None:
        """Stop or kill it, let it be down for so many seconds, and start it again."""
        if how == "kill":
            self.kill()
        else:
            self.stop(how)
        time.sleep(down_for)
        self.start()

    def freeze(self) -> None:
        """Stop all of its processes where they stand: connections stay open, and nothing answers."""
        self._note("freeze")
        self._server.freeze()

    def thaw(self) -> None:
        """Let all of them go on."""
        self._note("thaw")
        self._server.thaw()

    def backends(self, *, application: str = "%", query: str = "%") -> list[int]:
        """The processes that serve clients of the store, ours and other superusers' left out.

        Both words are patterns, as of LIKE; the query is the last that it was sent, such as `LISTEN%`.
        """
        with self.connect() as connection:
            return [pid for (pid,) in connection.execute(CLIENTS, (application, query))]

    def terminate(self, backend: int) -> None:
        """End one client's connection, as an administrator would (pg_terminate_backend)."""
        self._note("terminate")
        with self.connect() as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (backend,))

    def kill_backend(self, backend: int) -> None:
        """SIGKILL to one process of it: PostgreSQL then throws out all clients, recovers, and goes on by itself."""
        self._note("kill backend")
        with suppress(ProcessLookupError):
            os.kill(backend, signal.SIGKILL)
        while is_alive(backend):
            time.sleep(LOOK)

    def is_up(self) -> bool:
        """Whether it takes connections right now."""
        try:
            self.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def close(self) -> None:
        """End it, whatever state it is in."""
        self._server.stop()

    def _note(self, what: str) -> None:
        self._pen.write("fault", deed="server", outcome=what, pid=self.pid, parent=self.pid)
