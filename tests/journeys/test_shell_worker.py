"""The example worker in plain shell, at a real server."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import State
from tests.journeys.far import Cut, Far
from tests.journeys.yard import eventually

EXAMPLE = Path(__file__).parents[2] / "examples/http_workers/worker.sh"

GREET = '#!/bin/sh\njq "{greeting: (\\"Hello \\" + .name)}"\n'
SAY = "#!/bin/sh\necho 'no JSON \"at all\"'\n"
FAIL = "#!/bin/sh\necho 'out of paper' >&2\nexit 3\n"
HANG = "#!/bin/sh\ntouch began\nexec sleep 60\n"

pytestmark = pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("jq")), reason="it takes curl and jq"
)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    yard = Far(tmp_path)
    (tmp_path / "tasks").mkdir()
    for name, text in (("greet", GREET), ("say", SAY), ("fail", FAIL), ("hang", HANG)):
        path = tmp_path / "tasks" / name
        path.write_text(text)
        path.chmod(0o755)
    yard.serve()
    yield yard
    yard.end()


def work(far: Far, shell: str = "sh") -> int:
    far.environment["TMPDIR"] = str(far.folder)
    process = far.program(shell, str(EXAMPLE), "tasks")
    far.until_at_work(1)
    return process.pid


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 60


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_it_runs_jobs(far: Far, shell: str) -> None:
    """S1-2, S1-21."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    work(far, shell)
    greet, say = far.enqueue("greet", name="Ada"), far.enqueue("say")
    fail = far.app.enqueue_by_name("fail", {}, allow_unknown=True, retries=0)

    far.until_done(greet, say)
    eventually(lambda: fail.status() is State.FAILED, far.log)

    assert greet.result(timeout=1) == {"greeting": "Hello Ada"}
    assert say.result(timeout=1) == 'no JSON "at all"\n'
    assert fail.job().error == "exit 3: out of paper\n"


def test_a_stop_gives_the_job_back(far: Far) -> None:
    pid = work(far)
    job = far.enqueue("hang")
    eventually((far.folder / "began").exists, far.log)

    os.kill(pid, signal.SIGTERM)
    eventually(lambda: far.workers() == [], far.log)

    assert job.status() is State.PENDING
    eventually(lambda: not list(far.folder.glob("tmp.*")), far.log)  # its own files are gone, too


def test_a_cancelled_job_is_stopped(far: Far) -> None:
    worker = EXAMPLE.read_text().replace("every=$(jq .beat_every", "every=0.2 # $(jq .beat_every")
    (far.folder / "quick.sh").write_text(worker)
    far.environment["TMPDIR"] = str(far.folder)
    far.program("sh", "quick.sh", "tasks")
    job = far.enqueue("hang")
    eventually((far.folder / "began").exists, far.log)
    began = time.monotonic()

    job.cancel()
    eventually(lambda: job.status() is State.CANCELLED, far.log)

    assert time.monotonic() - began < 30


def test_a_job_whose_claim_was_answered_in_vain_comes_back(far: Far) -> None:
    """S1-14, C3: the line is cut when the answer comes. Its jobs are short, so that it never beats."""
    with Cut(far.port, b'"jobs":[{') as line:
        far.environment["TMPDIR"] = str(far.folder)
        far.program("sh", str(EXAMPLE), "tasks", SHIGOTO_URL=line.url)
        far.until_at_work(1)
        job = far.enqueue("greet", name="Ada")
        eventually(line.cut.is_set, far.log)
        assert job.status() is State.PROCESSING

        far.until_done(job)

    assert job.result(timeout=1) == {"greeting": "Hello Ada"}
    assert job.job().crashes == 0
