"""Everything here must pass both checkers: the types that users see, spelt out."""

import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, assert_type
from uuid import UUID, uuid4

from shigoto import (
    JSON,
    AsyncTransaction,
    Call,
    Cancelled,
    Context,
    Encryption,
    FannedOut,
    Job,
    JobHandle,
    LoggedLine,
    Queue,
    Redriven,
    Retry,
    ScheduleRecord,
    Shigoto,
    State,
    Task,
    Tasks,
    Tick,
    TickRecord,
    WorkerRecord,
)
from shigoto.testing import Jobs, Ran, Run
from tests.typing.declared import add, aggregate, app, log_in, resize, send

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def enqueue() -> None:
    """S3-17, S3-53: the handle carries what the function returns, awaited if it is a coroutine."""
    assert_type(add.enqueue(1, second=2), JobHandle[int])
    assert_type(send.enqueue("ada@example.org"), JobHandle[bool])
    assert_type(resize.enqueue("a.png", width=10), JobHandle[str])
    assert_type(aggregate.enqueue(store_id=uuid4(), target_date="2026-05-05"), JobHandle[list[int]])


def secrets() -> None:
    """Callers pass plain values for secret parameters."""
    assert_type(log_in.enqueue("ada", "correct horse"), JobHandle[bool])
    assert_type(log_in.using(encrypt=True).enqueue("ada", password="x", code=7), JobHandle[bool])
    Shigoto(encryption=Encryption({"2026": bytes(32), "2025": "base64"}, current="2026"))


async def aenqueue() -> None:
    assert_type(await add.aenqueue(1, 2), JobHandle[int])
    assert_type(await send.aenqueue("ada@example.org", copies=2), JobHandle[bool])
    assert_type(await resize.aenqueue("a.png", width=10), JobHandle[str])
    assert_type(await aggregate.aenqueue(uuid4(), "2026-05-05"), JobHandle[list[int]])


def using() -> None:
    """`using` keeps the type of the task."""
    assert_type(
        add.using(delay=timedelta(hours=1), key="a", key_mode="replace").enqueue(1, 2), JobHandle[int]
    )
    assert_type(send.using(run_at=datetime.now(UTC), timeout=1.5, tags=["a"]).enqueue("x"), JobHandle[bool])
    assert_type(resize.using(retry=Retry.never(), meta={"a": [1]}).enqueue("a", width=1), JobHandle[str])
    assert_type(aggregate.using(tenant="t", id=uuid4(), on_error="log").call(uuid4(), "d"), Call[list[int]])
    assert_type(
        add.using(priority=1).using(expires=datetime.now(UTC), max_crashes=None).call(1, 2), Call[int]
    )


async def bulk() -> None:
    assert_type(app.enqueue_many([add.call(1, 2), add.using(priority=1).call(3, 4)]), list[JobHandle[int]])
    assert_type(await app.aenqueue_many(send.call(to) for to in "abc"), list[JobHandle[bool]])
    assert_type(app.enqueue_many([aggregate.call(uuid4(), "d")]), list[JobHandle[list[int]]])


async def direct_call() -> None:
    """Edge (f): the plain call runs the function, and leaves the Context out."""
    assert_type(add(1, 2), int)
    assert_type(await send("x"), bool)
    assert_type(resize("a.png", width=1), str)
    assert_type(await aggregate(uuid4(), "d"), list[int])
    assert_type(resize.fn, Callable[..., str])


async def handle() -> None:
    assert_type(add.enqueue(1, 2).result(timeout=1), int)
    assert_type(await aggregate.enqueue(uuid4(), "d").aresult(), list[int])
    assert_type(add.enqueue(1, 2).status(), State)
    assert_type(await add.enqueue(1, 2).ajob(), Job)
    assert_type(app.job(uuid4()), JobHandle[Any])
    assert_type(app.find(state="running", queue="mail", limit=5), list[Job])
    assert_type(add.enqueue(1, 2).rerun(), JobHandle[int])
    assert_type(await add.enqueue(1, 2).alogs(), list[LoggedLine])
    assert_type(app.redrive(state="failed", failure_kind="timeout", dry_run=True), Redriven)
    assert_type(app.find("failed queue:mail", since=timedelta(hours=2), args={"store": 7}), list[Job])
    assert_type(app.find(worker=uuid4(), error="refused", since=datetime.now(UTC), state="all"), list[Job])
    assert_type(app.count(tag="vip", args={"user.name": "Ada", "paid": True, "note": None}), int)
    assert_type(app.clear("completed", dry_run=True), int)
    assert_type(app.cancel(queue="mail", force=True), Cancelled)
    assert_type(app.queues(), list[Queue])
    assert_type(await app.aworkers(), list[WorkerRecord])
    covariant(add.enqueue(1, 2), send.call("x"))


