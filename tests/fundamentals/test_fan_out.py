"""Fan-out: one job stores one child for each tenant, and may simply run again. On real stores."""

from collections.abc import AsyncIterator
from itertools import count
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

import pytest

from shigoto import Call, Context, FannedOut, Job, OptionInvalid, Retry, Shigoto
from shigoto.context import Signals
from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.job import KeyMode, Lease
from tests.fundamentals.shop import Shop
from tests.fundamentals.stage import Stage

PARENT = uuid4()


def run_of(parent: UUID = PARENT) -> Context:
    """One run of a job, as its handler sees it."""
    lease = Lease(
        number=1, token=1, id=parent, task="all", queue="default", payload="{}", attempt=1, failures=0, snoozes=0,
        max_failures=1, priority=0, run_at=0, claimed_at=0,
    )  # fmt: skip
    return Context(lease, Signals())


class Chain:
    """An app with a task for one store, and the stores."""

    def __init__(self, engine: Engine) -> None:
        self.app = Shigoto(engine=engine)

        @self.app.task
        def for_store(store: str, day: str = "monday") -> None: ...

        self.for_store = for_store

    def call(self, store: str) -> Call[Any]:
        return self.for_store.call(store, "monday")

    def children(self) -> list[Job]:
        found = self.app.find(state="all", task="for_store", limit=1_000)
        return sorted(found, key=lambda job: job.number)


@pytest.fixture
def chain(shop: Shop) -> Chain:
    return Chain(shop.engine)


def stores(number: int) -> list[str]:
    return [f"store-{each:04}" for each in range(number)]


def test_one_run_stores_one_child_for_each_tenant_in_their_order(chain: Chain) -> None:
    """S3-6, S3-57 = GWT-5, S3-72: exactly three, each on behalf of its tenant."""
    told = run_of().fan_out(["c", "a", "b"], chain.call)

    assert told == FannedOut(inserted=3)
    assert [(job.tenant, job.payload) for job in chain.children()] == [
        (store, f'{{"store":"{store}","day":"monday"}}') for store in "cab"
    ]


def test_ten_times_a_hundred_stores_are_enqueued_within_a_minute(chain: Chain) -> None:
    """S3-51: by the clock."""
    began = monotonic()

    assert run_of().fan_out(stores(1_000), chain.call) == FannedOut(inserted=1_000)

    assert monotonic() - began < 60


def test_what_an_earlier_run_of_the_same_job_has_stored_is_met_again(chain: Chain) -> None:
    """S3-9: a half-done fan-out can simply run again; nothing is stored twice, and nothing is left out."""
    numbers = count()

    def dies_half_way(store: str) -> Call[Any]:
        if next(numbers) == 700:
            raise ConnectionError("gone")
        return chain.call(store)

    with pytest.raises(ConnectionError):
        run_of().fan_out(stores(1_000), dies_half_way)
    assert len(chain.children()) == 500, "whole batches are committed"

    assert run_of().fan_out(stores(1_000), chain.call) == FannedOut(inserted=500, existing=500)
    assert [job.tenant for job in chain.children()] == stores(1_000)
    assert run_of().fan_out(stores(1_000), chain.call) == FannedOut(existing=1_000)


