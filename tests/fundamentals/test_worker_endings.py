"""How a run can end, and what its job and its worker make of it."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn
from uuid import UUID

import pytest

from shigoto import (
    Cancel,
    Context,
    Fail,
    FailureKind,
    PayloadInvalid,
    Retry,
    RetryLater,
    Shigoto,
    Snooze,
    State,
)
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.model.worker import Report
from shigoto.observe import events
from shigoto.testing.store import VirtualClock
from shigoto.worker import Worker
from tests.fundamentals.stage import DAY, HOUR, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


# Endings that a handler chooses


def test_retry_later_counts_as_a_failure_and_waits_as_long_as_it_says(stage: Stage) -> None:
    @stage.app.task(retries=1)
    async def busy() -> NoReturn:
        raise RetryLater(120, "the server said Retry-After: 120")

    async def main() -> None:
        busy.enqueue()
        async with stage.working(lease=HOUR, poll=HOUR):
            await stage.until(events.JobFailedEvent)

    stage.play(main)

    assert stage.times(events.JobStarted) == [0, 120_000]
    assert stage.job().failures == 2
    assert "Retry-After: 120" in (stage.job().error or "")


def test_a_snooze_counts_neither_as_failure_nor_as_attempt(stage: Stage) -> None:
    runs: list[int] = []

    @stage.app.task(retries=0)
    async def wait_for_it(ctx: Context) -> str:
        runs.append(ctx.attempt)
        if len(runs) < 4:
            raise Snooze(3600)
        return "came"

    async def main() -> None:
        wait_for_it.enqueue()
        async with stage.working(lease=HOUR, poll=HOUR):
            await stage.until(events.JobCompleted)

    stage.play(main)

    assert runs == [1, 1, 1, 1]
    assert stage.times(events.JobStarted) == [0, 3_600_000, 7_200_000, 10_800_000]
    job = stage.job()
    assert (job.failures, job.snoozes, job.result) == (0, 3, '"came"')


def test_cancel_and_fail_end_the_job_at_once(stage: Stage) -> None:
    @stage.app.task
    async def give_up() -> NoReturn:
        raise Cancel("no longer wanted")

    @stage.app.task
    def reject() -> None:
        raise Fail("the order was refunded")

    given_up, rejected = give_up.enqueue(), reject.enqueue()
    stage.drain_with_threads()

    assert given_up.job().state is State.CANCELLED
    job = rejected.job()
    assert (job.state, job.failure_kind) == (State.FAILED, FailureKind.REJECTED)
    assert "the order was refunded" in (job.error or "")


def test_arguments_that_do_not_fit_fail_at_once_without_running(stage: Stage) -> None:
    """A payload that cannot be parsed is not retried."""
    ran: list[int] = []

    @stage.app.task
    async def note(number: int) -> None:
        ran.append(number)

    @stage.app.task(name="elsewhere")
    def elsewhere(number: str) -> None: ...

    stage.app.enqueue_by_name("elsewhere", {"number": "x"})
    spoiled = Shigoto(engine=stage.engine)

    @spoiled.task(name="elsewhere")
    async def other(number: int) -> None:
        ran.append(number)

    stage.play(lambda: Worker(spoiled, drain=True, beats="loop").run())

    assert ran == []
    job = stage.job()
    assert (job.state, job.failure_kind, job.failures) == (State.FAILED, FailureKind.PAYLOAD_INVALID, 1)


def test_a_result_that_cannot_be_stored_fails_at_once(stage: Stage) -> None:
    """The effect has happened: a second run would repeat it."""

    @stage.app.task
    async def open_file() -> Any:
        return object()

    open_file.enqueue()
    stage.drain()

    job = stage.job()
    assert (job.state, job.failure_kind, job.failures) == (State.FAILED, FailureKind.RESULT_INVALID, 1)


def test_a_handler_that_stumbles_over_a_payload_of_its_own_has_failed_like_any_other(stage: Stage) -> None:
    @stage.app.task(retry=Retry.immediate(retries=1))
    async def parent() -> NoReturn:
        raise PayloadInvalid("about another job")

    parent.enqueue()
    stage.drain()

    job = stage.job()
    assert (job.failure_kind, job.failures) == (FailureKind.ERROR, 2)


class BrokenStr(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class OwnBase(BaseException):
    pass


def _group() -> BaseException:
    return ExceptionGroup("several", [ValueError("one"), TypeError("two")])


ZOO: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: ValueError("boom"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": StopAsyncIteration,
    "own BaseException": lambda: OwnBase("deep"),
    "broken __str__": BrokenStr,
    "NUL": lambda: ValueError("a\0b"),
    "lone surrogate": lambda: ValueError("\ud800"),
    "50 MB": lambda: ValueError("x" * 50_000_000),
    "group": _group,
    "MemoryError": MemoryError,
    "TimeoutError": TimeoutError,
}


@pytest.mark.parametrize("make", ZOO.values(), ids=ZOO.keys())
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_whatever_a_handler_raises_is_a_failure_and_the_worker_goes_on(
    stage: Stage, make: Callable[[], BaseException], sync: bool
) -> None:
    """S0-37, S1-10: the job has failed, its reason is stored as valid text, and the next job runs."""
    if sync:

        @stage.app.task(name="fail", retry=Retry.immediate(retries=1))
        def fail_sync() -> NoReturn:
            raise make()
    else:

        @stage.app.task(name="fail", retry=Retry.immediate(retries=1))
        async def fail_async() -> NoReturn:
            raise make()

    @stage.app.task
    async def after() -> None: ...

    stage.app.enqueue_by_name("fail", {})
    later = after.enqueue()
    stage.drain_with_threads(concurrency=1)

    job = stage.job()
    assert (job.state, job.failure_kind, job.failures) == (State.FAILED, FailureKind.ERROR, 2)
    assert later.job().state is State.COMPLETED
    for run in stage.engine.run(stage.engine.attempts(job.id)):
        text = (run.error or "") + (run.traceback or "")
        assert len(text.encode()) <= 16 * 1024
        assert "\0" not in text
        assert run.error


def test_a_handler_that_cancels_its_own_task_has_failed_and_does_no_further_harm(stage: Stage) -> None:
    @stage.app.task(retries=0)
    async def self_cancel(suspend: bool) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if suspend:
            await asyncio.sleep(1)

    @stage.app.task
    async def after() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))

    with_await, without = self_cancel.enqueue(True), self_cancel.enqueue(False)
    later = after.enqueue()
    stage.drain(concurrency=1)

    assert with_await.job().failure_kind is FailureKind.ERROR
    assert without.job().state is State.COMPLETED
    assert later.job().state is State.COMPLETED


def test_context_variables_of_one_job_never_reach_the_next(stage: Stage) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen: list[str] = []

    @stage.app.task
    async def on_loop(name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)

    @stage.app.task
    def in_thread(name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)

    for task in (on_loop, in_thread):
        task.enqueue("acme")
        task.enqueue("umbrella")
    stage.drain_with_threads(concurrency=1, threads=1)

    assert seen == ["nobody"] * 4


# Time limits and expiry


def test_an_async_job_that_takes_too_long_is_cancelled_and_has_failed(stage: Stage) -> None:
    """S0-71."""
    cleaned: list[int] = []

    @stage.app.task(timeout=10, retry=Retry.linear(seconds=5, retries=1))
    async def hang() -> None:
        try:
            await asyncio.sleep(DAY)
        finally:
            cleaned.append(stage.now)

    async def main() -> None:
        hang.enqueue()
        async with stage.working():
            await stage.until(events.JobFailedEvent)

    stage.play(main)

    assert cleaned == [10_000, 25_000]
    job = stage.job()
    assert (job.failure_kind, job.failures) == (FailureKind.TIMEOUT, 2)
    assert (job.error or "").startswith("TimeoutError: ")


def test_limits_of_many_jobs_are_each_kept(stage: Stage) -> None:
    @stage.app.task(retries=0)
    async def hang() -> None:
        await asyncio.sleep(DAY)

    limits = [5, 1, 3, 2, 4, 1]
    for limit in limits:
        hang.using(timeout=limit).enqueue()
    stage.drain()

    assert stage.times(events.JobFailedEvent) == sorted(limit * 1_000 for limit in limits)


def test_a_time_out_inside_the_handler_is_its_own_affair(stage: Stage) -> None:
    @stage.app.task(timeout=60, retries=0)
    async def inner() -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(DAY)

    @stage.app.task(timeout=60)
    async def handled() -> str:
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(DAY)
        except TimeoutError:
            return "handled"
        return "never"

    failed, fine = inner.enqueue(), handled.enqueue()
    stage.drain()

    assert failed.job().failure_kind is FailureKind.ERROR
    assert fine.result() == "handled"


def test_a_handler_that_finishes_in_spite_of_its_limit_has_succeeded(stage: Stage) -> None:
    @stage.app.task(timeout=1)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(DAY)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
        return "anyway"

    handle = stubborn.enqueue()
    stage.drain()

    assert handle.result() == "anyway"


def test_an_expired_job_is_not_started(stage: Stage) -> None:
    ran: list[int] = []

    @stage.app.task
    async def note(number: int) -> None:
        ran.append(number)

    note.using(expires=10).enqueue(1)
    note.using(expires=1_000).enqueue(2)
    stage.clock.advance(60_000)

    async def main() -> None:
        async with stage.working():
            await asyncio.sleep(30)

    stage.play(main)

    assert ran == [2]
    assert stage.job(1).failure_kind is FailureKind.EXPIRED


# Progress


class Counting(MemoryEngine):
    """Counts reports."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.reports: list[list[Report]] = []

    def report(self, worker: UUID, reports: Any) -> Op[list[bool]]:
        self.reports.append(list(reports))
        return super().report(worker, reports)


