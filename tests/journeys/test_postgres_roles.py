"""Two roles: the migrator owns the schema, and all who enqueue and work own nothing. Real processes, real servers."""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from shigoto import Shigoto, State
from shigoto.model.service import FeedPosition
from shigoto.server.tokens import create_op
from tests.journeys.ground import MIGRATOR_PASSWORD, RUNTIME_PASSWORD, Ground, opened
from tests.journeys.yard import ended_within, eventually, runners_of

pytestmark = pytest.mark.engine("postgres")

# What the rights are is the server's affair, and tried on every version; all else is what we make of them.
newest = pytest.mark.newest_postgres

STATE = """
SELECT json_build_object(
  'roles', (SELECT json_agg(r ORDER BY r.rolname) FROM pg_authid r WHERE r.rolname LIKE '%{mark}'),
  'settings', (SELECT json_agg(s ORDER BY s.setrole) FROM pg_db_role_setting s),
  'defaults', (SELECT json_agg(d ORDER BY d.oid) FROM pg_default_acl d),
  'database', (SELECT datacl::text FROM pg_database WHERE datname = current_database()),
  'schemas', (SELECT json_agg(n ORDER BY n.nspname) FROM pg_namespace n WHERE nspname !~ '^pg_'),
  'tables', (SELECT json_agg((c.relname, c.relowner, c.relacl) ORDER BY c.relname) FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'shigoto'),
  'members', (SELECT json_agg((m.roleid, m.member) ORDER BY m.roleid, m.member) FROM pg_auth_members m))::text
"""


@pytest.fixture
def ground(tmp_path: Path, postgres_database: str) -> Iterator[Ground]:
    with opened(tmp_path, postgres_database) as ground:
        yield ground


def test_everything_works_with_the_least_rights(ground: Ground) -> None:
    """S3-25, S3-28, S3-52, S3-63 = GWT-11: bootstrap, migrate as the migrator, then all else as the runtime role."""
    ground.bootstrap()
    ground.migrate()
    yard = ground.yard()
    try:
        app, url = yard.app, ground.runtime_url
        done = app.enqueue_by_name("greet", {"name": "Ada"}, allow_unknown=True)
        apart = app.enqueue_by_name("apart", {"name": "Bob"}, allow_unknown=True)
        failed = app.enqueue_by_name("fail", {}, allow_unknown=True, key="once", retries=0)
        later = app.enqueue_by_name("greet", {"name": "Eve"}, allow_unknown=True, delay=3_600)
        process = yard.start("--processes", "2")
        yard.until_done(done, apart)
        eventually(lambda: failed.status() is State.FAILED, yard.log)

        users = (
            "SELECT DISTINCT usename FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'shigoto'"
        )
        assert ground.rows(users) == [(ground.runtime,)]
        registry = app.engine.registry
        _, token = app.engine.run(create_op(app.engine, "web", ["read"], actor="app"))
        app.engine.run(registry.watch())
        told, _ = app.engine.run(registry.happened(FeedPosition(0), 2**53, 100))
        assert {done.id, apart.id, failed.id} == {each.id for each in told if each.final}
        app.engine.run(registry.revoke_token(token.id))
        assert [entry.action for entry in app.engine.run(registry.noted())] == ["token.create"]
        for words, text in [
            (("stats",), "default"),
            (("list", "failed"), "on purpose"),
            (("show", str(failed.id)), "on purpose"),
            (("queues",), "default"),
            (("workers",), "2"),
            (("pause", "default"), "default"),
            (("resume", "default"), "default"),
            (("cancel", str(later.id)), ""),
            (("retry", str(failed.id)), ""),
            (("enqueue", "greet", "--arg", "name=Zoe"), ""),
        ]:
            ran = ground.shigoto("--app", "shop", *words, url=url)
            assert ran.returncode == 0, (words, ran.stderr)
            assert text in ran.stdout
        assert later.status() is State.CANCELLED
        eventually(lambda: failed.status() is State.FAILED, yard.log)
        process.send_signal(signal.SIGTERM)
        assert ended_within(process, 28) == 0
        cleared = ground.shigoto("clear", "failed", "--yes", url=url)
        assert cleared.returncode == 0, cleared.stderr
        findings = json.loads(ground.shigoto("doctor", "--json", url=url).stdout)["findings"]
        # The servers of tests give up durability for speed, and say so.
        assert [each["check"] for each in findings if each["level"] in ("problem", "warning")] == [
            "durability"
        ]
    finally:
        yard.end()


