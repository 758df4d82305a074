"""Traces in one process: every way to store a job, what is recorded of a run, and what is not."""

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from faults.tools.sinks import ERROR, Sink, points_of, sink
from shigoto import Call, Context, DeclarationError, Encryption, JobHandle, Shigoto, Snooze, Traces
from shigoto.model.errors import StoreError
from shigoto.observe.events import JobStarted, JobStuck, TickFired
from shigoto.observe.metrics import FAMILIES
from shigoto.observe.otlp_metrics import NAMES, SECONDS, metrics_of
from shigoto.observe.settings import chosen_traces
from shigoto.observe.tracing import carried
from shigoto.scheduler import Scheduler
from shigoto.worker import Worker

TRACE = 0x0AF7651916CD43DD8448EB211C80319C


@pytest.fixture
def heard() -> Iterator[Sink]:
    with sink() as heard:
        yield heard


@pytest.fixture
def app(tmp_path: Path, heard: Sink) -> Iterator[Shigoto]:
    app = made(tmp_path, Traces(endpoint=heard.url))
    yield app
    app.close()


def made(folder: Path, traces: Traces | None, encryption: Encryption | None = None) -> Shigoto:
    app = Shigoto(folder / "jobs.db", traces=traces, encryption=encryption)

    @app.task
    async def greet(name: str) -> str:
        return f"Hello, {name}"

    @app.task
    def loud(name: str) -> str:
        return name.upper()

    @app.task(retries=0)
    async def fail(name: str) -> None:
        raise ValueError("on purpose")

    @app.task
    def fans(ctx: Context) -> None:
        ctx.fan_out(["a", "b"], greet.call)

    return app


def inside(*, sampled: bool = True) -> "Any":
    """A place in somebody's trace, made current until it is left."""
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return trace.use_span(NonRecordingSpan(SpanContext(TRACE, 7, True, flags)))


def call(app: Shigoto, name: str = "Ada") -> Call[Any]:
    return app.tasks["greet"].call(name)


def drain(app: Shigoto) -> None:
    asyncio.run(Worker(app, drain=True, children=0).run())
    app.flush(5)


def with_connection(app: Shigoto) -> JobHandle[Any]:
    with closing(app.connect()) as connection:
        handle = app.tasks["greet"].using(connection=connection).enqueue("Ada")
        connection.commit()
    return handle


