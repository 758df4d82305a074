"""Promises about notices: where they are wanted, nothing fails, dies or is missed without one, and none has two."""

from uuid import UUID

from msgspec import json

from conformance.engine_under_test import EngineUnderTest, ended
from conformance.schedule_fixture import ScheduleFixture
from shigoto.model.job import FailureKind, Job, JobFilter, State
from shigoto.model.notice import DELIVER, NOTICE, QUEUE, Notice
from shigoto.model.schedule import Change, Firing, TickEntry, TickOutcome
from shigoto.model.states import MAX_SNOOZES
from shigoto.model.worker import LEASE, Death, Ending, SweepOrder, Verdict

HOUR = 3_600_000


class TestNotices:
    """T6, T9, T10, T16 and the rule of final failures: one notice for each, in the same transaction."""

    def test_nothing_is_written_while_nobody_wants_to_hear(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.settle(worker, store.start(worker), Ending.FAILED)
        store.fence(worker)

        assert _notices(store) == []

    def test_a_job_that_fails_for_good_has_a_notice_that_can_be_claimed_at_once(
        self, store: EngineUnderTest
    ) -> None:
        """S1-20: the words are names and instants, and nothing of what the job was given."""
        _switch_on(store)
        worker = store.announce(tasks=("work", NOTICE))
        lease = store.start(worker, queue="mail", payload='{"password":"hunter2"}')

        store.settle(worker, lease, Ending.FAILED, error="boom", failure_kind=FailureKind.REJECTED)

        [job] = _notices(store)
        [claimed] = store.claim(worker, tasks=(NOTICE,), queues=(QUEUE,))
        assert claimed.id == job.id
        assert (job.queue, job.state) == (QUEUE, State.PENDING)
        assert _told(job) == Notice(
            kind="failed",
            subject="work",
            at=store.clock.now,
            queue="mail",
            job=lease.id,
            failure=FailureKind.REJECTED,
        )

    def test_what_is_tried_again_has_none_and_what_has_no_try_left_has(self, store: EngineUnderTest) -> None:
        """GWT-10 asks for one event for a final failure, and none for retries."""
        _switch_on(store)
        worker = store.announce()
        store.settle(worker, store.start(worker, max_failures=2), Ending.ERRORED, delay=0)

        assert _notices(store) == []

        store.settle(worker, store.claim(worker)[0], Ending.ERRORED)

        assert _failures(store) == [FailureKind.ERROR]

    def test_neither_success_nor_cancel_nor_release_has_one(self, store: EngineUnderTest) -> None:
        _switch_on(store)
        worker = store.announce()
        store.settle(worker, store.start(worker), Ending.COMPLETED)
        store.settle(worker, store.start(worker), Ending.CANCELLED)
        store.cancel(store.enqueue())
        store.cancel(store.start(worker), force=True)
        store.settle(worker, store.start(worker), Ending.RELEASED)

        assert _notices(store) == []

    def test_every_other_way_into_failed_has_one(self, store: EngineUnderTest) -> None:
        """T6, T9, T10, T16: by the worker, the supervisor and the sweeper."""
        _switch_on(store)
        worker = store.announce()
        store.settle(worker, store.start(worker), Ending.FAILED, failure_kind=FailureKind.RESULT_INVALID)
        lease = store.start(worker)
        for _ in range(MAX_SNOOZES):
            store.settle(worker, lease, Ending.SNOOZED, delay=0)
            [lease] = store.claim(worker)
        store.settle(worker, lease, Ending.SNOOZED, delay=0)
        replaced = store.start(worker, key="k")
        store.enqueue("mail", key="k", key_mode="replace")
        store.settle(worker, replaced, Ending.ERRORED, delay=0)
        crashed = store.start(worker, max_crashes=1)
        store.report_dead(worker, Death(number=crashed.number, alone=True))
        store.enqueue("mail", expires_in=10)
        store.clock.advance(11)
        store.sweep()

        assert _failures(store) == [
            FailureKind.RESULT_INVALID,
            FailureKind.SNOOZED_OUT,
            FailureKind.SUPERSEDED,
            FailureKind.CRASH_LOOP,
            FailureKind.EXPIRED,
        ]

    def test_a_crash_loop_that_a_sweep_ends_has_one_and_so_has_the_dead_worker(
        self, store: EngineUnderTest
    ) -> None:
        """T10: written by the transaction that fences."""
        _switch_on(store)
        first, second = store.announce(name="alpha"), store.announce(name="beta")
        suspect = store.start(first)
        store.report_dead(first, Death(number=suspect.number, alone=False))
        store.clock.advance(1)
        store.enqueue(max_crashes=1)
        store.claim(second, alone=False)
        store.clock.advance(1)

        store.fence(second)

        told = [_told(job) for job in _notices(store)]
        assert [(notice.kind, notice.subject) for notice in told] == [("fenced", "beta")]

    def test_a_lone_suspect_that_dies_with_its_worker_is_told_of_beside_it(
        self, store: EngineUnderTest
    ) -> None:
        _switch_on(store)
        first, second = store.announce(), store.announce(name="beta")
        job = store.start(first, max_crashes=1)
        store.report_dead(first, Death(number=job.number, alone=False))
        [_] = store.claim(second, alone=True)

        store.fence(second)

        told = [_told(job) for job in _notices(store)]
        assert [(notice.kind, notice.failure) for notice in told] == [
            ("fenced", None),
            ("failed", FailureKind.CRASH_LOOP),
        ]

    def test_a_job_that_nobody_knows_has_one_each_time_it_fails(self, store: EngineUnderTest) -> None:
        _switch_on(store)
        job = store.enqueue("nobody")
        order = SweepOrder(unknown_after=1_000, longest_gap=HOUR)
        for _ in range(2):
            store.sweep(order)
            store.clock.advance(LEASE)
            store.sweep(order)
            store.retry(job)

        assert _failures(store) == [FailureKind.UNKNOWN_TASK] * 2

    def test_jobs_about_notices_have_none(self, store: EngineUnderTest) -> None:
        """A delivery that fails triggers nothing."""
        _switch_on(store)
        worker = store.announce(tasks=(NOTICE, DELIVER))
        store.enqueue(NOTICE)
        store.enqueue(DELIVER)
        for lease in store.claim(worker, tasks=(NOTICE, DELIVER)):
            store.settle(worker, lease, Ending.FAILED)
        store.enqueue(DELIVER, expires_in=10)
        store.clock.advance(11)
        store.sweep()

        assert [job for job in store.find() if job.state is not State.FAILED] == []

    def test_a_settlement_that_is_repeated_writes_no_second_one(self, store: EngineUnderTest) -> None:
        """C9: the answer was lost, the commit was not."""
        _switch_on(store)
        worker = store.announce()
        lease = store.start(worker)
        settlement = ended(lease, Ending.FAILED)
        store.engine.run(store.engine.settle(worker, [settlement]))

        assert store.engine.run(store.engine.settle(worker, [settlement])) == [Verdict.REPEATED]
        assert len(_notices(store)) == 1

    def test_many_that_fail_at_once_have_one_each_in_the_order_of_their_numbers(
        self, store: EngineUnderTest
    ) -> None:
        _switch_on(store)
        worker = store.announce()
        specs = [store.spec() for _ in range(300)]
        store.engine.run(store.engine.enqueue_many(specs))
        leases = store.claim(worker, limit=300)

        store.engine.run(
            store.engine.settle(worker, [ended(lease, Ending.FAILED) for lease in reversed(leases)])
        )

        assert [_told(job).job for job in _notices(store)] == [spec.id for spec in specs]
        assert (store.counts().failed, store.counts(QUEUE).pending) == (300, 300)

    def test_it_is_the_store_that_remembers_and_says_whether_that_is_news(
        self, store: EngineUnderTest
    ) -> None:
        engine = store.engine
        assert not engine.run(engine.switch_notices(False))
        assert engine.run(engine.switch_notices(True))
        assert not engine.run(engine.switch_notices(True))
        worker = store.announce()
        other = store.open_again() or engine
        lease = store.start(worker)
        other.run(other.settle(worker, [ended(lease, Ending.FAILED)]))
        assert len(_notices(store)) == 1

        assert engine.run(engine.switch_notices(False))
        store.settle(worker, store.start(worker), Ending.FAILED)
        assert len(_notices(store)) == 1

    def test_ticks_that_were_missed_have_one_for_each_stretch(self, store: EngineUnderTest) -> None:
        _switch_on(store)
        fixture = ScheduleFixture(store)
        schedule = fixture.add()
        missed = TickEntry(
            at=1_000, until=9_000, count=5, outcome=TickOutcome.MISSED, decided_at=store.clock.now
        )
        skipped = TickEntry(at=20_000, outcome=TickOutcome.SKIPPED, decided_at=store.clock.now)
        firings = (Firing(entry=missed), Firing(entry=skipped))

        assert fixture.tick(Change(schedule=schedule, seen=schedule.revision, firings=firings)) == [True]

        [notice] = [_told(job) for job in _notices(store)]
        assert notice == Notice(kind="missed", subject="nightly", at=store.clock.now, since=1_000, count=5)

    def test_a_change_of_a_schedule_that_is_not_heard_has_none(self, store: EngineUnderTest) -> None:
        _switch_on(store)
        fixture = ScheduleFixture(store)
        schedule = fixture.add()

        heard = [fixture.fire(schedule, 1_000, TickOutcome.MISSED) for _ in range(2)]

        assert heard == [True, False]
        assert len(_notices(store)) == 1


def _switch_on(store: EngineUnderTest) -> None:
    store.engine.run(store.engine.switch_notices(True))


def _notices(store: EngineUnderTest) -> list[Job]:
    """All of them, oldest first."""
    return store.find(JobFilter(task=NOTICE, limit=1_000))[::-1]


def _told(job: Job) -> Notice:
    return json.decode(job.payload, type=Notice)


def _failures(store: EngineUnderTest) -> list[FailureKind | None]:
    told = [_told(job) for job in _notices(store)]
    ids: list[UUID | None] = [notice.job for notice in told]
    assert None not in ids
    return [notice.failure for notice in told]
