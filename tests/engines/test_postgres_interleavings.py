"""What several sessions do to each other's jobs at the worst moment: nothing is lost, nobody waits in a circle, and
what must go on waits for nobody (docs/decisions/0016, the order of locks)."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import psycopg
import pytest

from conformance.engine_under_test import EngineUnderTest, ended, want
from devtools.postgres import Server
from shigoto.engine.op import Op
from shigoto.engine.postgres import PostgresEngine
from shigoto.model.errors import JobNotFound
from shigoto.model.job import FailureKind, KeyMode, Lease, State
from shigoto.model.worker import Announcement, Ending, Report, SweepOrder, Verdict
from tests.engines.stepping import Stepper, stepping
from tests.postgres import ServerClock, Yard, make_store_on_test_time

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

SOON = 1_000  # milliseconds that somebody waits for a lock who should wait for none

Step = Callable[..., Stepper[Any]]


@pytest.fixture
def address(postgres: Server, postgres_yard: Yard, postgres_major: int) -> Iterator[str]:
    assert postgres.running
    with postgres_yard.emptied(postgres_major, make_store_on_test_time) as address:
        yield address


@pytest.fixture
def store(address: str) -> Iterator[EngineUnderTest]:
    with ServerClock(address) as clock, closing(PostgresEngine(address)) as engine:
        yield EngineUnderTest(engine, clock)


@pytest.fixture
def step(address: str) -> Iterator[Step]:
    with stepping(address) as step:
        yield step


@pytest.fixture
def caller(address: str) -> Iterator[psycopg.Connection]:
    """A caller's connection, with a transaction that stays open."""
    with closing(psycopg.connect(address)) as connection:
        connection.execute("SELECT 1")
        yield connection


def completion(store: EngineUnderTest, worker: UUID, leases: list[Lease]) -> Op[list[Verdict]]:
    return store.engine.settle(worker, [ended(lease, Ending.COMPLETED) for lease in leases])


def keyed(store: EngineUnderTest, mode: KeyMode = "keep", **options: Any) -> Op[Any]:
    return store.engine.enqueue_many([store.spec(key="k", key_mode=mode, **options)])


class TestNobodyWaitsForASweep:
    @pytest.mark.parametrize("name", ["renew_clock", "turn"])
    def test_beats_and_sweeps_pass_one_that_stands_still(
        self, store: EngineUnderTest, step: Step, name: str
    ) -> None:
        """A worker whose sweep hangs, because its loop is blocked or it was stopped, must not cost others their
        leases."""
        worker = store.announce()
        store.clock.advance(10_000)
        hanging = step(store.engine.sweep(SweepOrder(unknown_after=60_000))).past(name)

        assert not step(store.engine.beat(worker, []), patience=SOON).finish().fenced
        step(store.engine.sweep(SweepOrder(unknown_after=60_000)), patience=SOON).finish()
        hanging.finish()

    def test_a_sweep_passes_one_that_has_done_everything_but_commit(
        self, store: EngineUnderTest, step: Step
    ) -> None:
        dead, orphan = store.announce(), store.announce()
        store.start(orphan)
        store.enqueue(expires_in=1_000)
        store.enqueue("unknown")
        [old] = store.engine.run(store.engine.enqueue_many([store.spec(key="old")]))
        store.engine.run(store.engine.cancel([old.id]))
        store.clock.advance(100_000)
        order = SweepOrder(fence=(dead, orphan), unknown_after=60_000, keep_cancelled_for=1)
        first = step(store.engine.sweep(order)).to_the_end()

        second = step(store.engine.sweep(order), patience=SOON).finish()

        assert (second.fenced, second.rescued, second.expired, second.pruned) == ((), (), 0, 0)
        swept = first.finish()
        assert (len(swept.fenced), len(swept.rescued), swept.expired, swept.pruned) == (2, 1, 1, 1)

    def test_a_sweep_fences_nobody_who_is_beating_just_now(self, store: EngineUnderTest, step: Step) -> None:
        worker = store.announce()
        store.clock.advance(100_000)
        beat = step(store.engine.beat(worker, [])).to_the_end()

        assert step(store.engine.sweep(SweepOrder(fence=(worker,))), patience=SOON).finish().fenced == ()
        assert not beat.finish().fenced

    def test_an_announcement_passes_a_sweep_that_has_found_its_task_unknown(
        self, store: EngineUnderTest, step: Step
    ) -> None:
        store.enqueue()
        store.sweep(SweepOrder(unknown_after=60_000))
        sweep = step(store.engine.sweep(SweepOrder(unknown_after=60_000))).to_the_end()
        known = Announcement(id=store.new_id(), name="w", tasks=("work",), queues=None, slots=1, version="1")

        step(store.engine.announce(known), patience=SOON).finish()
        sweep.finish()


