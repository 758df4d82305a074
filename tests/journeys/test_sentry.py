"""Sentry hears of final failures, once each, and of nothing else: `shigoto worker` and a Sentry of our own."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.tools.sinks import Sink, sink
from shigoto import JobHandle, State
from tests.journeys.yard import Yard, ended_within, eventually

SHOP = """
import os, signal, sqlite3
from datetime import timedelta
from pathlib import Path
from shigoto import Cancel, Fail, Retry, Shigoto, Snooze

app = Shigoto("sqlite:///shop.db", unknown_after=timedelta(seconds=1))
SOON = Retry.linear(seconds=0.05, retries=2)

def tried(name):
    with Path(name).open("a") as tries:
        tries.write("x")
    return len(Path(name).read_text())

@app.task(retry=SOON)
async def charge(card: str) -> None:
    held = f"in a frame: {card}"
    tried("charges")
    raise ConnectionError("the bank is away")

@app.task(retry=SOON)
def charge_in_thread(card: str) -> None:
    raise ConnectionError("the bank is away")

@app.task(retry=SOON, executor="process")
def charge_apart(card: str) -> None:
    raise ConnectionError("the bank is away")

@app.task(retry=SOON)
async def read_database(fails: int) -> str:
    if tried("reads") <= fails:
        raise sqlite3.OperationalError("database is locked")
    return "read"

@app.task
async def cancels() -> None:
    raise Cancel("not wanted")

@app.task
async def snoozes() -> None:
    if tried("snoozes") == 1:
        raise Snooze(0.05)

@app.task
async def waits() -> None:
    import asyncio
    Path("waiting").touch()
    await asyncio.sleep(60)

@app.task(max_crashes=1, executor="process")
def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def heard() -> Iterator[Sink]:
    with sink() as heard:
        yield heard


@pytest.fixture
def yard(tmp_path: Path, heard: Sink) -> Iterator[Yard]:
    yard = Yard(tmp_path, SHOP)
    yard.environment |= {"SHIGOTO_SENTRY": "on", "SENTRY_DSN": heard.dsn, "SENTRY_ENVIRONMENT": "test"}
    try:
        yield yard
    finally:
        yard.end()


def ended(job: JobHandle[object]) -> bool:
    return job.job().state.terminal


@pytest.mark.parametrize("task", ["charge", "charge_in_thread", "charge_apart"])
def test_using_up_the_retries_gives_exactly_one_event_with_task_tenant_and_attempt(
    yard: Yard, heard: Sink, task: str
) -> None:
    """S3-15, S3-43, S3-62 = GWT-10: and none for the retries before."""
    job = yard.app.enqueue_by_name(
        task, {"card": "4111-secret"}, allow_unknown=True, retries=2, tenant="store-1"
    )
    worker = yard.start()
    eventually(lambda: ended(job), yard.log)
    worker.send_signal(signal.SIGTERM)
    assert ended_within(worker, 28) == 0

    [event] = heard.failures
    assert event["tags"] == {
        "task": task,
        "tenant": "store-1",
        "attempt": "3",
        "job_id": str(job.id),
        "queue": "default",
        "kind": "error",
    }
    [exception] = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("ConnectionError", "the bank is away")
    frame = exception["stacktrace"]["frames"][-1]
    assert (frame["function"], frame["context_line"]) == (task, 'raise ConnectionError("the bank is away")')
    assert event["environment"] == "test"
    assert b"4111-secret" not in heard.raw


def test_a_passing_failure_of_the_database_is_retried_up_to_the_configured_attempts(
    yard: Yard, heard: Sink
) -> None:
    """S3-61 = GWT-9: two retries are configured, and the third attempt succeeds; nobody is told."""
    job = yard.app.enqueue_by_name("read_database", {"fails": 2}, allow_unknown=True, retries=2)
    worker = yard.start()
    eventually(lambda: ended(job), yard.log)
    worker.send_signal(signal.SIGTERM)
    worker.wait(30)

    record = job.job()
    assert (record.state, record.attempt, record.failures) == (State.COMPLETED, 3, 2)
    assert json.loads(record.result or "") == "read"
    assert heard.failures == []