@newest
@pytest.mark.parametrize("how", ["superuser", "migrator"])
def test_a_worker_refuses_to_be_more_than_a_worker(ground: Ground, how: str) -> None:
    """S3-2, S3-52, S3-63 = GWT-11: never as a superuser, never with the migrator's address, unless told to."""
    ground.bootstrap()
    ground.migrate()
    url = ground.address if how == "superuser" else ground.migrator_url
    why = "a superuser" if how == "superuser" else "who owns the schema shigoto"

    for processes in ("1", "0"):
        refused = ground.shigoto("--app", "shop", "worker", "--processes", processes, "--drain", url=url)
        assert refused.returncode == 1
        assert f"{why}: no worker needs that much" in refused.stderr
        assert "--any-role" in refused.stderr
        assert "STORE.REFUSED" in refused.stderr

    ground.shigoto("--app", "shop", "enqueue", "greet", "--arg", "name=Ada", url=ground.runtime_url)
    for words, variables in [(("--any-role",), {}), ((), {"SHIGOTO_ANY_ROLE": "1"})]:
        ran = ground.shigoto("--app", "shop", "worker", "--drain", *words, url=url, **variables)
        assert ran.returncode == 0, ran.stderr
    assert '"completed":1' in ground.shigoto("stats", "--json", url=ground.runtime_url).stdout


