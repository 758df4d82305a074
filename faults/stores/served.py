"""A server process on the store of a stage: the way to it for all who speak HTTP.

The judge goes on looking at the store itself. Whoever is told `url_for` a token knows nothing but the server.
"""

import http.client
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from secrets import token_bytes
from types import TracebackType
from typing import Any

from msgspec import DecodeError, Struct, json

from devtools.postgres.server import free_port
from faults.stage import QUIET, Stage, end
from shigoto.model.service import Scope, Token, mint_token

HOST = "127.0.0.1"
READY_WITHIN = 30.0


class Answer(Struct, frozen=True):
    """What a server said: the status, the headers by their names in small letters, and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read as JSON; None if it is none."""
        try:
            return json.decode(self.body)
        except DecodeError:
            return None


class Served:
    """A server on loopback, from the start of the block to its end; `stage.between` ends it after everybody else.

    It is started anew on the same port. `url` is the store that it serves, if it is not the stage's.
    """

    def __init__(self, stage: Stage, *options: str, url: str | None = None) -> None:
        self._stage = stage
        self._options = options
        self._url = url or stage.url
        self.port = free_port()
        self.log = stage.folder / f"server-{self.port}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Served":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            end(self.process)

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        app = f"faults.apps.{self._stage.module}:app"
        words = [sys.executable, "-m", "shigoto", "--app", app, "server", self._url]
        self.process = self._stage.start(
            [*words, "--port", str(self.port), *QUIET, *self._options], output=self.log
        )
        self._stage.processes.remove(self.process)  # it ends after those who need it
        self._stage.wait_until(self.is_ready, seconds=READY_WITHIN, what="the server was not ready")

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            pid = self.process.pid
            self._stage.pen.write("fault", deed="server", outcome="kill", pid=pid, parent=pid)
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self, *, down_for: float = 0.0) -> None:
        """Kill it, let it be down for so many seconds, and start it again."""
        self.kill()
        time.sleep(down_for)
        self.start()

    def is_ready(self) -> bool:
        """Whether it says so."""
        with suppress(OSError, http.client.HTTPException):
            return self.ask("GET", "/readyz", timeout=5).status == 200
        return False

    def token(self, *scopes: Scope, **fields: Any) -> str:
        """The text of a new token, stored as `shigoto token create` does it."""
        text, id, hash = mint_token(token_bytes(8), token_bytes(32))
        engine = self._stage.app.engine
        made = Token(id=id, name=f"faults-{id}", hash=hash, scopes=scopes, **fields)
        if not engine.run(engine.registry.add_token(made)):
            raise RuntimeError(f"There is a token {id} already.")
        return text

    def url_for(self, token: str, *, host: str = HOST, port: int | None = None) -> str:
        """The address for whoever has this token; `port` and `host` are those of a proxy, if there is one."""
        return f"http://:{token}@{host}:{port or self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] = {},
        timeout: float = 60.0,
    ) -> Answer:
        """One request on a connection of its own."""
        return ask(HOST, self.port, method, path, body, headers=headers, timeout=timeout)


def ask(
    host: str,
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    headers: Mapping[str, str] = {},
    timeout: float = 60.0,
) -> Answer:
    """One request on a connection of its own. Raises OSError, HTTPException."""
    line = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was read
            line.request(method, path, body, dict(headers))
        response = line.getresponse()
        said = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, said, response.read())
    finally:
        line.close()
