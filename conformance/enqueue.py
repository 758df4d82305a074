"""Promises about jobs as they come in."""

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.job import State
from shigoto.model.time import to_datetime
from shigoto.model.worker import Ending


class TestEnqueue:
    """What is acknowledged is stored, once, as it was asked for."""

    def test_a_new_job_is_pending_and_due_now(self, store: EngineUnderTest) -> None:
        """S0-14, S1-9."""
        enqueued = store.enqueue(payload='{"to":"a"}')

        job = store.job(enqueued)
        assert enqueued.status == "inserted"
        assert (job.state, job.payload) == (State.PENDING, '{"to":"a"}')
        assert job.run_at == job.created_at == to_datetime(store.clock.now)
        assert (job.started_at, job.finished_at, job.worker) == (None, None, None)

    def test_a_job_keeps_everything_it_was_asked_with(self, store: EngineUnderTest) -> None:
        """S0-61."""
        enqueued = store.enqueue(
            "mail",
            queue="letters",
            payload='{"to":"あ"}',
            tenant="shop-1",
            priority=-7,
            expires_at=store.clock.now + 9_000,
            key="letter:1",
            max_failures=9,
            tags='["a","b"]',
            meta='{"trace":"1"}',
        )

        job = store.job(enqueued)
        assert (job.id, job.number) == (enqueued.id, enqueued.number)
        assert (job.task, job.queue, job.payload, job.tenant) == ("mail", "letters", '{"to":"あ"}', "shop-1")
        assert (job.priority, job.key, job.max_failures) == (-7, "letter:1", 9)
        assert (job.tags, job.meta) == (("a", "b"), '{"trace":"1"}')
        assert job.expires_at == to_datetime(store.clock.now + 9_000)

    def test_priority_is_zero_unless_said(self, store: EngineUnderTest) -> None:
        """S0-7."""
        assert store.job(store.enqueue()).priority == 0

    def test_nothing_counts_against_a_new_job(self, store: EngineUnderTest) -> None:
        """S0-9."""
        job = store.job(store.enqueue())

        assert (job.attempt, job.failures, job.crashes, job.releases, job.snoozes) == (0, 0, 0, 0, 0)

    def test_answers_come_in_the_order_of_the_requests(self, store: EngineUnderTest) -> None:
        """S1-25."""
        specs = [store.spec(priority=priority) for priority in (1, 3, 2)]

        enqueued = store.engine.run(store.engine.enqueue_many(specs))

        assert [job.id for job in enqueued] == [spec.id for spec in specs]
        assert sorted(job.number for job in enqueued) == [job.number for job in enqueued]

    def test_numbers_rise(self, store: EngineUnderTest) -> None:
        """S0-3."""
        numbers = [store.enqueue().number for _ in range(5)]

        assert numbers == sorted(set(numbers))

    def test_a_large_batch_is_stored_whole(self, store: EngineUnderTest) -> None:
        specs = [store.spec(queue=f"queue-{index % 3}") for index in range(1_000)]

        enqueued = store.engine.run(store.engine.enqueue_many(specs))

        assert {job.status for job in enqueued} == {"inserted"}
        assert [store.counts(f"queue-{index}").pending for index in range(3)] == [334, 333, 333]

    def test_an_empty_batch_is_fine(self, store: EngineUnderTest) -> None:
        assert store.engine.run(store.engine.enqueue_many([])) == []

    def test_an_op_does_nothing_until_it_is_run(self, store: EngineUnderTest) -> None:
        store.engine.enqueue_many([store.spec()])

        assert store.find() == []


class TestTheSameId:
    """A client that did not hear the answer asks again; that must not make a second job."""

    def test_asking_again_finds_the_first_job(self, store: EngineUnderTest) -> None:
        """I7."""
        first = store.enqueue(payload='"first"')

        again = store.enqueue(id=first.id, payload='"second"', priority=9)

        assert (again.id, again.number, again.status) == (first.id, first.number, "existing")
        assert (store.job(first).payload, store.job(first).priority) == ('"first"', 0)
        assert store.counts().pending == 1

    def test_an_ended_job_is_not_run_again(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.COMPLETED)

        again = store.enqueue(id=lease.id)

        assert again.status == "existing"
        assert store.job(lease).state is State.COMPLETED
        assert store.claim(worker) == []

    def test_twice_in_one_batch_is_once(self, store: EngineUnderTest) -> None:
        spec = store.spec()

        enqueued = store.engine.run(store.engine.enqueue_many([spec, spec]))

        assert [job.status for job in enqueued] == ["inserted", "existing"]
        assert enqueued[0].number == enqueued[1].number

    def test_the_id_is_asked_before_the_key(self, store: EngineUnderTest) -> None:
        first = store.enqueue(key="k", payload='"first"')

        again = store.enqueue(id=first.id, key="k", key_mode="replace", payload='"second"')

        assert again.status == "existing"
        assert store.job(first).payload == '"first"'

    def test_a_batch_takes_the_new_and_leaves_the_known(self, store: EngineUnderTest) -> None:
        known = store.enqueue()

        enqueued = store.engine.run(
            store.engine.enqueue_many([store.spec(), store.spec(id=known.id), store.spec()])
        )

        assert [job.status for job in enqueued] == ["inserted", "existing", "inserted"]
        assert store.counts().pending == 3


class TestWhen:
    """The store's clock dates everything that is relative."""

    def test_a_delay_is_counted_by_the_store(self, store: EngineUnderTest) -> None:
        """S0-11, S0-65."""
        job = store.job(store.enqueue(delay=3_600_000))

        assert job.run_at == to_datetime(store.clock.now + 3_600_000)
        assert job.state is State.PENDING
        assert store.counts().scheduled == 1

    def test_an_absolute_time_is_taken_as_written(self, store: EngineUnderTest) -> None:
        """S0-11, S0-61."""
        job = store.job(store.enqueue(run_at=store.clock.now + 1_234))

        assert job.run_at == to_datetime(store.clock.now + 1_234)

    def test_a_time_that_has_passed_is_ready_at_once(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        job = store.enqueue(run_at=store.clock.now - 5_000)

        assert store.counts().scheduled == 0
        assert [lease.id for lease in store.claim(worker)] == [job.id]
        assert store.job(job).run_at == to_datetime(store.clock.now - 5_000)

    def test_a_relative_expiry_is_counted_from_the_enqueue(self, store: EngineUnderTest) -> None:
        job = store.job(store.enqueue(delay=1_000, expires_in=5_000))

        assert job.expires_at == to_datetime(store.clock.now + 5_000)