def covariant(handle: JobHandle[object], call: Call[object]) -> list[JobHandle[object]]:
    return [handle, *app.enqueue_many([call])]


def declarations() -> None:
    """S0-64: a task is one decorator, with or without options, with or without a Context, sync or async."""
    other, collection = Shigoto("memory:", defaults={"queue": "other", "retries": 1}), Tasks()

    @other.task
    def bare() -> None: ...

    @collection.task(
        aliases=["old"], priority=3, retry=Retry.linear(minutes=5), expires=3600, max_crashes=None
    )
    def with_options(number: int) -> int:
        return number

    @other.task
    async def only_context(ctx: Context) -> str:
        return ctx.idempotency_key

    @other.task(executor="process", timeout=60, soft_timeout=timedelta(seconds=50), exclusive=True)
    def limited() -> None: ...

    @other.task(tags=("a", "b"))
    def free(anything: JSON) -> JSON:
        return anything

    assert_type(bare, Task[[], None])
    assert_type(bare.enqueue(), JobHandle[None])
    assert_type(with_options.enqueue(1), JobHandle[int])
    assert_type(limited.using(timeout=None, soft_timeout=None).enqueue(), JobHandle[None])
    assert_type(only_context.enqueue(), JobHandle[str])
    assert_type(free.enqueue({"a": [1, None]}), JobHandle[JSON])
    other.include(collection)


