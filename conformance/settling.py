"""Promises about the end of a run: what it means for the job, and who may say it."""

import pytest
from msgspec.structs import replace

from conformance.engine_under_test import EngineUnderTest, ended
from shigoto.model.job import FailureKind, JobFilter, State
from shigoto.model.states import MAX_SNOOZES
from shigoto.model.time import to_datetime
from shigoto.model.worker import UNTOLD, Ending, Verdict


class TestCompleted:
    """T4: the end of the story."""

    def test_a_completed_job_keeps_its_result(self, store: EngineUnderTest) -> None:
        """S0-13, S0-36, S1-16."""
        worker = store.announce()
        lease = store.start(worker)
        store.clock.advance(40)

        verdict = store.settle(worker, lease, Ending.COMPLETED, result='{"pages":3}')

        job = store.job(lease)
        assert verdict is Verdict.ACCEPTED
        assert (job.state, job.result, job.worker) == (State.COMPLETED, '{"pages":3}', None)
        assert job.started_at == to_datetime(store.clock.now - 40)
        assert job.finished_at == to_datetime(store.clock.now)

    def test_a_success_leaves_no_attempt_row(self, store: EngineUnderTest) -> None:
        """A9."""
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.COMPLETED)

        assert store.outcomes(lease) == []

    def test_a_success_after_failures_clears_the_error_and_keeps_the_history(
        self, store: EngineUnderTest
    ) -> None:
        worker = store.announce()
        store.settle(worker, store.start(worker), Ending.ERRORED, error="broke")
        [lease] = store.claim(worker)

        store.settle(worker, lease, Ending.COMPLETED)

        job = store.job(lease)
        assert (job.state, job.error, job.failures, job.attempt) == (State.COMPLETED, None, 1, 2)
        assert store.outcomes(lease) == ["errored"]

    def test_where_the_queue_is_not_told_the_store_knows_it(self, store: EngineUnderTest) -> None:
        """A server takes nobody's word for whose counts change."""
        worker = store.announce()
        leases = [store.start(worker, queue=queue) for queue in ("a", "b", "a", "c")]
        ends = [replace(ended(lease, Ending.COMPLETED, result="null"), queue=UNTOLD) for lease in leases[:3]]
        ends.append(ended(leases[3], Ending.COMPLETED, result="1"))

        assert store.engine.run(store.engine.settle(worker, ends)) == [Verdict.ACCEPTED] * 4

        counts = store.engine.run(store.engine.stats())
        assert {queue: each.completed for queue, each in counts.items()} == {"a": 2, "b": 1, "c": 1}

    def test_nothing_happens_after_completed(self, store: EngineUnderTest) -> None:
        """I3."""
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.COMPLETED, result="1")
        before = store.job(lease)

        for ending in Ending:
            store.settle(worker, lease, ending, result="2", error="late")
        store.cancel(lease)
        store.fence(worker)

        assert store.job(lease) == before


