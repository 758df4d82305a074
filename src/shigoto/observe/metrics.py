"""Metrics for Prometheus: what was counted of events (`meters.py`), and what the store holds (`storelook.py`).

    shigoto server                 GET /metrics, for a token with the scope `read`
    shigoto worker --health 8711   GET /metrics on that port, of all its runner processes together
    shigoto scheduler --health …   the same

and in a program of your own:

    metrics = Metrics(app.bus, lambda: app.engine)
    REGISTRY.register(metrics)                       # prometheus_client's own, or
    text, content_type = await metrics.scrape()      # for a route of yours

prometheus-client writes the text; nothing of it is needed until somebody asks for that.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from shigoto.engine.protocol import Engine
from shigoto.model.errors import DeclarationError
from shigoto.model.version import VERSION
from shigoto.observe.bus import Bus, Unsubscribe
from shigoto.observe.meters import ANSWERS, DURATIONS, LATENESSES, OUTCOMES, Meters, Sample
from shigoto.observe.storelook import Reading, StoreLook

if TYPE_CHECKING:
    from prometheus_client.core import Metric

NEEDED = "prometheus_client"
MISSING = "The metrics need prometheus-client, which is not installed: pip install 'shigoto[prometheus]'."


class Family(Struct, frozen=True):
    """One metric as Prometheus has it. `bounds` are those of the buckets of a histogram."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...] = ()


RUN = ("task", "queue")

Series = tuple[tuple[str, ...], list[float]]  # labels, and the values of a sample or a reading

# By the names they have in samples and readings; in the order in which they are shown, and in docs/guides/metrics.md.
FAMILIES: dict[str, Family] = {
    "jobs_started": Family("shigoto_jobs_started", "counter", RUN, "Runs whose handler was called."),
    "jobs_ended": Family(
        "shigoto_jobs_ended",
        "counter",
        (*RUN, "outcome"),
        "Runs that the store knows to have ended: completed, retried, failed, snoozed, released, cancelled, crashed.",
    ),
    "leases_lost": Family(
        "shigoto_leases_lost",
        "counter",
        RUN,
        "Runs whose outcome was refused, because the job was somebody else's by then.",
    ),
    "job_duration": Family(
        "shigoto_job_duration_seconds",
        "histogram",
        RUN,
        "How long runs took, but for those that were given back.",
        DURATIONS,
    ),
    "job_lateness": Family(
        "shigoto_job_lateness_seconds",
        "histogram",
        RUN,
        "How long after they were due jobs were claimed.",
        LATENESSES,
    ),
    "jobs_rescued": Family(
        "shigoto_jobs_rescued", "counter", (), "Jobs that were taken from workers that are gone."
    ),
    "workers_fenced": Family(
        "shigoto_workers_fenced", "counter", (), "Workers that did not beat any more and lost their leases."
    ),
    "runner_deaths": Family(
        "shigoto_runner_deaths", "counter", (), "Runner processes of this worker that have died."
    ),
    "store": Family(
        "shigoto_store_operation_seconds",
        "histogram",
        ("operation",),
        "How long the store took to answer.",
        ANSWERS,
    ),
    "store_trouble": Family(
        "shigoto_store_trouble", "counter", ("part",), "Times that a part could not reach the store."
    ),
    "ticks": Family(
        "shigoto_schedule_ticks",
        "counter",
        ("schedule", "outcome"),
        "Ticks by what became of them: fired, caught_up, backfilled, run_now, skipped, missed, suppressed; or lost to "
        "another process that was first.",
    ),
    "tick_lateness": Family(
        "shigoto_schedule_lateness_seconds",
        "histogram",
        (),
        "How long after their time ticks were fired.",
        LATENESSES,
    ),
    "schedule_failures": Family(
        "shigoto_schedule_failures", "counter", ("schedule",), "Ticks whose job could not be made or stored."
    ),
    "queue_jobs": Family(
        "shigoto_queue_jobs",
        "gauge",
        ("queue", "state"),
        "Jobs that the store holds: ready, scheduled, processing, blocked, completed, failed, cancelled.",
    ),
    "queue_oldest": Family(
        "shigoto_queue_oldest_ready_seconds",
        "gauge",
        ("queue",),
        "For how long the job has been due that has been ready for the longest; 0 if none is.",
    ),
    "queue_paused": Family("shigoto_queue_paused", "gauge", ("queue",), "Whether the queue is paused."),
    "workers": Family("shigoto_workers", "gauge", (), "Workers that are registered and not fenced."),
    "worker_slots": Family(
        "shigoto_worker_slots", "gauge", (), "How many jobs all workers together can run at once."
    ),
    "store_up": Family("shigoto_store_up", "gauge", (), "Whether the store has answered."),
    "ready": Family(
        "shigoto_ready", "gauge", (), "Whether this process can do its work, as /readyz says it."
    ),
    "scheduler_status": Family(
        "shigoto_scheduler_status",
        "gauge",
        ("status",),
        "How the scheduler of this process is: 1 for one of OK, Warning and Error.",
    ),
    "scheduler_errors": Family(
        "shigoto_scheduler_error_ratio",
        "gauge",
        (),
        "The part of its newest cycles in which something failed.",
    ),
    "scheduler_last_tick": Family(
        "shigoto_scheduler_last_tick_timestamp_seconds", "gauge", (), "When it last fired a tick."
    ),
    "info": Family("shigoto_build_info", "gauge", ("version",), "The version of shigoto."),
}


