"""Promises about what people see: get, find, stats, oldest, settings, workers."""

from datetime import datetime
from typing import Literal
from uuid import UUID

import pytest
from msgspec import structs

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.job import Counts, Enqueued, FailureKind, Job, JobFilter, Lease, QueueSettings, State
from shigoto.model.time import to_datetime
from shigoto.model.worker import LEASE, Announcement, Ending, WorkerRecord


def numbers(jobs: list[Job]) -> list[int]:
    """The numbers of the jobs."""
    return [job.number for job in jobs]


class TestGet:
    """By id."""

    def test_jobs_come_in_the_order_of_the_ids(self, store: EngineUnderTest) -> None:
        """S1-25."""
        first, second = store.enqueue(), store.enqueue()

        found = store.engine.run(store.engine.get([second.id, store.new_id(), first.id]))

        assert [job and job.id for job in found] == [second.id, None, first.id]

    def test_a_job_is_shown_with_all_that_was_asked_for(self, store: EngineUnderTest) -> None:
        plain = store.enqueue()
        asked = store.enqueue(
            max_crashes=None, retry='{"kind":"linear"}', timeout=60_000, soft_timeout=0, alone=True
        )

        def shown(job: Job) -> tuple[object, ...]:
            return job.max_crashes, job.retry, job.timeout, job.soft_timeout, job.alone, job.suspect

        assert shown(store.job(plain)) == (3, None, None, None, False, False)
        assert shown(store.job(asked)) == (None, '{"kind":"linear"}', 60_000, 0, True, False)

    def test_no_ids_no_jobs(self, store: EngineUnderTest) -> None:
        assert store.engine.run(store.engine.get([])) == []