class TestErrored:
    """T5 while there is budget, T6 when it is spent."""

    def test_a_failure_goes_back_in_line_after_its_delay(self, store: EngineUnderTest) -> None:
        """S0-37, S1-17, S1-19."""
        worker = store.announce()
        lease = store.start(worker, max_failures=4)

        store.settle(worker, lease, Ending.ERRORED, error="timed out", delay=300_000)

        job = store.job(lease)
        assert (job.state, job.failures, job.error) == (State.PENDING, 1, "timed out")
        assert (job.started_at, job.finished_at, job.worker) == (None, None, None)
        assert job.run_at == to_datetime(store.clock.now + 300_000)
        assert store.counts().scheduled == 1

    def test_without_a_delay_it_is_ready_at_once(self, store: EngineUnderTest) -> None:
        """S1-19."""
        worker = store.announce()
        lease = store.start(worker)
        store.clock.advance(5)
        store.settle(worker, lease, Ending.ERRORED)

        [again] = store.claim(worker)
        assert (again.id, again.failures, again.run_at) == (lease.id, 1, store.clock.now)

    @pytest.mark.parametrize("max_failures", [1, 4, 6])
    def test_the_last_failure_ends_it(self, store: EngineUnderTest, max_failures: int) -> None:
        """S0-13, S0-37, S0-39, S0-61, S1-10, S1-18 (5 retries are 6 failures), I17."""
        worker = store.announce()
        job = store.enqueue(max_failures=max_failures)

        for _ in range(max_failures):
            [lease] = store.claim(worker)
            store.settle(worker, lease, Ending.ERRORED, error="broke")

        ended_job = store.job(job)
        assert (ended_job.state, ended_job.failures) == (State.FAILED, max_failures)
        assert (ended_job.failure_kind, ended_job.error) == (FailureKind.ERROR, "broke")
        assert ended_job.finished_at == to_datetime(store.clock.now)
        assert store.claim(worker) == []

    def test_the_kind_of_the_last_failure_is_kept(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker, max_failures=1)

        store.settle(worker, lease, Ending.ERRORED, failure_kind=FailureKind.TIMEOUT)

        assert store.job(lease).failure_kind is FailureKind.TIMEOUT

    def test_the_error_is_seen_while_the_job_runs_again(self, store: EngineUnderTest) -> None:
        """S0-10, S0-37."""
        worker = store.announce()
        store.settle(worker, store.start(worker), Ending.ERRORED, error="broke")

        [again] = store.claim(worker)

        assert store.job(again).error == "broke"


class TestFailed:
    """T6: not worth another try."""

    def test_a_failure_for_good_ends_it_whatever_the_budget(self, store: EngineUnderTest) -> None:
        """S0-37, S1-10."""
        worker = store.announce()
        lease = store.start(worker, max_failures=5)

        store.settle(worker, lease, Ending.FAILED, error="no such user", failure_kind=FailureKind.REJECTED)

        job = store.job(lease)
        assert (job.state, job.failures, job.error) == (State.FAILED, 1, "no such user")
        assert job.failure_kind is FailureKind.REJECTED
        assert job.finished_at == to_datetime(store.clock.now)