class Metrics:
    """Counts what happens on a bus from now on, and shows it together with what a store holds.

    Without a `bus` it shows what it is given by `add`; without an `engine` nothing is asked of a store. `more` is asked
    for further readings whenever somebody scrapes. Raises DeclarationError if prometheus-client is not installed.
    """

    def __init__(
        self,
        bus: Bus | None = None,
        engine: Callable[[], Engine] | None = None,
        *,
        more: Callable[[], Iterable[Reading]] = tuple,
    ) -> None:
        if not can_show():
            raise DeclarationError(MISSING)
        self._meters = Meters()
        self._stop: Unsubscribe | None = None if bus is None else self._meters.watch(bus)
        self._look = None if engine is None else StoreLook(engine)
        self._more = more

    def add(self, samples: Iterable[Sample]) -> None:
        """Count what another process has counted."""
        self._meters.add(samples)

    def close(self) -> None:
        """Count no more. Closing twice is fine."""
        if self._stop is not None:
            self._stop()

    def collect(self) -> Iterator["Metric"]:
        """What there is, for a registry of prometheus-client: `REGISTRY.register(metrics)`. Asks the store in the
        calling thread."""
        return families(
            self._meters.samples(), self._readings([] if self._look is None else self._look.look_now())
        )

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """What there is, as the body of an answer and its content type: OpenMetrics if `accept`, the header of the
        request, asks for it, else the text format of Prometheus."""
        from prometheus_client.exposition import choose_encoder

        readings = self._readings([] if self._look is None else await self._look.look())
        try:
            encode, content_type = choose_encoder(accept)
        except Exception:  # it does not take every header that there can be
            encode, content_type = choose_encoder("")
        return encode(_Collected(list(families(self._meters.samples(), readings)))), content_type

    def _readings(self, seen: Iterable[Reading]) -> list[Reading]:
        return [*seen, *self._more(), Reading("info", (VERSION,), 1)]


def metrics_if_shown(
    bus: Bus, engine: Callable[[], Engine], *, more: Callable[[], Iterable[Reading]]
) -> Metrics | None:
    """What is counted from now on; None if nobody could show it, and so nothing need be counted."""
    return Metrics(bus, engine, more=more) if can_show() else None


class _Collected:
    """What was collected, where a registry is expected."""

    def __init__(self, metrics: "list[Metric]") -> None:
        self._metrics = metrics

    def collect(self) -> "Iterable[Metric]":
        return self._metrics


def can_show() -> bool:
    """Whether prometheus-client is installed: else nobody could see what is counted."""
    return find_spec(NEEDED) is not None


def families(samples: Iterable[Sample], readings: Iterable[Reading]) -> "Iterator[Metric]":
    """All of it as metrics of prometheus-client; those without a value are left out."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    values = series_of(samples, readings)
    for name, family in FAMILIES.items():
        series = sorted(values.get(name, ()))
        if not series:
            continue
        if family.kind == "histogram":
            histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
            for labels, counts in series:
                histogram.add_metric(labels, buckets(family.bounds, counts[:-1]), counts[-1])
            yield histogram
        else:
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=family.labels)
            for labels, (value,) in series:
                metric.add_metric(labels, value)
            yield metric


def series_of(samples: Iterable[Sample], readings: Iterable[Reading]) -> dict[str, list[Series]]:
    """All of it by the name that it has in `FAMILIES`."""
    values: dict[str, list[Series]] = {}
    for sample in samples:
        values.setdefault(sample.name, []).append((sample.labels, sample.values))
    _add_zeros(values)
    for reading in readings:
        values.setdefault(reading.name, []).append((reading.labels, [reading.value]))
    return values


def _add_zeros(values: dict[str, list[Series]]) -> None:
    """What has not happened yet, but may: nobody sees the first of a kind if there was no zero before."""
    for name, family in FAMILIES.items():
        if family.kind == "counter" and not family.labels:
            values.setdefault(name, [((), [0])])
    for name, source, words in (
        ("jobs_ended", "jobs_started", RUN_ENDS),
        ("leases_lost", "jobs_started", ((),)),
        ("ticks", "ticks", TICK_ENDS),
    ):
        known = {labels for labels, _ in values.get(name, ())}
        subjects = {
            labels[: len(FAMILIES[name].labels) - len(words[0])] for labels, _ in values.get(source, ())
        }
        missing = {(*subject, *word) for subject in subjects for word in words} - known
        if missing:
            values.setdefault(name, []).extend((labels, [0]) for labels in missing)


RUN_ENDS = tuple((outcome,) for outcome in ("completed", *OUTCOMES.values()))
TICK_ENDS = (("fired",), ("missed",), ("skipped",))


def buckets(bounds: Iterable[float], counts: Iterable[float]) -> list[tuple[str, float]]:
    """As Prometheus wants them: each has all that are smaller, too."""
    below = 0.0
    told: list[tuple[str, float]] = []
    for bound, count in zip([*(str(float(bound)) for bound in bounds), "+Inf"], counts, strict=True):
        below += count
        told.append((bound, below))
    return told
