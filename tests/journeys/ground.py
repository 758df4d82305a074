"""A PostgreSQL database for journeys: with the roles of a bootstrap, and commands as real processes."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit
from uuid import uuid4

import psycopg
from psycopg import sql

from tests.journeys.yard import SHIGOTO, Yard

# Nothing of this may show up anywhere; a part of it means something in addresses.
MIGRATOR_PASSWORD, RUNTIME_PASSWORD = "mig/rator@hunter2", "run:time%hunter3"

APP = """
import os
from shigoto import Shigoto

app = Shigoto(os.environ.get("SHIGOTO_URL"))

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}"

@app.task(executor="process")
def apart(name: str) -> str:
    return f"Apart, {name}"

@app.task(retries=0)
async def fail() -> None:
    raise ValueError("on purpose")
"""


class Ground:
    """One database. `address` is the superuser's; the roles are there after `bootstrap`."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address
        self.database = urlsplit(address).path.removeprefix("/")
        mark = uuid4().hex[:8]
        self.migrator, self.runtime = f"migrator_{mark}", f"runtime_{mark}"
        (folder / "shop.py").write_text(APP)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("SHIGOTO_", "PG"))
        }

    @property
    def migrator_url(self) -> str:
        return self.url_of(self.migrator, MIGRATOR_PASSWORD)

    @property
    def runtime_url(self) -> str:
        return self.url_of(self.runtime, RUNTIME_PASSWORD)

    def url_of(self, role: str, password: str) -> str:
        server = urlsplit(self.address)
        who = f"{quote(role, safe='')}:{quote(password, safe='')}"
        return f"postgresql://{who}@{server.hostname}:{server.port}{server.path}"

    def shigoto(
        self, *words: str, url: str | None = None, **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, with the store in its environment."""
        return subprocess.run(
            [*SHIGOTO, *words],
            cwd=self.folder,
            env=self.environment | ({} if url is None else {"SHIGOTO_URL": url}) | variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def script(self, *options: str, **names: str) -> str:
        """What `shigoto sql bootstrap` prints for this database."""
        named = {
            "database": self.database,
            "schema": "shigoto",
            "migrator": self.migrator,
            "runtime": self.runtime,
        }
        words = [word for name, value in (named | names).items() for word in (f"--{name}", value)]
        printed = self.shigoto(
            "sql", "bootstrap", *words,
            "--migrator-password-env", "MIGRATOR", "--runtime-password-env", "RUNTIME", *options,
            MIGRATOR=MIGRATOR_PASSWORD, RUNTIME=RUNTIME_PASSWORD,
        )  # fmt: skip
        assert printed.returncode == 0, printed.stderr
        return printed.stdout

    def execute(self, text: str, *, address: str | None = None) -> None:
        """Run a script as the superuser, or somebody else."""
        with psycopg.connect(address or self.address, autocommit=True) as connection:
            connection.execute(text.encode())

    def rows(self, text: str, *, address: str | None = None) -> Sequence[tuple[object, ...]]:
        with psycopg.connect(address or self.address, autocommit=True) as connection:
            return connection.execute(text.encode()).fetchall()

    def bootstrap(self, *options: str) -> None:
        self.execute(self.script(*options))

    def migrate(self) -> None:
        done = self.shigoto("migrate", url=self.migrator_url)
        assert done.returncode == 0, done.stderr

    def yard(self) -> Yard:
        """Workers with the runtime role's address in their environment."""
        yard = Yard(self.folder, shop=APP)
        yard.app.url = self.runtime_url
        yard.environment = self.environment | {"SHIGOTO_URL": self.runtime_url}
        return yard

    def forget(self, *roles: str) -> None:
        """Drop roles, with all that they have in this database."""
        with psycopg.connect(self.address, autocommit=True) as connection:
            for role in (self.runtime, self.migrator, *roles):
                if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
                    for text in ("DROP OWNED BY {} CASCADE", "DROP ROLE {}"):
                        connection.execute(sql.SQL(text).format(sql.Identifier(role)))


@contextmanager
def opened(folder: Path, address: str) -> Iterator[Ground]:
    """A ground, whose roles are gone afterwards."""
    ground = Ground(folder, address)
    try:
        yield ground
    finally:
        ground.forget()
