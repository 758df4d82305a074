"""A standby of an experiment's server: a copy that follows it, and can take its place."""

import shutil
from pathlib import Path
from typing import Any

from devtools.postgres.data_folder import SUPERUSER
from devtools.postgres.install import account_for
from faults.evidence.records import Pen
from faults.stores.host import SETTINGS, Host

STATE = "SELECT state, sync_state FROM pg_stat_replication"


def follow(primary: Host, folder: Path, pen: Pen, *, database: str, port: int | None = None) -> Host:
    """A server that follows this one, by way of another port if need be; it runs, and takes readers only."""
    folder.mkdir(mode=0o700)
    account = account_for(primary.programs, folder)
    account.own(folder)
    password = (primary.folder / "password").read_text().strip()
    words = [
        "--pgdata",
        str(folder / "data"),
        "--write-recovery-conf",
        "--checkpoint",
        "fast",
        "--no-password",
    ]
    way = f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{port or primary.port}/postgres"
    done = account.run(
        "pg_basebackup",
        *words,
        "--dbname",
        way,
        folder=folder,
        environment={"HOME": str(folder), "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
    )
    if done.returncode:
        raise RuntimeError(f"pg_basebackup says: {done.stderr.strip()}")
    shutil.copy(primary.folder / "password", folder / "password")
    account.own(folder / "password")
    standby = Host(folder, pen, database=database, settings=SETTINGS)
    standby.start()
    return standby


def followers(primary: Host) -> list[tuple[str, str]]:
    """Who follows it, each with how far it is (`streaming`) and whether commits wait for it (`sync`, `async`)."""
    with primary.connect("postgres") as connection:
        rows: list[Any] = connection.execute(STATE).fetchall()
        return rows


def wait_for_standby(primary: Host) -> None:
    """From now on no commit is acknowledged before a standby has it on its disk."""
    with primary.connect("postgres") as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")


def promote(standby: Host) -> None:
    """Make it a server of its own, that takes changes."""
    with standby.connect("postgres") as connection:
        connection.execute("SELECT pg_promote(true, 60)")
