"""`shigoto doctor` on PostgreSQL, on real trouble, with no more rights than a worker has."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from devtools.postgres import Server
from shigoto.engine.postgres import PostgresEngine
from shigoto.engine.postgres.checkup import INDEXES
from tests.journeys.ground import Ground, opened
from tests.postgres import Yard

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

# As PostgreSQL ships, but for what makes trouble here.
SETTINGS: dict[str, str | int] = {"max_prepared_transactions": 4, "max_connections": 50}


@pytest.fixture
def server(postgres: Server, postgres_yard: Yard, postgres_major: int) -> Iterator[Server]:
    """One with durability, and nobody else on it."""
    assert postgres.running  # else it is skipped
    with postgres_yard.server_of_its_own(postgres_major, settings=SETTINGS) as server:
        yield server


@pytest.fixture
def ground(tmp_path: Path, server: Server) -> Iterator[Ground]:
    with opened(tmp_path, server.address) as ground:
        ground.bootstrap()
        ground.migrate()
        yield ground


def findings(ground: Ground, url: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """What it finds, by the name of the check."""
    ran = ground.shigoto("doctor", "--json", url=url)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return {found["check"]: found for found in json.loads(ran.stdout)["findings"]}


def test_a_store_without_trouble_is_well(ground: Ground) -> None:
    """S3-52: as the runtime role, which sees enough to say so."""
    found = findings(ground, ground.runtime_url)

    assert {each["level"] for each in found.values()} == {"ok"}, found
    assert {
        "postgresql",
        "role",
        "clock",
        "durability",
        "dead rows",
        "indexes",
        "connections",
        "doorbell",
    } <= set(found)
    assert "may work, and no more" in found["role"]["text"]
    text = ground.shigoto("doctor", url=ground.runtime_url).stdout
    assert text.endswith("All is well.\n")


def test_held_snapshots_are_named(ground: Ground) -> None:
    """A session of one's own is seen as it is, one of others is counted, a prepared transaction is seen by all."""
    with (
        psycopg.connect(ground.runtime_url) as own,
        psycopg.connect(ground.address) as other,
        psycopg.connect(ground.address) as distributed,
    ):
        own.execute("SET idle_in_transaction_session_timeout = 0")
        for connection in (own, other):
            connection.execute("SELECT pg_current_xact_id()")
        distributed.execute("SELECT pg_current_xact_id()")
        distributed.execute("PREPARE TRANSACTION 'left behind'")
        facts = PostgresEngine(ground.runtime_url)
        with closing(facts), seen_at_once():
            server = facts.checkup().server

        assert server is not None
        names = [holder.name for holder in server.holders]
        assert any(f"process {own.info.backend_pid} of {ground.runtime}" in name for name in names), names
        assert any("prepared transaction left behind of postgres" in name for name in names)
        assert not any(f"process {other.info.backend_pid}" in name for name in names)
        assert server.unseen >= 1

        all_seen = PostgresEngine(ground.address)
        with closing(all_seen), seen_at_once():
            server = all_seen.checkup().server
        assert server is not None
        assert server.unseen == 0
        assert any(
            f"process {other.info.backend_pid} of postgres" in holder.name for holder in server.holders
        )
        note = findings(ground, ground.runtime_url)["transactions"]
        assert note["level"] == "note"
        assert "may not see" in note["text"]
    ground.execute("ROLLBACK PREPARED 'left behind'")