WAYS: dict[str, Callable[[Shigoto], JobHandle[Any]]] = {
    "enqueue": lambda app: app.tasks["greet"].enqueue("Ada"),
    "aenqueue": lambda app: asyncio.run(app.tasks["greet"].aenqueue("Ada")),
    "enqueue_many": lambda app: app.enqueue_many([call(app)])[0],
    "aenqueue_many": lambda app: asyncio.run(app.aenqueue_many([call(app)]))[0],
    "by_name": lambda app: app.enqueue_by_name("greet", {"name": "Ada"}),
    "aby_name": lambda app: asyncio.run(app.aenqueue_by_name("greet", {"name": "Ada"})),
    "connection": with_connection,
    "log": lambda app: app.tasks["greet"].using(on_error="log").enqueue("Ada"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_store_a_job_carries_the_current_trace(app: Shigoto, heard: Sink, way: str) -> None:
    """S0-73"""
    with inside():
        handle = WAYS[way](app)
    app.flush(5)

    carrier, enqueue = carried(handle.job().meta), heard.span("enqueue greet")
    assert carrier is not None
    assert (carrier.trace_id, f"{carrier.span_id:016x}") == (TRACE, enqueue.id)
    assert enqueue.parent == f"{7:016x}"


@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_store_a_job_carries_a_trace_that_is_not_recorded(
    app: Shigoto, heard: Sink, way: str
) -> None:
    with inside(sampled=False):
        handle = WAYS[way](app)
    app.flush(5)

    assert handle.job().meta is None
    assert heard.spans == []


def test_a_batch_in_a_trace_is_one_span_and_one_without_a_trace_begins_one_for_each_job(
    app: Shigoto, heard: Sink
) -> None:
    with inside():
        within = app.enqueue_many([call(app), call(app)])
    alone = app.enqueue_many([call(app), call(app)])
    app.flush(5)

    batch = next(span for span in heard.spans if "messaging.batch.message_count" in span.attributes)
    assert batch.attributes["messaging.batch.message_count"] == 2
    assert {_carried(handle)[1] for handle in within} == {batch.id}
    assert len({_carried(handle)[0] for handle in alone}) == 2
    assert len(heard.spans) == 3


def test_the_children_of_a_fan_out_belong_to_the_trace_of_their_parent(app: Shigoto, heard: Sink) -> None:
    with inside():
        app.tasks["fans"].enqueue()
    drain(app)

    runs = heard.named("run greet")
    assert {span.attributes["shigoto.tenant"] for span in runs} == {"a", "b"}
    assert {span.trace for span in heard.spans} == {f"{TRACE:032x}"}
    assert heard.span("enqueue greet").parent == heard.span("run fans").id


async def test_a_tick_begins_a_trace(app: Shigoto, heard: Sink) -> None:
    @app.every("1s")
    async def often() -> None: ...

    fired = asyncio.Event()
    app.bus.subscribe(lambda _: fired.set(), TickFired)
    async with Scheduler(app):
        await asyncio.wait_for(fired.wait(), 30)
    app.flush(5)

    carrier = carried((await app.afind(task="often"))[-1].meta)
    assert carrier is not None
    assert f"{carrier.trace_id:032x}" in {span.trace for span in heard.named("enqueue often")}


def test_a_run_says_what_it_was_and_how_it_ended(app: Shigoto, heard: Sink) -> None:
    """S0-73"""
    with inside():
        done = app.tasks["loud"].using(tenant="t-1", queue="mail").enqueue("Ada")
        app.tasks["fail"].enqueue("secret-argument")
    drain(app)

    run, failed = heard.span("run loud"), heard.span("run fail")
    assert run.attributes == {
        "messaging.system": "shigoto",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(done.id),
        "shigoto.task": "loud",
        "shigoto.tenant": "t-1",
        "shigoto.job.number": done.number,
        "shigoto.attempt": 1,
        "shigoto.outcome": "completed",
    }
    assert (failed.status, failed.attributes["shigoto.outcome"]) == (ERROR, "failed")
    assert failed.events[0][1]["exception.type"] == "ValueError"
    assert b"secret-argument" not in heard.raw


def test_snoozes_and_cancels_are_no_errors(app: Shigoto, heard: Sink) -> None:
    @app.task
    async def later(ctx: Context) -> None:
        if ctx.attempt == 1 and not hasattr(app, "snoozed"):
            vars(app)["snoozed"] = True
            raise Snooze(0)

    with inside():
        later.enqueue()
    drain(app)

    outcomes = [span.attributes["shigoto.outcome"] for span in heard.named("run later")]
    assert outcomes == ["snoozed", "completed"]
    assert all(span.status != ERROR for span in heard.spans)


def test_the_wait_is_from_when_a_job_was_due_until_it_was_claimed(app: Shigoto, heard: Sink) -> None:
    with inside():
        handle = app.tasks["greet"].using(delay=timedelta(milliseconds=50)).enqueue("Ada")
    while handle.status() == "pending":
        drain(app)

    wait, job = heard.span("wait greet"), handle.job()
    assert wait.start == round(job.run_at.timestamp() * 1000) * 1_000_000
    assert wait.end == round((job.started_at or job.run_at).timestamp() * 1000) * 1_000_000


def test_a_job_without_a_trace_runs_where_nothing_is_recorded(app: Shigoto, tmp_path: Path) -> None:
    """Whatever samplers heed their parent: the handler is inside of a trace that is not recorded, and only there."""
    seen: list[SpanContext] = []
    plain = made(tmp_path, None)
    plain.tasks["greet"].enqueue("Ada")
    app.tasks["greet"].using().call("Ada")

    @app.task
    async def look() -> None:
        seen.append(trace.get_current_span().get_span_context())

    @app.task
    def look_in_thread() -> None:
        seen.append(trace.get_current_span().get_span_context())

    with inside(sampled=False):
        look.enqueue()
        look_in_thread.enqueue()
    drain(app)
    plain.close()

    assert [(context.is_valid, context.trace_flags.sampled) for context in seen] == [(True, False)] * 2
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_strand_is_not_worn_by_being_traced(app: Shigoto, heard: Sink) -> None:
    """Context variables that a handler leaves behind wear out its strand; those of traces are taken back."""
    names: list[str] = []

    @app.task
    async def which() -> None:
        task = asyncio.current_task()
        names.append("" if task is None else task.get_name())

    for sampled in (True, False, True):
        with inside(sampled=sampled):
            which.enqueue()
    asyncio.run(Worker(app, drain=True, concurrency=1, children=0).run())
    app.flush(5)

    assert len(names) == 3
    assert len(set(names)) == 1
    assert len(heard.named("run which")) == 2


def test_a_strand_is_worn_by_a_variable_that_is_left_behind_while_traces_are_on(app: Shigoto) -> None:
    """A place in a trace that a handler has not left again is taken back, so that the next job is not in it."""
    strands, own = list[asyncio.Task[Any] | None](), ContextVar[int]("own")
    places: list[bool] = []

    @app.task
    async def leave(what: str) -> None:
        strands.append(asyncio.current_task())
        places.append(trace.get_current_span().get_span_context().span_id == 8)
        if what == "own":
            own.set(1)
        elif what == "place":
            context.attach(trace.set_span_in_context(NonRecordingSpan(SpanContext(TRACE, 8, True))))

    with inside(sampled=False):
        for what in ("nothing", "own", "nothing", "place", "nothing", "nothing"):
            leave.enqueue(what)
    asyncio.run(Worker(app, drain=True, concurrency=1, children=0).run())

    assert [strands.index(strand) for strand in dict.fromkeys(strands)] == [0, 2]
    assert not any(places)


def test_whoever_is_told_that_a_job_starts_is_in_no_trace(app: Shigoto) -> None:
    """What it enqueues begins one of its own."""
    traced: list[bool] = []

    def follow(event: JobStarted) -> None:
        if event.task == "greet":
            traced.append(carried(app.tasks["loud"].enqueue("Ada").job().meta) is not None)

    app.bus.subscribe(follow, JobStarted)
    with inside(sampled=False):
        for _ in range(3):
            app.tasks["greet"].enqueue("Ada")
    asyncio.run(Worker(app, drain=True, concurrency=1, children=0).run())
    app.flush(5)

    assert traced == [True] * 3


def test_whoever_is_told_that_a_job_is_stuck_is_in_no_trace(app: Shigoto) -> None:
    traced: list[bool] = []

    @app.task(timeout=0.05, retries=0)
    async def stubborn() -> None:
        until = asyncio.get_running_loop().time() + 5
        while asyncio.get_running_loop().time() < until and not traced:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    def follow(event: JobStuck) -> None:
        traced.append(carried(app.tasks["loud"].enqueue("Ada").job().meta) is not None)

    app.bus.subscribe(follow, JobStuck)
    with inside(sampled=False):
        app.tasks["greet"].enqueue("Ada")
        stubborn.enqueue()
    asyncio.run(Worker(app, drain=True, concurrency=1, children=0).run())
    app.flush(5)

    assert traced == [True]


@pytest.mark.parametrize("traces", [Traces(sample=0), None])
def test_a_variable_that_a_subscriber_sets_reaches_the_handler(
    tmp_path: Path, heard: Sink, traces: Traces | None
) -> None:
    """As structlog's context does, traces or none."""
    app, found, before = made(tmp_path, traces), list[int](), list[int]()
    own = ContextVar[int]("own")

    @app.task
    async def look() -> None:
        found.append(own.get(0))

    def bind(event: JobStarted) -> None:
        before.append(own.get(0))
        own.set(event.number)

    app.bus.subscribe(bind, JobStarted)
    jobs = [look.enqueue() for _ in range(20)]
    drain(app)
    app.close()

    assert sorted(found) == [job.number for job in jobs]
    assert len(before) == 20


def test_a_wait_says_what_it_was(app: Shigoto, heard: Sink) -> None:
    with inside():
        job = app.tasks["greet"].using(tenant="t-1", queue="mail").enqueue("Ada")
    drain(app)

    assert heard.span("wait greet").attributes == {
        "messaging.system": "shigoto",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(job.id),
        "shigoto.task": "greet",
        "shigoto.tenant": "t-1",
        "shigoto.attempt": 1,
    }


def test_limits_of_attributes_hold_for_every_span(
    app: Shigoto, heard: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3")
    with inside():
        app.tasks["greet"].enqueue("Ada")
    drain(app)

    assert {span.attributes["messaging.system"] for span in heard.spans} == {"shi"}
    assert len(heard.spans) == 3


def test_of_many_jobs_the_share_that_was_asked_for_is_recorded(tmp_path: Path, heard: Sink) -> None:
    app = made(tmp_path, Traces(sample=0.2, endpoint=heard.url))
    handles = app.enqueue_many([call(app) for _ in range(1_000)])
    app.flush(5)
    marked = sum(job.meta is not None for handle in handles for job in [handle.job()])
    app.close()

    assert 120 < marked < 280  # eight standard deviations
    assert len(heard.named("enqueue greet")) == marked


def test_a_job_that_cannot_be_stored_has_a_span_that_says_so(app: Shigoto, heard: Sink) -> None:
    with inside(), closing(sqlite3.connect(":memory:")) as elsewhere, pytest.raises((StoreError, Exception)):
        app.tasks["greet"].using(connection=elsewhere).enqueue("Ada")
    app.flush(5)

    assert heard.span("enqueue greet").status == ERROR


def test_whoever_reruns_a_job_does_not_join_its_old_trace(app: Shigoto) -> None:
    with inside():
        old = app.tasks["greet"].using(meta={"order": 7}).enqueue("Ada")
    drain(app)

    assert json.loads(old.rerun().job().meta or "") == {"order": 7}


def test_a_program_that_has_a_provider_keeps_it(tmp_path: Path) -> None:
    """Spans of jobs go where the program's own go, and its sampler has the last word."""
    told = _in_a_program(
        tmp_path,
        """
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(kept))
        trace.set_tracer_provider(provider)
        with trace.get_tracer("own").start_as_current_span("outer"):
            greet.enqueue("Ada")
        asyncio.run(Worker(app, drain=True, children=0).run())
        assert trace.get_tracer_provider() is provider
        print(*(span.name for span in kept.get_finished_spans()))
        """,
    )

    assert told == "enqueue greet outer wait greet run greet"


def test_a_program_that_only_enqueues_imports_nothing_for_jobs_that_are_not_sampled(tmp_path: Path) -> None:
    told = _in_a_program(
        tmp_path,
        """
        greet.enqueue("Ada")
        app.enqueue_many([greet.call("Bob")] * 100)
        print(*(name for name in sys.modules if name.startswith("opentelemetry.")))
        """,
        traces="Traces(sample=0)",
    )

    assert told == ""


def test_what_opentelemetry_raises_is_said_once_and_harms_no_job(
    app: Shigoto, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr("shigoto.observe.otel.Spans.__init__", broken)
    with inside():
        handles = [app.tasks["greet"].enqueue("Ada") for _ in range(2)]
    drain(app)

    assert [handle.status() for handle in handles] == ["completed", "completed"]
    assert [record.message for record in caplog.records if "span" in record.message] == [
        "A span could not be recorded; jobs go on without. This is said once"
    ]


def test_the_threads_of_traces_are_called_ours(app: Shigoto, heard: Sink) -> None:
    """A worker that stops takes others for what handlers have left behind, and gives back their jobs later."""
    before = set(threading.enumerate())
    with inside():
        app.tasks["greet"].enqueue("Ada")
    app.flush(5)

    # The other is the sink's, which answers.
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert {name for name in names if "process_request_thread" not in name} == {"shigoto-spans"}


def test_of_an_encrypted_error_a_span_has_the_type(tmp_path: Path, heard: Sink) -> None:
    app = made(tmp_path, Traces(endpoint=heard.url), encryption=Encryption({"new": bytes(32)}))
    app.tasks["fail"].enqueue("Ada")
    drain(app)
    app.close()

    assert heard.span("run fail").events == [
        ("exception", {"exception.type": "ValueError", "exception.message": "encrypted"})
    ]
    assert b"on purpose" not in heard.raw


def test_metrics_are_sent_by_otlp(tmp_path: Path, heard: Sink) -> None:
    app = made(tmp_path, Traces(sample=0, endpoint=heard.url, metrics=True))
    for number in range(3):
        app.tasks["greet"].enqueue(str(number))
    app.tasks["fail"].enqueue("Ada")
    app.tasks["greet"].using(delay=3_600).enqueue("later")
    drain(app)
    app.close()

    started, ended = (points_of(heard.metrics[f"shigoto.jobs.{what}"]) for what in ("started", "ended"))
    assert started["default", "greet"].as_int == 3
    assert ended["completed", "default", "greet"].as_int == 3
    assert ended["failed", "default", "fail"].as_int == 1
    for name in ("shigoto.job.duration", "shigoto.job.lateness"):
        point = points_of(heard.metrics[name])["default", "greet"]
        assert (point.count, sum(point.bucket_counts)) == (3, 3)
        assert point.sum >= 0
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    depths = points_of(heard.metrics["shigoto.queue.jobs"])
    assert depths["default", "scheduled"].as_int == 1
    assert depths["default", "failed"].as_int == 1
    assert points_of(heard.metrics["shigoto.queue.oldest_ready"])["default",].as_double == 0
    assert points_of(heard.metrics["shigoto.store.up"])[()].as_int == 1
    assert points_of(heard.metrics["shigoto.store.operation"])["claim",].count > 0


def test_metrics_by_otlp_become_those_of_prometheus_where_a_collector_writes_them_for_it() -> None:
    """Dots become underscores, and a unit is put behind them."""
    written = {
        known: name.replace(".", "_") + (SECONDS if FAMILIES[known].name.endswith(SECONDS) else "")
        for known, name in NAMES.items()
    }

    assert written == {known: FAMILIES[known].name for known in NAMES}
    assert {metric.unit for metric in metrics_of({"job_duration": [], "jobs_ended": []}, 0, 0)} == {"s", ""}
    own = ("runner_deaths", "ready", "scheduler_status", "scheduler_errors", "scheduler_last_tick", "info")
    assert {*NAMES, *own} == set(FAMILIES)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"SHIGOTO_TRACES": "off"}, None),
        ({"SHIGOTO_TRACES": "0"}, None),
        ({"SHIGOTO_TRACES": "on"}, Traces()),
        ({"SHIGOTO_TRACES": "0.01"}, Traces(sample=0.01)),
        ({"SHIGOTO_TRACES": "1", "SHIGOTO_OTLP_METRICS": "on"}, Traces(metrics=True)),
        ({"SHIGOTO_TRACES": "on", "OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_traces_can_be_switched_without_code(environment: dict[str, str], expected: Traces | None) -> None:
    assert chosen_traces(None, environment) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 1.0),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, 0.0),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, 0.25),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "no number"}, 1.0),
        ({"OTEL_TRACES_SAMPLER": "somebody_elses"}, 1.0),
    ],
)
def test_the_sampler_of_opentelemetry_holds_unless_a_share_is_given(
    environment: dict[str, str], expected: float
) -> None:
    assert Traces().share(environment) == expected
    assert Traces(sample=0.5).share(environment) == 0.5


