"""Time and death in `app.test()`: the clock, due times, expiry, retention, and workers that die."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shigoto import (
    Context,
    FailureKind,
    JobError,
    OptionInvalid,
    Shigoto,
    State,
)
from tests.unit.testing.testing_shop import EARLY, Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


class TestClock:
    def test_it_stands_still_and_moves_as_told(self, shop: Shop) -> None:
        with shop.app.test(now=EARLY) as jobs:
            assert jobs.now == EARLY
            jobs.advance(timedelta(hours=1))
            jobs.advance(90.5)
            jobs.advance(days=1, milliseconds=5)

            assert jobs.now == EARLY + timedelta(days=1, hours=1, seconds=90, milliseconds=505)
            assert shop.note.enqueue("a").job().created_at == jobs.now

    def test_it_does_not_go_back_or_take_nonsense(self, shop: Shop) -> None:
        nonsense: dict[str, Any] = {"weeks": 1}
        with shop.app.test() as jobs:
            with pytest.raises(OptionInvalid):
                jobs.advance(-1)
            with pytest.raises(OptionInvalid):
                jobs.advance(hours=-1)
            with pytest.raises(OptionInvalid, match="advance takes days, hours"):
                jobs.advance(**nonsense)

    def test_it_starts_at_the_present_and_instants_mean_what_they_say(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            assert abs(jobs.now - datetime.now(UTC)) < timedelta(seconds=10)
            shop.note.using(run_at=datetime.now(UTC)).enqueue("now")
            shop.note.using(run_at=datetime.now(UTC) + timedelta(hours=1)).enqueue("in an hour")
            jobs.run_all()
            assert shop.done == ["now"]

            jobs.advance(hours=1)
            jobs.run_all()

        assert shop.done == ["now", "in an hour"]

    def test_jobs_expire(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            handle = shop.note.using(expires=60).enqueue("a")
            jobs.advance(61)
            jobs.run_all()

            assert (handle.job().failure_kind, shop.done) == (FailureKind.EXPIRED, [])

    def test_retention_ends_but_the_test_remembers(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            handle = shop.note.enqueue("a")
            jobs.run_all()
            jobs.advance(days=8)

            assert shop.app.find() == []
            [job] = jobs.assert_enqueued(shop.note)
            assert (job.id, job.state) == (handle.id, State.COMPLETED)

    def test_jobs_that_nobody_knows_fail_if_the_app_says_so(self) -> None:
        app = Shigoto("memory:", unknown_after=timedelta(hours=1))

        @app.task
        def known() -> None: ...

        with app.test() as jobs:
            known.enqueue()
            handle = app.enqueue_by_name("elsewhere", {}, allow_unknown=True)
            jobs.advance(hours=2)

            assert handle.job().failure_kind is FailureKind.UNKNOWN_TASK
            assert len(jobs.run_all().completed) == 1


class TestCrash:
    """S0-75: what a handler does when it runs a second time."""

    def test_after_the_handler_the_job_runs_again(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            handle = shop.note.enqueue("a")
            job = jobs.crash(shop.note)

            assert shop.done == ["a"]
            assert (job.id, job.state, job.crashes, job.suspect) == (handle.id, State.PENDING, 1, True)
            assert (job.failures, job.attempt) == (0, 1)

            jobs.run_all()

            assert shop.done == ["a", "a"]
            assert handle.result() == "A"
            assert handle.job().suspect is False

    def test_before_the_handler_nothing_has_happened(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            handle = shop.note.enqueue("a")
            assert jobs.crash(handle, when="before").crashes == 1
            assert shop.done == []

            jobs.run_all()

        assert shop.done == ["a"]

    def test_during_the_handler_its_checkpoint_is_kept(self, shop: Shop) -> None:
        @shop.app.task
        def count(ctx: Context) -> None:
            for number in range(ctx.resume_from or 0, 3):
                shop.done.append(number)
                ctx.checkpoint(number + 1)

        @shop.app.task
        async def acount(ctx: Context) -> None:
            for number in range(ctx.resume_from or 0, 3):
                shop.done.append(number)
                await ctx.acheckpoint(number + 1)

        with shop.app.test() as jobs:
            for task in (count, acount):
                task.enqueue()
                jobs.crash(task, when="during")
                assert shop.done == [0]
                jobs.run_all()
                assert shop.done == [0, 1, 2]
                shop.done.clear()

    def test_during_needs_a_checkpoint(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            shop.note.enqueue("a")
            with pytest.raises(JobError, match="made none"):
                jobs.crash(shop.note, when="during")

    def test_what_the_handler_has_enqueued_is_there(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            shop.chain.enqueue(1)
            jobs.crash(shop.chain)

            jobs.assert_enqueued(shop.chain.call(0), count=1)
            jobs.run_all()
            jobs.assert_enqueued(shop.chain.call(0), count=2)

    def test_repeated_crashes_quarantine_the_job(self, shop: Shop) -> None:
        """One that makes it a suspect, and then as many as `max_crashes` while it runs alone."""
        with shop.app.test() as jobs:
            handle = shop.note.using(max_crashes=2).enqueue("a")
            states = [jobs.crash(handle).state for _ in range(3)]

            assert states == [State.PENDING, State.PENDING, State.FAILED]
            assert handle.job().failure_kind is FailureKind.CRASH_LOOP
            assert len(jobs.run_all()) == 0

    def test_one_job_among_others_can_be_meant(self, shop: Shop) -> None:
        with shop.app.test() as jobs:
            handles = [shop.note.enqueue(word) for word in "abc"]
            assert jobs.crash(handles[2].job()).id == handles[2].id
            assert shop.done == ["c"]

            jobs.run_all()

            assert sorted(shop.done) == ["a", "b", "c", "c"]
            assert [handle.job().crashes for handle in handles] == [0, 0, 1]

    def test_the_clock_moves_by_the_lease(self, shop: Shop) -> None:
        with shop.app.test(now=EARLY) as jobs:
            shop.note.enqueue("a")
            jobs.crash(shop.note)

            assert timedelta(seconds=30) < jobs.now - EARLY < timedelta(seconds=46)

    def test_what_is_not_due_cannot_crash(self, shop: Shop) -> None:
        wrong: Any = "note"
        with shop.app.test() as jobs:
            later = shop.note.using(delay=60).enqueue("a")
            with pytest.raises(JobError, match="No job of task 'note' is due"):
                jobs.crash(shop.note)
            with pytest.raises(JobError, match=r"due in 60 s\. Call jobs\.advance\(\) first"):
                jobs.crash(later)
            with pytest.raises(OptionInvalid, match="takes a task, a job or a handle"):
                jobs.crash(wrong)
            with pytest.raises(OptionInvalid, match="when"):
                jobs.crash(shop.note, when=wrong)
            shop.anote.enqueue("b")
            done = jobs.run_all().completed[0]
            with pytest.raises(JobError, match="it is completed"):
                jobs.crash(done)

    async def test_it_has_an_async_twin(self, shop: Shop) -> None:
        async with shop.app.test() as jobs:
            await shop.anote.aenqueue("a")
            assert (await jobs.acrash(shop.anote)).crashes == 1
            await jobs.arun_all()

        assert shop.done == ["a", "a"]
