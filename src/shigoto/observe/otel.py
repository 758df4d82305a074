"""OpenTelemetry in this process: the provider that it has already, or one of our own.

A program that has set a tracer provider, by `opentelemetry-instrument` or by itself, goes on using it, and so do we.
Else ours sends to the collector that the variables of OpenTelemetry name. In a process that exists for a worker, ours
also becomes that of the whole process, so that the spans of handlers take the same way; in a program of somebody else's
it does not, lest it take the place of one that is set a moment later, nor in a server, whose web framework would then
record every request.

Imports OpenTelemetry, so it is imported only where something is recorded.
"""

import logging
import os
import threading
from collections.abc import Mapping
from random import getrandbits
from typing import Any
from uuid import uuid4

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from shigoto.model.errors import DeclarationError
from shigoto.model.text import HIDDEN
from shigoto.model.version import VERSION
from shigoto.observe.batches import Batches, Exporter
from shigoto.observe.traces import Traces

SERVICE = "shigoto"
ENDPOINT, _OWN_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_{}_ENDPOINT"

SCOPE = InstrumentationScope(SERVICE, VERSION)
LIMITS = [f"OTEL_{of}ATTRIBUTE_{what}_LIMIT" for of in ("", "SPAN_") for what in ("VALUE_LENGTH", "COUNT")]

logger = logging.getLogger("shigoto.observe")


class Otel:
    """Makes spans, and sends them. `rules` if this process exists for a worker of ours."""

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

    def over(
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

    def flush(self, seconds: float) -> None:
        """Send what is there, if that takes no longer than this."""
        if self._batches is not None:
            self._batches.flush(seconds)
        elif self._theirs is not None and hasattr(self._theirs, "force_flush"):
            # Theirs may wait for longer than they were told to.
            thread = threading.Thread(target=self._flush_theirs, name="shigoto-flush", daemon=True)
            thread.start()
            thread.join(seconds)

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
    found = told or next(
        (
            os.environ[name]
            for name in (_OWN_ENDPOINT.format(signal.upper()), ENDPOINT)
            if os.environ.get(name)
        ),
        "",
    )
    if found and not found.lower().startswith(("http://", "https://")):
        raise DeclarationError(
            f"Where to send {signal} is no address such as http://localhost:4318. It comes from traces= or ${ENDPOINT}."
        )
    return told


def _exporter(settings: Traces) -> Exporter | None:
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
