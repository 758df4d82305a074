"""Many workers, a slow and faulty store, stops and cuts at random: whatever happens, no job is lost or run in vain.

Each seed is one world on virtual time. Every worker reaches the one memory store over a line of its own, which delays
each operation, loses requests before and answers after the commit, and is cut for minutes at a time. A world that broke
a promise breaks it again: `pytest -k 'world and 17'`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar
from uuid import UUID

import pytest

from shigoto import Cancel, Context, Fail, Retry, RetryLater, Shigoto, Snooze, State, StoreUnavailable
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.observe import events
from shigoto.testing.clock import VirtualClock
from shigoto.testing.loop import run_virtual
from shigoto.worker import Stopped, Worker

T = TypeVar("T")

JOBS = 150
WORKERS = 3


class Line:
    """A worker's way to the store. It passes everything on, in its own time, if at all."""

    def __init__(self, store: MemoryEngine, random: Random) -> None:
        self._store = store
        self._random = random
        self.faults = 0.0
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def arun(self, op: Op[T]) -> T:
        await self._travel()
        value = self._store.run(op)
        await self._travel()
        return value

    async def _travel(self) -> None:
        await asyncio.sleep(self._random.choice([0, 0.001, 0.02]) * self._random.random())
        if self.cut or self._random.random() < self.faults:
            await asyncio.sleep(self._random.random() * 3)
            raise StoreUnavailable("the line is bad")


class World:
    """One seed's world, and what is true of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = VirtualClock()
        self.store = MemoryEngine(clock=self.clock)
        self.faults = self.random.choice([0.0, 0.02, 0.2])
        self.running: dict[UUID, list[int]] = defaultdict(list)
        self.overlaps: list[tuple[UUID, list[int]]] = []
        self.completions: dict[UUID, int] = defaultdict(int)

    def app(self, engine: Any) -> Shigoto:
        app = Shigoto(engine=engine)
        app.bus.subscribe(self._completed, events.JobCompleted)

        @app.task(retry=Retry.exponential(retries=8, base=2))
        async def work(ctx: Context, plan: list[str]) -> str:
            with self._run_of(ctx):
                return await self._follow(ctx, plan)

        return app

    async def live(self) -> None:
        submitter = self.app(self.store)
        work: Any = submitter.tasks["work"]
        life = asyncio.create_task(self._workers())
        for _ in range(JOBS):
            plan = [self.random.choice(PLANS) for _ in range(3)]
            handle = await work.using(delay=self.random.choice([0, 0, 0, 20])).aenqueue(plan)
            if self.random.random() < 0.05:
                await asyncio.sleep(self.random.random())
                await handle.acancel()
            if self.random.random() < 0.2:
                await asyncio.sleep(self.random.random())
        await life

    def check(self) -> None:
        jobs = Shigoto(engine=self.store).find(limit=1_000)
        assert len(jobs) == JOBS
        for job in jobs:
            assert job.state.terminal, job
            assert job.failures <= job.max_failures
            assert self.completions[job.id] <= 1
            assert (self.completions[job.id] == 1) <= (job.state is State.COMPLETED)
        fenced = {job.id for job in jobs if job.crashes}
        assert [found for found in self.overlaps if found[0] not in fenced] == []

    async def _workers(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._career(number))

    async def _career(self, number: int) -> None:
        """Workers come and go; the last one of each line stays until all is done."""
        random = Random(self.random.random())
        line = Line(self.store, random)
        for _ in range(3):
            line.faults = self.faults
            await self._serve(line, number, random, random.uniform(5, 60))
        line.faults, line.cut = 0.0, False
        while not self._done():
            await self._serve(line, number, random, 60)

    async def _serve(self, line: Line, number: int, random: Random, seconds: float) -> None:
        worker = Worker(
            self.app(line),
            name=str(number),
            concurrency=random.choice([1, 5, 50]),
            beats="loop",
            random=random,
        )
        run = asyncio.create_task(worker.run())
        await asyncio.sleep(seconds)
        if self.faults and random.random() < 0.3:
            line.cut = True
            await asyncio.sleep(random.choice([10, 40, 120]))
            line.cut = False
        if random.random() < 0.5:
            worker.stop()
        elif random.random() < 0.3:
            run.cancel()
        else:
            worker.stop()
            await asyncio.sleep(random.random() * 10)
            worker.stop()
        try:
            outcome = await run
        except StoreUnavailable:
            return
        except asyncio.CancelledError:
            return
        assert isinstance(outcome, Stopped)

    def _done(self) -> bool:
        counts = self.store.run(self.store.stats()).values()
        return not any(count.pending or count.processing for count in counts)

    def _completed(self, event: events.JobCompleted) -> None:
        self.completions[event.job_id] += 1

    @contextmanager
    def _run_of(self, ctx: Context) -> Iterator[None]:
        tokens = self.running[ctx.job_id]
        tokens.append(ctx.fence)
        if len(tokens) > 1:
            self.overlaps.append((ctx.job_id, list(tokens)))
        try:
            yield
        finally:
            tokens.remove(ctx.fence)

    async def _follow(self, ctx: Context, plan: list[str]) -> str:
        step = plan[min(ctx.failures, len(plan) - 1)]
        match step:
            case "quick":
                return "quick"
            case "slow":
                await asyncio.sleep(self.random.uniform(0.001, 0.2))
            case "long":
                await asyncio.sleep(self.random.uniform(1, 70))
            case "fail":
                raise ValueError("as planned")
            case "later":
                raise RetryLater(3)
            case "snooze" if self.random.random() < 0.8:
                raise Snooze(1)
            case "cancel":
                raise Cancel
            case "give up":
                raise Fail("as planned")
            case _:
                ctx.progress(0.5, step)
        return step


PLANS = ["quick"] * 8 + ["slow"] * 8 + ["long", "fail", "later", "snooze", "cancel", "give up", "progress"]


@pytest.mark.parametrize("seed", range(12))
def test_in_every_world_each_job_ends_and_none_is_run_twice_without_a_recorded_crash(seed: int) -> None:
    """S0-68, S1-14: I1 nothing vanishes, I3 nothing after completed, I6 no unrecorded overlap."""
    world = World(seed)

    run_virtual(world.live, world.clock)

    world.check()
