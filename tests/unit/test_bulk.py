"""Acting on however many jobs match, by filter: clear, cancel and count; and the queues as operators see them."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shigoto import FailureKind, OptionInvalid, bulk
from shigoto.bulk import (
    BATCH,
    PAGE,
    cancel_plan,
    carry_out,
    choose_live_plan,
    choose_plan,
    clear_plan,
    retry_plan,
)
from shigoto.model.job import QueueSettings
from shigoto.model.worker import Ending
from tests.unit.shop import Shop, numbers, opened_shop


@pytest.fixture(params=["memory", "sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """On either engine: what is done must not depend on it."""
    with opened_shop(str(request.param), tmp_path) as shop:
        yield shop


def taken(handles: list[Any]) -> list[int]:
    return [handle.number for handle in handles]


def in_every_state(shop: Shop) -> None:
    """#1 completed, #2 failed, #3 cancelled, #4 processing, #5 pending, #6 scheduled."""
    for _ in range(4):
        shop.price.enqueue("tea")
    shop.settle(Ending.COMPLETED)
    shop.settle(Ending.FAILED, error="ValueError: sold out", failure_kind=FailureKind.TIMEOUT)
    shop.settle(Ending.CANCELLED)
    shop.claim()
    shop.price.enqueue("milk")
    shop.price.using(delay=60).enqueue("rice")


# Finding and counting


async def test_jobs_are_found_and_counted_by_a_text_by_single_filters_or_by_both(shop: Shop) -> None:
    app = shop.app
    in_every_state(shop)
    shop.clock.now += 3_600_000
    shop.price.using(queue="other").enqueue("tea")

    assert numbers(app.find("failed error:SOLD")) == [2]
    assert numbers(app.find("args.item:tea", queue="default")) == [4, 3, 2, 1]
    assert numbers(await app.afind(args={"item": "milk"})) == [5]
    assert numbers(app.find(worker="w")) == numbers(app.find(worker=shop.worker)) == [4]
    assert numbers(app.find("since:30m")) == numbers(app.find(since=timedelta(minutes=30))) == [7]
    assert numbers(app.find(state="all", limit=2)) == [7, 6]
    assert app.count("args.item:tea") == await app.acount(args={"item": "tea"}) == 5
    assert (app.count(), app.count(state="pending"), app.count(limit=3)) == (7, 3, 3)


# Clear


async def test_clear_deletes_the_jobs_of_a_state(shop: Shop) -> None:
    """S0-46"""
    in_every_state(shop)

    assert shop.app.clear(state="completed") == 1
    assert await shop.app.aclear("failed") == 1
    assert shop.app.clear(state="cancelled") == 1
    assert shop.app.clear(state="scheduled") == 1
    assert shop.app.clear(state="pending") == 1
    assert numbers(shop.app.find()) == [4]


def test_clear_takes_the_filters_of_find(shop: Shop) -> None:
    in_every_state(shop)
    shop.price.using(queue="other").enqueue("tea")

    assert shop.app.clear("pending args.item:tea") == 1
    assert shop.app.clear(failure_kind="timeout") == 1
    assert shop.app.clear(state="completed", queue="other") == 0
    assert numbers(shop.app.find()) == [6, 5, 4, 3, 1]


def test_clearing_all_leaves_alone_what_runs(shop: Shop) -> None:
    in_every_state(shop)

    assert shop.app.clear(state="all", dry_run=True) == 5
    assert shop.app.clear(state="all") == 5
    assert numbers(shop.app.find()) == [4]


def test_a_dry_clear_counts_and_changes_nothing(shop: Shop) -> None:
    in_every_state(shop)

    assert shop.app.clear(state="pending", dry_run=True) == 2
    assert shop.app.clear(state="pending", limit=1, dry_run=True) == 1
    assert len(shop.app.find()) == 6


def test_clear_with_a_limit_takes_the_oldest(shop: Shop) -> None:
    for _ in range(5):
        shop.price.enqueue("tea")

    assert shop.app.clear(state="pending", limit=2) == 2
    assert numbers(shop.app.find()) == [5, 4, 3]


def test_clear_goes_on_batch_by_batch_and_can_be_ended_between_two(shop: Shop) -> None:
    shop.app.enqueue_many([shop.price.call("tea")] * (2 * BATCH + 10))
    seen: list[int] = []

    def once(done: int) -> bool:
        seen.append(done)
        return len(seen) < 2

    plan = clear_plan(shop.engine, {"state": "pending"}, dry_run=False, after_batch=once)

    assert carry_out(shop.engine, plan) == 2 * BATCH
    assert (seen, shop.app.count()) == ([BATCH, 2 * BATCH], 10)
    assert shop.app.clear(state="pending") == 10