class TestCallersThatStayOpen:
    @pytest.mark.parametrize("mode", ["keep", "unsafe_dedupe"])
    def test_an_open_transaction_that_was_answered_existing_holds_nobody_up(
        self, store: EngineUnderTest, step: Step, caller: psycopg.Connection, mode: KeyMode
    ) -> None:
        """A1: untouched."""
        worker = store.announce()
        held = store.start(worker, key="k")
        other = store.start(worker)

        [answer] = store.engine.join(caller, keyed(store, mode))

        assert (answer.id, answer.status) == (held.id, "existing")
        settled = step(completion(store, worker, [held, other]), patience=SOON).finish()
        assert settled == [Verdict.ACCEPTED] * 2

    @pytest.mark.parametrize("mode", ["keep", "unsafe_dedupe"])
    def test_the_job_that_was_found_can_be_claimed(
        self, store: EngineUnderTest, caller: psycopg.Connection, mode: KeyMode
    ) -> None:
        worker, job = store.announce(), store.enqueue(key="k")

        store.engine.join(caller, keyed(store, mode))

        assert [lease.id for lease in store.claim(worker)] == [job.id]

    @pytest.mark.parametrize("mode", ["keep", "replace", "preserve_run_at", "unsafe_dedupe"])
    def test_a_sweep_passes_a_job_that_has_expired_and_is_held(
        self, store: EngineUnderTest, step: Step, caller: psycopg.Connection, mode: KeyMode
    ) -> None:
        """T16: what is locked is expired by a later sweep, unless it was replaced by something that does not expire."""
        first, another = store.enqueue(key="k", expires_in=1_000), store.enqueue(expires_in=1_000)
        store.clock.advance(2_000)
        store.engine.join(caller, keyed(store, mode))

        swept = step(store.engine.sweep(SweepOrder()), patience=SOON).finish()

        assert store.job(another).failure_kind is FailureKind.EXPIRED
        caller.rollback()
        assert swept.expired + store.sweep().expired == 2
        assert store.job(first).failure_kind is FailureKind.EXPIRED

    def test_a_running_holder_that_was_replaced_waits_for_the_caller_and_then_ends(
        self, store: EngineUnderTest, step: Step, caller: psycopg.Connection
    ) -> None:
        """docs/guides/keys.md says so."""
        worker = store.announce()
        held = store.start(worker, key="k")
        store.engine.join(caller, keyed(store, "replace"))
        settling = step(store.engine.settle(worker, [ended(held, Ending.ERRORED, delay=0)])).meanwhile()

        assert not settling.ended
        caller.commit()

        assert settling.result() == [Verdict.ACCEPTED]
        assert store.job(held).failure_kind is FailureKind.SUPERSEDED


