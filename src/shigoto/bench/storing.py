"""How fast jobs are stored: one by one, by many callers at once, and in bulk. Every job is committed.

Each has a time limit beside its number of jobs: a slow disk makes them take longer, not more patience.
"""

import asyncio
import time
from collections.abc import Iterator

from shigoto.bench.figures import BenchFailed, Rate
from shigoto.bench.place import Stage
from shigoto.bench.usage import processor
from shigoto.enqueue import Call
from shigoto.model.job import State

CALLERS = 64
AT_ONCE = 1_000


class Meter:
    """Counts what is done from its making on; `open` until the time is over."""

    def __init__(self, within: float) -> None:
        self._cpu, self._began = processor(), time.perf_counter()
        self._deadline = self._began + within
        self.jobs = 0

    @property
    def open(self) -> bool:
        """Whether there is time left; there always is for the first."""
        return not self.jobs or time.perf_counter() < self._deadline

    def rate(self) -> Rate:
        """What was done until now."""
        seconds = time.perf_counter() - self._began
        return Rate(jobs=self.jobs, seconds=seconds, cpu=processor() - self._cpu)


def one_by_one(stage: Stage, jobs: int, *, within: float) -> Rate:
    """One caller, which waits for each commit."""
    task = stage.tasks.noop
    task.enqueue(0)  # opens the store, and makes the lane
    meter = Meter(within)
    while meter.jobs < jobs and meter.open:
        task.enqueue(meter.jobs)
        meter.jobs += 1
    rate = meter.rate()
    expect_stored(stage, rate.jobs + 1)
    return rate


def by_many(stage: Stage, jobs: int, *, within: float) -> Rate:
    """Many callers on one event loop, each of which waits for its own commit."""
    rate = asyncio.run(_by_many(stage, jobs, within))
    expect_stored(stage, rate.jobs + 1)
    return rate


async def _by_many(stage: Stage, jobs: int, within: float) -> Rate:
    await stage.tasks.noop.aenqueue(0)
    meter = Meter(within)
    numbers = iter(range(jobs))
    async with asyncio.TaskGroup() as callers:
        for _ in range(min(CALLERS, jobs)):
            callers.create_task(_call(stage, numbers, meter), name="shigoto-bench-caller")
    return meter.rate()


async def _call(stage: Stage, numbers: Iterator[int], meter: Meter) -> None:
    for number in numbers:
        await stage.tasks.noop.aenqueue(number)
        meter.jobs += 1
        if not meter.open:
            return


def in_bulk(stage: Stage, jobs: int, *, within: float) -> Rate:
    """A thousand jobs for each call, checked and encoded one by one."""
    stage.tasks.noop.enqueue(0)
    meter = Meter(within)
    while meter.jobs < jobs and meter.open:
        meter.jobs += _store(stage, min(AT_ONCE, jobs - meter.jobs), sync=False)
    rate = meter.rate()
    expect_stored(stage, rate.jobs + 1)
    return rate


def fill(stage: Stage, jobs: int, *, sync: bool) -> None:
    """Store so many jobs for somebody to run."""
    for first in range(0, jobs, AT_ONCE):
        _store(stage, min(AT_ONCE, jobs - first), sync=sync)


def _store(stage: Stage, count: int, *, sync: bool) -> int:
    tasks = stage.tasks
    calls: Iterator[Call[None]] = (
        tasks.noop_sync.call(number) if sync else tasks.noop.call(number) for number in range(count)
    )
    return len(stage.app.enqueue_many(calls))


def expect_stored(stage: Stage, jobs: int) -> None:
    """Raise BenchFailed unless exactly so many jobs wait in the store."""
    found = len(stage.numbers(State.PENDING))
    if found != jobs:
        raise BenchFailed(
            f"{jobs} jobs were stored, and the store has {found} of them: the figures would mean nothing."
            " Does somebody delete jobs of all queues?"
        )
