"""What is counted of events, and how Prometheus is shown it."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.engine.protocol import Relay
from shigoto.model.errors import DeclarationError, StoreRefused, StoreUnavailable
from shigoto.model.ids import uuid7
from shigoto.model.job import Counts, FailureKind, JobSpec, Lease, QueueSettings
from shigoto.observe import events, metrics, store_gauges
from shigoto.observe.bus import Bus
from shigoto.observe.metrics import FAMILIES, MOST_SERIES, EventCounters, Metrics, Sample
from shigoto.observe.store_gauges import MOST_QUEUES, GaugeValue, StoreSnapshot, gauges_of

ID = UUID(int=7)
JOB = ("2", ID, 42, "resize", "images", "acme", 3)


def lease(task: str = "resize", queue: str = "images", *, late: int = 0) -> Lease:
    return Lease(42, 1, ID, task, queue, 1, 0, 0, 6, 0, 1_000_000, 1_000_000 + late)


EVENTS: list[events.Event] = [
    events.JobsClaimed("2", [lease(late=20), lease(), lease("send", "mail", late=2_500), lease(late=-5)]),
    events.JobStarted(*JOB),
    events.JobStarted(*JOB),
    events.JobCompleted(*JOB, 0.25),
    events.JobRetried(*JOB, 0.5, 1_000, FailureKind.ERROR, "OSError"),
    events.JobFailedEvent(*JOB, 2_000.0, FailureKind.ERROR, "OSError"),
    events.JobSnoozed(*JOB, 0.1, 1_000),
    events.JobReleased(*JOB, 0.0),
    events.JobCancelledEvent(*JOB, 0.1),
    events.JobCrashed(*JOB, 0.1, 1_000, "killed"),
    events.LeaseLostEvent(*JOB, 0.1),
    events.StoreAnswered("2", "claim", 0.002),
    events.StoreTrouble("2", "settler", "gone", 1.0),
    events.JobsRescued("2", ()),
    events.WorkersFenced("2", (ID, ID)),
    events.RunnerDied("2", 7, "was killed", 1, 0.0, ""),
    events.TickFired("2", "nightly", 0, "fired", ID, 1_500),
    events.TickFired("2", "nightly", 0, "run_now", ID, 0),
    events.TickPassed("2", "nightly", 0, "missed", 3),
    events.TickLost("2", "nightly"),
    events.ScheduleFailed("2", "nightly", "no", 1, failed=False),
]


@pytest.fixture
def counted() -> Metrics:
    bus = Bus()
    counted = Metrics(bus)
    for event in EVENTS:
        bus.publish(event)
    return counted


def scraped(shown: Metrics, accept: str = "") -> str:
    return asyncio.run(shown.scrape(accept))[0].decode()


def values(text: str, parse: Any = plain_text) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels, in the order of their names."""
    return {
        (sample.name.removeprefix("shigoto_"), *(value for _, value in sorted(sample.labels.items()))): (
            sample.value
        )
        for family in parse(text)
        for sample in family.samples
    }


def test_every_outcome_is_counted_by_task_and_queue(counted: Metrics) -> None:
    """S3-67, S0-66, S4-19."""
    told = values(scraped(counted))

    assert told["jobs_started_total", "images", "resize"] == 2
    for outcome in ("completed", "retried", "failed", "snoozed", "released", "cancelled", "crashed"):
        assert told["jobs_ended_total", outcome, "images", "resize"] == 1
    assert told["leases_lost_total", "images", "resize"] == 1
    assert told["workers_fenced_total",] == 2
    assert told["runner_deaths_total",] == 1
    assert told["store_trouble_total", "settler"] == 1


def test_a_batch_of_several_tasks_is_counted_by_each() -> None:
    bus, counted = Bus(), EventCounters()
    counted.watch(bus)
    places = [("resize", "images"), ("send", "images"), ("send", "mail"), ("resize", "images")]
    bus.publish_all([events.JobCompleted("2", ID, 1, task, queue, "", 1, 0.25) for task, queue in places])

    ended = {sample.labels: sample.values for sample in counted.samples() if sample.name == "jobs_ended"}
    assert ended == {
        ("resize", "images", "completed"): [2],
        ("send", "images", "completed"): [1],
        ("send", "mail", "completed"): [1],
    }
    durations = {
        sample.labels: sample.values[-1] for sample in counted.samples() if sample.name == "job_duration"
    }
    assert durations == {("resize", "images"): 0.5, ("send", "images"): 0.25, ("send", "mail"): 0.25}


