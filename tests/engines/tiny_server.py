"""The record protocol on an engine, and nothing else: a server of the standard library, to try clients on."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from shigoto.engine.protocol import Engine
from shigoto.engine.remote import protocol as records
from shigoto.model.errors import ShigotoError


class TinyServer(ThreadingHTTPServer):
    """Serves one engine."""

    daemon_threads = True
    engine: Engine
    rung = 0
    protocol = records.PROTOCOL
    hang_up_on = 0  # so many of the next requests, when they are done
    instead: tuple[str, bytes] | None = (
        None  # what everybody is answered, with a 200, as by a proxy with a page
    )

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.slow = threading.Event()
        self.slow.set()
        self.open: set[socket.socket] = set()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end_connections(self) -> None:
        """Close every connection, and wait until the other side could know."""
        for each in list(self.open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        time.sleep(0.1)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: TinyServer
    wbufsize = -1
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.open.add(self.connection)

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        super().finish()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        verb = self.path.removeprefix(records.RECORDS_PATH + "/")
        engine = self.server.engine
        self.server.asked.append(verb)
        if verb == "stats":
            self.server.slow.wait(20)
        if self.server.instead is not None:
            media_type, page = self.server.instead
            self._answer(200, page, media_type)
            return
        try:
            value = (
                records.ServerHello(protocol=self.server.protocol, version="0", engine="memory")
                if verb == "hello"
                else engine.run(records.asked(engine, verb, records.decode_args(verb, body)))
            )
        except ShigotoError as error:
            said = {"code": error.code, "detail": str(error), "field": getattr(error, "field", None)}
            self._answer(409, msgspec.json.encode(said))
        else:
            self.server.rung += 1
            if self.server.hang_up_on:
                self.server.hang_up_on -= 1
                self.close_connection = True
            else:
                self._answer(200, records.encode(value), records.MEDIA_TYPE)

    def do_GET(self) -> None:
        seen = parse_qs(urlsplit(self.path).query).get("seen")
        for _ in itertools.takewhile(lambda _: seen and self.server.rung == int(seen[0]), range(1000)):
            time.sleep(0.005)
        self._answer(200, b'{"rung": %d}' % self.server.rung)

    def _answer(self, status: int, body: bytes, media_type: str = "") -> None:
        self.send_response_only(status)
        if media_type:
            self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def tiny_server(engine: Engine) -> Iterator[TinyServer]:
    """A server of this engine."""
    server = TinyServer()
    server.engine = engine
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.end_connections()
        server.server_close()
        thread.join()
