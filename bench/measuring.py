"""How everybody is measured: the commands of protocol.py. Standard library only: it runs beside any peer."""

import asyncio
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import iscoroutine, iscoroutinefunction
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.contract import Elsewhere, Many, Meter, One, Producer, Runner, event_loop
from bench.gauge import Usage, usage_of
from bench.probe import Seen, look, waits

ROOT = Path(__file__).resolve().parent.parent
DRAIN_LIMIT = float(os.environ.get("BENCH_DRAIN_LIMIT_S", "90"))  # seconds
LATENCY_LIMIT = 30.0
ENQUEUE_LIMIT = 15.0
SETTLE_LIMIT = 15.0  # for the store to say that nothing is left, once all handlers have begun
STOP_LIMIT = 10.0
WARM_UP = 20  # connections, caches of statements
LOOK_EVERY = 0.005
LATENCY_LOOK_EVERY = 0.002

Report = dict[str, Any]


class Start(NamedTuple):
    """What there is to begin with, beside the jobs that are drained, and how many processes drain them."""

    processes: int = 1
    store: Path | None = None  # a folder with one that was prepared
    history: int = 0
    future: int = 0
    held: bool = False  # a transaction is open from before the jobs are stored until all are done


def enqueue(runner: Runner, jobs: int) -> Report:
    """One by one; a call that is not a coroutine is made as in a plain program, without an event loop around it."""
    runner.reset()
    with event_loop() as loop:
        producer = runner.producer()
        one, _ = loop.run(entered(producer))
        with _costs_of_storing(runner) as costs:
            seconds, done = _timed(one, jobs, loop)
            costs.end()
            loop.run(leave(producer))
            told = costs.told(WARM_UP + done)
        stored = loop.run(runner.pending())
    return {
        "n": done,
        "jobs_per_s": round(done / seconds, 1),
        "enqueued": WARM_UP + done,
        "stored": stored,
        **told,
    }


def bulk(runner: Runner, jobs: int) -> Report:
    """Many at a time."""
    runner.reset()
    with event_loop() as loop:
        producer = runner.producer()
        _, many = loop.run(entered(producer))
        if many is None:
            return {"error": "there is no bulk call"}
        chunks = chunked(jobs, runner.bulk_chunk)
        with _costs_of_storing(runner) as costs:
            seconds = _timed_chunks(many, jobs, chunks, loop)
            costs.end()
            loop.run(leave(producer))
            told = costs.told(jobs)
        stored = loop.run(runner.pending())
    return {"n": jobs, "jobs_per_s": round(jobs / seconds, 1), "enqueued": jobs, "stored": stored, **told}


class Costs:
    """What it costs to store jobs: this program with all that it has started, the server, and what the store tells."""

    def __init__(self, runner: Runner, meter: Meter) -> None:
        self._server, self._meter = runner.server, meter
        self._used: list[float] = []
        meter.begin()
        self._before = self._usages()

    def _usages(self) -> list[float]:
        return [usage_of([pid]).cpu for pid in (os.getpid(), self._server) if pid is not None]

    def end(self) -> None:
        """All jobs are stored."""
        self._used = [after - before for before, after in zip(self._before, self._usages(), strict=True)]
        self._meter.end()

    def told(self, jobs: int) -> Report:
        """For each job, once whoever has stored them is gone."""
        names = ("cpu_us_per_job", "server_us_per_job")
        used = {name: round(cpu / jobs * 1e6, 2) for name, cpu in zip(names, self._used, strict=False)}
        return {**used, **self._meter.costs(jobs)}


class NoCosts(Costs):
    """Nothing can be told."""

    def __init__(self) -> None: ...

    def end(self) -> None:
        """Nothing was begun."""

    def told(self, jobs: int) -> Report:
        """Nothing."""
        return {}


@contextmanager
def _costs_of_storing(runner: Runner) -> Generator[Costs]:
    metered = runner.storing_meter()
    with nullcontext() if metered is None else metered as meter:
        yield NoCosts() if meter is None else Costs(runner, meter)


def _timed(one: One, jobs: int, loop: asyncio.Runner) -> tuple[float, int]:
    elsewhere: object = one
    if isinstance(elsewhere, Elsewhere):
        return elsewhere.times(jobs, warm_up=WARM_UP, within=ENQUEUE_LIMIT)
    return loop.run(_acalls(one, jobs)) if iscoroutinefunction(one) else _calls(one, jobs)


