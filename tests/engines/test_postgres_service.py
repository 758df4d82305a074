"""What the service and the command line compose of the engine's verbs, on a real server: audit, limits, tokens."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from shigoto import JobNotRetryable, QueueFull, State
from shigoto.engine.postgres import PostgresEngine
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.model.service import FeedPosition
from shigoto.queues import store_within_limits, tick_within_limits
from shigoto.server.audit import Audited, change_queue_op, rerun_op
from shigoto.server.tokens import create_op, revoke_op

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

ME = "cli:ann@host"


@pytest.fixture
def engine(postgres_database: str) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(postgres_database)
    engine.migrate()
    yield engine
    engine.close()


def spec(queue: str = "default") -> JobSpec:
    return JobSpec(id=uuid7(), task="work", queue=queue, payload='{"secret":1}')


def actions(engine: PostgresEngine) -> list[tuple[str, str]]:
    """The oldest first."""
    entries = engine.run(engine.registry.noted())
    return [(each.action, each.target) for each in entries[::-1]]


async def test_what_operators_do_is_noted_with_it_or_not_at_all(engine: PostgresEngine) -> None:
    """S0-66."""
    job = spec()
    engine.run(engine.enqueue_many([job]))
    audited = Audited(engine, ME)

    with pytest.raises(JobNotRetryable):
        engine.run(audited.retry([job.id]))
    assert await engine.arun(audited.cancel([job.id])) == [State.CANCELLED]
    engine.run(audited.retry([job.id]))
    engine.run(Audited(engine, ME, "all").cancel([job.id]))
    await engine.arun(rerun_op(engine, job.id, actor=ME))
    engine.run(change_queue_op(engine, "default", actor=ME, paused=True))
    [number] = [each.number for each in engine.run(engine.get([job.id])) if each is not None]
    engine.run(Audited(engine, ME, "cancelled").delete([number], [State.CANCELLED]))

    assert actions(engine) == [
        ("job.cancel", str(job.id)),
        ("job.retry", str(job.id)),
        ("jobs.cancel", "all"),
        ("job.rerun", str(job.id)),
        ("queue.pause", "default"),
        ("jobs.delete", "cancelled"),
    ]
    assert "secret" not in str(engine.run(engine.registry.noted()))


def test_a_job_is_rerun_where_none_of_its_kind_was_before(
    engine: PostgresEngine, postgres_database: str
) -> None:
    """A suspect that was moved here has brought no lane but that of suspects."""
    job = spec()
    engine.run(engine.enqueue_many([job]))
    engine.run(engine.cancel([job.id]))
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("UPDATE shigoto.lane SET alone = true")

    again = engine.run(rerun_op(engine, job.id, actor=ME))

    assert again.status == "inserted"


def test_a_queue_is_full_at_its_limit_also_for_ticks(engine: PostgresEngine) -> None:
    """S4-13: those who store at the same moment may go beyond it by what they have under way, and no further."""
    engine.run(change_queue_op(engine, "small", actor=ME, max_pending=10))

    def store(_: int) -> bool:
        try:
            engine.run(store_within_limits(engine, [spec("small")]))
        except QueueFull:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        stored = sum(pool.map(store, range(60)))

    assert 10 <= stored <= 13
    assert engine.run(engine.stats())["small"].pending == stored
    with pytest.raises(QueueFull):
        engine.run(store_within_limits(engine, [spec(), spec("small")]))
    now = engine.run(engine.time())
    schedule = Schedule(id=uuid7(), name="often", definition="{}", decided_to=now, created_at=now)
    fired = Firing(entry=TickEntry(at=now, outcome=TickOutcome.FIRED, decided_at=now), spec=spec("small"))
    with pytest.raises(QueueFull):
        engine.run(tick_within_limits(engine, [Change(schedule=schedule, seen=0, firings=(fired,))]))
    assert engine.run(engine.schedules()) == []


def test_tokens_come_and_go(engine: PostgresEngine) -> None:
    _, token = engine.run(create_op(engine, "web", ["submit", "read"], queues=["mail"], expires=60, actor=ME))

    assert engine.run(engine.registry.tokens()) == [token]
    _, now = engine.run(engine.registry.happened(FeedPosition(0), 0, 0))
    assert token.expires_at is not None
    assert now - 5_000 <= token.expires_at - 60_000 <= now
    engine.run(revoke_op(engine, "web", actor=ME))
    assert not engine.run(engine.registry.tokens())[0].alive(now)
    assert actions(engine) == [("token.create", token.id), ("token.revoke", token.id)]
