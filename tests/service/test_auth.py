"""Who gets in: tokens, and what lets somebody in without one."""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from shigoto import OptionInvalid, Shigoto, StoreRefused
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.protocol import Relay
from shigoto.model.service import Scope
from shigoto.server import auth
from shigoto.server.auth import Failures, is_loopback
from shigoto.server.listen import Serving, listening
from shigoto.testing.store import VirtualClock
from tests.service.ground import Answer, Key, Served, keep, key, running, served, shop

READS = key("read", name="reads")
NEVER = key("read", name="never")  # not stored
EXPIRED = key("read", name="expired", expires_at=1)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = shop(tmp_path)
    yield app
    app.close()


@pytest.fixture
def server(app: Shigoto) -> Iterator[Served]:
    with served(app, tokens=(READS, EXPIRED), housekeeping=False) as server:
        yield server


def wrong(known: Key) -> str:
    """A token that has the id of a known one, and another secret."""
    return known.text[:-1] + ("A" if known.text[-1] != "A" else "B")


def seen(answer: Answer) -> Any:
    """All that a stranger sees of an answer, but the time of day."""
    return answer.status, {**answer.headers, "date": ""}, answer.raw


class TestToken:
    def test_a_token_opens(self, server: Served) -> None:
        assert server.ask("GET", "/jobs", token=READS).status == 200

    def test_none_does_not(self, server: Served) -> None:
        answer = server.ask("GET", "/jobs")

        assert (answer.status, answer.code) == (401, "AUTH.MISSING")
        assert answer.headers["www-authenticate"] == "Bearer"

    def test_whatever_is_wrong_with_it_is_told_in_one_shape(self, server: Served, app: Shigoto) -> None:
        """E55, S19: wrong, unknown, expired, revoked, or no token at all."""
        revoked = key("read", name="revoked")
        keep(app, [revoked])
        app.engine.run(app.engine.registry.revoke_token(revoked.token.id))

        answers = [
            server.ask("GET", "/jobs", token=text)
            for text in (wrong(READS), NEVER.text, EXPIRED.text, revoked.text, "shg_x_y", "x" * 5_000, "")
        ]

        assert {answer.code for answer in answers} == {"AUTH.INVALID"}
        assert all(seen(answer) == seen(answers[0]) for answer in answers)

    @pytest.mark.parametrize("said", ["Basic {}", "{}", "Bearer  ", "bearer\t{}"])
    def test_only_a_bearer_is_heard(self, server: Served, said: str) -> None:
        answer = server.ask("GET", "/jobs", headers={"Authorization": said.format(READS.text)})

        assert answer.status == 401

    def test_a_token_in_the_address_or_a_cookie_is_none(self, server: Served) -> None:
        """S05: nothing that a browser sends by itself."""
        for path, headers in (
            (f"/jobs?token={READS.text}&access_token={READS.text}", {}),
            ("/jobs", {"Cookie": f"token={READS.text}; Authorization=Bearer {READS.text}"}),
        ):
            assert server.ask("GET", path, headers=headers).code == "AUTH.MISSING"

    def test_one_that_was_revoked_opens_nothing_after_two_seconds(self, server: Served, app: Shigoto) -> None:
        assert server.ask("GET", "/jobs", token=READS).status == 200
        app.engine.run(app.engine.registry.revoke_token(READS.token.id))
        revoked_at = time.monotonic()

        while server.ask("GET", "/jobs", token=READS).status == 200:
            assert time.monotonic() - revoked_at < 2.5
            time.sleep(0.05)

    def test_it_expires_by_the_time_of_the_store(self) -> None:
        """Who made it may have been on another machine than the server, and the clocks of both may be wrong."""
        clock = VirtualClock()  # far from the time of this process
        app = Shigoto(engine=Relay(MemoryEngine(clock=clock)))
        token = key("read", name="short", expires_at=clock.now + 60_000)
        with served(app, tokens=(token,), housekeeping=False) as server:
            assert server.ask("GET", "/jobs", token=token).status == 200
            clock.advance(61_000)
            expired_at = time.monotonic()
            while server.ask("GET", "/jobs", token=token).status == 200:
                assert time.monotonic() - expired_at < 2.5
                time.sleep(0.05)

    def test_one_that_was_just_made_opens_at_once(self, server: Served, app: Shigoto) -> None:
        assert server.ask("GET", "/jobs", token=READS).status == 200
        time.sleep(auth.UNKNOWN_AFTER)
        made = key("read", name="new")
        keep(app, [made])

        assert server.ask("GET", "/jobs", token=made).status == 200

    @pytest.mark.parametrize(
        ("scope", "method", "path", "body"),
        [
            ("submit", "GET", "/jobs", None),
            ("submit", "POST", "/jobs/0190a0b0-0000-7000-8000-000000000000/cancel", {}),
            ("submit", "POST", "/jobs/actions", {"action": "cancel", "filter": "all"}),
            ("read", "POST", "/jobs", {"task": "greet", "payload": {"name": "Ada"}}),
            ("read", "POST", "/jobs/batch", {"jobs": []}),
            ("read", "POST", "/jobs/0190a0b0-0000-7000-8000-000000000000/retry", {}),
            ("work", "GET", "/jobs", None),
            ("work", "GET", "/jobs/count", None),
            ("work", "POST", "/jobs", {"task": "greet", "payload": {"name": "Ada"}}),
            ("admin", "POST", "/jobs", {"task": "greet", "payload": {"name": "Ada"}}),
        ],
    )
    def test_a_scope_is_what_it_says_and_no_more(
        self, server: Served, app: Shigoto, scope: Scope, method: str, path: str, body: Any
    ) -> None:
        """E55: of another scope."""
        other = key(scope, name="other")
        keep(app, [other])

        answer = server.ask(method, path, body, token=other)

        assert (answer.status, answer.code) == (403, "AUTH.FORBIDDEN")

    def test_admin_reads(self, server: Served, app: Shigoto) -> None:
        admin = key("admin", name="admin")
        keep(app, [admin])

        assert server.ask("GET", "/jobs", token=admin).status == 200

    def test_a_stranger_is_refused_before_the_body_is_looked_at(self, server: Served) -> None:
        answer = server.ask(
            "POST", "/jobs", body=b"{no json", headers={"Content-Type": "text/plain"}, token=NEVER
        )

        assert answer.code == "AUTH.INVALID"

    def test_the_audit_names_the_token(self, server: Served, app: Shigoto) -> None:
        """S0-66."""
        admin = key("admin", name="night shift")
        keep(app, [admin])
        handle = app.tasks["greet"].enqueue("Ada")

        server.ask("POST", f"/jobs/{handle.id}/cancel", token=admin)

        [entry] = app.engine.run(app.engine.registry.noted())
        assert entry.actor == f"token:{admin.token.id} (night shift)"

    def test_the_log_has_the_failure_and_never_the_token(
        self, server: Served, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        server.ask("GET", "/jobs", token=wrong(READS))
        server.ask("GET", "/jobs", token=READS)

        assert "A token was refused that came from 127.0.0.1" in caplog.text
        assert READS.text[20:] not in caplog.text
        assert wrong(READS)[20:] not in caplog.text


class TestFailures:
    def test_after_ten_an_address_has_to_wait_but_a_valid_token_always_opens(self, server: Served) -> None:
        answers = [server.ask("GET", "/jobs", token=wrong(READS)) for _ in range(12)]

        assert [answer.status for answer in answers] == [401] * 10 + [429] * 2
        assert answers[-1].code == "AUTH.LIMITED"
        assert answers[-1].headers["retry-after"] == "60"
        assert server.ask("GET", "/jobs", token=READS).status == 200
        assert server.ask("GET", "/jobs").status == 401

    def test_they_are_forgotten_after_a_minute(self) -> None:
        now = 0.0
        failures = Failures(lambda: now)

        assert [failures.add("a") for _ in range(11)] == [False] * 10 + [True]
        assert not failures.add("b")
        now = 59.0
        assert failures.add("a")
        now = 119.5
        assert not failures.add("a")

    def test_of_however_many_addresses_few_are_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(auth, "MOST_ADDRESSES", 3)
        failures = Failures(lambda: 0.0)
        for _ in range(11):
            failures.add("a")

        for other in "bcd":
            failures.add(other)

        assert not failures.add("a")


class TestAnonymous:
    @pytest.fixture
    def alone(self, app: Shigoto) -> Iterator[Served]:
        """A server on loopback of a store without tokens."""
        with served(app, housekeeping=False) as server:
            yield server

    def test_on_this_machine_nobody_needs_a_token(self, alone: Served) -> None:
        assert alone.ask("GET", "/jobs").status == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {"Host": "evil.example"},
            {"Host": "evil.example:8710"},
            {"Host": "localhost.evil.example"},
            {"Host": "10.0.0.1:8710"},
            {"Host": "evil.example:80@127.0.0.1"},
            {"X-Forwarded-For": "127.0.0.1"},
            {"X-Forwarded-Host": "localhost"},
            {"Forwarded": "for=127.0.0.1"},
            {"Via": "1.1 proxy"},
            {"X-Real-IP": "127.0.0.1"},
            {"X-Client-IP": "127.0.0.1"},
            {"X-Cluster-Client-IP": "127.0.0.1"},
            {"X-Original-Forwarded-For": "127.0.0.1"},
            {"True-Client-IP": "127.0.0.1"},
            {"CF-Connecting-IP": "127.0.0.1"},
            {"Fly-Client-IP": "127.0.0.1"},
            {"X-Envoy-External-Address": "127.0.0.1"},
            {"X-ProxyUser-Ip": "127.0.0.1"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ],
    )
    def test_but_whoever_comes_by_a_detour_does(self, alone: Served, headers: dict[str, str]) -> None:
        """S04, S05: a reverse proxy, DNS rebinding, a web page of somebody else's."""
        assert alone.ask("GET", "/jobs", headers=headers).code == "AUTH.MISSING"
        forged = alone.ask("POST", "/jobs", {"task": "greet", "payload": {"name": "x"}}, headers=headers)
        assert forged.status == 401

    def test_a_proxy_that_says_nothing_of_itself_is_known_by_its_old_language(self, alone: Served) -> None:
        """S04: `proxy_pass` of nginx, as it comes: HTTP/1.0, and the address of the server as Host."""
        parts = urlsplit(alone.url)
        with socket.create_connection((parts.hostname, parts.port), 10) as wire:
            wire.sendall(f"GET /api/v1/jobs HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
            answer = b"".join(iter(lambda: wire.recv(4_096), b""))

        assert answer.split(b" ")[1] == b"401"
        assert b"AUTH.MISSING" in answer

    @pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8710", "127.0.0.1", "[::1]:8710", "127.1.2.3"])
    def test_this_machine_has_several_names(self, alone: Served, host: str) -> None:
        assert alone.ask("GET", "/jobs", headers={"Host": host}).status == 200

    def test_the_first_token_locks_the_door(self, alone: Served, app: Shigoto) -> None:
        assert alone.ask("GET", "/jobs").status == 200
        keep(app, [READS])
        locked_at = time.monotonic()

        while alone.ask("GET", "/jobs").status == 200:
            assert time.monotonic() - locked_at < 2.5
            time.sleep(0.05)
        app.engine.run(app.engine.registry.revoke_token(READS.token.id))
        time.sleep(auth.REMEMBERED_FOR)
        assert alone.ask("GET", "/jobs").status == 401

    def test_a_wrong_token_is_no_way_in(self, alone: Served) -> None:
        assert alone.ask("GET", "/jobs", token=NEVER).code == "AUTH.INVALID"

    def test_no_answer_invites_other_origins(self, alone: Served) -> None:
        """S06: no CORS."""
        origin = alone.url
        plain = alone.ask("GET", "/jobs", headers={"Origin": origin})
        preflight = alone.ask(
            "OPTIONS", "/jobs", headers={"Origin": origin, "Access-Control-Request-Method": "POST"}
        )

        assert not [
            name for name in (*plain.headers, *preflight.headers) if name.startswith("access-control")
        ]
        assert preflight.status == 405

    def test_a_form_of_a_web_page_is_not_read(self, alone: Served) -> None:
        """S05: what browsers send without asking first is of another type."""
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            answer = alone.ask("POST", "/jobs", body=b'{"task":"greet"}', headers={"Content-Type": kind})
            assert (answer.status, answer.code) == (415, "REQUEST.TYPE")


class TestBind:
    def test_beyond_this_machine_it_does_not_begin_without_a_token(self, app: Shigoto) -> None:
        """S04."""
        with pytest.raises(StoreRefused, match="shigoto token create"):
            asyncio.run(Serving(app, host="0.0.0.0", port=0).run())

    @pytest.mark.parametrize("gone", [{"expires_at": 1}, {"revoked_at": 1}])
    def test_nor_with_one_that_opens_nothing(self, app: Shigoto, gone: dict[str, int]) -> None:
        dead = key("admin", name="dead", **gone)
        keep(app, [dead])
        if "revoked_at" in gone:
            app.engine.run(app.engine.registry.revoke_token(dead.token.id))

        with pytest.raises(StoreRefused, match="shigoto token create"):
            asyncio.run(Serving(app, host="0.0.0.0", port=0).run())

    def test_whether_it_opens_anything_is_asked_in_the_time_of_the_store(self) -> None:
        clock = VirtualClock()
        app = Shigoto(engine=Relay(MemoryEngine(clock=clock)))
        keep(app, [key("read", name="short", expires_at=clock.now + 60_000)])
        with running(Serving(app, host="0.0.0.0", port=0, housekeeping=False)):
            pass
        clock.advance(61_000)

        with pytest.raises(StoreRefused, match="shigoto token create"):
            asyncio.run(Serving(app, host="0.0.0.0", port=0).run())

    def test_with_one_it_does_and_then_everybody_needs_it(self, app: Shigoto) -> None:
        keep(app, [READS])
        serving = Serving(app, host="0.0.0.0", port=0, housekeeping=False)
        with running(serving):
            here = Served(serving.address.replace("0.0.0.0", "127.0.0.1"), serving.service)

            assert here.ask("GET", "/jobs").code == "AUTH.MISSING"
            assert here.ask("GET", "/jobs", token=READS).status == 200
            assert here.ask("GET", "/healthz").status == 200

    def test_a_port_that_is_taken_is_told(self, app: Shigoto) -> None:
        taken = listening("127.0.0.1", 0)
        taken.listen()
        with taken, pytest.raises(OptionInvalid, match="Nobody can listen"):
            asyncio.run(Serving(app, port=taken.getsockname()[1]).run())

    @pytest.mark.parametrize("host", ["no.such.host.invalid", "256.1.1.1", "é" * 300])
    def test_a_host_that_is_none_is_told(self, app: Shigoto, host: str) -> None:
        with pytest.raises(OptionInvalid, match="Nobody can listen"):
            asyncio.run(Serving(app, host=host, port=0).run())

    def test_a_certificate_that_is_none_is_told(self, app: Shigoto, tmp_path: Path) -> None:
        with pytest.raises(OptionInvalid, match="both"):
            Serving(app, certificate=tmp_path / "c.pem")
        with pytest.raises(OptionInvalid, match="certificate"):
            asyncio.run(Serving(app, port=0, certificate=tmp_path / "c.pem", key=tmp_path / "k.pem").run())

    @pytest.mark.parametrize(
        ("host", "loopback"),
        [
            ("127.0.0.1", True),
            ("127.8.8.8", True),
            ("::1", True),
            ("::ffff:127.0.0.1", True),
            ("localhost", True),
            ("0.0.0.0", False),
            ("::", False),
            ("::ffff:10.0.0.1", False),
            ("10.0.0.1", False),
            ("localhost.example.org", False),
            ("", False),
        ],
    )
    def test_what_is_this_machine(self, host: str, loopback: bool) -> None:
        assert is_loopback(host) is loopback


def test_of_version_six_a_whole_network_counts_as_one() -> None:
    class Client:
        host = "2001:db8:1:2:aaaa:bbbb:cccc:dddd"

    class Request:
        client = Client

    request: Any = Request
    assert auth.address_of(request) == "2001:db8:1:2::/64"


def test_the_socket_is_not_shared_with_children() -> None:
    listener = listening("127.0.0.1", 0)
    with listener:
        assert listener.family == socket.AF_INET
        assert not listener.get_inheritable()