def helper_over_tasks(task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
    """Edge (b): a helper over `Task[P, R]` sees R as the plain call returns it."""
    return task.enqueue(*args, **kwargs)


def helper_over_async_tasks(
    task: Task[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
) -> JobHandle[T]:
    return task.enqueue(*args, **kwargs)


def edge_b() -> None:
    assert_type(helper_over_tasks(add, 1, 2), JobHandle[int])
    late: JobHandle[Coroutine[Any, Any, bool]] = helper_over_tasks(send, "x")
    assert_type(helper_over_async_tasks(send, "x"), JobHandle[bool])
    assert_type(late.id, UUID)


def edge_c() -> None:
    """Edge (c): a mixed bulk is `object` for mypy and a union for pyright; both fit `object`."""
    for each in app.enqueue_many([add.call(1, 2), send.call("x")]):
        covariant(each, add.call(1, 2))


async def edge_e(connection: object) -> None:
    """Edge (e): `using` gives one `Task`, so a connection passes on both ways; the engine looks at it."""
    assert_type(add.using(connection=connection).enqueue(1, 2), JobHandle[int])
    assert_type(await add.using(connection=connection).aenqueue(1, 2), JobHandle[int])


def accepts_awaitables(fn: Callable[[str], Awaitable[bool]]) -> None:
    """A task can stand wherever its function could."""
    accepts_awaitables(send)


def by_name(store: UUID) -> None:
    assert_type(app.enqueue_by_name("add", {"first": 1, "second": 2}, key=f"a:{store}"), JobHandle[Any])


def lifespans(one: Shigoto, other: Shigoto) -> None:
    """Both forms keep the type of the function."""

    @one.lifespan
    async def generator(app: Shigoto) -> AsyncIterator[dict[str, int]]:
        yield {"tasks": len(app.tasks)}

    @other.lifespan
    @asynccontextmanager
    async def manager(app: Shigoto) -> AsyncGenerator[int]:
        yield len(app.tasks)

    assert_type(generator(one), AsyncIterator[dict[str, int]])
    print(manager)


def checkpoints(ctx: Context) -> None:
    start: int = ctx.resume_from or 0
    ctx.checkpoint({"page": start})
    ctx.log("page read", level="debug")
    assert_type(ctx.overdue, bool)


def sync_transactions(ctx: Context, connection: sqlite3.Connection) -> str:
    """The block gives the driver's own connection, for everything that takes one."""

    def library(connection: sqlite3.Connection) -> int:
        return connection.total_changes

    with ctx.transaction() as tx:
        tx.execute("DELETE FROM cart WHERE id = ?", (1,))
        add.using(connection=tx).enqueue(1, library(tx))
        tx.finish("done")
    with ctx.transaction(connection) as joined:
        assert_type(joined.connection, sqlite3.Connection)
        joined.finish("done")
    assert_type(ctx.transact(lambda tx: 1 + library(tx)), int)
    return ctx.transact(book)


def book(tx: sqlite3.Connection) -> str:
    return str(tx.total_changes)


async def async_transactions(ctx: Context, connection: sqlite3.Connection) -> str:
    async with ctx.transaction() as tx:
        assert_type(tx, AsyncTransaction)
        found = await tx.execute("SELECT id FROM cart WHERE id = :id", {"id": 1})
        row = await found.fetchone()
        await tx.executemany("DELETE FROM cart WHERE id = ?", [(row[0],)])
        await tx.executemany("DELETE FROM cart WHERE id = ?", ((number,) for number in range(3)))
        assert_type(found.lastrowid, int | None)
        assert_type(await send.using(connection=tx).aenqueue("x"), JobHandle[bool])
        tx.finish(found.rowcount)
    async with ctx.transaction(connection) as joined:
        joined.finish(None)
    return await ctx.transact(book_later)


async def book_later(tx: AsyncTransaction) -> str:
    await tx.execute("DELETE FROM cart")
    return "booked"


def jobs_of_a_test(jobs: Jobs) -> None:
    """S0-74: what a test says of jobs is typed like the calls themselves."""
    with app.test(run="inline", now=datetime.now(UTC), state=object(), store=Path("jobs.db")) as block:
        assert_type(block, Jobs)
    assert_type(jobs.assert_enqueued(add.call(1, 2)), list[Job])
    assert_type(jobs.assert_enqueued(send, args={"to": "x"}, queue="mail", tag="a", count=2), list[Job])
    assert_type(jobs.enqueued(resize.using(priority=3).call("a.png", width=1), state="retrying"), list[Job])
    jobs.refute_enqueued("by-name", delay=timedelta(hours=2), tenant="t", key=None)
    ran = jobs.run_all(raise_errors=True)
    assert_type(ran, Ran)
    assert_type(list(ran), list[Run])
    assert_type(ran.completed, list[Job])
    assert_type(jobs.now, datetime)
    assert_type(jobs.advance(hours=2), Ran)
    jobs.advance(timedelta(days=1))
    assert_type(jobs.crash(add.enqueue(1, 2), when="before"), Job)
    assert_type(jobs.crash(aggregate), Job)


async def jobs_of_an_async_test() -> None:
    async with app.test() as jobs:
        assert_type(jobs, Jobs)
        assert_type(await jobs.arun_all(), Ran)
        assert_type(await jobs.aadvance(90), Ran)
        assert_type(await jobs.acrash(jobs.enqueued()[0]), Job)


async def schedules() -> None:
    """A scheduled task is a task: called, enqueued and awaited like any other."""
    other, collection = Shigoto("memory:"), Tasks()

    @other.cron("0 3 * * *", tz="Asia/Tokyo", catch_up="all", catch_up_most=5, overlap="skip", queue="nights")
    def nightly(ctx: Context, tick: Tick) -> int:
        return tick.local_date.day

    @collection.every(timedelta(minutes=5), jitter=10, until=datetime.now(UTC), retry=Retry.never())
    async def often() -> str:
        return "often"

    @other.every("5m")
    def spoken(tick: Tick, times: int = 1) -> None: ...

    assert_type(nightly(Tick.at("2026-05-06T03:00Z")), int)
    assert_type(often.enqueue(), JobHandle[str])
    assert_type(spoken.enqueue(Tick.at("2026-05-06T03:00", tz="Asia/Tokyo"), times=2), JobHandle[None])
    assert_type(nightly.enqueue(Tick.at(datetime.now(UTC))), JobHandle[int])
    assert_type(Tick.at("2026-05-06T03:00Z").at, datetime)

    other.schedule(
        "eu", "0 3 * * *", call=lambda tick: aggregate.call(uuid4(), str(tick.local_date)), gap="skip"
    )
    other.schedule("once", at=datetime.now(UTC), call=add.call(1, 2))
    other.schedule("often", every=60, call=send.using(queue="mail").call("x"))

    assert_type(app.schedules.add("a", add.call(1, 2), cron="@daily", fold="both"), ScheduleRecord)
    assert_type(await app.schedules.aadd("b", send.call("x"), every="5m", tz="Europe/Berlin"), ScheduleRecord)
    assert_type(app.schedules.update("a", call=add.call(2, 3), until=None), ScheduleRecord)
    assert_type(app.schedules.run_now("a"), UUID)
    assert_type(await app.schedules.abackfill("a", datetime.now(UTC), datetime.now(UTC)), list[UUID])
    assert_type(app.schedules.preview("a", since=datetime.now(UTC), limit=3), list[datetime])
    assert_type(app.schedules.history("a")[0], TickRecord)
    assert_type(app.schedules.history("a")[0].lateness, float)


async def fan_out(ctx: Context, ids: list[UUID], names: AsyncIterator[str]) -> None:
    """The tenant is what the list has."""
    assert_type(ctx.fan_out(ids, lambda id: aggregate.call(id, "2026-05-05")), FannedOut)
    assert_type(await ctx.afan_out(names, send.call), FannedOut)
