"""Traces of jobs across processes: `shigoto server`, `shigoto worker` and a collector, which is told by OTLP."""

import json
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.tools.sinks import ERROR, Sink, Span, sink
from shigoto import Shigoto, State
from tests.journeys.ground import opened
from tests.journeys.yard import SHIGOTO, Yard, ended_within, eventually

SHOP = """
import os, signal, time
from pathlib import Path
from opentelemetry import trace
from shigoto import Retry, Shigoto

app = Shigoto(os.environ.get("SHOP_URL", "sqlite:///shop.db"))
tracer = trace.get_tracer("shop")

@app.task
async def greet(name: str) -> str:
    with tracer.start_as_current_span("inside"):
        return f"Hello, {name}"

@app.task
def in_thread(name: str) -> str:
    with tracer.start_as_current_span("inside"):
        return f"Hello, {name}"

@app.task(executor="process")
def apart(name: str) -> str:
    with tracer.start_as_current_span("inside"):
        return f"Hello, {name}"

@app.task(executor="process")
async def apart_async(name: str) -> str:
    with tracer.start_as_current_span("inside"):
        return f"Hello, {name}"

@app.task
async def outer(name: str) -> None:
    await greet.aenqueue(name)

@app.task(retry=Retry.linear(seconds=0.05, retries=3))
async def flaky(card: str) -> str:
    tries = Path("tries")
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    if len(tries.read_text()) < 3:
        raise ConnectionError("the bank is away")
    return "paid"

@app.task(timeout=0.3, retries=0)
def slow() -> None:
    time.sleep(60)
"""
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{CALLER}-01"


@pytest.fixture
def heard() -> Iterator[Sink]:
    with sink() as heard:
        yield heard


@pytest.fixture
def yard(tmp_path: Path, heard: Sink) -> Iterator[Yard]:
    yard = Yard(tmp_path, SHOP)
    yard.environment |= told_to(heard)
    try:
        yield yard
    finally:
        yard.end()


def told_to(heard: Sink) -> dict[str, str]:
    return {
        "SHIGOTO_TRACES": "on",
        "OTEL_EXPORTER_OTLP_ENDPOINT": heard.url,
        "OTEL_SERVICE_NAME": "shop",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }


