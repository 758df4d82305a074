"""Time limits on the event loop and in threads: hard ones, soft ones, and those lifted for one call."""

import asyncio
import threading

import pytest

from shigoto import Context, FailureKind, SoftTimeout, State
from shigoto.observe import events
from tests.fundamentals.stage import DAY, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_at_the_soft_limit_an_async_handler_is_cancelled_once_and_may_go_on(stage: Stage) -> None:
    seen: list[tuple[int, bool]] = []

    @stage.app.task(soft_timeout=10, timeout=60, retries=0)
    async def work(ctx: Context) -> str:
        try:
            await asyncio.sleep(DAY)
        except asyncio.CancelledError:
            seen.append((stage.now, ctx.overdue))
        await asyncio.sleep(20)
        return "went on"

    handle = work.enqueue()
    stage.drain()

    assert seen == [(10_000, True)]
    assert handle.job().state is State.COMPLETED
    assert stage.now == 30_000


def test_an_async_handler_that_lets_the_soft_limit_pass_has_taken_too_long(stage: Stage) -> None:
    @stage.app.task(soft_timeout=10, timeout=60, retries=0)
    async def work() -> None:
        await asyncio.sleep(DAY)

    handle = work.enqueue()
    stage.drain()

    job = handle.job()
    assert (job.state, job.failure_kind) == (State.FAILED, FailureKind.TIMEOUT)
    assert job.error == "SoftTimeout: the run took longer than its soft limit of 10 s"
    assert stage.now == 10_000


def test_what_goes_on_after_its_soft_limit_is_stopped_at_the_hard_one(stage: Stage) -> None:
    @stage.app.task(soft_timeout=10, timeout=60, retries=0)
    async def work() -> None:
        while True:
            try:
                await asyncio.sleep(DAY)
            except asyncio.CancelledError:
                if stage.now >= 60_000:
                    raise

    handle = work.enqueue()
    stage.drain()

    assert handle.job().error == "TimeoutError: the run took longer than its limit of 60 s"
    assert stage.now == 60_000


def test_an_error_of_its_own_after_the_soft_limit_is_an_ordinary_one(stage: Stage) -> None:
    @stage.app.task(soft_timeout=10, retries=0)
    async def work() -> None:
        try:
            await asyncio.sleep(DAY)
        except asyncio.CancelledError:
            raise ValueError("something else") from None

    handle = work.enqueue()
    stage.drain()

    assert handle.job().failure_kind is FailureKind.ERROR


def test_a_strand_is_as_good_as_new_after_a_soft_limit(stage: Stage) -> None:
    tasks: set[object] = set()

    @stage.app.task(retries=0)
    async def work(seconds: float) -> None:
        tasks.add(asyncio.current_task())
        await asyncio.sleep(seconds)

    work.using(soft_timeout=1).enqueue(5)
    after = work.enqueue(5)
    stage.drain(concurrency=1)

    assert after.job().state is State.COMPLETED
    assert len(tasks) == 1


def test_limits_of_one_call_go_before_those_of_the_task_and_none_is_none(stage: Stage) -> None:
    @stage.app.task(retries=0, timeout=10, soft_timeout=5)
    async def limited() -> None:
        await asyncio.sleep(20)

    @stage.app.task(retries=0)
    async def free() -> None:
        await asyncio.sleep(20)

    lifted = limited.using(timeout=None, soft_timeout=None).enqueue()
    others = [
        (
            task.using(timeout=3, soft_timeout=None).enqueue(),
            task.using(timeout=None, soft_timeout=2).enqueue(),
        )
        for task in (limited, free)
    ]
    stage.drain()

    assert lifted.job().state is State.COMPLETED
    for shorter, softer in others:
        assert (shorter.job().error or "").endswith("limit of 3 s")
        assert (softer.job().error or "").endswith("soft limit of 2 s")


# In threads


def test_a_thread_that_outlives_its_soft_limit_is_told_and_reported_once(stage: Stage) -> None:
    seen: list[bool] = []
    go = threading.Event()

    def stuck_in_here(ctx: Context) -> None:
        go.wait(10)
        seen.append(ctx.overdue)

    @stage.app.task(soft_timeout=0.05)
    def stuck(ctx: Context) -> None:
        stuck_in_here(ctx)

    @stage.app.task(soft_timeout=30)
    def quick(ctx: Context) -> None:
        seen.append(ctx.overdue)

    stage.app.bus.subscribe(lambda _: go.set(), events.JobStuck)
    quick.enqueue()
    handle = stuck.enqueue()
    stage.drain_with_threads()

    assert seen == [False, True]
    assert handle.job().state is State.COMPLETED
    [report] = stage.all(events.JobStuck)
    assert (report.number, report.task, report.limit) == (2, "stuck", 50)
    assert "in stuck_in_here" in report.stack
    assert "shigoto/worker" not in report.stack


def test_a_thread_may_raise_the_soft_limit_by_itself(stage: Stage) -> None:
    @stage.app.task(soft_timeout=0.05, retries=0)
    def looks(ctx: Context) -> None:
        while not ctx.overdue:
            threading.Event().wait(0.001)
        raise SoftTimeout("that is enough")

    handle = looks.enqueue()
    stage.drain_with_threads()

    assert handle.job().failure_kind is FailureKind.TIMEOUT


def test_where_nothing_can_be_stopped_a_hard_limit_is_told_like_a_soft_one(stage: Stage) -> None:
    """A store of one process has no children; the job runs in a thread, and people hear of it."""
    go = threading.Event()

    @stage.app.task
    def work() -> None:
        go.wait(10)

    stage.app.bus.subscribe(lambda _: go.set(), events.JobStuck)
    handle = work.using(timeout=0.05).enqueue()
    stage.drain_with_threads()

    assert handle.job().state is State.COMPLETED
    assert [event.limit for event in stage.all(events.JobStuck)] == [50]
