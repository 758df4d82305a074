"""Promises about time: what is due later becomes ready, what is too late fails, what is old goes."""

import pytest

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.job import FailureKind, JobFilter, QueueSettings, State
from shigoto.model.time import Millis, to_datetime
from shigoto.model.worker import Ending, Promoted, SweepOrder

DAY: Millis = 86_400_000


class TestPromote:
    """Due jobs become ready, in order, and the answer says when to come again."""

    def test_a_due_job_becomes_ready(self, store: EngineUnderTest) -> None:
        """S0-32, S0-65."""
        worker = store.announce()
        job = store.enqueue(delay=1_000)
        store.clock.advance(1_000)

        assert store.promote() == Promoted(1, None)
        assert [lease.id for lease in store.claim(worker)] == [job.id]

    def test_not_a_millisecond_early(self, store: EngineUnderTest) -> None:
        """I10."""
        store.enqueue(delay=1_000)
        store.clock.advance(999)

        assert store.promote() == Promoted(0, 1)
        assert store.counts().scheduled == 1

    def test_until_it_is_promoted_a_job_counts_as_scheduled(self, store: EngineUnderTest) -> None:
        store.enqueue(delay=1_000)
        store.clock.advance(5_000)
        assert (store.counts().pending, store.counts().scheduled) == (1, 1)

        store.promote()

        assert (store.counts().pending, store.counts().scheduled) == (1, 0)

    def test_the_answer_names_the_next_due_time(self, store: EngineUnderTest) -> None:
        for delay in (9_000, 1_000, 5_000):
            store.enqueue(delay=delay)
        store.clock.advance(1_500)

        assert store.promote() == Promoted(1, 3_500)

    def test_at_most_the_limit_and_the_earliest_first(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        late, early = store.enqueue(delay=900, priority=9), store.enqueue(delay=800)
        store.clock.advance(1_000)

        assert store.promote(limit=1) == Promoted(1, 0)
        assert [lease.id for lease in store.claim(worker)] == [early.id]
        assert store.promote(limit=1) == Promoted(1, None)
        assert [lease.id for lease in store.claim(worker)] == [late.id]

    def test_nothing_scheduled_is_nothing_to_wait_for(self, store: EngineUnderTest) -> None:
        store.enqueue()

        assert store.promote() == Promoted(0, None)

    def test_a_cancelled_job_is_not_waited_for(self, store: EngineUnderTest) -> None:
        store.cancel(store.enqueue(delay=1_000))

        assert store.promote() == Promoted(0, None)

    def test_a_retry_waits_like_any_other(self, store: EngineUnderTest) -> None:
        """S0-37."""
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.ERRORED, delay=300_000)

        assert store.promote() == Promoted(0, 300_000)
        store.clock.advance(300_000)
        assert store.promote() == Promoted(1, None)
        assert [again.id for again in store.claim(worker)] == [lease.id]

    def test_a_job_scheduled_for_a_paused_queue_is_promoted_and_held(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.engine.run(store.engine.configure(QueueSettings(name="default", paused=True)))
        store.enqueue(delay=1_000)
        store.clock.advance(1_000)

        assert store.promote().count == 1
        assert store.claim(worker) == []


class TestExpiry:
    """T16: what was not started in time fails, and says why."""

    def test_an_expired_job_fails(self, store: EngineUnderTest) -> None:
        job = store.enqueue(expires_in=1_000)
        store.clock.advance(1_001)

        assert store.sweep().expired == 1

        failed = store.job(job)
        assert (failed.state, failed.failure_kind) == (State.FAILED, FailureKind.EXPIRED)
        assert (failed.finished_at, failed.started_at) == (to_datetime(store.clock.now), None)
        assert store.counts().pending == 0

    def test_not_before_it_has_expired(self, store: EngineUnderTest) -> None:
        store.enqueue(expires_in=1_000)
        store.clock.advance(1_000)

        assert store.sweep().expired == 0

    def test_running_jobs_that_are_past_their_expiry_hold_up_nobody(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        for _ in range(3):
            store.start(worker, expires_in=1_000)
        store.enqueue(expires_in=1_000)
        store.clock.advance(1_001)

        assert store.sweep(SweepOrder(batch=2)).expired == 1

    def test_a_scheduled_job_expires_too(self, store: EngineUnderTest) -> None:
        store.enqueue(delay=DAY, expires_in=1_000)
        store.clock.advance(1_001)

        assert store.sweep().expired == 1
        assert store.promote() == Promoted(0, None)

    def test_a_job_that_waits_for_its_retry_expires_too(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker, expires_in=1_000)
        store.settle(worker, lease, Ending.ERRORED, error="broke", delay=5_000)
        store.clock.advance(1_001)

        store.sweep()

        assert (store.job(lease).failure_kind, store.job(lease).error) == (FailureKind.EXPIRED, "broke")

    def test_a_running_job_does_not_expire(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker, expires_in=1_000)
        store.clock.advance(1_001)

        assert store.sweep().expired == 0
        assert store.job(lease).state is State.PROCESSING

    def test_many_expire_batch_by_batch(self, store: EngineUnderTest) -> None:
        for _ in range(5):
            store.enqueue(expires_in=1_000)
        store.clock.advance(1_001)

        sweeps = [store.sweep(SweepOrder(batch=2))]
        while sweeps[-1].more:
            sweeps.append(store.sweep(SweepOrder(batch=2)))

        assert sum(swept.expired for swept in sweeps) == 5
        assert max(swept.expired for swept in sweeps) == 2


class TestRetention:
    """T18: what has ended is kept as long as was said, and no longer."""

    def test_what_is_kept_longer_does_not_shield_what_comes_after_it(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        for ending in [Ending.FAILED] * 5 + [Ending.COMPLETED] * 3:
            store.settle(worker, store.start(worker), ending)
        store.clock.advance(8 * DAY)

        for _ in range(6):
            store.sweep(SweepOrder(batch=2))

        assert (store.counts().failed, store.counts().completed) == (5, 0)

    def test_expiries_of_jobs_that_have_ended_hold_up_nobody(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        for _ in range(4):
            store.settle(worker, store.start(worker, expires_in=1_000), Ending.COMPLETED)
        late = store.enqueue(expires_in=1_000)
        store.clock.advance(1_001)

        sweeps = [store.sweep(SweepOrder(batch=2))]
        while sweeps[-1].more:
            sweeps.append(store.sweep(SweepOrder(batch=2)))

        assert store.job(late).state is State.FAILED

    @pytest.mark.parametrize(
        ("ending", "kept_for"),
        [(Ending.COMPLETED, 7 * DAY), (Ending.FAILED, 30 * DAY), (Ending.CANCELLED, 30 * DAY)],
    )
    def test_each_state_has_its_own_time(
        self, store: EngineUnderTest, ending: Ending, kept_for: Millis
    ) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, ending)

        store.clock.advance(kept_for)
        assert store.sweep().pruned == 0
        store.clock.advance(1)
        assert store.sweep().pruned == 1

        assert not store.stored(lease)
        assert store.find() == []

    def test_a_queue_may_have_its_own_time(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        short, normal = store.enqueue(queue="short"), store.enqueue(queue="normal")
        for lease in store.claim(worker):
            store.settle(worker, lease, Ending.COMPLETED)
        store.engine.run(store.engine.configure(QueueSettings(name="short", keep_completed_for=1_000)))
        store.clock.advance(1_001)

        assert store.sweep().pruned == 1
        assert (store.stored(short), store.stored(normal)) == (False, True)

    def test_a_queue_may_keep_for_longer(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.COMPLETED)
        store.engine.run(store.engine.configure(QueueSettings(name="default", keep_completed_for=90 * DAY)))
        store.clock.advance(30 * DAY)

        assert store.sweep().pruned == 0

    def test_history_goes_with_the_job(self, store: EngineUnderTest) -> None:
        """I18."""
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.FAILED)
        store.clock.advance(31 * DAY)
        store.sweep()

        assert store.outcomes(lease) == []
        assert store.counts().failed == 0

    def test_what_has_not_ended_is_never_pruned(self, store: EngineUnderTest) -> None:
        """I1."""
        worker = store.announce()
        lease = store.start(worker)
        store.enqueue()
        store.enqueue(delay=DAY)
        store.clock.advance(365 * DAY)
        store.beat(worker, lease)

        assert store.sweep().pruned == 0
        assert len(store.find(JobFilter())) == 3

    def test_many_are_pruned_batch_by_batch(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        for _ in range(5):
            store.settle(worker, store.start(worker), Ending.COMPLETED)
        store.clock.advance(8 * DAY)

        sweeps = [store.sweep(SweepOrder(batch=2))]
        while sweeps[-1].more:
            sweeps.append(store.sweep(SweepOrder(batch=2)))

        assert sum(swept.pruned for swept in sweeps) == 5
        assert max(swept.pruned for swept in sweeps) == 2

    def test_an_id_that_was_pruned_is_new_again(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.COMPLETED)
        store.clock.advance(8 * DAY)
        store.sweep()

        assert store.enqueue(id=lease.id).status == "inserted"
