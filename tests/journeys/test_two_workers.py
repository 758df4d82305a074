"""Two worker processes share one file; what ran is written down outside the store."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from shigoto import Shigoto

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(300)]

JOBS = 20_000

# Neither begins before both are there: on a busy machine one could otherwise be done before the other has started.
TASKS = """
import os, pathlib, time
from shigoto import Shigoto

app = Shigoto("sqlite:///jobs.db")
ledger = os.open(f"ran.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
deadline = time.monotonic() + 60
while len(list(pathlib.Path().glob("ran.*"))) < 2 and time.monotonic() < deadline:
    time.sleep(0.005)


@app.task
async def asynchronous(number: int) -> int:
    os.write(ledger, b"%d\\n" % number)
    return number


@app.task
def in_a_thread(number: int) -> int:
    os.write(ledger, b"%d\\n" % number)
    return number
"""


def test_twenty_thousand_jobs_are_each_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S0-57, S0-68, S1-5, S1-12: workers scale out, and no job is run by two of them."""
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [
        sys.executable,
        "-m",
        "shigoto",
        "--app",
        "tasks:app",
        "worker",
        "--drain",
        "--log-level",
        "warning",
    ]
    app = Shigoto(f"sqlite:///{tmp_path / 'jobs.db'}")
    for first in range(0, JOBS, 1000):
        for number in range(first, first + 1000, 500):
            task = "asynchronous" if number % 1000 == 0 else "in_a_thread"
            enqueue(app, task, range(number, number + 500))

    workers = [subprocess.Popen(command, cwd=tmp_path, env=environment) for _ in range(2)]
    try:
        assert [worker.wait(240) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()

    ran = {path.name: path.read_text().split() for path in tmp_path.glob("ran.*")}
    assert Counter(number for numbers in ran.values() for number in numbers) == Counter(map(str, range(JOBS)))
    assert sum(bool(numbers) for numbers in ran.values()) == 2, "both workers took part"
    counts = app.stats()["default"]
    assert (counts.completed, counts.pending, counts.processing, counts.failed) == (JOBS, 0, 0, 0)
    assert all(job.attempt == 1 for job in app.find(limit=1000))
    app.close()


def enqueue(app: Shigoto, task: str, numbers: range) -> None:
    """In one transaction of our own, which is much faster than one commit each."""
    connection = app.connect()
    with connection:
        for number in numbers:
            app.enqueue_by_name(task, {"number": number}, allow_unknown=True, connection=connection)
    connection.close()
