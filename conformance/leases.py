"""Promises about workers that live, die or only seem to: beat, fence, sweep, rescue."""

import pytest

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.job import State
from shigoto.model.time import MAX_HOLD, to_datetime
from shigoto.model.worker import CLAIM_DEADLINE, LEASE, Announcement, Ending, Orders, SweepOrder, Verdict


class TestBeat:
    """A beat renews the lease and brings back what the worker must know."""

    def test_a_beat_renews_the_lease(self, store: EngineUnderTest) -> None:
        worker = store.announce(lease=20_000)
        store.clock.advance(15_000)

        assert store.beat(worker) == Orders(fenced=False)

        [record] = store.engine.run(store.engine.workers())
        assert record.lease_until == to_datetime(store.clock.now + 20_000)

    def test_a_late_beat_counts_if_nobody_has_fenced(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.clock.advance(10 * LEASE)

        assert not store.beat(worker, lease).fenced
        assert store.sweep(fence=[worker]).fenced == ()
        assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.ACCEPTED

    def test_a_fenced_worker_is_told_so(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.fence(worker)

        assert store.beat(worker) == Orders(fenced=True)

    def test_a_worker_that_nobody_knows_is_as_good_as_fenced(self, store: EngineUnderTest) -> None:
        assert store.beat(store.new_id()).fenced

    def test_a_request_to_cancel_is_brought(self, store: EngineUnderTest) -> None:
        worker, other = store.announce(), store.announce()
        lease, quiet = store.start(worker), store.start(worker)
        elsewhere = store.start(other)
        for asked in (lease, elsewhere):
            store.cancel(asked)

        assert store.beat(worker, lease, quiet).cancels == ((lease.number, lease.token),)

    def test_it_is_brought_until_the_job_has_ended(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.cancel(lease)

        assert [len(store.beat(worker, lease).cancels) for _ in range(2)] == [1, 1]
        store.settle(worker, lease, Ending.CANCELLED)
        assert store.beat(worker).cancels == ()

    def test_a_lease_that_was_taken_away_is_brought_too(self, store: EngineUnderTest) -> None:
        """Not one that the worker itself has settled: its handler may still be busy after its transaction."""
        worker, other = store.announce(), store.announce()
        taken, kept, ended = (store.start(worker) for _ in range(3))
        elsewhere = store.start(other)
        store.cancel(taken, force=True)
        store.settle(worker, ended, Ending.COMPLETED)

        orders = store.beat(worker, taken, kept, ended, elsewhere)

        assert orders.lost == tuple((lease.number, lease.token) for lease in (taken, elsewhere))
        assert orders.cancels == ()

    def test_an_older_lease_of_a_job_that_it_runs_is_lost(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        old = store.start(worker)
        store.cancel(old, force=True)
        store.retry(old)
        [new] = store.claim(worker)

        assert store.beat(worker, old, new).lost == ((old.number, old.token),)

    def test_one_who_does_not_know_what_is_held_renews_and_brings_cancels_and_no_more(
        self, store: EngineUnderTest
    ) -> None:
        worker = store.announce()
        lease, asked = store.start(worker), store.start(worker)
        store.cancel(asked)
        store.clock.advance(CLAIM_DEADLINE + 1)

        orders = store.engine.run(store.engine.beat(worker, None))

        assert orders == Orders(fenced=False, cancels=((asked.number, asked.token),))
        assert store.job(lease).state is State.PROCESSING
        [record] = store.engine.run(store.engine.workers())
        assert record.lease_until == to_datetime(store.clock.now + LEASE)


class TestStrays:
    """A claim whose answer was lost is given back, and counts as nothing."""

    def test_what_the_worker_does_not_know_of_is_released(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        known, stray = store.start(worker), store.start(worker)
        store.clock.advance(CLAIM_DEADLINE + 1)

        assert store.beat(worker, known).released == 1

        job = store.job(stray)
        assert (job.state, job.failures, job.crashes, job.releases) == (State.PENDING, 0, 0, 1)
        assert store.job(known).state is State.PROCESSING
        assert store.outcomes(stray) == [], "nobody has run it"

    def test_not_before_the_claim_deadline(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.clock.advance(CLAIM_DEADLINE)

        assert store.beat(worker).released == 0
        assert store.job(lease).state is State.PROCESSING

    def test_an_older_lease_of_the_same_job_does_not_cover_it(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        old = store.start(worker)
        store.settle(worker, old, Ending.RELEASED)
        store.claim(worker)
        store.clock.advance(CLAIM_DEADLINE + 1)

        assert store.beat(worker, old).released == 1

    def test_a_late_settlement_of_a_stray_is_lost_not_repeated(self, store: EngineUnderTest) -> None:
        """Nothing of that run was stored, so its worker must not believe it was."""
        worker = store.announce()
        lease = store.start(worker)
        store.clock.advance(CLAIM_DEADLINE + 1)
        store.beat(worker)

        assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.LOST

    def test_a_stray_that_was_asked_to_stop_is_cancelled(self, store: EngineUnderTest) -> None:
        """A10."""
        worker = store.announce()
        lease = store.start(worker)
        store.cancel(lease)
        store.clock.advance(CLAIM_DEADLINE + 1)

        orders = store.beat(worker)

        assert (orders.cancels, orders.released) == ((), 1)
        assert store.job(lease).state is State.CANCELLED

    def test_other_workers_jobs_are_no_strays(self, store: EngineUnderTest) -> None:
        worker, other = store.announce(), store.announce()
        lease = store.start(worker)
        store.clock.advance(CLAIM_DEADLINE + 1)

        assert store.beat(other).released == 0
        assert store.job(lease).state is State.PROCESSING


class TestFence:
    """Only the dead are fenced, and the fenced never come back."""

    def test_a_sweep_names_the_workers_that_seem_dead(self, store: EngineUnderTest) -> None:
        dead, alive = store.announce(), store.announce()
        store.clock.advance(LEASE)
        assert store.sweep().expired_workers == ()
        store.beat(alive)
        store.clock.advance(1)

        assert store.sweep().expired_workers == (dead,)

    def test_naming_is_not_fencing(self, store: EngineUnderTest) -> None:
        """A second look decides, so that one paused sweeper cannot fence the living."""
        worker = store.announce()
        lease = store.start(worker)
        store.clock.advance(LEASE + 1)

        swept = store.sweep()

        assert (swept.fenced, swept.rescued) == ((), ())
        assert store.job(lease).state is State.PROCESSING

    def test_an_expired_worker_is_fenced_on_order(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.clock.advance(LEASE + 1)

        swept = store.sweep(fence=[worker])

        assert (swept.fenced, swept.expired_workers) == ((worker,), ())
        assert store.engine.run(store.engine.workers()) == []

    def test_one_that_has_beaten_since_is_spared(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.clock.advance(LEASE + 1)
        store.beat(worker, lease)

        swept = store.sweep(fence=[worker])

        assert (swept.fenced, swept.rescued) == ((), ())
        assert store.job(lease).state is State.PROCESSING

    def test_a_worker_is_fenced_once(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.fence(worker)

        assert store.sweep(fence=[worker, store.new_id()]).fenced == ()

    def test_announcing_again_does_not_lift_the_fence(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.fence(worker)
        store.enqueue()

        store.engine.run(
            store.engine.announce(
                Announcement(id=worker, name="w", tasks=("work",), queues=None, slots=1, version="1")
            )
        )

        assert store.beat(worker).fenced
        assert store.claim(worker) == []

    def test_announcing_again_renews_and_replaces_what_was_said(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        started = to_datetime(store.clock.now)
        store.clock.advance(20_000)

        store.engine.run(
            store.engine.announce(
                Announcement(id=worker, name="new", tasks=("mail",), queues=("q",), slots=2, version="2")
            )
        )

        [record] = store.engine.run(store.engine.workers())
        assert (record.name, record.tasks, record.queues) == ("new", ("mail",), ("q",))
        assert (record.slots, record.version, record.started_at) == (2, "2", started)
        assert record.lease_until == to_datetime(store.clock.now + LEASE)


class TestRescue:
    """T10: the jobs of a worker that is gone run again, and its late word is refused."""

    def test_the_jobs_of_a_fenced_worker_are_freed(self, store: EngineUnderTest) -> None:
        """S1-13, S1-14."""
        dead, alive = store.announce(), store.announce()
        lease = store.start(dead)
        due = store.job(lease).run_at

        [rescued] = store.fence(dead).rescued

        assert (rescued.id, rescued.number, rescued.task) == (lease.id, lease.number, "work")
        assert rescued.state is State.PENDING
        job = store.job(lease)
        assert (job.crashes, job.failures, job.worker, job.run_at) == (1, 0, None, due)
        [again] = store.claim(alive)
        assert (again.id, again.token, again.solo) == (lease.id, lease.token + 1, True)

    def test_the_fenced_workers_late_word_is_refused(self, store: EngineUnderTest) -> None:
        """S1-14, I4."""
        dead, alive = store.announce(), store.announce()
        lease = store.start(dead)
        store.fence(dead)

        assert store.settle(dead, lease, Ending.COMPLETED, result="old") is Verdict.LOST
        [again] = store.claim(alive)
        assert store.settle(dead, lease, Ending.COMPLETED, result="old") is Verdict.LOST
        assert not store.report(dead, lease, progress=0.9)
        assert store.settle(alive, again, Ending.COMPLETED, result="new") is Verdict.ACCEPTED
        assert store.settle(dead, lease, Ending.COMPLETED, result="old") is Verdict.LOST
        assert store.job(lease).result == "new"

    def test_what_a_leaving_worker_did_not_know_it_had_is_released_and_has_not_crashed(
        self, store: EngineUnderTest
    ) -> None:
        worker = store.announce()
        lease = store.start(worker)

        assert store.engine.run(store.engine.leave(worker)) == 1

        job = store.job(lease)
        assert (job.state, job.releases, job.crashes) == (State.PENDING, 1, 0)
        assert store.outcomes(lease) == []
        assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.LOST

    def test_the_living_keep_theirs(self, store: EngineUnderTest) -> None:
        dead, alive = store.announce(), store.announce()
        store.start(dead)
        lease = store.start(alive)
        store.clock.advance(LEASE + 1)
        store.beat(alive, lease)

        assert len(store.sweep(fence=[dead, alive]).rescued) == 1
        assert store.job(lease).worker == alive

    def test_the_rescue_is_written_down(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        claimed = store.clock.now
        store.fence(worker)

        [attempt] = store.engine.run(store.engine.attempts(lease.id))
        assert (attempt.token, attempt.outcome) == (lease.token, "crashed")
        assert attempt.error == "the worker worker did not beat for its whole lease and was fenced"
        assert attempt.started_at == to_datetime(claimed)
        assert attempt.finished_at == to_datetime(store.clock.now)

    def test_a_job_that_was_asked_to_stop_is_not_run_again(self, store: EngineUnderTest) -> None:
        """A10, T13."""
        worker = store.announce()
        lease = store.start(worker)
        store.cancel(lease)

        [rescued] = store.fence(worker).rescued

        assert rescued.state is State.CANCELLED
        assert store.job(lease).finished_at == to_datetime(store.clock.now)

    def test_many_orphans_are_freed_batch_by_batch(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        for _ in range(5):
            store.enqueue()
        store.claim(worker)
        store.clock.advance(LEASE + 1)

        sweeps = [store.sweep(SweepOrder(batch=2, fence=(worker,)))]
        while sweeps[-1].more:
            sweeps.append(store.sweep(SweepOrder(batch=2)))

        assert sum(len(swept.rescued) for swept in sweeps) == 5
        assert max(len(swept.rescued) for swept in sweeps) == 2
        assert store.counts().processing == 0


class TestClockSteps:
    """A20: the store's clock may be corrected; nobody may die of it. Sweeps and beats, at least, remember the time."""

    @pytest.mark.parametrize("back", [1, MAX_HOLD])
    def test_a_small_step_back_stands_still(self, store: EngineUnderTest, back: int) -> None:
        first = store.enqueue()
        store.sweep()
        store.clock.advance(-back)

        second = store.enqueue()

        assert store.job(first).created_at == store.job(second).created_at
        assert store.sweep().clock_step == 0

    def test_time_goes_on_when_the_host_has_caught_up(self, store: EngineUnderTest) -> None:
        store.sweep()
        store.clock.advance(-5_000)
        store.enqueue()
        store.clock.advance(6_000)

        assert store.job(store.enqueue()).created_at == to_datetime(store.clock.now)

    def test_a_large_step_back_is_believed_and_reported_once(self, store: EngineUnderTest) -> None:
        store.sweep()
        store.clock.advance(-3_600_000)

        assert store.job(store.enqueue()).created_at == to_datetime(store.clock.now)
        assert store.sweep().clock_step == 3_600_000
        assert store.sweep().clock_step == 0

    def test_a_sweep_that_is_first_to_see_the_step_reports_it(self, store: EngineUnderTest) -> None:
        store.sweep()
        store.clock.advance(-3_600_000)

        assert store.sweep().clock_step == 3_600_000

    def test_after_a_large_step_every_lease_starts_again(self, store: EngineUnderTest) -> None:
        """Also those that had run out before it: what they were measured by is gone."""
        alive, late = store.announce(), store.announce()
        store.clock.advance(LEASE + 1)
        store.beat(alive)
        store.clock.advance(-3_600_000)

        swept = store.sweep(fence=[alive, late])

        assert (swept.fenced, swept.expired_workers) == ((), ())
        until = {record.lease_until for record in store.engine.run(store.engine.workers())}
        assert until == {to_datetime(store.clock.now + LEASE)}

    def test_a_job_that_only_seemed_expired_is_not_lost(self, store: EngineUnderTest) -> None:
        """I2."""
        worker = store.announce()
        job = store.enqueue(expires_in=1_000)
        store.clock.advance(3_600_000)
        assert store.claim(worker) == []

        store.clock.advance(-3_600_000)

        assert [lease.id for lease in store.claim(worker)] == [job.id]

    def test_after_a_large_step_new_work_is_done(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.clock.advance(-3_600_000)

        lease = store.start(worker)

        assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.ACCEPTED