class TestSnoozedAndReleased:
    """T7, T8: not now; nothing is held against the job."""

    def test_a_snooze_waits_and_costs_no_failure(self, store: EngineUnderTest) -> None:
        """I17."""
        worker = store.announce()
        lease = store.start(worker)

        store.settle(worker, lease, Ending.SNOOZED, delay=9_000)

        job = store.job(lease)
        assert (job.state, job.failures, job.snoozes, job.attempt) == (State.PENDING, 0, 1, 0)
        assert job.run_at == to_datetime(store.clock.now + 9_000)

    def test_snoozing_has_a_bound(self, store: EngineUnderTest) -> None:
        """A7."""
        worker = store.announce()
        job = store.enqueue()

        for _ in range(MAX_SNOOZES):
            [lease] = store.claim(worker)
            store.settle(worker, lease, Ending.SNOOZED)
        assert store.job(job).state is State.PENDING
        [lease] = store.claim(worker)
        store.settle(worker, lease, Ending.SNOOZED)

        assert (store.job(job).state, store.job(job).failure_kind) == (State.FAILED, FailureKind.SNOOZED_OUT)

    def test_a_release_keeps_run_at(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.clock.advance(5_000)

        store.settle(worker, lease, Ending.RELEASED)

        job = store.job(lease)
        assert (job.state, job.failures, job.releases, job.attempt) == (State.PENDING, 0, 1, 0)
        assert job.run_at == to_datetime(lease.run_at)

    def test_a_release_with_a_delay_waits(self, store: EngineUnderTest) -> None:
        """X6."""
        worker = store.announce()
        lease = store.start(worker)

        store.settle(worker, lease, Ending.RELEASED, delay=2_000)

        assert store.claim(worker) == []
        assert store.job(lease).run_at == to_datetime(store.clock.now + 2_000)


class TestGuard:
    """I4: one accepted settlement for each lease, and only by the one who holds it."""

    def test_a_repeated_settlement_is_recognised(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.COMPLETED, result="1")

        assert store.settle(worker, lease, Ending.COMPLETED, result="2") is Verdict.REPEATED
        assert store.job(lease).result == "1"

    def test_it_is_recognised_also_when_the_job_has_moved_on(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.ERRORED)
        store.claim(worker)

        assert store.settle(worker, lease, Ending.ERRORED) is Verdict.REPEATED
        assert (store.job(lease).failures, store.job(lease).state) == (1, State.PROCESSING)

    def test_twice_in_one_batch_is_once(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        failure = ended(lease, Ending.ERRORED)

        verdicts = store.engine.run(store.engine.settle(worker, [failure, failure]))

        assert verdicts == [Verdict.ACCEPTED, Verdict.REPEATED]
        assert store.job(lease).failures == 1

    def test_another_workers_lease_is_refused(self, store: EngineUnderTest) -> None:
        worker, stranger = store.announce(), store.announce()
        lease = store.start(worker)

        assert store.settle(stranger, lease, Ending.COMPLETED) is Verdict.LOST
        assert store.job(lease).state is State.PROCESSING

    def test_an_older_lease_of_the_same_worker_is_refused(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        old = store.start(worker)
        store.settle(worker, old, Ending.RELEASED)
        [new] = store.claim(worker)
        store.settle(worker, new, Ending.RELEASED)

        assert store.settle(worker, old, Ending.COMPLETED) is Verdict.LOST
        assert store.job(old).state is State.PENDING

    @pytest.mark.parametrize("result", [None, '"old"'])
    def test_an_older_lease_of_a_job_that_the_same_worker_runs_again_ends_nothing(
        self, store: EngineUnderTest, result: str | None
    ) -> None:
        """I4."""
        worker = store.announce()
        old = store.start(worker)
        store.settle(worker, old, Ending.RELEASED)
        [new] = store.claim(worker)

        assert store.settle(worker, old, Ending.COMPLETED, result=result) is Verdict.REPEATED
        assert store.job(new).state is State.PROCESSING
        assert store.settle(worker, new, Ending.COMPLETED) is Verdict.ACCEPTED

    def test_a_job_that_is_gone_is_lost(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.COMPLETED)
        store.delete(JobFilter(state=State.COMPLETED, limit=10))

        assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.LOST

    def test_a_lease_that_ran_out_may_still_settle_until_it_is_fenced(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.clock.advance(86_400_000)
        store.sweep()

        assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.ACCEPTED

    def test_any_mix_of_endings_fits_in_one_batch(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        jobs = [store.enqueue(max_failures=2) for _ in Ending]
        leases = store.claim(worker)
        lost = ended(leases[0], Ending.COMPLETED)

        verdicts = store.engine.run(
            store.engine.settle(
                worker,
                [*(ended(lease, ending) for lease, ending in zip(leases, Ending, strict=True)), lost],
            )
        )

        assert verdicts == [Verdict.ACCEPTED] * len(jobs) + [Verdict.REPEATED]
        states = dict(zip(Ending, (store.job(job).state for job in jobs), strict=True))
        assert states == {
            Ending.COMPLETED: State.COMPLETED,
            Ending.ERRORED: State.PENDING,
            Ending.FAILED: State.FAILED,
            Ending.SNOOZED: State.PENDING,
            Ending.RELEASED: State.PENDING,
            Ending.CANCELLED: State.CANCELLED,
            Ending.CRASHED: State.PENDING,
        }

    def test_an_empty_batch_is_fine(self, store: EngineUnderTest) -> None:
        assert store.engine.run(store.engine.settle(store.announce(), [])) == []
