"""PgBouncer in transaction mode before the server of a stage: each transaction may go to another connection.

It is the one that the system has; `is_there` says whether it has one.
"""

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import psycopg

from devtools.postgres.install import NAMESPACE, nobody
from devtools.postgres.server import free_port
from faults.stores.database import RUNTIME, Database

PROGRAM = "pgbouncer"
PLACES = f"{os.defpath}{os.pathsep}/usr/sbin{os.pathsep}/usr/local/sbin"
READY_WITHIN = 10.0
SETTINGS = """\
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
admin_users = {user}
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 1000
"""


def is_there() -> bool:
    """Whether there is a PgBouncer on this machine."""
    return shutil.which(PROGRAM, path=PLACES) is not None


class Pooler:
    """It runs from the start to the end of the block, with so many connections to the server for all clients."""

    def __init__(self, database: Database, folder: Path, *, size: int = 8) -> None:
        self.port = free_port()
        self._database = database
        self._folder = folder
        self._size = size
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The store through the pooler; whoever waits for notifications does so on a connection of its own."""
        return f"{self._database.url_at(self.port)}?listen={quote(self._database.url, safe='')}"

    def __enter__(self) -> "Pooler":
        self._folder.mkdir()
        self._folder.chmod(0o711)
        users, settings = self._folder / "users.txt", self._folder / "pgbouncer.ini"
        users.write_text(f'"{RUNTIME}" "{self._database.password}"\n')
        server = self._database.server.port
        settings.write_text(
            SETTINGS.format(server=server, port=self.port, users=users, user=RUNTIME, size=self._size)
        )
        self._process = self._start(settings)
        deadline = time.monotonic() + READY_WITHIN
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"PgBouncer does not start: {(self._folder / 'log').read_text()}")
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def transactions(self) -> int:
        """How many it has carried so far."""
        with psycopg.connect(self._database.url_at(self.port, database=PROGRAM), autocommit=True) as console:
            rows = console.execute("SHOW STATS_TOTALS").fetchall()
        return sum(int(transactions) for database, transactions, *_ in rows if database != PROGRAM)

    def _start(self, settings: Path) -> subprocess.Popen[bytes]:
        """Like a server it refuses to be root, who can be somebody else in a user namespace, or `nobody`."""
        words = [str(shutil.which(PROGRAM, path=PLACES)), str(settings)]
        user: int | None = None
        if os.geteuid() == 0:
            inside = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
            words = [*NAMESPACE, *words] if inside else words
            user = None if inside else nobody()[0]
        if user is not None:
            for path in self._folder.iterdir():
                os.chown(path, user, -1)
        with (self._folder / "log").open("wb") as log:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=user, start_new_session=True
            )

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            psycopg.connect(self._database.url_at(self.port)).close()
            return True
        return False
