"""Promises about jobs that an operator deletes: which go, in which order, and what goes with them."""

from typing import Literal

import pytest

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.job import Counts, FailureKind, JobFilter, State
from shigoto.model.worker import Ending, Verdict


class TestDelete:
    """Jobs go for good; what runs is left alone."""

    def test_only_the_named_states_go(self, store: EngineUnderTest) -> None:
        """S0-46."""
        worker = store.announce()
        completed, failed = store.start(worker), store.start(worker)
        store.settle(worker, completed, Ending.COMPLETED)
        store.settle(worker, failed, Ending.FAILED)
        waiting = store.enqueue()

        assert store.delete(JobFilter(state=State.COMPLETED, limit=10)) == 1

        assert [store.stored(job) for job in (completed, failed, waiting)] == [False, True, True]

    def test_scheduled_jobs_are_pending_jobs(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.enqueue()
        store.enqueue(delay=1_000)

        assert store.delete(JobFilter(state=State.PENDING, limit=10)) == 2

        assert store.claim(worker) == []
        assert (store.counts().pending, store.counts().scheduled) == (0, 0)

    def test_only_the_named_queue(self, store: EngineUnderTest) -> None:
        mine, other = store.enqueue(queue="mine"), store.enqueue(queue="other")

        assert store.delete(JobFilter(state=State.PENDING, queue="mine")) == 1

        assert (store.stored(mine), store.stored(other)) == (False, True)

    def test_at_most_the_limit_and_the_oldest_first(self, store: EngineUnderTest) -> None:
        """S0-46."""
        jobs = [store.enqueue(priority=priority) for priority in (1, 2, 3)]

        assert store.delete(JobFilter(state=State.PENDING, limit=2)) == 2

        assert [store.stored(job) for job in jobs] == [False, False, True]

    def test_without_a_state_all_that_may_go_share_the_limit(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.settle(worker, store.start(worker), Ending.COMPLETED)
        waiting = store.enqueue()
        store.settle(worker, store.claim(worker)[0], Ending.FAILED)
        newest = store.enqueue()

        assert store.delete(JobFilter(limit=2)) == 2

        assert (store.stored(waiting), store.stored(newest)) == (False, True)

    def test_a_running_job_is_never_deleted(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)

        for wanted in (
            JobFilter(),
            JobFilter(state=State.PROCESSING),
            JobFilter(worker="worker"),
            JobFilter(task="work"),
        ):
            assert store.delete(wanted) == 0
        assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.ACCEPTED

    @pytest.mark.parametrize("view", ["scheduled", "retrying"])
    def test_views_of_pending_go_by_their_names(
        self, store: EngineUnderTest, view: Literal["scheduled", "retrying"]
    ) -> None:
        worker = store.announce()
        failed_before = store.start(worker)
        store.settle(worker, failed_before, Ending.ERRORED)
        later, ready = store.enqueue(delay=1_000), store.enqueue()

        assert store.delete(JobFilter(state=view)) == 1

        gone = later if view == "scheduled" else failed_before
        left = {job.number for job in (failed_before, later, ready)} - {gone.number}
        assert {job.number for job in store.find()} == left
        assert store.counts().pending == 2

    def test_whatever_a_filter_can_say(self, store: EngineUnderTest) -> None:
        """S0-46."""
        worker = store.announce()
        failed = [store.start(worker, payload='{"shop":7}'), store.start(worker, payload='{"shop":8}')]
        for lease in failed:
            store.settle(worker, lease, Ending.FAILED, error="no such host", failure_kind=FailureKind.TIMEOUT)
        store.clock.advance(1)
        tagged = store.enqueue(queue="mail", tenant="t", key="k", tags='["red"]', payload='{"shop":7}')

        assert store.delete(JobFilter(error="HOST", args=(("shop", "9"),))) == 0
        assert store.delete(JobFilter(failure_kind=FailureKind.ERROR)) == 0
        assert store.delete(JobFilter(since=store.clock.now + 1)) == 0
        assert store.delete(JobFilter(error="host", failure_kind=FailureKind.TIMEOUT, limit=1)) == 1
        assert [store.stored(lease) for lease in failed] == [False, True]
        assert store.delete(JobFilter(tenant="t", key="k", tag="red", since=store.clock.now)) == 1
        assert (store.stored(tagged), store.stored(failed[1])) == (False, True)
        assert store.delete(JobFilter(args=(("shop", "8"),))) == 1

    def test_args_count_towards_the_limit_only_where_they_match(self, store: EngineUnderTest) -> None:
        jobs = [store.enqueue(payload=f'{{"shop":{index % 2}}}') for index in range(6)]

        assert store.delete(JobFilter(args=(("shop", "1"),), limit=2)) == 2

        assert [store.stored(job) for job in jobs] == [True, False, True, False, True, True]

    def test_jobs_from_a_number_on_can_be_kept(self, store: EngineUnderTest) -> None:
        first, second = store.enqueue(), store.enqueue()

        assert store.delete(JobFilter(before=second.number)) == 1

        assert (store.stored(first), store.stored(second)) == (False, True)

    def test_what_was_looked_at_before_can_be_passed_over(self, store: EngineUnderTest) -> None:
        jobs = [store.enqueue(payload=f'{{"shop":{index % 2}}}') for index in range(6)]
        first, _, third, fourth, fifth, _ = [job.number for job in jobs]

        assert store.deletable(JobFilter(args=(("shop", "0"),), limit=2)) == [first, third]
        assert store.deletable(JobFilter(args=(("shop", "0"),), limit=2), after=third) == [fifth]
        assert store.deletable(JobFilter(state=State.PENDING, before=fifth), after=third) == [fourth]
        assert store.deletable(JobFilter(), after=jobs[-1].number) == []

    def test_looking_deletes_nothing(self, store: EngineUnderTest) -> None:
        job = store.enqueue()

        assert store.deletable(JobFilter()) == store.deletable(JobFilter()) == [job.number]
        assert store.stored(job)

    def test_a_job_that_has_left_the_named_states_meanwhile_stays(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        retried, failed = store.start(worker), store.start(worker)
        for lease in (retried, failed):
            store.settle(worker, lease, Ending.FAILED)
        numbers = store.deletable(JobFilter(state=State.FAILED))
        store.retry(retried)

        assert store.engine.run(store.engine.delete(numbers, [State.FAILED])) == 1

        assert (store.stored(retried), store.stored(failed)) == (True, False)

    def test_one_that_has_started_meanwhile_stays_whatever_is_named(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.enqueue()
        numbers = store.deletable(JobFilter())
        [lease] = store.claim(worker)

        assert store.engine.run(store.engine.delete(numbers, list(State))) == 0
        assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.ACCEPTED

    def test_each_goes_once_and_what_is_not_there_is_no_error(self, store: EngineUnderTest) -> None:
        first, last = store.enqueue().number, store.enqueue().number
        numbers = [first, first, last, last + 1, -1]

        assert store.engine.run(store.engine.delete(numbers, [State.PENDING])) == 2
        assert store.engine.run(store.engine.delete(numbers, [State.PENDING])) == 0
        assert store.engine.run(store.engine.delete([], [State.PENDING])) == 0
        assert store.counts() == Counts()

    @pytest.mark.parametrize("limit", [0, -1])
    def test_no_limit_to_speak_of_deletes_nothing(self, store: EngineUnderTest, limit: int) -> None:
        store.enqueue()

        assert store.delete(JobFilter(limit=limit)) == 0

    def test_the_key_of_a_deleted_job_is_free(self, store: EngineUnderTest) -> None:
        """Also for a mode that never gives a key back by itself."""
        store.enqueue(key="k")

        store.delete(JobFilter(key="k"))

        assert store.enqueue(key="k", key_mode="unsafe_dedupe").status == "inserted"

    def test_history_goes_with_the_job(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.FAILED)

        store.delete(JobFilter(state=State.FAILED, limit=10))

        assert store.outcomes(lease) == []

    def test_a_deleted_job_is_not_counted_any_more(self, store: EngineUnderTest) -> None:
        """S0-40, S0-46."""
        worker = store.announce()
        store.settle(worker, store.start(worker), Ending.COMPLETED)
        store.enqueue(delay=1_000)
        store.enqueue(queue="other")

        assert store.delete(JobFilter(state=State.COMPLETED)) == 1
        assert store.counts() == Counts(pending=1, scheduled=1)
        assert store.delete(JobFilter(queue="default")) == 1
        assert (store.counts(), store.counts("other")) == (Counts(), Counts(pending=1))

    def test_nor_is_one_that_was_stored_or_has_ended_before_or_after_a_sweep(
        self, store: EngineUnderTest
    ) -> None:
        worker = store.announce()
        swept = [store.start(worker) for _ in range(2)]
        store.settle(worker, swept[0], Ending.COMPLETED)
        store.sweep()
        later = [store.start(worker) for _ in range(2)]
        for lease in (swept[1], later[0]):
            store.settle(worker, lease, Ending.COMPLETED)

        store.enqueue()

        assert store.delete(JobFilter(state=State.COMPLETED)) == 3
        for _ in range(2):
            assert store.counts() == Counts(processing=1, pending=1)
            assert store.delete(JobFilter(state=State.COMPLETED)) == 0
            store.sweep()
        store.settle(worker, later[1], Ending.COMPLETED)
        assert store.delete(JobFilter()) == 2
        assert store.counts() == Counts()