class TestFind:
    """By filter, newest first, in pages."""

    def test_the_newest_come_first(self, store: EngineUnderTest) -> None:
        """S0-41."""
        jobs = [store.enqueue(priority=priority) for priority in (2, 3, 1)]

        assert numbers(store.find()) == [job.number for job in reversed(jobs)]

    def test_at_most_the_limit_which_is_twenty_unless_said(self, store: EngineUnderTest) -> None:
        """S0-41, S0-43."""
        store.engine.run(store.engine.enqueue_many([store.spec() for _ in range(25)]))

        assert len(store.find(JobFilter())) == 20
        assert len(store.find(JobFilter(limit=3))) == 3

    @pytest.mark.parametrize("state", [None, State.FAILED])
    def test_failures_by_their_kind(self, store: EngineUnderTest, state: State | None) -> None:
        worker = store.announce()
        failed: dict[FailureKind, Lease] = {}
        for kind in (FailureKind.TIMEOUT, FailureKind.REJECTED, FailureKind.ERROR):
            failed[kind] = store.start(worker)
            store.settle(worker, failed[kind], Ending.FAILED, failure_kind=kind)
        store.enqueue()

        for kind, lease in failed.items():
            assert numbers(store.find(JobFilter(state=state, failure_kind=kind))) == [lease.number]
        assert store.find(JobFilter(state=state, failure_kind=FailureKind.CRASH_LOOP)) == []

    @pytest.mark.parametrize("state", [State.PENDING, State.COMPLETED, State.CANCELLED, "scheduled"])
    def test_what_has_not_failed_has_no_kind_of_failure(
        self, store: EngineUnderTest, state: State | Literal["scheduled"]
    ) -> None:
        one_of_each(store)

        assert store.find(JobFilter(state=state, failure_kind=FailureKind.ERROR)) == []

    def test_pages_follow_each_other(self, store: EngineUnderTest) -> None:
        jobs = [store.enqueue() for _ in range(5)]

        first = store.find(JobFilter(limit=2))
        second = store.find(JobFilter(limit=2, before=first[-1].number))
        third = store.find(JobFilter(limit=2, before=second[-1].number))

        pages = [*first, *second, *third]
        assert numbers(pages) == [job.number for job in reversed(jobs)]

    @pytest.mark.parametrize("state", [*(state for state in State if state is not State.BLOCKED)])
    def test_by_state(self, store: EngineUnderTest, state: State) -> None:
        """S0-41, S1-9."""
        jobs = one_of_each(store)

        assert [job.id for job in store.find(JobFilter(state=state))] == [jobs[state].id]

    def test_by_the_view_scheduled(self, store: EngineUnderTest) -> None:
        store.enqueue()
        later = store.enqueue(delay=1_000)

        assert numbers(store.find(JobFilter(state="scheduled"))) == [later.number]
        assert len(store.find(JobFilter(state=State.PENDING))) == 2

    def test_by_the_view_retrying(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        waiting, running = store.start(worker), store.start(worker)
        store.settle(worker, running, Ending.ERRORED)
        store.claim(worker)
        store.settle(worker, waiting, Ending.ERRORED, delay=1_000)
        store.enqueue()

        assert numbers(store.find(JobFilter(state="retrying"))) == [waiting.number]

    def test_by_queue_task_tenant_and_key(self, store: EngineUnderTest) -> None:
        wanted = store.enqueue("mail", queue="letters", tenant="shop-1", key="k")
        store.enqueue()

        for wish in (
            JobFilter(queue="letters"),
            JobFilter(task="mail"),
            JobFilter(tenant="shop-1"),
            JobFilter(key="k"),
            JobFilter(queue="letters", task="mail", tenant="shop-1", key="k", state=State.PENDING),
        ):
            assert numbers(store.find(wish)) == [wanted.number]
        assert store.find(JobFilter(queue="letters", task="work")) == []

    def test_no_tenant_is_a_tenant_too(self, store: EngineUnderTest) -> None:
        store.enqueue(tenant="shop-1")
        plain = store.enqueue()

        assert numbers(store.find(JobFilter(tenant=""))) == [plain.number]

    def test_by_tag(self, store: EngineUnderTest) -> None:
        wanted = store.enqueue(tags='["red","big"]')
        store.enqueue(tags='["red-ish"]')
        store.enqueue()

        assert numbers(store.find(JobFilter(tag="red"))) == [wanted.number]
        assert store.find(JobFilter(tag="blue")) == []

    def test_by_key_also_finds_the_ended_ones(self, store: EngineUnderTest) -> None:
        old = store.enqueue(key="k")
        store.cancel(old)
        new = store.enqueue(key="k")

        assert numbers(store.find(JobFilter(key="k"))) == [new.number, old.number]

    def test_find_and_get_tell_the_same(self, store: EngineUnderTest) -> None:
        one_of_each(store)

        for job in store.find():
            assert store.engine.run(store.engine.get([job.id])) == [job]


class TestStats:
    """Exact counts."""

    def test_counts_by_queue_and_state(self, store: EngineUnderTest) -> None:
        """S0-40."""
        one_of_each(store)
        store.enqueue(delay=1_000)
        store.enqueue(queue="other")

        assert store.counts() == Counts(
            pending=2, scheduled=1, processing=1, completed=1, failed=1, cancelled=1
        )
        assert store.counts("other") == Counts(pending=1)
        assert store.counts("unheard-of") == Counts()

    def test_counts_follow_every_move(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        job = store.enqueue(delay=1_000)
        assert store.counts() == Counts(pending=1, scheduled=1)
        store.clock.advance(1_000)
        store.promote()
        assert store.counts() == Counts(pending=1)
        [lease] = store.claim(worker)
        assert store.counts() == Counts(processing=1)
        store.settle(worker, lease, Ending.ERRORED, delay=5)
        assert store.counts() == Counts(pending=1, scheduled=1)
        store.cancel(job)
        assert store.counts() == Counts(cancelled=1)
        store.retry(job)
        assert store.counts() == Counts(pending=1)
        store.claim(worker)
        store.fence(worker)
        assert store.counts() == Counts(pending=1)
        store.delete(JobFilter(state=State.PENDING, limit=1))
        assert store.counts() == Counts()

    def test_a_refused_settlement_counts_nothing(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.COMPLETED)

        store.settle(worker, lease, Ending.COMPLETED)
        store.settle(store.announce(), lease, Ending.FAILED)

        assert store.counts() == Counts(completed=1)


class TestOldest:
    """By queue, since when its longest waiting job could have been claimed."""

    def test_it_is_the_earliest_of_all_tasks_and_priorities(self, store: EngineUnderTest) -> None:
        """S3-44, S3-67: a queue's lag."""
        first = store.enqueue(priority=-5)
        store.clock.advance(1_000)
        store.enqueue(priority=5)
        store.enqueue("play")
        store.clock.advance(1_000)
        second = store.enqueue(queue="other", priority=9)

        assert _oldest(store) == {"default": store.job(first).run_at, "other": store.job(second).run_at}

    def test_what_runs_and_what_is_due_later_does_not_wait(self, store: EngineUnderTest) -> None:
        assert _oldest(store) == {}

        store.enqueue()
        later = store.enqueue(delay=60_000)
        store.claim(store.announce())
        assert _oldest(store) == {}

        store.clock.advance(61_000)
        store.promote()
        assert _oldest(store) == {"default": store.job(later).run_at}

    def test_a_paused_queue_has_an_oldest_job_too(self, store: EngineUnderTest) -> None:
        job = store.enqueue()
        store.engine.run(store.engine.configure(QueueSettings(name="default", paused=True)))

        assert _oldest(store) == {"default": store.job(job).run_at}

    def test_only_what_could_run_now_counts_and_the_longest_wait_is_told(
        self, store: EngineUnderTest
    ) -> None:
        store.start(store.announce(), queue="busy")
        begun = store.clock.now
        store.enqueue(queue="mail", priority=-5)
        store.enqueue(queue="later", delay=60_000)
        store.clock.advance(1_000)
        store.enqueue(queue="mail", priority=7)
        store.enqueue("other", queue="mail")
        store.enqueue(queue="old", run_at=5)

        assert store.engine.run(store.engine.oldest()) == {"mail": begun, "old": begun + 1_000}


def _oldest(store: EngineUnderTest) -> dict[str, datetime]:
    told = store.engine.run(store.engine.oldest())
    return {queue: to_datetime(at) for queue, at in told.items()}


class TestSettings:
    """Every queue that there is, by name."""

    def test_a_queue_exists_from_its_first_job_or_setting_on(self, store: EngineUnderTest) -> None:
        store.enqueue(queue="b")
        store.engine.run(store.engine.configure(QueueSettings(name="c", paused=True)))
        store.enqueue(queue="a", delay=1_000)

        assert store.engine.run(store.engine.settings()) == [
            QueueSettings(name="a"),
            QueueSettings(name="b"),
            QueueSettings(name="c", paused=True),
        ]

    def test_and_stays_when_its_jobs_are_gone(self, store: EngineUnderTest) -> None:
        store.enqueue(queue="a")
        store.delete(JobFilter(state=State.PENDING, limit=1))

        assert store.engine.run(store.engine.settings()) == [QueueSettings(name="a")]


class TestWorkers:
    """Who is there, and what they have in hand."""

    def test_a_worker_is_shown_as_it_announced_itself(self, store: EngineUnderTest) -> None:
        """A17."""
        worker = store.new_id()
        said = Announcement(
            id=worker,
            name="host-1:42",
            tasks=("work", "mail"),
            queues=("default",),
            slots=10,
            version="1",
            host="host-1",
            pid=42,
            isolates=True,
        )
        store.engine.run(store.engine.announce(said))
        store.start(worker)

        assert store.engine.run(store.engine.workers()) == [
            WorkerRecord(
                id=worker,
                name="host-1:42",
                tasks=("work", "mail"),
                queues=("default",),
                slots=10,
                version="1",
                host="host-1",
                pid=42,
                isolates=True,
                stopping=False,
                started_at=to_datetime(store.clock.now),
                lease_until=to_datetime(store.clock.now + LEASE),
                fenced_at=None,
                processing=1,
            )
        ]

    def test_one_that_is_stopping_says_so(self, store: EngineUnderTest) -> None:
        said = Announcement(id=store.new_id(), name="w", tasks=(), queues=None, slots=1, version="1")
        for stopping in (False, True):
            store.engine.run(store.engine.announce(structs.replace(said, stopping=stopping)))

        [record] = store.engine.run(store.engine.workers())
        assert (record.stopping, record.isolates, record.host, record.pid) == (True, False, "", 0)

    def test_the_oldest_comes_first_and_those_who_left_are_gone(self, store: EngineUnderTest) -> None:
        workers: list[UUID] = []
        for _ in range(3):
            workers.append(store.announce())
            store.clock.advance(1)
        store.engine.run(store.engine.leave(workers[1]))

        listed = [record.id for record in store.engine.run(store.engine.workers())]

        assert listed == [workers[0], workers[2]]

    def test_a_sweep_tells_the_shortest_lease(self, store: EngineUnderTest) -> None:
        """So that whoever sweeps for others knows how often."""
        assert store.sweep().shortest_lease is None
        store.announce()
        short = store.announce(lease=LEASE // 3)
        store.clock.advance(LEASE // 3 + 1)
        swept = store.sweep()

        assert (swept.shortest_lease, swept.expired_workers) == (LEASE // 3, (short,))
        store.sweep(fence=(short,))
        assert store.sweep().shortest_lease == LEASE

    def test_leaving_twice_is_fine(self, store: EngineUnderTest) -> None:
        worker = store.announce()

        for _ in range(2):
            store.engine.run(store.engine.leave(worker))

        assert store.engine.run(store.engine.workers()) == []


class TestOwners:
    """By which token a worker came to the store. A server says it, so this is for engines at the store itself."""

    @pytest.mark.parametrize("owner", ["0123456789abcdef", None])
    def test_the_owner_comes_back_and_stays(self, store: EngineUnderTest, owner: str | None) -> None:
        """S20."""
        said = Announcement(
            id=store.new_id(), name="w", tasks=(), queues=None, slots=1, version="1", owner=owner
        )
        for announcement in (said, structs.replace(said, name="v", owner="another")):
            store.engine.run(store.engine.announce(announcement))

            [record] = store.engine.run(store.engine.workers())
            assert (record.name, record.owner) == (announcement.name, owner)


def one_of_each(store: EngineUnderTest) -> dict[State, Enqueued]:
    """One job in each state; blocked is not to be had yet."""
    worker = store.announce()
    jobs: dict[State, Enqueued] = {
        state: store.enqueue() for state in State if state not in (State.BLOCKED, State.PENDING)
    }
    endings = {
        jobs[State.COMPLETED].id: Ending.COMPLETED,
        jobs[State.FAILED].id: Ending.FAILED,
        jobs[State.CANCELLED].id: Ending.CANCELLED,
    }
    for lease in store.claim(worker):
        if lease.id in endings:
            store.settle(worker, lease, endings[lease.id])
    jobs[State.PENDING] = store.enqueue()
    return jobs
