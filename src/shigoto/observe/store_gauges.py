"""Gauges of a store: how many jobs each queue has, since when its oldest waits, how many workers there are.

Whoever scrapes asks again and again, perhaps from several places, and must never be a burden: an answer is good for a
moment, all who ask meanwhile share one question, the store gets a short time for it, and of many queues only those with
the most jobs are told one by one.
"""

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic

from msgspec import Struct, structs

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreError, StoreRefused
from shigoto.model.job import Counts
from shigoto.model.time import Millis

FRESH_FOR = 2.0  # seconds
PATIENCE = 2.0  # seconds
MOST_QUEUES = 200
OTHER = "other"  # what stands for all that has no series of its own
STATES = ("ready", "scheduled", "processing", "blocked", "completed", "failed", "cancelled")


class GaugeValue(Struct, frozen=True, array_like=True):
    name: str
    labels: tuple[str, ...]
    value: float


class StoreSnapshot(Struct, frozen=True, kw_only=True):
    """What there was at one moment. `workers` are those whose lease is good, `slots` theirs together."""

    now: Millis
    queues: Mapping[str, Counts]
    oldest: Mapping[str, Millis]
    paused: frozenset[str]
    workers: int
    slots: int


class StoreGauges:
    """Looks at a store; `engine` is called when it is first needed. For one event loop, or for threads."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine
        self._gauge_values: list[GaugeValue] = []
        self._read_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def read(self) -> list[GaugeValue]:
        """What it shows now, or a moment ago. Never raises for a store that does not answer: then that is shown."""
        if monotonic() - self._read_at >= FRESH_FOR:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask(), name="shigoto-metrics")
            await asyncio.shield(self._asking)
        return self._gauge_values

    def read_now(self) -> list[GaugeValue]:
        """The same in the calling thread."""
        if monotonic() - self._read_at >= FRESH_FOR:
            try:
                engine = self._engine()
                self._keep(gauges_of(engine.run(structs.replace(read_op(engine), deadline=PATIENCE))))
            except StoreRefused:
                self._keep([])
            except StoreError:
                self._keep(DOWN)
        return self._gauge_values

    async def _ask(self) -> None:
        try:
            engine = self._engine()
            async with asyncio.timeout(PATIENCE + 1.0):
                snapshot = await engine.arun(structs.replace(read_op(engine), deadline=PATIENCE))
            self._keep(gauges_of(snapshot))
        except StoreRefused:  # it is there, but does not tell us
            self._keep([])
        except (StoreError, TimeoutError):
            self._keep(DOWN)

    def _keep(self, gauge_values: list[GaugeValue]) -> None:
        self._gauge_values, self._read_at = gauge_values, monotonic()


def read_op(engine: Engine) -> Op[StoreSnapshot]:
    def steps() -> Steps[StoreSnapshot]:
        # Whoever only works for a server may not ask it for these.
        settings = [] if engine.capabilities.served else (yield from engine.settings().start())
        counts = yield from engine.stats().start()
        oldest = yield from engine.oldest().start()
        workers = yield from engine.workers().start()
        return StoreSnapshot(
            now=(yield from engine.time().start()),
            queues={each.name: counts.get(each.name, Counts()) for each in settings} | counts,
            oldest=oldest,
            paused=frozenset(each.name for each in settings if each.paused),
            workers=len(workers),
            slots=sum(each.slots for each in workers),
        )

    return Op(start=steps, mode="read")


def gauges_of(snapshot: StoreSnapshot) -> list[GaugeValue]:
    gauge_values = [
        GaugeValue("store_up", (), 1),
        GaugeValue("workers", (), snapshot.workers),
        GaugeValue("worker_slots", (), snapshot.slots),
    ]
    jobs: dict[tuple[str, str], int] = {}
    ages: dict[str, float] = {}
    paused: dict[str, float] = {}
    named = _named(snapshot.queues)
    for queue, counts in snapshot.queues.items():
        label = queue if queue in named else OTHER
        held = structs.asdict(counts)
        held["ready"] = held.pop("pending") - counts.scheduled
        for state in STATES:
            jobs[label, state] = jobs.get((label, state), 0) + held[state]
        age = max(0, snapshot.now - snapshot.oldest.get(queue, snapshot.now)) / 1000
        ages[label] = max(ages.get(label, 0.0), age)
        paused[label] = max(paused.get(label, 0.0), float(queue in snapshot.paused))
    gauge_values += [GaugeValue("queue_jobs", labels, count) for labels, count in jobs.items()]
    gauge_values += [GaugeValue("queue_oldest", (queue,), age) for queue, age in ages.items()]
    gauge_values += [GaugeValue("queue_paused", (queue,), value) for queue, value in paused.items()]
    return gauge_values


def _named(queues: Mapping[str, Counts]) -> frozenset[str]:
    """Those that are told one by one: where the most jobs wait or run."""
    if len(queues) <= MOST_QUEUES:
        return frozenset(queues)
    busiest = sorted(queues, key=lambda name: (-queues[name].pending - queues[name].processing, name))
    return frozenset(busiest[: MOST_QUEUES - 1])


DOWN = [GaugeValue("store_up", (), 0)]
