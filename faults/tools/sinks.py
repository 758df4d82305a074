"""A collector of OpenTelemetry and a Sentry, on one port of this machine: what was sent to them, read.

with sink() as heard:
    app = Shigoto("memory:", traces=Traces(endpoint=heard.url), sentry=Sentry(dsn=heard.dsn))
    …
    assert heard.span("run greet").attributes["shigoto.outcome"] == "completed"
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from faults.tools.outside import Receiver

ERROR = 2  # the status of a span
TRACES, METRICS, ENVELOPES = "/v1/traces", "/v1/metrics", "/api/7/envelope/"  # where what is sent
MESSAGES: dict[str, Any] = {TRACES: ExportTraceServiceRequest, METRICS: ExportMetricsServiceRequest}


class Span(Struct, frozen=True, kw_only=True):
    """A span as it came in; ids as hexadecimal digits."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    start: int
    end: int
    status: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    resource: dict[str, Any]


class Sink:
    """What has come in so far."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    @property
    def requests(self) -> list[tuple[str, bytes]]:
        """Where each went, and its body."""
        return [(request.path, request.body) for request in list(self._receiver.requests)]

    def headers(self, path: str) -> Iterator[Mapping[str, str]]:
        """Those of every request to this path."""
        return (request.headers for request in list(self._receiver.requests) if request.path == path)

    @property
    def url(self) -> str:
        return f"http://{self._receiver.address}"

    @property
    def dsn(self) -> str:
        return self.dsn_with("key")

    def dsn_with(self, key: str) -> str:
        """The address of the Sentry, for whoever has this key."""
        return f"http://{key}@{self._receiver.address}/7"

    @property
    def raw(self) -> bytes:
        """All of it, to look for what must not be there."""
        return b"\n".join(body for _, body in self.requests)

    def texts(self, path: str) -> Iterator[str]:
        """Every body that was sent to this path, as it came, and as it reads if it is no text."""
        for sent, body in self.requests:
            if sent == path:
                yield body.decode("latin-1")
                if path in MESSAGES:
                    yield str(MESSAGES[path].FromString(body))

    @property
    def spans(self) -> list[Span]:
        found: list[Span] = []
        for path, body in self.requests:
            if path != TRACES:
                continue
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = _read(group.resource.attributes)
                for scope in group.scope_spans:
                    found += [
                        Span(
                            name=each.name,
                            trace=each.trace_id.hex(),
                            id=each.span_id.hex(),
                            parent=each.parent_span_id.hex(),
                            kind=each.kind,
                            start=each.start_time_unix_nano,
                            end=each.end_time_unix_nano,
                            status=each.status.code,
                            attributes=_read(each.attributes),
                            events=[(event.name, _read(event.attributes)) for event in each.events],
                            resource=resource,
                        )
                        for each in scope.spans
                    ]
        return found

    def named(self, name: str) -> list[Span]:
        """The spans of this name, the oldest first."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start)

    def span(self, name: str) -> Span:
        """The only span of this name."""
        [span] = self.named(name)
        return span

    @property
    def metrics(self) -> dict[str, Metric]:
        """The newest metrics by name."""
        found: dict[str, Metric] = {}
        for path, body in self.requests:
            if path == METRICS:
                for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for scope in group.scope_metrics:
                        found |= {metric.name: metric for metric in scope.metrics}
        return found

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The events that Sentry was sent."""
        found: list[dict[str, Any]] = []
        for path, body in self.requests:
            if path == ENVELOPES:
                lines = body.split(b"\n")
                assert json.loads(lines[1])["type"] == "event"
                found.append(json.loads(lines[2]))
        return found


@contextmanager
def sink() -> Iterator[Sink]:
    """One that listens until the end of the block."""
    with Receiver() as receiver:
        yield Sink(receiver)


def points_of(metric: Metric) -> dict[tuple[str, ...], Any]:
    """The points of a metric by the values of their attributes, in the order of their names."""
    kind = metric.WhichOneof("data")
    assert kind is not None
    return {
        tuple(str(value) for _, value in sorted(_read(point.attributes).items())): point
        for point in getattr(metric, kind).data_points
    }


def _read(attributes: "Any") -> dict[str, Any]:
    return {each.key: _value(each) for each in attributes}


def _value(attribute: KeyValue) -> Any:
    kind = attribute.value.WhichOneof("value")
    return None if kind is None else getattr(attribute.value, kind)
