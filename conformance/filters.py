"""Promises about filters: by whom a job is run, how it failed, since when it is stored; and how many there are."""

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.job import FailureKind, JobFilter, Lease, State
from shigoto.model.worker import Ending


def numbers(store: EngineUnderTest, wanted: JobFilter) -> list[int]:
    """What is found; every filter must find and count the same."""
    found = [job.number for job in store.find(wanted)]
    assert store.count(wanted) == len(found)
    return found


class TestByWorker:
    """Who runs it now."""

    def test_by_the_name_of_the_worker_that_runs_it(self, store: EngineUnderTest) -> None:
        mine, other = store.announce(name="host-1:1"), store.announce(name="host-1:12")
        lease = store.start(mine)
        store.start(other)
        store.enqueue()

        assert numbers(store, JobFilter(worker="host-1:1")) == [lease.number]
        assert numbers(store, JobFilter(worker="host-1:1", state=State.PROCESSING)) == [lease.number]
        assert numbers(store, JobFilter(worker="host-1")) == []

    def test_by_its_id(self, store: EngineUnderTest) -> None:
        worker, other = store.announce(), store.announce()
        lease = store.start(worker)
        store.start(other)

        assert numbers(store, JobFilter(worker=str(worker))) == [lease.number]
        assert numbers(store, JobFilter(worker=str(store.new_id()))) == []

    def test_workers_of_one_name_are_all_meant(self, store: EngineUnderTest) -> None:
        leases = [store.start(store.announce(name="w")) for _ in range(2)]

        assert numbers(store, JobFilter(worker="w")) == [lease.number for lease in reversed(leases)]

    def test_what_it_has_run_before_is_not_meant(self, store: EngineUnderTest) -> None:
        worker = store.announce(name="w")
        done, failed = store.start(worker), store.start(worker)
        store.settle(worker, done, Ending.COMPLETED)
        store.settle(worker, failed, Ending.ERRORED)

        assert numbers(store, JobFilter(worker="w")) == []
        assert numbers(store, JobFilter(worker=str(worker))) == []
        assert numbers(store, JobFilter(worker="w", state=State.COMPLETED)) == []

    def test_a_fenced_worker_runs_its_jobs_until_they_are_taken_from_it(self, store: EngineUnderTest) -> None:
        worker = store.announce(name="w")
        store.start(worker)

        store.fence(worker)

        assert numbers(store, JobFilter(worker="w")) == []


