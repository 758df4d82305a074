"""How a worker stops: drained, stopped once or twice, cancelled; and what becomes of its jobs."""

import asyncio
import threading
from contextlib import suppress
from typing import TypeVar

import pytest

from shigoto import (
    Context,
    State,
)
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.model.worker import Want
from shigoto.observe import events
from shigoto.worker import Stopped, Worker
from tests.fundamentals.stage import DAY, Stage

T = TypeVar("T")


@pytest.fixture
def stage() -> Stage:
    return Stage()


# Draining and stopping


def test_a_drain_runs_what_its_jobs_enqueue_but_not_what_is_due_later(stage: Stage) -> None:
    @stage.app.task
    async def child(number: int) -> None: ...

    @stage.app.task
    async def parent() -> None:
        await asyncio.sleep(3)
        for number in range(5):
            await child.aenqueue(number)
        await child.using(delay=60).aenqueue(99)

    parent.enqueue()
    outcome = stage.drain()

    assert outcome == Stopped(reason="drained")
    assert len(stage.all(events.JobCompleted)) == 6
    assert stage.now == 3_000
    assert stage.job(7).state is State.PENDING


def test_what_only_lay_in_a_buffer_leaves_no_trace_in_the_history_and_what_ran_does(stage: Stage) -> None:
    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(DAY)

    handles = [work.enqueue() for _ in range(2)]

    async def main() -> None:
        worker = stage.worker(concurrency=1)
        run = asyncio.create_task(worker.run())
        await stage.until(events.JobStarted)
        # Claimed for the one that runs already, as a busy worker claims ahead.
        parts = worker._parts
        assert parts is not None
        leases = await stage.engine.arun(
            stage.engine.claim(worker.id, [Want(tasks=("work",), queues=None, limit=1)])
        )
        parts.state.held.update({lease.number: lease for lease in leases})
        parts.loop_pool.give(leases)
        worker.stop()
        await run

    stage.play(main)

    ran, waited = handles
    assert (ran.job().releases, waited.job().releases) == (1, 1)
    assert [attempt.outcome for attempt in ran.attempts()] == ["released"]
    assert waited.attempts() == []


def test_a_drain_of_nothing_ends_at_once(stage: Stage) -> None:
    @stage.app.task
    async def note() -> None: ...

    assert stage.drain() == Stopped(reason="drained")
    assert stage.now == 0


def test_a_drain_is_not_over_while_own_work_stands_behind_a_thousand_of_others(stage: Stage) -> None:
    @stage.app.task
    async def note() -> None: ...

    others = [note.using(queue="other", delay=1).call() for _ in range(2_500)]
    stage.app.enqueue_many(others)
    own = note.using(delay=2).enqueue()
    stage.clock.advance(3_000)

    stage.drain(queues=["default"])

    assert own.job().state is State.COMPLETED


def test_a_stop_lets_running_jobs_end_and_gives_back_the_rest(stage: Stage) -> None:
    """S0-21: signal, wait for what is in flight, release."""
    saw_stopping: list[bool] = []

    @stage.app.task
    async def work(ctx: Context) -> None:
        await asyncio.sleep(15)
        saw_stopping.append(ctx.stopping)

    async def main() -> Stopped:
        for _ in range(3):
            await work.aenqueue()
        worker = stage.worker(concurrency=2)
        run = asyncio.create_task(worker.run())
        await stage.until(events.JobStarted, 2)
        await asyncio.sleep(5)
        worker.stop()
        return await run

    assert stage.play(main) == Stopped(reason="stopped")

    assert stage.now == 15_000
    assert saw_stopping == [True, True]
    assert sorted(job.state for job in stage.app.find()) == ["completed", "completed", "pending"]


def test_a_stop_cancels_async_jobs_after_twenty_seconds_and_releases_them(stage: Stage) -> None:
    """S3-50: within thirty seconds, whatever runs."""

    @stage.app.task
    async def endless() -> None:
        await asyncio.sleep(DAY)

    async def main() -> Stopped:
        await endless.aenqueue()
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        await stage.until(events.JobStarted)
        worker.stop()
        return await run

    assert stage.play(main) == Stopped(reason="stopped")

    assert stage.now == 20_000
    job = stage.job()
    assert (job.state, job.failures, job.releases, job.attempt) == (State.PENDING, 0, 1, 0)


def test_a_second_stop_does_not_wait_for_handlers(stage: Stage) -> None:
    @stage.app.task
    async def endless() -> None:
        await asyncio.sleep(DAY)

    async def main() -> Stopped:
        await endless.aenqueue()
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        await stage.until(events.JobStarted)
        worker.stop()
        await asyncio.sleep(2)
        worker.stop()
        worker.stop()
        return await run

    assert stage.play(main) == Stopped(reason="stopped")
    assert stage.now == 2_000
    assert stage.job().releases == 1