def test_within_one_run_a_fan_out_that_failed_can_be_tried_again(chain: Chain) -> None:
    run = run_of()
    with pytest.raises(ZeroDivisionError):
        run.fan_out(list("a"), lambda store: chain.for_store.call(store, str(1 // 0)))

    assert run.fan_out(list("a"), chain.call) == FannedOut(inserted=1)


@pytest.mark.parametrize(("mode", "again"), [("keep", "existing"), ("preserve_run_at", "replaced")])
def test_another_run_of_the_scheduler_adds_no_second_job_for_a_store(
    shop: Shop, chain: Chain, mode: KeyMode, again: str
) -> None:
    """S3-58 = GWT-6: in both readings of the rule, each a mode of the unique key; also an hour later."""

    def keyed(store: str) -> Call[Any]:
        return chain.for_store.using(key=f"aggregate:{store}:monday", key_mode=mode).call(store, "monday")

    first = run_of(uuid4()).fan_out(list("abc"), keyed)
    before = [(job.id, job.run_at) for job in chain.children()]
    shop.clock.advance(3_600_000)  # so that a run_at that is kept is not by chance that of the second run
    second = run_of(uuid4()).fan_out(list("abc"), keyed)

    assert (first, second) == (FannedOut(inserted=3), FannedOut(**{again: 3}))
    assert [(job.id, job.run_at) for job in chain.children()] == before


def test_two_fan_outs_of_one_job_are_told_apart_by_their_part(chain: Chain) -> None:
    run = run_of()
    run.fan_out(list("ab"), chain.call, part="monday")
    run.fan_out(list("ab"), lambda store: chain.for_store.call(store, "tuesday"), part="tuesday")

    assert len(chain.children()) == 4
    with pytest.raises(OptionInvalid, match="part="):
        run.fan_out(list("ab"), chain.call, part="monday")


def test_tenants_may_be_numbers_ids_or_a_set(chain: Chain) -> None:
    id = uuid4()
    run = run_of()
    run.fan_out([7, 8], lambda number: chain.call(str(number)), part="numbers")
    run.fan_out([id], lambda each: chain.call(str(each)), part="ids")
    run.fan_out({"y", "x", "z"}, chain.call, part="set")

    assert [job.tenant for job in chain.children()] == ["7", "8", str(id), "x", "y", "z"]


def test_no_tenants_are_no_children(chain: Chain) -> None:
    assert run_of().fan_out(list[str](), chain.call) == FannedOut()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda chain, store: store, "use task.call"),
        (lambda chain, store: chain.for_store.using(id=PARENT).call(store), "neither the id"),
        (lambda chain, store: chain.for_store.using(connection=object()).call(store), "nor the connection"),
        (lambda chain, store: chain.for_store.using(tenant="b").call(store), "is for tenant 'b'"),
    ],
)
def test_what_cannot_be_a_child_is_refused_and_nothing_is_stored(chain: Chain, make: Any, why: str) -> None:
    with pytest.raises(OptionInvalid, match=why):
        run_of().fan_out(list("a"), lambda store: make(chain, store))
    assert chain.children() == []


@pytest.mark.parametrize("tenant", ["", "x" * 101, "a\0b", 1.5, True])
def test_what_cannot_be_a_tenant_is_refused(chain: Chain, tenant: Any) -> None:
    with pytest.raises(OptionInvalid, match="tenant"):
        run_of().fan_out([tenant], lambda _: chain.call("a"))


@pytest.mark.parametrize("part", [5, None, "a\0b", "\ud800", "x" * 201])
def test_what_cannot_be_a_part_is_refused(chain: Chain, part: Any) -> None:
    with pytest.raises(OptionInvalid, match=r"^part "):
        run_of().fan_out(["a"], chain.call, part=part)


@pytest.mark.parametrize("tenants", ["abc", b"abc"])
async def test_one_tenant_is_not_taken_for_its_letters(chain: Chain, tenants: Any) -> None:
    with pytest.raises(OptionInvalid, match=r"a list of tenants, not one: write \[b?'abc'\]"):
        run_of().fan_out(tenants, chain.call)
    with pytest.raises(OptionInvalid, match="a list of tenants, not one"):
        await run_of().afan_out(tenants, chain.call)
    assert chain.children() == []


def test_calls_of_two_apps_are_refused(chain: Chain) -> None:
    other = Chain(Shigoto("memory:").engine)

    with pytest.raises(OptionInvalid, match="another app"):
        run_of().fan_out(list("ab"), lambda store: (chain if store == "a" else other).call(store))


async def test_the_same_without_blocking_the_loop(chain: Chain) -> None:
    async def listed() -> AsyncIterator[str]:
        for store in stores(1_200):
            yield store

    assert await run_of().afan_out(listed(), chain.call) == FannedOut(inserted=1_200)
    assert await run_of().afan_out(stores(1_200), chain.call) == FannedOut(existing=1_200)


def test_a_batch_is_one_transaction(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Op[Any]] = []
    run = chain.app.engine.run

    def counted(op: Op[Any]) -> Any:
        ran.append(op)
        return run(op)

    monkeypatch.setattr(chain.app.engine, "run", counted)

    run_of().fan_out(iter(stores(1_001)), chain.call)

    assert len(ran) == 3


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_retry_of_the_parent_stores_no_second_child(stage: Stage) -> None:
    """S3-6, S3-9: by a worker, with a handler that fails after it has fanned out."""

    @stage.app.task
    async def for_store(store: str) -> None: ...

    @stage.app.task(retry=Retry.immediate(retries=1))
    async def for_all(ctx: Context) -> None:
        await ctx.afan_out(["a", "b", "c"], for_store.call)
        if ctx.attempt == 1:
            raise ConnectionError("after it was done")

    for_all.enqueue()
    stage.drain()

    assert sorted(job.tenant for job in stage.app.find(state="completed", task="for_store")) == [
        "a",
        "b",
        "c",
    ]
