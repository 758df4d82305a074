"""The audit on PostgreSQL: every move that the engine makes is in the table of transitions; others are flagged."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from conformance.engine_under_test import EngineUnderTest
from conformance.state_machine import EngineMachine
from devtools.postgres import Server
from faults.evidence import audit
from faults.evidence.moves import stories
from shigoto.engine.postgres import PostgresEngine
from shigoto.model.worker import Death, Ending, Verdict
from tests.postgres import ServerClock, Yard, take_time_from_test

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

Opener = Callable[[], tuple[EngineUnderTest, str]]
DAY = 86_400_000


def with_an_audit(address: str) -> None:
    """What a database of these tests has before they begin."""
    engine = PostgresEngine(address)
    engine.migrate()
    engine.close()
    take_time_from_test(address)
    audit.install(address)


@pytest.fixture
def open_audited(postgres: Server, postgres_yard: Yard, postgres_major: int) -> Iterator[Opener]:
    """Opens a new store with the audit on it, as often as it is called."""
    assert postgres.running
    with ExitStack() as stack:

        def opener() -> tuple[EngineUnderTest, str]:
            address = stack.enter_context(postgres_yard.database(postgres_major, with_an_audit))
            engine = PostgresEngine(address)
            stack.callback(engine.close)
            clock = stack.enter_context(ServerClock(address))

            def connect() -> psycopg.Connection:
                return stack.enter_context(psycopg.connect(address))

            return EngineUnderTest(engine, clock, connect=connect), address

        yield opener


def bad_settles(address: str) -> list[str]:
    """By the table of transitions alone: nobody writes a ledger here."""
    return [wrong for story in stories(audit.changes(address)).values() for wrong in story.bad]


def test_whatever_the_engine_does_is_in_the_table_of_transitions(open_audited: Opener) -> None:
    """E56, I3, I4, I5: in any order of operations, no move is flagged; and the store does not notice its audit."""

    class Story(EngineMachine):
        def __init__(self) -> None:
            store, self.address = open_audited()
            super().__init__(store)

        def teardown(self) -> None:
            super().teardown()
            assert bad_settles(self.address) == []

    run_state_machine_as_test(
        Story, settings=settings(parent=settings(), max_examples=5, stateful_step_count=40)
    )


def test_every_way_a_run_can_end_is_read_from_the_audit(open_audited: Opener) -> None:
    store, address = open_audited()
    worker, doomed, fenced = store.announce(), store.announce(), store.announce()
    endings = {
        Ending.COMPLETED: ("completed", False),
        Ending.ERRORED: ("error", False),
        Ending.FAILED: ("failed", False),
        Ending.SNOOZED: ("snooze", False),
        Ending.RELEASED: ("release", False),
        Ending.CRASHED: ("crash", False),
        Ending.CANCELLED: ("cancel", False),
    }
    expected: dict[str, tuple[str, bool]] = {}
    for ending, how in endings.items():
        lease = store.start(worker, max_failures=3)
        assert store.settle(worker, lease, ending, delay=1_000) is Verdict.ACCEPTED
        expected[str(lease.id)] = how
    held = store.start(doomed)
    store.report_dead(doomed, Death(number=held.number, error="killed"))
    lost = store.start(fenced, alone=True)
    before = audit.changes(address)[-1].sequence
    store.fence(fenced)
    forced = store.start(worker := store.announce())
    store.cancel(forced, force=True)
    expected |= {
        str(held.id): ("crash", True),
        str(lost.id): ("crash", True),
        str(forced.id): ("cancel", True),
    }

    told, workers = stories(audit.changes(address)), audit.workers(address)
    ends = {job: told[job].claims[1].end for job in expected}

    assert {job: (end.how, end.taken) for job, end in ends.items() if end} == expected
    assert bad_settles(address) == []
    assert {id: announced.fenced for id, announced in workers.items() if announced.fenced is not None} == {
        str(fenced): before
    }
    assert workers[str(worker)] == audit.Announced(0, 30.0)
    end = ends[str(lost.id)]
    assert end is not None
    assert end.sequence > before, "a fence is recorded before what it takes"


def test_a_fence_that_is_lifted_by_hand_stays_known(open_audited: Opener) -> None:
    """And when it was written, since the order alone does not tell who can have known of it."""
    store, address = open_audited()
    lost = store.announce()
    store.start(lost)
    store.fence(lost)
    [claim] = [
        change for change in audit.changes(address) if (change.table, change.deed) == ("running", "in")
    ]
    before = audit.workers(address)[str(lost)]
    assert not before.lifted
    assert before.fenced_at is not None
    assert claim.begun <= claim.at < before.fenced_at

    with psycopg.connect(address) as connection:
        connection.execute("UPDATE shigoto.worker SET fenced_at = NULL")

    after = audit.workers(address)[str(lost)]
    assert after.lifted
    assert after.fenced == before.fenced


def test_jobs_that_wait_are_replaced_cancelled_retried_promoted_expired_and_deleted(
    open_audited: Opener,
) -> None:
    store, address = open_audited()
    worker = store.announce()
    first = store.enqueue(key="k", delay=5_000)
    assert store.enqueue(key="k", key_mode="replace").id == first.id
    [lease] = store.claim(worker)
    store.settle(worker, lease, Ending.ERRORED, delay=500)
    store.clock.advance(500)
    store.promote()
    cancelled, expired = store.enqueue(), store.enqueue(expires_in=10)
    store.cancel(cancelled)
    store.retry(cancelled)
    store.clock.advance(1_000)
    store.sweep()
    for lease in store.claim(worker):
        store.settle(worker, lease, Ending.COMPLETED)
    store.clock.advance(400 * DAY)
    store.sweep()

    told = stories(audit.changes(address))

    assert bad_settles(address) == []
    assert set(told) == {str(job.id) for job in (first, cancelled, expired)}, "its id outlives a job"
    assert all(story.deleted for story in told.values())
    assert sorted(told[str(first.id)].claims) == [1, 2]
    assert len(told[str(cancelled.id)].cancelled) == len(told[str(cancelled.id)].retried) == 1
    assert not told[str(expired.id)].cancelled


DONE = (
    "INSERT INTO shigoto.done"
    " (number, state, token, settled_token, failures, crashes, releases, snoozes, finished_at)"
)
READY = "INSERT INTO shigoto.ready (lane, priority, run_at, number, token, settled_token)"
RUNNING = (
    "INSERT INTO shigoto.running (number, token, worker, lane, claimed_at, settled_token, failures, crashes,"
    " solo_crashes, releases, snoozes, solo)"
)
ILLEGAL = {
    "a completed job is made ready again": (
        f"{READY} SELECT 1, 0, 0, number, token, settled_token FROM shigoto.done WHERE state = 3;"
        "DELETE FROM shigoto.done WHERE state = 3"
    ),
    "a completed job fails": "UPDATE shigoto.done SET state = 4 WHERE state = 3",
    "a token is changed while it is held": "UPDATE shigoto.running SET token = token + 1",
    "a claim is handed to somebody else": "UPDATE shigoto.running SET worker = gen_random_uuid()",
    "a run is completed with a token that it did not have": (
        f"{DONE} SELECT number, 3, token - 1, token - 1, 0, 0, 0, 0, 0 FROM shigoto.running;"
        "DELETE FROM shigoto.running"
    ),
    "a run is completed and goes on": (
        f"{DONE} SELECT number, 3, token, token, 0, 0, 0, 0, 0 FROM shigoto.running"
    ),
    "a claim does not raise the token": (
        f"{RUNNING} SELECT number, token, gen_random_uuid(), lane, 0, 0, 0, 0, 0, 0, 0, false"
        " FROM shigoto.ready; DELETE FROM shigoto.ready"
    ),
    "a job that waits is completed": (
        f"{DONE} SELECT number, 3, token, token, 0, 0, 0, 0, 0 FROM shigoto.ready; DELETE FROM shigoto.ready"
    ),
    "a run ends without being counted": (
        f"{READY} SELECT 1, 0, 0, number, token, 0 FROM shigoto.running; DELETE FROM shigoto.running"
    ),
    "a run disappears": "DELETE FROM shigoto.running",
}


def test_a_move_that_no_table_has_is_flagged(open_audited: Opener) -> None:
    store, address = open_audited()
    worker = store.announce()
    store.settle(worker, store.start(worker), Ending.COMPLETED)
    store.start(worker)
    store.enqueue()
    before = len(audit.changes(address))
    assert bad_settles(address) == []

    found: dict[str, int] = {}
    with psycopg.connect(address) as connection:
        for what, script in ILLEGAL.items():
            connection.execute(script)
            connection.commit()
            found[what] = len(bad_settles(address))
            undo(connection, before)
    assert found == dict.fromkeys(ILLEGAL, 1)


def undo(connection: psycopg.Connection, changes: int) -> None:
    """Put the rows of the three jobs back, and forget what the audit has of this."""
    connection.execute(
        "DELETE FROM shigoto.done; DELETE FROM shigoto.running; DELETE FROM shigoto.ready;"
        f"{DONE} VALUES (1, 3, 1, 1, 0, 0, 0, 0, 0); {READY} VALUES (1, 0, 0, 3, 0, 0);"
        f"{RUNNING} SELECT 2, 1, id, 1, 0, 0, 0, 0, 0, 0, 0, false FROM shigoto.worker"
    )
    connection.execute(
        "DELETE FROM audit.change WHERE sequence > (SELECT max(sequence) FROM"
        " (SELECT sequence FROM audit.change ORDER BY sequence LIMIT %s) kept)",
        (changes,),
    )
    connection.commit()


def test_what_is_rolled_back_is_not_in_the_audit(open_audited: Opener) -> None:
    store, address = open_audited()
    connection = store.connect()
    store.engine.join(connection, store.engine.enqueue_many([store.spec()]))
    connection.rollback()

    assert audit.changes(address) == []


def test_states_are_read_from_the_tables_and_a_store_without_an_audit_has_none(
    open_audited: Opener, postgres_database: str
) -> None:
    store, address = open_audited()
    worker = store.announce()
    assert audit.at_rest(address)
    ready, later = store.enqueue(), store.enqueue(delay=5_000)
    assert audit.states(address) == {str(ready.id): "pending", str(later.id): "pending"}
    assert not audit.at_rest(address)
    [lease] = store.claim(worker)
    assert audit.states(address)[str(ready.id)] == "processing"
    store.settle(worker, lease, Ending.COMPLETED)
    assert not audit.at_rest(address), "one is due later"
    store.cancel(later)
    assert audit.at_rest(address)
    assert audit.states(address) == {str(ready.id): "completed", str(later.id): "cancelled"}
    assert audit.id_of(address, ready.number) == str(ready.id)
    assert audit.id_of(address, 10**17) is None
    with psycopg.connect(address) as connection:
        connection.execute("INSERT INTO effects VALUES ('a'), ('b'), ('a')")
        connection.execute("DELETE FROM shigoto.done WHERE number = %s", (ready.number,))

    assert audit.effects(address) == {"a": 2, "b": 1}
    assert audit.states(address) == {str(later.id): "cancelled"}, "a body without a place has vanished"
    assert audit.changes(postgres_database) == []
    assert audit.effects(postgres_database) == {}
