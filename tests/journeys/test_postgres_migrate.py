"""`shigoto migrate` on PostgreSQL: it alone makes and changes the schema, and all others say what is missing."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from shigoto import SchemaMissing, Shigoto
from shigoto.engine.postgres import PostgresEngine
from shigoto.engine.postgres.schema import shipped
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec
from tests.journeys.ground import Ground, opened
from tests.journeys.yard import SHIGOTO, ended_within

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

ALL = [f"{migration.version:04d}_{migration.name}" for migration in shipped()]
# Everything that a migration makes, by what it is made of.
CATALOGUE = """
SELECT 'table', c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), c.reloptions::text
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE c.relnamespace = 'shigoto'::regnamespace
UNION ALL
SELECT 'index', indexname::text, indexdef, '', '' FROM pg_indexes WHERE schemaname = 'shigoto'
UNION ALL
SELECT 'function', p.proname::text, pg_get_functiondef(p.oid), '', '' FROM pg_proc p
WHERE p.pronamespace = 'shigoto'::regnamespace
UNION ALL
SELECT 'applied', name, checksum, version::text, breaking::text FROM shigoto.migration
ORDER BY 1, 2, 3
"""
# Where whatever is not the server's own has been made: tables, their indexes and sequences, types, functions.
WHERE = """
SELECT DISTINCT n.nspname::text, o.kind
FROM (
  SELECT relnamespace, 'relation' FROM pg_class WHERE oid >= 16384
  UNION ALL SELECT typnamespace, 'type' FROM pg_type WHERE oid >= 16384
  UNION ALL SELECT pronamespace, 'function' FROM pg_proc WHERE oid >= 16384) o(namespace, kind)
