"""Promises about many callers at once: threads, asyncio tasks, and a second engine on the same store."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from uuid import UUID

import pytest
from msgspec.structs import replace

from conformance.engine_under_test import EngineUnderTest, ended, want
from shigoto.engine.op import Op
from shigoto.engine.open import open_engine
from shigoto.model.errors import Unsupported
from shigoto.model.job import State
from shigoto.model.worker import Death, Ending, Verdict

T = TypeVar("T")

THREADS = 4
JOBS = 120
# Long enough for a slow machine; a promise that holds is never waited for that long.
PATIENCE = 10.0


def in_threads(work: Callable[[int], T]) -> list[T]:
    """Call `work` in several threads at once, each with its own index, which take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(work, range(THREADS)))
    finally:
        sys.setswitchinterval(usual)


class TestThreads:
    """One engine object, many threads."""

    def test_every_job_is_run_exactly_once(self, store: EngineUnderTest) -> None:
        """S0-35, S0-68."""
        store.engine.run(store.engine.enqueue_many([store.spec() for _ in range(JOBS)]))
        workers = [store.announce() for _ in range(THREADS)]

        def drain(index: int) -> list[UUID]:
            done: list[UUID] = []
            while leases := store.claim(workers[index], limit=3):
                for lease in leases:
                    assert store.settle(workers[index], lease, Ending.COMPLETED) is Verdict.ACCEPTED
                    done.append(lease.id)
            return done

        runs = Counter(job for done in in_threads(drain) for job in done)

        assert (len(runs), set(runs.values())) == (JOBS, {1})
        assert store.counts().completed == JOBS

    def test_many_producers_lose_nothing(self, store: EngineUnderTest) -> None:
        """I1."""
        batches = [[store.spec() for _ in range(25)] for _ in range(THREADS)]

        def produce(index: int) -> list[UUID]:
            return [store.engine.run(store.engine.enqueue_many([spec]))[0].id for spec in batches[index]]

        enqueued = {job for ids in in_threads(produce) for job in ids}

        assert enqueued == {job.id for job in store.find()}
        assert store.counts().pending == 25 * THREADS

    def test_one_id_is_one_job(self, store: EngineUnderTest) -> None:
        """I7."""
        spec = store.spec()

        answers = in_threads(lambda _: store.engine.run(store.engine.enqueue_many([spec]))[0])

        assert Counter(answer.status for answer in answers) == {"inserted": 1, "existing": THREADS - 1}
        assert {answer.number for answer in answers} == {store.find()[0].number}

    def test_one_key_is_one_job(self, store: EngineUnderTest) -> None:
        specs = [store.spec(key="k") for _ in range(THREADS)]

        answers = in_threads(lambda index: store.engine.run(store.engine.enqueue_many([specs[index]]))[0])

        assert Counter(answer.status for answer in answers) == {"inserted": 1, "existing": THREADS - 1}
        assert len({answer.id for answer in answers}) == 1

    def test_one_lease_is_settled_once(self, store: EngineUnderTest) -> None:
        """I4."""
        worker = store.announce()
        lease = store.start(worker)

        verdicts = in_threads(lambda _: store.settle(worker, lease, Ending.ERRORED))

        assert Counter(verdicts) == {Verdict.ACCEPTED: 1, Verdict.REPEATED: THREADS - 1}
        assert store.job(lease).failures == 1

    def test_a_cancel_and_a_claim_agree(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        jobs = [store.enqueue() for _ in range(40)]

        def cancel_from_the_back() -> list[UUID]:
            return [
                job.id
                for job in reversed(jobs)
                if store.engine.run(store.engine.cancel([job.id])) == [State.CANCELLED]
            ]

        def claim_from_the_front() -> list[UUID]:
            return [lease.id for _ in jobs for lease in store.claim(worker, limit=1)]

        with ThreadPoolExecutor(2) as pool:
            cancelling, claiming = pool.submit(cancel_from_the_back), pool.submit(claim_from_the_front)
            cancelled, claimed = set(cancelling.result()), set(claiming.result())

        assert not cancelled & claimed
        assert cancelled | claimed == {job.id for job in jobs}


class TestTasks:
    """One engine object, many tasks of one event loop."""

    def test_ops_that_wait_together_all_get_their_own_answer(self, store: EngineUnderTest) -> None:
        specs = [store.spec() for _ in range(50)]

        async def all_at_once() -> list[UUID]:
            ops = (store.engine.arun(store.engine.enqueue_many([spec])) for spec in specs)
            return [job.id for [job] in await asyncio.gather(*ops)]

        assert asyncio.run(all_at_once()) == [spec.id for spec in specs]
        assert store.counts().pending == 50

    def test_an_op_that_fails_takes_no_other_with_it(self, store: EngineUnderTest) -> None:
        """Whatever shares a commit, each op is all or nothing by itself."""
        specs = [store.spec() for _ in range(10)]
        missing = [store.new_id() for _ in range(3)]

        async def good_and_bad() -> list[object]:
            good = [store.engine.arun(store.engine.enqueue_many([spec])) for spec in specs]
            bad = [store.engine.arun(store.engine.retry([id_])) for id_ in missing]
            return list(await asyncio.gather(*good[:5], *bad, *good[5:], return_exceptions=True))

        answers = asyncio.run(good_and_bad())

        assert sum(isinstance(answer, Exception) for answer in answers) == 3
        assert store.counts().pending == 10

    def test_no_two_tasks_get_the_same_job(self, store: EngineUnderTest) -> None:
        """S0-68."""
        workers = [store.announce() for _ in range(4)]
        store.engine.run(store.engine.enqueue_many([store.spec() for _ in range(JOBS)]))

        async def drain(worker: UUID) -> list[UUID]:
            done: list[UUID] = []
            while leases := await store.engine.arun(store.engine.claim(worker, [want(limit=2)])):
                await store.engine.arun(
                    store.engine.settle(worker, [ended(lease, Ending.COMPLETED) for lease in leases])
                )
                done += [lease.id for lease in leases]
            return done

        async def all_at_once() -> list[UUID]:
            return [job for done in await asyncio.gather(*map(drain, workers)) for job in done]

        runs = Counter(asyncio.run(all_at_once()))

        assert (len(runs), set(runs.values())) == (JOBS, {1})

    def test_what_follows_a_commit_follows_it_once(self, store: EngineUnderTest) -> None:
        heard: list[object] = []

        def with_ear(op: Op[T]) -> Op[T]:
            return replace(op, committed=heard.append)

        async def all_at_once() -> list[object]:
            ops = [with_ear(store.engine.enqueue_many([store.spec()])) for _ in range(5)]
            return [*await asyncio.gather(*map(store.engine.arun, ops))]

        answers = asyncio.run(all_at_once())

        assert sorted(map(repr, heard)) == sorted(map(repr, answers))

    def test_what_follows_a_commit_does_not_follow_a_failure(self, store: EngineUnderTest) -> None:
        heard: list[object] = []
        op = store.engine.retry([store.new_id()])

        with pytest.raises(Exception, match="no job"):
            store.engine.run(replace(op, committed=heard.append))

        assert heard == []


class TestDoorbell:
    """Whoever waits hears of new work at once; how soon is not promised, polling alone is correct."""

    def test_a_ring_reaches_the_waiter(self, store: EngineUnderTest) -> None:
        async def wait() -> bool:
            doorbell = store.engine.listen()
            try:
                waiting = asyncio.create_task(doorbell.wait(PATIENCE))
                await asyncio.to_thread(store.enqueue)
                return await waiting
            finally:
                doorbell.close()

        assert asyncio.run(wait())

    def test_a_ring_before_the_wait_is_not_lost(self, store: EngineUnderTest) -> None:
        async def wait() -> bool:
            doorbell = store.engine.listen()
            try:
                await store.engine.arun(store.engine.enqueue_many([store.spec()]))
                return await doorbell.wait(PATIENCE)
            finally:
                doorbell.close()

        assert asyncio.run(wait())

    def test_every_waiter_hears_it(self, store: EngineUnderTest) -> None:
        async def wait() -> list[bool]:
            doorbells = [store.engine.listen() for _ in range(3)]
            try:
                await store.engine.arun(store.engine.enqueue_many([store.spec()]))
                return list(await asyncio.gather(*(doorbell.wait(PATIENCE) for doorbell in doorbells)))
            finally:
                for doorbell in doorbells:
                    doorbell.close()

        assert asyncio.run(wait()) == [True, True, True]

    @pytest.mark.parametrize("done", ["report_dead", "cancel", "force"])
    def test_what_frees_a_job_or_takes_it_away_rings_too(self, store: EngineUnderTest, done: str) -> None:
        worker = store.announce()
        lease = store.start(worker)
        doing: dict[str, Callable[[], Op[Any]]] = {
            "report_dead": lambda: store.engine.report_dead(worker, [Death(number=lease.number)]),
            "cancel": lambda: store.engine.cancel([lease.id]),
            "force": lambda: store.engine.cancel([lease.id], force=True),
        }

        async def wait() -> bool:
            doorbell = store.engine.listen()
            try:
                await store.engine.arun(doing[done]())
                return await doorbell.wait(PATIENCE)
            finally:
                doorbell.close()

        assert asyncio.run(wait())

    def test_silence_ends_the_wait_in_time(self, store: EngineUnderTest) -> None:
        async def wait() -> bool:
            doorbell = store.engine.listen()
            try:
                return await asyncio.wait_for(doorbell.wait(0.01), PATIENCE)  # else a TimeoutError
            finally:
                doorbell.close()
                doorbell.close()

        # It may ring for nothing, but it must come back.
        assert asyncio.run(wait()) in (True, False)

    def test_a_bell_whose_loop_is_gone_harms_nobody(self, store: EngineUnderTest) -> None:
        async def listen() -> None:
            store.engine.listen()

        asyncio.run(listen())

        assert store.enqueue().status == "inserted"


class TestClosing:
    """Resources can be given back at any time."""

    def test_closing_twice_is_fine_and_a_later_call_opens_again(self, store: EngineUnderTest) -> None:
        job = store.enqueue()
        store.engine.close()
        store.engine.close()

        assert store.stored(job)

    def test_migrating_again_changes_nothing(self, store: EngineUnderTest) -> None:
        job = store.enqueue()
        store.engine.migrate()

        assert store.engine.migrate() == []
        assert store.stored(job)


class TestSecondEngine:
    """Two engine objects on one store are like two processes."""

    def test_both_see_the_same_jobs(self, store: EngineUnderTest) -> None:
        """S1-8."""
        other = store.open_again()
        assert (other is not None) is store.engine.capabilities.shared
        if other is None:
            return
        job = store.enqueue()

        [found] = other.run(other.get([job.id]))
        other.close()

        assert found == store.job(job)

    def test_the_address_leads_every_process_to_the_same_store(self, store: EngineUnderTest) -> None:
        job = store.enqueue()
        if not store.engine.capabilities.shared:
            with pytest.raises(Unsupported, match="this process only"):
                _ = store.engine.address
            return

        other = open_engine(store.engine.address)
        [found] = other.run(other.get([job.id]))
        other.close()

        assert found == store.job(job)

    def test_no_job_is_given_out_twice(self, store: EngineUnderTest) -> None:
        """S0-35, S0-57, S0-68."""
        other = store.open_again()
        if other is None:
            return
        workers = [store.announce(), store.announce()]
        engines = [store.engine, other]
        store.engine.run(store.engine.enqueue_many([store.spec() for _ in range(JOBS)]))

        def drain(index: int) -> list[UUID]:
            engine, worker = engines[index % 2], workers[index % 2]
            done: list[UUID] = []
            while leases := engine.run(engine.claim(worker, [want(limit=2)])):
                done += [lease.id for lease in leases]
            return done

        runs = Counter(job for done in in_threads(drain) for job in done)
        other.close()

        assert (len(runs), set(runs.values())) == (JOBS, {1})

    def test_a_ring_of_one_reaches_the_other(self, store: EngineUnderTest) -> None:
        other = store.open_again()
        if other is None:
            return

        async def wait() -> bool:
            doorbell = other.listen()
            try:
                waiting = asyncio.create_task(doorbell.wait(PATIENCE))
                await asyncio.to_thread(store.enqueue)
                return await waiting
            finally:
                doorbell.close()

        heard = asyncio.run(wait())
        other.close()

        assert heard