def test_clear_does_not_run_after_a_producer(shop: Shop) -> None:
    """What is stored while it works stays, or it might never end."""
    shop.app.enqueue_many([shop.price.call("tea")] * BATCH)

    def produce(done: int) -> bool:
        shop.app.enqueue_many([shop.price.call("milk")] * BATCH)
        return True

    plan = clear_plan(shop.engine, {"state": "pending"}, dry_run=False, after_batch=produce)

    assert carry_out(shop.engine, plan) == BATCH
    assert shop.app.count("args.item:milk") == shop.app.count() > 0


def test_an_empty_store_has_nothing_to_clear(shop: Shop) -> None:
    assert shop.app.clear(state="all") == 0


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({}, "Which jobs shall be deleted? Name a state: completed, failed, cancelled, pending, or all"),
        ({"queue": "default"}, "Which jobs shall be deleted?"),
        ({"state": "processing"}, "Jobs that are processing cannot be deleted: cancel them first."),
        ({"state": "blocked"}, "Jobs that are blocked cannot be deleted"),
        ({"state": "completed", "limit": 0}, "limit must be a whole number from 1 on"),
    ],
)
async def test_a_clear_that_cannot_be_meant_is_refused(shop: Shop, filters: Any, message: str) -> None:
    in_every_state(shop)

    with pytest.raises(OptionInvalid) as caught:
        shop.app.clear(**filters)
    with pytest.raises(OptionInvalid):
        await shop.app.aclear(**filters)

    assert message in str(caught.value)
    assert len(shop.app.find()) == 6


@pytest.mark.parametrize("dry_run", [True, False])
async def test_pages_are_for_find_only(shop: Shop, dry_run: bool) -> None:
    """All jobs are meant that match: else a dry run and the real one might not mean the same."""
    in_every_state(shop)
    app, told = shop.app, "before is for pages of find"

    for act in (app.clear, app.cancel, app.redrive):
        with pytest.raises(OptionInvalid, match=told):
            act(state="failed", before=3, dry_run=dry_run)
    for later in (app.aclear, app.acancel, app.aredrive):
        with pytest.raises(OptionInvalid, match=told):
            await later(state="failed", before=3, dry_run=dry_run)
    with pytest.raises(OptionInvalid, match=told):
        app.count(before=3)
    with pytest.raises(OptionInvalid, match=told):
        await app.acount("failed", before=3)
    assert app.count(state="pending", before=None) == app.clear(state="pending", before=None) == 2
    assert numbers(app.find(before=3)) == [2, 1]


