"""A worker in one process, commands in others, on one file."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

SHIGOTO = [sys.executable, "-m", "shigoto"]

SHOP = """
import logging
import time
from pathlib import Path

from shigoto import Retry, Shigoto

app = Shigoto("sqlite:///shop.db")

@app.task
async def count(n: int) -> None:
    with Path("runs").open("a") as runs:
        runs.write(f"{n}\\n")

@app.task
def wait_for(file: str, seconds: float = 60) -> str:
    Path(file + ".begun").touch()
    deadline = time.monotonic() + seconds
    while not Path(file).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return "seen"

@app.task
async def hang(file: str) -> None:
    import asyncio
    Path(file + ".begun").touch()
    await asyncio.sleep(600)

@app.task(retry=Retry.never())
async def fail() -> None:
    logging.getLogger("shop").warning("about to fail")
    raise ValueError("out of stock")
"""


class Yard:
    """A folder of its own, with commands and worker processes in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SHIGOTO_")
        }

    def run(self, *words: str) -> str:
        """What a command prints; it must succeed."""
        done = subprocess.run(
            [*SHIGOTO, *words],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def jobs(self, *words: str) -> list[dict[str, Any]]:
        """The jobs that `list` finds, oldest first."""
        jobs: list[dict[str, Any]] = json.loads(self.run("list", *words, "--json"))
        return jobs[::-1]

    def start(self, *words: str, log: str = "worker.log") -> "subprocess.Popen[bytes]":
        """A worker, once it has said that it started."""
        with (self.folder / log).open("wb") as file:
            process = subprocess.Popen(
                [*SHIGOTO, *words],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stderr=file,
            )
        self._processes.append(process)
        self.wait_for_line(r"Worker \S+ started", log)
        return process

    def log(self, name: str = "worker.log") -> str:
        return (self.folder / name).read_text()

    def wait_for_line(self, pattern: str, log: str = "worker.log") -> None:
        eventually(lambda: re.search(pattern, self.log(log)) is not None, tell=lambda: self.log(log))

    def wait_for_file(self, name: str) -> None:
        eventually((self.folder / name).exists)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def eventually(
    condition: Callable[[], bool], within: float = 20.0, tell: Callable[[], str] = lambda: ""
) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in time {tell()}"
        time.sleep(0.02)


def seconds_between(record: dict[str, Any], first: str, last: str) -> float:
    begin, end = (datetime.fromisoformat(record[name]) for name in (first, last))
    return (end - begin).total_seconds()


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    (tmp_path / "shop.py").write_text(SHOP)
    yard = Yard(tmp_path)
    yield yard
    yard.end()


def test_a_worker_in_one_terminal_runs_what_another_enqueues(yard: Yard) -> None:
    """S0-51, S0-58, S0-77: `worker` on workers.db, `enqueue` elsewhere; picked up within a second."""
    worker = yard.start("worker", "--name", "1")

    yard.run("enqueue", "email_notification", "hello")
    yard.wait_for_line(r"Job 1 completed successfully")

    [job] = yard.jobs("completed")
    assert seconds_between(job, "created_at", "started_at") < 1
    assert worker.poll() is None


def test_the_worker_says_what_it_does(yard: Yard) -> None:
    """S0-62, S0-63: the sentences of a worker's log."""
    worker = yard.start("--app", "shop", "worker", "--name", "1")
    yard.run("--app", "shop", "enqueue", "count", '{"n": 1}')
    yard.run("--app", "shop", "enqueue", "fail")
    yard.wait_for_line("Job 2 failed")
    worker.send_signal(signal.SIGTERM)
    worker.wait(30)

    log = yard.log()
    for sentence in (
        "Worker 1 started",
        "Worker 1: Processing job 1 (type: count)",
        "Worker 1: Job 1 completed successfully",
        "Worker 1: Processing job 2 (type: fail)",
        "Worker 1: Job 2 failed: ValueError: out of stock",
        "Worker 1 received stop signal",
        "Worker 1 stopped",
    ):
        assert sentence in log
    assert re.search(r"about to fail job_id=\S+ number=2 task=fail queue=\S+ .*attempt=1", log)


def test_the_log_can_be_json(yard: Yard) -> None:
    worker = yard.start("--app", "shop", "worker", "--drain", "--log-format", "json")

    assert worker.wait(30) == 0
    lines = [json.loads(line) for line in yard.log().splitlines()]
    assert lines[-1]["message"].endswith("stopped")
    assert lines[-1]["reason"] == "drained"


def test_the_counts_are_logged_again_and_again(yard: Yard) -> None:
    """S0-53: a line of the form "Job Stats - Pending: n, Processing: n, Completed: n, Failed: n"."""
    yard.run("enqueue", "jobs.db", "user_created", "--delay", "1h")
    yard.start("worker", "jobs.db", "--stats-every", "0.1")

    yard.wait_for_line(r"(?s)(Job Stats - Pending: 1, Processing: 0, Completed: 0, Failed: 0 .*){2}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_jobs_finish(yard: Yard, number: signal.Signals) -> None:
    """S0-21, S3-10: stopping signals the worker, which takes no more and waits for every job in flight."""
    worker = yard.start("--app", "shop", "worker", "--threads", "1")
    for _ in range(2):
        yard.run("--app", "shop", "enqueue", "wait_for", "--arg", "file=go")
    yard.wait_for_file("go.begun")

    worker.send_signal(number)
    yard.wait_for_line("received stop signal")
    assert worker.poll() is None
    (yard.folder / "go").touch()

    assert worker.wait(30) == 0
    first, second = yard.jobs("shop.db", "all")
    assert (first["state"], first["result"]) == ("completed", "seen")
    assert (second["state"], second["attempt"]) == ("pending", 0)


def test_a_second_signal_makes_it_hurry_and_the_job_is_given_back(yard: Yard) -> None:
    worker = yard.start("--app", "shop", "worker")
    yard.run("--app", "shop", "enqueue", "hang", "--arg", "file=h")
    yard.wait_for_file("h.begun")

    worker.send_signal(signal.SIGTERM)
    yard.wait_for_line("received stop signal")
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(10) == 0
    [job] = yard.jobs("shop.db", "pending")
    assert (job["attempt"], job["failures"], job["releases"]) == (0, 0, 1)


def test_a_thread_that_does_not_stop_does_not_keep_the_process(yard: Yard) -> None:
    worker = yard.start("--app", "shop", "worker")
    yard.run("--app", "shop", "enqueue", "wait_for", "--arg", "file=never")
    yard.wait_for_file("never.begun")

    worker.send_signal(signal.SIGTERM)
    yard.wait_for_line("received stop signal")
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(15) == 0
    [job] = yard.jobs("shop.db", "pending")
    assert (job["failures"], job["releases"]) == (0, 1)


def test_two_workers_share_a_file_and_run_every_job_once(yard: Yard) -> None:
    """S0-57, S0-68: several worker processes on one SQLite file; each job runs exactly once."""
    enqueue = "from shop import app, count; app.enqueue_many(count.call(n) for n in range(500)); app.close()"
    workers = [yard.start("--app", "shop", "worker", log=f"{number}.log") for number in (1, 2)]

    subprocess.run([sys.executable, "-c", enqueue], cwd=yard.folder, check=True, timeout=60)
    eventually(lambda: json.loads(yard.run("stats", "shop.db", "--json"))["total"]["completed"] == 500)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)

    assert [worker.wait(30) for worker in workers] == [0, 0]
    runs = (yard.folder / "runs").read_text().split()
    assert sorted(map(int, runs)) == list(range(500))
    assert all("completed successfully" in yard.log(f"{number}.log") for number in (1, 2))


def test_a_worker_keeps_to_its_queues_and_drains_them(yard: Yard) -> None:
    for queue in ("a", "b", "c"):
        yard.run("enqueue", "email_notification", queue, "--queue", queue)

    worker = yard.start("worker", "--queues", "a, b", "--drain")

    assert worker.wait(30) == 0
    assert {job["queue"]: job["state"] for job in yard.jobs("all")} == {
        "a": "completed",
        "b": "completed",
        "c": "pending",
    }


def test_a_worker_stops_when_its_standard_input_ends(yard: Yard) -> None:
    with (yard.folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [*SHIGOTO, "worker", "--stop-on-eof"], cwd=yard.folder, stdin=subprocess.PIPE, stderr=log
        )
    try:
        yard.wait_for_line("started")
        assert worker.stdin is not None
        worker.stdin.write(b"words that nobody reads\n")
        worker.stdin.flush()
        yard.run("enqueue", "email_notification", "hello")
        yard.wait_for_line("completed successfully")

        worker.stdin.close()

        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()


def test_the_built_in_tasks_take_their_payload_and_their_time(yard: Yard) -> None:
    """S0-25…S0-29: four job types, what they take, what they do, and how long it takes."""
    user = ["--arg", "user_id=7", "--arg", 'user_data={"name":"Ada"}']
    extra = ["--arg", 'additional_properties={"hobby":"chess","location":"London","score":9}']
    mails = ["--arg", 'recipients=["a@example.com","b@example.com"]', "--arg", "validation_mode=strict"]
    yard.run("enqueue", "user_created", "welcome", "1", *user, *extra)
    yard.run("enqueue", "data_analysis", "analyse", *user, *extra, *mails)
    yard.run("enqueue", "email_notification", "news", *mails)
    yard.run("enqueue", "data_export", "export", *user)

    assert yard.start("worker", "--drain").wait(30) == 0

    jobs = {job["task"]: job for job in yard.jobs("completed")}
    recipients = ["a@example.com", "b@example.com"]
    assert {task: job["result"] for task, job in jobs.items()} == {
        "user_created": {
            "mail": "welcome",
            "sign_up": {"user_id": 7, "location": "London"},
            "profile": {"user_id": 7, "hobby": "chess", "location": "London", "score": 9},
        },
        "data_analysis": {
            "user_id": 7,
            "values": 4,
            "numbers": 1,
            "mean": 9.0,
            "validation_mode": "strict",
        },
        "email_notification": [{"recipient": recipient, "message": "news"} for recipient in recipients],
        "data_export": {"file": "export-7.json", "values": 1},
    }
    times = {"user_created": 0.5, "data_analysis": 2.0, "email_notification": 0.3, "data_export": 1.0}
    for task, seconds in times.items():
        assert seconds - 0.05 < seconds_between(jobs[task], "started_at", "finished_at") < seconds + 3
    log = yard.log()
    assert "Sending a welcome mail to user 7: welcome" in log
    assert "Counting a sign-up from London" in log
    assert "Setting up the profile of user 7" in log
    assert (
        "The analysis gave Analysis(user_id=7, values=4, numbers=1, mean=9.0, validation_mode='strict')"
        in log
    )
    assert "Delivered to b@example.com: news" in log
    assert "Would have exported export-7.json" in log


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_worker_without_an_app_says_once_that_none_is_named(yard: Yard, processes: str) -> None:
    notice = "No app is named: these are the built-in tasks. Name yours with --app module:attr,"

    yard.start("worker", "--drain", "--processes", processes).wait(30)
    yard.start("--app", "shop", "worker", "--drain", "--processes", processes, log="shop.log").wait(30)

    first, *others = yard.log().splitlines()
    assert notice in first
    assert all(notice not in line for line in others)
    assert "No app is named" not in yard.log("shop.log")
