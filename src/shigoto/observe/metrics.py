"""Metrics for Prometheus: counts of events, and gauges of the store.

    shigoto server                 GET /metrics, for a token with the scope `read`
    shigoto worker --health 8711   GET /metrics on that port, of all its runner processes together
    shigoto scheduler --health …   the same

and in a program of your own:

    metrics = Metrics(app.bus, lambda: app.engine)
    REGISTRY.register(metrics)                       # prometheus_client's own, or
    text, content_type = await metrics.scrape()      # for a route of yours

prometheus-client writes the text; nothing of it is needed to count, or until somebody asks for the text. What the store
holds is read by `store_gauges.py`.

Two events of every job pass by here, so counting is made to cost half a microsecond for each: what is counted by task
and queue is found by one look into a dictionary, and added to integers there.

A runner process counts for its supervisor, who is asked for the figures: `take` gives what was counted since it was
last called, and `add` adds that to what the supervisor has. So the counts of a runner that has died stay.

Labels come from names in code and in the store, and a caller may make up as many queues as it likes. So of each metric
there are no more than so many series; what comes later is counted as "other". Tenants and jobs are never labels.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from shigoto.engine.protocol import Engine
from shigoto.model.errors import DeclarationError
from shigoto.model.version import VERSION
from shigoto.observe import events
from shigoto.observe.bus import Bus, Unsubscribe
from shigoto.observe.events import Event
from shigoto.observe.store_gauges import OTHER, GaugeValue, StoreGauges

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MOST_SERIES = 200  # sets of labels of one metric

# Seconds: of handlers, which take a microsecond or an hour, and of the store, which answers soon or is in trouble.
DURATIONS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
LATENESSES = (*DURATIONS[1:], 3600.0)
ANSWERS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Labels = tuple[str, ...]
Series = tuple[Labels, list[float]]  # labels, and the values of a sample or a reading

RUN = ("task", "queue")
MOST_WORDS = 8  # outcomes, of runs or of ticks
KEPT = {"jobs_ended": 1, "ticks": 1}  # labels at the end that are such words

OUTCOMES: dict[type[Event], str] = {
    events.JobRetried: "retried",
    events.JobFailedEvent: "failed",
    events.JobSnoozed: "snoozed",
    events.JobReleased: "released",
    events.JobCancelledEvent: "cancelled",
    events.JobCrashed: "crashed",
}

RUN_ENDS = tuple((outcome,) for outcome in ("completed", *OUTCOMES.values()))
TICK_ENDS = (("fired",), ("missed",), ("skipped",))

# What is counted otherwise: the name of the metric, and the labels and the number of an event.
RARE: dict[type[Event], tuple[str, Callable[[Any], tuple[Labels, int]]]] = {
    events.StoreTrouble: ("store_trouble", lambda e: ((e.part,), 1)),
    events.JobsRescued: ("jobs_rescued", lambda e: ((), len(e.jobs))),
    events.WorkersFenced: ("workers_fenced", lambda e: ((), len(e.workers))),
    events.RunnerDied: ("runner_deaths", lambda _: ((), 1)),
    events.TickPassed: ("ticks", lambda e: ((e.schedule, e.outcome), e.count)),
    events.TickLost: ("ticks", lambda e: ((e.schedule, "lost"), 1)),
    events.ScheduleFailed: ("schedule_failures", lambda e: ((e.schedule,), 1)),
}

NEEDED = "prometheus_client"
MISSING = "The metrics need prometheus-client, which is not installed: pip install 'shigoto[prometheus]'."


class Sample(Struct, frozen=True, array_like=True):
    """One series: a single number; of a histogram how many values fell into each bucket, and then their sum."""

    name: str
    labels: Labels
    values: list[float]


class Runs:
    """What is counted of the jobs of one task in one queue."""

    __slots__ = ("completed", "durations", "ended", "lateness", "lost", "started")

    def __init__(self) -> None:
        self.started = 0
        self.completed = 0
        self.lost = 0
        self.ended: dict[str, int] = {}
        self.durations: list[float] = [0] * (len(DURATIONS) + 2)
        self.lateness: list[float] = [0] * (len(LATENESSES) + 2)

    def samples(self, labels: Labels) -> Iterable[Sample]:
        if self.started:
            yield Sample("jobs_started", labels, [self.started])
        for outcome, count in [("completed", self.completed), *self.ended.items()]:
            if count:
                yield Sample("jobs_ended", (*labels, outcome), [count])
        if self.lost:
            yield Sample("leases_lost", labels, [self.lost])
        for name, values in (("job_duration", self.durations), ("job_lateness", self.lateness)):
            if any(values):
                yield Sample(name, labels, list(values))


class EventCounters:
    """Counts the events of a bus, on its event loop. What they have come to may be read from any thread."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], Runs] = {}
        self._others: dict[str, dict[Labels, list[float]]] = {}

    def watch(self, bus: Bus) -> Unsubscribe:
        """Count what happens there from now on, until the returned function is called."""
        ends = [bus.subscribe(fn, kind) for kind, fn in self._heard().items()]
        ends.append(bus.subscribe_batches(self._completed, events.JobCompleted))

        def stop() -> None:
            for end in ends:
                end()

        return stop

    def samples(self) -> list[Sample]:
        samples = [
            sample for labels, runs in list(self._runs.items()) for sample in list(runs.samples(labels))
        ]
        for name, series in list(self._others.items()):
            samples += [Sample(name, labels, list(values)) for labels, values in list(series.items())]
        return samples

    def take(self) -> list[Sample]:
        """All that was counted since this was last called. On the event loop."""
        samples = self.samples()
        self._runs, self._others = {}, {}
        return samples

    def add(self, samples: Iterable[Sample]) -> None:
        """Count what somebody else has counted, too."""
        for sample in samples:
            self._add(sample.name, sample.labels, sample.values)

    def _heard(self) -> dict[type[Event], Callable[[Any], None]]:
        return {
            events.JobsClaimed: self._claimed,
            events.JobStarted: self._started,
            **dict.fromkeys(OUTCOMES, self._ended),
            events.LeaseLostEvent: self._lost,
            events.StoreAnswered: self._answered,
            **dict.fromkeys(RARE, self._rare),
            events.TickFired: self._fired,
        }

    # Every job passes these.

    def _claimed(self, event: events.JobsClaimed) -> None:
        task, queue = event.leases[0].task, event.leases[0].queue
        lateness = self._runs_of(task, queue).lateness
        for lease in event.leases:
            if lease.task != task or lease.queue != queue:
                task, queue = lease.task, lease.queue
                lateness = self._runs_of(task, queue).lateness
            late = (lease.claimed_at - lease.run_at) / 1000  # by the store's clock, both of them
            lateness[bisect_left(LATENESSES, late)] += 1
            if late > 0:  # as it is not if that clock was set back in between
                lateness[-1] += late

    def _started(self, event: events.JobStarted) -> None:
        runs = self._runs.get((event.task, event.queue)) or self._runs_of(event.task, event.queue)
        runs.started += 1

    def _completed(self, batch: Sequence[events.JobCompleted]) -> None:
        task, queue = batch[0].task, batch[0].queue
        runs = self._runs_of(task, queue)
        for event in batch:
            if event.task != task or event.queue != queue:
                task, queue = event.task, event.queue
                runs = self._runs_of(task, queue)
            runs.completed += 1
            durations, seconds = runs.durations, event.duration
            durations[bisect_left(DURATIONS, seconds)] += 1
            durations[-1] += seconds

    # These are rarer.

    def _ended(self, event: Any) -> None:
        runs, outcome = self._runs_of(event.task, event.queue), OUTCOMES[type(event)]
        runs.ended[outcome] = runs.ended.get(outcome, 0) + 1
        if outcome != "released":  # which has not run to any end, or not at all
            runs.durations[bisect_left(DURATIONS, event.duration)] += 1
            runs.durations[-1] += event.duration

    def _lost(self, event: events.LeaseLostEvent) -> None:
        self._runs_of(event.task, event.queue).lost += 1

    def _answered(self, event: events.StoreAnswered) -> None:
        self._observe("store", (event.verb,), ANSWERS, event.seconds)

    def _fired(self, event: events.TickFired) -> None:
        self._add("ticks", (event.schedule, event.outcome), [1])
        if event.outcome in ("fired", "caught_up"):  # the others have no time at which they should have fired
            self._observe("tick_lateness", (), LATENESSES, max(0, event.late) / 1000)

    def _rare(self, event: Event) -> None:
        name, count = RARE[type(event)]
        labels, number = count(event)
        self._add(name, labels, [number])

    def _runs_of(self, task: str, queue: str) -> Runs:
        runs = self._runs.get((task, queue))
        if runs is None:
            key = (task, queue) if len(self._runs) < MOST_SERIES else (OTHER, OTHER)
            runs = self._runs.setdefault(key, Runs())
        return runs

    def _observe(self, name: str, labels: Labels, bounds: Sequence[float], value: float) -> None:
        series = self._series(name, labels, len(bounds) + 2)
        series[bisect_left(bounds, value)] += 1
        series[-1] += value

    def _add(self, name: str, labels: Labels, values: Sequence[float]) -> None:
        series = self._series(name, labels, len(values))
        for at, value in enumerate(values):
            series[at] += value

    def _series(self, name: str, labels: Labels, size: int) -> list[float]:
        known = self._others.setdefault(name, {})
        series = known.get(labels)
        if series is None:
            # What happened is one of a few words, and stays; what it happened to is one of any number of names.
            kept = KEPT.get(name, 0)
            rest = labels[len(labels) - kept :] if kept else ()
            room = MOST_SERIES * (MOST_WORDS if kept else 1)
            if len(known) >= room:
                labels = (*[OTHER] * (len(labels) - len(rest)), *rest)
            series = known.setdefault(labels, [0] * size)
        return series


