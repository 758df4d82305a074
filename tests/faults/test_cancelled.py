"""A running job that somebody has cancelled never runs again, whatever happens to its worker then."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shigoto import JobHandle, Shigoto, State
from tests.faults.ledger import read
from tests.faults.stage import app_of, children_of, linux, wait_until, working

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(not linux, reason="finds the runner processes in /proc"),
]

QUIET = ("--log-level", "critical", "--lease", "2", "--stop-timeout", "3")


def deaf_job(app: Shigoto, ledger: Path) -> JobHandle[Any]:
    """A job in a thread, where nobody can stop it, that runs for long, and has been cancelled."""
    handle = app.tasks["in_a_thread"].using(retries=5).enqueue(milliseconds=60_000)
    wait_until(lambda: len(read(ledger)) == 1, seconds=30, what="it did not start")
    assert handle.cancel() is State.PROCESSING, "asked to stop, and still running"
    return handle


def stop(worker: int) -> None:
    os.kill(worker, signal.SIGTERM)


def kill_the_runner(worker: int) -> None:
    [runner] = children_of(worker)
    os.kill(runner, signal.SIGKILL)


def kill_all(worker: int) -> None:
    os.killpg(worker, signal.SIGKILL)


@pytest.mark.parametrize("disturb", [stop, kill_the_runner, kill_all])
def test_a_cancelled_job_does_not_run_again(tmp_path: Path, disturb: Callable[[int], None]) -> None:
    """With a cancel requested, every end but success is cancelled: a stop, a crash, a fence."""
    app = app_of("jobs", tmp_path / "jobs.db")

    with working("jobs", tmp_path / "jobs.db", tmp_path, *QUIET) as worker:
        handle = deaf_job(app, tmp_path)
        disturb(worker.pid)
        with working("jobs", tmp_path / "jobs.db", tmp_path, *QUIET):
            wait_until(lambda: handle.status().terminal, seconds=40, what="it did not end")
            # One that comes after it has run, so the workers had every chance to run the cancelled one.
            assert app.tasks["asynchronous"].enqueue(milliseconds=1).result(30) is None

    assert handle.status() is State.CANCELLED
    assert len([record for record in read(tmp_path) if record.job == str(handle.id)]) == 1
    app.close()
