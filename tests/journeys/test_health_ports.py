"""`--health` of workers and schedulers: alive, and ready or not, as those see it who look from outside."""

import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from shigoto.worker.health import STUCK
from tests.journeys.yard import SHIGOTO, Yard, ended_within, eventually, runners_of
from tests.postgres import ALWAYS
from tests.postgres import Yard as Servers

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs the signals of POSIX")

READY_WITHIN = 10.0  # seconds
KINDS = ("worker", "alone", "scheduler")
AT_NIGHT = pytest.mark.tier("nightly")
MAINLY_A_WORKER = ("worker", *(pytest.param(kind, marks=AT_NIGHT) for kind in KINDS[1:]))
ON_POSTGRES = """
import os
from shigoto import Shigoto

app = Shigoto(os.environ["SHOP"])

@app.task
async def wait() -> None: ...
"""


class Ward(Yard):
    """A folder in which workers and schedulers are asked how they are."""

    def begin(self, kind: str, *options: str) -> "subprocess.Popen[bytes]":
        """`--health 0` of a kind of process, and its port as soon as it has told it."""
        process = self.spawn([*self.words(kind), "--health", "0", *options])
        self.until_logged(r"Health: port \d+")
        return process

    def words(self, kind: str) -> list[str]:
        if kind == "scheduler":
            return ["scheduler"]
        return ["worker", *(["--processes", "0"] if kind == "alone" else [])]

    def spawn(self, words: list[str]) -> "subprocess.Popen[bytes]":
        with (self.folder / "log").open("wb") as file:
            process = subprocess.Popen(
                [*SHIGOTO, "--app", "shop", *words],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def ask(self, path: str) -> tuple[int, dict[str, object]]:
        found = re.search(r"Health: port (\d+) of 127\.0\.0\.1", self.log())
        assert found is not None
        return asked(int(found[1]), path)

    def until_ready(self, within: float = READY_WITHIN) -> None:
        eventually(
            lambda: self.ask("/readyz")[0] == 200, lambda: f"{self.ask('/readyz')} {self.log()}", within + 5
        )

    def until_red(self, reason: str, within: float) -> None:
        """Alive all the time, and not ready in the end, for this reason."""

        def red() -> bool:
            assert self.ask("/healthz") == (200, {"status": "ok"})
            status, told = self.ask("/readyz")
            return status == 503 and reason in str(told["reasons"])

        eventually(red, lambda: f"{self.ask('/readyz')} {self.log()}", within)


def asked(port: int, path: str) -> tuple[int, dict[str, object]]:
    """What is said there on this port of this machine."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_WITHIN)
    try:
        line.request("GET", path)
        answer = line.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        line.close()


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    ward = Ward(tmp_path)
    yield ward
    ward.end()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_ready_soon_and_ends_in_good_order(ward: Ward, kind: str) -> None:
    """S3-11: the port is there with the process, and goes with it."""
    process = ward.begin(kind)
    assert ward.ask("/healthz") == (200, {"status": "ok"})
    ward.until_ready()
    assert ward.ask("/readyz") == (200, {"ready": True, "reasons": []})
    assert ward.ask("/nowhere")[0] == 404

    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 10) == 0
    with pytest.raises(ConnectionRefusedError):
        ward.ask("/healthz")
    assert "Traceback" not in ward.log()


@pytest.mark.parametrize("kind", [*KINDS, "server"])
def test_it_is_ready_within_ten_seconds_of_its_start(ward: Ward, kind: str) -> None:
    """S3-49, S3-14: by the clock, from the start of the process to the first green answer, on a store that is still to
    be made."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    words = [kind, "--port"] if kind == "server" else [*ward.words(kind), "--health"]

    began = time.monotonic()
    process = ward.spawn([*words, str(port)])
    ready, told = False, ""
    while not ready:
        assert process.poll() is None, ward.log()
        with suppress(ConnectionError):
            status, answer = asked(port, "/readyz")
            ready, told = status == 200, str(answer)
        took = time.monotonic() - began
        assert took < READY_WITHIN, f"{took:.1f} s {told} {ward.log()}"
        if not ready:
            time.sleep(0.02)


@pytest.mark.parametrize("kind", ["worker", "alone"])
def test_it_is_red_from_the_first_stop_signal(ward: Ward, kind: str) -> None:
    """S3-18, S3-14: while jobs finish it is alive, and nobody counts on it."""
    job = ward.enqueue("wait", file="go")
    process = ward.begin(kind)
    ward.until_ready()
    ward.until_it_began()

    process.send_signal(signal.SIGTERM)

    ward.until_red("It was asked to stop.", within=5)
    ward.touch("go")
    assert ended_within(process, 28) == 0
    ward.until_done(job)


def test_a_runner_that_does_nothing_is_noticed(ward: Ward) -> None:
    """S3-11: a claim cycle finished recently. Its supervisor is well, and says of it that it is not."""
    ward.enqueue("block_loop", seconds=60)
    process = ward.begin("worker", "--poll", "0.1")
    ward.until_it_began()

    ward.until_red("No claim cycle has ended for", within=30)

    process.kill()


def test_a_full_worker_is_ready(ward: Ward) -> None:
    """One that has no room, neither on its loop nor in a thread nor in a child process, claims nothing, and is at work
    all the same; for longer than it may be idle."""
    ward.begin("worker", "--concurrency", "1", "--threads", "1", "--children", "1", "--poll", "0.1")
    ward.until_ready()
    jobs = [ward.enqueue(task, file="go") for task in ("wait", "until", "apart")]
    ward.until_it_began(3)
    until = time.monotonic() + STUCK + 2.0
    while time.monotonic() < until:
        assert ward.ask("/readyz") == (200, {"ready": True, "reasons": []})
        time.sleep(0.5)
    ward.touch("go")
    ward.until_done(*jobs)


def test_a_runner_that_died_makes_it_red_until_there_is_another(ward: Ward) -> None:
    ward.begin("worker")
    ward.until_ready()
    (runner,) = runners_of(ward._processes[0])
    os.kill(runner, signal.SIGKILL)
    ward.until_red("1 runner process is not at work yet.", within=5)
    ward.until_ready()


@pytest.mark.parametrize("kind", ["worker", "scheduler"])
def test_a_port_that_is_taken_ends_it_before_it_begins(ward: Ward, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [*SHIGOTO, "--app", "shop", kind, "--health", str(port)],
            cwd=ward.folder,
            env=ward.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert ended.returncode == 2
    assert f"There can be no health port {port} on 127.0.0.1" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_file_of_settings_may_name_the_port(ward: Ward) -> None:
    (ward.folder / "shigoto.toml").write_text("[worker]\nhealth = 0\n")
    process = ward.start("--drain")
    ward.until_logged(r"Health: port \d+ of 127\.0\.0\.1")
    assert ended_within(process, 30) == 0


@pytest.mark.parametrize("kind", MAINLY_A_WORKER)
def test_a_store_that_somebody_keeps_locked_makes_it_red(ward: Ward, kind: str) -> None:
    """S3-18, E18: reads go on, but nothing can be written; as soon as it can be again, it is ready."""
    process = ward.begin(kind)
    ward.until_ready()
    other = sqlite3.connect(ward.folder / "shop.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")

        # One that sweeps by itself waits for the lock, and claims nothing meanwhile: it says that, or this.
        ward.until_red("", within=40)  # 13 s, or 16 for a claim cycle, and a machine may be busy

        assert ward.ask("/healthz")[0] == 200
        other.execute("ROLLBACK")
        ward.until_ready()
    finally:
        other.close()
    assert process.poll() is None


@pytest.mark.engine("postgres")
@pytest.mark.parametrize("silent", [False, pytest.param(True, marks=AT_NIGHT)], ids=["stopped", "frozen"])
@pytest.mark.parametrize("kind", MAINLY_A_WORKER)
def test_a_database_that_is_down_gives_200_and_503(
    kind: str, silent: bool, tmp_path: Path, postgres_yard: Servers
) -> None:
    """GWT-3, S3-11, S3-18; E18: red within 15 s, also if it says nothing at all; and green again when it is back."""
    ward = Ward(tmp_path, shop=ON_POSTGRES)
    with postgres_yard.server_of_its_own(ALWAYS) as server:
        ward.environment |= {"SHOP": server.address, "SHIGOTO_ANY_ROLE": "1"}
        subprocess.run(
            [*SHIGOTO, "migrate", server.address], env=ward.environment, check=True, capture_output=True
        )
        try:
            ward.begin(kind)
            ward.until_ready()
            (server.freeze if silent else server.stop)()
            ward.until_red("The store", within=15)
            assert "127.0.0.1" not in str(ward.ask("/readyz"))
            (server.thaw if silent else server.start)()
            ward.until_ready(within=20)
        finally:
            ward.end()
