"""What a request must keep to: size, time, kind; and how much a queue may hold."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec import structs

from shigoto import Shigoto
from shigoto.model.job import QueueSettings
from shigoto.server import listen, request_limits
from shigoto.server.request_limits import (
    ALL_TOGETHER,
    RequestLimits,
    allowed_for,
    gives_work,
    most_bytes,
    path_in,
)
from tests.service.ground import Served, key, served, shop

SUBMITS = key("submit", name="submits")
JOB = {"task": "greet", "payload": {"name": "Ada"}}


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = shop(tmp_path)
    yield app
    app.close()


@pytest.fixture
def server(app: Shigoto) -> Iterator[Served]:
    with served(app, housekeeping=False) as server:
        yield server


def spoken(server: Served, *words: bytes, timeout: float = 10) -> bytes:
    """What a server says to these bytes, until it hangs up."""
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=timeout) as line:
        for word in words:
            line.sendall(word)
        heard = b""
        while part := line.recv(65_536):
            heard += part
        return heard


def answered(server: Served, *words: bytes) -> bool:
    """Whether it says anything to these bytes before it hangs up."""
    try:
        return spoken(server, *words) != b""
    except ConnectionError:
        return False


class TestSize:
    @pytest.mark.parametrize(
        ("path", "most"),
        [
            ("/api/v1/jobs", 2_560 * 1024),
            ("/api/v1/jobs/batch", 32 * 1024 * 1024),
            ("/api/v1/engine/settle", 32 * 1024 * 1024),
            ("/api/v1/workers/w/settle", 32 * 1024 * 1024),
            ("/api/v1/workers/w/jobs/j/settle", 2_560 * 1024),
            ("/api/v1/workers/w/claim", 2_560 * 1024),
            ("/api/v1/workers/w/beat", 2_560 * 1024),
            ("/api/v1/workers", 64 * 1024),
            ("/api/v1/jobs/actions", 64 * 1024),
            ("/healthz", 64 * 1024),
        ],
    )
    def test_every_route_has_its_own(self, path: str, most: int) -> None:
        assert most_bytes(path) == most

    def test_a_body_that_says_how_long_it_is_is_not_even_read(self, server: Served) -> None:
        """S25."""
        answer = server.ask(
            "POST", "/jobs/actions", body=b" " * 65_537, headers={"Content-Type": "application/json"}
        )

        assert (answer.status, answer.code) == (413, "REQUEST.TOO_LARGE")
        assert answer.headers["connection"] == "close"

    def test_one_that_does_not_is_counted_while_it_comes(self, server: Served) -> None:
        """S25: the limit holds while streaming."""
        head = (
            b"POST /api/v1/jobs/actions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"

        heard = spoken(server, head, *[chunk] * 5)

        assert heard.startswith(b"HTTP/1.1 413 ")
        assert b"REQUEST.TOO_LARGE" in heard

    def test_a_body_of_just_the_size_is_read(self, server: Served) -> None:
        body = b'{"action":"cancel","filter":"all"}'.ljust(65_536)

        assert (
            server.ask(
                "POST", "/jobs/actions", body=body, headers={"Content-Type": "application/json"}
            ).status
            == 200
        )

    async def test_all_bodies_together_have_a_bound(self) -> None:
        """S25: and what was read is forgotten when the request ends."""
        service: Any = type("Service", (), {"is_stopping": False})
        heard: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            while (await receive())["more_body"]:
                pass
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async def receive() -> Any:
            return {"type": "http.request", "body": bytes(8 * 1024 * 1024), "more_body": False}

        async def send(message: Any) -> None:
            heard.append(message)

        held = RequestLimits(app, service)
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/v1/engine/settle",
            "headers": [],
            "query_string": b"",
        }
        held._held = ALL_TOGETHER - 9 * 1024 * 1024
        await held(dict(scope), receive, send)
        assert heard[0]["status"] == 200
        held._held += 4 * 1024 * 1024
        await held(dict(scope), receive, send)
        assert heard[2]["status"] == 503
        assert held._held == ALL_TOGETHER - 5 * 1024 * 1024

    def test_headers_without_end_are_not_kept(self, server: Served) -> None:
        flood = b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(80))

        assert not answered(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", *[flood] * 20)

    def test_one_header_without_end_is_not_kept(self, server: Served) -> None:
        assert not answered(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", *[b"y" * 65_536] * 20)


class TestKind:
    @pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip"])
    def test_compressed_bodies_are_not_read(self, server: Served, encoding: str) -> None:
        """S25: no bombs."""
        answer = server.ask("POST", "/jobs", JOB, headers={"Content-Encoding": encoding})

        assert (answer.status, answer.code) == (415, "REQUEST.TYPE")

    def test_nor_by_who_says_it_twice(self, server: Served) -> None:
        """S25."""
        said = [b"gzip", b"identity"]
        for first, second in (said, said[::-1]):
            heard = spoken(
                server,
                b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Connection: close\r\nContent-Length: 2\r\n"
                b"Content-Encoding: %s\r\nContent-Encoding: %s\r\n\r\n{}" % (first, second),
            )
            assert heard.startswith(b"HTTP/1.1 415 "), heard

    @pytest.mark.parametrize(
        "kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"]
    )
    def test_json_is(self, server: Served, kind: str) -> None:
        assert server.ask("POST", "/jobs", JOB, headers={"Content-Type": kind}).status == 201

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"\xff\xfe",
            b"nul\x00l",
            b'{"task":"greet","payload":{"name":"\\ud800"}}',
            b"[" * 100_000,
            b'{"task":"greet","payload":{"name":' + b'{"a":' * 50_000,
        ],
    )
    def test_what_is_no_json_is_told(self, server: Served, body: bytes) -> None:
        """S25."""
        answer = server.ask("POST", "/jobs", body=body, headers={"Content-Type": "application/json"})

        assert answer.status in (400, 422)
        assert answer.code in ("REQUEST.MALFORMED", "REQUEST.INVALID")

    @pytest.mark.parametrize(
        "payload",
        [b'{"name":"x","times":' + b"9" * 5_000 + b"}", b'{"name":"x","times":1e999}', b'{"name":NaN}'],
    )
    def test_numbers_that_are_none_are_told(self, server: Served, payload: bytes) -> None:
        """S25."""
        body = b'{"task":"greet","payload":' + payload + b"}"

        assert server.ask(
            "POST", "/jobs", body=body, headers={"Content-Type": "application/json"}
        ).status in (400, 422)

    def test_arguments_that_are_too_deep_are_told(self, server: Served) -> None:
        """S25: depth 64."""
        deep: Any = 1
        for _ in range(80):
            deep = [deep]
        answer = server.ask("POST", "/jobs", {"task": "x", "allow_unknown": True, "payload": {"a": deep}})

        assert (answer.status, answer.code) == (422, "JOB.PAYLOAD_INVALID")

    def test_a_web_socket_is_refused(self, server: Served) -> None:
        heard = spoken(
            server,
            b"GET /api/v1/stats HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        )

        assert not heard.startswith(b"HTTP/1.1 101")

    def test_every_answer_has_the_headers_that_keep_browsers_quiet(self, server: Served) -> None:
        for method, path in (("GET", "/jobs"), ("GET", "/nothing"), ("PUT", "/jobs"), ("GET", "/healthz")):
            headers = server.ask(method, path).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "no-store"
            assert "server" not in headers
            assert not [name for name in headers if name.startswith("access-control")]


class TestTime:
    @pytest.mark.parametrize(
        ("path", "query", "seconds"),
        [
            ("/api/v1/jobs", b"", 30),
            ("/api/v1/jobs/7", b"wait=20", 50),
            ("/api/v1/jobs/7", b"wait=1e9", 30),
            ("/api/v1/jobs/7", b"wait=nan", 30),
            ("/api/v1/jobs/7", b"wait=x", 30),
            ("/api/v1/jobs/7", b"&".join([b"wait=1"] * 500), 30),
            ("/api/v1/workers/w/claim", b"", 90),
            ("/api/v1/events", b"", 3600),
        ],
    )
    def test_every_request_has_its_own(self, path: str, query: bytes, seconds: float) -> None:
        assert allowed_for({"query_string": query}, path, 30.0) == seconds

    def test_a_body_that_does_not_come_is_not_waited_for(
        self, app: Shigoto, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(request_limits.RequestLimits.__init__, "__kwdefaults__", {"deadline": 0.3})
        with served(app, housekeeping=False) as server:
            heard = spoken(
                server,
                b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Connection: close\r\nContent-Length: 100\r\n\r\n{",
            )

        assert heard.startswith(b"HTTP/1.1 503 ")
        assert b"SERVER.DEADLINE" in heard
        assert b"retry-after: 1" in heard.lower()

    @pytest.mark.parametrize("said", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: loc"])
    def test_headers_that_do_not_come_are_not_waited_for(
        self, app: Shigoto, monkeypatch: pytest.MonkeyPatch, said: bytes
    ) -> None:
        monkeypatch.setattr(listen, "HEAD_WITHIN", 0.3)
        with served(app, housekeeping=False) as server:
            began = time.monotonic()
            assert spoken(server, said) == b""
            assert time.monotonic() - began < 5

    def test_a_body_that_was_refused_is_not_read_for_ever(
        self, app: Shigoto, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listen, "REST_WITHIN", 0.3)
        with served(app, tokens=[SUBMITS], housekeeping=False) as server:
            began = time.monotonic()
            heard = spoken(
                server,
                b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 1000\r\n\r\n{",
            )
            assert time.monotonic() - began < 5

        assert heard.startswith(b"HTTP/1.1 401 ")

    def test_a_client_that_goes_away_leaves_no_trace(
        self, server: Served, caplog: pytest.LogCaptureFixture
    ) -> None:
        parts = urlsplit(server.url)
        with socket.create_connection((parts.hostname, parts.port)) as line:
            line.sendall(
                b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 1000\r\n\r\n{"
            )
            time.sleep(0.2)
        time.sleep(0.2)

        assert server.ask("GET", "/healthz").status == 200
        assert caplog.text == ""

    def test_a_connection_serves_many_requests(self, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        last = one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")

        assert spoken(server, one, one, last).count(b"HTTP/1.1 200 OK") == 3


class TestPaths:
    def test_where_it_is_mounted_does_not_matter(self) -> None:
        assert path_in({"path": "/shop/api/v1/jobs", "root_path": "/shop"}) == "/api/v1/jobs"
        assert path_in({"path": "/api/v1/jobs", "root_path": ""}) == "/api/v1/jobs"

    @pytest.mark.parametrize(
        ("method", "path", "gives"),
        [
            ("POST", "/api/v1/workers", True),
            ("GET", "/api/v1/workers", False),
            ("POST", "/api/v1/workers/w/claim", True),
            ("POST", "/api/v1/engine/claim", True),
            ("GET", "/api/v1/events", True),
            ("GET", "/api/v1/doorbell", True),
            ("POST", "/api/v1/workers/w/settle", False),
            ("POST", "/api/v1/engine/settle", False),
            ("POST", "/api/v1/jobs", False),
            ("GET", "/healthz", False),
        ],
    )
    def test_what_is_not_begun_any_more(self, method: str, path: str, gives: bool) -> None:
        assert gives_work(method, path) is gives


class TestFullQueue:
    def test_a_full_queue_is_429(self, server: Served, app: Shigoto) -> None:
        """S4-13, S34: queue full, and when to try again."""
        settings = QueueSettings(name="default", max_pending=2)
        app.engine.run(app.engine.configure(settings))

        answers = [server.ask("POST", "/jobs", JOB) for _ in range(3)]

        assert [answer.status for answer in answers] == [201, 201, 429]
        assert answers[-1].code == "JOB.QUEUE_FULL"
        assert answers[-1].headers["retry-after"] == "5"
        assert server.ask("POST", "/jobs", JOB | {"queue": "other"}).status == 201
        assert server.ask("POST", "/jobs/batch", {"jobs": [JOB | {"queue": "other"}, JOB]}).status == 429
        assert app.count(queue="other") == 1

    def test_what_is_stored_already_needs_no_room(self, server: Served, app: Shigoto) -> None:
        settings = QueueSettings(name="default", max_pending=1)
        app.engine.run(app.engine.configure(settings))
        headers = {"Idempotency-Key": "one"}

        assert [server.ask("POST", "/jobs", JOB, headers=headers).status for _ in range(2)] == [201, 200]

    def test_a_limit_that_is_set_here_holds_at_once(self, server: Served) -> None:
        """By the route, and by the door of our own command line."""
        for number in range(3):
            assert server.ask("POST", "/jobs", JOB).status == 201
            server.ask("PATCH", "/queues/default", {"max_pending": 1 + number})
            assert server.ask("POST", "/jobs", JOB).status == 429
            remote = Shigoto(server.url)
            remote.engine.run(remote.engine.configure(QueueSettings(name="default")))
            remote.close()

    def test_a_change_of_the_limit_is_heard_within_a_second(self, server: Served, app: Shigoto) -> None:
        settings = QueueSettings(name="default", max_pending=1)
        assert server.ask("POST", "/jobs", JOB).status == 201
        app.engine.run(app.engine.configure(settings))

        began = time.monotonic()
        while server.ask("POST", "/jobs", JOB).status == 201:
            assert time.monotonic() - began < 3
        app.engine.run(app.engine.configure(structs.replace(settings, max_pending=None)))
        assert server.ask("POST", "/jobs", JOB).status == 201


async def test_a_look_that_takes_too_long_is_given_up(app: Shigoto, monkeypatch: pytest.MonkeyPatch) -> None:
    """S08: a filter without an index must not keep the service busy."""
    from shigoto import ServerDeadline
    from shigoto.server import routing

    class Slow:
        async def arun(self, op: Any) -> Any:
            assert op.deadline == 0.05
            await asyncio.sleep(60)

    monkeypatch.setattr(routing, "LOOK_WITHIN", 0.05)
    slow: Any = Slow()
    with pytest.raises(ServerDeadline):
        await routing.looked(slow, app.engine.workers())
