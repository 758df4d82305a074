"""Promises about unique keys: one job at a time for each (tenant, key), asked for one by one or many at once."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.errors import KeyTaken
from shigoto.model.job import (
    KEY_MODES,
    Counts,
    Enqueued,
    FailureKind,
    Job,
    JobFilter,
    JobSpec,
    KeyMode,
    Lease,
    State,
)
from shigoto.model.time import to_datetime
from shigoto.model.worker import Ending, SweepOrder, Verdict

KEEP_NOTHING = SweepOrder(keep_completed_for=0, keep_failed_for=0, keep_cancelled_for=0)

# What a second request with the same key gets, by its mode and the state of the job that holds the key:
# (status, whether it is the holder).
TABLE: dict[KeyMode, dict[State, tuple[str, bool]]] = {
    "keep": {
        State.PENDING: ("existing", True),
        State.PROCESSING: ("existing", True),
        State.COMPLETED: ("inserted", False),
        State.FAILED: ("inserted", False),
        State.CANCELLED: ("inserted", False),
    },
    "replace": {
        State.PENDING: ("replaced", True),
        State.PROCESSING: ("inserted", False),
        State.COMPLETED: ("inserted", False),
        State.FAILED: ("inserted", False),
        State.CANCELLED: ("inserted", False),
    },
    "preserve_run_at": {
        State.PENDING: ("replaced", True),
        State.PROCESSING: ("inserted", False),
        State.COMPLETED: ("inserted", False),
        State.FAILED: ("inserted", False),
        State.CANCELLED: ("inserted", False),
    },
    "unsafe_dedupe": {
        State.PENDING: ("existing", True),
        State.PROCESSING: ("existing", True),
        State.COMPLETED: ("existing", True),
        State.FAILED: ("existing", True),
        State.CANCELLED: ("existing", True),
    },
}
ROWS = [(mode, state, *answer) for mode, row in TABLE.items() for state, answer in row.items()]


Wanted = list[tuple[dict[str, Any], int | None]]

KEYS = ("k", "l", "m")
NOBODY = UUID(int=0)
ENDINGS = {"completed": Ending.COMPLETED, "failed": Ending.FAILED, "retrying": Ending.ERRORED}

# What the jobs are like that hold the keys before.
holders = st.dictionaries(
    st.sampled_from(KEYS), st.sampled_from(["pending", "later", "processing", "cancelled", *ENDINGS])
)
asked = st.fixed_dictionaries(
    {
        "key": st.sampled_from([None, *KEYS]),
        "key_mode": st.sampled_from(KEY_MODES),
        "queue": st.sampled_from(["a", "b"]),
        "priority": st.sampled_from([0, 1, -1]),
        "delay": st.sampled_from([0, 0, 500]),
        "run_at": st.sampled_from([None, None, 5]),
        "expires_in": st.sampled_from([None, None, 400, 30_000]),
        "max_failures": st.integers(1, 3),
        "max_crashes": st.sampled_from([None, 2]),
        "retry": st.sampled_from([None, '{"base":1}']),
        "timeout": st.sampled_from([None, 7]),
        "tags": st.sampled_from([None, '["x"]']),
        "meta": st.sampled_from([None, r'{"y":"\u0000"}']),
        "alone": st.booleans(),
    }
)
# By their places: a later request may have the id of an earlier one.
places = st.lists(st.tuples(asked, st.sampled_from([None, None, None, 0, 1])), min_size=1, max_size=12)


def holder_in(store: EngineUnderTest, state: State) -> Enqueued:
    """A job that holds the key `k` and is in the given state."""
    worker = store.announce()
    job = store.enqueue(key="k", payload='"first"')
    if state is State.CANCELLED:
        store.cancel(job)
    elif state is not State.PENDING:
        [lease] = store.claim(worker)
        if state is not State.PROCESSING:
            ending = Ending.COMPLETED if state is State.COMPLETED else Ending.FAILED
            store.settle(worker, lease, ending)
    assert store.job(job).state is state
    return job


class TestKeyTable:
    """The whole table, and what it means for the jobs."""

    @pytest.mark.parametrize(("mode", "state", "status", "same"), ROWS)
    def test_each_mode_meets_each_state_as_the_table_says(
        self, store: EngineUnderTest, mode: KeyMode, state: State, status: str, same: bool
    ) -> None:
        first = holder_in(store, state)

        second = store.enqueue(key="k", key_mode=mode, payload='"second"')

        assert second.status == status
        assert ((second.id, second.number) == (first.id, first.number)) is same
        replaced = second.status == "replaced"
        assert store.job(first).payload == ('"second"' if replaced else '"first"')
        assert store.job(first).state is state

    @pytest.mark.parametrize("mode", list(TABLE))
    def test_a_free_key_is_taken(self, store: EngineUnderTest, mode: KeyMode) -> None:
        assert store.enqueue(key="k", key_mode=mode).status == "inserted"

    @pytest.mark.parametrize("mode", list(TABLE))
    def test_without_a_key_nothing_is_unique(self, store: EngineUnderTest, mode: KeyMode) -> None:
        assert [store.enqueue(key_mode=mode).status for _ in range(2)] == ["inserted"] * 2

    def test_the_newest_job_holds_the_key(self, store: EngineUnderTest) -> None:
        holder_in(store, State.COMPLETED)
        second = store.enqueue(key="k")

        third = store.enqueue(key="k")

        assert (third.id, third.status) == (second.id, "existing")

    def test_in_one_batch_the_list_order_decides(self, store: EngineUnderTest) -> None:
        specs = [
            store.spec(key="k", payload='"1"'),
            store.spec(key="k", payload='"2"'),
            store.spec(key="k", payload='"3"', key_mode="replace"),
            store.spec(key="other"),
        ]

        enqueued = store.engine.run(store.engine.enqueue_many(specs))

        assert [job.status for job in enqueued] == ["inserted", "existing", "replaced", "inserted"]
        assert {job.id for job in enqueued[:3]} == {specs[0].id}
        assert store.job(enqueued[0]).payload == '"3"'


class TestKeyScope:
    """A key is the tenant's own, and is one over all tasks and queues."""

    def test_tenants_do_not_meet(self, store: EngineUnderTest) -> None:
        """I15."""
        first = store.enqueue(key="k", tenant="a")

        assert store.enqueue(key="k", tenant="b").status == "inserted"
        assert store.enqueue(key="k").status == "inserted"
        assert store.enqueue(key="k", tenant="a").id == first.id

    def test_tasks_and_queues_do_meet(self, store: EngineUnderTest) -> None:
        first = store.enqueue("mail", queue="letters", key="k")

        assert store.enqueue("work", queue="default", key="k").id == first.id

    def test_a_pruned_job_frees_its_key(self, store: EngineUnderTest) -> None:
        first = holder_in(store, State.COMPLETED)
        store.clock.advance(1)
        store.sweep(KEEP_NOTHING)

        again = store.enqueue(key="k", key_mode="unsafe_dedupe")

        assert (again.status, again.id == first.id) == ("inserted", False)

    def test_a_deleted_job_frees_its_key(self, store: EngineUnderTest) -> None:
        holder_in(store, State.PENDING)
        store.delete(JobFilter(state=State.PENDING, limit=10))

        assert store.enqueue(key="k").status == "inserted"

    def test_pruning_an_older_job_leaves_the_key_with_the_newer(self, store: EngineUnderTest) -> None:
        holder_in(store, State.COMPLETED)
        second = store.enqueue(key="k")
        store.clock.advance(1)
        assert store.sweep(KEEP_NOTHING).pruned == 1

        assert store.enqueue(key="k").id == second.id


