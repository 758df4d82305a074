-- {runtime} may list {table} by {function}(), made by `shigoto sql fan-out`. It can be run again at any time.
-- Run it after the bootstrap, in the database of the application, as a superuser:
--   psql --set ON_ERROR_STOP=1 --dbname DATABASE --file fan-out.sql

BEGIN;

DO $do$
DECLARE
  member text;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = {owner_text}) THEN
    CREATE ROLE {owner} NOLOGIN BYPASSRLS;
  END IF;
  IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = {owner_text}
    AND (rolcanlogin OR rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication)) THEN
    RAISE EXCEPTION 'The role % may do more than it should: take LOGIN, SUPERUSER, CREATEROLE, CREATEDB and'
      ' REPLICATION from it, or choose another name.', {owner_text};
  END IF;
  IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = {owner_text} AND NOT rolbypassrls) THEN
    ALTER ROLE {owner} BYPASSRLS;
  END IF;
  -- Whoever belonged to it would see all rows.
  FOR member IN
    SELECT m.member::regrole::text
    FROM pg_auth_members m
    JOIN pg_roles r ON r.oid = m.roleid
    WHERE r.rolname = {owner_text}
  LOOP
    RAISE EXCEPTION 'The role % belongs to %, and could see all that it sees: REVOKE that.', member, {owner_text};
  END LOOP;
END
$do$;

GRANT USAGE ON SCHEMA {schema} TO {owner};
GRANT SELECT ({column}) ON {table} TO {owner};

-- In order, so that whoever runs it again does the same. The names that it uses cannot be made to mean something else.
CREATE OR REPLACE FUNCTION {function}() RETURNS SETOF {table}.{column}%TYPE
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog
AS $list$
  SELECT listed.{column} FROM {table} AS listed ORDER BY listed.{column}
$list$;

ALTER FUNCTION {function}() OWNER TO {owner};
REVOKE ALL ON FUNCTION {function}() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION {function}() TO {runtime};

COMMIT;