def test_progress_is_reported_at_most_once_a_second_and_the_last_one_is_kept() -> None:
    """S2-21."""
    stage = Stage(Counting)
    assert isinstance(stage.engine, Counting)
    seen: list[float | None] = []

    @stage.app.task
    async def pages(ctx: Context, count: int) -> None:
        for page in range(count):
            await asyncio.sleep(0.01)
            ctx.progress(page / count, f"Page {page}/{count}")

    async def main() -> None:
        pages.enqueue(1_000)
        pages.enqueue(1_000)
        async with stage.working():
            await asyncio.sleep(5.5)
            seen.append(stage.job().progress)
            await stage.until(events.JobCompleted, 2)

    stage.play(main)

    assert seen[0] == pytest.approx(0.5, abs=0.11)
    assert 8 <= len(stage.engine.reports) <= 10
    assert all(len(batch) == 2 for batch in stage.engine.reports)
    assert (stage.job().progress, stage.job().progress_text) == (0.999, "Page 999/1000")


def test_a_failed_job_keeps_the_progress_it_made(stage: Stage) -> None:
    @stage.app.task(retries=0)
    def half(ctx: Context) -> NoReturn:
        ctx.progress(0.5, "half of it\0")
        raise ValueError("the other half")

    half.enqueue()
    stage.drain_with_threads()

    assert (stage.job().state, stage.job().progress) == (State.FAILED, 0.5)


