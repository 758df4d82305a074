"""A fleet of worker processes that are idle and ready before the jobs come: how fast they drain, and how long jobs wait
while they come steadily. Standard library only: it runs beside any peer.

Ready: each process has run at least one job, and all together have drained a backlog, while the server renewed its
statistics. Then all jobs are stored at once; the drain is timed from the first job that begins until the store says
that nothing is left.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from bench.contract import Many, One, Runner, event_loop
from bench.gauge import usage_of
from bench.measuring import (
    Crowd,
    Report,
    awaited,
    emptied,
    entered,
    leave,
    microseconds,
    server_cpu,
    working,
)
from bench.probe import SUFFIX, look, waits

READY_WITHIN, DRAINED_WITHIN = 90.0, 120.0  # seconds
IDLE_FOR = 1.5  # seconds, so that nothing of the warm-up is under way any more
WARM_JOBS = 20_000
EACH = 200  # jobs for each process, so that those that come first cannot take all of them
LOOK_EVERY = 0.002

Store = Callable[[Iterable[int]], None]


def fleet(runner: Runner, jobs: int, processes: int) -> Report:
    """Drain so many jobs that are stored at once."""
    runner.reset()
    with event_loop() as loop, working(runner, processes) as crowd:
        producer = runner.producer()
        one, many = loop.run(entered(producer))
        store = _storing(one, many, loop)
        if not _warm(runner, store, loop, crowd, processes, WARM_JOBS):
            return {"error": "not every process was ready in time", "log": crowd.log()}
        before, used, server = look(crowd.folder).began, usage_of(crowd.pids).cpu, server_cpu(runner)
        # The first job begins before the call returns that has stored them.
        with ThreadPoolExecutor(1) as watch:
            begun = watch.submit(_until_began, crowd, before + 1)
            store(range(jobs))
            first = begun.result()
        _until_began(crowd, before + jobs)
        seen = look(crowd.folder)
        remaining, ended = emptied(lambda: loop.run(runner.left()))
        cpu, server = usage_of(crowd.pids).cpu - used, server_cpu(runner) - server
        began = look(crowd.folder).began - before
        loop.run(leave(producer))
    seconds = max((ended or seen.last) - first, 1) / 1e9
    return {
        "n": jobs,
        "procs": processes,
        "hits": began,
        "hits_expected": jobs,
        "left": remaining,
        "jobs_per_s": round(began / seconds, 1),
        "cpu_us_per_job": microseconds(cpu, began),
        **({} if runner.server is None else {"server_us_per_job": microseconds(server, began)}),
    }


def arrivals(runner: Runner, rate: float, seconds: float, processes: int) -> Report:
    """Store jobs one by one at this rate, and tell how long each waited, from the call to the start of its handler."""
    runner.reset()
    with event_loop() as loop, working(runner, processes) as crowd:
        producer = runner.producer()
        one, many = loop.run(entered(producer))
        store = _storing(one, many, loop)
        if not _warm(runner, store, loop, crowd, processes, WARM_JOBS // 10):
            return {"error": "not every process was ready in time", "log": crowd.log()}
        before, used, server = look(crowd.folder).began, usage_of(crowd.pids).cpu, server_cpu(runner)
        took = loop.run(_arrive(one, rate, seconds))
        jobs = int(rate * seconds)
        _until_began(crowd, before + jobs)
        cpu, server = usage_of(crowd.pids).cpu - used, server_cpu(runner) - server
        waited = sorted(wait / 1e6 for wait in waits(crowd.folder))
        loop.run(leave(producer))
    if not waited:
        return {"error": "no job ran", "log": crowd.log()}
    return {
        "n": len(waited),
        "procs": processes,
        "rate": round(jobs / took, 1),
        "p50_ms": round(waited[len(waited) // 2], 3),
        "p99_ms": round(waited[int(len(waited) * 0.99)], 3),
        "max_ms": round(waited[-1], 3),
        "cpu_us_per_job": microseconds(cpu, jobs),
        **({} if runner.server is None else {"server_us_per_job": microseconds(server, jobs)}),
    }


def _storing(one: One, many: Many | None, loop: asyncio.Runner) -> Store:
    """Store jobs with these numbers, all at once if there is a call for it."""

    def store(numbers: Iterable[int]) -> None:
        if many is not None:
            awaited(many(list(numbers)), loop)
            return
        for number in numbers:
            awaited(one(number), loop)

    return store


def _warm(
    runner: Runner, store: Store, loop: asyncio.Runner, crowd: Crowd, processes: int, jobs: int
) -> bool:
    deadline, stored = time.monotonic() + READY_WITHIN, 0
    while _probes(crowd.folder) < processes:
        if time.monotonic() > deadline or crowd.gone:
            return False
        store(range(EACH * processes))
        stored += EACH * processes
        _until_began(crowd, stored)
        time.sleep(0.02)
    if jobs:
        store(range(jobs))
        runner.filled()
        stored += jobs
        _until_began(crowd, stored)
    emptied(lambda: loop.run(runner.left()))
    time.sleep(IDLE_FOR)
    return True


def _probes(folder: Path) -> int:
    return sum(name.endswith(SUFFIX) for name in os.listdir(folder))


def _until_began(crowd: Crowd, jobs: int) -> int:
    """Wait until so many jobs have begun, and return when, in ns."""
    deadline = time.monotonic() + DRAINED_WITHIN
    while look(crowd.folder).began < jobs and time.monotonic() < deadline and not crowd.gone:
        time.sleep(LOOK_EVERY)
    return time.monotonic_ns()


async def _arrive(one: One, rate: float, seconds: float) -> float:
    """Make the calls when they are due, whether or not earlier ones have returned; gives how long all took."""
    is_async = iscoroutinefunction(one)
    calls: list[asyncio.Task[Any]] = []
    started = time.monotonic()
    for number in range(int(rate * seconds)):
        pause = started + number / rate - time.monotonic()
        if pause > 0:
            await asyncio.sleep(pause)
        if is_async:
            calls.append(asyncio.create_task(one(time.monotonic_ns())))
        else:
            one(time.monotonic_ns())
    await asyncio.gather(*calls)
    return time.monotonic() - started
