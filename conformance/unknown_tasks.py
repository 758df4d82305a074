"""Promises about jobs of a task that no worker knows: they wait, or fail if somebody has said for how long."""

import pytest

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.job import Counts, FailureKind, JobFilter, QueueSettings, State
from shigoto.model.time import Millis
from shigoto.model.worker import LEASE, Announcement, Ending, SweepOrder, Swept

LIMIT = 60_000
EVERY = 10_000


def sweep(store: EngineUnderTest, *, batch: int = 1_000) -> Swept:
    """A sweep that does not let unknown tasks wait for more than a minute."""
    return store.sweep(SweepOrder(unknown_after=LIMIT, batch=batch))


def go_on(store: EngineUnderTest, by: Millis, *, batch: int = 1_000) -> Swept:
    """Let time pass while somebody sweeps again and again, at last at the very end."""
    until = store.clock.now + by
    while store.clock.now + EVERY < until:
        store.clock.advance(EVERY)
        sweep(store, batch=batch)
    store.clock.advance(until - store.clock.now)
    return sweep(store, batch=batch)


def wait(store: EngineUnderTest, *, batch: int = 1_000) -> Swept:
    """Sweep until what is unknown at the first time has been so for too long."""
    sweep(store, batch=batch)
    return go_on(store, LIMIT + 1, batch=batch)


