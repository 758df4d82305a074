"""Brings the schema up to date, or says why it must not be touched."""

from collections.abc import Sequence

from shigoto.engine.postgres.statement import Script, in_schema
from shigoto.engine.sql.command import Statement, Steps
from shigoto.engine.sql.migrations import Applied, Migration, load_migrations, pending
from shigoto.model.errors import SchemaMissing

PACKAGE = "shigoto.engine.postgres.migrations"
# Of all that locks by number in a database, ours are those of this class: the first half of a hash of our name.
LOCK_CLASS = 0x5368_6967

REMEMBER = """
CREATE TABLE shigoto.migration (
  version    integer PRIMARY KEY,
  name       text NOT NULL,
  checksum   text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now())
"""


def shipped() -> list[Migration]:
    """The migrations of this release."""
    return load_migrations(PACKAGE)


def migrate(schema: str, store: str) -> Steps[list[str]]:
    """Apply what is missing, in one transaction and under a lock, so that two processes never apply the same step."""
    yield Statement("SELECT pg_advisory_xact_lock($1::int, hashtext($2::text))", (LOCK_CLASS, schema))
    missing = pending(shipped(), (yield from applied(schema)), store=store)
    if not missing:
        return []
    if not (yield from _exists("SELECT 1 FROM pg_namespace WHERE nspname = $1::text", schema)):
        yield Script(in_schema("CREATE SCHEMA shigoto.", schema).rstrip("."))
    if not (yield from _exists("SELECT 1 WHERE to_regclass($1::text) IS NOT NULL", f"{schema}.migration")):
        yield Script(in_schema(REMEMBER, schema))
    for migration in missing:
        yield Script(in_schema(migration.sql, schema))
        remember = (
            "INSERT INTO shigoto.migration (version, name, checksum) VALUES ($1::int, $2::text, $3::text)"
        )
        values = (migration.version, migration.name, migration.checksum)
        yield Statement(in_schema(remember, schema), values)
    return [f"{migration.version:04d}_{migration.name}" for migration in missing]


def expect_current(schema: str, store: str) -> Steps[None]:
    """Raise SchemaMissing if something is missing, StoreRefused or SchemaTooNew if it is not ours."""
    missing = pending(shipped(), (yield from applied(schema)), store=store)
    if missing:
        raise SchemaMissing(
            f"{store} does not have the current schema of shigoto: {len(missing)} of its {len(shipped())} migrations are"
            " missing. Run `shigoto migrate` with a role that may create tables."
        )


def applied(schema: str) -> Steps[Sequence[Applied]]:
    """What the store remembers."""
    if not (yield from _exists("SELECT 1 WHERE to_regclass($1::text) IS NOT NULL", f"{schema}.migration")):
        return []
    look = in_schema("SELECT version, name, checksum FROM shigoto.migration ORDER BY version", schema)
    rows = (yield Statement(look)).fetchall()
    return [Applied(*row) for row in rows]


def _exists(text: str, name: str) -> Steps[bool]:
    return (yield Statement(text, (name,))).fetchone() is not None