@pytest.mark.parametrize("again", [False, True], ids=["migrated after it", "bootstrapped again"])
def test_who_works_cannot_say_which_migrations_there_are(ground: Ground, again: bool) -> None:
    """S3-52: a handler could keep every worker from starting."""
    ground.bootstrap()
    ground.migrate()
    if again:
        ground.bootstrap()

    assert ground.rows("SELECT count(*) > 0 FROM shigoto.migration", address=ground.runtime_url) == [(True,)]
    for text in (
        "INSERT INTO shigoto.migration (version, name, checksum, breaking) VALUES (99, 'x', 'x', true)",
        "UPDATE shigoto.migration SET breaking = true",
        "DELETE FROM shigoto.migration",
        "TRUNCATE shigoto.migration",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ground.execute(text, address=ground.runtime_url)


@newest
def test_a_bootstrap_that_is_run_again_changes_nothing(ground: Ground) -> None:
    """S3-24, S3-66: the same script twice, before and after a migration; a role made by it can do no more than said."""
    look = STATE.replace("{mark}", ground.runtime.removeprefix("runtime"))
    script = ground.script("--tables", "public", "--tables-of", ground.migrator)
    ground.execute(script)
    fresh = ground.rows(look)
    ground.execute(script)
    assert ground.rows(look) == fresh

    ground.migrate()
    migrated = ground.rows(look)
    ground.execute(script)
    assert ground.rows(look) == migrated

    said = f"rolname = '{ground.runtime}' AND rolcanlogin AND NOT (rolsuper OR rolcreaterole OR rolbypassrls)"
    assert ground.rows(f"SELECT count(*) FROM pg_roles WHERE {said}") == [(1,)]
    for text in (
        "CREATE TABLE shigoto.mine ()",
        "DROP TABLE shigoto.job",
        "ALTER TABLE shigoto.job ADD mine int",
        "TRUNCATE shigoto.job",
        "CREATE SCHEMA mine",
        f"SET ROLE {ground.migrator}",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ground.execute(text, address=ground.runtime_url)
    assert ground.rows("SHOW lock_timeout", address=ground.runtime_url) == [("10s",)]
    assert ground.rows("SHOW idle_in_transaction_session_timeout", address=ground.runtime_url) == [("1min",)]


@newest
def test_tables_of_the_application_can_be_used_also_later_ones(ground: Ground) -> None:
    """S3-25: select, insert, update and delete in schemas that are named, under row security."""
    ground.execute("CREATE TABLE public.before (id int)")
    ground.bootstrap("--tables", "public", "--tables-of", "postgres")
    ground.execute(
        "CREATE TABLE public.after (id int GENERATED BY DEFAULT AS IDENTITY, tenant int);"
        "ALTER TABLE public.after ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY one ON public.after USING (tenant = 1)"
    )

    ground.execute(
        "INSERT INTO public.before VALUES (1); UPDATE public.before SET id = 2; DELETE FROM public.before;"
        "INSERT INTO public.after (tenant) VALUES (1)",
        address=ground.runtime_url,
    )
    ground.execute("INSERT INTO public.after (tenant) VALUES (2)")
    assert ground.rows("SELECT tenant FROM public.after", address=ground.runtime_url) == [(1,)]


@newest
def test_who_has_migrated_as_somebody_else_can_bootstrap_later(ground: Ground) -> None:
    """S3-28: the order is bootstrap, then migrate; the reverse fails for lack of the role, and can be put right."""
    early = ground.shigoto("migrate", url=ground.migrator_url)
    assert early.returncode == 1
    assert "STORE.REFUSED" in early.stderr or "STORE.UNAVAILABLE" in early.stderr

    assert ground.shigoto("migrate", url=ground.address).returncode == 0
    ground.bootstrap()

    owners = (
        "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'shigoto'::regnamespace"
    )
    assert ground.rows(owners) == [(ground.migrator,)]
    assert ground.shigoto("migrate", url=ground.migrator_url).stdout == "The store is up to date.\n"
    assert ground.shigoto("stats", url=ground.runtime_url).returncode == 0


@newest
def test_an_administrator_who_is_no_superuser_can_bootstrap(ground: Ground) -> None:
    """S3-24: on servers that somebody else runs, nobody is a superuser."""
    admin = f"admin_{ground.runtime}"
    ground.execute(
        f"CREATE ROLE {admin} LOGIN CREATEROLE PASSWORD 'x'; ALTER DATABASE {ground.database} OWNER TO {admin}"
    )
    try:
        script = ground.script()
        for _ in range(2):
            ground.execute(script, address=ground.url_of(admin, "x"))
        ground.migrate()
        assert ground.shigoto("stats", url=ground.runtime_url).returncode == 0
    finally:
        ground.execute(f"ALTER DATABASE {ground.database} OWNER TO postgres")
        ground.forget(admin)


@pytest.fixture
def fan_out(ground: Ground) -> Iterator[str]:
    """The SQL of a function that lists stores; the role that it makes belongs to the whole server."""
    ground.execute(
        'CREATE TABLE public."st ore" (id int PRIMARY KEY, secret text);'
        'ALTER TABLE public."st ore" ENABLE ROW LEVEL SECURITY;'
        "INSERT INTO public.\"st ore\" VALUES (3, 'c'), (1, 'a'), (2, 'b')"
    )
    ground.bootstrap("--tables", "public", "--tables-of", "postgres")
    owner = f"fan_out_{ground.runtime}"
    printed = ground.shigoto(
        "sql", "fan-out", "--schema", "public", "--table", "st ore", "--column", "id", "--function", "store_ids",
        "--owner", owner, "--runtime", ground.runtime,
    )  # fmt: skip
    assert printed.returncode == 0, printed.stderr
    yield printed.stdout
    ground.forget(owner)


@newest
def test_the_owner_of_a_fan_out_is_nobody(ground: Ground, fan_out: str) -> None:
    """S3-26: it cannot log in, row security does not hold for it, and the SQL refuses to go on if it has members."""
    ground.execute(fan_out)
    ground.execute(fan_out)
    owner = f"fan_out_{ground.runtime}"

    said = f"SELECT rolcanlogin, rolbypassrls, rolsuper FROM pg_roles WHERE rolname = '{owner}'"
    assert ground.rows(said) == [(False, True, False)]
    members = f"SELECT count(*) FROM pg_auth_members WHERE roleid = '{owner}'::regrole"
    assert ground.rows(members) == [(0,)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ground.execute(f"SET ROLE {owner}", address=ground.runtime_url)
    ground.execute(f"GRANT {owner} TO {ground.runtime}")
    with pytest.raises(psycopg.errors.RaiseException, match="could see all that it sees"):
        ground.execute(fan_out)
    ground.execute(f"REVOKE {owner} FROM {ground.runtime}")
    ground.execute(f"ALTER ROLE {owner} LOGIN")
    with pytest.raises(psycopg.errors.RaiseException, match="may do more than it should"):
        ground.execute(fan_out)


@newest
def test_a_fan_out_lists_all_tenants_in_order_and_tells_nothing_else(ground: Ground, fan_out: str) -> None:
    """S3-27, S3-72: stable SQL with a pinned search path, owned and granted exactly as needed."""
    ground.execute(fan_out)
    stores, runtime = 'SELECT * FROM public."st ore"', ground.runtime_url

    assert ground.rows("SELECT public.store_ids()", address=runtime) == [(1,), (2,), (3,)]
    assert ground.rows(stores, address=runtime) == []
    trap = "CREATE TEMP TABLE store_ids (id int); SET search_path = pg_temp, public"
    with psycopg.connect(runtime, autocommit=True) as connection:
        connection.execute(trap)
        assert connection.execute("SELECT public.store_ids()").fetchall() == [(1,), (2,), (3,)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ground.execute("SELECT public.store_ids()", address=ground.migrator_url)
    facts = (
        "SELECT provolatile::text, prosecdef, proconfig::text, proowner::regrole::text, l.lanname::text FROM pg_proc p"
        " JOIN pg_language l ON l.oid = p.prolang WHERE proname = 'store_ids'"
    )
    owner = f"fan_out_{ground.runtime}"
    assert ground.rows(facts) == [("s", True, "{search_path=pg_catalog}", owner, "sql")]
    readable = f"SELECT column_name::text FROM information_schema.column_privileges WHERE grantee = '{owner}'"
    assert ground.rows(readable) == [("id",)]


@newest
def test_nasty_names_stay_names(ground: Ground) -> None:
    """S3-71: names and passwords are parameters, and nothing in them is obeyed."""
    ground.migrator, ground.runtime = "Mi\"g'r; DROP ROLE x--", "{run} \\time$1 %s :name ü"
    ground.bootstrap()
    ground.migrate()
    if psql := shutil.which("psql"):  # whose own commands and variables must not be seen in it either
        words = [psql, "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", ground.address]
        done = subprocess.run(
            words, input=ground.script(), capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    assert ground.rows("SELECT current_user::text", address=ground.runtime_url) == [(ground.runtime,)]
    assert ground.shigoto("stats", url=ground.runtime_url).returncode == 0


@newest
def test_a_bootstrap_for_another_database_does_nothing(ground: Ground) -> None:
    script = ground.script(database="elsewhere")

    with pytest.raises(psycopg.errors.RaiseException, match="for the database elsewhere"):
        ground.execute(script)
    assert ground.rows("SELECT to_regnamespace('shigoto')::text") == [(None,)]


@newest
def test_a_role_that_may_do_too_much_is_refused(ground: Ground) -> None:
    ground.execute(f"CREATE ROLE {ground.runtime} LOGIN BYPASSRLS")

    with pytest.raises(psycopg.errors.RaiseException, match="may do more than it should"):
        ground.bootstrap()


@newest
def test_no_password_is_seen_anywhere(ground: Ground) -> None:
    """S3-71: not in the SQL, not in logs and errors, not in the list of processes; also that of a second address."""
    script = ground.script()
    ground.execute(script)
    ground.migrate()
    said = [script]
    listen = quote(ground.migrator_url, safe="")
    url = f"{ground.runtime_url}?listen={listen}"
    yard = ground.yard()
    yard.environment["SHIGOTO_URL"] = url
    try:
        process = yard.start("--processes", "2", "--log-level", "debug")
        yard.until_at_work(2)
        apart = yard.enqueue("apart", name="Ada")
        yard.until_done(apart)
        pids = [process.pid, *runners_of(process)]
        said += [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in pids]
        assert "store: postgresql://" in yard.log()
        process.send_signal(signal.SIGTERM)
        assert ended_within(process, 28) == 0
        said.append(yard.log())
    finally:
        yard.end()
    ground.execute("DROP SCHEMA shigoto CASCADE")
    commands = [
        ("config",),
        ("doctor",),
        ("stats",),
        ("worker", "--drain"),
        ("migrate", "--print"),
        ("enqueue", "x"),
    ]
    wrong = url.replace(ground.database, "nowhere")
    for words in commands:
        for address in (url, wrong):
            ran = ground.shigoto("--app", "shop", *words, url=address)
            said += [ran.stdout, ran.stderr]
    shown = ground.shigoto("--app", "shop", "worker", "--drain", url)
    assert "which every user of this machine can read" in shown.stderr
    both = ground.shigoto("--url", url, "stats", wrong)
    said += [both.stdout, both.stderr, shown.stdout, shown.stderr]

    for text in said:
        for password in (MIGRATOR_PASSWORD, RUNTIME_PASSWORD):
            assert password not in text
            assert quote(password, safe="") not in text
            assert quote(quote(password, safe=""), safe="") not in text


@newest
def test_the_app_in_a_program_is_refused_in_the_same_way(ground: Ground) -> None:
    """S3-52: a worker inside of another program asks, too."""
    import asyncio

    from shigoto import StoreRefused
    from shigoto.worker import Worker

    ground.bootstrap()
    ground.migrate()
    app = Shigoto(ground.address)
    try:
        with pytest.raises(StoreRefused, match="a superuser"):
            asyncio.run(Worker(app, drain=True).run())
        assert asyncio.run(Worker(app, drain=True, any_role=True).run()).reason == "drained"
    finally:
        app.close()