def _timed_chunks(many: Many, jobs: int, chunks: list[list[int]], loop: asyncio.Runner) -> float:
    elsewhere: object = many
    if isinstance(elsewhere, Elsewhere):
        seconds, _ = elsewhere.times(jobs, warm_up=0, within=DRAIN_LIMIT)
        return seconds
    started = time.monotonic()
    if iscoroutinefunction(many):
        loop.run(_achunks(many, chunks))
    else:
        for chunk in chunks:
            many(chunk)
    return time.monotonic() - started


def _calls(one: One, jobs: int) -> tuple[float, int]:
    for number in range(WARM_UP):
        one(number)
    started = time.monotonic()
    for number in range(jobs):
        one(number)
        if not number & 63 and time.monotonic() - started > ENQUEUE_LIMIT:
            return time.monotonic() - started, number + 1
    return time.monotonic() - started, jobs


async def _acalls(one: Callable[[int], Awaitable[Any]], jobs: int) -> tuple[float, int]:
    for number in range(WARM_UP):
        await one(number)
    started = time.monotonic()
    for number in range(jobs):
        await one(number)
        if not number & 63 and time.monotonic() - started > ENQUEUE_LIMIT:
            return time.monotonic() - started, number + 1
    return time.monotonic() - started, jobs


async def _achunks(many: Callable[[list[int]], Awaitable[Any]], chunks: list[list[int]]) -> None:
    for chunk in chunks:
        await many(chunk)


# A context manager that is entered on the loop and left on it, with a plain loop of calls in between.
async def entered(producer: Producer) -> tuple[One, Many | None]:
    return await producer.__aenter__()


async def leave(producer: Producer) -> None:
    await producer.__aexit__(None, None, None)


def chunked(jobs: int, size: int) -> list[list[int]]:
    """The numbers of so many jobs, in pieces."""
    return [list(range(first, min(first + size, jobs))) for first in range(0, jobs, size)]


class Crowd(NamedTuple):
    """Worker processes that were started together, and the folder in which their handlers leave notes."""

    processes: list[subprocess.Popen[bytes]]
    folder: Path

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    @property
    def gone(self) -> bool:
        return all(process.poll() is not None for process in self.processes)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-1500:]


