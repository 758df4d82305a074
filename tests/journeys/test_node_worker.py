"""The example worker for Node, at a real server."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import State
from tests.journeys.far import Far
from tests.journeys.yard import ended_within, eventually

EXAMPLE = Path(__file__).parents[2] / "examples/http_workers/worker.mjs"

HANDLERS = """
import { writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
export const greet = ({ name }) => ({ greeting: `Hello ${name}` });
export const fail = () => { throw new Error("out of paper"); };
export const nothing = () => {};
export async function steps(_, job) {
  if (job.checkpoint) return job.checkpoint;
  await job.progress(0.5, "half");
  await job.checkpointAt({ row: 7 });
  throw new Error("once more");
}
export async function hang(_, job) {
  writeFileSync("began", "");
  await sleep(60_000, null, { signal: job.signal });
}
"""


def is_new_enough() -> bool:
    node = shutil.which("node")
    if node is None:
        return False
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return int(said.lstrip("v").split(".")[0] or 0) >= 20


pytestmark = pytest.mark.skipif(not is_new_enough(), reason="it takes Node 20")


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    yard = Far(tmp_path)
    (tmp_path / "tasks.mjs").write_text(HANDLERS)
    yard.serve()
    yield yard
    yard.end()


def work(far: Far) -> "subprocess.Popen[bytes]":
    process = far.program("node", str(EXAMPLE), "tasks.mjs")
    far.until_at_work(1)
    return process


def test_it_runs_jobs(far: Far) -> None:
    """S1-2, S1-21."""
    work(far)
    jobs = [far.enqueue("greet", name=f"Ada {number}") for number in range(30)]
    nothing = far.enqueue("nothing")
    fail = far.app.enqueue_by_name("fail", {}, allow_unknown=True, retries=0)

    far.until_done(*jobs, nothing)
    eventually(lambda: fail.status() is State.FAILED, far.log)

    assert jobs[7].result(timeout=1) == {"greeting": "Hello Ada 7"}
    assert nothing.result(timeout=1) is None
    assert fail.job().error == "Error: out of paper"


def test_a_checkpoint_is_there_for_the_next_run(far: Far) -> None:
    work(far)
    job = far.enqueue("steps")
    eventually(lambda: job.job().failures == 1, far.log)
    far.make_due(job)

    far.until_done(job)

    assert job.result(timeout=1) == {"row": 7}
    assert job.job().progress == 0.5


def test_a_stop_gives_the_job_back(far: Far) -> None:
    worker = work(far)
    job = far.enqueue("hang")
    eventually((far.folder / "began").exists, far.log)

    worker.send_signal(signal.SIGTERM)

    assert ended_within(worker, 10) == 0
    assert job.status() is State.PENDING
    assert far.workers() == []
