"""A stop ends the process, whatever its handlers, its store or the machine do: with a supervisor and without."""

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import State
from tests.journeys.yard import Yard, ended_within, eventually

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs the signals of POSIX")


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.end()


@pytest.fixture(params=[0, 1], ids=["alone", "supervised"])
def processes(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


def start(
    yard: Yard, processes: int, *, stop_timeout: float = 2.0, lease: float = 30.0
) -> "subprocess.Popen[bytes]":
    return yard.start(
        *("--processes", str(processes)),
        *("--stop-timeout", str(stop_timeout)),
        *("--lease", str(lease)),
    )


@pytest.mark.parametrize("task", ["stubborn", "offload", "leak_task", "leak_thread", "in_thread"])
def test_what_does_not_give_in_is_not_waited_for(yard: Yard, processes: int, task: str) -> None:
    handle = yard.enqueue(task)
    process = start(yard, processes)
    yard.until_it_began()

    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 4) == 0
    assert "did not end in time" not in yard.log()
    done = State.COMPLETED if task.startswith("leak") else State.PENDING
    assert handle.status() is done


def test_a_handler_that_blocks_the_event_loop_cannot_hold_up_a_stop(yard: Yard, processes: int) -> None:
    """Without a supervisor its job is not given back, and comes back when the lease is over."""
    handle = yard.enqueue("block_loop")
    process = start(yard, processes)
    yard.until_it_began()

    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 4) == (0 if processes else 1)
    assert ("did not end in time" in yard.log()) == (not processes)
    assert handle.status() is (State.PENDING if processes else State.PROCESSING)


def test_a_second_signal_shortens_the_wait(yard: Yard, processes: int) -> None:
    yard.enqueue("block_loop")
    process = start(yard, processes, stop_timeout=60)
    yard.until_it_began()

    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)

    assert ended_within(process, 6) == (0 if processes else 1)


@pytest.mark.parametrize("when", ["at the start", "at work"])
def test_a_store_that_does_not_answer_cannot_hold_up_a_stop(yard: Yard, processes: int, when: str) -> None:
    yard.enqueue("count", number=1)
    holder = sqlite3.connect(yard.folder / "shop.db", isolation_level=None)
    if when == "at the start":
        holder.execute("BEGIN IMMEDIATE")
        process = start(yard, processes)
        eventually(lambda: "Tasks:" in yard.log())
    else:
        process = start(yard, processes)
        yard.until_logged("completed")
        holder.execute("BEGIN IMMEDIATE")

    process.send_signal(signal.SIGTERM)

    ended_within(process, 4)
    holder.execute("ROLLBACK")
    holder.close()
    if when == "at the start":
        assert yard.workers() == []


def test_the_signals_of_a_forked_child_are_its_own(yard: Yard, processes: int) -> None:
    handle = yard.enqueue("fork")
    process = start(yard, processes)

    yard.until_done(handle)
    time.sleep(0.1)

    assert yard.notes()[-1].endswith(f"child {-signal.SIGTERM}")
    assert "stop signal" not in yard.log()
    process.send_signal(signal.SIGTERM)
    assert ended_within(process, 4) == 0


def test_a_worker_that_wakes_up_after_its_lease_runs_nothing_that_others_have_completed(yard: Yard) -> None:
    """I3: it had claimed all of these jobs, and others have run them while it stood still."""
    for number in range(50):
        yard.enqueue("count", number=number)
    paused = start(yard, 0, lease=1.5)
    yard.until_it_began()
    yard.pause(paused.pid)
    other = start(yard, 0, lease=1.5)
    eventually(lambda: yard.app.stats()["default"].completed == 50, yard.log)
    before = yard.notes()

    os.kill(paused.pid, signal.SIGCONT)

    assert ended_within(paused, 10) == 1
    assert yard.notes() == before
    other.send_signal(signal.SIGTERM)
    assert ended_within(other, 4) == 0
