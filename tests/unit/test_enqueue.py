"""From a call to a stored job: one, many, by name, in the caller's transaction, and when the store fails."""

import asyncio
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from msgspec import json

from shigoto import (
    Context,
    JobNotFound,
    OptionInvalid,
    PayloadInvalid,
    PayloadTooLarge,
    Retry,
    Shigoto,
    State,
    StoreUnavailable,
    UnknownTask,
    Unsupported,
)
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.enqueue import _warn_of_blocking
from shigoto.model.ids import uuid7
from shigoto.model.worker import Announcement

T = TypeVar("T")
NOW = 1_777_982_400_000


class Unreachable(MemoryEngine):
    """A store that cannot be written."""

    def run(self, op: Op[T]) -> T:
        raise StoreUnavailable("the disk is full")

    async def arun(self, op: Op[T]) -> T:
        raise StoreUnavailable("the disk is full")


def app_on(engine: MemoryEngine) -> Shigoto:
    app = Shigoto(engine=engine)

    @app.task
    def add(first: int, second: int = 2) -> int:
        return first + second

    @app.task(name="aggregate-daily-sales", queue="sales", retry=Retry.attempts(25))
    async def aggregate(ctx: Context, store: str) -> list[int]:
        return [len(store)]

    return app


@pytest.fixture
def app() -> Shigoto:
    return app_on(MemoryEngine(clock=lambda: NOW))


@pytest.fixture
def untold() -> Iterator[None]:
    """A process in which nobody was told about blocking yet."""
    _warn_of_blocking.cache_clear()
    yield
    _warn_of_blocking.cache_clear()


def test_enqueue_stores_a_pending_job_with_the_arguments_as_json(app: Shigoto) -> None:
    """S0-30, S1-3, S1-25: the handle has the id at once and the whole row on demand."""
    handle = app.tasks["add"].enqueue(1, second=3)

    job = handle.job()
    assert (handle.enqueued, handle.number, handle.id) == ("inserted", job.number, job.id)
    assert (job.state, job.task, job.queue, job.payload) == (
        State.PENDING,
        "add",
        "default",
        '{"first":1,"second":3}',
    )
    assert (job.max_failures, job.priority, job.run_at) == (6, 0, datetime.fromtimestamp(NOW / 1000, UTC))
    assert job.id.version == 7


async def test_aenqueue_stores_the_same(app: Shigoto) -> None:
    handle = await app.tasks["aggregate-daily-sales"].aenqueue("s-1")

    job = await handle.ajob()
    assert (job.queue, job.payload, job.max_failures) == ("sales", '{"store":"s-1"}', 25)


def test_options_of_a_call_reach_the_job(app: Shigoto) -> None:
    """S0-61, S3-21"""
    identity = uuid4()
    add = app.tasks["add"].using(
        queue="later",
        priority=7,
        delay=timedelta(hours=1),
        expires=timedelta(days=1),
        key="a:1",
        retries=2,
        tenant="shop",
        tags=["x", "y"],
        meta={"trace": {"id": 1}},
        id=identity,
    )

    job = add.enqueue(1).job()

    assert (job.id, job.queue, job.priority, job.tenant, job.key) == (identity, "later", 7, "shop", "a:1")
    assert job.run_at == datetime.fromtimestamp(NOW / 1000, UTC) + timedelta(hours=1)
    assert job.expires_at == datetime.fromtimestamp(NOW / 1000, UTC) + timedelta(days=1)
    assert (job.max_failures, job.tags, json.decode(job.meta or "")) == (3, ("x", "y"), {"trace": {"id": 1}})


def test_run_at_is_taken_as_written(app: Shigoto) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)

    assert app.tasks["add"].using(run_at=at).enqueue(1).job().run_at == at


def test_a_key_leads_to_the_job_that_stands(app: Shigoto) -> None:
    """S3-21"""
    add = app.tasks["add"].using(key="only")

    first, second = add.enqueue(1), add.enqueue(2)
    replaced = add.using(key_mode="replace").enqueue(3)

    assert (first.enqueued, second.enqueued, replaced.enqueued) == ("inserted", "existing", "replaced")
    assert first.id == second.id == replaced.id
    assert first.job().payload == '{"first":3}'


