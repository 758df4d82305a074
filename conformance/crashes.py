"""Promises about processes that die under their jobs: who is suspected, who runs alone, who is put away."""

from uuid import UUID

import pytest

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.job import FailureKind, Lease, State
from shigoto.model.states import CRASH_DELAY
from shigoto.model.time import to_datetime
from shigoto.model.worker import LEASE, Death, Ending, SweepOrder, Verdict


def ids(leases: list[Lease]) -> list[UUID]:
    """The jobs of the leases."""
    return [lease.id for lease in leases]


class TestCrashed:
    """T9: the process died under the job."""

    def test_a_crash_is_no_failure_and_makes_a_suspect(self, store: EngineUnderTest) -> None:
        """S1-26: crashes have an account of their own."""
        worker = store.announce()
        lease = store.start(worker, max_failures=1)

        store.settle(worker, lease, Ending.CRASHED)

        assert (store.job(lease).crashes, store.job(lease).suspect) == (1, True)
        [again] = store.claim(worker)
        assert (again.solo, again.alone, again.failures, again.attempt) == (True, True, 0, 2)

    def test_it_waits_as_long_as_its_worker_says(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)

        store.settle(worker, lease, Ending.CRASHED, delay=10_000)

        assert store.job(lease).run_at == to_datetime(store.clock.now + 10_000)
        assert store.claim(worker) == []

    @pytest.mark.parametrize("ending", [Ending.ERRORED, Ending.SNOOZED, Ending.COMPLETED])
    def test_a_run_that_comes_back_clears_the_suspicion(self, store: EngineUnderTest, ending: Ending) -> None:
        worker = store.announce()
        job = store.enqueue()
        [first] = store.claim(worker)
        store.settle(worker, first, Ending.CRASHED)
        [suspect] = store.claim(worker)
        store.settle(worker, suspect, ending)

        assert (suspect.solo, store.job(job).suspect) == (True, False)
        assert [(again.solo, again.alone) for again in store.claim(worker)] == (
            [] if ending is Ending.COMPLETED else [(False, False)]
        )

    def test_deaths_alone_end_in_quarantine(self, store: EngineUnderTest) -> None:
        """S1-26, I13."""
        worker = store.announce()
        job = store.enqueue(max_crashes=2)

        for alone in (False, True, True):
            assert store.job(job).state is State.PENDING
            [lease] = store.claim(worker)
            store.settle(worker, lease, Ending.CRASHED, alone=alone)

        assert (store.job(job).state, store.job(job).failure_kind) == (State.FAILED, FailureKind.CRASH_LOOP)
        assert store.job(job).crashes == 3

    def test_deaths_in_company_never_do(self, store: EngineUnderTest) -> None:
        """I13."""
        worker = store.announce()
        job = store.enqueue(max_crashes=1)

        for _ in range(20):
            [lease] = store.claim(worker)
            store.settle(worker, lease, Ending.CRASHED)

        assert (store.job(job).state, store.job(job).crashes) == (State.PENDING, 20)

    def test_without_a_bound_it_is_tried_for_ever(self, store: EngineUnderTest) -> None:
        """S1-26."""
        worker = store.announce()
        job = store.enqueue(max_crashes=None)

        for _ in range(20):
            [lease] = store.claim(worker)
            store.settle(worker, lease, Ending.CRASHED, alone=True)

        assert (store.job(job).state, store.job(job).crashes) == (State.PENDING, 20)
        assert store.job(job).max_crashes is None

    def test_after_quarantine_an_operators_retry_is_still_watched(self, store: EngineUnderTest) -> None:
        """A11: the budget is new, the suspicion is not."""
        worker = store.announce()
        lease = store.start(worker, max_crashes=1)
        store.settle(worker, lease, Ending.CRASHED, alone=True)

        store.retry(lease)

        assert store.claim(worker, alone=False) == []
        [again] = store.claim(worker, alone=True)
        assert (again.id, again.solo, store.job(lease).suspect) == (lease.id, True, True)


