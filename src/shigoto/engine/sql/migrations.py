"""Numbered migrations: which exist, which are applied, and whether the two agree. Pure; engines do the I/O."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from shigoto.engine.sql.commands import sql_files
from shigoto.model.errors import SchemaTooNew, StoreRefused

BREAKING = "-- breaking"


class Migration(Struct, frozen=True):
    """One shipped step of the schema, `0001_name.sql`; once released it is never edited."""

    version: int
    name: str
    sql: str
    checksum: str

    @property
    def breaking(self) -> bool:
        """Whether releases that do not know it must keep away from now on: its first line says `-- breaking`."""
        return self.sql.startswith(BREAKING)


class Applied(Struct, frozen=True):
    """One step as the store remembers it; a store that does not say is closed to older releases by any."""

    version: int
    name: str
    checksum: str
    breaking: bool = True


def load_migrations(folder: Path) -> list[Migration]:
    """The shipped migrations in order."""
    found: list[Migration] = []
    for file in sql_files(folder):
        sql = file.read_text("utf-8")
        number, _, name = file.stem.partition("_")
        found.append(Migration(int(number), name, sql, sha256(sql.encode()).hexdigest()))
    return found


def too_new(store: str, version: int, name: str, known: int) -> SchemaTooNew:
    """Why a release that knows migrations up to this one must keep away."""
    return SchemaTooNew(
        f"{store} has schema version {version} ({name}), but this release of shigoto knows only versions up to {known}."
        " Upgrade shigoto here, or use the release that made the store."
    )


def pending(
    shipped: Sequence[Migration], applied: Sequence[Applied], *, store: str, beside_newer: bool = False
) -> list[Migration]:
    """What is left to apply; refuses a store that is newer than this release or was changed by hand.

    `beside_newer` is for those who only work there: a newer schema is refused only if it is no longer theirs.
    """
    known = {migration.version: migration for migration in shipped}
    for row in applied:
        if row.version not in known:
            if beside_newer and not row.breaking:
                continue
            raise too_new(store, row.version, row.name, max(known))
        if known[row.version].checksum != row.checksum:
            raise StoreRefused(
                f"Migration {row.version} ({row.name}) of {store} differs from the one in this release."
                " The store was made by a development build, or its schema was edited by hand."
                " Restore a backup, or move the jobs to a new store."
            )
    done = {row.version for row in applied}
    return [migration for migration in shipped if migration.version not in done]
