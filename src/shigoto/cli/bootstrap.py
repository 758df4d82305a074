"""The SQL that makes the two roles of a PostgreSQL store, as pure text.

The migrator owns the schema and changes it; the runtime role works in it, and owns nothing. Whoever runs this, once and
again whenever something in it changes, may create roles and grant rights on the database.
"""

import base64
import hashlib
import hmac

from msgspec import Struct

ITERATIONS = 4096  # what PostgreSQL takes itself
LONGEST = 63  # bytes of a name; PostgreSQL cuts off the rest without an error


class Grantee(Struct, frozen=True, kw_only=True):
    """A role that can log in; `verifier` is its password as the server keeps it, None for one that is set elsewhere."""

    name: str
    verifier: str | None = None


class Bootstrap(Struct, frozen=True, kw_only=True):
    """What is to be made, and where. Timeouts are in seconds, and 0 is none.

    `tables` are schemas with tables of the application that handlers may read and write; `makers` are the roles that
    make such tables, so that this holds for later ones too.
    """

    database: str
    schema: str
    migrator: Grantee
    runtime: Grantee
    statement_timeout: float
    transaction_timeout: float
    lock_timeout: float
    tables: tuple[str, ...] = ()
    makers: tuple[str, ...] = ()


HEADER = """\
-- Roles for a store of shigoto, made by `shigoto sql bootstrap`. It can be run again at any time.
-- Run it in the database {database}, as a superuser, or as an owner of the database who may create roles:
--   psql --set ON_ERROR_STOP=1 --dbname DATABASE --file bootstrap.sql
-- Then run `shigoto migrate` as {migrator}, and workers and all others as {runtime}.

BEGIN;

DO $do$
BEGIN
  IF current_database() <> {database_text} THEN
    RAISE EXCEPTION 'This is for the database %, not for %.', {database_text}, current_database();
  END IF;
END
$do$;
"""

# Of one that is there already, all is said that matters: somebody may have given it more.
ROLE = """\
DO $do$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = {text}) THEN
    CREATE ROLE {name} LOGIN;
  END IF;
  IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = {text}
    AND (rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls)) THEN
    RAISE EXCEPTION 'The role % may do more than it should: take SUPERUSER, CREATEROLE, CREATEDB, REPLICATION and'
      ' BYPASSRLS from it, or choose another name.', {text};
  END IF;
  IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = {text} AND NOT rolcanlogin) THEN
    ALTER ROLE {name} LOGIN;
  END IF;
END
$do$;
"""

PASSWORD = "ALTER ROLE {name} PASSWORD {verifier};\n"
NO_PASSWORD = (
    "-- {name} gets no password here. In psql, \\password sets one without writing it down anywhere.\n"
)

# Who is no superuser can give away only what a role may own that they belong to.
OWNERSHIP = """\
DO $do$
DECLARE
  owner oid := (SELECT oid FROM pg_roles WHERE rolname = {migrator_text});
  place oid := (SELECT oid FROM pg_namespace WHERE nspname = {schema_text});
  kind text;
  object text;
BEGIN
  IF pg_has_role({runtime_text}, {migrator_text}, 'MEMBER') THEN
    RAISE EXCEPTION 'The role % belongs to %, and could do all that it can: REVOKE that.',
      {runtime_text}, {migrator_text};
  END IF;
  IF NOT pg_has_role(current_user, {migrator_text}, 'USAGE') THEN
    EXECUTE format('GRANT %I TO %I', {migrator_text}, current_user);
  END IF;
  IF place IS NULL THEN
    CREATE SCHEMA {schema} AUTHORIZATION {migrator};
  ELSIF (SELECT nspowner FROM pg_namespace WHERE oid = place) <> owner THEN
    ALTER SCHEMA {schema} OWNER TO {migrator};
  END IF;
  -- What somebody else has made there before; sequences of identity columns go with their tables.
  FOR kind, object IN
    SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'c' THEN 'TYPE' ELSE 'TABLE' END, c.oid::regclass::text
    FROM pg_class c
    WHERE c.relnamespace = place AND c.relowner <> owner AND c.relkind IN ('r', 'p', 'v', 'c')
    UNION ALL
    SELECT 'ROUTINE', p.oid::regprocedure::text
    FROM pg_proc p
    WHERE p.pronamespace = place AND p.proowner <> owner
  LOOP
    EXECUTE format('ALTER %s %s OWNER TO %I', kind, object, {migrator_text});
  END LOOP;
END
$do$;
"""