class TestUnknown:
    """S0-56."""

    def test_a_job_that_nobody_knows_fails_and_is_not_retried(self, store: EngineUnderTest) -> None:
        """S0-56."""
        worker = store.announce(tasks=["other"])
        job = store.enqueue("nonsense", max_failures=6)

        assert wait(store).unknown == ("nonsense",)

        failed = store.job(job)
        assert (failed.state, failed.failure_kind) == (State.FAILED, FailureKind.UNKNOWN_TASK)
        assert (failed.attempt, failed.failures, failed.started_at) == (0, 0, None)
        assert failed.finished_at is not None
        assert failed.error is not None
        assert all(part in failed.error for part in ("'nonsense'", "60 s", "start one", "retry"))
        assert store.counts() == Counts(failed=1)
        assert store.claim(worker, tasks=["nonsense"]) == []
        assert sweep(store).unknown == ()

    def test_it_is_found_by_its_kind_and_its_error(self, store: EngineUnderTest) -> None:
        job = store.enqueue("nonsense")
        wait(store)

        for wanted in (
            JobFilter(failure_kind=FailureKind.UNKNOWN_TASK),
            JobFilter(error="NONSENSE"),
            JobFilter(state=State.FAILED, error="nonsense"),
        ):
            assert [found.number for found in store.find(wanted)] == [job.number]

    def test_it_runs_after_all_when_it_is_retried_and_somebody_knows_it(self, store: EngineUnderTest) -> None:
        job = store.enqueue("late")
        wait(store)
        worker = store.announce(tasks=["late"])

        store.retry(job)

        retried = store.job(job)
        assert (retried.state, retried.error, retried.failure_kind) == (State.PENDING, None, None)
        [lease] = store.claim(worker, tasks=["late"])
        store.settle(worker, lease, Ending.COMPLETED)
        assert store.job(job).error is None

    def test_unless_it_is_said_for_how_long_it_waits(self, store: EngineUnderTest) -> None:
        job = store.enqueue("nonsense")
        for _ in range(2):
            store.clock.advance(30 * 86_400_000)
            assert store.sweep().unknown == ()

        assert store.job(job).state is State.PENDING

    def test_not_before_that_time(self, store: EngineUnderTest) -> None:
        job = store.enqueue("nonsense")
        sweep(store)

        assert go_on(store, LIMIT).unknown == ()
        assert store.job(job).state is State.PENDING
        assert go_on(store, 1).unknown == ("nonsense",)

    @pytest.mark.parametrize("queue", ["default", "elsewhere"])
    def test_one_worker_that_knows_it_is_enough_wherever_it_works(
        self, store: EngineUnderTest, queue: str
    ) -> None:
        store.announce(tasks=["other"])
        store.announce(tasks=["rare"], queues=[queue], lease=86_400_000)
        store.enqueue("rare")

        assert wait(store).unknown == ()

    def test_a_worker_that_was_fenced_or_has_left_knows_nothing(self, store: EngineUnderTest) -> None:
        fenced, gone = store.announce(tasks=["a"]), store.announce(tasks=["b"])
        for task in ("a", "b"):
            store.enqueue(task)
        store.fence(fenced)
        store.engine.run(store.engine.leave(gone))

        assert wait(store).unknown == ("a", "b")

    def test_what_it_says_last_counts(self, store: EngineUnderTest) -> None:
        said = Announcement(id=store.new_id(), name="w", tasks=("a",), queues=None, slots=1, version="1")
        store.engine.run(store.engine.announce(said))
        said = Announcement(id=said.id, name="w", tasks=("b",), queues=None, slots=1, version="2")
        store.engine.run(store.engine.announce(said))
        for task in ("a", "b"):
            store.enqueue(task)

        assert wait(store).unknown == ("a",)

    def test_a_backlog_outlives_a_restart_of_its_only_worker(self, store: EngineUnderTest) -> None:
        """The task must have been unknown for so long, not only the job have been due."""
        worker = store.announce(lease=86_400_000)
        job = store.enqueue()
        sweep(store)
        store.clock.advance(10 * LIMIT)
        store.engine.run(store.engine.leave(worker))

        assert sweep(store).unknown == ()
        assert go_on(store, LIMIT).unknown == ()
        again = store.announce()
        store.engine.run(store.engine.leave(again))
        assert go_on(store, 1).unknown == ()
        assert store.job(job).state is State.PENDING

    def test_a_night_without_sweeps_costs_nothing(self, store: EngineUnderTest) -> None:
        """Whoever starts first in the morning must not fail the jobs of those that start after it."""
        worker = store.announce()
        job = store.enqueue()
        store.engine.run(store.engine.leave(worker))
        sweep(store)
        store.clock.advance(12 * 3_600_000)

        assert sweep(store).unknown == ()
        assert go_on(store, LIMIT).unknown == ()
        assert store.job(job).state is State.PENDING
        assert go_on(store, 1).unknown == ("work",)

    def test_nor_does_a_time_in_which_nobody_looked_for_them(self, store: EngineUnderTest) -> None:
        store.enqueue("nonsense")
        sweep(store)
        for _ in range(10):
            store.clock.advance(EVERY)
            store.sweep()

        assert sweep(store).unknown == ()

    @pytest.mark.parametrize(("gap", "unknown"), [(LEASE, ("nonsense",)), (LEASE + 1, ())])
    def test_how_long_a_gap_may_be_is_said(
        self, store: EngineUnderTest, gap: Millis, unknown: tuple[str, ...]
    ) -> None:
        order = SweepOrder(unknown_after=1_000, longest_gap=LEASE)
        store.enqueue("nonsense")
        store.sweep(order)
        store.clock.advance(gap)

        assert store.sweep(order).unknown == unknown

    def test_less_patience_than_there_is_between_two_sweeps_lasts_until_the_second(
        self, store: EngineUnderTest
    ) -> None:
        order = SweepOrder(unknown_after=1)
        store.enqueue("nonsense")

        assert store.sweep(order).unknown == ()
        store.clock.advance(EVERY)
        assert store.sweep(order).unknown == ("nonsense",)

    def test_a_job_of_a_worker_that_died_is_rescued_not_failed(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.clock.advance(LEASE + 10 * LIMIT)

        swept = store.sweep(SweepOrder(fence=(worker,), unknown_after=LIMIT))

        assert ([job.id for job in swept.rescued], swept.unknown) == ([lease.id], ())
        assert store.job(lease).state is State.PENDING

    def test_what_a_fenced_worker_says_does_not_count(self, store: EngineUnderTest) -> None:
        worker = store.announce(tasks=["a"])
        store.enqueue("a")
        store.fence(worker)
        sweep(store)
        said = Announcement(id=worker, name="w", tasks=("a",), queues=None, slots=1, version="1")
        store.engine.run(store.engine.announce(said))

        assert go_on(store, LIMIT + 1).unknown == ("a",)


class TestUnknownAndDue:
    """Only jobs that could start, if there were somebody to start them."""

    def test_a_job_for_later_waits_until_it_has_been_due_for_so_long(self, store: EngineUnderTest) -> None:
        store.enqueue("nonsense")
        later = store.enqueue("nonsense", delay=10 * LIMIT)
        assert wait(store).unknown == ("nonsense",)
        assert store.job(later).state is State.PENDING

        go_on(store, 9 * LIMIT)
        store.promote()
        assert sweep(store).unknown == ()
        assert go_on(store, LIMIT).unknown == ("nonsense",)
        assert store.job(later).state is State.FAILED

    def test_nobody_has_waited_before_the_job_was_stored(self, store: EngineUnderTest) -> None:
        store.enqueue("nonsense")
        wait(store)
        old_in_name_only = store.enqueue("nonsense", run_at=0)

        assert sweep(store).unknown == ()
        assert store.job(old_in_name_only).state is State.PENDING

    def test_a_paused_queue_is_left_alone(self, store: EngineUnderTest) -> None:
        store.engine.run(store.engine.configure(QueueSettings(name="paused", paused=True)))
        waiting = store.enqueue("nonsense", queue="paused")
        failing = store.enqueue("nonsense", queue="open")

        assert wait(store).unknown == ("nonsense",)

        assert store.job(waiting).state is State.PENDING
        assert store.job(failing).state is State.FAILED

    def test_one_that_has_expired_fails_for_that(self, store: EngineUnderTest) -> None:
        jobs = [store.enqueue("nonsense", expires_in=1_000) for _ in range(2)]

        for _ in range(3):
            wait(store, batch=1)

        assert [store.job(job).failure_kind for job in jobs] == [FailureKind.EXPIRED] * 2

    def test_one_that_was_cancelled_stays_so(self, store: EngineUnderTest) -> None:
        job = store.enqueue("nonsense")
        store.cancel(job)

        assert wait(store).unknown == ()
        assert store.job(job).state is State.CANCELLED

    def test_its_history_stays(self, store: EngineUnderTest) -> None:
        worker = store.announce(tasks=["a"])
        store.enqueue("a")
        [lease] = store.claim(worker, tasks=["a"])
        store.settle(worker, lease, Ending.ERRORED, error="broke")
        store.engine.run(store.engine.leave(worker))

        assert wait(store).unknown == ("a",)

        job = store.job(lease)
        assert (job.attempt, job.failures) == (1, 1)
        assert "'a'" in (job.error or "")
        assert store.outcomes(lease) == ["errored"]

    def test_in_batches_of_all_priorities_and_lanes(self, store: EngineUnderTest) -> None:
        for index in range(10):
            store.enqueue(
                f"task-{index % 3}", priority=index % 4 - 2, queue=f"q-{index % 2}", alone=index % 5 == 0
            )
        known = store.enqueue("work")
        store.announce(lease=86_400_000)

        first = wait(store, batch=4)
        assert first.more
        assert store.count(JobFilter(state=State.FAILED)) == 4
        second, third = sweep(store, batch=4), sweep(store, batch=4)
        assert (second.more, third.more) == (True, False)
        assert {*first.unknown, *second.unknown, *third.unknown} == {"task-0", "task-1", "task-2"}
        assert list(first.unknown) == sorted(set(first.unknown))
        assert store.count(JobFilter(failure_kind=FailureKind.UNKNOWN_TASK)) == 10
        assert store.job(known).state is State.PENDING

    def test_a_clock_that_was_set_far_back_does_not_make_it_wait_for_ever(
        self, store: EngineUnderTest
    ) -> None:
        store.clock.advance(86_400_000)
        store.enqueue("nonsense")
        sweep(store)
        store.clock.advance(-86_400_000)
        store.enqueue("nonsense")
        sweep(store)

        assert go_on(store, LIMIT + 1).unknown == ("nonsense",)
        assert store.counts().failed == 1
