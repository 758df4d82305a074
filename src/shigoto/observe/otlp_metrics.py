"""Metrics by OTLP: those of Prometheus, sent once a minute from a separate thread.

What happens is counted on the event loop by `metrics.py`, for half a microsecond each. An instrument of OpenTelemetry
would take several, and one that is read now and then cannot be a histogram; so the points are made of our own counts
when they are sent, and neither a meter provider of the program nor one of ours is needed.

Imports OpenTelemetry, so it is imported only where metrics are wanted.
"""

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Protocol, cast

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export

from shigoto.observe.metrics import FAMILIES, EventCounters, Family, Series, series_of
from shigoto.observe.otel import SCOPE, endpoint_of, resource_of, setting
from shigoto.observe.settings import Traces
from shigoto.observe.store_gauges import GaugeValue, StoreGauges

EVERY = 60.0  # seconds
SECONDS = "_seconds"
CUMULATIVE = export.AggregationTemporality.CUMULATIVE
UNKNOWN = cast("float", None)  # least and greatest values may be left out, though their type does not say so

# By the names that they have in samples and gauge values; all else of them is said in `FAMILIES`. A collector that
# writes them for Prometheus puts underscores and units in, and has the names of there: dashboards and rules hold for
# both.
NAMES = {
    "jobs_started": "shigoto.jobs.started",
    "jobs_ended": "shigoto.jobs.ended",
    "leases_lost": "shigoto.leases.lost",
    "job_duration": "shigoto.job.duration",
    "job_lateness": "shigoto.job.lateness",
    "jobs_rescued": "shigoto.jobs.rescued",
    "workers_fenced": "shigoto.workers.fenced",
    "store": "shigoto.store.operation",
    "store_trouble": "shigoto.store.trouble",
    "ticks": "shigoto.schedule.ticks",
    "tick_lateness": "shigoto.schedule.lateness",
    "schedule_failures": "shigoto.schedule.failures",
    "queue_jobs": "shigoto.queue.jobs",
    "queue_oldest": "shigoto.queue.oldest_ready",
    "queue_paused": "shigoto.queue.paused",
    "workers": "shigoto.workers",
    "worker_slots": "shigoto.worker.slots",
    "store_up": "shigoto.store.up",
}

logger = logging.getLogger("shigoto.observe")


class MetricsExporter(Protocol):
    """Sends metrics; takes as long as it takes."""

    def export(self, metrics_data: export.MetricsData, /) -> object: ...


class OtlpMetrics:
    """Sends what meters have counted, and what a look at the store shows, until its process ends."""

    def __init__(self, settings: Traces, counters: EventCounters, gauges: StoreGauges) -> None:
        self._counters = counters
        self._gauges = gauges
        self._resource = resource_of(settings)
        self._exporter: MetricsExporter = OTLPMetricExporter(endpoint=endpoint_of(settings, "metrics"))
        self._every = setting("OTEL_METRIC_EXPORT_INTERVAL", EVERY * 1000) / 1000
        self._since = time.time_ns()
        self._changed = threading.Condition()
        self._wanted = self._sent = 0
        threading.Thread(target=self._work, name="shigoto-metrics", daemon=True).start()

    def flush(self, seconds: float) -> None:
        """Send what was counted, if that takes no longer than this."""
        with self._changed:
            self._wanted += 1
            wanted = self._wanted
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._sent >= wanted, seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted > self._sent, self._every)
                wanted = self._wanted
            try:
                self._exporter.export(self._data())
            except Exception:
                logger.exception("Metrics could not be sent; they are in the next ones, too")
            with self._changed:
                self._sent = wanted
                self._changed.notify_all()

    def _data(self) -> export.MetricsData:
        series = series_of(self._counters.samples(), self._gauge_values())
        metrics = metrics_of(series, self._since, time.time_ns())
        scope = export.ScopeMetrics(SCOPE, metrics, "")
        return export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")])

    def _gauge_values(self) -> list[GaugeValue]:
        try:
            return self._gauges.read_now()
        except Exception as error:
            logger.warning("What the store holds could not be asked of it: %s", error)
            return []


def metrics_of(series: dict[str, list[Series]], since: int, now: int) -> list[export.Metric]:
    """What was counted since then, and what there is now, as metrics of OpenTelemetry."""
    return [
        _metric(name, FAMILIES[known], series[known], since, now)
        for known, name in NAMES.items()
        if known in series
    ]


def _metric(name: str, family: Family, series: Iterable[Series], since: int, now: int) -> export.Metric:
    points: export.Sum | export.Gauge | export.Histogram
    if family.kind == "histogram":
        points = export.Histogram([_buckets(family, each, since, now) for each in series], CUMULATIVE)
    elif family.kind == "counter":
        points = export.Sum([_number(family, each, since, now) for each in series], CUMULATIVE, True)
    else:
        points = export.Gauge([_number(family, each, now, now) for each in series])
    # No unit for mere numbers: "1" would be written as a ratio.
    return export.Metric(name, family.help, "s" if family.name.endswith(SECONDS) else "", points)


def _number(family: Family, series: Series, since: int, now: int) -> export.NumberDataPoint:
    labels, [value] = series
    return export.NumberDataPoint(_attributes(family, labels), since, now, value)


def _buckets(family: Family, series: Series, since: int, now: int) -> export.HistogramDataPoint:
    labels, values = series
    counts = [int(count) for count in values[:-1]]
    return export.HistogramDataPoint(
        _attributes(family, labels),
        since,
        now,
        count=sum(counts),
        sum=values[-1],
        bucket_counts=counts,
        explicit_bounds=family.bounds,
        min=UNKNOWN,
        max=UNKNOWN,
    )


def _attributes(family: Family, labels: Sequence[str]) -> dict[str, str]:
    return dict(zip(family.labels, labels, strict=True))
