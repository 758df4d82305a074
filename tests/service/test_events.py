"""Server-sent events: what happens to jobs, told as it happens, and told again to who comes back."""

import asyncio
import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec import Struct

from shigoto import Shigoto
from shigoto.server import events as module
from shigoto.worker import Worker
from tests.postgres import make_store
from tests.service.ground import Key, Served, key, served, whole

READ, SUBMIT, ADMIN = (key(scope) for scope in ("read", "submit", "admin"))
MAIL = key("read", name="mail", queues=("mail",))
ACME = key("read", name="acme", tenant="acme")


class Told(Struct, frozen=True):
    """One event, as a browser understands it."""

    id: str
    event: str
    data: Any


class Stream:
    """What a client hears, by the rules of the standard."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response
        self.last_id = ""
        self.retry: str | None = None

    def next(self) -> Told | None:
        """The next event; None at the end of the stream."""
        event, data = "message", ""
        while line := self.response.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            match name:
                case "id":
                    self.last_id = value
                case "event":
                    event = value
                case "data":
                    data = value
                case "retry":
                    self.retry = value
                case "" if not value and line == b"\n":
                    if data:
                        return Told(self.last_id, event, json.loads(data))
                    event = "message"
                case _:
                    assert line.startswith(b":"), line
        return None

    def some(self, count: int) -> list[Told]:
        found = [self.next() for _ in range(count)]
        return [each for each in found if each is not None]


@contextmanager
def stream(
    server: Served, path: str = "/events", *, token: Key | None = READ, headers: Mapping[str, str] = {}
) -> Iterator[Stream]:
    parts = urlsplit(server.url)
    line = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    said = dict(headers) | ({} if token is None else {"Authorization": f"Bearer {token.text}"})
    line.request("GET", whole(path), headers=said)
    response = line.getresponse()
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    try:
        yield Stream(response)
    finally:
        response.close()
        line.close()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = shop(Shigoto(tmp_path / "jobs.db"))
    yield app
    app.close()


def shop(app: Shigoto) -> Shigoto:
    @app.task(queue="mail", retries=1)
    async def send(to: str) -> str:
        if to == "nobody":
            raise ValueError("nobody is there")
        return to

    @app.task
    async def count() -> None: ...

    return app


@pytest.fixture
def server(app: Shigoto) -> Iterator[Served]:
    with served(app, tokens=(READ, SUBMIT, ADMIN, MAIL, ACME), housekeeping=False) as server:
        yield server


def drain(app: Shigoto) -> None:
    asyncio.run(Worker(app, drain=True, beats="loop", ticks=False, any_role=True).run())


def test_an_end_is_told_as_it_happens(server: Served, app: Shigoto) -> None:
    """S1-21, S1-22, S1-24: pushed, without asking again."""
    with stream(server) as heard:
        assert heard.some(1)[0].event == "hello"
        handle = app.tasks["send"].enqueue("ada")
        drain(app)
        [told] = heard.some(1)

    assert told.event == "ended"
    assert told.data["id"] == str(handle.id)
    assert told.data["at"].endswith("Z")
    assert {name: told.data[name] for name in ("number", "task", "queue", "tenant", "outcome", "final")} == {
        "number": 1,
        "task": "send",
        "queue": "mail",
        "tenant": "",
        "outcome": "completed",
        "final": True,
    }


def test_a_run_that_failed_and_is_tried_again(server: Served, app: Shigoto) -> None:
    with stream(server) as heard:
        heard.some(1)
        handle = app.tasks["send"].enqueue("nobody")
        drain(app)
        [told] = heard.some(1)
        app.job(handle.id).cancel()
        [ended] = heard.some(1)

    assert (told.event, told.data["outcome"], told.data["final"]) == ("attempt", "errored", False)
    assert (ended.event, ended.data["outcome"], ended.data["final"]) == ("ended", "cancelled", True)


def test_who_comes_back_is_told_what_it_has_missed(server: Served, app: Shigoto) -> None:
    """S1-24: Last-Event-ID. At least once: what was told in the two seconds before may come again."""
    with stream(server) as heard:
        [hello] = heard.some(1)
        assert heard.retry == "2000"
        app.tasks["send"].enqueue("ada")
        drain(app)
        [first] = heard.some(1)
    app.tasks["send"].enqueue("bob")
    drain(app)

    for told in (first, hello):
        with stream(server, headers={"Last-Event-ID": told.id}) as heard:
            again = heard.some(3)
        assert again[0].event == "hello"
        assert again[0].id == told.id, "who is cut off now comes back to the same place"
        assert [each.data["number"] for each in again[1:]] == [1, 2]
        with stream(server, f"/events?after={told.id}") as heard:
            assert heard.some(3) == again


@pytest.mark.engine("postgres")
def test_on_postgresql_too(postgres_database: str) -> None:
    """S1-24: told as it happens, and told again to who comes back; an operator's deeds are noted."""
    make_store(postgres_database)
    app = shop(Shigoto(postgres_database))
    try:
        with served(app, tokens=(READ, ADMIN)) as server:
            with stream(server) as heard:
                [hello] = heard.some(1)
                app.tasks["send"].enqueue("ada")
                app.tasks["send"].enqueue("nobody")
                drain(app)
                told = {each.data["number"]: each.event for each in heard.some(2)}
            with stream(server, headers={"Last-Event-ID": hello.id}) as heard:
                again = {each.data["number"]: each.event for each in heard.some(3)[1:]}
            server.ask("PATCH", "/queues/mail", {"max_pending": 7}, token=ADMIN)
            queue = server.ask("GET", "/queues/mail", token=READ).json
            every = {"name": "often", "task": "count", "every": 3600, "paused": True}
            assert server.ask("POST", "/schedules", every, token=ADMIN).json["status"] == "paused"
            noted = server.ask("GET", "/audit", token=ADMIN).json["entries"]
    finally:
        app.close()

    assert told == again == {1: "ended", 2: "attempt"}
    assert (queue["max_pending"], queue["counts"]["completed"]) == (7, 1)
    assert [each["action"] for each in noted] == ["schedule.pause", "schedule.add", "queue.configure"]


