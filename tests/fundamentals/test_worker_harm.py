"""What handlers and systems do to a worker: threads that cannot be started, handlers that do not give in."""

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shigoto import FailureKind, State, StoreUnavailable
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.worker import SweepOrder
from shigoto.observe import events
from shigoto.worker import Stopped, thread_pool
from shigoto.worker.state import start_thread
from tests.fundamentals.stage import DAY, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


# Threads that cannot be started


class Miser:
    """Starts threads as long as it likes the name and how often it was asked for one like it."""

    def __init__(self, likes: Callable[[str, int], bool]) -> None:
        self.asked: list[str] = []
        self._likes = likes

    def __call__(self, work: Callable[[], None], name: str) -> threading.Thread:
        self.asked.append(name)
        if self._likes(name, self.asked.count(name)):
            return start_thread(work, name)
        raise RuntimeError("can't start new thread")


def works_in_threads(stage: Stage, count: int) -> None:
    @stage.app.task
    def work() -> None:
        threading.Event().wait(0.01)

    for _ in range(count):
        work.enqueue()


def states(stage: Stage) -> list[tuple[State, int, int]]:
    return [(job.state, job.failures, job.crashes) for job in stage.app.find(limit=100)]


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of the worker. An exporter of an earlier test may still be retrying in its thread."""
    warnings = (record for record in caplog.records if record.levelno >= logging.WARNING)
    return [record.message for record in warnings if record.name.startswith("shigoto")]


def test_a_worker_that_is_refused_a_thread_goes_on_with_those_it_has(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    works_in_threads(stage, 20)

    assert stage.drain_with_threads(
        threads=8, spawn=Miser(lambda name, _: name in ("shigoto-beat", "shigoto-thread-1"))
    ) == Stopped(reason="drained")

    assert states(stage) == [(State.COMPLETED, 0, 0)] * 20
    [words] = complaints(caplog)
    assert words == (
        "Worker 1 cannot start a thread (can't start new thread); it goes on with those it has, 1, and tries again soon"
    )


def test_a_worker_that_is_refused_every_thread_gives_jobs_back_and_tries_again(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_pool, "REST", 0.05)
    works_in_threads(stage, 5)
    miser = Miser(lambda name, time: name == "shigoto-beat" or time > 3)

    assert stage.drain_with_threads(threads=2, spawn=miser) == Stopped(reason="drained")

    assert states(stage) == [(State.COMPLETED, 0, 0)] * 5
    assert miser.asked.count("shigoto-thread-1") == 4
    assert len(complaints(caplog)) == 1


def test_a_worker_that_is_refused_every_thread_can_be_stopped(stage: Stage) -> None:
    works_in_threads(stage, 5)

    async def main() -> Stopped:
        worker = stage.worker(beats="thread", spawn=Miser(lambda name, _: name == "shigoto-beat"))
        run = asyncio.create_task(worker.run())
        await stage.until(events.JobReleased, 5)
        worker.stop()
        return await run

    assert asyncio.run(asyncio.wait_for(main(), 20)) == Stopped(reason="stopped")
    assert states(stage) == [(State.PENDING, 0, 0)] * 5


def test_a_beat_that_is_refused_its_thread_is_tried_again(stage: Stage) -> None:
    works_in_threads(stage, 1)
    miser = Miser(lambda name, time: name != "shigoto-beat" or time > 2)

    async def main() -> None:
        async with stage.worker(beats="thread", lease=1.0, spawn=miser):
            await stage.until(events.JobCompleted)
            await stage.until(events.StoreRecovered)

    asyncio.run(asyncio.wait_for(main(), 20))

    assert miser.asked.count("shigoto-beat") == 3
    assert [trouble.part for trouble in stage.all(events.StoreTrouble)] == ["keeper"] * 2


async def test_a_store_that_is_refused_its_thread_is_unavailable_and_no_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreUnavailable, match="can't start new thread"):
            await engine.arun(engine.stats())

    assert await engine.arun(engine.stats()) == {}
    engine.close()


# Handlers on the event loop that do not give in


def stubborn_until(stage: Stage, told: list[int], times: int, **options: Any) -> Any:
    """A task that lets so many cancels pass but one, and notes when each came."""

    async def deaf_in_here() -> None:
        while True:
            try:
                await asyncio.sleep(DAY)
            except asyncio.CancelledError:
                told.append(stage.now)
                if len(told) == times:
                    raise

    @stage.app.task(retries=0, **options)
    async def stubborn() -> None:
        await deaf_in_here()

    return stubborn


def test_a_run_that_does_not_give_in_at_its_limit_is_told_again_until_it_does(stage: Stage) -> None:
    """S0-71: and people hear of it, with the place where it is."""
    told: list[int] = []
    handle = stubborn_until(stage, told, 4, timeout=10).enqueue()

    stage.drain()

    assert told == [10_000, 12_000, 14_000, 16_000]
    job = handle.job()
    assert (job.state, job.failure_kind) == (State.FAILED, FailureKind.TIMEOUT)
    assert job.error == "TimeoutError: the run took longer than its limit of 10 s"
    assert stage.times(events.JobStuck) == [12_000]
    [stuck] = stage.all(events.JobStuck)
    assert (stuck.number, stuck.why, stuck.limit) == (1, "limit", 10_000)
    assert "in stubborn\n" in stuck.stack
    assert "in deaf_in_here\n" in stuck.stack
    assert "shigoto/worker" not in stuck.stack


def test_a_run_that_gives_in_within_the_grace_is_told_once(stage: Stage) -> None:
    told: list[int] = []
    stubborn_until(stage, told, 1, timeout=10).enqueue()

    stage.drain()

    assert told == [10_000]
    assert not stage.all(events.JobStuck)


def test_a_strand_is_as_good_as_new_after_a_run_that_had_to_be_told_often(stage: Stage) -> None:
    told: list[int] = []
    stubborn_until(stage, told, 3, timeout=10).enqueue()

    @stage.app.task
    async def after() -> str:
        await asyncio.sleep(60)
        return "undisturbed"

    handle = after.enqueue()
    stage.drain(concurrency=1)

    assert handle.job().state is State.COMPLETED
    assert len(stage.all(events.JobStuck)) == 1


@pytest.mark.parametrize("force", [False, True])
def test_a_run_that_does_not_give_in_to_a_cancel_is_told_again(stage: Stage, *, force: bool) -> None:
    """It may clean up for ten seconds, undisturbed."""
    told: list[int] = []
    task = stubborn_until(stage, told, 4)

    async def main() -> None:
        handle = await task.aenqueue()
        async with stage.working():
            await stage.until(events.JobStarted)
            await stage.engine.arun(stage.engine.cancel([handle.id], force=force))
            await stage.until(events.LeaseLostEvent if force else events.JobCancelledEvent)

    stage.play(main)

    assert [at - told[0] for at in told] == [0, 10_000, 12_000, 14_000]
    [stuck] = stage.all(events.JobStuck)
    assert (stuck.why, stuck.limit) == ("loss" if force else "cancel", None)
    assert stage.times(events.JobStuck) == [told[1]]
    assert stage.job().state is State.CANCELLED


def test_a_run_that_blocked_the_loop_past_its_limit_and_succeeded_is_completed_with_a_warning(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    @stage.app.task(timeout=0.05, retries=0)
    async def blocks(seconds: float) -> str:
        threading.Event().wait(seconds)
        return "done"

    @stage.app.task
    async def free() -> None: ...

    late, early = blocks.enqueue(0.1), blocks.enqueue(0.0)
    free.enqueue()
    asyncio.run(stage.worker(drain=True, beats="thread", concurrency=1).run())

    assert [handle.job().state for handle in (late, early)] == [State.COMPLETED] * 2
    [words] = complaints(caplog)
    assert words.startswith("Job 1 (blocks) is completed, but it took 0.1")
    assert words.endswith(
        " longer than its limit of 0.05 s: it kept the event loop busy, so nobody could stop it"
    )


# What the store made of it


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_cancelled_job_that_a_stop_has_cut_short_is_told_of_as_cancelled(stage: Stage, where: str) -> None:
    """T13: whatever its worker believed when it gave the job back."""
    began, go = threading.Event(), threading.Event()

    @stage.app.task
    async def on_loop() -> None:
        began.set()
        await asyncio.sleep(DAY)

    @stage.app.task
    def in_thread() -> None:
        began.set()
        go.wait(10)

    async def main() -> None:
        handle = await (on_loop if where == "loop" else in_thread).aenqueue()
        worker = stage.worker(beats="thread", stop_timeout=0.1)
        run = asyncio.create_task(worker.run())
        await asyncio.to_thread(began.wait, 5)
        worker.stop()
        await stage.until(events.WorkerStopping)
        await handle.acancel()
        await run

    asyncio.run(asyncio.wait_for(main(), 20))
    go.set()

    assert stage.job().state is State.CANCELLED
    assert len(stage.all(events.JobCancelledEvent)) == 1
    assert not stage.all(events.JobReleased)


def test_what_ended_in_a_fenced_worker_is_told_of_as_lost(stage: Stage) -> None:
    go = asyncio.Event()

    @stage.app.task
    async def ends_before() -> None:
        await go.wait()

    @stage.app.task
    async def ends_after() -> str:
        try:
            await asyncio.sleep(DAY)
        except asyncio.CancelledError:
            return "done all the same"
        return "never"

    @stage.app.task
    async def gives_in() -> None:
        await asyncio.sleep(DAY)

    async def main() -> Stopped:
        for task in (ends_before, ends_after, gives_in):
            await task.aenqueue()
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        await stage.until(events.JobStarted, 3)
        stage.engine.run(stage.engine.sweep(SweepOrder()))
        stage.clock.now += 31_000
        stage.engine.run(stage.engine.sweep(SweepOrder(fence=(worker.id,))))
        go.set()
        return await run

    assert stage.play(main) == Stopped(reason="fenced")
    assert sorted(lost.task for lost in stage.all(events.LeaseLostEvent)) == ["ends_after", "ends_before"]