JOIN pg_namespace n ON n.oid = o.namespace
WHERE n.nspname <> 'pg_toast'
ORDER BY 2
"""
EMPTY = "SELECT count(*) FROM pg_namespace WHERE nspname = 'shigoto'"


@pytest.fixture
def ground(tmp_path: Path, postgres_database: str) -> Iterator[Ground]:
    with opened(tmp_path, postgres_database) as ground:
        yield ground


def test_an_empty_database_gets_the_schema_and_then_nothing_more(ground: Ground) -> None:
    """S3-1, S3-23, S3-56 = GWT-4: the command creates the queue's schema, says what it did, and can be run again.
    Nothing is made anywhere else, where the tables of the business may be."""
    first = ground.shigoto("migrate", url=ground.address)
    assert first.stdout.splitlines() == [f"Applied {name}." for name in ALL]
    made = ground.rows(CATALOGUE)
    assert ground.rows(WHERE) == [("shigoto", "function"), ("shigoto", "relation"), ("shigoto", "type")]

    again = ground.shigoto("migrate", url=ground.address)
    assert again.stdout == "The store is up to date.\n"
    assert json.loads(ground.shigoto("migrate", "--json", url=ground.address).stdout) == {"applied": []}
    assert ground.rows(CATALOGUE) == made


def test_what_is_printed_does_the_same_and_printing_changes_nothing(ground: Ground) -> None:
    """S3-23: for those who let somebody else run it."""
    printed = ground.shigoto("migrate", "--print", url=ground.address)
    assert printed.returncode == 0
    assert ground.rows(EMPTY) == [(0,)]
    ground.execute(printed.stdout)
    made = ground.rows(CATALOGUE)
    assert ground.shigoto("migrate", url=ground.address).stdout == "The store is up to date.\n"
    assert ground.shigoto("migrate", "--print", url=ground.address).stdout == "-- The store is up to date.\n"
    with pytest.raises(psycopg.errors.DuplicateTable):
        ground.execute(printed.stdout)

    ground.execute("DROP SCHEMA shigoto CASCADE")
    ground.shigoto("migrate", url=ground.address)
    assert ground.rows(CATALOGUE) == made


def test_a_store_that_is_in_use_gets_what_the_service_needs(ground: Ground) -> None:
    """S3-23: beside workers that go on; to whoever may work there it is granted as all else is."""
    ground.shigoto("migrate", url=ground.address)
    made = ground.rows(CATALOGUE)
    engine = PostgresEngine(ground.address)
    spec = JobSpec(id=uuid7(), task="t", queue="q", payload="{}")
    engine.run(engine.enqueue_many([spec]))
    ground.execute(
        "DROP TABLE shigoto.token, shigoto.audit; DROP INDEX shigoto.done_by_end, shigoto.attempt_by_end;"
        " DROP FUNCTION shigoto.ended_jobs; DELETE FROM shigoto.migration WHERE name = 'service'"
    )

    assert ground.shigoto("migrate", url=ground.address).stdout == "Applied 0005_service.\n"

    assert ground.rows(CATALOGUE) == made
    assert engine.run(engine.get([spec.id])) != [None]
    assert engine.run(engine.registry.tokens()) == []
    engine.close()


def test_everything_can_be_printed_without_a_server(ground: Ground) -> None:
    nowhere = "postgresql://ada:secret@127.0.0.1:9/shop?schema=jobs&connect_timeout=1"

    printed = ground.shigoto("migrate", "--print", "--all", url=nowhere)
    assert printed.returncode == 0
    assert 'CREATE TABLE "jobs".job' in printed.stdout
    assert "shigoto." not in printed.stdout.replace("shigoto.now", "")
    refused = ground.shigoto("migrate", "--print", url=nowhere)
    assert refused.returncode == 1
    assert "--print --all" in refused.stderr
    assert "secret" not in refused.stderr + printed.stdout


def test_two_migrations_at_once_are_as_good_as_one(ground: Ground) -> None:
    words = [*SHIGOTO, "migrate", "--json"]
    environment = ground.environment | {"SHIGOTO_URL": ground.address}
    both = [
        subprocess.Popen(
            words, cwd=ground.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=60) for process in both]

    assert [process.returncode for process in both] == [0, 0, 0], said
    applied = sorted(json.loads(out)["applied"] for out, _ in said)
    assert applied == [[], [], ALL]


@pytest.mark.parametrize("old", [False, True], ids=["no schema", "an old schema"])
def test_nobody_else_makes_or_changes_the_schema(ground: Ground, old: bool) -> None:
    """S3-22, S3-23: WORKER.SCHEMA_MISSING with the remedy, from workers and from all commands; never a table."""
    if old:
        ground.shigoto("migrate", url=ground.address)
        ground.execute(
            "DROP FUNCTION shigoto.claim, shigoto.complete, shigoto.promote, shigoto.locked_states,"
            " shigoto.free_states, shigoto.seen_states;"
            "DELETE FROM shigoto.migration WHERE version = 3"
        )
    before = ground.rows("SELECT count(*) FROM pg_class"), ground.rows("SELECT count(*) FROM pg_proc")

    for words in [
        ("worker", "--any-role", "--drain"),
        ("worker", "--any-role", "--drain", "--processes", "0"),
        ("stats",),
        ("list",),
        ("workers",),
        ("queues",),
        ("pause", "mail"),
        ("clear", "failed", "--yes"),
    ]:
        ran = ground.shigoto("--app", "shop", *words, url=ground.address)
        assert ran.returncode == 1, words
        assert "Error [WORKER.SCHEMA_MISSING]" in ran.stderr, (words, ran.stderr)
        assert "migrate" in ran.stderr
    if not old:
        app = Shigoto(ground.address)
        with pytest.raises(SchemaMissing, match="shigoto migrate"):
            app.enqueue_by_name("greet", {}, allow_unknown=True)
        app.close()

    doctor = ground.shigoto("doctor", url=ground.address)
    assert doctor.returncode == 1
    assert "does not have the current schema" in doctor.stdout
    after = ground.rows("SELECT count(*) FROM pg_class"), ground.rows("SELECT count(*) FROM pg_proc")
    assert after == before


def test_a_schema_with_a_hole_is_told_as_one(ground: Ground) -> None:
    """S3-22: also if all migrations are written down; what is missing is named, and what to do."""
    ground.shigoto("migrate", url=ground.address)
    ground.execute("ALTER TABLE shigoto.worker RENAME COLUMN lease_until TO lease_up_to")

    for words in [
        ("workers",),
        ("worker", "--any-role", "--drain"),
        ("worker", "--any-role", "--processes", "0"),
    ]:
        ran = ground.shigoto("--app", "shop", *words, url=ground.address)
        assert ran.returncode == 1, words
        assert "Error [WORKER.SCHEMA_MISSING]" in ran.stderr, (words, ran.stderr)
        assert "lease_until" in ran.stderr
        assert "shigoto migrate" in ran.stderr


def test_a_worker_without_a_server_is_not_ready(ground: Ground) -> None:
    """S3-22: WORKER.NOT_READY, and the exit code with which a service manager starts it again."""
    nowhere = "postgresql://ada:secret@127.0.0.1:9/shop?connect_timeout=1"
    for processes in ("0", "1"):
        ran = ground.shigoto("--app", "shop", "worker", "--processes", processes, url=nowhere)
        assert ran.returncode == 1
        assert "Error [WORKER.NOT_READY]: The worker cannot begin." in ran.stderr
        assert "secret" not in ran.stderr


def test_whoever_looks_is_told_at_once_that_the_server_is_not_there(ground: Ground) -> None:
    """A worker waits for the end of a restart; somebody before a screen need not."""
    for words in (("stats",), ("list",), ("workers",)):
        began = time.monotonic()
        ran = ground.shigoto(*words, url="postgresql://ada:secret@127.0.0.1:9/shop")
        assert ran.returncode == 1
        assert "Error [STORE.UNAVAILABLE]" in ran.stderr
        assert time.monotonic() - began < 8  # with the start of Python; a restart is waited for ten


def test_a_standby_is_not_ready(ground: Ground) -> None:
    ground.shigoto("migrate", url=ground.address)
    role = (
        "CREATE OR REPLACE FUNCTION public.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'"
    )
    ground.execute(f"{role}; ALTER DATABASE {ground.database} SET search_path = public, pg_catalog")

    ran = ground.shigoto("--app", "shop", "worker", "--any-role", url=ground.address)
    assert ran.returncode == 1
    assert "Error [WORKER.NOT_READY]" in ran.stderr
    assert "standby" in ran.stderr


def test_a_schema_that_was_edited_or_is_newer_is_left_alone(ground: Ground) -> None:
    """As on SQLite: checksums must agree. A newer schema is for older workers too, unless it says otherwise."""
    ground.shigoto("migrate", url=ground.address)
    drain: tuple[str, ...] = ("--app", "shop", "worker", "--any-role", "--drain")
    ground.execute(
        "INSERT INTO shigoto.migration (version, name, checksum, breaking) VALUES (99, 'future', 'x', false)"
    )
    assert ground.shigoto(*drain, url=ground.address).returncode == 0
    assert ground.shigoto("stats", url=ground.address).returncode == 0
    assert "Error [WORKER.SCHEMA_TOO_NEW]" in ground.shigoto("migrate", url=ground.address).stderr

    ground.execute("UPDATE shigoto.migration SET breaking = true WHERE version = 99")
    for words in (drain, ("stats",), ("migrate",)):
        ran = ground.shigoto(*words, url=ground.address)
        assert ran.returncode == 1
        assert "Error [WORKER.SCHEMA_TOO_NEW]" in ran.stderr

    ground.execute(
        "DELETE FROM shigoto.migration WHERE version = 99; UPDATE shigoto.migration SET checksum = 'x'"
    )
    for words in (drain, ("migrate",), ("migrate", "--print")):
        ran = ground.shigoto(*words, url=ground.address)
        assert ran.returncode == 1
        assert "differs from the one in this release" in ran.stderr


def test_a_running_worker_ends_when_the_schema_is_no_longer_for_its_release(ground: Ground) -> None:
    """It says why, and does not advise to migrate, which was done."""
    ground.bootstrap()
    ground.migrate()
    yard = ground.yard()
    try:
        process = yard.start("--lease", "3")
        done = yard.app.enqueue_by_name("greet", {"name": "Ada"}, allow_unknown=True)
        yard.until_done(done)

        ground.execute(
            "INSERT INTO shigoto.migration (version, name, checksum, breaking) VALUES (99, 'future', 'x', true)"
        )

        assert ended_within(process, 28) == 1
        assert "WORKER.SCHEMA_TOO_NEW" in yard.log()
        assert "schema version 99 (future)" in yard.log()
        assert "shigoto migrate" not in yard.log()
    finally:
        yard.end()


def test_a_schema_can_have_another_name(ground: Ground) -> None:
    url = f"{ground.address}?schema=user"

    assert ground.shigoto("migrate", url=url).returncode == 0
    assert ground.rows(EMPTY) == [(0,)]
    ran = ground.shigoto("--app", "shop", "enqueue", "greet", "--arg", "name=Ada", url=url)
    assert ran.returncode == 0, ran.stderr
    assert ground.shigoto("--app", "shop", "worker", "--any-role", "--drain", url=url).returncode == 0
    assert '"completed":1' in ground.shigoto("stats", "--json", url=url).stdout
    engine = PostgresEngine(url)
    assert engine.checkup().refusal is None
    engine.close()


def test_the_words_of_migrate_must_make_sense(ground: Ground) -> None:
    assert ground.shigoto("migrate", "--all").returncode == 2
    assert ground.shigoto("migrate", "--print", "--json").returncode == 2
    printed = ground.shigoto("migrate", "jobs.db", "--print")
    assert printed.returncode == 1
    assert "STORE.UNSUPPORTED" in printed.stderr
    assert not os.path.exists(ground.folder / "jobs.db")
