"""Others who are told things: a web server and a mail server that keep all that they get."""

import gzip
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from msgspec import Struct

HOST = "127.0.0.1"


class Request(Struct, frozen=True):
    """What was posted; the body as it was before it was compressed."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class Receiver:
    """A web server, from when it is made to the end of the block; `statuses` are its next answers, 204 after that."""

    def __init__(self, *statuses: int) -> None:
        self.requests: list[Request] = []
        self._statuses = list(statuses)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                gzipped = self.headers.get("content-encoding") == "gzip"
                request = Request(self.path, dict(self.headers), gzip.decompress(body) if gzipped else body)
                self.send_response(receiver.take(request))
                self.send_header("location", f"http://{HOST}:1/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{HOST}:{self._server.server_port}"

    def take(self, request: Request) -> int:
        """Keep it, and say what to answer."""
        self.requests.append(request)
        return self._statuses.pop(0) if self._statuses else 204

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Postbox:
    """A mail server, from when it is made to the end of the block; `answers` is what it says next, "250 OK" after that.

    `tries` counts messages, `messages` are those that it took. `before_answer` is called when it has got one.
    Nobody has to log in; `logins` counts who did, with the `password`.
    """

    def __init__(self, *answers: str, password: str = "") -> None:
        self.messages: list[bytes] = []
        self.tries = self.logins = 0
        self._password = password.encode()
        self.before_answer: Callable[[], None] = lambda: None
        self._answers = list(answers)
        self.handle_DATA = self._take  # as the server calls it
        with socket.create_server((HOST, 0)) as free:
            self.port: int = free.getsockname()[1]
        self._controller = Controller(
            self, hostname=HOST, port=self.port, authenticator=self._knows, auth_require_tls=False
        )
        self._controller.start()

    def __enter__(self) -> "Postbox":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """As $SHIGOTO_SMTP_URL has it."""
        return f"smtp://{HOST}:{self.port}?tls=off"

    def close(self) -> None:
        """Listen no more."""
        self._controller.stop()

    def _knows(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, said: Any) -> AuthResult:
        known = isinstance(said, LoginPassword) and said.password == self._password
        self.logins += known
        return AuthResult(success=known, handled=known)

    async def _take(self, server: Any, session: Any, envelope: Any) -> str:
        self.tries += 1
        self.before_answer()
        if self._answers:
            return self._answers.pop(0)
        self.messages.append(envelope.content)
        return "250 OK"