GRANTS = """\
GRANT CONNECT ON DATABASE {database} TO {migrator}, {runtime};
GRANT USAGE ON SCHEMA {schema} TO {runtime};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {runtime};
GRANT SELECT, USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {runtime};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {runtime};
DO $do$
BEGIN
  -- Which migrations there are is for those to say who migrate.
  IF to_regclass(format('%I.migration', {schema_text})) IS NOT NULL THEN
    REVOKE INSERT, UPDATE, DELETE ON {schema}.migration FROM {runtime};
  END IF;
END
$do$;

-- The same for what later migrations make.
ALTER DEFAULT PRIVILEGES FOR ROLE {migrator} IN SCHEMA {schema}
  GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {runtime};
ALTER DEFAULT PRIVILEGES FOR ROLE {migrator} IN SCHEMA {schema} GRANT SELECT, USAGE ON SEQUENCES TO {runtime};
ALTER DEFAULT PRIVILEGES FOR ROLE {migrator} IN SCHEMA {schema} GRANT EXECUTE ON FUNCTIONS TO {runtime};
"""

TIMEOUTS = """\
-- Here and not by the client: a pooler would pass on to others what one client has set.
ALTER ROLE {runtime} IN DATABASE {database} SET statement_timeout = {statement};
ALTER ROLE {runtime} IN DATABASE {database} SET idle_in_transaction_session_timeout = {transaction};
ALTER ROLE {runtime} IN DATABASE {database} SET lock_timeout = {lock};
"""

TABLES = """\
-- Tables of the application, under its row security.
GRANT USAGE ON SCHEMA {schema} TO {runtime};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {runtime};
GRANT SELECT, USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {runtime};
"""
LATER_TABLES = """\
ALTER DEFAULT PRIVILEGES FOR ROLE {maker} IN SCHEMA {schema}
  GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {runtime};
ALTER DEFAULT PRIVILEGES FOR ROLE {maker} IN SCHEMA {schema} GRANT SELECT, USAGE ON SEQUENCES TO {runtime};
"""


def script(wanted: Bootstrap) -> str:
    """The SQL of all of it, in one transaction."""
    names = {
        "database": identifier(wanted.database),
        "schema": identifier(wanted.schema),
        "migrator": identifier(wanted.migrator.name),
        "runtime": identifier(wanted.runtime.name),
    }
    texts = {
        "database_text": literal(wanted.database),
        "schema_text": literal(wanted.schema),
        "migrator_text": literal(wanted.migrator.name),
        "runtime_text": literal(wanted.runtime.name),
    }
    timeouts = {
        "statement": _seconds(wanted.statement_timeout),
        "transaction": _seconds(wanted.transaction_timeout),
        "lock": _seconds(wanted.lock_timeout),
    }
    parts = [
        HEADER.format(**names, **texts),
        _role(wanted.migrator),
        _role(wanted.runtime),
        OWNERSHIP.format(**names, **texts),
        GRANTS.format(**names, **texts),
        TIMEOUTS.format(**names, **timeouts),
        *_application(wanted),
        "COMMIT;\n",
    ]
    return "\n".join(parts)


def _role(role: Grantee) -> str:
    name = identifier(role.name)
    password = (
        NO_PASSWORD.format(name=name)
        if role.verifier is None
        else PASSWORD.format(name=name, verifier=literal(role.verifier))
    )
    return ROLE.format(name=name, text=literal(role.name)) + password


def _application(wanted: Bootstrap) -> list[str]:
    runtime = identifier(wanted.runtime.name)
    parts: list[str] = []
    for schema in wanted.tables:
        parts.append(TABLES.format(schema=identifier(schema), runtime=runtime))
        parts += [
            LATER_TABLES.format(schema=identifier(schema), runtime=runtime, maker=identifier(maker))
            for maker in wanted.makers
        ]
    return parts


def identifier(name: str) -> str:
    """The name as SQL has it, whatever letters it is made of. Raises ValueError for one that cannot be a name."""
    _expect_text(name)
    if len(name.encode()) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} bytes, and PostgreSQL would cut it off")
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """The text as SQL has it, wherever it stands: the settings of a server may give backslashes a meaning."""
    _expect_text(text)
    quoted = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    return f" E{quoted}" if "\\" in text else quoted


def _expect_text(text: str) -> None:
    if not text:
        raise ValueError("it is empty")
    if not text.isprintable():  # a line break would end a comment
        raise ValueError("it has a letter that nobody can see")
    if "$do$" in text:
        raise ValueError("$do$ has a meaning in what is printed")


def verifier(password: str, salt: bytes) -> str:
    """The password as a server keeps it (SCRAM-SHA-256): who finds it cannot log in with it, only try out guesses.

    Raises ValueError for a password that different programs could understand in different ways.
    """
    if not password:
        raise ValueError("it is empty")
    if not (password.isascii() and password.isprintable()):
        raise ValueError("only printable ASCII means the same to all programs")
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
    client = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    return f"SCRAM-SHA-256${ITERATIONS}:{_base64(salt)}${_base64(client)}:{_base64(server)}"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _seconds(value: float) -> str:
    return f"'{round(value * 1000)}ms'"