@pytest.mark.parametrize("sample", [-0.1, 1.1, float("nan"), "all"])
def test_a_share_that_is_none_is_refused(sample: Any) -> None:
    with pytest.raises(DeclarationError, match="a share from 0 to 1"):
        Traces(sample=sample)


def test_traces_that_are_none_are_refused(tmp_path: Path) -> None:
    wrong: Any = 0.5
    with pytest.raises(DeclarationError, match=r"traces takes Traces\(…\), not 0.5"):
        Shigoto(tmp_path / "jobs.db", traces=wrong)
    with pytest.raises(DeclarationError, match=r"\$SHIGOTO_TRACES is on, off, or a share"):
        chosen_traces(None, {"SHIGOTO_TRACES": "perhaps"})
    with pytest.raises(DeclarationError, match=r"\$SHIGOTO_OTLP_METRICS is on or off, and nothing else"):
        chosen_traces(None, {"SHIGOTO_TRACES": "on", "SHIGOTO_OTLP_METRICS": "perhaps"})


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DeclarationError, match=r"pip install 'shigoto\[otel\]'"):
        chosen_traces(Traces(), {})


def _carried(handle: JobHandle[Any]) -> tuple[int, str]:
    carrier = carried(handle.job().meta)
    assert carrier is not None
    return carrier.trace_id, f"{carrier.span_id:016x}"


def _in_a_program(folder: Path, text: str, traces: str = "Traces()") -> str:
    """What a fresh interpreter prints."""
    begin = f"""
    import asyncio, sys
    from shigoto import Shigoto, Traces
    from shigoto.worker import Worker
    app = Shigoto({str(folder / "own.db")!r}, traces={traces})
    @app.task
    async def greet(name: str) -> str: return name
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(begin) + dedent(text)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_jobs_are_in_a_trace_only_while_they_run(app: Shigoto, heard: Sink) -> None:
    with inside():
        app.tasks["greet"].enqueue("Ada")
    with inside(sampled=False):
        app.tasks["loud"].enqueue("Ada")
    drain(app)

    assert heard.span("run greet").trace == f"{TRACE:032x}"
    assert heard.named("run loud") == []
    assert not trace.get_current_span().get_span_context().is_valid