# Cancelling


def test_a_running_async_job_is_cancelled_and_its_strand_lives_on(stage: Stage) -> None:
    cleaned: list[str] = []

    @stage.app.task
    async def endless() -> None:
        try:
            await asyncio.sleep(DAY)
        finally:
            await asyncio.sleep(5)
            cleaned.append("cleaned up")

    @stage.app.task
    async def after() -> None:
        async with asyncio.timeout(10):
            await asyncio.sleep(1)

    async def main() -> None:
        job = await endless.aenqueue()
        async with stage.working(concurrency=1):
            await stage.until(events.JobStarted)
            await asyncio.sleep(3)
            await job.acancel()
            await stage.until(events.JobCancelledEvent)
            await after.aenqueue()
            await stage.until(events.JobCompleted)

    stage.play(main)

    assert cleaned == ["cleaned up"]
    assert stage.job(1).state is State.CANCELLED
    # The doorbell brings the request at once; the handler took five seconds to clean up, undisturbed.
    assert stage.times(events.JobCancelledEvent) == [8_000]


def test_success_wins_over_a_cancel_that_came_too_late(stage: Stage) -> None:
    @stage.app.task
    async def stubborn() -> str:
        try:
            await asyncio.sleep(DAY)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
        return "done anyway"

    async def main() -> None:
        job = await stubborn.aenqueue()
        async with stage.working():
            await stage.until(events.JobStarted)
            await job.acancel()
            assert await job.aresult() == "done anyway"

    stage.play(main)


@pytest.mark.parametrize("way_out", [Cancel("asked to"), RuntimeError("broke off"), Snooze(60)])
def test_a_handler_in_a_thread_sees_that_it_is_cancelled(stage: Stage, way_out: Exception) -> None:
    """However it ends but by success, it is cancelled, and told as such."""
    started = threading.Event()

    @stage.app.task
    def look(ctx: Context) -> None:
        started.set()
        for _ in range(500):
            if ctx.cancelled:
                raise way_out
            time.sleep(0.01)
        raise AssertionError("nobody asked")

    async def main() -> None:
        job = await look.aenqueue()
        async with Worker(stage.app):
            await asyncio.to_thread(started.wait, 5)
            await job.acancel()
            await stage.until(events.JobCancelledEvent)

    asyncio.run(main())

    assert stage.job().state is State.CANCELLED
    assert stage.all(events.JobFailedEvent) + stage.all(events.JobRetried) == []