class TestExpiry:
    def test_a_job_that_was_claimed_in_the_last_moment_expires_when_it_comes_back(
        self, store: EngineUnderTest, step: Step
    ) -> None:
        """T16: a sweep that has looked before the claim was committed must not forget when it expires."""
        worker, job = store.announce(), store.enqueue(expires_in=1_000)
        store.clock.advance(999)
        claim = step(store.engine.claim(worker, [want()])).to_the_end()
        store.clock.advance(2)
        sweep = step(store.engine.sweep(SweepOrder()), patience=SOON).past("due_expiries")
        [lease] = claim.finish()
        assert sweep.finish().expired == 0

        store.settle(worker, lease, Ending.ERRORED, delay=0)

        assert store.claim(worker) == []
        assert store.sweep().expired == 1
        assert store.job(job).failure_kind is FailureKind.EXPIRED

    def test_an_instant_that_was_replaced_while_it_was_looked_at_ends_nothing(
        self, store: EngineUnderTest, step: Step, caller: psycopg.Connection
    ) -> None:
        """A statement sees what was there at its begin, and locks what is there now."""
        job = store.enqueue(expires_in=1_000)
        store.clock.advance(1_001)
        sweep = step(store.engine.sweep(SweepOrder())).past("due_expiries")
        caller.execute("UPDATE shigoto.expiry SET expires_at = expires_at + 1000")
        caller.commit()

        assert sweep.finish().expired == 0
        assert store.job(job).state is State.PENDING

    def test_what_somebody_has_left_behind_by_hand_is_forgotten(
        self, store: EngineUnderTest, caller: psycopg.Connection
    ) -> None:
        first, second = store.enqueue(expires_in=1_000), store.enqueue(expires_in=1_000)
        caller.execute("DELETE FROM shigoto.job WHERE number = %s", [first.number])
        caller.execute("DELETE FROM shigoto.ready")
        caller.commit()
        store.clock.advance(1_001)

        assert store.sweep().expired == 0
        assert second.number > first.number
        assert caller.execute("SELECT count(*) FROM shigoto.expiry").fetchone() == (0,)


class TestDeletedMeanwhile:
    def test_a_cancel_finds_it_gone(self, store: EngineUnderTest, step: Step) -> None:
        job = store.enqueue()
        cancel = step(store.engine.cancel([job.id])).past("known_ids")
        store.engine.run(store.engine.delete([job.number], [State.PENDING]))

        assert cancel.finish() == [None]

    def test_a_retry_finds_it_gone(self, store: EngineUnderTest, step: Step) -> None:
        job = store.enqueue(key="k")
        store.engine.run(store.engine.cancel([job.id]))
        retry = step(store.engine.retry([job.id])).past("known_ids")
        store.engine.run(store.engine.delete([job.number], [State.CANCELLED]))

        with pytest.raises(JobNotFound):
            retry.finish()

    @pytest.mark.parametrize("mode", ["keep", "replace"])
    def test_its_key_is_free(self, store: EngineUnderTest, step: Step, mode: KeyMode) -> None:
        job = store.enqueue(key="k")
        enqueue = step(keyed(store, mode)).past("lock_keys")
        store.engine.run(store.engine.delete([job.number], [State.PENDING]))

        [answer] = enqueue.finish()

        assert answer.status == "inserted"
        assert store.enqueue(key="k").id == answer.id


def test_the_same_id_again_does_not_supersede_itself(store: EngineUnderTest, step: Step) -> None:
    """A2: the answer to the first was lost, and its commit is under way."""
    worker, spec = store.announce(), store.spec(key="k", key_mode="replace")
    first = step(store.engine.enqueue_many([spec])).to_the_end()
    second = step(store.engine.enqueue_many([spec])).meanwhile()
    first.finish()
    [answer] = second.result()
    [lease] = store.claim(worker)

    store.settle(worker, lease, Ending.ERRORED, delay=0)

    assert (answer.id, answer.status) == (spec.id, "existing")
    assert store.job(lease).state is State.PENDING


def test_a_claim_that_outlives_its_worker_makes_nobody_a_suspect(store: EngineUnderTest, step: Step) -> None:
    """C4: the server carries on what a killed process has asked for, and it has never run."""
    worker, job = store.announce(), store.enqueue()
    claim = step(store.engine.claim(worker, [want()])).to_the_end()
    store.report_dead(worker)
    claim.finish()

    [rescued] = store.sweep().rescued

    found = store.job(job)
    assert (rescued.state, found.crashes, found.suspect, found.attempt) == (State.PENDING, 0, False, 0)


