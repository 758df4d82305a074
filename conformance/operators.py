"""Promises to operators: retry, pause."""

import pytest

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.errors import JobNotFound, JobNotRetryable
from shigoto.model.job import FailureKind, QueueSettings, State
from shigoto.model.time import to_datetime
from shigoto.model.worker import Ending, Verdict


class TestRetry:
    """T15."""

    @pytest.mark.parametrize("ending", [Ending.FAILED, Ending.CANCELLED])
    def test_an_ended_job_is_ready_again(self, store: EngineUnderTest, ending: Ending) -> None:
        """S0-72."""
        worker = store.announce()
        lease = store.start(worker, payload='"p"', run_at=store.clock.now - 1_000)
        store.settle(worker, lease, ending, error="broke")
        store.clock.advance(60_000)

        retried = store.retry(lease)

        job = store.job(lease)
        assert (retried.id, retried.number) == (lease.id, lease.number)
        assert (job.state, job.run_at) == (State.PENDING, to_datetime(store.clock.now))
        assert (job.finished_at, job.started_at, job.failure_kind) == (None, None, None)
        [again] = store.claim(worker)
        assert (again.id, again.payload, again.token) == (lease.id, '"p"', lease.token + 1)

    def test_the_budget_is_new_and_the_history_is_kept(self, store: EngineUnderTest) -> None:
        """A11."""
        worker = store.announce()
        job = store.enqueue(max_failures=2)
        for _ in range(2):
            [lease] = store.claim(worker)
            store.settle(worker, lease, Ending.ERRORED, error="broke")

        store.retry(job)

        assert (store.job(job).failures, store.job(job).error) == (0, None)
        assert store.outcomes(job) == ["errored", "errored"]
        [lease] = store.claim(worker)
        store.settle(worker, lease, Ending.ERRORED)
        assert store.job(job).state is State.PENDING

    def test_a_quarantined_job_has_its_crashes_forgiven_but_runs_alone(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        job = store.enqueue(max_crashes=2)
        for _ in range(3):
            [lease] = store.claim(worker)
            store.settle(worker, lease, Ending.CRASHED, alone=lease.solo)
        assert store.job(job).failure_kind is FailureKind.CRASH_LOOP

        store.retry(job)

        [lease] = store.claim(worker)
        assert (lease.solo, store.job(job).crashes) == (True, 3)
        store.settle(worker, lease, Ending.CRASHED)
        assert store.job(job).state is State.PENDING

    def test_attempts_go_on_counting_where_they_were(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        for _ in range(3):
            store.settle(worker, lease, Ending.SNOOZED)
            [lease] = store.claim(worker)
        store.settle(worker, lease, Ending.FAILED)

        store.retry(lease)

        [again] = store.claim(worker)
        assert (lease.attempt, again.attempt) == (1, 2)

    def test_a_snoozed_out_job_may_snooze_again(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.SNOOZED)
        store.cancel(lease)

        store.retry(lease)

        assert store.job(lease).snoozes == 0

    def test_the_checkpoint_is_still_there(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.report(worker, lease, checkpoint='"page 9"')
        store.settle(worker, lease, Ending.FAILED)

        store.retry(lease)

        assert store.claim(worker)[0].checkpoint == '"page 9"'

    def test_an_old_request_to_cancel_is_forgotten(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.cancel(lease)
        store.settle(worker, lease, Ending.CANCELLED)

        store.retry(lease)

        assert store.job(lease).cancel_requested_at is None
        [again] = store.claim(worker)
        assert store.beat(worker, again).cancels == ()
        store.settle(worker, again, Ending.ERRORED)
        assert store.job(lease).state is State.PENDING

    def test_an_expired_job_does_not_expire_again(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        job = store.enqueue(expires_in=1_000)
        store.clock.advance(1_001)
        store.sweep()

        store.retry(job)

        assert store.sweep().expired == 0
        assert [lease.id for lease in store.claim(worker)] == [job.id]

    def test_an_expiry_that_passed_while_the_job_was_over_is_forgotten(self, store: EngineUnderTest) -> None:
        job = store.enqueue(expires_in=1_000)
        store.cancel(job)
        store.clock.advance(1_001)

        store.retry(job)

        assert store.sweep().expired == 0
        assert store.job(job).state is State.PENDING

    def test_an_expiry_that_is_to_come_again_after_the_clock_was_set_back_stands(
        self, store: EngineUnderTest
    ) -> None:
        job = store.enqueue(expires_in=1_000)
        store.clock.advance(100_000)
        store.sweep()
        store.clock.advance(-99_500)

        store.retry(job)

        store.clock.advance(1_000)
        assert store.sweep().expired == 1

    def test_an_expiry_that_is_still_to_come_stands(self, store: EngineUnderTest) -> None:
        job = store.enqueue(expires_in=9_000)
        expires_at = store.job(job).expires_at
        store.cancel(job)

        store.retry(job)

        assert store.job(job).expires_at == expires_at

    def test_a_late_settlement_of_the_run_before_changes_nothing(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.FAILED)
        store.retry(lease)

        assert store.settle(worker, lease, Ending.FAILED) is Verdict.REPEATED
        assert store.job(lease).state is State.PENDING

    def test_an_unknown_job_is_refused(self, store: EngineUnderTest) -> None:
        with pytest.raises(JobNotFound):
            store.engine.run(store.engine.retry([store.new_id()]))

    def test_what_has_not_ended_badly_is_refused(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        completed, running = store.start(worker), store.start(worker)
        store.settle(worker, completed, Ending.COMPLETED)
        waiting = store.enqueue()

        for job in (completed, running, waiting):
            state = store.job(job).state
            remedy = (
                "Use rerun, which makes a new job like it." if state.terminal else "It goes on by itself."
            )
            text = f"^Job {job.id} is {state}; only failed and cancelled jobs can be retried. {remedy}$"
            with pytest.raises(JobNotRetryable, match=text):
                store.retry(job)

    def test_all_or_none(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        failed = store.start(worker)
        store.settle(worker, failed, Ending.FAILED)
        waiting = store.enqueue()

        with pytest.raises(JobNotRetryable):
            store.engine.run(store.engine.retry([failed.id, waiting.id]))

        assert store.job(failed).state is State.FAILED

    def test_the_same_job_named_twice_is_retried_once(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker, key="k")
        store.settle(worker, lease, Ending.FAILED)

        retried = store.engine.run(store.engine.retry([lease.id, lease.id]))

        assert [job.id for job in retried] == [lease.id, lease.id]
        assert store.counts().pending == 1


class TestConfigure:
    """An operator's word on a queue."""

    def test_settings_are_kept_whole(self, store: EngineUnderTest) -> None:
        said = QueueSettings(
            name="q",
            paused=True,
            keep_completed_for=1,
            keep_failed_for=2,
            keep_cancelled_for=3,
            max_pending=4,
        )

        store.engine.run(store.engine.configure(said))

        assert store.engine.run(store.engine.settings()) == [said]

    def test_the_next_word_replaces_the_last(self, store: EngineUnderTest) -> None:
        store.engine.run(
            store.engine.configure(QueueSettings(name="q", paused=True, keep_failed_for=2, max_pending=9))
        )

        store.engine.run(store.engine.configure(QueueSettings(name="q")))

        assert store.engine.run(store.engine.settings()) == [QueueSettings(name="q")]

    def test_a_paused_queue_takes_jobs_and_lets_running_ones_end(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.engine.run(store.engine.configure(QueueSettings(name="default", paused=True)))

        assert store.enqueue().status == "inserted"
        assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.ACCEPTED
