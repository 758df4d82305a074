"""How `shigoto worker` ends: asked once, asked twice, in the middle of its start, with nothing left to do, and as
process 1."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import State
from tests.journeys.yard import SHIGOTO, Yard, ended_within, eventually, is_alive, runners_of

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the runner processes in /proc"),
]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.end()


@pytest.mark.parametrize("processes", ["1", "3"])
def test_an_idle_worker_stops_within_a_second(yard: Yard, processes: str) -> None:
    process = yard.start("--processes", processes)
    yard.until_at_work(int(processes))

    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 1) == 0
    assert yard.workers() == []


def test_handlers_that_ignore_everything_cannot_hold_up_a_stop(yard: Yard) -> None:
    """S0-21: within the limit they are killed, and their jobs are given back."""
    tasks = ["stubborn", "in_thread", "block_loop"]
    handles = [yard.enqueue(task) for task in tasks]
    process = yard.start("--processes", "2", "--stop-timeout", "6")
    yard.until_it_began(len(tasks))
    family = [process.pid, *runners_of(process)]

    process.send_signal(signal.SIGTERM)
    asked_at = time.monotonic()

    assert ended_within(process, 6) == 0
    assert time.monotonic() - asked_at < 6.5
    assert not any(map(is_alive, family))
    for handle in handles:
        job = handle.job()
        assert (job.state, job.crashes, job.failures) == (State.PENDING, 0, 0), job.task
    assert yard.workers() == []


def test_r10_a_thread_that_outlasts_the_stop_ends_with_its_process_and_its_job_runs_again(yard: Yard) -> None:
    """R10: SIGTERM during a long thread job; no two runs overlap."""
    handle = yard.enqueue("until", file="go")
    first = yard.start("--stop-timeout", "3", "--threads", "1")
    yard.until_it_began()
    yard.start("--threads", "1", log="second")
    yard.until_at_work(2)

    first.send_signal(signal.SIGTERM)

    assert ended_within(first, 3) == 0
    runs = yard.notes("began")
    assert len(runs) == 1 or not is_alive(int(runs[0].split()[0])), "the first run was over"
    yard.until_it_began(2)
    yard.touch("go")
    yard.until_done(handle)
    job = handle.job()
    assert (job.failures, job.crashes, job.releases) == (0, 0, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_is_one_request(yard: Yard, number: signal.Signals) -> None:
    """What a service manager or a closed terminal does: everybody gets it, and the supervisor tells its runners too."""
    handle = yard.enqueue("wait", file="go")
    process = yard.start("--processes", "2")
    yard.until_at_work(2)
    yard.until_it_began()

    os.killpg(process.pid, number)
    yard.until_logged("received stop signal", times=2)
    yard.touch("go")

    assert ended_within(process, 5) == 0
    assert handle.status() is State.COMPLETED


def test_ctrl_c_is_left_to_the_supervisor(yard: Yard) -> None:
    """The terminal sends it to all, at any time; nobody prints a traceback."""
    handle = yard.enqueue("wait", file="go")
    process = yard.start("--processes", "2")
    eventually(lambda: len(runners_of(process)) == 2)
    for pid in runners_of(process):
        os.kill(pid, signal.SIGINT)
    yard.until_at_work(2)
    yard.until_it_began()

    os.killpg(process.pid, signal.SIGINT)
    yard.until_logged("received stop signal", times=2)
    yard.touch("go")

    assert ended_within(process, 5) == 0
    assert handle.status() is State.COMPLETED
    assert "Traceback" not in yard.log()


def test_a_third_signal_kills_and_what_ran_is_given_back(yard: Yard) -> None:
    handle = yard.enqueue("block_loop")
    process = yard.start()
    yard.until_it_began()

    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)

    assert process.wait(2) == 0
    job = handle.job()
    assert (job.state, job.releases, job.crashes) == (State.PENDING, 1, 0)


def test_a_runner_that_is_told_to_stop_by_somebody_else_is_replaced(yard: Yard) -> None:
    process = yard.start()
    yard.until_at_work(1)
    [runner] = runners_of(process)

    os.kill(runner, signal.SIGTERM)

    eventually(lambda: runners_of(process) not in ([], [runner]), yard.log, within=5)
    yard.until_done(yard.enqueue("count", number=1))
    assert process.poll() is None


@pytest.mark.parametrize("milliseconds", [0, 50, 150, 250, 350, 500, 700, 1000, 2000])
def test_a_stop_during_the_start_strands_nothing(yard: Yard, milliseconds: int) -> None:
    """F54: at whatever moment it comes, nothing stays claimed and nobody stays registered."""
    handles = [yard.enqueue("wait", file="never") for _ in range(5)]
    process = yard.start("--processes", "2", "--stop-timeout", "3")
    time.sleep(milliseconds / 1000)
    family = [process.pid, *runners_of(process)]

    process.send_signal(signal.SIGTERM)

    code = ended_within(process, 4)
    assert code in (0, -signal.SIGTERM), yard.log()
    assert "Traceback" not in yard.log()
    assert not any(map(is_alive, family))
    assert yard.workers() == []
    assert [handle.status() for handle in handles] == [State.PENDING] * 5
    assert all(handle.job().crashes == 0 for handle in handles)


def test_runners_that_have_drained_the_queue_are_not_replaced(yard: Yard) -> None:
    handles = [yard.enqueue("count", number=number) for number in range(1, 200)]

    process = yard.start("--processes", "3", "--drain")

    assert process.wait(30) == 0
    assert all(handle.status() is State.COMPLETED for handle in handles)
    assert yard.log().count("started worker=") == 3


def test_a_runner_that_dies_while_it_drains_is_replaced(yard: Yard) -> None:
    first = yard.enqueue("block_loop")
    others = [yard.enqueue("count", number=number) for number in range(1, 20)]
    process = yard.start("--drain")
    yard.until_it_began()

    first.cancel()
    os.kill(runners_of(process)[0], signal.SIGKILL)

    assert process.wait(30) == 0
    assert all(handle.status() is State.COMPLETED for handle in others)
    assert first.status() is State.CANCELLED


@pytest.fixture
def new_namespace() -> list[str]:
    """Words that run a command as process 1 of a new PID namespace."""
    words = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    tried = subprocess.run([*words, "true"], capture_output=True, check=False, timeout=30)
    if tried.returncode:
        pytest.skip(f"no new PID namespaces here: {tried.stderr.decode().strip()}")
    return words


def test_as_process_1_it_reaps_orphans_and_ends_cleanly(yard: Yard, new_namespace: list[str]) -> None:
    """F52: process 1 gets no signal that it does not ask for, and every orphan is its child."""
    handles = [yard.enqueue("orphan") for _ in range(5)]
    with (yard.folder / "log").open("wb") as log:
        unshare = subprocess.Popen(
            [*new_namespace, *SHIGOTO, "--app", "shop", "worker", "--processes", "2"],
            cwd=yard.folder,
            env=yard.environment,
            stdin=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        yard.until_done(*handles)
        [init] = runners_of(unshare)
        runners = [int(pid) for pid in Path(f"/proc/{init}/task/{init}/children").read_text().split()]
        eventually(lambda: zombies_below(init) == [], within=5)
        assert len(runners) >= 2

        os.kill(init, signal.SIGTERM)

        assert unshare.wait(5) == 0
        assert not any(map(is_alive, runners))
    finally:
        unshare.kill()
        unshare.wait()
    assert yard.workers() == []


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize("milliseconds", [100, 250, 400])
def test_process_1_hears_a_stop_while_it_starts(
    yard: Yard, new_namespace: list[str], processes: str, milliseconds: int
) -> None:
    """F52: whatever the system throws away because nobody asks for it yet, is asked for first."""
    (yard.folder / "sitecustomize.py").write_text(SLOW_IMPORTS)
    with (yard.folder / "log").open("wb") as log:
        unshare = subprocess.Popen(
            [*new_namespace, *SHIGOTO, "--app", "shop", "worker", "--processes", processes],
            cwd=yard.folder,
            env=yard.environment | {"PYTHONPATH": str(yard.folder)},
            stdin=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        eventually((yard.folder / "importing").exists)
        time.sleep(milliseconds / 1000)
        [init] = runners_of(unshare)

        os.kill(init, signal.SIGTERM)

        assert unshare.wait(10) in (0, 130)
        assert "Traceback" not in yard.log()
    finally:
        unshare.kill()
        unshare.wait()


SLOW_IMPORTS = """
import importlib.abc, pathlib, sys, time

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("shigoto.worker.process", "shigoto.worker.supervisor.store"):
            pathlib.Path("importing").touch()
            time.sleep(0.5)
        return None

sys.meta_path.insert(0, Slow())
"""


def zombies_below(pid: int) -> list[int]:
    """The dead children of a process that it has not reaped."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*")
        for child in (task / "children").read_text().split()
    ]
    return [child for child in children if not is_alive(child) and Path(f"/proc/{child}").exists()]
