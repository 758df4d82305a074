"""A database on a PostgreSQL server of its own as a store, with the roles that `shigoto sql bootstrap` makes.

Workers and producers log in as a role that may do no more than work; only the audit, and whoever disturbs, is a
superuser.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path

from faults.evidence.audit import audit_of
from faults.evidence.records import Pen
from faults.stores.host import Host
from shigoto import Shigoto
from shigoto.cli.sql import IDLE_FOR, LOCK_FOR, STATEMENT_FOR, Bootstrap, Grantee, bootstrap_script, verifier
from shigoto.engine.postgres import PostgresEngine

NAME = "jobs"
MIGRATOR, RUNTIME = "jobs_migrator", "jobs_worker"


class Database:
    """A database that has its schema, and the server that runs while it is open."""

    name = NAME

    def __init__(self, folder: Path, pen: Pen, *, settings: Mapping[str, str | int] | None = None) -> None:
        self.server = Host(folder, pen, database=NAME, settings=settings)
        self.server.start()
        self.password = secrets.token_hex(16)
        with self.server.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {NAME}")
        migrator_password = self._make_roles()
        self.owner_url = self.url_at(self.server.port, user=MIGRATOR, password=migrator_password)
        self.url = self.url_at(self.server.port)
        self.audit = audit_of(self.server.url_of(NAME))

    def url_at(
        self, port: int, *, database: str = NAME, user: str = RUNTIME, password: str | None = None
    ) -> str:
        """The URL for workers and producers by way of another port: a proxy's, or a pooler's."""
        return f"postgresql://{user}:{password or self.password}@127.0.0.1:{port}/{database}"

    def prepare(self, app: Shigoto) -> None:
        """Make the schema, as the role that owns it."""
        engine = PostgresEngine(self.owner_url)
        engine.migrate()
        engine.close()

    def close(self) -> None:
        """End the server."""
        self.audit.close()
        self.server.close()

    def _make_roles(self) -> str:
        """Run what `shigoto sql bootstrap` prints, and tell the migrator's password."""
        migrator = secrets.token_hex(16)
        wanted = Bootstrap(
            database=NAME,
            schema="shigoto",
            migrator=Grantee(name=MIGRATOR, verifier=verifier(migrator, secrets.token_bytes(16))),
            runtime=Grantee(name=RUNTIME, verifier=verifier(self.password, secrets.token_bytes(16))),
            statement_timeout=STATEMENT_FOR,
            transaction_timeout=IDLE_FOR,
            lock_timeout=LOCK_FOR,
        )
        with self.server.connect() as connection:
            connection.execute(bootstrap_script(wanted))
        return migrator
