"""Whether the service lives, and whether it can work."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devtools.postgres.server import Server
from shigoto import Shigoto, StoreError
from shigoto.server import health
from tests.postgres import ALWAYS, Yard, make_store
from tests.service.ground import Served, key, served, shop


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = shop(tmp_path)
    yield app
    app.close()


@pytest.fixture
def postgres_of_its_own(postgres_yard: Yard) -> Iterator[Server]:
    try:
        server = postgres_yard.server_of_its_own(ALWAYS)
        running = server.__enter__()
    except StoreError as error:
        pytest.skip(f"no PostgreSQL {ALWAYS}: {error}")
    yield running
    server.__exit__(None, None, None)


def until(holds: Callable[[], bool], seconds: float) -> float:
    """Wait for it, and tell how many seconds that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds
        time.sleep(0.1)
    return time.monotonic() - began


def is_ready(server: Served) -> bool:
    return server.ask("GET", "/readyz").status == 200


def test_it_lives_and_is_ready(app: Shigoto) -> None:
    """S3-18: and ready within ten seconds."""
    with served(app) as server:
        assert server.ask("GET", "/healthz").json == {"status": "ok"}
        until(lambda: is_ready(server), 10)
        assert server.ask("GET", "/readyz").json == {"ready": True, "reasons": []}
        assert server.ask("HEAD", "/readyz").status == 200


def test_both_are_open_and_bare(app: Shigoto) -> None:
    """S35, S3-16: no token, no numbers, no names; and neither forwarded nor foreign requests are turned away."""
    with served(app, tokens=[key("read")]) as server:
        headers = {"Host": "shop.example", "X-Forwarded-For": "10.0.0.1", "Authorization": "Bearer wrong"}
        assert server.ask("GET", "/healthz", headers=headers).status == 200
        until(lambda: server.ask("GET", "/readyz", headers=headers).status == 200, 10)


def test_without_housekeeping_it_is_ready_too(app: Shigoto) -> None:
    with served(app, housekeeping=False) as server:
        assert is_ready(server)


def test_with_postgresql_down_it_lives_and_is_not_ready(postgres_of_its_own: Server) -> None:
    """GWT-3, S3-11, S3-14, S3-55: healthz 200 and readyz 503; ready again when it is back."""
    postgres = postgres_of_its_own
    make_store(postgres.address)
    app = Shigoto(postgres.address)
    try:
        with served(app) as server:
            until(lambda: is_ready(server), 10)

            postgres.stop()

            until(lambda: not is_ready(server), 15)
            assert server.ask("GET", "/healthz").status == 200
            answer = server.ask("GET", "/readyz")
            assert answer.status == 503
            assert answer.json["ready"] is False
            assert "The store does not answer." in answer.json["reasons"]
            assert server.ask("GET", "/jobs").status == 503
            told = answer.raw.decode() + server.ask("GET", "/jobs").raw.decode()
            for part in ("postgresql", "127.0.0.1", "/tmp", "socket", "psycopg"):
                assert part not in told

            postgres.start()
            until(lambda: is_ready(server), 30)
    finally:
        app.close()


def test_a_store_that_is_silent_makes_it_red_within_ten_seconds(postgres_of_its_own: Server) -> None:
    """E18: a server that is frozen answers nothing at all."""
    make_store(postgres_of_its_own.address)
    app = Shigoto(postgres_of_its_own.address)
    try:
        with served(app) as server:
            until(lambda: is_ready(server), 10)
            postgres_of_its_own.freeze()
            try:
                until(lambda: not is_ready(server), 10.5)
                assert server.ask("GET", "/healthz").status == 200
            finally:
                postgres_of_its_own.thaw()
            until(lambda: is_ready(server), 30)
    finally:
        app.close()


def test_it_begins_while_the_store_is_away(postgres_of_its_own: Server) -> None:
    """S3-14."""
    make_store(postgres_of_its_own.address)
    postgres_of_its_own.stop()
    app = Shigoto(postgres_of_its_own.address)
    try:
        with served(app) as server:
            assert server.ask("GET", "/healthz").status == 200
            assert server.ask("GET", "/readyz").status == 503

            postgres_of_its_own.start()
            until(lambda: is_ready(server), 30)
    finally:
        app.close()


@pytest.mark.engine("postgres")
def test_without_a_schema_it_is_not_ready(postgres_database: str) -> None:
    """S3-11: readiness checks that the schema is there."""
    app = Shigoto(postgres_database)
    try:
        with served(app) as server:
            answer = server.ask("GET", "/readyz")
            assert (answer.status, server.ask("GET", "/healthz").status) == (503, 200)
            assert "The store has no schema yet." in answer.json["reasons"]
            refused = server.ask("GET", "/jobs")
            assert (refused.status, refused.code) == (503, "WORKER.SCHEMA_MISSING")

            app.engine.migrate()
            until(lambda: is_ready(server), 20)
    finally:
        app.close()


def test_a_housekeeping_that_stands_still_makes_it_red(app: Shigoto, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(app) as server:
        until(lambda: is_ready(server), 10)
        monkeypatch.setattr(health, "CYCLE_WITHIN", -1.0)

        answer = server.ask("GET", "/readyz")

    assert (answer.status, answer.json["reasons"]) == (503, ["The housekeeping does not get on."])


def test_a_store_that_somebody_keeps_locked_makes_it_red(app: Shigoto, tmp_path: Path) -> None:
    """E18: reads go on, but nothing can be written. A lock for a moment is normal."""
    with served(app) as server:
        until(lambda: is_ready(server), 10)
        other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)
        try:
            other.execute("BEGIN IMMEDIATE")
            locked_at = time.monotonic()
            while time.monotonic() < locked_at + 5:
                assert is_ready(server)
                time.sleep(0.2)

            until(lambda: not is_ready(server), 15 - (time.monotonic() - locked_at))

            [reason] = server.ask("GET", "/readyz").json["reasons"]
            assert reason.startswith("Nothing can be written")
            assert server.ask("GET", "/healthz").status == 200
            other.execute("ROLLBACK")
            until(lambda: is_ready(server), 10)
        finally:
            other.close()


def test_it_does_what_workers_would(app: Shigoto) -> None:
    """A15: a server whose workers all come by HTTP fires schedules and makes due jobs ready by itself."""

    @app.every("1s", name="tick")
    async def tick() -> None: ...

    app.tasks["greet"].using(delay=0.5).enqueue("Ada")
    with served(app):
        until(lambda: app.count(task="tick") >= 2, 20)
        until(lambda: app.count(state="scheduled", task="greet") == 0, 10)
