"""All that imports OpenTelemetry: its provider, the spans of jobs, and their way to a collector.

A program that has set a tracer provider, by `opentelemetry-instrument` or by itself, goes on using it, and so do we.
Else ours sends to the collector that the variables of OpenTelemetry name. In a process that exists for a worker, ours
also becomes that of the whole process, so that the spans of handlers take the same way; in a program of somebody else's
it does not, lest it take the place of one that is set a moment later, nor in a server, whose web framework would then
record every request.

The spans of a job:

    enqueue mail    from before the store is asked until it has answered
    wait mail       from when the job was due until it was claimed, both by the store's clock
    run mail        while the handler runs; current in it

The texts of errors are those that the store keeps: never arguments, never what variables of the handler held. Of one
that is encrypted it is the type.

Spans are sent in batches (`Batches`), from a separate thread, with a flush that ends within a time limit.

OpenTelemetry's own batches cannot be flushed within a time, wait for half a minute when a program ends, and send from a
thread that looks as if a handler had left it behind (`worker/worker.py`). Whatever happens to a collector, a job does
not wait for it here, and spans for which there is no room are dropped and counted.

    a span ends ──► queue ──► thread: a moment later, or at once if asked to, all that is there ──► exporter

The module is imported only where something is recorded.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import Token
from random import getrandbits
from typing import Any
from uuid import uuid4

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from shigoto.model.errors import DeclarationError
from shigoto.model.job import JobSpec, Lease, State
from shigoto.model.secrets import ENCRYPTED, is_encrypted, type_of, unless_encrypted, without_key
from shigoto.model.states import Counters, Held, after
from shigoto.model.text import HIDDEN
from shigoto.model.version import VERSION
from shigoto.model.worker import Ending, Settlement
from shigoto.observe.settings import Traces
from shigoto.observe.tracing import Asked, Carrier, stamped

DELAY = 1.0  # seconds in which spans gather
MOST_WAITING = 4_096
MOST_AT_ONCE = 512
QUIET = "_SUPPRESS_INSTRUMENTATION_KEY"  # private in name only: whoever instruments HTTP clients asks for it

logger = logging.getLogger("shigoto.observe")


class Batches(SpanProcessor):
    """Gathers the spans of this process, and of each that is forked from it anew."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._delay = setting("OTEL_BSP_SCHEDULE_DELAY", DELAY * 1000) / 1000
        self._most = max(1, int(setting("OTEL_BSP_MAX_QUEUE_SIZE", MOST_WAITING)))
        self._portion = max(1, int(setting("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", MOST_AT_ONCE)))
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span; never waits."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._changed:
            if len(self._waiting) >= self._most:
                self._dropped += 1
                if self._dropped == 1:
                    logger.warning("Spans are dropped: more are made than the collector takes")
                return
            self._waiting.append(span)
            if self._thread is None:
                self._start()
            elif len(self._waiting) in (1, self._portion):
                self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Send what is there now, and wait for that; False if it takes longer than this."""
        with self._changed:
            if self._thread is None:
                return True
            self._hurry = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not (self._waiting or self._sending), max(0.0, seconds))

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """The same, as OpenTelemetry calls it."""
        return self.flush(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Nothing: the thread ends with its process, and whoever ends it flushes before."""

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[ReadableSpan] = deque()
        self._sending = self._hurry = False
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="shigoto-spans", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is about to end, or has no more threads
            self._waiting.clear()
        else:
            self._thread = thread

    def _work(self) -> None:
        _leave_untraced()
        while True:
            self._send(self._gathered())

    def _gathered(self) -> list[ReadableSpan]:
        """The next batch, once there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            until = time.monotonic() + self._delay
            self._changed.wait_for(
                lambda: self._hurry or len(self._waiting) >= self._portion, max(0.0, until - time.monotonic())
            )
            batch = [self._waiting.popleft() for _ in range(min(self._portion, len(self._waiting)))]
            self._sending = True
            return batch

    def _send(self, batch: list[ReadableSpan]) -> None:
        try:
            self._exporter.export(batch)
        except Exception:
            logger.exception("%d spans could not be sent, and are dropped", len(batch))
        with self._changed:
            self._sending = False
            if not self._waiting:
                self._hurry = False
                if self._dropped:
                    logger.warning("%d spans were dropped until now", self._dropped)
                    self._dropped = 0
            self._changed.notify_all()


def _leave_untraced() -> None:
    """What is sent from this thread is not to be traced itself."""
    key: object = getattr(context, QUIET, None)
    if isinstance(key, str):
        context.attach(context.set_value(key, True))


def setting(name: str, default: float) -> float:
    """The number that a variable of OpenTelemetry says, if it is one above zero."""
    try:
        value = float(os.environ.get(name, ""))
    except ValueError:
        return default
    return value if value > 0 else default


SERVICE = "shigoto"
ENDPOINT, _OWN_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_{}_ENDPOINT"

SCOPE = InstrumentationScope(SERVICE, VERSION)
LIMITS = [f"OTEL_{of}ATTRIBUTE_{what}_LIMIT" for of in ("", "SPAN_") for what in ("VALUE_LENGTH", "COUNT")]


def resource_of(settings: Traces) -> Resource:
    """Who it is that tells of itself, as far as the settings and the variables of OpenTelemetry say so."""
    said = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    told: dict[str, str] = {}
    if settings.service is not None:
        told[SERVICE_NAME] = settings.service
    elif not (os.environ.get("OTEL_SERVICE_NAME") or f"{SERVICE_NAME}=" in said):
        told[SERVICE_NAME] = SERVICE
    if f"{SERVICE_INSTANCE_ID}=" not in said:
        # The counts of two processes are two series.
        told[SERVICE_INSTANCE_ID] = str(uuid4())
    return Resource.create(told)


def endpoint_of(settings: Traces, signal: str) -> str | None:
    """Where spans or metrics go, if the settings say so. Raises DeclarationError for what is no address, wherever it
    comes from; it is not shown, for it may have a password in it, and the SDK would log it with every batch."""
    told = None if settings.endpoint is None else f"{settings.endpoint.rstrip('/')}/v1/{signal}"
    found = told or os.environ.get(_OWN_ENDPOINT.format(signal.upper())) or os.environ.get(ENDPOINT) or ""
    if found and not found.lower().startswith(("http://", "https://")):
        raise DeclarationError(
            f"Where to send {signal} is no address such as http://localhost:4318. It comes from traces= or ${ENDPOINT}."
        )
    return told


def _exporter(settings: Traces) -> SpanExporter | None:
    kind = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp"
    if kind == "none":
        return None
    if kind == "console":
        return ConsoleSpanExporter()
    if kind != "otlp":
        logger.warning("OTEL_TRACES_EXPORTER is %r, which is unknown here: spans are sent by OTLP", kind)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    try:
        return OTLPSpanExporter(endpoint=endpoint_of(settings, "traces"))
    except DeclarationError as error:
        logger.error("Spans are not sent: %s", error)
        return None


def _hide_header(record: logging.LogRecord) -> bool:
    """The SDK quotes a header that it cannot read, which may well be a key."""
    record.args = (HIDDEN,) if record.args else record.args
    return True


logging.getLogger("opentelemetry.util.re").addFilter(_hide_header)

Attributes = dict[str, str | int]

SYSTEM = "shigoto"
NANOSECONDS = 1_000_000  # of a millisecond
ERRORS = (Ending.ERRORED, Ending.FAILED)


class Storing:
    """The spans of jobs that are being stored, as a block around that. It gives the specs to store."""

    __slots__ = ("_spans", "specs")

    def __init__(self, specs: Sequence[JobSpec], spans: Sequence[trace.Span]) -> None:
        self.specs = specs
        self._spans = spans

    def __enter__(self) -> Sequence[JobSpec]:
        return self.specs

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the spans; if the jobs could not be stored, they say so."""
        for span in self._spans:
            if kind is not None:
                span.set_status(trace.Status(trace.StatusCode.ERROR, kind.__qualname__))
            span.end()


