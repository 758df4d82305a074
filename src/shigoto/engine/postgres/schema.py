"""The schema: bringing it up to date, why it must not be touched, and who may work with it."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from shigoto.engine.postgres.wire import Script, in_schema
from shigoto.engine.sql.commands import Applied, Migration, SqlText, Steps, load_migrations, pending
from shigoto.model.checkup import ENCODING, OLDEST
from shigoto.model.errors import SchemaMissing, StoreRefused, StoreUnavailable

MIGRATIONS = Path(__file__).parent / "migrations"
# Of all that locks by number in a database, ours are those of this class: the first letters of our name, in ASCII.
LOCK_CLASS = 0x5368_6967

CREATE = "CREATE SCHEMA IF NOT EXISTS"
REMEMBER = """
CREATE TABLE shigoto.migration (
  version    integer PRIMARY KEY,
  name       text NOT NULL,
  checksum   text NOT NULL,
  breaking   boolean NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now())
"""

# Whoever may write there could keep every worker from starting; the grants come from default privileges.
GUARD = """
DO $$
DECLARE
  who text;
BEGIN
  FOR who IN
    SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
    FROM pg_class c
    CROSS JOIN LATERAL aclexplode(c.relacl) a
    WHERE c.oid = 'shigoto.migration'::regclass AND a.grantee <> c.relowner
  LOOP
    EXECUTE format('REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON shigoto.migration FROM %s', who);
  END LOOP;
END
$$
"""

HEADER = """\
-- What {store} lacks, for psql: {names}.
-- It is one transaction; if all of this is there already, it fails and changes nothing.
BEGIN;
SELECT pg_advisory_xact_lock({lock}, hashtext('{schema}'));
"""

WHO = """
SELECT current_user::text, r.rolsuper, coalesce(pg_has_role(n.nspowner, 'MEMBER'), false), pg_is_in_recovery(),
  current_setting('server_version_num')::integer
FROM pg_roles r
LEFT JOIN pg_namespace n ON n.nspname = $1::text
WHERE r.rolname = current_user
"""


def shipped() -> list[Migration]:
    return load_migrations(MIGRATIONS)


@cache
def newest() -> int:
    return max(migration.version for migration in shipped())


def migrate(schema: str, store: str) -> Steps[list[str]]:
    """Apply what is missing, in one transaction and under a lock, so that two processes never apply the same step."""
    yield from _expect_encoding(store)
    yield SqlText("SELECT pg_advisory_xact_lock($1::int, hashtext($2::text))", (LOCK_CLASS, schema))
    missing = pending(shipped(), (yield from applied(schema)), store=store)
    if not missing:
        return []
    if not (yield from _exists("SELECT 1 FROM pg_namespace WHERE nspname = $1::text", schema)):
        yield Script(f'{CREATE} "{schema}"')
    if not (yield from _exists("SELECT 1 WHERE to_regclass($1::text) IS NOT NULL", f"{schema}.migration")):
        yield Script(in_schema(REMEMBER, schema))
        yield Script(in_schema(GUARD, schema))
    for migration in missing:
        yield Script(in_schema(migration.sql, schema))
        yield Script(_remember(migration, schema))
    return [name_of(migration) for migration in missing]


def _expect_encoding(store: str) -> Steps[None]:
    """Raise StoreRefused if the database has no place for most letters, or does not know what a letter is."""
    [encoding] = (yield SqlText("SELECT current_setting('server_encoding')")).fetchone()
    if encoding != ENCODING:
        raise StoreRefused(
            f"{store} has the encoding {encoding}, in which not every text can be stored. Use a database in {ENCODING}:"
            f" CREATE DATABASE … ENCODING '{ENCODING}' TEMPLATE template0."
        )


def missing(schema: str, store: str) -> Steps[tuple[list[Migration], bool]]:
    """What `migrate` would apply, and whether the store has had any migration at all. Changes nothing."""
    yield from _expect_encoding(store)
    before = yield from applied(schema)
    return pending(shipped(), before, store=store), bool(before)


def script(schema: str, store: str, migrations: Sequence[Migration], *, begun: bool) -> str:
    """What `migrate` would do, for people to read and for psql; nothing if there is nothing to do."""
    if not migrations:
        return ""
    names = ", ".join(name_of(migration) for migration in migrations)
    parts = [HEADER.format(store=store, names=names, lock=LOCK_CLASS, schema=schema)]
    if not begun:
        parts += [f'{CREATE} "{schema}";\n', f"{in_schema(REMEMBER, schema).strip()};\n"]
        parts += [f"{in_schema(GUARD, schema).strip()};\n"]
    for migration in migrations:
        parts += [f"-- {name_of(migration)}\n\n{in_schema(migration.sql, schema).strip()}\n"]
        parts += [f"{_remember(migration, schema)};\n"]
    return "\n".join([*parts, "COMMIT;\n"])


def name_of(migration: Migration) -> str:
    return f"{migration.version:04d}_{migration.name}"


def expect_current(schema: str, store: str) -> Steps[None]:
    """Raise SchemaMissing if something is missing, StoreRefused or SchemaTooNew if it is not ours.

    A newer schema is none of our business, unless it says that it is no longer for us.
    """
    lacking = pending(shipped(), (yield from applied(schema)), store=store, beside_newer=True)
    if lacking:
        raise SchemaMissing(
            f"{store} does not have the current schema of shigoto: {len(lacking)} of its {len(shipped())} migrations"
            " are missing. Run `shigoto migrate`, as the role that owns the schema."
        )


def expect_ready(schema: str, store: str, *, any_role: bool) -> Steps[None]:
    """Raise if no worker may begin here: see `expect_current`; StoreUnavailable if nothing can be written.

    StoreRefused if whoever is connected could do more than work, unless `any_role`: a worker runs other people's code.
    """
    role, is_super, owns, is_standby, version = (yield SqlText(WHO, (schema,))).fetchone()
    if version // 10_000 < OLDEST:
        raise StoreRefused(
            f"{store} is PostgreSQL {version // 10_000}, and shigoto needs {OLDEST} or newer. Upgrade the server."
        )
    yield from expect_current(schema, store)
    if is_standby:
        raise StoreUnavailable(
            f"{store} is a standby, which takes no changes. Use the address of the primary."
        )
    if any_role or not (is_super or owns):
        return
    why = "a superuser" if is_super else f"who owns the schema {schema}"
    raise StoreRefused(
        f"{store} is opened as {role}, {why}: no worker needs that much, and any handler could use it. Give the worker"
        " the address of a role that may do no more than work, which `shigoto sql bootstrap` makes. Where it does not"
        " matter: --any-role, or Worker(any_role=True)."
    )


def applied(schema: str) -> Steps[Sequence[Applied]]:
    if not (yield from _exists("SELECT 1 WHERE to_regclass($1::text) IS NOT NULL", f"{schema}.migration")):
        return []
    look = in_schema(
        "SELECT version, name, checksum, breaking FROM shigoto.migration ORDER BY version", schema
    )
    rows = (yield SqlText(look)).fetchall()
    return [Applied(*row) for row in rows]


def _remember(migration: Migration, schema: str) -> str:
    """Its names are made of letters, digits and _: those of files of ours."""
    return in_schema(
        "INSERT INTO shigoto.migration (version, name, checksum, breaking) VALUES"
        f" ({migration.version}, '{migration.name}', '{migration.checksum}', {str(migration.breaking).lower()})",
        schema,
    )


def _exists(text: str, name: str) -> Steps[bool]:
    return (yield SqlText(text, (name,))).fetchone() is not None