def test_a_failure_of_the_database_that_does_not_pass_ends_after_the_configured_attempts(
    yard: Yard, heard: Sink
) -> None:
    """S3-61 = GWT-9, S3-62 = GWT-10"""
    job = yard.app.enqueue_by_name("read_database", {"fails": 99}, allow_unknown=True, retries=2)
    worker = yard.start()
    eventually(lambda: ended(job), yard.log)
    worker.send_signal(signal.SIGTERM)
    worker.wait(30)

    assert (job.job().state, job.job().attempt) == (State.FAILED, 3)
    assert (yard.folder / "reads").read_text() == "xxx"
    assert [event["tags"]["task"] for event in heard.failures] == ["read_database"]


def test_cancels_snoozes_and_releases_are_no_failures(yard: Yard, heard: Sink) -> None:
    """S3-43"""
    jobs = [yard.enqueue("cancels"), yard.enqueue("snoozes")]
    waiting = yard.enqueue("waits")
    worker = yard.start("--stop-timeout", "3")
    eventually(lambda: all(map(ended, jobs)) and (yard.folder / "waiting").exists(), yard.log)
    worker.send_signal(signal.SIGTERM)
    worker.wait(30)

    assert [job.job().state for job in jobs] == [State.CANCELLED, State.COMPLETED]
    assert (waiting.job().state, waiting.job().releases) == (State.PENDING, 1)
    assert heard.failures == []


def test_a_crash_too_many_is_told_once(yard: Yard, heard: Sink) -> None:
    """S3-43: the worker finds its child dead, and quarantines the job."""
    job = yard.app.enqueue_by_name("dies", {}, allow_unknown=True, max_crashes=1)
    worker = yard.start()
    eventually(lambda: ended(job), yard.log)
    worker.send_signal(signal.SIGTERM)
    worker.wait(30)

    [event] = heard.failures
    assert (event["tags"]["task"], event["tags"]["kind"]) == ("dies", "crash_loop")
    assert event["tags"]["job_id"] == str(job.id)


def test_the_supervisor_tells_of_tasks_that_nobody_knows(yard: Yard, heard: Sink) -> None:
    """The one who sweeps makes the transition: a process that has none of the app's code."""
    job = yard.enqueue("unheard_of")
    worker = yard.start("--lease", "2")
    eventually(lambda: ended(job), yard.log)
    worker.send_signal(signal.SIGTERM)
    worker.wait(30)

    assert [(event["tags"]["task"], event["tags"]["kind"]) for event in heard.failures] == [
        ("unheard_of", "unknown_task")
    ]


def test_a_sentry_that_does_not_answer_delays_no_stop(yard: Yard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        yard.environment |= {"SENTRY_DSN": f"http://key@127.0.0.1:{deaf.getsockname()[1]}/7"}
        job = yard.app.enqueue_by_name("charge", {"card": "1"}, allow_unknown=True, retries=0)
        worker = yard.start("--stop-timeout", "6")
        eventually(lambda: ended(job), yard.log)
        worker.send_signal(signal.SIGTERM)

        assert ended_within(worker, 6) == 0


def test_a_sentry_and_a_collector_that_never_answer_do_not_hold_up_the_end(yard: Yard) -> None:
    """What is not sent in the time that there is for it is not waited for a second time."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        yard.environment |= {
            "SENTRY_DSN": f"http://key@127.0.0.1:{port}/1",
            "SHIGOTO_TRACES": "on",
            "SHIGOTO_OTLP_METRICS": "on",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        }
        job = yard.app.enqueue_by_name("cancels", {}, allow_unknown=True)
        failed = yard.app.enqueue_by_name("charge", {"card": "1"}, allow_unknown=True, retries=0)
        worker = yard.start()
        eventually(lambda: ended(job) and ended(failed), yard.log)
        began = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        assert ended_within(worker, 28) == 0

    assert time.monotonic() - began < 4