def test_a_fenced_worker_cannot_complete_what_it_claimed_in_the_last_moment(
    store: EngineUnderTest, step: Step
) -> None:
    worker = store.announce()
    store.enqueue()
    claim = step(store.engine.claim(worker, [want()])).to_the_end()
    store.fence(worker)
    [lease] = claim.finish()

    assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.LOST
    assert store.settle(worker, lease, Ending.ERRORED) is Verdict.LOST
    assert len(store.sweep().rescued) == 1


class TestNobodyWaitsInACircle:
    """One order for all: keys by name, narrow rows by number, the rest of a job."""

    def started(self, store: EngineUnderTest, many: int = 2) -> tuple[UUID, list[Lease]]:
        worker = store.announce()
        store.engine.run(store.engine.enqueue_many([store.spec() for _ in range(many)]))
        return worker, store.claim(worker)

    def test_a_replacement_and_a_sweep_that_expires(self, store: EngineUnderTest, step: Step) -> None:
        store.enqueue(key="k", expires_in=1_000)
        store.clock.advance(2_000)
        replacement = step(keyed(store, "replace")).until("delete_expiries")
        sweep = step(store.engine.sweep(SweepOrder())).meanwhile()

        assert replacement.finish()[0].status == "replaced"
        assert sweep.result().expired == 0

    @pytest.mark.parametrize("mode", ["keep", "replace"])
    def test_a_retry_and_an_enqueue_of_its_key(
        self, store: EngineUnderTest, step: Step, mode: KeyMode
    ) -> None:
        job = store.enqueue(key="k")
        store.engine.run(store.engine.cancel([job.id]))
        retry = step(store.engine.retry([job.id])).past("states_of")
        enqueue = step(keyed(store, mode)).meanwhile()

        assert retry.finish()[0].id == job.id
        assert enqueue.result()[0].id == job.id

    def test_a_deletion_and_an_enqueue_of_its_key(self, store: EngineUnderTest, step: Step) -> None:
        job = store.enqueue(key="k")
        deletion = step(store.engine.delete([job.number], [State.PENDING])).until("delete_keys")
        enqueue = step(keyed(store, "replace")).meanwhile()

        assert deletion.finish() == 1
        assert enqueue.result()[0].status == "inserted"
        assert store.job(enqueue.result()[0]).state is State.PENDING

    @pytest.mark.parametrize("force", [False, True])
    def test_a_cancel_of_the_newest_first_and_a_completion(
        self, store: EngineUnderTest, step: Step, force: bool
    ) -> None:
        worker, leases = self.started(store)
        cancel = step(store.engine.cancel([lease.id for lease in leases[::-1]], force=force)).past(
            "states_of"
        )
        settle = step(completion(store, worker, leases)).meanwhile()

        assert cancel.finish() == [State.CANCELLED if force else State.PROCESSING] * 2
        assert settle.result() == [Verdict.LOST if force else Verdict.ACCEPTED] * 2

    def test_a_report_and_a_completion(self, store: EngineUnderTest, step: Step) -> None:
        worker, leases = self.started(store)
        reports = [Report(number=lease.number, token=lease.token, progress=0.5) for lease in leases[::-1]]
        report = step(store.engine.report(worker, reports)).past("holds")
        settle = step(completion(store, worker, leases)).meanwhile()

        assert report.finish() == [True, True]
        assert settle.result() == [Verdict.ACCEPTED] * 2

    def test_a_batch_of_good_and_bad_ends_and_a_cancel(self, store: EngineUnderTest, step: Step) -> None:
        worker, leases = self.started(store, 3)
        endings = (Ending.ERRORED, Ending.COMPLETED, Ending.FAILED)
        batch = [ended(lease, ending) for lease, ending in zip(leases, endings, strict=True)]
        settle = step(store.engine.settle(worker, batch)).past("lock_free")
        cancel = step(store.engine.cancel([lease.id for lease in leases])).meanwhile()

        assert settle.finish() == [Verdict.ACCEPTED] * 3
        assert cancel.result() == [State.CANCELLED, State.COMPLETED, State.FAILED]