def test_what_is_too_old_begins_with_a_reset(server: Served, app: Shigoto) -> None:
    app.tasks["send"].enqueue("ada")
    drain(app)
    with stream(server, headers={"Last-Event-ID": "1000-1-1"}) as heard:
        hello, reset, ended = heard.some(3)

    assert (hello.event, reset.event, ended.event) == ("hello", "reset", "ended")
    assert hello.id == reset.id == reset.data["place"]


def test_only_what_somebody_wants(server: Served, app: Shigoto) -> None:
    with stream(server, "/events?queue=mail") as mail, stream(server, "/events?task=count") as count:
        mail.some(1)
        count.some(1)
        for task in ("count", "send", "count", "send"):
            app.tasks[task].enqueue(*(["ada"] if task == "send" else []))
        drain(app)
        assert {each.data["task"] for each in mail.some(2)} == {"send"}
        assert {each.data["task"] for each in count.some(2)} == {"count"}


def test_only_what_somebody_may(server: Served, app: Shigoto) -> None:
    """A token for a queue or a tenant hears of nothing else."""
    send, count = app.tasks["send"], app.tasks["count"]
    with stream(server, token=MAIL) as mail, stream(server, token=ACME) as acme:
        mail.some(1)
        acme.some(1)
        count.enqueue()
        send.using(tenant="other").enqueue("ada")
        count.using(tenant="acme").enqueue()
        send.using(tenant="acme").enqueue("bob")
        drain(app)
        assert sorted(each.data["number"] for each in mail.some(2)) == [2, 4]
        assert sorted(each.data["number"] for each in acme.some(2)) == [3, 4]


def test_what_others_do_moves_nothing_before_it_must(server: Served, app: Shigoto) -> None:
    """S20: the place of an event tells when it happened, and how many jobs there are."""
    send = app.tasks["send"]
    with stream(server) as all_of_it, stream(server, token=ACME) as acme:
        all_of_it.some(1)
        acme.some(1)
        for _ in range(3):
            send.using(tenant="other").enqueue("ada")
            drain(app)
            all_of_it.some(1)
        send.using(tenant="acme").enqueue("bob")
        drain(app)
        lines = list(iter(acme.response.readline, b"\n"))

    assert [line.partition(b":")[0] for line in lines] == [b"id", b"event", b"data"]
    assert json.loads(lines[2][6:])["number"] == 4


def test_a_quiet_stream_says_that_it_lives_and_moves_the_place(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET", 0.05)
    with stream(server) as heard:
        [hello] = heard.some(1)
        while heard.last_id == hello.id:
            line = heard.response.readline()
            assert line.startswith((b":", b"id: ", b"\n")), line
            if line.startswith(b"id: "):
                heard.last_id = line.decode()[4:-1]


def test_a_token_that_is_revoked_hears_no_more(
    server: Served, app: Shigoto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET", 0.05)
    with stream(server) as heard:
        heard.some(1)
        app.engine.run(app.engine.registry.revoke_token(READ.token.id))
        assert heard.next() is None


def test_a_stop_ends_it_at_once(server: Served) -> None:
    with stream(server) as heard:
        heard.some(1)
        server.service.stopping()
        assert heard.next() is None


def test_an_hour_is_the_longest(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET", 0.01)
    monkeypatch.setattr(module, "LONGEST", 0.05)
    with stream(server) as heard:
        heard.some(1)
        assert heard.next() is None


def test_whoever_goes_away_is_forgotten(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET", 0.05)
    with stream(server) as heard:
        heard.some(1)
        eventually(lambda: server.service.feed.listeners == 1)
    eventually(lambda: server.service.feed.listeners == 0)


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("place", ["x", "1-2", "1-2-3-4", "-1-2-3", "1-2-" + "9" * 19])
def test_the_id_of_no_event(server: Served, place: str) -> None:
    told = server.ask("GET", f"/events?after={place}", token=READ)
    assert (told.status, told.code, told.json["field"]) == (422, "REQUEST.INVALID", "after")

    told = server.ask("GET", "/events", token=READ, headers={"Last-Event-ID": place})
    assert (told.status, told.json["field"]) == (422, "Last-Event-ID")


def test_who_may(server: Served) -> None:
    assert server.ask("GET", "/events", token=SUBMIT).status == 403
    assert server.ask("GET", "/events").status == 401