def test_durations_and_lateness_are_histograms_in_seconds(counted: Metrics) -> None:
    """S3-67, S4-19."""
    told = values(scraped(counted))

    assert told["job_duration_seconds_count", "images", "resize"] == 6, "what was given back has none"
    assert told["job_duration_seconds_sum", "images", "resize"] == pytest.approx(2_001.05)
    assert told["job_duration_seconds_bucket", "0.25", "images", "resize"] == 4
    assert told["job_duration_seconds_bucket", "1800.0", "images", "resize"] == 5
    assert told["job_duration_seconds_bucket", "+Inf", "images", "resize"] == 6
    assert told["job_lateness_seconds_count", "images", "resize"] == 3
    assert told["job_lateness_seconds_sum", "images", "resize"] == pytest.approx(0.02), (
        "no clock makes it less"
    )
    assert told["job_lateness_seconds_bucket", "2.5", "mail", "send"] == 1
    assert told["store_operation_seconds_bucket", "0.0025", "claim"] == 1
    assert told["store_operation_seconds_bucket", "0.001", "claim"] == 0


def test_ticks_are_counted_by_schedule_and_outcome(counted: Metrics) -> None:
    """S4-19."""
    told = values(scraped(counted))

    assert told["schedule_ticks_total", "fired", "nightly"] == 1
    assert told["schedule_ticks_total", "missed", "nightly"] == 3
    assert told["schedule_ticks_total", "lost", "nightly"] == 1
    assert told["schedule_failures_total", "nightly"] == 1
    assert told["schedule_lateness_seconds_count",] == 1
    assert told["schedule_lateness_seconds_sum",] == 1.5


def test_what_has_not_happened_yet_is_zero_and_not_missing() -> None:
    """Prometheus sees no increase from nothing to one."""
    bus = Bus()
    shown = Metrics(bus)
    bus.publish(events.JobStarted(*JOB))
    bus.publish(events.TickFired("2", "nightly", 0, "fired", ID, 0))

    told = values(scraped(shown))

    assert told["jobs_ended_total", "failed", "images", "resize"] == 0
    assert told["leases_lost_total", "images", "resize"] == 0
    assert told["schedule_ticks_total", "missed", "nightly"] == 0
    assert told["jobs_rescued_total",] == 0


def test_both_formats_are_strictly_what_they_should_be(counted: Metrics) -> None:
    text, kind = asyncio.run(counted.scrape("application/openmetrics-text;version=1.0.0"))

    assert kind.startswith("application/openmetrics-text")
    assert values(text.decode(), open_metrics) == values(scraped(counted))


def test_every_metric_has_our_prefix_a_help_and_labels_that_are_bounded(counted: Metrics) -> None:
    """S35: neither tenants nor jobs."""
    for family in FAMILIES.values():
        assert family.name.startswith("shigoto_")
        assert family.help.endswith(".")
        assert not {"tenant", "job", "job_id", "number", "worker"} & set(family.labels)
    assert "acme" not in scraped(counted)
    assert str(ID) not in scraped(counted)


def test_more_tasks_and_queues_than_fit_are_counted_as_others() -> None:
    """S35."""
    bus, counting = Bus(), EventCounters()
    counting.watch(bus)
    supervisor = EventCounters()
    for number in range(MOST_SERIES + 50):
        bus.publish(events.JobStarted("2", ID, 1, f"task-{number}", "images", "", 1))
        bus.publish(events.JobCompleted("2", ID, 1, f"task-{number}", "images", "", 1, 0.1))
        bus.publish(events.TickPassed("2", f"schedule-{number}", 0, "missed", 1))

    supervisor.add(counting.samples())
    for meter in (counting, supervisor):
        by_name: dict[str, list[Sample]] = {}
        for sample in meter.samples():
            by_name.setdefault(sample.name, []).append(sample)
        assert sum(each.values[0] for each in by_name["jobs_started"]) == MOST_SERIES + 50
        assert len(by_name["jobs_started"]) == MOST_SERIES + 1
        assert ("other", "other") in {each.labels for each in by_name["jobs_started"]}
        assert ("other", "other", "completed") in {each.labels for each in by_name["jobs_ended"]}

    for number in range(8 * MOST_SERIES):
        bus.publish(events.TickPassed("2", f"another-{number}", 0, "missed", 1))
    ticks = [each for each in counting.samples() if each.name == "ticks"]
    assert len(ticks) == 8 * MOST_SERIES + 1
    assert ("other", "missed") in {each.labels for each in ticks}


def test_what_is_taken_is_counted_once_and_adds_up_elsewhere() -> None:
    bus, runner, supervisor = Bus(), EventCounters(), Metrics()
    runner.watch(bus)
    for _ in range(2):
        for event in EVENTS:
            bus.publish(event)
        supervisor.add(runner.take())
    assert runner.take() == []

    whole = Metrics(bus)
    for event in EVENTS * 2:
        bus.publish(event)

    assert values(scraped(supervisor)) == pytest.approx(values(scraped(whole)))


