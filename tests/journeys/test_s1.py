"""The job system of specification S1: its queue is the store alone, so clients and workers come and go."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import Shigoto, State
from tests.journeys.yard import Yard, ended_within, eventually

pytestmark = pytest.mark.engine("sqlite")

ENQUEUE_AND_DIE = """
import os, signal
from shop import count
print(count.enqueue(1).id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

ENQUEUE_MANY = """
import sys
from shop import app, count
for number in range(20):
    print(count.enqueue(1 + number).id)
app.close()
"""

ASK = """
import sys
from shop import app
handle = app.job(sys.argv[1])
print(handle.result(timeout=30), handle.status())
app.close()
"""

CALLS = """
from shigoto import Context, Retry, Shigoto

app = Shigoto("sqlite:///shop.db")

@app.task(retry=Retry.immediate(retries=5))
async def call(ctx: Context, answered: int) -> str:
    if ctx.attempt < answered:
        raise ConnectionError(f"no answer to call {ctx.attempt}")
    return f"answered call {ctx.attempt}"
"""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.end()


def client(yard: Yard, program: str, *words: str) -> "subprocess.Popen[str]":
    """A process of a user of the queue."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=yard.folder,
        env=yard.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


def output_of(process: "subprocess.Popen[str]", code: int = 0) -> list[str]:
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == code
    return printed.split()


def test_a_client_that_dies_right_after_submitting_loses_no_job(yard: Yard) -> None:
    """S1-7, S1-14: what was acknowledged is in the database, and so is what a dead worker had in hand."""
    [job_id] = output_of(client(yard, ENQUEUE_AND_DIE), -signal.SIGKILL)
    assert yard.app.job(job_id).status() is State.PENDING

    held = yard.enqueue("wait", file="go")
    dying = yard.start("--lease", "1")
    yard.until_it_began()
    os.killpg(dying.pid, signal.SIGKILL)
    dying.wait()
    assert held.status() is State.PROCESSING
    yard.touch("go")
    yard.start("--lease", "1")

    yard.until_done(held, yard.app.job(job_id))


def test_clients_and_workers_are_added_and_taken_away_independently(yard: Yard) -> None:
    """S1-5, S1-6, S1-8: many clients at once with no worker, then several workers, then other clients."""
    ids = [
        job_id for process in [client(yard, ENQUEUE_MANY) for _ in range(3)] for job_id in output_of(process)
    ]
    assert len(set(ids)) == 60
    assert yard.app.stats()["default"].pending == 60

    first, second = yard.start(log="first.log"), yard.start(log="second.log")
    eventually(lambda: yard.app.stats()["default"].completed == 60, lambda: yard.log("first.log"))
    first.send_signal(signal.SIGTERM)
    assert ended_within(first, 28) == 0
    [more, *_] = output_of(client(yard, ENQUEUE_MANY))
    assert output_of(client(yard, ASK, more))[-1] == "completed"

    second.send_signal(signal.SIGTERM)
    assert ended_within(second, 28) == 0
    output_of(client(yard, ENQUEUE_MANY))
    assert yard.app.stats()["default"].pending == 20
    assert len(yard.notes("ran")) == 80


def test_a_client_of_its_own_process_learns_the_result_by_the_id(yard: Yard) -> None:
    """S1-23, S1-24, S1-25: it waits for the end, or asks now and then; who submitted the job is long gone."""
    [job_id] = output_of(client(yard, ENQUEUE_AND_DIE), -signal.SIGKILL)
    waiting = client(yard, ASK, job_id)
    poller = Shigoto(f"sqlite:///{yard.folder / 'shop.db'}")
    assert poller.job(job_id).status() is State.PENDING

    yard.start()
    pid, state = output_of(waiting)

    assert state == "completed"
    assert [int(pid)] == [process for _, process in yard.workers()]
    assert poller.job(job_id).result(timeout=0) == int(pid)
    poller.close()


def test_five_retries_are_counted_in_the_store(tmp_path: Path) -> None:
    """S1-10, S1-17, S1-18, S1-19, S1-20, but for the mail: the sixth run is the last, and its reason is kept."""
    yard = Yard(tmp_path, CALLS)
    try:
        late, never = yard.enqueue("call", answered=6), yard.enqueue("call", answered=7)
        assert yard.start("--drain").wait(30) == 0

        assert late.result(timeout=0) == "answered call 6"
        assert (late.job().failures, late.job().attempt) == (5, 6)
        job = never.job()
        assert (job.state, job.failures) == (State.FAILED, 6)
        assert job.error == "ConnectionError: no answer to call 6"
    finally:
        yard.end()
