"""The worker system of specification S0 as it is met in an empty folder: its commands, its log, its table.

Every command is a process of its own, and nothing is there but the installed package.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.yard import SHIGOTO, eventually

pytestmark = pytest.mark.engine("sqlite")

FINISHED = "SELECT count(*) FROM job_queue WHERE status IN ('completed', 'failed')"

# Tasks for what the four built-in ones cannot show: they take their time, and wait for nobody.
SHOP = """
import asyncio
from collections import Counter
from pathlib import Path
from shigoto import Context, Retry, Shigoto
from shigoto.observe.events import JobCompleted, JobEvent, JobFailedEvent

app = Shigoto("sqlite:///workers.db")
ended = Counter()

@app.task
async def wait(file: str) -> None:
    while not Path(file).exists():
        await asyncio.sleep(0.01)

@app.task
async def meet(ctx: Context, others: int) -> None:
    Path(f"met-{ctx.job_id}").touch()
    while len(list(Path().glob("met-*"))) <= others:
        await asyncio.sleep(0.01)

@app.task(retry=Retry.immediate(retries=1))
async def stumble(ctx: Context, file: str) -> None:
    await asyncio.sleep(0.05)
    if ctx.attempt == 1:
        raise ConnectionError("stumbled")
    await wait(file)

@app.task
async def count_to(number: int) -> int:
    if number < 0:
        raise ValueError("no such number")
    return number

def audit(event: JobEvent) -> None:
    ended[event.task, type(event).__name__] += 1
    with Path("audit").open("a") as file:
        file.write(f"{event.number} {event.task} {type(event).__name__} {event.attempt}\\n")
    Path("metrics").write_text("\\n".join(f"{task} {how} {count}" for (task, how), count in ended.items()))

def fail(event: JobEvent) -> None:
    raise RuntimeError("nobody's business")

