"""Every change of every job's state, written down by the store itself, by triggers that only tests install.

A job's state is the table that holds its number, so a change is a row that comes or goes there. It is written in the
transaction of the change: what was rolled back has not happened, and what was committed is here, in this order. Where
several write at once, that is the order for each job: who changes one has locked it until the end of the transaction.

The triggers of each engine are known to one class, which `audit_of` finds: `sqlite_audit.py`, `postgres_audit.py`. A
store is named by the path of its file, or by the URL of a database, as somebody who may see everything in it.
"""

from contextlib import closing
from pathlib import Path
from typing import Protocol

from msgspec import Struct

Store = Path | str

STATES = {3: "completed", 4: "failed", 5: "cancelled"}


class Announced(Struct, frozen=True):
    """A worker as it was announced: its process, its lease in seconds, and after which change it was fenced.

    Where several write at once, the order alone does not tell who knew of a fence: `fenced_at` is when it was written.
    No fence may be `lifted`: a fenced worker never comes back.
    """

    pid: int
    lease: float
    fenced: int | None = None
    fenced_at: float | None = None  # seconds of the wall clock
    lifted: bool = False


class Change(Struct, frozen=True, kw_only=True):
    """A row came into a table of the store, or changed there, or went. In the order of the commits."""

    sequence: int
    at: float  # seconds of the wall clock
    number: int
    job: str  # the id
    table: str  # ready, scheduled, blocked, running, done
    deed: str  # in, out, change
    token: int
    settled_token: int
    worker: str = ""
    state: str = ""  # of what is done: completed, failed, cancelled
    crashes: int = 0
    releases: int = 0
    failures: int = 0
    snoozes: int = 0
    since: float | None = None  # when its transaction began, where several can be open at once

    @property
    def begun(self) -> float:
        """Until when whoever did this could know of what others had done."""
        return self.at if self.since is None else self.since


class Audit(Protocol):
    """What an engine must be able to write down and to tell; the functions below say what each is."""

    def install(self) -> None: ...
    def changes(self) -> list[Change]: ...
    def effects(self) -> dict[str, int]: ...
    def workers(self) -> dict[str, Announced]: ...
    def states(self) -> dict[str, str]: ...
    def at_rest(self) -> bool: ...
    def id_of(self, number: int) -> str | None: ...
    def close(self) -> None: ...


def install(store: Store) -> None:
    """Add the table and its triggers to a store that has its schema."""
    with closing(audit_of(store)) as audit:
        audit.install()


def changes(store: Store) -> list[Change]:
    """All that was written down, in order; nothing if no triggers are there."""
    with closing(audit_of(store)) as audit:
        return audit.changes()


def effects(store: Store) -> dict[str, int]:
    """How many rows each job has written into `effects`, a table without a unique constraint that `install` makes."""
    with closing(audit_of(store)) as audit:
        return audit.effects()


def workers(store: Store) -> dict[str, Announced]:
    """Every worker that was ever announced, by its id."""
    with closing(audit_of(store)) as audit:
        return audit.workers()


def states(store: Store) -> dict[str, str]:
    """The state of each job by its id, from the tables themselves; a job that has no place in them is not there."""
    with closing(audit_of(store)) as audit:
        return audit.states()


def at_rest(store: Store) -> bool:
    """Whether no table has a job that waits, is due later or runs."""
    with closing(audit_of(store)) as audit:
        return audit.at_rest()


def id_of(store: Store, number: int) -> str | None:
    """The id of a job that people know by its number."""
    with closing(audit_of(store)) as audit:
        return audit.id_of(number)


def audit_of(store: Store) -> Audit:
    """The audit of the engine that this store belongs to; a path is an SQLite file."""
    if isinstance(store, Path):
        from faults.evidence.sqlite_audit import SqliteAudit

        return SqliteAudit(store)
    from faults.evidence.postgres_audit import PostgresAudit

    return PostgresAudit(store)
