"""A running job that somebody has cancelled never runs again, whatever happens to its worker then."""

import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from faults.evidence.checker import check
from faults.evidence.records import read
from faults.experiment import Setting
from faults.stage import Stage, children_of
from shigoto import JobHandle, State

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the runner processes in /proc"),
]

OPTIONS = ("--lease", "2", "--stop-timeout", "3")


def deaf_job(stage: Stage) -> JobHandle[Any]:
    """A job in a thread, where nobody can stop it, that runs for long, and has been cancelled."""
    handle = stage.app.tasks["in_a_thread"].using(retries=5).enqueue(milliseconds=60_000)
    assert stage.wait_until(lambda: len(read(stage.ledger)) == 1, seconds=30, what="it did not start")
    stage.pen.write("cancel", job=str(handle.id))
    assert handle.cancel() is State.PROCESSING, "asked to stop, and still running"
    return handle


def stop(stage: Stage, worker: Popen[bytes]) -> None:
    stage.do("term", worker, whole_tree=False)


def kill_the_runner(stage: Stage, worker: Popen[bytes]) -> None:
    [runner] = children_of(worker.pid)
    stage.do("kill", runner)


def kill_all(stage: Stage, worker: Popen[bytes]) -> None:
    stage.do("kill", worker)


@pytest.mark.parametrize("disturb", [stop, kill_the_runner, kill_all])
def test_a_cancelled_job_does_not_run_again(
    tmp_path: Path, disturb: Callable[[Stage, Popen[bytes]], None]
) -> None:
    """With a cancel requested, every end but success is cancelled: a stop, a crash, a fence."""
    with Stage(Setting(engine="sqlite", folder=tmp_path, seed=1, full=False)) as stage:
        worker = stage.worker(*OPTIONS)
        handle = deaf_job(stage)
        disturb(stage, worker)
        stage.worker(*OPTIONS)
        assert stage.wait_until(lambda: handle.status().terminal, seconds=40, what="it did not end")
        # One that comes after it has run, so the workers had every chance to run the cancelled one.
        assert stage.app.tasks["asynchronous"].enqueue(milliseconds=1).result(30) is None

        assert handle.status() is State.CANCELLED
        runs = [r for r in read(stage.ledger) if r.job == str(handle.id) and r.what == "start"]
        assert len(runs) == 1
        outcome = check(stage.evidence()).outcome(2)
    assert outcome.passed, repr(outcome)
