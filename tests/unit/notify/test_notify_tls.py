"""Deliveries over TLS, to real servers: to one that can be trusted, and not a word to any other."""

import socket
import ssl
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from email import message_from_bytes
from email import policy as policies
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult

from shigoto.model.time import to_datetime
from shigoto.notify import Mail, Notification, Webhook, verify_webhook
from shigoto.notify.targets import Undeliverable, Undelivered
from tests.certificates import Authority

HOST = "127.0.0.1"
SECRET = "a-secret-that-only-the-test-has"
EVENT = Notification(
    id=UUID("018f0000-0000-7000-8000-000000000001"),
    kind="failed",
    rule="failure",
    subject="resize",
    at=to_datetime(1_700_000_000_000),
)


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ssl.SSLContext]:
    """Makes what a server of this name needs, and lets us trust the one who vouches for it, or another."""

    def make(name: str = HOST, *, trusted: bool = True) -> ssl.SSLContext:
        mine, another = Authority("mine"), Authority("another")
        (mine if trusted else another).write(tmp_path / "ca.pem")
        mine.issue(name, certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem")
        monkeypatch.delenv("SSL_CERT_DIR", raising=False)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        return context

    return make


class Heard:
    """What a server was told."""

    def __init__(self) -> None:
        self.requests: list[tuple[Mapping[str, str], bytes]] = []
        self.messages: list[bytes] = []
        self.senders: list[str] = []
        self.logins: list[bool] = []


@contextmanager
def web_server(context: ssl.SSLContext) -> Generator[tuple[Heard, str]]:
    """A web server with a certificate, and its address."""
    heard = Heard()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            heard.requests.append((dict(self.headers), body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing of who does not trust us."""

    with Server((HOST, 0), Handler) as server:
        # The handshake is for the thread of the connection: one who hangs up must not end the server.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield heard, f"https://{HOST}:{server.server_port}/hook/path"
        server.shutdown()
        thread.join()


@contextmanager
def mail_server(context: ssl.SSLContext, protection: str) -> Generator[tuple[Heard, str]]:
    """A mail server with a certificate, and its address; TLS is there from the start, or asked for, or not offered."""
    heard = Heard()

    class Handler:
        def __init__(self) -> None:
            self.handle_MAIL, self.handle_DATA = self.begin, self.take  # as the server calls them

        async def begin(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
            heard.senders.append(address)
            envelope.mail_from = address
            return "250 OK"

        async def take(self, server: Any, session: Any, envelope: Any) -> str:
            assert protection != "starttls" or session.ssl is not None
            heard.messages.append(envelope.content)
            return "250 OK"

    def known(server: Any, session: Any, envelope: Any, mechanism: str, said: Any) -> AuthResult:
        heard.logins.append(said.password == b"hunter2")
        return AuthResult(success=True)

    class Office(Controller):
        def factory(self) -> SMTP:
            return SMTP(
                self.handler,
                tls_context=context if protection == "starttls" else None,
                require_starttls=protection == "starttls",
                authenticator=known,
                auth_require_tls=protection == "starttls",
            )

    office = Office(
        Handler(), hostname=HOST, port=free_port(), ssl_context=context if protection == "tls" else None
    )
    office.start()
    scheme = "smtps" if protection == "tls" else "smtp"
    try:
        yield heard, f"{scheme}://robot@{HOST}:{office.port}"
    finally:
        office.stop()


def free_port() -> int:
    with socket.create_server((HOST, 0)) as free:
        port: int = free.getsockname()[1]
        return port


WRONG = pytest.mark.parametrize(
    "certificate",
    [{"trusted": False}, {"name": "mail.example.org"}],
    ids=["of-a-stranger", "for-another-host"],
)


class TestWebhook:
    @pytest.fixture(autouse=True)
    def secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SHIGOTO_WEBHOOK_SECRET", SECRET)

    def test_it_is_delivered_over_https_to_a_server_that_can_be_trusted(
        self, sealed: Callable[..., ssl.SSLContext]
    ) -> None:
        """S19: by an authority that only $SSL_CERT_FILE knows."""
        with web_server(sealed()) as (heard, url):
            Webhook(url, internal=True).deliver(EVENT)

        [(headers, body)] = heard.requests
        assert verify_webhook(headers, body, SECRET) == str(EVENT.id)

    @WRONG
    def test_not_a_word_is_said_to_another(
        self, sealed: Callable[..., ssl.SSLContext], certificate: dict[str, Any]
    ) -> None:
        with (
            web_server(sealed(**certificate)) as (heard, url),
            pytest.raises(Undelivered, match="SSLCertVerificationError"),
        ):
            Webhook(url, internal=True).deliver(EVENT)

        assert heard.requests == []


class TestMail:
    @pytest.fixture(autouse=True)
    def account(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SHIGOTO_MAIL_FROM", "jobs@example.org")
        monkeypatch.setenv("SHIGOTO_SMTP_PASSWORD", "hunter2")

    @pytest.mark.parametrize("protection", ["tls", "starttls"])
    def test_it_is_delivered_over_tls_to_a_server_that_can_be_trusted(
        self, sealed: Callable[..., ssl.SSLContext], monkeypatch: pytest.MonkeyPatch, protection: str
    ) -> None:
        with mail_server(sealed(), protection) as (heard, url):
            monkeypatch.setenv("SHIGOTO_SMTP_URL", url)
            Mail("ops@example.org").deliver(EVENT)

        [message] = heard.messages
        assert message_from_bytes(message, policy=policies.SMTP)["To"] == "ops@example.org"
        assert heard.logins == [True]

    @WRONG
    @pytest.mark.parametrize("protection", ["tls", "starttls"])
    def test_neither_password_nor_message_is_said_to_another(
        self,
        sealed: Callable[..., ssl.SSLContext],
        monkeypatch: pytest.MonkeyPatch,
        protection: str,
        certificate: dict[str, Any],
    ) -> None:
        with mail_server(sealed(**certificate), protection) as (heard, url):
            monkeypatch.setenv("SHIGOTO_SMTP_URL", url)
            with pytest.raises(Undelivered, match="SSLCertVerificationError"):
                Mail("ops@example.org").deliver(EVENT)

        assert (heard.logins, heard.senders, heard.messages) == ([], [], [])

    def test_a_server_without_starttls_is_told_nothing(
        self, sealed: Callable[..., ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may be somebody on the way who has taken the offer out."""
        with mail_server(sealed(), "none") as (heard, url):
            monkeypatch.setenv("SHIGOTO_SMTP_URL", url)
            with pytest.raises(Undeliverable, match="STARTTLS"):
                Mail("ops@example.org").deliver(EVENT)

        assert (heard.logins, heard.senders, heard.messages) == ([], [], [])