@contextmanager
def seen_at_once() -> Iterator[None]:
    """Let transactions be worth a look that have just begun."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shigoto.engine.postgres.checkup.LONG_ENOUGH", 0.0)
        yield


def test_a_slot_that_nobody_reads_is_named(ground: Ground) -> None:
    ground.execute("SELECT pg_create_physical_replication_slot('old', true)")
    engine = PostgresEngine(ground.runtime_url)
    with closing(engine):
        server = engine.checkup().server

    assert server is not None
    assert server.holders == ()  # it holds the log, but no rows


def test_lost_and_broken_indexes_are_found(ground: Ground) -> None:
    made = "SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
    made += " WHERE c.relnamespace = 'shigoto'::regnamespace"
    assert {name for (name,) in ground.rows(made)} == INDEXES  # a migration that adds one must add it there

    ground.execute("DROP INDEX shigoto.ready_in_order")
    found = findings(ground, ground.runtime_url, 1)["indexes"]
    assert found["text"] == "Missing: ready_in_order."
    ground.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'shigoto.job_by_key'::regclass")
    found = findings(ground, ground.runtime_url, 1)["indexes"]
    assert "job_by_key" in found["text"]
    assert "REINDEX" in found["remedy"]


def test_unsafe_settings_are_found(ground: Ground) -> None:
    for name, check, level in [
        ("fsync", "durability", "problem"),
        ("full_page_writes", "durability", "problem"),
        ("synchronous_commit", "durability", "warning"),
        ("autovacuum", "autovacuum", "problem"),
    ]:
        ground.execute(f"ALTER SYSTEM SET {name} = off")
        ground.execute("SELECT pg_reload_conf()")
        code = 1 if level == "problem" else 0
        until_it_says(ground, name, "off")
        found = findings(ground, ground.runtime_url, code)[check]
        assert found["level"] == level
        assert f"{name} is off" in found["text"]
        ground.execute(f"ALTER SYSTEM RESET {name}")
        ground.execute("SELECT pg_reload_conf()")
        until_it_says(ground, name, "on")


def until_it_says(ground: Ground, name: str, value: str) -> None:
    from tests.journeys.yard import eventually

    eventually(lambda: list(ground.rows(f"SHOW {name}")) == [(value,)])


def test_who_is_connected_is_judged(ground: Ground) -> None:
    """S3-25, S3-52: too much is a warning, too little a problem."""
    assert "is a superuser" in findings(ground, ground.address)["role"]["text"]
    assert "owns the schema" in findings(ground, ground.migrator_url)["role"]["text"]

    ground.execute(f"REVOKE INSERT, DELETE ON shigoto.tally FROM {ground.runtime}")
    found = findings(ground, ground.runtime_url, 1)["role"]
    assert "tally: DELETE, INSERT" in found["text"]
    assert "shigoto sql bootstrap" in found["remedy"]


def test_too_few_connections_are_found(ground: Ground) -> None:
    ground.execute(f"ALTER ROLE {ground.runtime} CONNECTION LIMIT 20")
    yard = ground.yard()
    try:
        yard.start()
        yard.until_at_work(1)
        found = findings(ground, ground.runtime_url)["connections"]
    finally:
        yard.end()
    assert found["level"] == "warning"
    assert "there are 20 for this role" in found["text"]
    assert "pool=" in found["remedy"]


def test_work_that_nobody_takes_is_named_as_on_sqlite(ground: Ground) -> None:
    ground.shigoto("enqueue", "unheard_of", "{}", "--allow-unknown", url=ground.runtime_url)
    found = findings(ground, ground.runtime_url)["workers"]
    assert found["text"] == "No worker is alive, and 1 job could run."
    yard = ground.yard()
    try:
        yard.start()
        yard.until_at_work(1)
        found = findings(ground, ground.runtime_url)["tasks"]
    finally:
        yard.end()
    assert "nobody knows the task" in found["text"]


def test_something_in_between_is_noticed(ground: Ground) -> None:
    """A pooler makes up process ids and forgets who listens; here it is played by a program that does the first."""
    with in_between(ground) as port:
        url = ground.runtime_url.replace(f":{server_port(ground)}/", f":{port}/")
        found = findings(ground, url)
        assert "A pooler is in between" in found["pooler"]["text"]
        found = findings(ground, f"{url}?prepare=on", 1)
        assert "prepare=on" in found["pooler"]["remedy"]
    found = findings(ground, f"{ground.runtime_url}?listen=off")
    assert "listen=off" in found["doorbell"]["text"]
    nowhere = quote("postgresql://ada:secret@127.0.0.1:9/shop?connect_timeout=2", safe="")
    found = findings(ground, f"{ground.runtime_url}?listen={nowhere}")
    assert "Notifications do not arrive" in found["doorbell"]["text"]
    assert "secret" not in json.dumps(found)


def test_a_server_that_cannot_be_reached_is_a_problem(ground: Ground) -> None:
    ran = ground.shigoto("doctor", url="postgresql://ada:secret@127.0.0.1:9/shop?connect_timeout=2")

    assert ran.returncode == 1
    assert "cannot be reached" in ran.stdout
    assert "secret" not in ran.stdout


def server_port(ground: Ground) -> int:
    from urllib.parse import urlsplit

    port = urlsplit(ground.address).port
    assert port is not None
    return port


@contextmanager
def in_between(ground: Ground) -> Iterator[int]:
    """Passes everything on, but tells clients another process id."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, args=(listening, server_port(ground)), daemon=True).start()
        yield listening.getsockname()[1]


def accept(listening: socket.socket, port: int) -> None:
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        upstream = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=pass_on, args=(client, upstream, False), daemon=True).start()
        threading.Thread(target=pass_on, args=(upstream, client, True), daemon=True).start()


def pass_on(source: socket.socket, target: socket.socket, changing: bool) -> None:
    key = b"K\x00\x00\x00\x0c"  # what a server tells of its process: its id and a secret
    try:
        while some := source.recv(65_536):
            at = some.find(key) if changing else -1
            if at >= 0:
                some = some[: at + 5] + b"\x00\x00\x00\x01" + some[at + 9 :]
            target.sendall(some)
    except OSError:
        pass
    finally:
        target.close()