class TestByError:
    """Part of the error, as the job shows it."""

    def test_part_of_the_error_whatever_the_case_of_ascii_letters(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = fail(store, "OSError: Connection RESET by péer")
        fail(store, "ValueError: no")
        store.settle(worker, store.start(worker), Ending.COMPLETED)
        store.enqueue()

        for part in (
            "connection reset",
            "CONNECTION reset BY Péer",
            "OSError: Connection RESET by péer",
            "é",
        ):
            assert numbers(store, JobFilter(error=part)) == [lease.number], part
            assert numbers(store, JobFilter(error=part, state=State.FAILED)) == [lease.number], part
        assert numbers(store, JobFilter(error="PÉER")) == []
        assert numbers(store, JobFilter(error="connection  reset")) == []

    def test_signs_that_are_wild_elsewhere_are_ordinary_here(self, store: EngineUnderTest) -> None:
        percent, line = fail(store, "100% of a_b"), fail(store, "100 of axb")

        assert numbers(store, JobFilter(error="100%")) == [percent.number]
        assert numbers(store, JobFilter(error="a_b")) == [percent.number]
        assert numbers(store, JobFilter(error="0%o")) == []
        assert numbers(store, JobFilter(error="*")) == []
        assert numbers(store, JobFilter(error="100")) == [line.number, percent.number]

    def test_a_job_that_failed_before_is_found_while_it_waits_and_runs(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        ready, later = store.start(worker), store.start(worker)
        store.settle(worker, ready, Ending.ERRORED, error="first")
        store.settle(worker, later, Ending.ERRORED, error="first", delay=1_000)

        both = [later.number, ready.number]
        assert numbers(store, JobFilter(error="first")) == both
        assert numbers(store, JobFilter(error="first", state=State.PENDING)) == both
        assert numbers(store, JobFilter(error="first", state="retrying")) == both
        assert numbers(store, JobFilter(error="first", state="scheduled")) == [later.number]
        [again] = store.claim(worker)
        assert numbers(store, JobFilter(error="first", state=State.PROCESSING)) == [ready.number]
        store.settle(worker, again, Ending.ERRORED, error="second")
        assert numbers(store, JobFilter(error="first")) == [later.number]
        assert numbers(store, JobFilter(error="second")) == [ready.number]

    def test_only_the_error_that_the_job_shows(self, store: EngineUnderTest) -> None:
        """A success, a retry and a crash that is nobody's fault show none."""
        worker = store.announce()
        mended, cancelled, retried, crashed = (store.start(worker) for _ in range(4))
        store.settle(worker, mended, Ending.ERRORED, error="broke")
        [again] = store.claim(worker)
        store.settle(worker, again, Ending.COMPLETED)
        store.settle(worker, cancelled, Ending.CANCELLED, error="broke off")
        store.settle(worker, retried, Ending.FAILED, error="broke")
        store.retry(retried)
        store.settle(worker, crashed, Ending.CRASHED, error="broke")

        shown = [job.number for job in store.find() if job.error is not None]
        assert numbers(store, JobFilter(error="broke")) == shown == [cancelled.number]
        assert numbers(store, JobFilter(error="broke", state=State.COMPLETED)) == []
        assert numbers(store, JobFilter(error="broke", state=State.BLOCKED)) == []

    def test_no_part_at_all_means_any_error(self, store: EngineUnderTest) -> None:
        lease = fail(store, "x")
        store.enqueue()

        assert numbers(store, JobFilter(error="")) == [lease.number]

    def test_in_pages_over_all_states(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        found: list[int] = []
        for ending in (Ending.FAILED, Ending.ERRORED, Ending.CANCELLED, Ending.FAILED):
            lease = store.start(worker)
            store.settle(worker, lease, ending, error="x", delay=60_000)
            found.insert(0, lease.number)

        first = store.find(JobFilter(error="x", limit=2))
        second = store.find(JobFilter(error="x", limit=2, before=first[-1].number))

        assert [job.number for job in (*first, *second)] == found

    def test_with_the_kind_of_failure(self, store: EngineUnderTest) -> None:
        lease = fail(store, "x", kind=FailureKind.TIMEOUT)
        fail(store, "x")

        assert numbers(store, JobFilter(error="x", failure_kind=FailureKind.TIMEOUT)) == [lease.number]


class TestSince:
    """When it was stored, not when it is due."""

    def test_from_that_instant_on(self, store: EngineUnderTest) -> None:
        store.enqueue(delay=60_000)
        store.clock.advance(10)
        at_it = store.enqueue(run_at=0)
        store.clock.advance(10)
        after = store.enqueue()

        since = store.clock.now - 10
        assert numbers(store, JobFilter(since=since)) == [after.number, at_it.number]
        assert numbers(store, JobFilter(since=since, state=State.PENDING)) == [after.number, at_it.number]
        assert numbers(store, JobFilter(since=store.clock.now + 1)) == []

    def test_when_it_was_stored_stays_whatever_happens_to_it(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        old = store.start(worker)
        store.settle(worker, old, Ending.FAILED)
        store.clock.advance(10)
        store.retry(old)

        assert numbers(store, JobFilter(since=store.clock.now)) == []

    def test_jobs_stored_after_the_clock_was_set_back_do_not_hide_older_ones(
        self, store: EngineUnderTest
    ) -> None:
        store.clock.advance(3_600_000)
        late = store.enqueue()
        since = store.clock.now
        store.clock.advance(-3_600_000)
        store.enqueue()

        assert numbers(store, JobFilter(since=since)) == [late.number]


class TestCount:
    """How many, at once."""

    def test_by_state_and_queue(self, store: EngineUnderTest) -> None:
        """S0-40."""
        worker = store.announce()
        running, done = store.start(worker), store.start(worker)
        store.settle(worker, done, Ending.COMPLETED)
        fail(store, "x")
        store.cancel(store.enqueue())
        store.enqueue(delay=1_000)
        store.enqueue(queue="other")

        for state in State:
            assert store.count(JobFilter(state=state)) == len(store.find(JobFilter(state=state)))
        assert store.count(JobFilter()) == 6
        assert store.count(JobFilter(state="scheduled")) == 1
        assert store.count(JobFilter(state="retrying")) == 0
        assert store.count(JobFilter(queue="default")) == 5
        assert store.count(JobFilter(queue="other", state=State.PENDING)) == 1
        assert store.count(JobFilter(queue="unheard-of")) == 0
        assert store.count(JobFilter(worker="worker")) == 1
        store.settle(worker, running, Ending.ERRORED)
        assert store.count(JobFilter(state="retrying")) == 1

    def test_whatever_page_was_asked_for(self, store: EngineUnderTest) -> None:
        jobs = [store.enqueue(tags='["red"]', payload='{"a":1}') for _ in range(25)]
        last = jobs[-1].number

        for wanted in (
            JobFilter(limit=1, before=last),
            JobFilter(limit=1, before=1, state=State.PENDING),
            JobFilter(limit=0, tag="red"),
            JobFilter(limit=1, before=last, tag="red", state=State.PENDING),
            JobFilter(limit=1, before=last, args=(("a", "1"),)),
        ):
            assert store.count(wanted) == 25


def fail(
    store: EngineUnderTest, error: str, *, kind: FailureKind = FailureKind.ERROR, payload: str = "{}"
) -> Lease:
    """A job that has failed with this error."""
    worker = store.announce(name="failing")
    lease = store.start(worker, payload=payload)
    store.settle(worker, lease, Ending.FAILED, error=error, failure_kind=kind)
    return lease
