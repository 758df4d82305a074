"""`shigoto server`, as somebody uses it who has a shell and curl: real processes, real signals."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shigoto import Shigoto
from tests.certificates import Authority
from tests.journeys.yard import SHIGOTO

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not here")

SHOP = """
from shigoto import Shigoto

app = Shigoto("sqlite:///jobs.db")

@app.task(queue="mail")
async def send(to: str, copies: int = 1) -> str:
    return f"{copies} to {to}"

@app.every("1s")
async def tick() -> None: ...
"""
READY_WITHIN = 10.0  # seconds


class Program:
    """A server in a folder, and a shell beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SHIGOTO_", "PYTHONPATH", "NOTIFY_"))
        } | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "shop.py").write_text(SHOP)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*SHIGOTO, *words, "--port", str(self.port)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.process

    def until_ready(self) -> float:
        """Wait until /readyz is green, and tell how many seconds of a processor it took: others may be at work here."""
        began = time.monotonic()
        while self.status("/readyz") != 200:
            assert self.process is not None
            assert self.process.poll() is None, self.log
            assert time.monotonic() - began < 6 * READY_WITHIN, self.log
            time.sleep(0.02)
        return self.used()

    def used(self) -> float:
        """Seconds of a processor that the server has used; none where that is not told."""
        assert self.process is not None
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def status(self, path: str) -> int:
        told = self.shell(f"curl -s -o /dev/null -w '%{{http_code}}' {self.url}{path}", fine=None)
        return int(told or 0)

    def run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [*SHIGOTO, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def shell(self, command: str, *, fine: int | None = 0, **variables: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env=self.environment | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert fine is None or done.returncode == fine, (command, done.stdout, done.stderr)
        return done.stdout

    def curl(
        self, path: str, body: Any = None, *, method: str | None = None, token: str | None = None
    ) -> Any:
        """What curl prints, read as JSON."""
        words = ["curl", "-sS", *([] if method is None else ["-X", method])]
        if body is not None:
            words += ["--json", json.dumps(body)]
        if token is not None:
            words += ["-H", f"Authorization: Bearer {token}"]
        done = subprocess.run(
            [*words, f"{self.url}/api/v1{path}"], capture_output=True, text=True, check=True, timeout=60
        )
        return json.loads(done.stdout) if done.stdout else None


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    if program.process is not None:
        program.process.kill()
        program.process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_submit_take_ask_and_change_with_curl(program: Program) -> None:
    """S1-1, S1-3, S1-25: a shell and curl are enough, on one SQLite file, and nothing else runs."""
    process = program.start("--app", "shop:app", "server", "--ready-file", "ready")
    assert program.until_ready() < READY_WITHIN
    assert (program.folder / "ready").exists()

    # submit
    stored = program.curl("/jobs", {"task": "send", "payload": {"to": "ada"}})
    other = program.curl("/jobs", {"task": "send", "payload": {"to": "bob"}})
    assert stored["status"] == other["status"] == "inserted"

    # take
    worker = program.curl("/workers", {"name": "shell", "tasks": ["send"]})
    me = worker["worker"]
    [work] = program.curl(f"/workers/{me}/claim", {"limit": 1})["jobs"]
    assert (work["id"], work["payload"]) == (stored["id"], {"to": "ada"})
    settlement = {"token": work["token"], "outcome": "completed", "result": "1 to ada"}
    verdict = program.curl(f"/workers/{me}/jobs/{work['id']}/settle", settlement)
    assert verdict["state"] == "completed"

    # ask
    told = program.curl(f"/jobs/{stored['id']}?wait=5")
    assert (told["state"], told["result"]) == ("completed", "1 to ada")
    assert program.curl("/stats")["queues"]["mail"]["completed"] == 1

    # change
    assert program.curl(f"/jobs/{other['id']}/cancel", {}) == {"id": other["id"], "state": "cancelled"}
    assert program.curl("/queues/mail/pause", method="POST")["paused"] is True
    assert [each["action"] for each in program.curl("/audit")["entries"]] == ["queue.pause", "job.cancel"]

    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0, program.log
    assert not (program.folder / "ready").exists()
    assert "Traceback" not in program.log


def test_it_fires_the_schedules_of_its_app(program: Program) -> None:
    """S1-1: the server alone keeps a store going."""
    program.start("--app", "shop:app", "server")
    program.until_ready()
    app = Shigoto(program.folder / "jobs.db")
    end = time.monotonic() + 30
    while not app.find(task="tick"):
        assert time.monotonic() < end, program.log
        time.sleep(0.05)
    app.close()


def test_whoever_waits_is_let_go_at_the_first_signal(program: Program) -> None:
    process = program.start("--app", "shop:app", "server")
    program.until_ready()
    stored = program.curl("/jobs", {"task": "send", "payload": {"to": "ada"}})
    waiting = subprocess.Popen(
        ["curl", "-sS", f"{program.url}/api/v1/jobs/{stored['id']}?wait=60"], stdout=subprocess.PIPE
    )
    streaming = subprocess.Popen(
        ["curl", "-sSN", f"{program.url}/api/v1/events"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert streaming.stdout is not None
    assert streaming.stdout.readline().startswith(b"retry")

    process.send_signal(signal.SIGTERM)
    out, _ = waiting.communicate(timeout=20)
    assert json.loads(out)["state"] == "pending", "an answer, not a broken connection"
    streaming.communicate(timeout=20)
    assert process.wait(20) == 0, program.log


def test_the_first_token_locks_the_door(program: Program) -> None:
    program.start("--app", "shop:app", "server")
    program.until_ready()
    assert program.status("/api/v1/stats") == 200

    text = program.run("token", "create", "jobs.db", "web", "--scope", "read").strip()
    end = time.monotonic() + 20
    while program.status("/api/v1/stats") != 401:
        assert time.monotonic() < end
        time.sleep(0.1)

    assert program.curl("/stats", token=text)["total"]["failed"] == 0
    assert program.curl("/jobs", {"task": "send"}, token=text)["code"] == "AUTH.FORBIDDEN"
    assert program.status("/healthz") == program.status("/readyz") == 200
    assert text.rpartition("_")[2] not in program.log


def test_it_does_not_listen_beyond_this_machine_without_a_token(program: Program) -> None:
    """S08: nobody gets in who should not."""
    process = program.start("--app", "shop:app", "server", "--host", "0.0.0.0")
    assert process.wait(30) == 1
    assert "STORE.REFUSED" in program.log
    assert "shigoto token create" in program.log

    text = program.run("token", "create", "jobs.db", "web", "--scope", "read").strip()
    program.start("--app", "shop:app", "server", "--host", "0.0.0.0")
    program.until_ready()
    assert program.curl("/stats")["code"] == "AUTH.MISSING", "not even from this machine"
    assert program.curl("/stats", token=text)["total"]["failed"] == 0


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["server", "--host", "203.0.113.7"], "203.0.113.7", 2),
        (["server", "--certificate", "shop.py"], "both", 2),
        (["server", "--port", "70000"], "65535", 2),
        (["--url", "http://127.0.0.1:1", "server"], "server itself", 1),
        (["--url", "memory:", "server"], "memory", 1),
    ],
)
def test_what_it_cannot_do(program: Program, words: list[str], said: str, code: int) -> None:
    assert said in program.run(*words, code=code)


def test_a_port_that_is_taken(program: Program) -> None:
    with socket.create_server(("127.0.0.1", program.port)):
        assert program.start("server", "jobs.db").wait(30) == 2
    assert f"port {program.port}" in program.log
    assert "Traceback" not in program.log


def test_over_tls(program: Program) -> None:
    authority = Authority("mine")
    authority.write(program.folder / "ca.pem")
    authority.issue("127.0.0.1", certificate=program.folder / "cert.pem", key=program.folder / "key.pem")
    process = program.start("server", "jobs.db", "--certificate", "cert.pem", "--key", "key.pem")
    end = time.monotonic() + 30
    ask = f"curl -s --cacert ca.pem https://127.0.0.1:{program.port}/readyz"
    while '"ready":true' not in program.shell(ask, fine=None):
        assert time.monotonic() < end, program.log
        time.sleep(0.05)
    assert program.shell(f"curl -s http://127.0.0.1:{program.port}/healthz", fine=None) == ""
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


def test_a_service_manager_is_told(program: Program) -> None:
    address = str(program.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(30)
        program.environment["NOTIFY_SOCKET"] = address
        process = program.start("server", "jobs.db")
        assert manager.recv(1_000).startswith(b"READY=1")
        process.send_signal(signal.SIGTERM)
        assert manager.recv(1_000).startswith(b"STOPPING=1")
    assert process.wait(20) == 0