def test_a_repeated_id_is_the_same_job(app: Shigoto) -> None:
    add = app.tasks["add"].using(id=uuid7())

    assert [add.enqueue(1).enqueued, add.enqueue(1).enqueued] == ["inserted", "existing"]


def test_one_call_enqueued_twice_is_two_jobs(app: Shigoto) -> None:
    handles = app.enqueue_many([app.tasks["add"].call(1)] * 2)

    assert len({handle.id for handle in handles}) == 2


def test_many_jobs_are_stored_in_order(app: Shigoto) -> None:
    add, aggregate = app.tasks["add"], app.tasks["aggregate-daily-sales"]

    handles = app.enqueue_many([add.call(1), aggregate.using(priority=3).call("s"), add.call(2)])

    assert [handle.number for handle in handles] == [1, 2, 3]
    assert [handle.job().priority for handle in handles] == [0, 3, 0]
    assert app.enqueue_many([]) == []


async def test_many_jobs_are_stored_asynchronously_from_any_iterable(app: Shigoto) -> None:
    handles = await app.aenqueue_many(app.tasks["add"].call(number) for number in range(3))

    assert [(await handle.ajob()).payload for handle in handles] == [
        f'{{"first":{number}}}' for number in range(3)
    ]
    assert await app.aenqueue_many([]) == []


def test_a_wrong_call_in_a_batch_stores_nothing(app: Shigoto) -> None:
    add = app.tasks["add"]

    with pytest.raises(PayloadInvalid):
        app.enqueue_many(add.call(argument) for argument in [1, "two", 3])

    assert app.find() == []


def test_what_is_no_call_is_refused_with_the_way_to_make_one(app: Shigoto) -> None:
    uncalled: Any = app.tasks["add"]

    with pytest.raises(OptionInvalid, match=r"not <Task 'add'>: use task\.call\(\.\.\.\) to make one"):
        app.enqueue_many([uncalled])
    with pytest.raises(OptionInvalid, match="takes a list of calls, not <Call of 'add'>"):
        app.enqueue_many(uncalled.call(1))


def test_a_call_of_another_app_is_refused(app: Shigoto) -> None:
    other = app_on(MemoryEngine())

    with pytest.raises(OptionInvalid, match="<Call of 'add'> belongs to another app"):
        app.enqueue_many([other.tasks["add"].call(1)])


def test_calls_with_different_connections_cannot_go_together(app: Shigoto) -> None:
    add = app.tasks["add"]

    with pytest.raises(OptionInvalid, match="on one connection, but these name several"):
        app.enqueue_many([add.call(1), add.using(connection=object()).call(1)])


def test_arguments_that_do_not_fit_are_refused_before_anything_is_stored(app: Shigoto) -> None:
    """S3-12"""
    add = app.tasks["add"]

    for arguments in ((), ("one",), (1, 2, 3)):
        with pytest.raises(PayloadInvalid) as caught:
            add.enqueue(*arguments)
        assert caught.value.code == "JOB.PAYLOAD_INVALID"
    with pytest.raises(PayloadTooLarge):
        app.tasks["aggregate-daily-sales"].enqueue("x" * 1_048_577)

    assert app.find() == []


def test_a_known_task_is_enqueued_by_name_with_its_options_and_checks(app: Shigoto) -> None:
    """S3-12, S3-17"""
    handle = app.enqueue_by_name("aggregate-daily-sales", {"store": "s-1"}, priority=4)

    job = handle.job()
    assert (job.queue, job.priority, job.max_failures) == ("sales", 4, 25)
    with pytest.raises(PayloadInvalid):
        app.enqueue_by_name("aggregate-daily-sales", {"shop": "s-1"})
    with pytest.raises(PayloadInvalid):
        app.enqueue_by_name("add", {"self": 1})