def test_a_registry_of_prometheus_client_takes_it() -> None:
    bus, engine = Bus(), MemoryEngine()
    registry = CollectorRegistry()
    shown = Metrics(bus, lambda: engine)
    registry.register(shown)
    bus.publish(events.JobStarted(*JOB))

    assert registry.get_sample_value("shigoto_jobs_started_total", {"task": "resize", "queue": "images"}) == 1
    assert registry.get_sample_value("shigoto_store_up") == 1

    shown.close()
    bus.publish(events.JobStarted(*JOB))
    assert registry.get_sample_value("shigoto_jobs_started_total", {"task": "resize", "queue": "images"}) == 1
    assert not bus.active


def test_without_prometheus_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "find_spec", lambda _: None)

    with pytest.raises(DeclarationError, match=r"pip install 'shigoto\[prometheus\]'"):
        Metrics(Bus())


# What a store holds.


class Asked(Relay):
    """A store that counts how often it is asked, and may fail."""

    def __init__(self) -> None:
        super().__init__(MemoryEngine())
        self.times = 0
        self.error: Exception | None = None

    async def arun(self, op: Op[Any]) -> Any:
        self.times += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return await super().arun(op)


def spec(queue: str, **more: Any) -> JobSpec:
    return JobSpec(id=uuid7(), task="work", queue=queue, payload="{}", **more)


@pytest.fixture
def store() -> Iterator[Asked]:
    store = Asked()
    yield store
    store.close()


async def test_depth_age_and_workers_come_from_the_store(store: Asked) -> None:
    """S3-44, S3-67."""
    store.run(store.enqueue_many([spec("a"), spec("a", delay=60_000), spec("b")]))
    store.run(store.configure(QueueSettings(name="b", paused=True)))

    text, _ = await Metrics(None, lambda: store).scrape()

    told = values(text.decode())
    assert told["queue_jobs", "a", "ready"] == 1
    assert told["queue_jobs", "a", "scheduled"] == 1
    assert told["queue_jobs", "b", "completed"] == 0
    assert 0 <= told["queue_oldest_ready_seconds", "a"] < 60
    assert (told["queue_paused", "a"], told["queue_paused", "b"]) == (0, 1)
    assert (told["workers",], told["store_up",]) == (0, 1)


async def test_many_who_scrape_at_once_ask_the_store_once(
    store: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Metrics(None, lambda: store)

    await asyncio.gather(*(shown.scrape() for _ in range(10)))
    await shown.scrape()
    assert store.times == 1

    monkeypatch.setattr(store_gauges, "FRESH_FOR", 0.0)
    await shown.scrape()
    assert store.times == 2


async def test_a_store_that_is_down_is_shown_as_such(store: Asked) -> None:
    store.error = StoreUnavailable("gone")

    text, _ = await Metrics(Bus(), lambda: store).scrape()

    told = values(text.decode())
    assert told["store_up",] == 0
    assert not any(name.startswith("queue") for name, *_ in told)


async def test_a_store_that_does_not_tell_us_is_not_down(store: Asked) -> None:
    store.error = StoreRefused("not for a token of one tenant")

    text, _ = await Metrics(Bus(), lambda: store).scrape()

    assert "shigoto_store_up " not in text.decode()


def test_of_very_many_queues_the_busiest_are_told_one_by_one() -> None:
    """S35."""
    queues = {f"q{number:04}": Counts(pending=number) for number in range(1_000)}
    snapshot = StoreSnapshot(
        now=10_000,
        queues=queues,
        oldest={"q0000": 1_000, "q0999": 9_000},
        paused=frozenset(),
        workers=1,
        slots=8,
    )

    told = gauges_of(snapshot)

    ready = {reading.labels[0]: reading.value for reading in told if reading.labels[1:] == ("ready",)}
    assert len(ready) == MOST_QUEUES
    assert ready["q0999"] == 999
    assert sum(ready.values()) == sum(range(1_000))
    assert GaugeValue("queue_oldest", ("other",), 9.0) in told
    assert GaugeValue("queue_oldest", ("q0999",), 1.0) in told


def test_all_that_is_read_and_counted_has_a_place_in_the_table(counted: Metrics) -> None:
    names = {"info", "ready", "scheduler_status", "scheduler_errors", "scheduler_last_tick"}
    names |= {name for name, _ in metrics.RARE.values()}
    names |= {sample.name for sample in counted._counters.samples()}
    snapshot = StoreSnapshot(now=1, queues={"a": Counts()}, oldest={}, paused=frozenset(), workers=1, slots=8)
    names |= {reading.name for reading in gauges_of(snapshot)}

    assert names == set(FAMILIES)
    assert all(isinstance(metric, Metric) for metric in counted.collect())