class RunSpan:
    """The span of a handler, current in it until it has `ended`."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: trace.Span, token: "Token[Context]") -> None:
        self._span = span
        self._token = token

    def ended(self, lease: Lease, settlement: Settlement) -> None:
        """The handler has ended so."""
        context.detach(self._token)
        span = self._span
        if span.is_recording():
            span.set_attribute("shigoto.outcome", outcome_of(lease, settlement))
            if settlement.ending in ERRORS and settlement.error is not None:
                _tell_error(span, settlement.error, settlement.traceback)
        span.end()


class Spans:
    """Makes the spans of one app, and sends them. `rules` if this process exists for a worker of ours."""

    def __init__(self, settings: Traces, *, rules: bool) -> None:
        self._batches: Batches | None = None
        self._theirs: Any = None
        self._resource: Resource | None = None
        self._limited = any(os.environ.get(name) for name in LIMITS)
        known = trace.get_tracer_provider()
        if isinstance(known, trace.ProxyTracerProvider):
            provider: trace.TracerProvider = self._make(settings, rules=rules)
        else:
            provider = self._theirs = known
        self.tracer = provider.get_tracer(SERVICE, VERSION)

    def flush(self, seconds: float) -> None:
        """Send what is there, if that takes no longer than this."""
        if self._batches is not None:
            self._batches.flush(seconds)
        elif self._theirs is not None and hasattr(self._theirs, "force_flush"):
            # Theirs may wait for longer than they were told to.
            thread = threading.Thread(target=self._flush_theirs, name="shigoto-flush", daemon=True)
            thread.start()
            thread.join(seconds)

    def storing(self, specs: Sequence[JobSpec], asked: Asked | None) -> Storing:
        """Jobs that are stored together inside of a trace: one span for all of them."""
        spans: list[trace.Span] = []
        within: Context | None = None
        if asked is not None:
            spans.append(self._asked(asked))
            within = trace.set_span_in_context(spans[0])
        span = self._enqueue(specs, within)
        return Storing(_marked(specs, span), [span, *spans])

    def storing_some(self, specs: Sequence[JobSpec], drawn: Sequence[int]) -> Storing:
        """Jobs of which those that were drawn begin a trace each."""
        made, spans = list(specs), list[trace.Span]()
        for at in drawn:
            span = self._enqueue(specs[at : at + 1], Context())
            [made[at]] = _marked(specs[at : at + 1], span)
            spans.append(span)
        return Storing(made, spans)

    def running(self, lease: Lease, carrier: Carrier) -> RunSpan:
        """The wait of a job that is over, and its run that begins now, in this thread or task."""
        asked = _remote(carrier)
        parent = trace.set_span_in_context(asked, Context())
        if not carrier.sampled:
            return RunSpan(asked, context.attach(parent))
        told = _told_of(lease)
        due, claimed = lease.run_at * NANOSECONDS, max(lease.run_at, lease.claimed_at) * NANOSECONDS
        wait = self._over(f"wait {lease.task}", asked, told, start=due, end=claimed)
        run = self.tracer.start_span(
            f"run {lease.task}",
            trace.set_span_in_context(wait, parent),
            trace.SpanKind.CONSUMER,
            {
                **told,
                "messaging.operation.name": "run",
                "messaging.operation.type": "process",
                "shigoto.job.number": lease.number,
            },
        )
        return RunSpan(run, context.attach(trace.set_span_in_context(run, parent)))

    def _over(
        self, name: str, parent: trace.Span, attributes: Mapping[str, str | int], *, start: int, end: int
    ) -> trace.Span:
        """Tell of something that is over already, in a trace that is recorded. Where it is sent from here, this takes a
        quarter of what it takes to make a span that could still change."""
        if self._batches is None or self._limited:
            span = self.tracer.start_span(
                name, trace.set_span_in_context(parent, Context()), attributes=attributes, start_time=start
            )
            span.end(end)
            return span
        above = parent.get_span_context()
        place = trace.SpanContext(
            above.trace_id, getrandbits(64) | 1, False, above.trace_flags, above.trace_state
        )
        self._batches.on_end(
            ReadableSpan(
                name,
                place,
                above,
                self._resource,
                attributes,
                start_time=start,
                end_time=end,
                instrumentation_scope=SCOPE,
            )
        )
        return trace.NonRecordingSpan(place)

    def _flush_theirs(self) -> None:
        try:
            self._theirs.force_flush()
        except Exception:
            logger.exception("The program's own tracer provider could not be flushed")

    def _make(self, settings: Traces, *, rules: bool) -> TracerProvider:
        exporter = _exporter(settings)
        resource = self._resource = resource_of(settings)
        # What begins here was drawn by lot before, without all of this; what has begun elsewhere was decided there.
        ours = TracerProvider(sampler=ParentBased(ALWAYS_ON), resource=resource, shutdown_on_exit=False)
        if exporter is not None:
            self._batches = Batches(exporter)
            ours.add_span_processor(self._batches)
        if rules:
            share = ParentBased(TraceIdRatioBased(settings.share()))
            others = TracerProvider(sampler=share, resource=resource, shutdown_on_exit=False)
            if self._batches is not None:
                others.add_span_processor(self._batches)
            trace.set_tracer_provider(others)
        return ours

    def _asked(self, asked: Asked) -> trace.Span:
        parent = (
            Context() if asked.parent is None else trace.set_span_in_context(_remote(asked.parent), Context())
        )
        method, _, route = asked.name.partition(" ")
        told = {"http.request.method": method, "http.route": route}
        return self.tracer.start_span(asked.name, parent, trace.SpanKind.SERVER, told)

    def _enqueue(self, specs: Sequence[JobSpec], within: Context | None) -> trace.Span:
        first, tasks, queues = specs[0], {spec.task for spec in specs}, {spec.queue for spec in specs}
        told: Attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "enqueue",
            "messaging.operation.type": "send",
        }
        if len(specs) > 1:
            told["messaging.batch.message_count"] = len(specs)
        else:
            told["messaging.message.id"] = str(first.id)
            told |= {"shigoto.tenant": first.tenant} if first.tenant else {}
        if len(tasks) == 1:
            told["shigoto.task"] = first.task
        if len(queues) == 1:
            told["messaging.destination.name"] = first.queue
        name = f"enqueue {first.task}" if len(tasks) == 1 else "enqueue"
        return self.tracer.start_span(name, within, trace.SpanKind.PRODUCER, told)


def unrecorded() -> Context:
    """A place in a trace that nobody records. All jobs that have no other are in this one: to draw another for each
    would cost ten times as much."""
    nobody = trace.SpanContext(getrandbits(128) | 1, getrandbits(64) | 1, is_remote=False)
    return trace.set_span_in_context(trace.NonRecordingSpan(nobody), Context())


def outcome_of(lease: Lease, settlement: Settlement) -> str:
    """What this end of a run means for the job, by the rules that the store goes by."""
    if settlement.ending is Ending.COMPLETED:
        return "completed"
    counters = Counters(failures=lease.failures, snoozes=lease.snoozes)
    state = after(Held(counters, lease.max_failures, max_crashes=None), settlement).state
    if state is not State.PENDING:
        return state.value
    return {Ending.SNOOZED: "snoozed", Ending.RELEASED: "released"}.get(settlement.ending, "retried")


def _marked(specs: Sequence[JobSpec], span: trace.Span) -> Sequence[JobSpec]:
    """The jobs with the trace that they belong to; as they are, if it is not recorded after all."""
    where = span.get_span_context()
    if not (where.is_valid and where.trace_flags.sampled):
        return specs
    state = where.trace_state.to_header() if where.trace_state else None
    return stamped(specs, Carrier(where.trace_id, where.span_id, sampled=True, state=state))


def _remote(carrier: Carrier) -> trace.Span:
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if carrier.sampled else trace.TraceFlags.DEFAULT)
    state = None if carrier.state is None else trace.TraceState.from_header([carrier.state])
    return trace.NonRecordingSpan(trace.SpanContext(carrier.trace_id, carrier.span_id, True, flags, state))


def _told_of(lease: Lease) -> Attributes:
    """What both spans of a run say. Nothing twice under two names: to send an attribute takes three microseconds."""
    told: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.destination.name": lease.queue,
        "messaging.message.id": str(lease.id),
        "shigoto.task": lease.task,
        "shigoto.attempt": lease.attempt,
    }
    if lease.tenant:
        told["shigoto.tenant"] = lease.tenant
    return told


def _tell_error(span: trace.Span, error: str, stack: str | None) -> None:
    """Of an error that is encrypted, its type."""
    kind, _, message = error.partition(": ")
    if is_encrypted(error):
        kind, message = type_of(error) or "", ENCRYPTED
    told = {"exception.type": kind, "exception.message": message}
    stack = unless_encrypted(stack)
    span.add_event("exception", told if stack is None else {**told, "exception.stacktrace": stack})
    span.set_status(trace.Status(trace.StatusCode.ERROR, without_key(error)))
