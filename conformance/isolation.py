"""Promises about jobs that run alone: where they wait, and who is given them."""

from uuid import UUID

import pytest

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.job import JobFilter, Lease, QueueSettings, State
from shigoto.model.worker import Ending


def ids(leases: list[Lease]) -> list[UUID]:
    """The jobs of the leases."""
    return [lease.id for lease in leases]


class TestAlone:
    """Jobs that need a process of their own, and who gets them."""

    def test_a_want_chooses_by_whether_jobs_run_alone(self, store: EngineUnderTest) -> None:
        """A18."""
        worker = store.announce()
        apart, ordinary = store.enqueue(alone=True), store.enqueue()

        assert ids(store.claim(worker, alone=False)) == [ordinary.id]
        [lease] = store.claim(worker, alone=True)
        assert (lease.id, lease.alone, lease.solo) == (apart.id, True, False)

    def test_a_want_that_takes_either_keeps_the_order_of_all(self, store: EngineUnderTest) -> None:
        """A3."""
        worker = store.announce()
        jobs = [store.enqueue(alone=alone) for alone in (True, False, False, True, False)]
        urgent = store.enqueue(priority=1, alone=True)

        assert ids(store.claim(worker)) == [urgent.id, *(job.id for job in jobs)]

    def test_suspects_wait_beside_the_others_of_their_task(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        suspect = store.start(worker)
        store.settle(worker, suspect, Ending.CRASHED)
        ordinary = store.enqueue()

        assert ids(store.claim(worker, alone=False)) == [ordinary.id]
        assert ids(store.claim(worker, alone=True)) == [suspect.id]

    def test_one_that_is_cleared_waits_with_the_others_again(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.settle(worker, store.start(worker), Ending.CRASHED)
        [suspect] = store.claim(worker, alone=True)
        store.settle(worker, suspect, Ending.ERRORED, delay=500)
        store.clock.advance(500)
        store.promote()

        assert store.claim(worker, alone=True) == []
        assert ids(store.claim(worker, alone=False)) == [suspect.id]

    def test_one_that_asked_for_it_is_never_with_the_others(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        job = store.enqueue(alone=True)
        for ending in (Ending.CRASHED, Ending.ERRORED, Ending.RELEASED):
            assert store.claim(worker, alone=False) == []
            [lease] = store.claim(worker, alone=True)
            store.settle(worker, lease, ending)

        assert (store.job(job).alone, store.job(job).suspect) == (True, False)

    @pytest.mark.parametrize("delay", [0, 60_000])
    def test_a_suspect_can_be_cancelled_and_deleted(self, store: EngineUnderTest, delay: int) -> None:
        worker = store.announce()
        leases = [store.start(worker) for _ in range(2)]
        for lease in leases:
            store.settle(worker, lease, Ending.CRASHED, delay=delay)

        assert store.cancel(leases[0]) is State.CANCELLED
        assert store.delete(JobFilter(state=State.PENDING, limit=9)) == 1

        assert not store.stored(leases[1])
        assert (store.counts().pending, store.counts().cancelled) == (0, 1)

    def test_a_suspect_that_is_replaced_stays_one(self, store: EngineUnderTest) -> None:
        """A1, A11."""
        worker = store.announce(tasks=("work", "mail"))
        lease = store.start(worker, key="k")
        store.settle(worker, lease, Ending.CRASHED)

        replaced = store.enqueue("mail", key="k", key_mode="replace", queue="letters")

        assert replaced.id == lease.id
        assert store.claim(worker, tasks=("work", "mail"), alone=False) == []
        [again] = store.claim(worker, tasks=("work", "mail"), alone=True)
        assert (again.id, again.task, again.queue, again.solo) == (lease.id, "mail", "letters", True)

    def test_they_count_for_their_queue_as_all_others(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        here, there = store.start(worker), store.start(worker, queue="b")
        store.settle(worker, here, Ending.CRASHED)
        store.settle(worker, there, Ending.CRASHED, delay=5_000)
        for alone in (True, False):
            store.enqueue(alone=alone)

        assert (store.counts().pending, store.counts("b").pending, store.counts("b").scheduled) == (3, 1, 1)

    def test_a_paused_queue_keeps_them_too(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        store.enqueue(alone=True, queue="b")
        store.engine.run(store.engine.configure(QueueSettings(name="b", paused=True)))

        assert store.claim(worker, alone=True) == []
