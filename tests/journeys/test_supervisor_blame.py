"""Who is to blame for the death of a runner process, and who must be dead before its jobs are free again."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import FailureKind, State
from tests.journeys.yard import SHOP, Yard, eventually, is_alive, runners_of

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the runner processes in /proc"),
]

CULPRITS = """
import subprocess

@app.task(executor="process")
def kill_the_parent() -> None:
    note("began")
    os.kill(os.getppid(), signal.SIGKILL)
    block()

@app.task
def exit_with(code: int) -> None:
    note("began")
    os._exit(code)

@app.task(executor="process")
def with_helper(file: str) -> None:
    helper = subprocess.Popen(["sleep", "60"])
    note(f"helper {helper.pid}")
    until.fn(file)
"""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path, SHOP + CULPRITS)
    yield yard
    yard.end()


@pytest.mark.parametrize("code", [70, 71])
def test_an_exit_code_of_our_own_in_a_handler_is_a_crash_like_any_other(yard: Yard, code: int) -> None:
    """S1-26: what a handler says by an exit code is no proof of who has ended the process."""
    handle = yard.enqueue("exit_with", code=code)

    yard.start()

    eventually(lambda: handle.job().crashes == 1, yard.log)
    job = handle.job()
    assert (job.state, job.releases, job.suspect) == (State.PENDING, 0, True)
    assert f"ended with exit code {code} with 1 job inside" in (handle.attempts()[0].error or "")


@pytest.mark.timeout(120)
def test_a_job_that_kills_its_runner_from_its_own_process_is_quarantined(yard: Yard) -> None:
    """S1-26: with nobody else there it is known who did it. It waits before it kills the next one."""
    handle = yard.app.enqueue_by_name("kill_the_parent", {}, allow_unknown=True, max_crashes=2)
    process = yard.start()

    eventually(lambda: handle.job().crashes == 1, yard.log)
    assert (handle.job().run_at - handle.job().created_at).total_seconds() > 9, "it waits"
    yard.make_due(handle)
    eventually(lambda: handle.status().terminal, yard.log, within=60)

    job = handle.job()
    assert (job.state, job.failure_kind, job.crashes) == (State.FAILED, FailureKind.CRASH_LOOP, 2)
    assert [attempt.outcome for attempt in handle.attempts()] == ["crashed"] * 2
    yard.until_done(yard.enqueue("count", number=1))
    assert process.poll() is None


def test_of_several_jobs_in_child_processes_none_is_blamed_for_the_death_of_their_runner(yard: Yard) -> None:
    """I13."""
    handles = [yard.enqueue("apart", file="go") for _ in range(2)]
    process = yard.start("--children", "2")
    yard.until_it_began(2)

    os.kill(runners_of(process)[0], signal.SIGKILL)

    yard.until_it_began(4)
    yard.touch("go")
    yard.until_done(*handles)
    assert [handle.job().crashes for handle in handles] == [1, 1]


def test_nothing_in_a_child_process_is_alive_when_the_job_of_a_dead_runner_is_free(yard: Yard) -> None:
    """R10: what a handler has started is in the process group of its child, and no parent's death reaches it."""
    handle = yard.enqueue("with_helper", file="never")
    process = yard.start()
    yard.until_it_began()
    [helper] = [int(line.split()[2]) for line in yard.notes("helper")]
    [child] = [int(line.split()[0]) for line in yard.notes("began")]

    os.kill(runners_of(process)[0], signal.SIGKILL)

    eventually(lambda: handle.status() is State.PENDING, yard.log, within=5)
    assert not is_alive(child)
    assert not is_alive(helper)


def test_nothing_in_a_child_process_outlives_a_stop_that_had_to_kill(yard: Yard) -> None:
    handle = yard.enqueue("with_helper", file="never")
    process = yard.start()
    yard.until_it_began()
    [helper] = [int(line.split()[2]) for line in yard.notes("helper")]

    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)

    eventually(lambda: handle.status() is State.PENDING, yard.log, within=5)
    assert not is_alive(helper)
    assert process.wait(5) == 0
    assert (handle.job().crashes, handle.job().releases) == (0, 1)
