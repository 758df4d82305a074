"""`shigoto scheduler` as a process: it fires, stops and fails as it should."""

import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shigoto import Shigoto, State
from shigoto.model.errors import StoreError
from tests.journeys.yard import SHIGOTO, Yard, ended_within, eventually
from tests.postgres import ALWAYS
from tests.postgres import Yard as Servers

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs the signals of POSIX")

SHOP = """
import os, time
from pathlib import Path
from shigoto import Shigoto, Tick

app = Shigoto("sqlite:///shop.db")

@app.every("1s", name="secondly")
async def secondly(tick: Tick) -> None: ...

def slow(tick):
    Path("began").touch()
    time.sleep(float(os.environ.get("SLOW", "0")))
    return secondly.call(tick)

if "SLOW" in os.environ:
    app.schedule("slow", every="1s", call=slow)
"""


class Clocks(Yard):
    """A folder with schedulers in it."""

    def begin(self, *options: str, log: str = "log", **environment: str) -> "subprocess.Popen[bytes]":
        self.command = [*SHIGOTO, "--app", "shop", "scheduler"]
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(
                [*self.command, *options],
                cwd=self.folder,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        return process


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Clocks]:
    yard = Clocks(tmp_path, shop=SHOP)
    yield yard
    yard.end()


def fired(yard: Yard) -> int:
    return yard.log().count("has fired")


def test_it_fires_without_a_worker_and_stops_in_good_order(yard: Clocks) -> None:
    """S3-68, S4-16: SIGTERM; the jobs wait for whoever runs them."""
    process = yard.begin("--ready-file", "ready", "--name", "clock", "--stats-every", "1")
    eventually(lambda: fired(yard) >= 2, yard.log)
    assert (yard.folder / "ready").read_text() == f"{process.pid}\n"
    yard.until_logged("Schedule Stats - Health: OK, Fired: ")

    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 10) == 0
    assert not (yard.folder / "ready").exists()
    log = yard.log()
    assert log.index("Scheduler clock started") < log.index("Stop initiated") < log.index("Stop completed")
    assert {job.state for job in yard.app.find(limit=100)} == {State.PENDING}
    assert yard.workers() == []


def test_ctrl_c_stops_it_too(yard: Clocks) -> None:
    """S4-16."""
    process = yard.begin()
    yard.until_logged("started")

    process.send_signal(signal.SIGINT)

    assert ended_within(process, 10) == 0


def test_a_cycle_that_hangs_is_cut_off(yard: Clocks) -> None:
    """S4-17: the code of a schedule blocks the event loop; the process ends all the same, and says so."""
    process = yard.begin("--stop-timeout", "1", SLOW="60")
    eventually((yard.folder / "began").exists, yard.log)

    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 10) == 1
    assert "did not end in time" in yard.log()


def test_workers_leave_ticks_to_it_if_they_are_told_to(yard: Clocks) -> None:
    """S3-68: by flag, by variable and by file."""
    (yard.folder / "shigoto.toml").write_text('app = "shop"\n[worker]\nticks = false\n')
    worker = yard.start("--processes", "1", app=None, log="worker")
    yard.until_logged("started", "worker")
    clock = yard.begin()
    eventually(lambda: fired(yard) >= 2, yard.log)
    yard.until_logged("completed successfully", "worker")

    for process in (worker, clock):
        process.send_signal(signal.SIGTERM)
        assert ended_within(process, 30) == 0
    assert "has fired" not in yard.log("worker")


@pytest.mark.parametrize("words", [(("--no-ticks",), {}), ((), {"SHIGOTO_TICKS": "false"})])
def test_ticks_can_be_switched_off_by_flag_and_by_variable(
    yard: Clocks, words: tuple[tuple[str, ...], dict[str, str]]
) -> None:
    """S3-68."""
    options, variables = words
    yard.environment |= variables
    shown = subprocess.run(
        [*SHIGOTO, "config"],
        cwd=yard.folder,
        env=yard.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    if variables:
        assert "worker.ticks" in shown.stdout
    worker = yard.start("--processes", "0", *options)
    yard.until_logged("started")

    worker.send_signal(signal.SIGTERM)

    assert ended_within(worker, 30) == 0
    assert yard.app.schedules.all() == []


def test_a_store_that_is_not_there_is_told_at_once(yard: Clocks) -> None:
    """S4-2: WORKER.NOT_READY, with the exit code of a worker."""
    ran = subprocess.run(
        [*SHIGOTO, "--app", "shop", "--url", "postgresql://nobody@127.0.0.1:9/none", "scheduler"],
        cwd=yard.folder,
        env=yard.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 1
    assert "Error [WORKER.NOT_READY]: The scheduler cannot begin." in ran.stderr


def test_two_of_them_fire_each_tick_once_and_one_may_die(yard: Clocks) -> None:
    """S4-20, S4-21."""
    first, second = yard.begin(log="log"), yard.begin(log="other")
    eventually(lambda: fired(yard) + yard.log("other").count("has fired") >= 3, yard.log)
    first.kill()
    before = yard.log("other").count("has fired")
    eventually(lambda: yard.log("other").count("has fired") >= before + 2, lambda: yard.log("other"))
    second.send_signal(signal.SIGTERM)
    assert ended_within(second, 10) == 0

    with closing(sqlite3.connect(yard.folder / "shop.db")) as store:
        payloads = [row[0] for row in store.execute("SELECT payload FROM shigoto_job")]
    assert len(payloads) == len(set(payloads)) >= 5


def test_a_service_manager_hears_when_it_is_ready_and_when_it_stops(yard: Clocks) -> None:
    """As `shigoto worker` tells it: what a unit of `Type=notify` waits for."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(yard.folder / "notify"))
        systemd.settimeout(30)
        process = yard.begin(NOTIFY_SOCKET=str(yard.folder / "notify"))
        assert systemd.recv(4096).startswith(b"READY=1\n")

        process.send_signal(signal.SIGTERM)

        assert systemd.recv(4096).startswith(b"STOPPING=1\n")
    assert ended_within(process, 10) == 0


@pytest.mark.engine("postgres")
def test_a_store_that_goes_away_is_told_and_what_was_due_is_caught_up(
    yard: Clocks, postgres_yard: Servers
) -> None:
    """S4-14: it keeps trying, says that it is degraded, and that it has recovered; it needs no new start."""
    try:
        there = postgres_yard.server_of_its_own(ALWAYS)
        server = there.__enter__()
    except StoreError as error:
        pytest.skip(f"no PostgreSQL {ALWAYS}: {error}")
    try:
        app = Shigoto(server.address)
        app.engine.migrate()
        process = yard.begin("--any-role", "--stats-every", "1", SHIGOTO_URL=server.address)
        eventually(lambda: fired(yard) >= 2, yard.log)

        server.kill()
        yard.until_logged("is degraded: it cannot reach its store, fires nothing, and keeps trying")
        yard.until_logged("The store has not answered for")
        server.start()

        yard.until_logged("has recovered: it reaches its store again")
        before = fired(yard)
        eventually(lambda: fired(yard) >= before + 2, yard.log)
        assert yard.log().count("is degraded") == yard.log().count("has recovered") == 1
        process.send_signal(signal.SIGTERM)
        assert ended_within(process, 10) == 0
        history = app.schedules.history("secondly", limit=100)
        assert {tick.outcome for tick in history} <= {"fired", "caught_up", "missed"}
        app.close()
    finally:
        there.__exit__(None, None, None)