class TestReplace:
    """A replaced job is new work under an old name."""

    def test_everything_that_was_asked_is_replaced(self, store: EngineUnderTest) -> None:
        store.enqueue(key="k", delay=1_000, expires_in=9_000, tags='["old"]', meta='"old"')

        replaced = store.enqueue(
            "mail",
            queue="letters",
            payload='"new"',
            key="k",
            key_mode="replace",
            priority=5,
            delay=7_000,
            max_failures=2,
        )

        job = store.job(replaced)
        assert (job.task, job.queue, job.payload, job.priority) == ("mail", "letters", '"new"', 5)
        assert job.run_at == to_datetime(store.clock.now + 7_000)
        assert (job.expires_at, job.tags, job.meta, job.max_failures) == (None, (), None, 2)
        assert (store.counts("default").pending, store.counts("letters").pending) == (0, 1)

    def test_counts_follow_a_replaced_job_to_its_new_queue(self, store: EngineUnderTest) -> None:
        store.enqueue(queue="old", key="k")
        store.sweep()

        store.enqueue(queue="new", key="k", key_mode="replace")

        assert (store.counts("old"), store.counts("new")) == (Counts(), Counts(pending=1))

    def test_a_replaced_job_is_claimed_as_the_new_one_only(self, store: EngineUnderTest) -> None:
        worker = store.announce(tasks=("work", "mail"))
        store.enqueue(key="k")
        replaced = store.enqueue("mail", queue="letters", key="k", key_mode="replace", timeout=5_000)

        assert store.claim(worker, tasks=["work"]) == []
        [lease] = store.claim(worker, tasks=["mail"], queues=["letters"])

        assert (lease.id, lease.timeout) == (replaced.id, 5_000)

    def test_a_job_brought_forward_is_ready_at_once(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.enqueue(key="k", delay=60_000)

        replaced = store.enqueue(key="k", key_mode="replace")

        assert [lease.id for lease in store.claim(worker)] == [replaced.id]

    def test_a_job_put_off_is_no_longer_ready(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.enqueue(key="k")

        store.enqueue(key="k", key_mode="replace", delay=60_000)

        assert store.claim(worker) == []
        assert store.counts().scheduled == 1

    def test_failures_and_what_the_old_work_left_are_forgotten(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker, key="k", max_failures=2)
        store.report(worker, lease, progress=0.5, progress_text="half", checkpoint='"half"')
        store.settle(worker, lease, Ending.ERRORED, error="broke")

        store.enqueue(key="k", key_mode="replace", max_failures=2)

        job = store.job(lease)
        assert (job.failures, job.error, job.progress, job.progress_text) == (0, None, None, None)
        [again] = store.claim(worker)
        assert (again.failures, again.checkpoint, again.token) == (0, None, lease.token + 1)

    def test_preserve_run_at_keeps_the_time_of_a_job_that_has_not_failed(
        self, store: EngineUnderTest
    ) -> None:
        """S3-36: the time stays; that the rest is replaced is the price of the name."""
        first = store.enqueue(key="k", delay=5_000)
        due = store.job(first).run_at
        store.clock.advance(1_000)

        store.enqueue(key="k", key_mode="preserve_run_at", delay=60_000, payload='"new"')

        assert (store.job(first).run_at, store.job(first).payload) == (due, '"new"')

    def test_preserve_run_at_does_not_keep_the_wait_of_a_retry(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker, key="k")
        store.settle(worker, lease, Ending.ERRORED, delay=3_600_000)

        store.enqueue(key="k", key_mode="preserve_run_at", delay=1_000)

        assert store.job(lease).run_at == to_datetime(store.clock.now + 1_000)

    @pytest.mark.parametrize(
        "key",
        [
            "expire_tentative:store-1",
            "aggregate_daily_sales:store-1:2026-05-05",
            "purge_customer_notes:store-1:2026-04-28T15:00:00Z",
            "cleanup_customers:store-1:2026-02-05T17:00:00Z",
        ],
    )
    @pytest.mark.parametrize("mode", ["keep", "preserve_run_at"])
    def test_a_scheduler_that_runs_twice_adds_no_second_job(
        self, store: EngineUnderTest, key: str, mode: KeyMode
    ) -> None:
        """S3-32, S3-33, S3-34, S3-35, S3-36, S3-58 in both readings of C13."""
        first = store.enqueue(key=key, key_mode=mode, delay=5_000)
        due = store.job(first).run_at
        store.clock.advance(1_000)

        second = store.enqueue(key=key, key_mode=mode, delay=5_000)

        assert second.id == first.id
        assert store.job(first).run_at == due
        assert store.counts().pending == 1


class TestSuperseded:
    """A running job whose key has moved on may complete, but never runs again."""

    def test_the_new_job_can_run_beside_the_old(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        old = store.start(worker, key="k")

        new = store.enqueue(key="k", key_mode="replace")

        assert [lease.id for lease in store.claim(worker)] == [new.id]
        assert store.job(old).state is State.PROCESSING

    def test_it_may_complete(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        old = store.start(worker, key="k")
        store.enqueue(key="k", key_mode="replace")

        assert store.settle(worker, old, Ending.COMPLETED, result="1") is Verdict.ACCEPTED
        assert store.job(old).state is State.COMPLETED

    @pytest.mark.parametrize("ending", [Ending.ERRORED, Ending.SNOOZED, Ending.RELEASED, Ending.CRASHED])
    def test_it_is_not_run_again(self, store: EngineUnderTest, ending: Ending) -> None:
        worker = store.announce()
        old = store.start(worker, key="k")
        new = store.enqueue(key="k", key_mode="replace", delay=1_000)

        store.settle(worker, old, ending)

        job = store.job(old)
        assert (job.state, job.failure_kind) == (State.FAILED, FailureKind.SUPERSEDED)
        assert store.enqueue(key="k").id == new.id

    def test_it_is_not_rescued_either(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        old = store.start(worker, key="k")
        store.enqueue(key="k", key_mode="preserve_run_at", delay=1_000)

        [rescued] = store.fence(worker).rescued

        assert (rescued.id, rescued.state) == (old.id, State.FAILED)
        assert store.job(old).failure_kind is FailureKind.SUPERSEDED


class TestKeyAndRetry:
    """An operator's retry takes the key back, if nobody lives on it."""

    def test_a_key_in_use_refuses_the_retry(self, store: EngineUnderTest) -> None:
        first = holder_in(store, State.FAILED)
        second = store.enqueue(key="k")

        with pytest.raises(KeyTaken, match=str(second.id)):
            store.retry(first)

        assert store.job(first).state is State.FAILED

    def test_a_key_of_an_ended_job_is_taken_back(self, store: EngineUnderTest) -> None:
        first = holder_in(store, State.FAILED)
        store.cancel(store.enqueue(key="k"))

        store.retry(first)

        assert store.enqueue(key="k").id == first.id

    def test_two_jobs_of_one_key_cannot_both_be_retried(self, store: EngineUnderTest) -> None:
        first = holder_in(store, State.FAILED)
        second = store.enqueue(key="k")
        store.cancel(second)

        with pytest.raises(KeyTaken):
            store.engine.run(store.engine.retry([first.id, second.id]))

        assert [store.job(job).state for job in (first, second)] == [State.FAILED, State.CANCELLED]

    def test_a_superseded_job_that_is_retried_is_a_job_like_others(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        old = store.start(worker, key="k")
        store.cancel(store.enqueue(key="k", key_mode="replace"))
        store.settle(worker, old, Ending.ERRORED)
        store.retry(old)

        [again] = store.claim(worker)
        store.settle(worker, again, Ending.ERRORED)

        assert store.job(old).state is State.PENDING


class Side:
    """One of the two: they share a store, and nothing else, for keys are their tenants' own."""

    def __init__(self, store: EngineUnderTest, name: str) -> None:
        self.store = store
        self.name = name
        self.worker = store.announce()
        self.holders: list[Enqueued] = []
        self.running: list[Lease] = []

    def prepare(self, held: dict[str, str]) -> None:
        """Have the keys held."""
        for key, state in sorted(held.items()):
            delay = 9_000 if state == "later" else 0
            job = self.store.enqueue(
                self.name, tenant=self.name, key=key, delay=delay, queue=f"a-{self.name}"
            )
            self.holders.append(job)
            if state == "cancelled":
                self.store.cancel(job)
            elif state not in ("pending", "later"):
                leases = self.store.claim(self.worker, tasks=(self.name,))
                self.running += [lease for lease in leases if lease.id != job.id or state == "processing"]
                [lease] = [lease for lease in leases if lease.id == job.id]
                if state in ENDINGS:
                    self.store.settle(self.worker, lease, ENDINGS[state], delay=700)

    def specs(self, wanted: Wanted) -> list[JobSpec]:
        """The requests, each with a payload that is found again."""
        made: list[JobSpec] = []
        for index, (options, same) in enumerate(wanted):
            spec = self.store.spec(self.name, tenant=self.name, payload=f'{{"n":{index}}}', **options)
            id = spec.id if same is None or same >= index else made[same].id
            made.append(structs.replace(spec, id=id, queue=f"{spec.queue}-{self.name}"))
        return made

    def picture(self, specs: list[JobSpec], answers: list[Enqueued]) -> list[object]:
        """What has come of it, in words that do not tell the sides apart."""
        for lease in self.running:  # who was superseded is told so when its run fails
            self.store.settle(self.worker, lease, Ending.ERRORED, delay=700)
        ids = [*(job.id for job in self.holders), *(spec.id for spec in specs)]
        jobs = self.store.engine.run(self.store.engine.get(ids))
        order = sorted({job.number for job in jobs if job is not None})
        return [
            [(ids.index(answer.id), order.index(answer.number), answer.status) for answer in answers],
            [None if job is None else _seen(job, order.index(job.number)) for job in jobs],
            [self.store.counts(f"{queue}-{self.name}") for queue in "ab"],
        ]


class TestKeysInBulk:
    """A2: one request with many specs, or many with one each."""

    def test_many_at_once_come_to_the_same_as_one_by_one(self, store: EngineUnderTest) -> None:
        rounds = count(1)

        @settings(
            max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
        )
        @given(holders, places)
        def play(held: dict[str, str], wanted: Wanted) -> None:
            number = next(rounds)
            bulk, single = Side(store, f"bulk_{number}"), Side(store, f"single_{number}")
            bulk.prepare(held)
            single.prepare(held)
            together, apart = bulk.specs(wanted), single.specs(wanted)

            at_once = store.engine.run(store.engine.enqueue_many(together))
            one_by_one = [store.engine.run(store.engine.enqueue_many([spec]))[0] for spec in apart]

            assert bulk.picture(together, at_once) == single.picture(apart, one_by_one)

        play()

    def test_more_than_a_thousand_meet_each_other(self, store: EngineUnderTest) -> None:
        specs = [store.spec(key=f"k{index % 1_100}", payload=str(index)) for index in range(2_500)]

        answers = store.engine.run(store.engine.enqueue_many(specs))

        assert [answer.status for answer in answers] == ["inserted"] * 1_100 + ["existing"] * 1_400
        assert [answer.id for answer in answers] == [specs[index % 1_100].id for index in range(2_500)]
        assert store.counts().pending == 1_100

    def test_batches_that_meet_in_any_order_store_each_key_once(self, store: EngineUnderTest) -> None:
        """Nobody waits in a circle, and nobody is told of a job that is not there."""
        rounds = 5
        batches = [
            [store.spec(key=f"{turn}-{index * step % 97}") for index in range(1, 97)]
            for turn in range(rounds)
            for step in (1, 96, 5, 37)
        ]

        def enqueue(batch: list[JobSpec]) -> list[Enqueued]:
            return store.engine.run(store.engine.enqueue_many(batch))

        with ThreadPoolExecutor(4) as threads:
            answered = list(threads.map(enqueue, batches))

        answers = [answer for batch in answered for answer in batch]
        inserted = [answer for answer in answers if answer.status == "inserted"]
        assert len(inserted) == store.counts().pending == 96 * rounds
        assert {answer.id for answer in answers} == {answer.id for answer in inserted}


def _seen(job: Job, place: int) -> tuple[object, ...]:
    return job.queue[0], structs.replace(
        job, id=NOBODY, number=place, queue="", tenant="", task="", worker=None
    )
