"""Promises about jobs that are not wanted any more: at once, as a request, or by force."""

import pytest

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.job import State
from shigoto.model.time import to_datetime
from shigoto.model.worker import Ending, Verdict

NOT_A_SUCCESS = [ending for ending in Ending if ending is not Ending.COMPLETED]


class TestCancel:
    """T11, T12, T13."""

    @pytest.mark.parametrize("delay", [0, 60_000])
    def test_a_waiting_job_is_cancelled_at_once(self, store: EngineUnderTest, delay: int) -> None:
        job = store.enqueue(delay=delay)

        assert store.engine.run(store.engine.cancel([job.id])) == [State.CANCELLED]

        cancelled = store.job(job)
        assert (cancelled.state, cancelled.started_at) == (State.CANCELLED, None)
        assert cancelled.finished_at == to_datetime(store.clock.now)
        assert (store.counts().pending, store.counts().scheduled, store.counts().cancelled) == (0, 0, 1)

    def test_a_running_job_is_only_asked_to_stop(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)

        assert store.engine.run(store.engine.cancel([lease.id])) == [State.PROCESSING]

        job = store.job(lease)
        assert (job.state, job.cancel_requested_at) == (State.PROCESSING, to_datetime(store.clock.now))

    def test_the_first_request_is_the_one_that_is_kept(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.cancel(lease)
        asked = store.job(lease).cancel_requested_at
        store.clock.advance(5)

        store.cancel(lease)

        assert store.job(lease).cancel_requested_at == asked

    @pytest.mark.parametrize("ending", NOT_A_SUCCESS)
    def test_once_asked_every_end_but_success_is_cancelled(
        self, store: EngineUnderTest, ending: Ending
    ) -> None:
        """A10."""
        worker = store.announce()
        lease = store.start(worker)
        store.cancel(lease)

        assert store.settle(worker, lease, ending, delay=5) is Verdict.ACCEPTED

        job = store.job(lease)
        assert (job.state, job.failure_kind) == (State.CANCELLED, None)
        assert store.outcomes(lease) == [ending.name.lower()]

    def test_success_wins_and_both_facts_are_kept(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.cancel(lease)

        store.settle(worker, lease, Ending.COMPLETED, result="1")

        job = store.job(lease)
        assert (job.state, job.result) == (State.COMPLETED, "1")
        assert job.cancel_requested_at == to_datetime(store.clock.now)

    @pytest.mark.parametrize(
        ("ending", "state"),
        [
            (Ending.COMPLETED, State.COMPLETED),
            (Ending.FAILED, State.FAILED),
            (Ending.CANCELLED, State.CANCELLED),
        ],
    )
    def test_an_ended_job_stays_as_it_is(self, store: EngineUnderTest, ending: Ending, state: State) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, ending)
        before = store.job(lease)
        store.clock.advance(5)

        assert store.engine.run(store.engine.cancel([lease.id])) == [state]
        assert store.job(lease) == before

    def test_answers_come_in_order_and_unknown_ids_are_none(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        running = store.start(worker)
        waiting = store.enqueue()

        answers = store.engine.run(store.engine.cancel([store.new_id(), waiting.id, running.id, waiting.id]))

        assert answers == [None, State.CANCELLED, State.PROCESSING, State.CANCELLED]


class TestForce:
    """T14: the only way to take a lease from a worker that lives."""

    def test_a_running_job_is_cancelled_at_once(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.clock.advance(70)

        assert store.cancel(lease, force=True) is State.CANCELLED

        job = store.job(lease)
        assert (job.state, job.worker, job.failure_kind) == (State.CANCELLED, None, None)
        assert job.cancel_requested_at == job.finished_at == to_datetime(store.clock.now)
        assert (store.counts().processing, store.counts().cancelled) == (0, 1)

    def test_the_record_says_that_its_effects_may_have_happened(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)

        store.cancel(lease, force=True)

        [attempt] = store.engine.run(store.engine.attempts(lease.id))
        assert (attempt.token, attempt.outcome) == (lease.token, "cancelled")
        assert attempt.error == store.job(lease).error == "cancelled by force; its effects may have happened"

    @pytest.mark.parametrize("ending", Ending)
    def test_its_worker_hears_that_the_lease_is_lost(self, store: EngineUnderTest, ending: Ending) -> None:
        """I4."""
        worker = store.announce()
        lease = store.start(worker)
        store.cancel(lease, force=True)

        assert not store.report(worker, lease, progress=0.5)
        assert store.settle(worker, lease, ending, result="1") is Verdict.LOST
        assert store.job(lease).state is State.CANCELLED
        assert store.job(lease).result is None

    def test_an_earlier_request_is_kept(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.cancel(lease)
        asked = to_datetime(store.clock.now)
        store.clock.advance(5_000)

        store.cancel(lease, force=True)

        assert store.job(lease).cancel_requested_at == asked

    def test_jobs_that_do_not_run_need_no_force(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        done = store.start(worker)
        store.settle(worker, done, Ending.COMPLETED)
        waiting = store.enqueue()

        ids = [waiting.id, done.id, store.new_id()]

        assert store.engine.run(store.engine.cancel(ids, force=True)) == [
            State.CANCELLED,
            State.COMPLETED,
            None,
        ]
        assert store.outcomes(waiting) == []

    def test_it_can_be_retried_and_its_old_lease_stays_void(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.cancel(lease, force=True)
        store.retry(lease)

        [again] = store.claim(worker)

        assert (again.id, again.token) == (lease.id, lease.token + 1)
        assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.LOST
        assert store.settle(worker, again, Ending.COMPLETED) is Verdict.ACCEPTED