def test_clear_goes_on_where_it_has_looked(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many match, it holds a bounded part of them in hand."""
    monkeypatch.setattr(bulk, "LOOK", 3)
    for index in range(11):
        shop.price.enqueue("tea" if index % 3 else "milk")

    assert shop.app.clear("pending args.item:tea") == 7
    assert shop.app.clear(state="pending", limit=2) == 2
    assert numbers(shop.app.find()) == [10, 7]


def test_a_job_that_starts_after_the_look_is_not_deleted_and_not_counted(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 1)
    for _ in range(3):
        shop.price.enqueue("tea")

    def start_another(done: int) -> bool:
        if done == 1 and shop.app.count(state="processing") == 0:
            shop.claim()
        return True

    plan = clear_plan(shop.engine, {"state": "pending", "limit": 2}, dry_run=False, after_batch=start_another)

    assert carry_out(shop.engine, plan) == 2
    assert numbers(shop.app.find()) == [2]


# Cancel


async def test_cancel_takes_what_waits_and_asks_what_runs(shop: Shop) -> None:
    """S1-3"""
    in_every_state(shop)

    done = shop.app.cancel(queue="default")

    assert (taken(done.cancelled), taken(done.asked), done.gone) == ([6, 5], [4], [])
    assert done.asked[0].job().cancel_requested_at is not None
    again = await shop.app.acancel(state="all")
    assert (again.cancelled, taken(again.asked)) == ([], [4])


async def test_cancel_by_force_takes_what_runs_too(shop: Shop) -> None:
    in_every_state(shop)

    done = await shop.app.acancel("state:running", force=True)

    assert (taken(done.cancelled), done.asked) == ([4], [])
    assert shop.app.count(state="processing") == 0


def test_cancel_takes_the_filters_of_find_and_a_limit_the_newest(shop: Shop) -> None:
    in_every_state(shop)

    assert taken(shop.app.cancel(args={"item": "milk"}, dry_run=True).cancelled) == [5]
    dry = shop.app.cancel(state="all", limit=2, dry_run=True)
    assert (taken(dry.cancelled), dry.asked) == ([6, 5], [])
    assert taken(shop.app.cancel("scheduled").cancelled) == [6]
    assert shop.app.cancel(tag="none").cancelled == []
    assert shop.app.count(state="pending") == 1


def test_cancel_goes_on_batch_by_batch_and_can_be_ended_between_two(shop: Shop) -> None:
    shop.app.enqueue_many([shop.price.call("tea")] * (PAGE + 10))
    chosen = carry_out(shop.engine, choose_live_plan(shop.engine, {"state": "all"}, decoder=lambda _: None))

    done = carry_out(shop.engine, cancel_plan(shop.engine, chosen, after_batch=lambda _: False))

    assert (len(done.cancelled), shop.app.count(state="pending")) == (PAGE, 10)
    assert len(shop.app.cancel(state="all").cancelled) == 10


def test_a_job_that_ends_before_it_is_cancelled_is_told(shop: Shop) -> None:
    shop.price.enqueue("tea")
    shop.price.enqueue("milk")
    chosen = carry_out(shop.engine, choose_live_plan(shop.engine, {"state": "all"}, decoder=lambda _: None))
    shop.settle(Ending.COMPLETED)
    assert shop.app.clear(state="pending") == 1

    done = carry_out(shop.engine, cancel_plan(shop.engine, chosen))

    assert (done.cancelled, done.asked, sorted(taken(done.gone))) == ([], [], [1, 2])


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({}, "Which jobs shall be cancelled? Name the state all if every one of them is meant."),
        ({"limit": 5}, "Which jobs shall be cancelled?"),
        ({"state": "failed"}, "Jobs that are failed have ended and cannot be cancelled."),
        ({"failure_kind": "timeout"}, "Jobs that are failed have ended"),
    ],
)
async def test_a_cancel_that_cannot_be_meant_is_refused(shop: Shop, filters: Any, message: str) -> None:
    in_every_state(shop)

    with pytest.raises(OptionInvalid) as caught:
        shop.app.cancel(**filters)
    with pytest.raises(OptionInvalid):
        await shop.app.acancel(**filters)

    assert message in str(caught.value)
    assert shop.app.count(state="pending") == 2


# Redrive


async def test_a_redrive_takes_a_text_too(shop: Shop) -> None:
    """S0-72"""
    in_every_state(shop)

    assert taken(shop.app.redrive("error:nothing").retried) == []
    assert taken(shop.app.redrive("kind:timeout error:sold").retried) == [2]
    assert taken((await shop.app.aredrive("cancelled args.item:tea")).retried) == [3]
    with pytest.raises(OptionInvalid, match="Only failed and cancelled jobs can be redriven: name one"):
        shop.app.redrive("all")


def test_a_redrive_can_be_ended_between_two_batches(shop: Shop) -> None:
    shop.app.enqueue_many([shop.price.call("tea")] * (PAGE + 10))
    shop.app.cancel(state="all")
    chosen = carry_out(shop.engine, choose_plan(shop.engine, {"state": "cancelled"}, decoder=lambda _: None))

    redriven = carry_out(shop.engine, retry_plan(shop.engine, chosen, after_batch=lambda _: False))

    assert (len(redriven.retried), shop.app.count(state="cancelled")) == (PAGE, 10)


# Queues


async def test_an_app_tells_of_its_queues(shop: Shop) -> None:
    in_every_state(shop)
    shop.engine.run(shop.engine.configure(QueueSettings(name="brief", keep_completed_for=60_000)))
    shop.app.pause("empty")

    brief, default, empty = shop.app.queues()

    assert (brief.name, brief.paused, brief.keep_completed_for) == ("brief", False, timedelta(minutes=1))
    assert (default.name, default.counts.pending, default.keep_failed_for) == ("default", 2, None)
    assert (empty.name, empty.paused, empty.counts.pending) == ("empty", True, 0)
    assert await shop.app.aqueues() == [brief, default, empty]
