"""What goes through the SQLite engine together comes out as if each had gone by itself."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import structs

from shigoto.engine.sql import looking
from shigoto.engine.sqlite import SqliteEngine
from shigoto.engine.sqlite.file import Connections, OwnConnection
from shigoto.model.ids import uuid7, uuids7
from shigoto.model.job import JobSpec, Lease
from shigoto.model.worker import CLAIM_BYTES, Announcement, Want

pytestmark = pytest.mark.engine("sqlite")

WORKER = uuid7()
PLAIN = JobSpec(id=UUID(int=0), task="a", queue="q", payload="{}")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "jobs.db", synchronous="off")
    engine.run(
        engine.announce(
            Announcement(
                id=WORKER, name="w", tasks=("a", "b"), queues=None, slots=1, version="0", isolates=True
            )
        )
    )
    yield engine
    engine.close()


def specs(count: int, like: JobSpec = PLAIN) -> list[JobSpec]:
    return [
        structs.replace(like, id=id, payload=f'{{"number":{number}}}', template=like)
        for number, id in enumerate(uuids7(count))
    ]


def claim(engine: SqliteEngine, limit: int = 10_000) -> list[Lease]:
    return engine.run(engine.claim(WORKER, [Want(tasks=("a", "b"), queues=None, limit=limit)]))


@pytest.mark.parametrize("count", [1, 9, 10, 11, 49, 50, 249, 250, 251, 312, 1000])
def test_a_batch_of_any_size_is_stored_in_its_order(engine: SqliteEngine, count: int) -> None:
    batch = specs(count)

    answers = engine.run(engine.enqueue_many(batch))

    assert [answer.number for answer in answers] == list(range(1, count + 1))
    assert [(lease.id, lease.payload) for lease in claim(engine)] == [(one.id, one.payload) for one in batch]


@pytest.mark.parametrize(
    "other",
    [
        {"task": "b"}, {"queue": "r"}, {"alone": True}, {"priority": 0, "max_failures": 9}, {"max_crashes": None},
        {"tenant": "t"}, {"retry": "{}"}, {"timeout": 5}, {"soft_timeout": 5}, {"tags": '["x"]'}, {"meta": "{}"},
        {"run_at": 5}, {"expires_in": 1_000_000},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("patterned", [True, False])
def test_what_differs_within_a_batch_stays_different(
    engine: SqliteEngine, other: dict[str, object], patterned: bool
) -> None:
    second = structs.replace(PLAIN, **other)
    batch = [*specs(30), *specs(30, second), *specs(1), *specs(3, second), *specs(20)]
    if not patterned:
        batch = [structs.replace(one, template=None) for one in batch]

    engine.run(engine.enqueue_many(batch))

    connection = engine.connect()
    rows = connection.execute(
        "SELECT b.id, l.task, l.queue, b.alone, b.max_failures, b.max_crashes, b.tenant, b.retry, b.timeout,"
        " b.soft_timeout, b.tags, b.meta, b.run_at = 5, b.expires_at IS NULL"
        " FROM shigoto_job b JOIN shigoto_lane l ON l.lane = b.lane ORDER BY b.number"
    ).fetchall()
    connection.close()
    assert rows == [
        (
            one.id.bytes, one.task, one.queue, one.alone, one.max_failures, one.max_crashes, one.tenant, one.retry,
            one.timeout, one.soft_timeout, one.tags, one.meta, one.run_at == 5, one.expires_in is None,
        )
        for one in batch
    ]  # fmt: skip


def test_a_payload_with_the_separator_in_it_reaches_its_own_job(engine: SqliteEngine) -> None:
    """No JSON text has it; but somebody may have written one by hand."""
    engine.run(engine.enqueue_many(specs(3)))
    connection = sqlite3.connect(engine.path)
    connection.execute("UPDATE shigoto_job SET payload = '{}' || char(30) || '{}' WHERE number = 2")
    connection.commit()
    connection.close()

    assert [lease.payload for lease in claim(engine)] == ['{"number":0}', "{}\x1e{}", '{"number":2}']


def test_large_payloads_reach_their_own_jobs_beside_small_ones(engine: SqliteEngine) -> None:
    sizes = [0, 5_000, 1, 12_345, 0, 200_000, 3_000] * 20
    sent = [
        structs.replace(one, payload=f'"{"x" * size}é"') for one, size in zip(specs(140), sizes, strict=True)
    ]
    engine.run(engine.enqueue_many(sent))
    connection = sqlite3.connect(engine.path)
    connection.execute("UPDATE shigoto_job SET payload = payload || char(30) || payload WHERE number = 2")
    connection.commit()
    connection.close()

    leases: list[Lease] = []
    while more := claim(engine):
        leases += more

    expected = [one.payload for one in sent]
    expected[1] = f"{expected[1]}\x1e{expected[1]}"
    assert [lease.payload for lease in leases] == expected


def test_only_who_has_claimed_large_payloads_reads_the_file_as_memory(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For everybody else, above all for programs that only enqueue, a disk that fails is an exception."""
    mapped: list[int] = []
    give_back = Connections.give_back

    def look_and_give_back(self: Connections, connection: OwnConnection | None) -> None:
        if connection is not None:
            mapped.append(connection.execute("PRAGMA mmap_size").fetchone()[0])
        give_back(self, connection)

    monkeypatch.setattr(Connections, "give_back", look_and_give_back)
    large = [structs.replace(one, payload=f'"{"x" * 10_000}"') for one in specs(10)]
    engine.run(engine.enqueue_many([*specs(100), *large]))
    claim(engine, 100)
    assert set(mapped) == {0}

    claim(engine, 10)
    assert mapped[-1] > 0


def test_a_claim_of_large_payloads_stops_early_and_the_next_goes_on(engine: SqliteEngine) -> None:
    large = [structs.replace(one, payload=f'"{"x" * 100_000}"') for one in specs(200)]
    engine.run(engine.enqueue_many(large))

    claims: list[list[Lease]] = []
    while leases := claim(engine):
        claims.append(leases)

    assert [lease.number for leases in claims for lease in leases] == list(range(1, 201))
    assert len(claims) > 1
    assert all(sum(len(lease.payload) for lease in leases) < 2 * CLAIM_BYTES for leases in claims)


@pytest.mark.parametrize("few", [0, 30, 10_000])
def test_what_is_scheduled_is_counted_exactly_however_many_are_ready(
    engine: SqliteEngine, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "FEW_READY", few)
    other = structs.replace(PLAIN, queue="r")
    engine.run(engine.enqueue_many([*specs(20), *specs(15, other)]))
    engine.run(engine.enqueue_many(specs(7, structs.replace(PLAIN, delay=60_000))))
    engine.run(engine.enqueue_many(specs(9, structs.replace(other, delay=60_000))))
    claim(engine, 3)

    counts = engine.run(engine.stats())

    assert [(counts[name].pending, counts[name].scheduled, counts[name].processing) for name in "qr"] == [
        (24, 7, 3),
        (24, 9, 0),
    ]
