"""Rows that somebody has written into the file by hand: they are failed or left alone, and nobody else pays for it."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from shigoto.engine.op import Op
from shigoto.engine.open import open_engine
from shigoto.engine.protocol import Engine
from shigoto.model.errors import JobError, StoreError, StoreRefused
from shigoto.model.ids import uuid7
from shigoto.model.job import FailureKind, JobFilter, JobSpec, QueueSettings, State
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.model.worker import Announcement, Ending, Settlement, SweepOrder, Want

pytestmark = pytest.mark.engine("sqlite")

WANT = Want(tasks=("send",), queues=None, limit=10)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(f"sqlite:///{tmp_path}/jobs.db")
    with closing(engine):
        yield engine


def enqueued(engine: Engine) -> int:
    spec = JobSpec(id=uuid7(), task="send", queue="mail", payload="{}")
    [answer] = engine.run(engine.enqueue_many([spec]))
    return answer.number


def announced(engine: Engine) -> Announcement:
    worker = Announcement(
        id=uuid7(), name="anvil", tasks=("send",), queues=None, slots=4, version="1", host="smithy", pid=1
    )
    engine.run(engine.announce(worker))
    return worker


def by_hand(tmp_path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        connection.execute(statement, values)


@pytest.mark.parametrize(
    "change",
    [
        "id = x'00'",
        "priority = 'first'",
        "max_failures = 1.5",
        "tenant = x'ff'",
        "key = CAST(x'c328' AS TEXT)",
        "timeout = 'soon'",
        "tags = x'ff'",
        "meta = CAST(x'c328' AS TEXT)",
        "payload = x'ff'",
        "payload = CAST(x'c328' AS TEXT)",
    ],
)
def test_a_job_that_cannot_be_read_is_failed_and_the_others_are_claimed(
    engine: Engine, tmp_path: Path, change: str
) -> None:
    """E49, F12: one row must not stop every claim that meets it."""
    spoilt, sound = enqueued(engine), enqueued(engine)
    worker = announced(engine)
    by_hand(tmp_path, f"UPDATE shigoto_job SET {change} WHERE number = ?", spoilt)

    leases = engine.run(engine.claim(worker.id, [WANT]))

    assert [lease.number for lease in leases] == [sound]
    failed = engine.run(engine.stats())["mail"]
    assert (failed.failed, failed.processing, failed.pending) == (1, 1, 0)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        found = connection.execute("SELECT number, failure_kind, error FROM shigoto_done").fetchall()
    assert [row[:2] for row in found] == [(spoilt, str(FailureKind.PAYLOAD_INVALID))]
    assert "was not written by us" in found[0][2]


def test_what_is_wrong_with_the_schema_is_no_reason_to_fail_jobs(engine: Engine, tmp_path: Path) -> None:
    """SQLite has one code for a row that is no JSON and for a column that is not there."""
    numbers = [enqueued(engine), enqueued(engine)]
    worker = announced(engine)
    by_hand(tmp_path, "ALTER TABLE shigoto_progress RENAME COLUMN checkpoint TO mark")

    with pytest.raises(StoreError, match="no such column"):
        engine.run(engine.claim(worker.id, [WANT]))

    by_hand(tmp_path, "ALTER TABLE shigoto_progress RENAME COLUMN mark TO checkpoint")
    assert [lease.number for lease in engine.run(engine.claim(worker.id, [WANT]))] == numbers


def test_the_tokens_of_a_job_that_could_not_be_read_go_on(engine: Engine, tmp_path: Path) -> None:
    """I4, I5: else a worker that had it before could settle the run after it was mended and retried."""
    number = enqueued(engine)
    first, second = announced(engine), announced(engine)
    [old] = engine.run(engine.claim(first.id, [WANT]))
    engine.run(engine.leave(first.id))
    by_hand(tmp_path, "UPDATE shigoto_job SET tags = x'ff' WHERE number = ?", number)
    assert engine.run(engine.claim(second.id, [WANT])) == []
    by_hand(tmp_path, "UPDATE shigoto_job SET tags = NULL WHERE number = ?", number)

    engine.run(engine.retry([old.id]))
    [new] = engine.run(engine.claim(second.id, [WANT]))

    assert new.token == old.token + 1


@pytest.mark.parametrize("change", ["id = x'00'", "run_at = 'noon'", "tenant = CAST(x'c328' AS TEXT)"])
def test_a_job_that_cannot_be_read_is_left_out_of_pages(
    engine: Engine, tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    spoilt, sound = enqueued(engine), enqueued(engine)
    by_hand(tmp_path, f"UPDATE shigoto_job SET {change} WHERE number = ?", spoilt)

    assert [job.number for job in engine.run(engine.find(JobFilter()))] == [sound]
    assert [job.number for job in engine.run(engine.find(JobFilter(tag="x")))] == []


def test_tags_and_payloads_that_are_no_json_match_nothing(engine: Engine, tmp_path: Path) -> None:
    spoilt, sound = enqueued(engine), enqueued(engine)
    by_hand(
        tmp_path,
        "UPDATE shigoto_job SET tags = '[1', payload = CAST(x'c328' AS TEXT) WHERE number = ?",
        spoilt,
    )
    by_hand(
        tmp_path,
        "UPDATE shigoto_job SET tags = '[\"x\"]', payload = '{\"a\":1}' WHERE number = ?",
        sound,
    )

    assert [job.number for job in engine.run(engine.find(JobFilter(tag="x")))] == [sound]
    assert [job.number for job in engine.run(engine.find(JobFilter(args=(("a", "1"),))))] == [sound]


def test_a_priority_beyond_all_others_is_not_moved_unread(engine: Engine, tmp_path: Path) -> None:
    """What is moved to running and what is read are the same jobs, whatever stands in the row."""
    spoilt, sound = enqueued(engine), enqueued(engine)
    worker = announced(engine)
    by_hand(tmp_path, "UPDATE shigoto_ready SET priority = -1e300 WHERE number = ?", spoilt)

    leases = engine.run(engine.claim(worker.id, [WANT]))

    assert engine.run(engine.stats())["mail"].processing == len(leases)
    assert sound in [lease.number for lease in leases]


DONE = (
    "INSERT INTO shigoto_done (number, state, token, settled_token, failures, crashes, releases, snoozes, finished_at)"
    " VALUES (?, ?, 1, 1, 0, 0, 0, 0, ?)"
)


def test_rows_without_a_job_do_not_stop_the_sweep(engine: Engine, tmp_path: Path) -> None:
    enqueued(engine)
    by_hand(tmp_path, "INSERT INTO shigoto_expiry VALUES (1, 900)")
    by_hand(
        tmp_path,
        "INSERT INTO shigoto_running VALUES (901, 1, randomblob(16), 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL)",
    )
    by_hand(tmp_path, "UPDATE shigoto_meta SET value = 'noon' WHERE name = 'clock'")
    by_hand(tmp_path, DONE, 902, 9, 1)
    by_hand(tmp_path, DONE, 903, 4, "noon")

    swept = engine.run(engine.sweep(SweepOrder()))

    assert (swept.expired, swept.rescued) == (0, ())
    assert engine.run(engine.stats())["mail"].pending == 1


def test_an_instant_that_is_none_does_not_stop_the_promotion(engine: Engine, tmp_path: Path) -> None:
    number = enqueued(engine)
    by_hand(tmp_path, "INSERT INTO shigoto_scheduled (run_at, number, lane) VALUES ('noon', ?, 1)", number)

    promoted = engine.run(engine.promote(10))

    assert (promoted.count, promoted.next_in) == (0, None)
    assert engine.run(engine.find(JobFilter()))[0].state is State.PENDING


@pytest.mark.parametrize("state", [9, "over"])
def test_a_state_that_is_none_is_an_error_that_names_the_job(
    engine: Engine, tmp_path: Path, state: object
) -> None:
    """F12: and a job of another key, or another number, is not kept from anything."""
    spec = JobSpec(id=uuid7(), task="send", queue="mail", payload="{}", key="one")
    [answer] = engine.run(engine.enqueue_many([spec]))
    by_hand(tmp_path, "DELETE FROM shigoto_ready")
    by_hand(tmp_path, DONE, answer.number, state, 1)
    again = replace(spec, id=uuid7())
    told = f"job {answer.number} .* table done .* state is {state!r}"

    with pytest.raises(JobError, match=told):
        engine.run(engine.cancel([spec.id]))
    with pytest.raises(JobError, match=told):
        engine.run(engine.enqueue_many([again]))
    with pytest.raises(JobError, match=told):
        engine.run(engine.enqueue_many([again, replace(again, id=uuid7(), key="other")]))

    assert engine.run(engine.cancel([uuid7()])) == [None]
    engine.run(engine.enqueue_many([replace(again, key="other")]))


@pytest.mark.parametrize(
    ("table", "change", "row"),
    [
        ("counter", "total = 'many'", "mail"),
        ("counter", "failed = 1.5", "mail"),
        ("queue", "keep_failed_for = 'long'", "mail"),
        ("queue", "max_pending = x'00'", "mail"),
        ("worker", "id = x'00'", "anvil"),
        ("worker", "tasks = '['", "anvil"),
        ("worker", "started_at = 'noon'", "anvil"),
    ],
)
def test_rows_that_cannot_be_read_are_an_error_that_names_them(
    engine: Engine, tmp_path: Path, table: str, change: str, row: str
) -> None:
    engine.run(engine.configure(QueueSettings(name="mail", max_pending=5)))
    worker = announced(engine)
    enqueued(engine)
    [lease] = engine.run(engine.claim(worker.id, [WANT]))
    end = Settlement(number=lease.number, token=lease.token, queue="mail", ending=Ending.COMPLETED)
    engine.run(engine.settle(worker.id, [end]))
    by_hand(tmp_path, f"UPDATE shigoto_{table} SET {change}")

    looks: dict[str, Callable[[], Op[Any]]]
    looks = {"counter": engine.stats, "queue": engine.settings, "worker": engine.workers}
    with pytest.raises(StoreRefused, match=f"row '{row}' of the table {table} was not written by us"):
        engine.run(looks[table]())


@pytest.mark.parametrize(
    ("table", "change", "row"),
    [
        ("schedule", "counts = 'many'", "nightly"),
        ("schedule", "pauses = '['", "nightly"),
        ("schedule", "stretch = '{'", "nightly"),
        ("schedule", "id = 'one'", "nightly"),
        ("tick", "outcome = 'lost'", "nightly 1000"),
    ],
)
def test_schedules_that_cannot_be_read_are_an_error_that_names_them(
    engine: Engine, tmp_path: Path, table: str, change: str, row: str
) -> None:
    """S4-14: a process that fires ticks goes on trying, and says which row it is; it does not end."""
    schedule = Schedule(
        id=uuid7(), name="nightly", definition="{}", decided_to=0, look_at=1_000, created_at=0
    )
    entry = TickEntry(at=1_000, outcome=TickOutcome.MISSED, decided_at=1_000)
    engine.run(engine.tick([Change(schedule=schedule, seen=0, firings=(Firing(entry=entry),))]))
    by_hand(tmp_path, f"UPDATE shigoto_{table} SET {change}")
    ops: dict[str, list[Op[Any]]] = {
        "schedule": [engine.schedules(), engine.due((), 10)],
        "tick": [engine.history("nightly")],
    }

    for op in ops[table]:
        with pytest.raises(StoreRefused, match=f"row '{row}' of the table {table} was not written by us"):
            engine.run(op)
