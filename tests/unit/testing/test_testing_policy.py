"""Handlers in `app.test()` are run as by a worker: retries, outcomes, encoding, context, limits, lifespan."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shigoto import (
    Cancel,
    Context,
    DeclarationError,
    Fail,
    FailureKind,
    JobFailed,
    RetryLater,
    Shigoto,
    Snooze,
    State,
    StoreRefused,
    Unsupported,
    current,
)
from tests.unit.testing.testing_shop import EARLY, Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


class TestPolicy:
    def test_a_failure_is_recorded_and_its_retry_waits(self, shop: Shop) -> None:
        """S0-75: the retry mechanism, with its delays, in a test that takes no time."""
        with shop.app.test() as jobs:
            handle = shop.fail.enqueue("boom")

            ran = jobs.run_all()
            assert [job.error for job in ran.retried] == ["ValueError: boom"]
            assert handle.job().run_at == jobs.now + timedelta(minutes=5)
            jobs.run_all()
            assert len(shop.done) == 1

            jobs.advance(minutes=5)
            jobs.run_all()
            jobs.advance(minutes=10)
            assert len(jobs.run_all().failed) == 1

            assert [attempt.outcome for attempt in handle.attempts()] == ["errored", "errored", "failed"]
            with pytest.raises(JobFailed, match="boom"):
                handle.result()

    def test_the_clock_can_go_to_the_next_retry(self, shop: Shop) -> None:
        @shop.app.task(retries=1)
        def flaky(ctx: Context) -> int:
            if ctx.attempt == 1:
                raise OSError("not yet")
            return ctx.attempt

        with shop.app.test() as jobs:
            handle = flaky.enqueue()
            jobs.run_all()
            jobs.advance_to_next()
            jobs.run_all()

            assert handle.result() == 2
            with pytest.raises(LookupError, match="nothing to advance to"):
                jobs.advance_to_next()

    def test_outcomes_are_told_apart(self, shop: Shop) -> None:
        outcomes: dict[str, Exception] = {
            "later": RetryLater(60),
            "snooze": Snooze(60),
            "cancel": Cancel("no need"),
            "reject": Fail("never"),
        }

        @shop.app.task
        def end(how: str) -> None:
            raise outcomes[how]

        with shop.app.test() as jobs:
            for how in outcomes:
                end.enqueue(how)
            ran = jobs.run_all()

            assert [run.outcome for run in ran] == ["retried", "snoozed", "cancelled", "failed"]
            assert repr(ran) == "<Ran 1 retried, 1 snoozed, 1 cancelled, 1 failed>"
            assert [len(part) for part in (ran.retried, ran.snoozed, ran.cancelled, ran.failed)] == [1] * 4
            assert ran.failed[0].failure_kind is FailureKind.REJECTED

    def test_the_errors_of_handlers_can_be_raised(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            shop.note.using(priority=1).enqueue("before")
            handle = shop.fail.enqueue("boom")
            shop.note.using(priority=-1).enqueue("after")

            with pytest.raises(ValueError, match="boom") as raised:
                jobs.run_all(raise_errors=True)

            assert raised.traceback[-1].name == "fail"
            assert handle.job().failures == 1
            assert shop.done == ["before", "boom"]
            with pytest.raises(ValueError, match="boom"):
                jobs.runs.raise_errors()

    def test_requests_are_no_errors_to_be_raised(self, shop: Shop) -> None:
        @shop.app.task
        def later() -> None:
            raise RetryLater(5)

        with shop.app.test() as jobs:
            later.enqueue()

            assert len(jobs.run_all(raise_errors=True).retried) == 1

    def test_what_is_meant_for_the_test_gets_through(self, shop: Shop) -> None:
        @shop.app.task
        def refuse() -> None:
            pytest.fail("the handler must not be called")

        @shop.app.task
        def leave() -> None:
            raise SystemExit(3)

        with shop.app.test() as jobs:
            refuse.enqueue()
            with pytest.raises(pytest.fail.Exception, match="must not be called"):
                jobs.run_all()
            leave.enqueue()

            assert len(jobs.run_all().retried) == 1

    def test_arguments_and_results_go_through_json(self, shop: Shop) -> None:
        """S0-74: payloads are encoded and decoded as on their way to a worker."""
        seen: list[object] = []

        @shop.app.task
        def take(pair: tuple[int, ...], at: datetime, some: UUID) -> list[datetime]:
            seen.extend((pair, at, some))
            return [at]

        some = UUID(int=7)
        with shop.app.test() as jobs:
            handle = take.enqueue((1, 2), EARLY, some)
            jobs.run_all()

            assert seen == [(1, 2), EARLY, some]
            assert handle.result() == [EARLY]
            assert handle.job().result == '["2026-03-01T00:00:00Z"]'

    def test_a_result_that_cannot_be_stored_fails_the_job(self, shop: Shop) -> None:
        @shop.app.task
        def give() -> Any:
            return object()

        with shop.app.test() as jobs:
            give.enqueue()

            assert jobs.run_all().failed[0].failure_kind is FailureKind.RESULT_INVALID

    def test_jobs_under_an_old_name_run(self, shop: Shop) -> None:
        @shop.app.task(aliases=["old-name"])
        def renamed() -> str:
            return "ran"

        with shop.app.test() as jobs:
            handle = shop.app.enqueue_by_name("old-name", {})
            jobs.run_all()

            assert handle.result() == "ran"

    def test_a_job_of_an_unknown_task_waits(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            handle = shop.app.enqueue_by_name("elsewhere", {}, allow_unknown=True)

            assert len(jobs.run_all()) == 0
            assert handle.status() is State.PENDING

    def test_a_paused_queue_stands_still(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            shop.app.pause("default")
            shop.note.enqueue("a")
            assert len(jobs.run_all()) == 0

            shop.app.resume("default")
            assert len(jobs.run_all()) == 1

    def test_a_unique_key_holds(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            first = shop.note.using(key="k").enqueue("a")
            second = shop.note.using(key="k").enqueue("b")

            assert (second.id, second.enqueued) == (first.id, "existing")
            assert len(jobs.run_all()) == 1

    def test_context_progress_log_and_current(self, shop: Shop) -> None:
        @shop.app.task
        def tell(ctx: Context) -> None:
            assert current() is ctx
            ctx.progress(0.5, "half")
            ctx.log("mine", "warning")
            logging.getLogger("shop").error("theirs")

        with shop.app.test() as jobs:
            handle = tell.enqueue()
            jobs.run_all(raise_errors=True)

            assert (handle.job().progress, handle.job().progress_text) == (0.5, "half")
            assert [line.text for line in handle.logs()] == ["mine", "theirs"]

    def test_a_checkpoint_is_there_in_the_next_run(self, shop: Shop) -> None:
        @shop.app.task(retries=1)
        def resume(ctx: Context) -> int:
            if ctx.resume_from is None:
                ctx.checkpoint(7)
                raise OSError
            return int(ctx.resume_from)

        with shop.app.test() as jobs:
            handle = resume.enqueue()
            jobs.run_all()
            jobs.advance(hours=1)
            jobs.run_all()

            assert handle.result() == 7

    def test_an_async_job_is_stopped_at_its_time_limit_in_real_time(self, shop: Shop) -> None:
        @shop.app.task(timeout=0.02, retries=0)
        async def slow() -> None:
            await asyncio.sleep(60)

        @shop.app.task(soft_timeout=0.02, timeout=30)
        async def careful(ctx: Context) -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return f"overdue: {ctx.overdue}"
            return "never"

        with shop.app.test() as jobs:
            slow.enqueue()
            handle = careful.enqueue()

            assert [job.failure_kind for job in jobs.run_all().failed] == [FailureKind.TIMEOUT]
            assert handle.result() == "overdue: True"

    def test_a_job_that_is_cancelled_while_it_runs_is_told(self, shop: Shop) -> None:
        @shop.app.task
        def look(ctx: Context) -> bool:
            shop.app.job(ctx.job_id).cancel()
            if ctx.cancelled:
                raise RuntimeError("stopped")
            return True

        @shop.app.task
        async def wait(ctx: Context) -> None:
            await (await shop.app.ajob(ctx.job_id)).acancel()
            await asyncio.sleep(60)

        with shop.app.test() as jobs:
            look.enqueue()
            wait.enqueue()

            assert [run.outcome for run in jobs.run_all()] == ["cancelled", "cancelled"]

    def test_a_job_that_is_taken_away_by_force_changes_nothing_any_more(self, shop: Shop) -> None:
        @shop.app.task
        def look(ctx: Context) -> None:
            shop.app.job(ctx.job_id).cancel(force=True)
            shop.done.append(ctx.cancelled)

        with shop.app.test() as jobs:
            handle = look.enqueue()

            assert [run.outcome for run in jobs.run_all()] == ["lost"]
            assert shop.done == [True]
            assert handle.status() is State.CANCELLED

    def test_a_job_on_a_connection_of_ones_own_is_there_at_once(self, shop: Shop) -> None:
        with shop.app.test(run="inline") as jobs:
            connection = sqlite3.connect(":memory:")
            shop.note.using(connection=connection).enqueue("a")
            connection.close()
            assert shop.done == []

            jobs.run_all()

        assert shop.done == ["a"]

    @pytest.mark.parametrize("connection", [object(), "a fake"])
    def test_what_the_own_store_could_never_join_is_refused(self, shop: Shop, connection: object) -> None:
        with shop.app.test() as jobs:
            with pytest.raises(StoreRefused, match=r"would take a sqlite3\.Connection"):
                shop.note.using(connection=connection).enqueue("a")
            jobs.refute_enqueued(shop.note)

    def test_an_app_whose_own_store_joins_nothing_does_not_in_a_test(self) -> None:
        app = Shigoto("memory:")

        @app.task
        def note() -> None: ...

        connection = sqlite3.connect(":memory:")
        with app.test(), pytest.raises(Unsupported, match="memory engine cannot join"):
            note.using(connection=connection).enqueue()
        connection.close()

    def test_nobody_knows_whether_a_transaction_of_ones_own_was_committed_so_it_completes_nothing(
        self, shop: Shop
    ) -> None:
        @shop.app.task(retries=0)
        def book(ctx: Context) -> None:
            connection = sqlite3.connect(":memory:")
            with closing(connection), ctx.transaction(connection):
                pass

        with shop.app.test() as jobs:
            book.enqueue()

            [failed] = jobs.run_all().failed
            assert r"app.test(store=tmp_path / 'jobs.db')" in str(failed.error)

    def test_a_database_of_the_store_is_refused_with_a_remedy(self, shop: Shop) -> None:
        @shop.app.task(retries=0)
        def book(ctx: Context) -> None:
            with ctx.transaction():
                pass

        with shop.app.test() as jobs:
            book.enqueue()

            assert "Jobs live in memory" in str(jobs.run_all().failed[0].error)
            with pytest.raises(Unsupported, match="no database to connect to"):
                shop.app.connect()


class TestLifespan:
    def test_its_state_is_there_for_each_round_of_runs(self, shop: Shop) -> None:
        events: list[str] = []

        @shop.app.lifespan
        async def resources(app: Shigoto) -> AsyncIterator[str]:
            events.append("opened")
            yield "pool"
            events.append("closed")

        @shop.app.task
        def use(ctx: Context) -> str:
            events.append("used")
            return str(ctx.state)

        @shop.app.task
        async def ause(ctx: Context) -> str:
            return str(ctx.state)

        with shop.app.test() as jobs:
            jobs.run_all()
            assert events == []
            handles = [use.enqueue(), use.enqueue(), ause.enqueue()]
            jobs.run_all()

            assert [handle.result() for handle in handles] == ["pool"] * 3
        assert events == ["opened", "used", "used", "closed"]

    async def test_it_is_entered_on_the_running_loop(self, shop: Shop) -> None:
        loops: list[asyncio.AbstractEventLoop] = []

        @shop.app.lifespan
        async def resources(app: Shigoto) -> AsyncIterator[None]:
            loops.append(asyncio.get_running_loop())
            yield
            loops.append(asyncio.get_running_loop())

        with shop.app.test() as jobs:
            await shop.anote.aenqueue("a")
            await jobs.arun_all()

        assert loops == [asyncio.get_running_loop()] * 2

    def test_a_state_of_the_tests_own_stands_in_for_it(self, shop: Shop) -> None:
        @shop.app.lifespan
        async def resources(app: Shigoto) -> AsyncIterator[None]:
            shop.done.append("entered")
            yield

        @shop.app.task
        def use(ctx: Context) -> str:
            return str(ctx.state)

        with shop.app.test(state="fake") as jobs:
            handle = use.enqueue()
            jobs.run_all()

            assert handle.result() == "fake"
        assert shop.done == []

    def test_one_that_fails_is_told_and_the_job_given_back(self, shop: Shop) -> None:
        def open_pool() -> str:
            raise OSError("no pool")

        @shop.app.lifespan
        async def resources(app: Shigoto) -> AsyncIterator[str]:
            yield open_pool()

        with shop.app.test() as jobs:
            handle = shop.note.enqueue("a")
            with pytest.raises(DeclarationError, match="no pool"):
                jobs.run_all()

            assert (handle.status(), handle.attempts()) == (State.PENDING, [])
