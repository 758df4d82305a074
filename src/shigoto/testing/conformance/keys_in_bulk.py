"""Promises about many keyed jobs at once: they come to what they would come to one by one."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from shigoto.model.job import KEY_MODES, Enqueued, Job, JobSpec, Lease
from shigoto.model.outcome import Ending
from shigoto.testing.conformance.fixture import EngineUnderTest

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
