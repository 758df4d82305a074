"""`shigoto dev --postgres`: a server of one's own, a worker that reloads, and nothing left running."""

import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import Shigoto
from shigoto.local_postgres.processes import is_alive
from tests.journeys.yard import SHIGOTO, eventually
from tests.postgres import Yard

pytestmark = pytest.mark.engine("postgres")

APP = """
from shigoto import Shigoto
app = Shigoto("sqlite:///never.db")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}"
"""


class Desk:
    """A project's folder, and what runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o755)
        (folder / "shop.py").write_text(APP)
        self.url_file = folder / ".shigoto" / "url"
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("SHIGOTO_", "PG"))
        }
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [*SHIGOTO, "--app", "shop", "dev", *words],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def until_ready(self, times: int = 1) -> None:
        eventually(lambda: self.log().count("started worker=") >= times, self.log, within=90)

    def end(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def desk(postgres_yard: Yard) -> Iterator[Desk]:
    desk = Desk(postgres_yard.folder())  # which `nobody` can reach, as whom the server may run
    yield desk
    desk.end()


def server_of(desk: Desk) -> int:
    return int((desk.folder / ".shigoto/postgres/data/postmaster.pid").read_text().splitlines()[0])


def test_a_developer_without_a_server_gets_one_and_keeps_the_data(desk: Desk) -> None:
    first = desk.start("--postgres", "--concurrency", "5")
    desk.until_ready()
    url = desk.url_file.read_text().strip()
    password = url.split(":")[2].split("@")[0]
    assert stat.S_IMODE(desk.url_file.stat().st_mode) == 0o600
    assert password not in desk.log()
    assert "***@127.0.0.1" in desk.log()
    assert "concurrency=5" in desk.log()
    assert (
        password.encode()
        not in subprocess.run(["ps", "-A", "-o", "args"], capture_output=True, check=True).stdout
    )

    app = Shigoto(url)
    handle = app.enqueue_by_name("greet", {"name": "Ada"})
    assert handle.result(timeout=30) == "Hello, Ada"
    (desk.folder / "shop.py").write_text(APP.replace("Hello", "Good morning"))
    desk.until_ready(2)
    assert app.enqueue_by_name("greet", {"name": "Ada"}).result(timeout=30) == "Good morning, Ada"
    app.close()

    again = desk.start("--postgres")
    assert again.wait(60) == 1
    assert "Another `shigoto dev --postgres` runs in this folder" in desk.log()

    server = server_of(desk)
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 0
    assert not is_alive(server)
    assert not desk.url_file.exists()
    assert "its data stays in .shigoto/postgres" in desk.log()
    assert (desk.folder / ".shigoto/.gitignore").read_text() == "*\n"

    second = desk.start("--postgres")
    desk.until_ready(3)
    app = Shigoto(desk.url_file.read_text().strip())
    assert handle.id in {job.id for job in app.find()}
    app.close()
    second.send_signal(signal.SIGTERM)
    assert second.wait(60) == 0
    assert not (desk.folder / "never.db").exists()


def test_nothing_is_left_of_one_that_is_killed(desk: Desk) -> None:
    process = desk.start("--postgres")
    desk.until_ready()
    server = server_of(desk)
    process.kill()
    process.wait()

    eventually(lambda: not is_alive(server), desk.log)
    eventually(lambda: not others_in(process.pid), desk.log, within=40)


def others_in(session: int) -> list[str]:
    """What still runs of those that were started in a session."""
    told = subprocess.run(
        ["ps", "-A", "-o", "sid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    lines = [line.split(None, 2) for line in told.splitlines()]
    return [
        line[2]
        for line in lines
        if len(line) == 3 and line[0] == str(session) and not line[1].startswith("Z")
    ]


def test_without_postgres_it_is_a_worker_that_reloads(desk: Desk) -> None:
    process = desk.start()
    desk.until_ready()
    assert (desk.folder / "never.db").exists()
    process.send_signal(signal.SIGINT)
    assert process.wait(40) == 0


def test_what_cannot_be_meant_is_refused(desk: Desk) -> None:
    process = desk.start("--postgres", "--url", "sqlite:///x.db")
    assert process.wait(30) == 2
    assert "--url names another" in desk.log()
    (desk.folder / ".shigoto").write_text("a file")
    process = desk.start("--postgres")
    assert process.wait(30) == 1
    assert "cannot be the folder" in desk.log()


def test_what_is_missing_is_named(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg and without any PostgreSQL, it says what to install."""
    blocked = desk.folder / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text("import sys; sys.modules['psycopg'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(blocked))
    began = time.monotonic()
    assert desk.start("--postgres").wait(30) == 1
    assert 'pip install "shigoto[postgres]"' in desk.log()
    (blocked / "sitecustomize.py").write_text(
        "import shigoto.local_postgres.binaries as b\nb.folders = lambda: iter(())\n"
    )
    assert desk.start("--postgres").wait(30) == 1
    assert "pip install 'shigoto[devpg]'" in desk.log()
    assert time.monotonic() - began < 60