class TestReportDead:
    """T8, T9: a worker's process is known to have ended, and what was running in it."""

    def test_what_was_running_has_crashed_and_what_was_waiting_is_released(
        self, store: EngineUnderTest
    ) -> None:
        worker, other = store.announce(), store.announce()
        running, idle = store.start(worker), store.start(worker)
        elsewhere = store.start(other)

        rescued = store.report_dead(
            worker, Death(number=running.number, error="killed by signal 9", traceback="stack", delay=10_000)
        )

        assert {(job.id, job.number, job.task, job.state) for job in rescued} == {
            (lease.id, lease.number, "work", State.PENDING) for lease in (running, idle)
        }
        crashed, released = store.job(running), store.job(idle)
        assert (crashed.crashes, crashed.releases, crashed.suspect) == (1, 0, True)
        assert crashed.run_at == to_datetime(store.clock.now + 10_000)
        assert (released.crashes, released.releases, released.suspect) == (0, 1, False)
        assert store.job(elsewhere).state is State.PROCESSING

    def test_it_is_written_down(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        running, idle = store.start(worker), store.start(worker)

        store.report_dead(worker, Death(number=running.number, error="exit code 3", traceback="stack"))

        [attempt] = store.engine.run(store.engine.attempts(running.id))
        assert (attempt.outcome, attempt.error, attempt.traceback) == ("crashed", "exit code 3", "stack")
        assert store.outcomes(idle) == []

    def test_such_a_crash_counts_against_nobody(self, store: EngineUnderTest) -> None:
        """I13: the process may have been killed from outside."""
        job = store.enqueue(max_crashes=1)
        for _ in range(3):
            worker = store.announce()
            [lease] = store.claim(worker)
            store.report_dead(worker, Death(number=lease.number))

        assert (store.job(job).state, store.job(job).crashes) == (State.PENDING, 3)

    def test_a_death_alone_counts(self, store: EngineUnderTest) -> None:
        """S1-26: nothing else ran in the process, nor in any that died with it."""
        job = store.enqueue(max_crashes=2)
        for state in (State.PENDING, State.FAILED):
            store.clock.advance(CRASH_DELAY)
            store.promote()
            worker = store.announce()
            [lease] = store.claim(worker)
            [rescued] = store.report_dead(worker, Death(number=lease.number, alone=True, delay=CRASH_DELAY))
            assert rescued.state is state

        assert (store.job(job).failure_kind, store.job(job).crashes) == (FailureKind.CRASH_LOOP, 2)

    def test_the_worker_is_gone_and_what_it_said_too_late_is_refused(self, store: EngineUnderTest) -> None:
        """I4."""
        worker, other = store.announce(), store.announce()
        running, idle = store.start(worker), store.start(worker)

        store.report_dead(worker, Death(number=running.number))

        assert [record.id for record in store.engine.run(store.engine.workers())] == [other]
        assert store.beat(worker).fenced
        assert store.claim(worker) == []
        for lease in (running, idle):
            assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.LOST
            assert not store.report(worker, lease, progress=0.5)
        assert [lease.token for lease in store.claim(other)] == [running.token + 1, idle.token + 1]

    def test_jobs_that_were_asked_to_stop_do_not_come_back(self, store: EngineUnderTest) -> None:
        """A10, T13."""
        worker = store.announce()
        running, idle = store.start(worker), store.start(worker)
        for lease in (running, idle):
            store.cancel(lease)

        rescued = store.report_dead(worker, Death(number=running.number, delay=10_000))

        assert [job.state for job in rescued] == [State.CANCELLED, State.CANCELLED]
        assert store.outcomes(running) == ["crashed"]
        assert store.counts().cancelled == 2

    def test_a_death_of_what_it_does_not_hold_is_ignored(self, store: EngineUnderTest) -> None:
        worker, other = store.announce(), store.announce()
        elsewhere, waiting = store.start(other), store.enqueue()
        done = store.start(other)
        store.settle(other, done, Ending.COMPLETED)

        deaths = [Death(number=number) for number in (elsewhere.number, waiting.number, done.number, 999)]

        assert [job.id for job in store.report_dead(worker, *deaths)] == []
        assert store.job(elsewhere).state is State.PROCESSING
        assert (store.job(waiting).crashes, store.job(done).state) == (0, State.COMPLETED)

    def test_a_worker_that_is_unknown_or_fenced_is_left_to_the_sweep(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.fence(worker)

        assert store.report_dead(worker, Death(number=lease.number)) == []
        assert store.report_dead(store.new_id(), Death(number=lease.number)) == []
        assert store.job(lease).crashes == 1
        assert store.beat(worker).fenced


class TestBlame:
    """T10: a whole worker is gone; what that says about its jobs."""

    @pytest.mark.parametrize("isolates", [True, False])
    def test_a_bystander_is_made_a_suspect_and_runs_again_at_once(
        self, store: EngineUnderTest, isolates: bool
    ) -> None:
        worker = store.announce(isolates=isolates)
        lease = store.start(worker, max_crashes=1)

        [rescued] = store.fence(worker).rescued

        assert rescued.state is State.PENDING
        assert ids(store.claim(store.announce(), alone=True)) == [lease.id]

    def test_a_suspect_beside_others_on_a_worker_that_isolates_is_not_blamed(
        self, store: EngineUnderTest
    ) -> None:
        """Its process was its own: what took the whole worker down was somebody else."""
        jobs = [store.enqueue(max_crashes=1) for _ in range(2)]
        for _ in range(3):
            worker = store.announce(isolates=True)
            assert ids(store.claim(worker)) == [job.id for job in jobs]
            store.fence(worker)

        assert [(store.job(job).state, store.job(job).crashes) for job in jobs] == [(State.PENDING, 3)] * 2

    def test_a_suspect_that_was_all_its_worker_had_is_blamed_and_waits(self, store: EngineUnderTest) -> None:
        """A18: whatever it does, it takes the whole worker with it."""
        job = store.enqueue(max_crashes=2)
        for waits in (0, CRASH_DELAY, None):
            worker = store.announce(isolates=True)
            assert ids(store.claim(worker)) == [job.id]
            due = store.job(job).run_at
            store.fence(worker)
            if waits is not None:
                assert store.job(job).run_at == (to_datetime(store.clock.now + waits) if waits else due)
                store.clock.advance(waits)
                store.promote()

        assert (store.job(job).state, store.job(job).failure_kind) == (State.FAILED, FailureKind.CRASH_LOOP)
        assert store.job(job).crashes == 3

    def test_the_last_of_many_that_are_rescued_in_portions_is_not_taken_for_the_only_one(
        self, store: EngineUnderTest
    ) -> None:
        """I13."""
        jobs = [store.enqueue(max_crashes=1) for _ in range(2)]
        for _ in range(3):
            worker = store.announce(isolates=True)
            assert len(store.claim(worker)) == 2
            store.clock.advance(LEASE + 1)
            store.sweep(SweepOrder(fence=(worker,), batch=1))
            store.sweep(SweepOrder(batch=1))

        assert [(store.job(job).state, store.job(job).crashes) for job in jobs] == [(State.PENDING, 3)] * 2

    def test_a_suspect_on_a_worker_that_does_not_is_blamed_and_waits(self, store: EngineUnderTest) -> None:
        """A18: nobody could isolate it, so this is the only death that can count."""
        job = store.enqueue(max_crashes=2)
        for waits in (0, CRASH_DELAY):
            store.promote()
            worker = store.announce(isolates=False)
            assert ids(store.claim(worker)) == [job.id]
            due = store.job(job).run_at
            store.fence(worker)
            assert store.job(job).run_at == (to_datetime(store.clock.now + waits) if waits else due)
            store.clock.advance(waits)

        store.promote()
        worker = store.announce(isolates=False)
        store.claim(worker)
        store.fence(worker)

        assert (store.job(job).state, store.job(job).failure_kind) == (State.FAILED, FailureKind.CRASH_LOOP)

    @pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.ERRORED, Ending.RELEASED])
    def test_a_fenced_worker_settles_nothing_even_while_it_is_not_taken_from_it_yet(
        self, store: EngineUnderTest, ending: Ending
    ) -> None:
        """S1-14: a sweep frees jobs in portions."""
        dead = store.announce()
        leases = [store.start(dead) for _ in range(2)]
        store.clock.advance(LEASE + 1)
        assert len(store.sweep(SweepOrder(fence=(dead,), batch=1)).rescued) == 1

        assert [store.settle(dead, lease, ending) for lease in leases] == [Verdict.LOST] * 2
        assert len(store.sweep().rescued) == 1

    def test_a_worker_that_left_while_it_was_fenced_blames_nobody(self, store: EngineUnderTest) -> None:
        """T8: nobody knows it any more, so what it had is given back."""
        worker = store.announce(isolates=False)
        first, suspect = store.start(worker), store.start(worker, max_crashes=1)
        store.settle(worker, suspect, Ending.CRASHED)
        store.claim(worker)
        store.clock.advance(LEASE + 1)
        [rescued] = store.sweep(SweepOrder(fence=(worker,), batch=1)).rescued
        store.engine.run(store.engine.leave(worker))

        store.sweep()

        assert (rescued.id, store.job(suspect).state) == (first.id, State.PENDING)
        assert (store.job(suspect).crashes, store.job(suspect).releases) == (1, 1)
        errors = [attempt.error for attempt in store.engine.run(store.engine.attempts(suspect.id))]
        assert errors == [None]

    def test_a_poison_job_ends_in_quarantine_and_bystanders_do_not(self, store: EngineUnderTest) -> None:
        """I13: all die in the first crowd; from then on the suspects run one by one."""
        poison, bystander = store.enqueue(max_crashes=2), store.enqueue(max_crashes=2)
        for _ in range(10):
            store.clock.advance(60_000)
            store.promote()
            worker = store.announce(isolates=False)
            for lease in store.claim(worker):
                if lease.solo and lease.id == bystander.id:
                    store.settle(worker, lease, Ending.COMPLETED)
            store.fence(worker)

        assert store.job(poison).failure_kind is FailureKind.CRASH_LOOP
        assert (store.job(bystander).state, store.job(bystander).crashes) == (State.COMPLETED, 1)