async def test_arguments_by_name_come_in_a_mapping(app: Shigoto) -> None:
    for wrong in ([1], None, "first=1"):
        payload: Any = wrong
        for name in ("add", "unheard-of"):
            with pytest.raises(PayloadInvalid, match="arguments must be a mapping of names to values, not"):
                app.enqueue_by_name(name, payload, allow_unknown=True)
            with pytest.raises(PayloadInvalid, match="arguments must be a mapping of names to values, not"):
                await app.aenqueue_by_name(name, payload, allow_unknown=True)
    number: Any = 5
    with pytest.raises(OptionInvalid, match="The name of a task must be a string, not 5"):
        app.enqueue_by_name(number, {})


def test_by_name_arguments_may_have_their_json_form(app: Shigoto) -> None:
    """Whoever enqueues by name may know nothing but JSON."""

    @app.task
    def remind(at: datetime, notes: tuple[str, ...]) -> None: ...

    by_name = app.enqueue_by_name("remind", {"at": "2030-01-31T09:00:00Z", "notes": ["a"]})
    typed = remind.enqueue(datetime(2030, 1, 31, 9, tzinfo=UTC), ("a",))

    assert by_name.job().payload == typed.job().payload
    with pytest.raises(PayloadInvalid, match="argument 'at': invalid RFC3339 encoded datetime"):
        app.enqueue_by_name("remind", {"at": "soon", "notes": []})
    with pytest.raises(PayloadInvalid, match="argument 'at': expected datetime, got str"):
        app.tasks["remind"].enqueue("2030-01-31T09:00:00Z", ())


def test_an_unknown_task_is_refused_with_a_suggestion(app: Shigoto) -> None:
    """S3-13"""
    with pytest.raises(
        UnknownTask, match=r"'agregate-daily-sales'.*Did you mean 'aggregate-daily-sales'\?"
    ) as caught:
        app.enqueue_by_name("agregate-daily-sales", {})

    assert caught.value.code == "JOB.UNKNOWN_TASK"
    assert app.find() == []


async def test_a_task_that_only_a_live_worker_knows_is_enqueued_by_name(app: Shigoto) -> None:
    """S3-13"""
    worker = Announcement(id=uuid7(), name="w", tasks=("elsewhere",), queues=None, slots=1, version="1")
    app.engine.run(app.engine.announce(worker))

    handle = app.enqueue_by_name("elsewhere", {"anything": [1, None]}, queue="far", timeout=5)
    twin = await app.aenqueue_by_name("elsewhere", {})

    assert (handle.job().payload, handle.job().queue) == ('{"anything":[1,null]}', "far")
    assert (twin.job().task, twin.job().alone) == ("elsewhere", False)
    # Nobody here knows whether its function can be stopped, and in a process of its own everything can.
    assert (handle.job().timeout, handle.job().alone) == (5_000, True)
    with pytest.raises(UnknownTask, match="Did you mean 'elsewhere'"):
        await app.aenqueue_by_name("elsewere", {})


async def test_an_unknown_task_is_enqueued_when_the_caller_insists(app: Shigoto) -> None:
    """S3-13"""
    job = app.enqueue_by_name("future-task", {"a": 1}, allow_unknown=True).job()
    await app.aenqueue_by_name("future-task", {}, allow_unknown=True)

    assert (job.task, job.state, job.payload) == ("future-task", State.PENDING, '{"a":1}')
    with pytest.raises(OptionInvalid, match="The task 'Future Task' must be kebab-case"):
        app.enqueue_by_name("Future Task", {}, allow_unknown=True)
    with pytest.raises(PayloadInvalid):
        app.enqueue_by_name("future-task", {"at": datetime.now(UTC)}, allow_unknown=True)


def test_a_limit_of_one_call_is_stored_with_its_job(app: Shigoto) -> None:
    @app.task(timeout=60)
    def heavy() -> None: ...

    @app.task
    def light() -> None: ...

    plain, lifted = heavy.enqueue().job(), heavy.using(timeout=None).enqueue().job()
    limited, soft = light.using(timeout=5).enqueue().job(), light.using(soft_timeout=3).enqueue().job()

    assert (plain.timeout, plain.alone) == (None, False)
    assert (lifted.timeout, lifted.alone) == (0, False)
    assert (limited.timeout, limited.soft_timeout, limited.alone) == (5_000, None, True)
    assert (soft.timeout, soft.soft_timeout, soft.alone) == (None, 3_000, False)