app.bus.subscribe(fail, JobEvent)
app.bus.subscribe(audit, JobCompleted, JobFailedEvent)
"""


class Folder:
    """An empty folder, the commands that are run in it, and the workers that were started there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SHIGOTO_") and name != "WORKER_COUNT"
        }

    def use_shop(self) -> None:
        """From now on the commands have an app, instead of the built-in tasks."""
        (self.path / "shop.py").write_text(SHOP)
        self.environment["SHIGOTO_APP"] = "shop"

    def run(self, *words: str, code: int = 0) -> str:
        """What `shigoto WORDS` prints; everything it prints, if it is meant to fail."""
        done = subprocess.run(
            [*SHIGOTO, *words],
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    def worker(self, *words: str, store: str = "workers.db") -> "subprocess.Popen[bytes]":
        """`shigoto worker [db]`, started."""
        with (self.path / "log").open("ab") as log:
            process = subprocess.Popen(
                [*SHIGOTO, "worker", *([store] if store else []), *words],
                cwd=self.path,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def log(self) -> str:
        return (self.path / "log").read_text()

    def said(self) -> list[str]:
        """The sentences in the log, without their times and fields."""
        lines = re.findall(r"^\S+Z \w+ +shigoto\.worker (.*)$", self.log(), re.MULTILINE)
        return [re.sub(r"( \w+=(\"[^\"]*\"|\[[^]]*\]|\S+|))+$", "", line) for line in lines]

    def until_said(self, sentence: str) -> None:
        eventually(lambda: sentence in self.said(), self.log)

    def rows(
        self, statement: str = "SELECT * FROM job_queue ORDER BY id", store: str = "workers.db"
    ) -> list[Any]:
        with closing(sqlite3.connect(self.path / store, timeout=30)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(statement)]

    def until_finished(self, count: int) -> None:
        eventually(lambda: list(self.rows(FINISHED)[0].values()) == [count], self.log, within=60)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    yield folder
    folder.end()


def moment(text: str) -> datetime:
    """A time of the table, which is UTC and says so nowhere, or one of a command."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# The commands


def test_the_five_commands_work_in_an_empty_folder(folder: Folder) -> None:
    """S0-42, S0-43, S0-45, S0-46, S0-51, S0-75, S0-77: store a job in one terminal, run it in another, look, clear."""
    assert re.fullmatch(
        r"#1 \(\S+\) inserted\n", folder.run("enqueue", "workers.db", "user_created", "Test job", "5")
    )
    folder.run("enqueue", "workers.db", "email_notification", "hello", "--arg", 'recipients=["nowhere"]')
    assert [path.name for path in folder.path.glob("*.db")] == ["workers.db"]
    assert _counts(folder) == [2, 0, 0, 0]

    worker = folder.worker()
    folder.until_finished(2)

    assert _counts(folder) == [0, 0, 1, 1]
    listed = folder.run("list", "workers.db", "failed")
    assert "#2" in listed
    assert "not an e-mail address: nowhere" in listed
    assert "#1" not in listed

    folder.run("clear", "workers.db", "completed")

    assert [(row["id"], row["status"]) for row in folder.rows()] == [(2, "failed")]
    assert _counts(folder) == [0, 0, 0, 1]
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


def _counts(folder: Folder) -> list[int]:
    """The pending, processing, completed and failed jobs as `stats` prints them."""
    header, *_, total = [line.split() for line in folder.run("stats", "workers.db").splitlines()]
    return [int(total[header.index(state)]) for state in ("pending", "processing", "completed", "failed")]


def test_without_a_path_every_command_means_workers_db(folder: Folder) -> None:
    """S0-47, S0-51: enqueue, stats, list, worker and clear."""
    folder.run("enqueue", "data_export", "all")
    assert "data_export" in folder.run("list")
    folder.worker("--drain", store="").wait(30)

    assert "data_export" in folder.run("list", "completed")
    folder.run("clear", "completed")
    assert json.loads(folder.run("stats", "--json"))["total"]["completed"] == 0
    assert [path.name for path in folder.path.glob("*.db")] == ["workers.db"]


def test_a_type_that_nobody_knows_is_refused_when_it_is_enqueued(folder: Folder) -> None:
    """S0-25, S0-56"""
    told = folder.run("enqueue", "workers.db", "user_deleted", "x", code=1)

    assert "JOB.UNKNOWN_TASK" in told
    assert "user_created" in told
    assert list(folder.path.glob("*.db")) == []


# The table


def test_a_new_job_is_pending_with_three_retries_and_due_now(folder: Folder) -> None:
    """S0-7, S0-8, S0-9, S0-11, S0-14, S0-31: and its payload is a JSON object with what was given."""
    began_at = datetime.now(UTC) - timedelta(milliseconds=1)
    folder.run("enqueue", "workers.db", "user_created", "Test job", "5")
    folder.run("enqueue", "workers.db", "data_analysis", "later", "--delay", "1h")

    first, later = folder.rows()

    assert json.loads(first["payload"]) == {"message": "Test job"}
    assert (first["job_type"], first["status"], first["priority"]) == ("user_created", "pending", 5)
    assert (first["max_retries"], first["retry_count"], later["priority"]) == (3, 0, 0)
    assert first["scheduled_at"] == first["created_at"]
    assert (first["started_at"], first["completed_at"], first["error_message"]) == (None, None, None)
    assert moment(later["scheduled_at"]) - moment(later["created_at"]) == timedelta(hours=1)
    assert began_at <= moment(first["created_at"]) <= moment(later["created_at"]) <= datetime.now(UTC)


def test_the_table_tells_how_a_job_went(folder: Folder) -> None:
    """S0-6, S0-10, S0-12, S0-13, S0-36, S0-37, S0-38, S0-56: completed, waiting for a retry, failed for good."""
    folder.run("enqueue", "email_notification", "hello")
    folder.run("enqueue", "email_notification", "hello", "--arg", 'recipients=["ada@mail.invalid"]')
    folder.run("enqueue", "email_notification", "hello", "--arg", "validation_mode=strict")
    worker = folder.worker()
    folder.until_finished(2)
    eventually(lambda: folder.rows()[1]["retry_count"] == 1, folder.log)

    completed, retrying, failed = folder.rows()

    assert (completed["status"], completed["retry_count"], completed["error_message"]) == (
        "completed",
        0,
        None,
    )
    assert completed["created_at"] <= completed["started_at"] <= completed["completed_at"]
    ran_for = moment(completed["completed_at"]) - moment(completed["started_at"])
    assert ran_for >= timedelta(milliseconds=290)
    assert (retrying["status"], retrying["error_message"]) == ("pending", "TimeoutError: connection timeout")
    assert retrying["completed_at"] is None
    [first] = json.loads(folder.run("show", "2", "--json"))["attempts"]
    assert moment(retrying["scheduled_at"]) - moment(first["finished_at"]) == timedelta(minutes=5)
    assert (failed["status"], failed["retry_count"]) == ("failed", 1)
    assert failed["completed_at"] >= failed["started_at"]
    assert "recipients must be given" in failed["error_message"]
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


def test_the_table_tells_that_a_job_is_being_run(folder: Folder) -> None:
    """S0-6, S0-12, S0-34, S0-40, S0-46: processing, and since when; so says `stats`; and `clear` leaves it alone."""
    folder.use_shop()
    folder.run("enqueue", "wait", "--arg", "file=go")
    folder.worker()
    eventually(lambda: folder.rows()[0]["status"] == "processing", folder.log)

    [row] = folder.rows()

    assert row["created_at"] <= row["started_at"]
    assert row["completed_at"] is None
    assert _counts(folder) == [0, 1, 0, 0]
    folder.run("clear", "workers.db", "processing", "--yes", code=2)
    folder.run("clear", "workers.db", "all", "--yes")
    assert folder.rows() == [row]
    (folder.path / "go").touch()
    folder.until_finished(1)
    assert _counts(folder) == [0, 0, 1, 0]


def test_the_table_tells_when_the_latest_run_has_started(folder: Folder) -> None:
    """S0-12, S0-13, S0-34: of a job that is run again, neither time is that of its first run."""
    folder.use_shop()
    folder.run("enqueue", "stumble", "--arg", "file=go")
    folder.worker()
    eventually(
        lambda: (folder.rows()[0]["status"], folder.rows()[0]["retry_count"]) == ("processing", 1), folder.log
    )
    [first] = json.loads(folder.run("show", "1", "--json"))["attempts"]

    [running] = folder.rows()
    (folder.path / "go").touch()
    folder.until_finished(1)
    [completed] = folder.rows()

    assert moment(running["started_at"]) >= moment(first["finished_at"]) > moment(first["started_at"])
    assert completed["started_at"] == running["started_at"]
    assert completed["completed_at"] > running["started_at"]


def test_what_a_job_has_recorded_is_shown_with_it(folder: Folder) -> None:
    """S0-26, S0-27, S0-28: the profile and the sign-up, the result of the analysis, the log of deliveries."""
    user = ("--arg", "user_id=7", "--arg", 'additional_properties={"hobby": "chess", "location": "London"}')
    folder.run("enqueue", "user_created", "welcome", *user)
    folder.run("enqueue", "data_analysis", "analyse", *user)
    folder.run(
        "enqueue", "email_notification", "news", "--arg", 'recipients=["a@example.com", "b@example.com"]'
    )
    assert folder.worker("--drain").wait(60) == 0

    welcome, analysis, delivery = (folder.run("show", str(number)) for number in (1, 2, 3))

    assert "Counting a sign-up from London" in welcome
    assert "Setting up the profile of user 7" in welcome
    assert '"hobby":"chess"' in re.sub(r"\s", "", welcome)
    assert "The analysis gave Analysis(user_id=7, values=2" in analysis
    assert "Delivered to a@example.com: news" in delivery
    assert "Delivered to b@example.com: news" in delivery
    took = {row["job_type"]: moment(row["completed_at"]) - moment(row["started_at"]) for row in folder.rows()}
    for task, least in {"user_created": 500, "data_analysis": 2_000, "email_notification": 300}.items():
        assert took[task] >= timedelta(milliseconds=least - 10)


def test_the_most_urgent_job_is_taken_first_and_then_the_oldest(folder: Folder) -> None:
    """S0-7, S0-33, S1-2: the larger number is the more urgent, and 0 is the default."""
    for message, *priority in (("a",), ("b", "1"), ("c", "9"), ("d", "1"), ("e", "-1")):
        folder.run(
            "enqueue",
            "workers.db",
            "email_notification",
            message,
            *([] if not priority else ["--", *priority]),
        )
    folder.worker("--processes", "1", "--concurrency", "1", "--drain").wait(60)

    taken = [int(number) for number in re.findall(r"Processing job (\d+) ", folder.log())]

    assert taken == [3, 2, 4, 1, 5]


# The log


def test_a_worker_says_in_the_words_of_the_specification_what_it_does(folder: Folder) -> None:
    """S0-62, S0-63: N is the number of the worker, I that of the job."""
    folder.environment["WORKER_COUNT"] = "1"
    worker = folder.worker()
    folder.until_said("Worker 1 started")
    folder.run("enqueue", "user_created", "Test job")
    folder.run("enqueue", "email_notification", "hello", "--arg", 'recipients=["ada@mail.invalid"]')
    folder.until_said("Worker 1: Job 1 completed successfully")
    folder.until_said("Worker 1: Job 2 failed: TimeoutError: connection timeout")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0

    said = [sentence for sentence in folder.said() if sentence.startswith("Worker 1")]

    assert said[0] == "Worker 1 started"
    assert said[-2:] == ["Worker 1 received stop signal", "Worker 1 stopped"]
    assert Counter(said[1:-2]) == Counter(
        [
            "Worker 1: Processing job 1 (type: user_created)",
            "Worker 1: Job 1 completed successfully",
            "Worker 1: Processing job 2 (type: email_notification)",
            "Worker 1: Job 2 failed: TimeoutError: connection timeout",
        ]
    )
    assert said.index("Worker 1: Processing job 1 (type: user_created)") < said.index(
        "Worker 1: Job 1 completed successfully"
    )


@pytest.mark.parametrize(
    ("environment", "words", "end", "names"),
    [
        ({}, (), signal.SIGINT, ["1", "2", "3"]),
        ({"WORKER_COUNT": ""}, (), signal.SIGTERM, ["1", "2", "3"]),
        ({"WORKER_COUNT": "2"}, (), signal.SIGTERM, ["1", "2"]),
        ({"WORKER_COUNT": "2"}, ("--processes", "1"), signal.SIGINT, ["1"]),
        ({}, ("--processes", "0"), signal.SIGINT, ["1"]),
        ({}, ("--processes", "0"), signal.SIGTERM, ["1"]),
        ({}, ("--name", "desk", "--processes", "2"), signal.SIGINT, ["desk-1", "desk-2"]),
    ],
)
def test_workers_are_called_by_their_numbers(
    folder: Folder, environment: dict[str, str], words: tuple[str, ...], end: signal.Signals, names: list[str]
) -> None:
    """S0-23, S0-52, S0-62: three of them, or as many as WORKER_COUNT says; each starts, hears the signal and stops."""
    folder.environment |= environment
    worker = folder.worker(*words)
    for name in names:
        folder.until_said(f"Worker {name} started")
    worker.send_signal(end)

    assert worker.wait(30) == 0
    for event in ("started", "received stop signal", "stopped"):
        told = [sentence for sentence in folder.said() if sentence.endswith(event)]
        assert sorted(told) == [f"Worker {name} {event}" for name in names]


@pytest.mark.parametrize("count", ["many", "0", "-1", "2.5", "1001"])
def test_a_count_that_is_no_number_of_workers_is_refused(folder: Folder, count: str) -> None:
    """S0-23"""
    folder.environment["WORKER_COUNT"] = count

    assert "WORKER_COUNT must be a whole number from 1 to" in folder.run("worker", "--drain", code=2)
    assert list(folder.path.iterdir()) == []


# Who watches


def test_completion_and_failure_are_heard_by_whoever_keeps_an_audit_log_or_metrics(folder: Folder) -> None:
    """S0-66, but for webhooks: subscribers of the app's bus hear every end of a job, in whichever process of a worker
    it came; one that fails changes nothing."""
    folder.use_shop()
    for number in (1, 2, -1):
        folder.run("enqueue", "count_to", "--arg", f"number={number}", "--retries", "0")
    assert folder.worker("--drain", "--concurrency", "1").wait(60) == 0

    audit = (folder.path / "audit").read_text().splitlines()
    metrics = (folder.path / "metrics").read_text().splitlines()

    assert sorted(audit) == [
        "1 count_to JobCompleted 1",
        "2 count_to JobCompleted 1",
        "3 count_to JobFailedEvent 1",
    ]
    assert sorted(metrics) == ["count_to JobCompleted 2", "count_to JobFailedEvent 1"]
    assert [row["status"] for row in folder.rows()] == ["completed", "completed", "failed"]


# Load


def test_two_thousand_jobs_on_three_worker_processes_run_once_each(folder: Folder) -> None:
    """S0-57, S0-68, S0-75, S0-76: they share one file, and nobody takes what another has taken."""
    many = (
        "from shigoto.demo import app; app = app(); send = app.tasks['email_notification'];"
        " app.enqueue_many(send.call(message=str(n)) for n in range(2_000)); app.close()"
    )
    subprocess.run(
        [sys.executable, "-c", many], cwd=folder.path, env=folder.environment, check=True, timeout=60
    )

    assert folder.worker("--drain").wait(110) == 0

    ran = re.findall(r"Worker [123]: Processing job (\d+) ", folder.log())
    assert sorted(int(number) for number in ran) == list(range(1, 2_001))
    rows = folder.rows("SELECT status, retry_count FROM job_queue")
    assert Counter((row["status"], row["retry_count"]) for row in rows) == {("completed", 0): 2_000}


def test_jobs_run_side_by_side(folder: Folder) -> None:
    """S0-22, S0-59: one job a second for each of three workers was expected; here nine of one single worker end only
    because all nine have begun, so none waits for another or for the clock."""
    folder.use_shop()
    for _ in range(9):
        folder.run("enqueue", "meet", "--arg", "others=8")
    folder.worker("--processes", "1")

    folder.until_finished(9)

    assert {row["status"] for row in folder.rows()} == {"completed"}
