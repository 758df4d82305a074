"""Leases that are lost, and handlers that hear of it; tasks that must never run twice at once."""

import asyncio
import threading
from random import Random
from typing import Any
from uuid import UUID

import pytest

from shigoto import Context, State, StoreUnavailable
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.model.worker import Settlement, SweepOrder
from shigoto.observe import events
from shigoto.testing.store import VirtualClock
from shigoto.worker import Stopped
from tests.fundamentals.stage import DAY, HOUR, DeafToBeats, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_job_cancelled_by_force_is_cancelled_here_within_a_beat_and_its_outcome_refused(
    stage: Stage,
) -> None:
    """T14: the lease is void at once; the handler is told."""
    seen: list[tuple[int, bool]] = []

    @stage.app.task
    async def work(ctx: Context) -> str:
        try:
            await asyncio.sleep(DAY)
        except asyncio.CancelledError:
            seen.append((stage.now, ctx.cancelled))
            raise
        return "never"

    async def main() -> None:
        handle = await work.aenqueue()
        async with stage.working():
            await stage.until(events.JobStarted)
            await stage.engine.arun(stage.engine.cancel([handle.id], force=True))
            assert stage.job().state is State.CANCELLED
            await stage.until(events.LeaseLostEvent)

    stage.play(main)

    [(told_at, lost)] = seen
    assert told_at <= 11_000
    assert lost
    assert stage.job().state is State.CANCELLED
    assert not stage.all(events.JobReleased)


def test_a_thread_whose_job_was_taken_by_force_can_see_it(stage: Stage) -> None:
    started = threading.Event()

    @stage.app.task
    def work(ctx: Context) -> None:
        started.set()
        while not ctx.cancelled:
            threading.Event().wait(0.001)

    async def main() -> None:
        handle = await work.aenqueue()
        async with stage.worker(beats="thread", lease=1.0):
            await asyncio.to_thread(started.wait, 5)
            await stage.engine.arun(stage.engine.cancel([handle.id], force=True))
            await stage.until(events.LeaseLostEvent)

    asyncio.run(asyncio.wait_for(main(), 20))
    assert stage.job().state is State.CANCELLED


def test_every_handler_of_a_fenced_worker_is_told(stage: Stage) -> None:
    seen: list[bool] = []

    @stage.app.task
    async def work(ctx: Context) -> None:
        try:
            await asyncio.sleep(DAY)
        finally:
            seen.append(ctx.cancelled)

    async def main() -> Stopped:
        for _ in range(3):
            await work.aenqueue()
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        await stage.until(events.JobStarted, 3)
        stage.clock.now += 31_000
        stage.engine.run(stage.engine.sweep(SweepOrder(fence=(worker.id,))))
        return await run

    assert stage.play(main) == Stopped(reason="fenced")
    assert seen == [True, True, True]


def test_an_exclusive_run_ends_before_anybody_else_could_begin() -> None:
    """Semantics §4: at 0.9 of a lease after the last confirmed beat was sent; others run on."""
    stage = Stage(DeafToBeats)
    assert isinstance(stage.engine, DeafToBeats)
    ended: dict[str, int] = {}

    async def until_cut(name: str) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.setdefault(name, stage.now)

    @stage.app.task(exclusive=True)
    async def exclusive() -> None:
        await until_cut("exclusive")

    @stage.app.task
    async def ordinary() -> None:
        await until_cut("ordinary")

    async def main() -> None:
        async with stage.working():
            await exclusive.aenqueue()
            await ordinary.aenqueue()
            await stage.until(events.JobStarted, 2)
            stage.engine.deaf = True  # type: ignore[attr-defined]
            await stage.until(events.JobReleased)
            stage.engine.deaf = False  # type: ignore[attr-defined]
            await stage.until(events.JobCompleted)

    stage.play(main)

    assert 24_000 <= ended["exclusive"] <= 30_100
    assert ended["ordinary"] == 100_000
    assert (stage.job(1).failures, stage.job(1).crashes) == (0, 0)


def test_an_exclusive_run_of_a_worker_in_touch_is_left_alone(stage: Stage) -> None:
    @stage.app.task(exclusive=True)
    async def work() -> str:
        await asyncio.sleep(HOUR)
        return "done"

    handle = work.enqueue()
    stage.drain()
    assert handle.job().state is State.COMPLETED
    assert handle.job().attempt == 1


class Forgetful(MemoryEngine):
    """A store that cannot be reached for the first settlement of each job, but did write it."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.settlements: list[Settlement] = []

    def settle(self, worker: UUID, settlements: Any) -> Op[Any]:
        self.settlements += settlements
        return super().settle(worker, settlements)

    async def arun(self, op: Op[Any]) -> Any:
        known = len(self.settlements)
        value = self.run(op)
        if len(self.settlements) == known == 1:
            self.settlements.append(self.settlements[0])
            raise StoreUnavailable("the answer was lost")
        return value


def test_a_failure_whose_answer_was_lost_is_told_as_what_it_was() -> None:
    """C9: the store says that this lease was settled before; what became of the job, it knows."""
    stage = Stage(lambda clock: Forgetful(clock=clock))

    @stage.app.task(retries=0)
    async def work() -> None:
        raise ValueError("as planned")

    async def main() -> None:
        await work.aenqueue()
        async with stage.working(random=Random(3)):
            await stage.until(events.JobFailedEvent)

    stage.play(main)
    assert len(stage.all(events.JobFailedEvent)) == 1
    assert not stage.all(events.JobCompleted)
