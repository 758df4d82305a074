-- The parts of what `shigoto sql bootstrap` prints; in braces stand names and texts.

-- part: header
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
-- part: role    Of one that is there already, all is said that matters: somebody may have given it more.
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
-- part: password
ALTER ROLE {name} PASSWORD {verifier};
-- part: no_password
-- {name} gets no password here. In psql, \password sets one without writing it down anywhere.
-- part: ownership    Who is no superuser can give away only what a role may own that they belong to.
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
-- part: grants
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
-- part: timeouts
-- Here and not by the client: a pooler would pass on to others what one client has set.
ALTER ROLE {runtime} IN DATABASE {database} SET statement_timeout = {statement};
ALTER ROLE {runtime} IN DATABASE {database} SET idle_in_transaction_session_timeout = {transaction};
ALTER ROLE {runtime} IN DATABASE {database} SET lock_timeout = {lock};
-- part: tables
-- Tables of the application, under its row security.
GRANT USAGE ON SCHEMA {schema} TO {runtime};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {runtime};
GRANT SELECT, USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {runtime};
-- part: later_tables
ALTER DEFAULT PRIVILEGES FOR ROLE {maker} IN SCHEMA {schema}
  GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {runtime};
ALTER DEFAULT PRIVILEGES FOR ROLE {maker} IN SCHEMA {schema} GRANT SELECT, USAGE ON SEQUENCES TO {runtime};