def test_a_handler_that_will_not_be_cancelled_is_released_last_and_left_behind(stage: Stage) -> None:
    @stage.app.task
    async def stubborn() -> None:
        while stage.now < 100_000:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(100)

    async def main() -> Stopped:
        await stubborn.aenqueue()
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        await stage.until(events.JobStarted)
        worker.stop()
        outcome = await run
        assert stage.now <= 28_000
        assert stage.job().state is State.PENDING
        assert stage.job().run_at.timestamp() * 1000 - stage.clock.now == 2_000
        await asyncio.sleep(200)
        return outcome

    assert stage.play(main) == Stopped(reason="stopped", running=1)


def test_a_job_that_a_thread_still_runs_is_released_last_with_a_delay(stage: Stage) -> None:
    started, let_go = threading.Event(), threading.Event()

    @stage.app.task
    def block() -> None:
        started.set()
        let_go.wait(10)

    async def main() -> Stopped:
        await block.aenqueue()
        worker = Worker(stage.app, stop_timeout=0.2)
        run = asyncio.create_task(worker.run())
        await asyncio.to_thread(started.wait, 5)
        worker.stop()
        return await run

    assert asyncio.run(main()) == Stopped(reason="stopped", running=1)
    let_go.set()

    job = stage.job()
    assert (job.state, job.releases) == (State.PENDING, 1)
    assert job.run_at.timestamp() * 1000 - stage.clock.now == 2_000


def test_a_worker_that_was_stopped_before_it_began_claims_nothing(stage: Stage) -> None:
    @stage.app.task
    async def note() -> None: ...

    note.enqueue()
    worker = stage.worker()
    worker.stop()
    worker.stop()

    assert stage.play(worker.run) == Stopped(reason="stopped")
    worker.stop()
    assert stage.job().state is State.PENDING
    assert stage.told == []


class Slow(MemoryEngine):
    """A store that takes a minute to answer an announcement, which it has accepted long before."""

    async def arun(self, op: Op[T]) -> T:
        value = self.run(op)
        if self.run(self.workers()) and value is None:
            await asyncio.sleep(60)
        return value


@pytest.mark.parametrize("way", ["stop", "cancel"])
def test_a_worker_that_is_ended_while_it_announces_itself_leaves_no_trace(way: str) -> None:
    stage = Stage(lambda clock: Slow(clock=clock))

    @stage.app.task
    async def note() -> None: ...

    async def main() -> None:
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        await asyncio.sleep(1)
        assert [record.id for record in stage.engine.run(stage.engine.workers())] == [worker.id]
        if way == "stop":
            worker.stop()
            assert await run == Stopped(reason="stopped")
        else:
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run

    stage.play(main)

    assert stage.now <= 3_000
    assert stage.engine.run(stage.engine.workers()) == []


def test_a_worker_runs_only_once(stage: Stage) -> None:
    worker = stage.worker(drain=True)
    stage.play(worker.run)

    with pytest.raises(RuntimeError, match="make a new one"):
        stage.play(worker.run)


def test_a_stop_from_another_thread_is_heard(stage: Stage) -> None:
    @stage.app.task
    async def note() -> None: ...

    async def main() -> Stopped:
        worker = Worker(stage.app)
        run = asyncio.create_task(worker.run())
        await stage.until(events.WorkerStarted)
        threading.Thread(target=worker.stop).start()
        return await run

    assert asyncio.run(main()) == Stopped(reason="stopped")


def test_cancelling_the_worker_gives_its_jobs_back_at_once(stage: Stage) -> None:
    @stage.app.task
    async def endless() -> None:
        await asyncio.sleep(DAY)

    async def main() -> None:
        await endless.aenqueue()
        run = asyncio.create_task(stage.worker().run())
        await stage.until(events.JobStarted)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    stage.play(main)

    assert stage.now == 0
    assert (stage.job().state, stage.job().releases) == (State.PENDING, 1)
    assert stage.engine.run(stage.engine.workers()) == []


def test_a_program_that_ends_without_stopping_its_worker_blames_no_job(stage: Stage) -> None:
    @stage.app.task
    async def endless() -> None:
        await asyncio.sleep(DAY)

    async def main() -> asyncio.Task[Stopped]:
        await endless.aenqueue()
        run = asyncio.create_task(stage.worker().run())
        await stage.until(events.JobStarted)
        return run

    stage.play(main)

    job = stage.job()
    assert (job.state, job.failures, job.releases) == (State.PENDING, 0, 1)


def test_nothing_is_left_behind_by_an_embedded_worker(stage: Stage) -> None:
    """S0-17, S0-18: create, start, stop, and every task and thread of it has ended."""
    before = set(threading.enumerate())

    @stage.app.task
    async def on_loop() -> None:
        await asyncio.sleep(0)

    @stage.app.task
    def in_thread() -> None: ...

    async def main() -> set[str]:
        async with Worker(stage.app):
            for _ in range(20):
                await on_loop.aenqueue()
                await in_thread.aenqueue()
            await stage.until(events.JobCompleted, 40)
        return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    left = asyncio.run(main())

    assert left == set()
    threads = set(threading.enumerate()) - before
    assert not [thread.name for thread in threads if thread.name.startswith("shigoto")]
    assert stage.engine.run(stage.engine.workers()) == []