@contextmanager
def working(runner: Runner, processes: int) -> Generator[Crowd]:
    """Worker processes, which are stopped in the end."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        environment = {**os.environ, **runner.env, "BENCH_PROBE": name}
        with (folder / "log").open("ab") as log:
            started = [
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT
                )
                for command in runner.commands(processes)
            ]
        try:
            yield Crowd(started, folder)
        finally:
            _stop(started)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_LIMIT
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def drain(runner: Runner, jobs: int, start: Start) -> Report:
    """Store the jobs, start the workers, and see how it goes."""
    runner.reset()
    if start.store:
        runner.begin_with(start.store)
    if start.history:
        runner.fill_history(start.history)
    if start.future:
        runner.fill_future(start.future)
    with event_loop() as loop, runner.hold() if start.held else nullcontext():
        fill_seconds = _fill(runner, jobs, loop)
        runner.filled()
        # What was there before is none of ours, and in an empty store there may be no table to ask yet.
        others = (loop.run(runner.left()) or jobs) - jobs
        finished_before = loop.run(runner.finished()) or 0
        with runner.meter() as meter:
            meter.begin()
            with working(runner, start.processes) as crowd:
                result = _watch(runner, jobs, crowd, lambda: _left_of(loop.run(runner.left()), others))
                meter.end()
            costs = meter.costs(jobs)
        finished = loop.run(runner.finished())
    return {
        **result,
        **costs,
        "procs": start.processes,
        "finished": None if finished is None else finished - finished_before,
        "fill_s": round(fill_seconds, 2),
    }


def _fill(runner: Runner, jobs: int, loop: asyncio.Runner) -> float:
    started = time.monotonic()
    producer = runner.producer()
    one, many = loop.run(entered(producer))
    if many is None:
        for number in range(jobs):
            awaited(one(number), loop)
    else:
        for chunk in chunked(jobs, runner.bulk_chunk):
            awaited(many(chunk), loop)
    loop.run(leave(producer))
    return time.monotonic() - started


def awaited(answer: object, loop: asyncio.Runner) -> None:
    """Wait for a call that was made, if it must be awaited."""
    if iscoroutine(answer):
        loop.run(answer)


def _left_of(pending: int | None, others: int) -> int | None:
    return None if pending is None else pending - others


def _watch(runner: Runner, jobs: int, crowd: Crowd, left_now: Callable[[], int | None]) -> Report:
    expected = runner.hits(jobs)
    at_start: tuple[int, Usage, float] | None = None
    seen = Seen()
    deadline = time.monotonic() + DRAIN_LIMIT
    while seen.began < expected and time.monotonic() < deadline and not crowd.gone:
        time.sleep(LOOK_EVERY)
        seen = look(crowd.folder)
        if at_start is None and seen.began:
            at_start = seen.began, usage_of(crowd.pids), server_cpu(runner)
    if at_start is None:
        return {"error": "no job ran", "log": crowd.log()}
    left, ended = emptied(left_now) if seen.began >= expected else (left_now(), None)
    usage, server = usage_of(crowd.pids), server_cpu(runner)
    seen = look(crowd.folder)
    # The clock was read after the store had said that nothing is left, so the end is rather too late than too early.
    seconds = max(((ended or seen.last) - seen.first) / 1e9, 1e-9)
    done = seen.began * jobs / expected
    measured = (seen.began - at_start[0]) * jobs / expected
    return {
        "n": jobs,
        "hits": seen.began,
        "hits_expected": expected,
        "left": left,
        "jobs_per_s": round(done / seconds, 1),
        "written_bytes_per_job": round(usage.written / done, 1),
        # From the first look on: the start of an interpreter is not the cost of a job.
        "cpu_us_per_job": microseconds(usage.cpu - at_start[1].cpu, measured),
        **(
            {}
            if runner.server is None
            else {"server_us_per_job": microseconds(server - at_start[2], measured)}
        ),
    }


def server_cpu(runner: Runner) -> float:
    return 0.0 if runner.server is None else usage_of([runner.server]).cpu


def microseconds(seconds: float, jobs: float) -> float | None:
    return round(seconds / jobs * 1e6, 2) if jobs else None


def emptied(left_now: Callable[[], int | None]) -> tuple[int | None, int | None]:
    """How many jobs the store says are left, and when it said so."""
    deadline = time.monotonic() + SETTLE_LIMIT
    while True:
        left = left_now()
        now = time.monotonic_ns()
        if left is None:
            return None, None
        if left <= 0 or time.monotonic() > deadline:
            return left, now
        time.sleep(LOOK_EVERY / 2)


def latency(runner: Runner, jobs: int) -> Report:
    """One at a time, at moments that no polling can be in step with."""
    runner.reset()
    with event_loop() as loop, working(runner, 1) as crowd:
        producer = runner.producer()
        one, _ = loop.run(entered(producer))
        deadline = time.monotonic() + LATENCY_LIMIT
        for number in range(WARM_UP // 2 + jobs):
            awaited(one(1 if number < WARM_UP // 2 else time.monotonic_ns()), loop)
            if not _begins(number, crowd, deadline):
                break
            time.sleep(random.uniform(0.005, 0.03))
        loop.run(leave(producer))
        waited = sorted(wait / 1e6 for wait in waits(crowd.folder))
        if not waited:
            return {"error": "no job ran", "log": crowd.log()}
    early = f"only {len(waited)} of {jobs} jobs began within {LATENCY_LIMIT:g} s, or until the worker ended"
    return {
        **({"error": early} if len(waited) < jobs else {}),
        "n": len(waited),
        "p50_ms": round(median(waited), 3),
        "p99_ms": round(waited[int(len(waited) * 0.99)], 3),
        "max_ms": round(waited[-1], 3),
    }


def _begins(number: int, crowd: Crowd, deadline: float) -> bool:
    """If the job with this number begins, in time and while there is a worker."""
    while look(crowd.folder).began <= number:
        if crowd.gone or time.monotonic() > deadline:
            return False
        time.sleep(LATENCY_LOOK_EVERY)
    return True
