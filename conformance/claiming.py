"""Promises about claims: who gets which job, in which order, and never two at once."""

from uuid import UUID

from conformance.engine_under_test import EngineUnderTest, want
from shigoto.model.job import Lease, QueueSettings, State
from shigoto.model.time import to_datetime
from shigoto.model.worker import Ending


def ids(leases: list[Lease]) -> list[UUID]:
    """The jobs of the leases."""
    return [lease.id for lease in leases]


class TestClaim:
    """A claim moves a job to its worker and leaves everything else where it was."""

    def test_a_claimed_job_is_processing(self, store: EngineUnderTest) -> None:
        """S0-12, S0-34, S1-12."""
        worker = store.announce()
        enqueued = store.enqueue()
        store.clock.advance(250)

        [lease] = store.claim(worker)

        job = store.job(enqueued)
        assert (lease.id, lease.number) == (enqueued.id, enqueued.number)
        assert (job.state, job.worker, job.attempt) == (State.PROCESSING, worker, 1)
        assert job.started_at == to_datetime(store.clock.now) == to_datetime(lease.claimed_at)

    def test_a_claimed_job_is_nobody_elses(self, store: EngineUnderTest) -> None:
        """S0-68, S1-12."""
        first, second = store.announce(), store.announce()
        store.enqueue()

        assert len(store.claim(first)) == 1
        assert store.claim(second) == []
        assert store.claim(first) == []

    def test_taking_a_job_does_not_remove_its_content(self, store: EngineUnderTest) -> None:
        """S1-11."""
        worker = store.announce()
        lease = store.start(worker, payload='{"page":1}')

        assert lease.payload == store.job(lease).payload == '{"page":1}'

    def test_the_lease_carries_all_that_a_run_needs(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        job = store.enqueue(
            queue="letters",
            payload='{"to":"a"}',
            tenant="shop-1",
            priority=3,
            key="letter:1",
            max_failures=4,
            retry='{"kind":"linear"}',
            timeout=60_000,
            soft_timeout=50_000,
            tags='["a"]',
            meta='{"trace":"1"}',
            alone=True,
        )

        [lease] = store.claim(worker)

        assert lease == Lease(
            number=job.number,
            token=lease.token,
            id=job.id,
            task="work",
            queue="letters",
            payload='{"to":"a"}',
            attempt=1,
            failures=0,
            snoozes=0,
            max_failures=4,
            priority=3,
            run_at=store.clock.now,
            claimed_at=store.clock.now,
            solo=False,
            tenant="shop-1",
            key="letter:1",
            retry='{"kind":"linear"}',
            timeout=60_000,
            soft_timeout=50_000,
            tags='["a"]',
            meta='{"trace":"1"}',
            checkpoint=None,
            alone=True,
        )

    def test_each_claim_raises_the_token_by_one(self, store: EngineUnderTest) -> None:
        """I5."""
        worker = store.announce()
        store.enqueue()

        tokens: list[int] = []
        for ending in (Ending.RELEASED, Ending.SNOOZED, Ending.ERRORED, Ending.RELEASED):
            [lease] = store.claim(worker)
            tokens.append(lease.token)
            store.settle(worker, lease, ending)

        assert tokens == [tokens[0] + claims for claims in range(4)]

    def test_a_claim_that_was_given_back_is_no_attempt(self, store: EngineUnderTest) -> None:
        """I17."""
        worker = store.announce()
        store.enqueue()

        attempts: list[int] = []
        for ending in (Ending.RELEASED, Ending.SNOOZED, Ending.ERRORED, Ending.ERRORED):
            [lease] = store.claim(worker)
            attempts.append(lease.attempt)
            store.settle(worker, lease, ending)

        assert attempts == [1, 1, 1, 2]

    def test_no_more_than_the_limit_is_taken(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        for _ in range(5):
            store.enqueue()

        assert len(store.claim(worker, limit=2)) == 2
        assert store.claim(worker, limit=0) == []
        assert store.counts().pending == 3

    def test_an_empty_store_gives_nothing(self, store: EngineUnderTest) -> None:
        assert store.claim(store.announce()) == []

    def test_no_wants_give_nothing(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.enqueue()

        assert store.engine.run(store.engine.claim(worker, [])) == []


class TestOrder:
    """Priority, then run_at, then number."""

    def test_larger_priority_goes_first(self, store: EngineUnderTest) -> None:
        """S0-7, S0-33."""
        worker = store.announce()
        low, high, middle = (store.enqueue(priority=priority) for priority in (-5, 9, 0))

        assert ids(store.claim(worker)) == [high.id, middle.id, low.id]

    def test_the_ends_of_the_scale_are_as_good_as_any(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        later = store.enqueue(priority=-32768, delay=10, key="later")
        specs = [store.spec(priority=priority) for priority in (-32768, 0, 32767)]
        low, middle, high = store.engine.run(store.engine.enqueue_many(specs))
        gone = store.enqueue(priority=-32768)
        store.engine.run(store.engine.cancel([gone.id]))
        store.clock.advance(10)
        store.promote()

        assert store.job(low).priority == -32768
        assert store.enqueue(priority=32767, key="later").status == "existing"
        assert ids(store.claim(worker)) == [high.id, middle.id, low.id, later.id]

    def test_then_the_earlier_run_at(self, store: EngineUnderTest) -> None:
        """S0-33."""
        worker = store.announce()
        late = store.enqueue(run_at=store.clock.now - 10)
        early = store.enqueue(run_at=store.clock.now - 20)

        assert ids(store.claim(worker)) == [early.id, late.id]

    def test_then_the_lower_number(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        jobs = [store.enqueue() for _ in range(5)]

        assert ids(store.claim(worker)) == [job.id for job in jobs]

    def test_one_at_a_time_gives_the_same_order(self, store: EngineUnderTest) -> None:
        """S0-33, S1-2."""
        worker = store.announce()
        jobs = [store.enqueue(priority=priority) for priority in (1, 3, 1, 2)]
        order = [jobs[index].id for index in (1, 3, 0, 2)]

        assert [store.claim(worker, limit=1)[0].id for _ in jobs] == order

    def test_queues_stand_in_one_line(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        first = store.enqueue(queue="b")
        urgent = store.enqueue(queue="c", priority=1)
        last = store.enqueue(queue="a")

        assert ids(store.claim(worker, queues=["a", "b", "c"])) == [urgent.id, first.id, last.id]

    def test_an_urgent_newcomer_overtakes(self, store: EngineUnderTest) -> None:
        """X8: what a claim has passed once is not skipped for ever."""
        worker = store.announce()
        for _ in range(3):
            store.enqueue()
        store.claim(worker, limit=1)

        urgent = store.enqueue(priority=10)

        assert ids(store.claim(worker, limit=1)) == [urgent.id]

    def test_a_released_job_keeps_its_place(self, store: EngineUnderTest) -> None:
        """A3."""
        worker = store.announce()
        first = store.start(worker)
        store.clock.advance(10)
        second = store.enqueue()

        store.settle(worker, first, Ending.RELEASED)

        assert ids(store.claim(worker)) == [first.id, second.id]

    def test_promoted_jobs_stand_by_their_run_at(self, store: EngineUnderTest) -> None:
        """A3."""
        worker = store.announce()
        late = store.enqueue(delay=2_000)
        early = store.enqueue(delay=1_000)
        store.clock.advance(3_000)
        now = store.enqueue()
        store.promote()

        assert ids(store.claim(worker)) == [early.id, late.id, now.id]


class TestWants:
    """A worker gets what it asked for, and nothing else."""

    def test_only_wanted_tasks(self, store: EngineUnderTest) -> None:
        worker = store.announce(tasks=("mail", "work"))
        store.enqueue("mail", priority=9)
        job = store.enqueue("work")

        assert ids(store.claim(worker, tasks=["work"])) == [job.id]
        assert store.claim(worker, tasks=[]) == []

    def test_only_wanted_queues(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.enqueue(queue="other", priority=9)
        job = store.enqueue(queue="mine")

        assert ids(store.claim(worker, queues=["mine"])) == [job.id]
        assert store.claim(worker, queues=[]) == []

    def test_no_queues_named_means_all(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        jobs = [store.enqueue(queue=queue) for queue in ("a", "b")]

        assert ids(store.claim(worker, queues=None)) == [job.id for job in jobs]

    def test_each_want_by_itself(self, store: EngineUnderTest) -> None:
        worker = store.announce(tasks=("mail", "work"))
        works = [store.enqueue("work", priority=5) for _ in range(3)]
        mails = [store.enqueue("mail") for _ in range(3)]

        leases = store.engine.run(
            store.engine.claim(worker, [want(tasks=["work"], limit=2), want(tasks=["mail"], limit=1)])
        )

        assert ids(leases) == [works[0].id, works[1].id, mails[0].id]

    def test_overlapping_wants_share_without_repeating(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        jobs = [store.enqueue() for _ in range(3)]

        leases = store.engine.run(store.engine.claim(worker, [want(limit=2), want(limit=2)]))

        assert ids(leases) == [job.id for job in jobs]

    def test_jobs_of_unknown_tasks_in_front_hide_nothing(self, store: EngineUnderTest) -> None:
        """A17."""
        worker = store.announce()
        strangers = [store.spec("unknown", priority=100) for _ in range(2_000)]
        store.engine.run(store.engine.enqueue_many(strangers))
        job = store.enqueue()

        assert ids(store.claim(worker, limit=1)) == [job.id]
        assert store.counts().pending == 2_000


class TestRefusals:
    """What must not be started is not given out."""

    def test_not_before_it_is_due(self, store: EngineUnderTest) -> None:
        """S0-32, I10."""
        worker = store.announce()
        store.enqueue(delay=1_000, priority=9)
        store.clock.advance(999)
        store.promote()

        assert store.claim(worker) == []

    def test_not_after_it_has_expired(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        expired = store.enqueue(expires_in=1_000, priority=9)
        job = store.enqueue()
        store.clock.advance(1_001)

        assert ids(store.claim(worker, limit=1)) == [job.id]
        assert store.claim(worker) == []
        assert store.job(expired).state is State.PENDING

    def test_until_the_very_instant_of_expiry_it_may_start(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.enqueue(expires_in=1_000)
        store.clock.advance(1_000)

        assert len(store.claim(worker)) == 1

    def test_not_from_a_paused_queue(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        paused = store.enqueue(queue="paused", priority=9)
        open_ = store.enqueue(queue="open")
        store.engine.run(store.engine.configure(QueueSettings(name="paused", paused=True)))

        assert ids(store.claim(worker)) == [open_.id]

        store.engine.run(store.engine.configure(QueueSettings(name="paused")))
        assert ids(store.claim(worker)) == [paused.id]

    def test_not_to_a_worker_that_nobody_knows(self, store: EngineUnderTest) -> None:
        store.enqueue()

        assert store.claim(store.new_id()) == []
        assert store.counts().pending == 1

    def test_not_to_a_fenced_worker(self, store: EngineUnderTest) -> None:
        """I6."""
        worker = store.announce()
        store.enqueue()
        store.fence(worker)

        assert store.claim(worker) == []

    def test_not_to_a_worker_that_has_left(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.enqueue()
        store.engine.run(store.engine.leave(worker))

        assert store.claim(worker) == []

    def test_not_when_it_was_cancelled(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.cancel(store.enqueue())

        assert store.claim(worker) == []

    def test_an_expired_lease_alone_does_not_stop_a_claim(self, store: EngineUnderTest) -> None:
        """Whoever can claim is alive; only a fence says otherwise."""
        worker = store.announce()
        store.enqueue()
        store.clock.advance(3_600_000)

        assert len(store.claim(worker)) == 1
