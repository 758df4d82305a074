"""`app.test()`: a block in which the jobs of an app live in memory and run when they are told to."""

import asyncio
import contextvars
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shigoto import (
    Context,
    DeclarationError,
    OptionInvalid,
    ResultTimeout,
    State,
)
from shigoto.testing import Jobs
from tests.unit.testing.testing_shop import EARLY, Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


class TestBlock:
    def test_the_own_store_of_the_app_is_not_even_opened(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            shop.note.enqueue("a")
            jobs.run_all()

            assert shop.app.url == "memory:"

        assert not shop.file.exists()

    def test_the_app_is_as_it_was_before(self, shop: Shop) -> None:
        url = shop.app.url
        kept = shop.note.enqueue("kept")
        engine = shop.app.engine

        with shop.app.test():
            shop.note.enqueue("b")

        assert shop.app.url == url
        assert shop.app.engine is engine
        assert [job.id for job in shop.app.find()] == [kept.id]
        shop.app.close()

    def test_the_address_can_still_be_chosen_afterwards(self, shop: Shop) -> None:
        with shop.app.test():
            shop.note.enqueue("a")

        shop.app.url = "memory:"

        assert shop.app.stats() == {}

    def test_an_exception_leaves_the_app_as_it_was(self, shop: Shop) -> None:
        url = shop.app.url

        def broken() -> None:
            with shop.app.test(run="inline"):
                shop.anote.enqueue("a")
                raise KeyError

        with pytest.raises(KeyError):
            broken()
        assert shop.app.url == url
        with shop.app.test() as jobs:
            assert jobs.enqueued() == []

    def test_every_block_begins_with_an_empty_store(self, shop: Shop) -> None:
        with shop.app.test():
            shop.note.enqueue("forgotten")

        with shop.app.test() as jobs:
            jobs.run_all()

            assert jobs.enqueued() == []
        assert shop.done == []

    def test_nesting_is_refused_and_the_outer_block_goes_on(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            with pytest.raises(DeclarationError, match=r"app\.test\(\) is open already"), shop.app.test():
                pass
            shop.note.enqueue("a")

            assert len(jobs.run_all()) == 1

    def test_a_block_is_entered_once(self, shop: Shop) -> None:
        jobs = shop.app.test()
        with jobs:
            pass

        with pytest.raises(DeclarationError, match="entered once"), jobs:
            pass

    def test_nothing_runs_outside_of_the_block(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            shop.note.enqueue("a")

        with pytest.raises(DeclarationError, match="inside of the block"):
            jobs.run_all()
        assert len(jobs.enqueued()) == 1

    def test_options_are_checked(self, shop: Shop) -> None:
        wrong: dict[str, Any]
        for wrong in ({"run": "sometimes"}, {"now": datetime(2026, 1, 1)}, {"clock": 1}):  # noqa: DTZ001
            with pytest.raises(OptionInvalid):
                shop.app.test(**wrong)

    async def test_it_may_be_entered_with_async_with(self, shop: Shop) -> None:
        async with shop.app.test() as jobs:
            await shop.anote.aenqueue("a")
            await jobs.arun_all()

        assert shop.done == ["a"]

    def test_other_threads_enqueue_into_the_same_store(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            threads = [threading.Thread(target=shop.note.enqueue, args=(str(n),)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

            assert len(jobs.run_all().completed) == 4

    def test_tasks_may_be_declared_inside_the_block(self, shop: Shop) -> None:
        with shop.app.test(run="inline"):
            shop.note.enqueue("a")

            @shop.app.task
            def late() -> None:
                shop.done.append("late")

            late.enqueue()

        assert shop.done == ["a", "late"]


class TestDrain:
    def test_nothing_runs_before_it_is_told_to(self, shop: Shop) -> None:
        """S0-74: a handler is tested with its queue, without a worker."""
        with shop.app.test() as jobs:
            handle = shop.note.enqueue("a")
            assert shop.done == []

            jobs.run_all()

            assert shop.done == ["a"]
            assert handle.result() == "A"
            assert handle.status() is State.COMPLETED

    def test_what_jobs_enqueue_runs_too(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            shop.chain.enqueue(3)
            shop.achain.enqueue(2)

            assert len(jobs.run_all()) == 7
            assert sorted(shop.done) == [0, 0, 1, 1, 2, 2, 3]

    def test_the_best_goes_first(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            shop.note.using(priority=-1).enqueue("last")
            shop.note.enqueue("second")
            shop.note.using(priority=5).enqueue("first")

            jobs.run_all()

        assert shop.done == ["first", "second", "last"]

    def test_a_job_for_later_waits_for_the_clock(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            shop.note.using(delay=timedelta(hours=2)).enqueue("later")
            jobs.run_all()
            jobs.advance(hours=1, minutes=59)
            jobs.run_all()
            assert shop.done == []

            jobs.advance(minutes=1)
            jobs.run_all()

        assert shop.done == ["later"]

    def test_a_chain_without_an_end_is_an_error(self, shop: Shop) -> None:
        @shop.app.task
        def forever() -> None:
            forever.enqueue()

        with shop.app.test() as jobs:
            forever.enqueue()
            with pytest.raises(RuntimeError, match="50 runs, and there is still a job that is due"):
                jobs.run_all(limit=50)

            assert len(jobs.runs) == 50
            assert [job.state for job in jobs.enqueued()[-2:]] == [State.COMPLETED, State.PENDING]

    def test_sync_jobs_run_in_the_calling_thread(self, shop: Shop) -> None:
        @shop.app.task(executor="process", timeout=60)
        def where() -> int:
            return threading.get_ident()

        with shop.app.test() as jobs:
            handle = where.enqueue()
            jobs.run_all()

            assert handle.result() == threading.get_ident()

    def test_context_variables_are_those_from_before_the_block_and_no_callers(self, shop: Shop) -> None:
        """What a request has set does not reach a worker, and so no handler in a test."""
        variable = contextvars.ContextVar("variable", default="")
        variable.set("before")

        @shop.app.task
        def look() -> str:
            seen = variable.get()
            variable.set("changed")
            return seen

        @shop.app.task
        async def alook() -> str:
            return variable.get()

        with shop.app.test() as jobs:
            variable.set("mine")
            handles = look.enqueue(), alook.enqueue(), look.enqueue()
            jobs.run_all()

            assert [handle.result() for handle in handles] == ["before"] * 3
        assert variable.get() == "mine"

    def test_one_private_loop_serves_all_runs_of_a_block(self, shop: Shop) -> None:
        loops: list[asyncio.AbstractEventLoop] = []

        @shop.app.task
        async def look() -> None:
            loops.append(asyncio.get_running_loop())

        with shop.app.test() as jobs:
            for _ in range(2):
                look.enqueue()
                jobs.run_all()
            assert loops[0] is loops[1]
            assert not loops[0].is_closed()
        assert loops[0].is_closed()

    async def test_async_jobs_run_on_the_running_loop(self, shop: Shop) -> None:
        @shop.app.task
        async def look() -> bool:
            return asyncio.get_running_loop() is here

        here = asyncio.get_running_loop()
        with shop.app.test() as jobs:
            handle = await look.aenqueue()
            assert len((await jobs.arun_all()).completed) == 1

            assert await handle.aresult() is True

    async def test_run_all_on_a_running_loop_names_its_twin(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            for refused in (jobs.run_all, lambda: jobs.crash(shop.note)):
                with pytest.raises(DeclarationError, match=r"await jobs\.a(run_all|crash)"):
                    refused()

    async def test_a_cancelled_arun_all_gives_the_job_back(self, shop: Shop) -> None:
        began = asyncio.Event()

        @shop.app.task
        async def slow() -> None:
            began.set()
            await asyncio.sleep(60)

        with shop.app.test() as jobs:
            handle = await slow.aenqueue()
            running = asyncio.create_task(jobs.arun_all())
            await began.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

            job = await handle.ajob()
            assert (job.state, job.releases, job.failures) == (State.PENDING, 1, 0)

    async def test_a_timeout_around_arun_all_is_heard(self, shop: Shop) -> None:
        @shop.app.task
        async def slow() -> None:
            await asyncio.sleep(60)

        with shop.app.test() as jobs:
            await slow.aenqueue()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await jobs.arun_all()


class TestInline:
    def test_a_job_has_run_when_enqueue_returns(self, shop: Shop) -> None:
        with shop.app.test(run="inline"):
            assert shop.note.enqueue("a").result() == "A"
            assert shop.anote.enqueue("b").result() == "B"
            handles = shop.app.enqueue_many([shop.note.call("c"), shop.note.call("d")])

            assert [handle.status() for handle in handles] == [State.COMPLETED] * 2
        assert shop.done == ["a", "b", "c", "d"]

    def test_so_have_the_jobs_that_it_has_enqueued_however_many(self, shop: Shop) -> None:
        with shop.app.test(run="inline") as jobs:
            shop.chain.enqueue(2_000)
            shop.achain.enqueue(200)

            assert len(jobs.runs.completed) == 2_202

    def test_a_chain_without_an_end_is_an_error(self, shop: Shop) -> None:
        @shop.app.task
        def forever() -> None:
            forever.enqueue()

        with shop.app.test(run="inline"), pytest.raises(RuntimeError, match="10000 runs"):
            forever.enqueue()

    def test_a_failure_is_recorded_and_its_retry_waits_for_the_clock(self, shop: Shop) -> None:
        """S0-75: inline, too, a retry comes when its time has come."""
        with shop.app.test(run="inline") as jobs:
            handle = shop.fail.enqueue("boom")
            assert (handle.job().failures, handle.status()) == (1, State.PENDING)

            ran = jobs.advance(minutes=20)

            assert [run.outcome for run in ran] == ["retried", "failed"]
            job = handle.job()
            assert job.finished_at == job.created_at + timedelta(minutes=15)

    def test_a_job_for_later_waits_for_the_clock(self, shop: Shop) -> None:
        with shop.app.test(run="inline") as jobs:
            shop.note.using(delay=60).enqueue("later")
            assert shop.done == []

            jobs.advance(60)

        assert shop.done == ["later"]

    def test_a_retry_by_hand_runs_at_once(self, shop: Shop) -> None:
        with shop.app.test(run="inline"):
            handle = shop.fail.using(retries=0).enqueue("boom")
            handle.retry()

        assert shop.done == ["boom", "boom"]

    def test_a_job_may_wait_for_another_one(self, shop: Shop) -> None:
        @shop.app.task
        def parent() -> str:
            return shop.note.enqueue("child").result() + shop.anote.enqueue("b").result()

        @shop.app.task
        async def aparent() -> str:
            return await (await shop.anote.aenqueue("child")).aresult()

        with shop.app.test(run="inline"):
            assert parent.enqueue().result() == "CHILDB"
            assert aparent.enqueue().result() == "CHILD"

    async def test_aenqueue_runs_on_the_running_loop(self, shop: Shop) -> None:
        @shop.app.task
        async def look() -> bool:
            return asyncio.get_running_loop() is here

        here = asyncio.get_running_loop()
        async with shop.app.test(run="inline"):
            assert await (await look.aenqueue()).aresult() is True
            await shop.note.aenqueue("a")

        assert shop.done == ["a"]

    async def test_enqueue_on_a_running_loop_runs_async_jobs_in_a_thread(self, shop: Shop) -> None:
        seen: list[int] = []

        @shop.app.task
        async def look() -> None:
            await asyncio.sleep(0)
            seen.append(threading.get_ident())

        @shop.app.task
        def here() -> None:
            seen.append(threading.get_ident())

        async with shop.app.test(run="inline") as jobs:
            look.enqueue()
            here.enqueue()

            assert len(jobs.runs.completed) == 2
        assert seen[0] != threading.get_ident()
        assert seen[1] == threading.get_ident()

    async def test_the_clock_has_an_async_twin(self, shop: Shop) -> None:
        async with shop.app.test(run="inline") as jobs:
            await shop.anote.using(delay=60).aenqueue("a")
            await shop.anote.using(delay=90).aenqueue("b")
            with pytest.raises(DeclarationError, match="aadvance"):
                jobs.advance(minutes=1)

            assert len(await jobs.aadvance(minutes=1)) == 1
            assert len(await jobs.aadvance_to_next()) == 1
        assert shop.done == ["a", "b"]

    def test_each_thread_runs_its_own(self, shop: Shop) -> None:
        @shop.app.task
        def where() -> int:
            return threading.get_ident()

        elsewhere: list[int] = []
        ready = threading.Barrier(4)

        def work() -> None:
            ready.wait()
            ran_in = {where.enqueue().result() for _ in range(50)}
            elsewhere.extend(ran_in - {threading.get_ident()})

        with shop.app.test(run="inline") as jobs:
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

            assert (len(jobs.runs.completed), elsewhere) == (200, [])


class TestResults:
    def test_nobody_waits_for_a_job_that_was_not_run(self, shop: Shop) -> None:
        with shop.app.test():
            handle = shop.note.enqueue("a")

            for timeout in (None, 60):
                with pytest.raises(ResultTimeout, match=r"nothing runs here before jobs\.run_all\(\)"):
                    handle.result(timeout)

    async def test_neither_does_an_event_loop(self, shop: Shop) -> None:
        with shop.app.test():
            handle = await shop.note.aenqueue("a")

            with pytest.raises(ResultTimeout, match="has not run yet"):
                await handle.aresult()

    def test_a_job_for_later_says_when(self, shop: Shop) -> None:
        with shop.app.test(run="inline"):
            with pytest.raises(ResultTimeout, match=r"due in 90 s\. Call jobs\.advance\(\)"):
                shop.note.using(delay=90).enqueue("a").result()
            with pytest.raises(ResultTimeout, match="no such task"):
                shop.app.enqueue_by_name("elsewhere", {}, allow_unknown=True).result()
            shop.app.pause("default")
            with pytest.raises(ResultTimeout, match="paused"):
                shop.note.enqueue("a").result()

    def test_a_job_that_waits_for_itself_is_told_so(self, shop: Shop) -> None:
        @shop.app.task(retries=0)
        def wait(ctx: Context) -> None:
            shop.app.job(ctx.job_id).result()

        with shop.app.test() as jobs:
            wait.enqueue()

            assert "waits for its own result" in str(jobs.run_all().failed[0].error)

    def test_a_job_that_runs_in_another_thread_is_waited_for(self, shop: Shop) -> None:
        began, go = threading.Event(), threading.Event()

        @shop.app.task
        def slow() -> str:
            began.set()
            go.wait(10)
            return "done"

        with shop.app.test() as jobs:
            handle = slow.enqueue()
            thread = threading.Thread(target=jobs.run_all)
            thread.start()
            began.wait(10)
            threading.Timer(0.01, go.set).start()

            assert handle.result(timeout=10) == "done"
            thread.join()


def test_the_value_shows_what_it_holds(shop: Shop) -> None:
    with shop.app.test(now=EARLY) as jobs:
        shop.note.enqueue("a")

        assert isinstance(jobs, Jobs)
        assert repr(jobs) == "<Jobs 1 enqueued, 0 runs, at 2026-03-01 00:00:00+00:00>"
        assert repr(jobs.run_all()) == "<Ran 1 completed>"
        assert repr(jobs.run_all()) == "<Ran nothing>"