class Served:
    """`shigoto server` before the store of a yard."""

    def __init__(self, yard: Yard) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port: int = found.getsockname()[1]
        with (yard.folder / "server-log").open("ab") as file:
            self.process = subprocess.Popen(
                [*SHIGOTO, "--app", "shop", "server", "--port", str(self.port)],
                cwd=yard.folder,
                env=yard.environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        yard._processes.append(self.process)
        yard.until_logged("Serves http", "server-log")

    def submit(self, task: str, traceparent: str | None, **arguments: object) -> str:
        """Store a job by HTTP, and tell its id."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/v1/jobs",
            data=json.dumps({"task": task, "payload": arguments, "meta": {"order": 7}}).encode(),
            headers={
                "content-type": "application/json",
                **({} if traceparent is None else {"traceparent": traceparent, "tracestate": "vendor=1"}),
            },
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            made: dict[str, str] = json.load(answer)
        return made["id"]


@pytest.mark.parametrize("task", ["greet", "in_thread", "apart", "apart_async"])
def test_an_http_request_the_enqueue_the_wait_and_the_run_on_another_process_are_one_trace(
    yard: Yard, heard: Sink, task: str
) -> None:
    """S0-73"""
    server = Served(yard)
    worker = yard.start()
    job = server.submit(task, HEADER, name="Ada")
    eventually(lambda: {"inside", f"run {task}"} <= {span.name for span in heard.spans}, yard.log)

    request, enqueue = heard.span("POST /api/v1/jobs"), heard.span(f"enqueue {task}")
    wait, run, inside = heard.span(f"wait {task}"), heard.span(f"run {task}"), heard.span("inside")
    assert {span.trace for span in heard.spans} == {TRACE}
    assert [request.parent, enqueue.parent, wait.parent] == [CALLER, request.id, enqueue.id]
    assert [run.parent, inside.parent] == [wait.id, run.id]
    processes = [span.resource["service.instance.id"] for span in (request, enqueue, wait, run, inside)]
    assert processes[0] == processes[1] != processes[2] == processes[3] == processes[4]
    assert {span.resource["service.name"] for span in heard.spans} == {"shop"}
    for span in (enqueue, wait, run):
        assert span.attributes["messaging.system"] == "shigoto"
        assert span.attributes["messaging.message.id"] == job
        assert span.attributes["shigoto.task"] == task
        assert span.attributes["messaging.destination.name"] == "default"
    assert run.attributes["shigoto.attempt"] == 1
    assert run.attributes["shigoto.outcome"] == "completed"
    assert wait.start <= wait.end <= run.end
    meta = json.loads(yard.app.job(job).job().meta or "")
    assert meta == {"order": 7, "traceparent": f"00-{TRACE}-{enqueue.id}-01", "tracestate": "vendor=1"}

    server.process.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGTERM)
    assert [ended_within(server.process, 15), ended_within(worker, 28)] == [0, 0]


def test_each_attempt_has_a_wait_and_a_run_in_the_same_trace(yard: Yard, heard: Sink) -> None:
    """S0-73"""
    server = Served(yard)
    yard.start()
    server.submit("flaky", HEADER, card="4111-secret")
    eventually(lambda: len(heard.named("run flaky")) == 3, yard.log)

    enqueue, waits, runs = heard.span("enqueue flaky"), heard.named("wait flaky"), heard.named("run flaky")
    assert {span.trace for span in heard.spans} == {TRACE}
    assert [wait.parent for wait in waits] == [enqueue.id] * 3
    assert [run.parent for run in runs] == [wait.id for wait in waits]
    assert [run.attributes["shigoto.attempt"] for run in runs] == [1, 2, 3]
    assert [run.attributes["shigoto.outcome"] for run in runs] == ["retried", "retried", "completed"]
    assert [run.status == ERROR for run in runs] == [True, True, False]
    [(name, told)] = runs[0].events
    assert name == "exception"
    assert (told["exception.type"], told["exception.message"]) == ("ConnectionError", "the bank is away")
    assert "in flaky" in told["exception.stacktrace"]
    assert b"4111-secret" not in heard.raw


def test_what_a_handler_enqueues_belongs_to_its_trace(yard: Yard, heard: Sink) -> None:
    server = Served(yard)
    yard.start()
    server.submit("outer", HEADER, name="Ada")
    eventually(lambda: "run greet" in {span.name for span in heard.spans}, yard.log)

    assert {span.trace for span in heard.spans} == {TRACE}
    assert heard.span("enqueue greet").parent == heard.span("run outer").id


def test_a_request_that_is_not_sampled_leaves_no_span_and_no_meta(yard: Yard, heard: Sink) -> None:
    """What the producer has decided holds for the handler's own spans, too."""
    server = Served(yard)
    worker = yard.start()
    job = server.submit("greet", HEADER.removesuffix("01") + "00", name="Ada")
    eventually(lambda: yard.app.job(job).status() is State.COMPLETED, yard.log)
    for process in (worker, server.process):
        process.send_signal(signal.SIGTERM)
        process.wait(30)

    assert heard.spans == []
    assert json.loads(yard.app.job(job).job().meta or "") == {"order": 7}


def test_a_run_that_is_cut_at_its_limit_has_a_span(yard: Yard, heard: Sink) -> None:
    """Its process is killed, but not before the span has left."""
    server = Served(yard)
    yard.start()
    server.submit("slow", HEADER)
    eventually(lambda: "run slow" in {span.name for span in heard.spans}, yard.log)

    run = heard.span("run slow")
    assert (run.status, run.attributes["shigoto.outcome"]) == (ERROR, "failed")
    assert run.events[0][1]["exception.type"] == "TimeoutError"


def test_a_dead_collector_neither_delays_nor_breaks_a_job(yard: Yard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # it accepts, and never answers
        yard.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{deaf.getsockname()[1]}"}
        server = Served(yard)
        worker = yard.start("--stop-timeout", "6")
        jobs = [server.submit("greet", HEADER, name=str(number)) for number in range(5)]
        eventually(lambda: all(yard.app.job(job).status() is State.COMPLETED for job in jobs), yard.log)
        asked_at = time.monotonic()
        worker.send_signal(signal.SIGTERM)

        assert ended_within(worker, 6) == 0
        assert time.monotonic() - asked_at < 7
        assert yard.app.job(jobs[0]).job().attempt == 1


@pytest.mark.engine("postgres")
@pytest.mark.newest_postgres
def test_a_trace_goes_through_postgresql(tmp_path: Path, postgres_database: str, heard: Sink) -> None:
    """S0-73"""
    with opened(tmp_path, postgres_database) as ground:
        ground.bootstrap()
        ground.migrate()
        yard = Yard(tmp_path, SHOP)
        yard.environment = ground.environment | told_to(heard) | {"SHOP_URL": ground.runtime_url}
        yard.app = Shigoto(ground.runtime_url)
        try:
            server = Served(yard)
            yard.start()
            server.submit("greet", HEADER, name="Ada")
            eventually(lambda: "run greet" in {span.name for span in heard.spans}, yard.log)
        finally:
            yard.end()

    names = ("POST /api/v1/jobs", "enqueue greet", "wait greet", "run greet")
    chain: list[Span] = [heard.span(name) for name in names]
    assert [span.parent for span in chain] == [CALLER, *(span.id for span in chain[:-1])]
    assert {span.trace for span in chain} == {TRACE}


def test_the_command_line_begins_a_trace(yard: Yard, heard: Sink) -> None:
    """A program that only enqueues sends its spans before it ends."""
    done = subprocess.run(
        [*SHIGOTO, "--app", "shop", "enqueue", "greet", "--arg", "name=Ada"],
        cwd=yard.folder,
        env=yard.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    yard.start("--drain")
    eventually(lambda: "run greet" in {span.name for span in heard.spans}, yard.log)

    assert heard.span("enqueue greet").parent == ""
    assert heard.span("wait greet").parent == heard.span("enqueue greet").id
    assert len({span.trace for span in heard.spans}) == 1