def test_a_store_error_is_raised_unless_the_caller_prefers_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S0-50: what the caller does goes on, with an error in the log."""
    app = app_on(Unreachable())
    add = app.tasks["add"]
    with pytest.raises(StoreUnavailable):
        add.enqueue(1)

    handle = add.using(on_error="log").enqueue(1)

    assert (handle.enqueued, handle.number) == ("not_enqueued", 0)
    assert [(record.name, record.levelno) for record in caplog.records] == [("shigoto", logging.ERROR)]
    assert f"Job {handle.id} (add) was not enqueued and is given up: the disk is full" in caplog.text


async def test_the_async_twin_logs_in_the_same_way(caplog: pytest.LogCaptureFixture) -> None:
    """S0-50"""
    add = app_on(Unreachable()).tasks["add"]
    with pytest.raises(StoreUnavailable):
        await add.aenqueue(1)

    handle = await add.using(on_error="log").aenqueue(1)

    assert handle.enqueued == "not_enqueued"
    assert "was not enqueued" in caplog.text


async def test_by_name_a_store_that_cannot_be_asked_who_knows_the_task_counts_as_a_store_error() -> None:
    """S0-50"""
    app = app_on(Unreachable())
    with pytest.raises(StoreUnavailable):
        app.enqueue_by_name("elsewhere", {})

    assert app.enqueue_by_name("elsewhere", {}, on_error="log").enqueued == "not_enqueued"
    assert (await app.aenqueue_by_name("elsewhere", {}, on_error="log")).enqueued == "not_enqueued"


def test_mistakes_of_the_programmer_are_raised_whatever_is_said_about_errors(app: Shigoto) -> None:
    add = app.tasks["add"].using(on_error="log")

    with pytest.raises(PayloadInvalid):
        add.enqueue("one")
    with pytest.raises(Unsupported, match="memory engine"):
        add.using(connection=object()).enqueue(1)


async def test_sync_enqueue_on_an_event_loop_works_and_says_so_once(
    app: Shigoto, caplog: pytest.LogCaptureFixture, untold: None
) -> None:
    add = app.tasks["add"]

    assert [add.enqueue(1).number, add.enqueue(1).number] == [1, 2]

    [record] = caplog.records
    assert "blocks it for one commit; await aenqueue() does not. This is said once." in record.getMessage()


def test_sync_enqueue_without_an_event_loop_says_nothing(
    app: Shigoto, caplog: pytest.LogCaptureFixture, untold: None
) -> None:
    app.tasks["add"].enqueue(1)

    assert not caplog.records


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shigoto]:
    app = Shigoto(f"sqlite:///{tmp_path}/shop.db")

    @app.task
    def ship(order: int) -> None: ...

    yield app
    app.close()


def orders(connection: sqlite3.Connection) -> list[Any]:
    return connection.execute("SELECT id FROM orders").fetchall()


def test_a_job_commits_or_vanishes_with_the_callers_transaction(shop: Shigoto) -> None:
    """Sync and async alike, and the transaction is only ever ended by its owner."""
    ship = shop.tasks["ship"]
    with closing(shop.connect()) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.commit()

        connection.execute("INSERT INTO orders VALUES (1)")
        lost = ship.using(connection=connection).enqueue(1)
        assert connection.in_transaction
        connection.rollback()

        connection.execute("INSERT INTO orders VALUES (2)")
        kept = asyncio.run(ship.using(connection=connection).aenqueue(2))
        both = shop.enqueue_many([ship.using(connection=connection).call(order) for order in (3, 4)])
        with pytest.raises(JobNotFound):
            kept.job()
        connection.commit()

        assert orders(connection) == [(2,)]
    assert [handle.job().payload for handle in (kept, *both)] == ['{"order":2}', '{"order":3}', '{"order":4}']
    with pytest.raises(JobNotFound):
        lost.job()