class Family(Struct, frozen=True):
    """One metric as Prometheus has it. `bounds` are those of the buckets of a histogram."""

    kind: Literal["counter", "histogram", "gauge"]
    name: str
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...] = ()


counter, gauge, histogram = partial(Family, "counter"), partial(Family, "gauge"), partial(Family, "histogram")

# By the names they have in samples and gauge values; in the order in which they are shown, and in
# docs/guides/metrics.md.
FAMILIES: dict[str, Family] = {
    "jobs_started": counter("shigoto_jobs_started", RUN, "Runs whose handler was called."),
    "jobs_ended": counter(
        "shigoto_jobs_ended",
        (*RUN, "outcome"),
        "Runs that the store knows to have ended: completed, retried, failed, snoozed, released, cancelled, crashed.",
    ),
    "leases_lost": counter(
        "shigoto_leases_lost",
        RUN,
        "Runs whose outcome was refused, because the job was somebody else's by then.",
    ),
    "job_duration": histogram(
        "shigoto_job_duration_seconds",
        RUN,
        "How long runs took, but for those that were given back.",
        DURATIONS,
    ),
    "job_lateness": histogram(
        "shigoto_job_lateness_seconds", RUN, "How long after they were due jobs were claimed.", LATENESSES
    ),
    "jobs_rescued": counter("shigoto_jobs_rescued", (), "Jobs that were taken from workers that are gone."),
    "workers_fenced": counter(
        "shigoto_workers_fenced", (), "Workers that did not beat any more and lost their leases."
    ),
    "runner_deaths": counter("shigoto_runner_deaths", (), "Runner processes of this worker that have died."),
    "store": histogram(
        "shigoto_store_operation_seconds", ("operation",), "How long the store took to answer.", ANSWERS
    ),
    "store_trouble": counter(
        "shigoto_store_trouble", ("part",), "Times that a part could not reach the store."
    ),
    "ticks": counter(
        "shigoto_schedule_ticks",
        ("schedule", "outcome"),
        "Ticks by what became of them: fired, caught_up, backfilled, run_now, skipped, missed, suppressed; or lost to "
        "another process that was first.",
    ),
    "tick_lateness": histogram(
        "shigoto_schedule_lateness_seconds", (), "How long after their time ticks were fired.", LATENESSES
    ),
    "schedule_failures": counter(
        "shigoto_schedule_failures", ("schedule",), "Ticks whose job could not be made or stored."
    ),
    "queue_jobs": gauge(
        "shigoto_queue_jobs",
        ("queue", "state"),
        "Jobs that the store holds: ready, scheduled, processing, blocked, completed, failed, cancelled.",
    ),
    "queue_oldest": gauge(
        "shigoto_queue_oldest_ready_seconds",
        ("queue",),
        "For how long the job has been due that has been ready for the longest; 0 if none is.",
    ),
    "queue_paused": gauge("shigoto_queue_paused", ("queue",), "Whether the queue is paused."),
    "workers": gauge("shigoto_workers", (), "Workers that are registered and not fenced."),
    "worker_slots": gauge("shigoto_worker_slots", (), "How many jobs all workers together can run at once."),
    "store_up": gauge("shigoto_store_up", (), "Whether the store has answered."),
    "ready": gauge("shigoto_ready", (), "Whether this process can do its work, as /readyz says it."),
    "scheduler_status": gauge(
        "shigoto_scheduler_status",
        ("status",),
        "How the scheduler of this process is: 1 for one of OK, Warning and Error.",
    ),
    "scheduler_errors": gauge(
        "shigoto_scheduler_error_ratio", (), "The part of its newest cycles in which something failed."
    ),
    "scheduler_last_tick": gauge(
        "shigoto_scheduler_last_tick_timestamp_seconds", (), "When it last fired a tick."
    ),
    "info": gauge("shigoto_build_info", ("version",), "The version of shigoto."),
}


