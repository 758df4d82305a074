"""What is counted of events: plain numbers in plain dictionaries, for `metrics.py` to show.

Two events of every job pass by here, so this is made to cost half a microsecond for each: what is counted by task and
queue is found by one look into a dictionary, and added to integers there. Nothing of Prometheus is needed to count.

A runner process counts for its supervisor, who is asked for the figures: `take` gives what was counted since it was
last called, and `add` adds that to what the supervisor has. So the counts of a runner that has died stay.

Labels come from names in code and in the store, and a caller may make up as many queues as it likes. So of each metric
there are no more than so many series; what comes later is counted as "other". Tenants and jobs are never labels.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from shigoto.observe import events
from shigoto.observe.bus import Bus, Unsubscribe
from shigoto.observe.events import Event

MOST_SERIES = 200  # sets of labels of one metric
OTHER = "other"

# Seconds: of handlers, which take a microsecond or an hour, and of the store, which answers soon or is in trouble.
DURATIONS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
LATENESSES = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
    3600.0,
)
ANSWERS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Labels = tuple[str, ...]


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
        """What of it is not nothing."""
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


class Meters:
    """Counts the events of a bus, on its event loop. What they have come to may be read from any thread."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], Runs] = {}
        self._others: dict[str, dict[Labels, list[float]]] = {}

    def watch(self, bus: Bus) -> Unsubscribe:
        """Count what happens there from now on, until the returned function is called."""
        ends = [bus.subscribe(fn, kind, anywhere=True) for kind, fn in self._heard().items()]
        ends.append(bus.subscribe_batches(self._completed, events.JobCompleted))

        def stop() -> None:
            for end in ends:
                end()

        return stop

    def samples(self) -> list[Sample]:
        """All that was counted."""
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
            events.LeaseLost: self._lost,
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

    def _lost(self, event: events.LeaseLost) -> None:
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


MOST_WORDS = 8  # outcomes, of runs or of ticks
KEPT = {"jobs_ended": 1, "ticks": 1}  # labels at the end that are such words

OUTCOMES: dict[type[Event], str] = {
    events.JobRetried: "retried",
    events.JobFailed: "failed",
    events.JobSnoozed: "snoozed",
    events.JobReleased: "released",
    events.JobCancelled: "cancelled",
    events.JobCrashed: "crashed",
}

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
