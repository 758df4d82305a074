"""How fast jobs run, and how soon they begin: in runner processes, or here if no other process can open the store."""

import asyncio
import random
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Protocol
from uuid import UUID

import msgspec

from shigoto.bench.crew import Crew
from shigoto.bench.figures import BenchFailed, Memory, Rate, Waits
from shigoto.bench.place import Stage
from shigoto.bench.program import Begin, Drained
from shigoto.bench.storing import fill
from shigoto.bench.usage import forget_most, memory, most_memory, processor
from shigoto.model.job import State
from shigoto.observe.events import JobCompleted
from shigoto.worker.supervisor.mainloop import event_loop
from shigoto.worker.worker import Worker

PAUSE = (0.004, 0.012)  # seconds between two jobs for an idle worker
WARM_UP = 5  # jobs
RUNS_WITHIN = 30.0  # seconds for one job
SLOWEST = 100  # jobs per second, below which something must be wrong


class Drains(Protocol):
    """Whoever runs the jobs of a stage."""

    def drain(self, within: float) -> list[Drained]:
        """Run all of them, and tell what each process has used."""
        ...


def drain(stage: Stage, jobs: int, *, sync: bool, processes: int) -> Rate:
    """Run so many jobs that are stored already, from the start of the workers to their end."""
    with _workers(stage, processes) as workers:
        fill(stage, jobs, sync=sync)
        used = workers.drain(RUNS_WITHIN + jobs / SLOWEST)
    expect_completed(stage, jobs)
    return Rate(
        jobs=jobs,
        seconds=max(one.ended for one in used) - min(one.began for one in used),
        cpu=sum(one.cpu for one in used),
        memory=Memory(
            most=max(one.most_memory for one in used),
            gained=sum(max(0, one.most_memory - one.memory_before) for one in used),
        ),
    )


@contextmanager
def _workers(stage: Stage, processes: int) -> Generator[Drains]:
    if not stage.app.engine.capabilities.shared:
        yield Here(stage)
        return
    with Crew(Begin(stage.app.engine.address, stage.queue), processes) as crew:
        yield crew


class Here:
    """A worker in this process."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def drain(self, within: float) -> list[Drained]:
        """Run all jobs; `within` is for others, since whoever watches this process can end it."""
        forget_most()
        before, cpu, began = memory(), processor(), time.monotonic()
        with asyncio.Runner(loop_factory=event_loop()) as runner:
            runner.run(self._run())
        ended = time.monotonic()
        return [Drained(began, ended, processor() - cpu, before, most_memory())]

    async def _run(self) -> None:
        await Worker(self._stage.app, queues=(self._stage.queue,), drain=True).run()


def latency(stage: Stage, jobs: int, *, within: float) -> Waits:
    """One job at a time for a worker that has nothing else to do, at moments that it cannot foresee."""
    if stage.app.engine.capabilities.shared:
        called = _called_elsewhere(stage, jobs, within)
    else:
        with asyncio.Runner(loop_factory=event_loop()) as runner:
            called = runner.run(_called_here(stage, jobs, within))
    expect_completed(stage, len(called))
    waits = _waits(stage, called)[WARM_UP:]
    return Waits(tuple(waits))


def _called_elsewhere(stage: Stage, jobs: int, within: float) -> dict[UUID, int]:
    """The jobs, and when each was called for: nanoseconds."""
    called: dict[UUID, int] = {}
    with Crew(Begin(stage.app.engine.address, stage.queue), 1) as crew:
        crew.serve()
        deadline = time.monotonic() + within
        while len(called) < jobs + WARM_UP and (len(called) <= WARM_UP or time.monotonic() < deadline):
            time.sleep(random.uniform(*PAUSE))
            now = time.monotonic_ns()
            called[stage.tasks.moment.enqueue().id] = now
            crew.hear(RUNS_WITHIN)
    return called


async def _called_here(stage: Stage, jobs: int, within: float) -> dict[UUID, int]:
    called: dict[UUID, int] = {}
    completed = asyncio.Event()
    unsubscribe = stage.app.bus.subscribe(lambda _: completed.set(), JobCompleted)
    deadline = time.monotonic() + within
    async with Worker(stage.app, queues=(stage.queue,)):
        while len(called) < jobs + WARM_UP and (len(called) <= WARM_UP or time.monotonic() < deadline):
            await asyncio.sleep(random.uniform(*PAUSE))
            completed.clear()
            now = time.monotonic_ns()
            called[(await stage.tasks.moment.aenqueue()).id] = now
            try:
                await asyncio.wait_for(completed.wait(), RUNS_WITHIN)
            except TimeoutError:
                raise BenchFailed(f"A job did not run within {RUNS_WITHIN:g} s.") from None
    unsubscribe()
    return called


def _waits(stage: Stage, called: dict[UUID, int]) -> list[float]:
    """Milliseconds, from what the handlers have returned."""
    engine = stage.app.engine
    results: Sequence[str | None] = [
        None if job is None else job.result for job in engine.run(engine.get(list(called)))
    ]
    began = [msgspec.json.decode(result, type=int) for result in results if result is not None]
    return [(at - before) / 1e6 for at, before in zip(began, called.values(), strict=True)]


def expect_completed(stage: Stage, jobs: int) -> None:
    """Raise BenchFailed unless the history has exactly so many jobs of this stage, all of them completed."""
    found = {state: len(stage.numbers(state)) for state in (State.COMPLETED, State.FAILED, State.PENDING)}
    if found[State.COMPLETED] != jobs or found[State.FAILED] or found[State.PENDING]:
        told = ", ".join(f"{number} {state}" for state, number in found.items())
        raise BenchFailed(
            f"{jobs} jobs were stored to be run, and the store has {told}: the figures would mean nothing."
            " Does somebody delete, cancel or fail jobs of all queues?"
        )