class Metrics:
    """Counts what happens on a bus from now on, and shows it together with what a store holds.

    Without a `bus` it shows what it is given by `add`; without an `engine` nothing is asked of a store. `more` is asked
    for further gauge values whenever somebody scrapes. Raises DeclarationError if prometheus-client is not installed.
    """

    def __init__(
        self,
        bus: Bus | None = None,
        engine: Callable[[], Engine] | None = None,
        *,
        more: Callable[[], Iterable[GaugeValue]] = tuple,
    ) -> None:
        if not can_show():
            raise DeclarationError(MISSING)
        self._counters = EventCounters()
        self._stop: Unsubscribe | None = None if bus is None else self._counters.watch(bus)
        self._gauges = None if engine is None else StoreGauges(engine)
        self._more = more

    def add(self, samples: Iterable[Sample]) -> None:
        """Count what another process has counted."""
        self._counters.add(samples)

    def close(self) -> None:
        """Count no more. Closing twice is fine."""
        if self._stop is not None:
            self._stop()

    def collect(self) -> Iterator["Metric"]:
        """What there is, for a registry of prometheus-client: `REGISTRY.register(metrics)`. Asks the store in the
        calling thread."""
        return families(
            self._counters.samples(),
            self._gauge_values([] if self._gauges is None else self._gauges.read_now()),
        )

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """What there is, as the body of an answer and its content type: OpenMetrics if `accept`, the header of the
        request, asks for it, else the text format of Prometheus."""
        from prometheus_client.exposition import choose_encoder

        gauge_values = self._gauge_values([] if self._gauges is None else await self._gauges.read())
        try:
            encode, content_type = choose_encoder(accept)
        except Exception:  # it does not take every header that there can be
            encode, content_type = choose_encoder("")
        return encode(_Collected(list(families(self._counters.samples(), gauge_values)))), content_type

    def _gauge_values(self, seen: Iterable[GaugeValue]) -> list[GaugeValue]:
        return [*seen, *self._more(), GaugeValue("info", (VERSION,), 1)]


def metrics_if_shown(
    bus: Bus, engine: Callable[[], Engine], *, more: Callable[[], Iterable[GaugeValue]]
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


def families(samples: Iterable[Sample], gauge_values: Iterable[GaugeValue]) -> "Iterator[Metric]":
    """All of it as metrics of prometheus-client; those without a value are left out."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    values = series_of(samples, gauge_values)
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


def series_of(samples: Iterable[Sample], gauge_values: Iterable[GaugeValue]) -> dict[str, list[Series]]:
    """All of it by the name that it has in `FAMILIES`."""
    values: dict[str, list[Series]] = {}
    for sample in samples:
        values.setdefault(sample.name, []).append((sample.labels, sample.values))
    _add_zeros(values)
    for gauge in gauge_values:
        values.setdefault(gauge.name, []).append((gauge.labels, [gauge.value]))
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


def buckets(bounds: Iterable[float], counts: Iterable[float]) -> list[tuple[str, float]]:
    """As Prometheus wants them: each has all that are smaller, too."""
    below = 0.0
    told: list[tuple[str, float]] = []
    for bound, count in zip([*(str(float(bound)) for bound in bounds), "+Inf"], counts, strict=True):
        below += count
        told.append((bound, below))
    return told
