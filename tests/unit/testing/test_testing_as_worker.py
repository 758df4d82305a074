"""What a handler finds around itself in `app.test()` is what it finds in a worker, as far as one thread can be that."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shigoto import (
    Context,
    DeclarationError,
    FailureKind,
    JobExpired,
    ResultTimeout,
    Shigoto,
    State,
)
from tests.unit.testing.testing_shop import EARLY, Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


class TestEventLoops:
    async def test_a_sync_handler_sees_no_event_loop_and_may_run_its_own(self, shop: Shop) -> None:
        async def answer() -> int:
            await asyncio.sleep(0)
            assert asyncio.current_task() is not None
            return 42

        @shop.app.task
        def ask() -> list[object]:
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            return [asyncio.run(answer()), threading.get_ident()]

        here, me = asyncio.get_running_loop(), asyncio.current_task()
        async with shop.app.test() as jobs:
            handle = await ask.aenqueue()
            await jobs.arun_all(raise_errors=True)

            assert await handle.aresult() == [42, threading.get_ident()]
        assert (asyncio.get_running_loop(), asyncio.current_task()) == (here, me)
        async with asyncio.timeout(5):  # the loop still does its work
            await asyncio.sleep(0)

    async def test_inline_as_well_and_also_if_it_raises(self, shop: Shop) -> None:
        @shop.app.task(retries=0)
        def ask() -> None:
            asyncio.run(asyncio.sleep(0))
            raise OSError("after all")

        async with shop.app.test(run="inline"):
            assert (await (await ask.aenqueue()).ajob()).error == "OSError: after all"
            assert ask.enqueue().job().error == "OSError: after all"
        assert asyncio.current_task() is not None

    async def test_a_sync_handler_on_a_loop_may_wait_for_an_async_job(self, shop: Shop) -> None:
        @shop.app.task
        def parent() -> str:
            return shop.anote.enqueue("child").result()

        async with shop.app.test(run="inline"):
            assert await (await parent.aenqueue()).aresult() == "CHILD"

    async def test_aresult_runs_the_child_on_the_same_loop_which_goes_on(self, shop: Shop) -> None:
        ticks: list[int] = []

        @shop.app.task
        async def child() -> bool:
            ticks.append(0)
            await asyncio.sleep(0.02)
            return asyncio.get_running_loop() is here

        @shop.app.task
        async def parent() -> bool:
            handle = await child.aenqueue()
            ticking = asyncio.create_task(tick())
            same = await handle.aresult()
            ticking.cancel()
            return same

        async def tick() -> None:
            while True:
                ticks.append(1)
                await asyncio.sleep(0)

        here = asyncio.get_running_loop()
        async with shop.app.test(run="inline"):
            assert await (await parent.aenqueue()).aresult() is True
        assert len(ticks) > 10

    def test_a_handler_that_cancels_its_own_task_and_returns_has_completed(self, shop: Shop) -> None:
        @shop.app.task
        async def careless() -> str:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return "done"

        with shop.app.test() as jobs:
            handle = careless.enqueue()

            assert len(jobs.run_all().completed) == 1
            assert handle.result() == "done"

    def test_another_event_loop_than_asyncios_is_told_so(self, shop: Shop) -> None:
        with shop.app.test() as jobs, pytest.raises(DeclarationError, match="asyncio"):
            jobs.arun_all().send(None)


class TestLimits:
    def test_a_sync_handler_is_told_of_its_soft_limit(self, shop: Shop) -> None:
        @shop.app.task(soft_timeout=0.02)
        def patient(ctx: Context) -> str:
            deadline = time.monotonic() + 10
            while not ctx.overdue and time.monotonic() < deadline:
                time.sleep(0.001)
            return f"overdue: {ctx.overdue}"

        with shop.app.test() as jobs:
            handle = patient.enqueue()
            jobs.run_all()

            assert handle.result() == "overdue: True"


class TestLifespan:
    def test_what_it_enqueues_inline_is_left_to_the_round(self, shop: Shop) -> None:
        @shop.app.lifespan
        async def resources(app: Shigoto) -> AsyncIterator[None]:
            await shop.anote.aenqueue("opened")
            yield
            shop.note.enqueue("closed")

        with shop.app.test(run="inline") as jobs:
            shop.note.enqueue("a")

            assert shop.done == ["a", "opened"]
            jobs.assert_enqueued(shop.note.call("closed"), state="pending")

    async def test_so_it_is_on_an_event_loop(self, shop: Shop) -> None:
        @shop.app.lifespan
        async def resources(app: Shigoto) -> AsyncIterator[None]:
            await shop.anote.aenqueue("opened")
            yield

        async with shop.app.test(run="inline"):
            await shop.note.aenqueue("a")

        assert shop.done == ["a", "opened"]


class TestWaiting:
    def test_a_job_that_waits_for_a_retry_says_what_has_happened(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            handle = shop.fail.enqueue("no host")
            jobs.run_all()
            with pytest.raises(
                ResultTimeout, match=r"has failed once \(ValueError: no host\).* runs again in 300 s"
            ):
                handle.result()
            jobs.advance(minutes=5)
            jobs.run_all()
            with pytest.raises(ResultTimeout, match=r"has failed 2 times .*runs again in 600 s"):
                handle.result()

    def test_run_all_fails_what_has_expired(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            handle = shop.note.using(expires=datetime.now(UTC) - timedelta(hours=1)).enqueue("a")

            assert len(jobs.run_all()) == 0
            assert handle.job().failure_kind is FailureKind.EXPIRED

    def test_so_does_whoever_waits_for_it_inline(self, shop: Shop) -> None:
        with shop.app.test(run="inline"):
            handle = shop.note.using(expires=datetime.now(UTC) - timedelta(hours=1)).enqueue("a")
            with pytest.raises(JobExpired):
                handle.result()
        assert shop.done == []

    def test_after_the_block_jobs_are_looked_at_and_no_more(self, shop: Shop) -> None:
        with shop.app.test(run="inline"):
            handle = shop.note.enqueue("a")
            later = shop.note.using(delay=60).enqueue("b")

        assert handle.result() == "A"
        with pytest.raises(DeclarationError, match="whose block is over"):
            handle.rerun()
        with pytest.raises(ResultTimeout, match="whose block is over"):
            later.result()
        assert shop.done == ["a"]


class TestManyJobs:
    def test_more_of_them_at_once_than_a_chain_may_be_long(self, shop: Shop) -> None:
        with shop.app.test(run="inline") as jobs:
            shop.app.enqueue_many(shop.note.call("a") for _ in range(10_001))

            assert len(jobs.runs.completed) == 10_001

    def test_a_chain_without_an_end_names_the_clock_that_does_not_move(self, shop: Shop) -> None:
        @shop.app.task
        def daily() -> None:
            daily.using(run_at=datetime.now(UTC) + timedelta(days=1)).enqueue()

        with shop.app.test() as jobs:
            daily.enqueue()
            jobs.run_all()
            jobs.advance(days=2)
            with pytest.raises(RuntimeError, match=r"host's clock does not move with jobs\.advance"):
                jobs.run_all(limit=20)

    def test_the_clock_goes_over_many_instants_in_little_time(self, shop: Shop) -> None:
        with shop.app.test(now=EARLY) as jobs:
            shop.app.enqueue_many(shop.note.using(delay=second).call("a") for second in range(1, 2_001))
            began = time.perf_counter()
            jobs.advance(days=1)
            took = time.perf_counter() - began

            assert len(jobs.run_all()) == 2_000
        assert took < 2

    def test_the_clock_stops_where_jobs_would_go_on_for_ever(self, shop: Shop) -> None:
        @shop.app.task
        def at_once() -> None:
            at_once.using(delay=0.001).enqueue()

        with shop.app.test(run="inline") as jobs:
            at_once.enqueue()
            with pytest.raises(RuntimeError, match=r"^10000 runs.* in smaller steps"):
                jobs.advance(12)

    def test_inline_each_runs_at_its_own(self, shop: Shop) -> None:
        @shop.app.task
        def minutely() -> None:
            minutely.using(delay=60).enqueue()

        with shop.app.test(run="inline", now=EARLY) as jobs:
            minutely.enqueue()
            began = time.perf_counter()
            ran = jobs.advance(hours=12)
            took = time.perf_counter() - began

            assert len(ran) == 720
            assert [run.job.started_at for run in ran][-1] == EARLY + timedelta(hours=12)
        assert took < 10

    def test_what_was_cancelled_or_cleared_is_remembered(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            shop.note.using(delay=60).enqueue("cancelled").cancel()
            shop.note.using(delay=60).enqueue("cleared")
            shop.app.clear(state="pending")
            jobs.advance(days=31)

            assert shop.app.find() == []
            assert [job.state for job in jobs.enqueued()] == [State.CANCELLED, State.PENDING]
