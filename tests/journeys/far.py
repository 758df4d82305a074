"""A store that is one file, a server before it, and workers that know only the server: real processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.journeys.yard import Yard, eventually

SHOP = """
import asyncio, os
from pathlib import Path
from shigoto import Context, Shigoto

app = Shigoto("sqlite:///shop.db")

def note(word):
    with Path("notes").open("a") as notes:
        notes.write(f"{os.getpid()} {word}\\n")

@app.task
async def ping() -> str:
    return "pong"

@app.task
async def count(number: int) -> int:
    note(f"ran {number}")
    await asyncio.sleep(0.01)
    return os.getpid()

@app.task
async def until(file: str) -> int:
    note("began")
    while not Path(file).exists():
        await asyncio.sleep(0.01)
    note("ended")
    return os.getpid()

@app.task
def together(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.execute("SELECT 1")
"""

SERVE = """
import sys
from shigoto.server import serve
from shop import app
sys.exit(serve(app, port=int(sys.argv[1])))
"""


class Far(Yard):
    """A yard whose workers are far away from its store."""

    def __init__(self, folder: Path, shop: str = SHOP) -> None:
        super().__init__(folder, shop)
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port: int = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def serve(self, port: int | None = None) -> "subprocess.Popen[bytes]":
        """A server before the store; it listens when this returns."""
        port = port or self.port
        with (self.folder / "server-log").open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", SERVE, str(port)],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        eventually(lambda: is_up(port), lambda: self.log("server-log"))
        return process

    def work(self, *options: str, url: str | None = None, log: str = "log") -> "subprocess.Popen[bytes]":
        """`shigoto worker` at the server."""
        self.command = [sys.executable, "-m", "shigoto", "--url", url or self.url]
        return self.start(*options, log=log)

    def program(self, *words: str, **environment: str) -> "subprocess.Popen[bytes]":
        """Any other worker at the server."""
        with (self.folder / "log").open("ab") as file:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment | {"SHIGOTO_URL": self.url} | environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        super().end()


class Cut:
    """A line to a server that is cut once, when an answer with these bytes comes through: nobody hears it."""

    def __init__(self, port: int, at: bytes) -> None:
        self.cut = threading.Event()
        self._port, self._at = port, at
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                here = self._door.accept()[0]
                there = socket.create_connection(("127.0.0.1", self._port))
                for ends in ((here, there), (there, here)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(65_536):
                if self._at in data and not self.cut.is_set():
                    self.cut.set()
                    break
                target.sendall(data)
            for each in (source, target):
                each.shutdown(socket.SHUT_RDWR)


def is_up(port: int) -> bool:
    """Whether a server answers there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
