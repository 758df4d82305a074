"""The audit on a real store: every move that the engine makes is in the table of transitions; others are flagged."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from conformance.engine_under_test import EngineUnderTest
from conformance.state_machine import EngineMachine
from faults.evidence import audit
from faults.evidence.moves import stories
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.worker import Death, Ending, Verdict
from shigoto.testing.store import VirtualClock

pytestmark = pytest.mark.engine("sqlite")

Opener = Callable[[], tuple[EngineUnderTest, Path]]
DAY = 86_400_000


@pytest.fixture
def open_audited(tmp_path: Path) -> Iterator[Opener]:
    """Opens a new store with the audit on it, as often as it is called."""
    clock, numbers, stack = VirtualClock(), count(1), ExitStack()

    def opener() -> tuple[EngineUnderTest, Path]:
        path = tmp_path / f"{next(numbers)}.db"
        engine = SqliteEngine(path, clock=clock)
        stack.callback(engine.close)
        engine.migrate()
        audit.install(path)

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(path, isolation_level=None, timeout=10)
            stack.callback(connection.close)
            return connection

        return EngineUnderTest(engine, clock, connect=connect), path

    with stack:
        yield opener


def bad_settles(path: Path) -> list[str]:
    """By the table of transitions alone: nobody writes a ledger here."""
    return [wrong for story in stories(audit.changes(path)).values() for wrong in story.bad]


def test_whatever_the_engine_does_is_in_the_table_of_transitions(open_audited: Opener) -> None:
    """E56, I3, I4, I5: in any order of operations, no move is flagged; and the store does not notice its audit."""

    class Story(EngineMachine):
        def __init__(self) -> None:
            store, self.path = open_audited()
            super().__init__(store)

        def teardown(self) -> None:
            super().teardown()
            assert bad_settles(self.path) == []

    run_state_machine_as_test(
        Story, settings=settings(parent=settings(), max_examples=15, stateful_step_count=40)
    )


def test_every_way_a_run_can_end_is_read_from_the_audit(open_audited: Opener) -> None:
    store, path = open_audited()
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
    store.fence(fenced)
    forced = store.start(worker := store.announce())
    store.cancel(forced, force=True)
    expected |= {
        str(held.id): ("crash", True),
        str(lost.id): ("crash", True),
        str(forced.id): ("cancel", True),
    }

    told = stories(audit.changes(path))
    ends = {job: told[job].claims[1].end for job in expected}

    assert {job: (end.how, end.taken) for job, end in ends.items() if end} == expected
    assert bad_settles(path) == []
    assert [job for job, story in told.items() if story.completed] == [
        job for job, (how, _) in expected.items() if how == "completed"
    ]


def test_jobs_that_wait_are_replaced_cancelled_retried_promoted_expired_and_deleted(
    open_audited: Opener,
) -> None:
    store, path = open_audited()
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

    told = stories(audit.changes(path))

    assert bad_settles(path) == []
    assert set(told) == {str(job.id) for job in (first, cancelled, expired)}, "its id outlives a job"
    assert all(story.deleted for story in told.values())
    assert sorted(told[str(first.id)].claims) == [1, 2]
    assert len(told[str(cancelled.id)].cancelled) == len(told[str(cancelled.id)].retried) == 1
    assert not told[str(expired.id)].cancelled


DONE = (
    "INSERT INTO shigoto_done"
    " (number, state, token, settled_token, failures, crashes, releases, snoozes, finished_at)"
)
ILLEGAL = {
    "a completed job is made ready again": (
        "INSERT INTO shigoto_ready (lane, priority, pos, number, token, settled_token)"
        " SELECT 1, 0, 0, number, token, settled_token FROM shigoto_done WHERE state = 3;"
        "DELETE FROM shigoto_done WHERE state = 3"
    ),
    "a completed job fails": "UPDATE shigoto_done SET state = 4 WHERE state = 3",
    "a token is changed while it is held": "UPDATE shigoto_running SET token = token + 1",
    "a claim is handed to somebody else": "UPDATE shigoto_running SET worker = randomblob(16)",
    "a run is completed with a token that it did not have": (
        DONE + " SELECT number, 3, token - 1, token - 1, 0, 0, 0, 0, 0 FROM shigoto_running;"
        "DELETE FROM shigoto_running"
    ),
    "a run is completed and goes on": (
        DONE + " SELECT number, 3, token, token, 0, 0, 0, 0, 0 FROM shigoto_running"
    ),
    "a claim does not raise the token": (
        "INSERT INTO shigoto_running (number, token, worker, claimed_at, settled_token, failures, crashes,"
        " solo_crashes, releases, snoozes, solo)"
        " SELECT number, token, x'00112233445566778899aabbccddeeff', 0, 0, 0, 0, 0, 0, 0, 0"
        " FROM shigoto_ready; DELETE FROM shigoto_ready"
    ),
    "a job that waits is completed": (
        DONE + " SELECT number, 3, token, token, 0, 0, 0, 0, 0 FROM shigoto_ready; DELETE FROM shigoto_ready"
    ),
    "a run ends without being counted": (
        "INSERT INTO shigoto_ready (lane, priority, pos, number, token) SELECT 1, 0, 0, number, token"
        " FROM shigoto_running; DELETE FROM shigoto_running"
    ),
    "a run disappears": "DELETE FROM shigoto_running",
}


@pytest.mark.parametrize("script", ILLEGAL.values(), ids=ILLEGAL)
def test_a_move_that_no_table_has_is_flagged(open_audited: Opener, script: str) -> None:
    store, path = open_audited()
    worker = store.announce()
    store.settle(worker, store.start(worker), Ending.COMPLETED)
    store.start(worker)
    store.enqueue()
    assert bad_settles(path) == []

    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)

    assert len(bad_settles(path)) == 1


def test_what_is_rolled_back_is_not_in_the_audit(open_audited: Opener) -> None:
    store, path = open_audited()
    connection = store.connect()
    connection.execute("BEGIN")
    store.engine.join(connection, store.engine.enqueue_many([store.spec()]))
    connection.rollback()

    assert audit.changes(path) == []


def test_effects_are_counted_and_a_store_without_an_audit_has_none(
    open_audited: Opener, tmp_path: Path
) -> None:
    store, path = open_audited()
    worker = store.announce()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany("INSERT INTO effects VALUES (?)", [("a",), ("b",), ("a",)])

    assert audit.effects(path) == {"a": 2, "b": 1}
    assert audit.workers(path) == {str(worker): audit.Announced(0, 30.0)}
    assert audit.changes(tmp_path / "other.db") == []
    assert audit.effects(tmp_path / "other.db") == {}


def test_a_fence_is_recorded_between_what_came_before_and_what_it_takes(open_audited: Opener) -> None:
    """I6: a worker that was reported dead, or has left, is none that was fenced."""
    store, path = open_audited()
    lost, doomed, leaves = store.announce(), store.announce(), store.announce()
    lease = store.start(lost)
    held = store.start(doomed)
    store.report_dead(doomed, Death(number=held.number, error="killed"))
    store.engine.run(store.engine.leave(leaves))
    before = audit.changes(path)[-1].sequence
    store.fence(lost)

    workers = audit.workers(path)
    end = stories(audit.changes(path))[str(lease.id)].claims[1].end
    assert {id for id, worker in workers.items() if worker.fenced is not None} == {str(lost)}
    assert workers[str(lost)].fenced == before
    assert end is not None
    assert end.sequence > before
    store.sweep()
    assert audit.workers(path)[str(lost)].fenced == before, "only once"


def test_a_fence_that_is_lifted_by_hand_stays_known(open_audited: Opener) -> None:
    store, path = open_audited()
    lost = store.announce()
    store.start(lost)
    store.fence(lost)
    assert not audit.workers(path)[str(lost)].lifted

    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE shigoto_worker SET fenced_at = NULL")

    assert audit.workers(path)[str(lost)].lifted
    assert audit.workers(path)[str(lost)].fenced is not None


def test_states_are_read_from_the_tables(open_audited: Opener) -> None:
    store, path = open_audited()
    worker = store.announce()
    assert audit.at_rest(path)
    ready, later = store.enqueue(), store.enqueue(delay=5_000)
    assert audit.states(path) == {str(ready.id): "pending", str(later.id): "pending"}
    assert not audit.at_rest(path)
    [lease] = store.claim(worker)
    assert audit.states(path)[str(ready.id)] == "processing"
    store.settle(worker, lease, Ending.COMPLETED)
    assert not audit.at_rest(path), "one is due later"
    store.cancel(later)
    assert audit.at_rest(path)
    assert audit.states(path) == {str(ready.id): "completed", str(later.id): "cancelled"}
    assert audit.id_of(path, ready.number) == str(ready.id)
    assert audit.id_of(path, 10**17) is None

    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM shigoto_done WHERE number = ?", (ready.number,))

    assert audit.states(path) == {str(later.id): "cancelled"}, "a body without a place has vanished"
