"""S4-13: a queue with `max_pending` takes no more than that, where jobs come in by HTTP, command line or schedule."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shigoto import QueueFull
from shigoto.engine.protocol import Capabilities, Relay
from shigoto.model.ids import uuid7
from shigoto.model.job import Enqueued, JobSpec, KeyMode, QueueSettings
from shigoto.model.time import to_datetime
from shigoto.model.worker import Ending
from shigoto.queues import store_within_limits
from tests.unit.shop import Shop, opened_shop


@pytest.fixture(params=["memory", "sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    with opened_shop(str(request.param), tmp_path) as shop:
        yield shop


def limit(shop: Shop, queue: str, most: int | None) -> None:
    shop.engine.run(shop.engine.configure(QueueSettings(name=queue, max_pending=most)))


def spec(queue: str = "default", **more: Any) -> JobSpec:
    return JobSpec(id=uuid7(), task="price", queue=queue, payload='{"item":"tea"}', **more)


def store(shop: Shop, *specs: JobSpec) -> list[Enqueued]:
    return shop.engine.run(store_within_limits(shop.engine, specs))


def pending(shop: Shop, queue: str = "default") -> int:
    return shop.engine.run(shop.engine.stats())[queue].pending


def test_more_at_once_than_it_may_ever_hold_is_told_as_that(shop: Shop) -> None:
    """To try again later would not help."""
    limit(shop, "default", 2)

    with pytest.raises(QueueFull, match=r"never has room for 3 jobs at once, but for 2 .* Send fewer"):
        store(shop, spec(), spec(), spec())
    assert store(shop, spec(), spec())


def test_up_to_the_limit_and_no_further_all_or_none(shop: Shop) -> None:
    limit(shop, "default", 3)

    store(shop, spec(), spec())
    with pytest.raises(QueueFull, match=r"Queue default is full: 2 pending, at most 3"):
        store(shop, spec(), spec())
    assert pending(shop) == 2

    store(shop, spec())
    with pytest.raises(QueueFull):
        store(shop, spec())
    assert pending(shop) == 3


def test_a_job_that_starts_makes_room_and_one_that_is_due_later_takes_it(shop: Shop) -> None:
    limit(shop, "default", 1)
    store(shop, spec())
    shop.claim()

    store(shop, spec(delay=60_000))

    with pytest.raises(QueueFull):
        store(shop, spec())


def test_only_the_queue_that_is_full_refuses_but_for_all_of_a_batch(shop: Shop) -> None:
    limit(shop, "small", 1)
    limit(shop, "large", 100)
    store(shop, spec("small"), spec("large"), spec("other"))

    with pytest.raises(QueueFull, match="Queue small"):
        store(shop, spec("other"), spec("large"), spec("small"))
    store(shop, spec("other"), spec("large"))

    assert [pending(shop, queue) for queue in ("small", "large", "other")] == [1, 2, 2]


def test_what_is_stored_already_takes_no_room(shop: Shop) -> None:
    limit(shop, "default", 2)
    first = spec()
    store(shop, first)
    store(shop, spec())

    [again] = store(shop, first)

    assert again.status == "existing"
    shop.settle(Ending.COMPLETED)
    assert [each.status for each in store(shop, first, spec())] == ["existing", "inserted"]


def test_a_limit_that_is_taken_away_is_gone(shop: Shop) -> None:
    limit(shop, "default", 1)
    store(shop, spec())
    limit(shop, "default", None)

    assert [each.status for each in store(shop, spec(), spec())] == ["inserted", "inserted"]


def test_where_no_limit_is_known_nothing_is_looked_at(shop: Shop) -> None:
    limit(shop, "default", 1)
    plain = shop.engine.enqueue_many([spec("other")])

    op = store_within_limits(shop.engine, [spec("other")], {"default": 1})

    assert (op.batch is None, op.hints is None) == (plain.batch is None, plain.hints is None)
    with pytest.raises(QueueFull):
        shop.engine.run(store_within_limits(shop.engine, [spec(), spec()], {"default": 1}))


def test_an_application_that_enqueues_on_its_own_store_is_not_limited(shop: Shop) -> None:
    limit(shop, "default", 1)

    shop.app.enqueue_many(shop.price.call("tea") for _ in range(3))

    assert pending(shop) == 3


def test_what_somebody_wants_of_a_schedule_takes_room_too(shop: Shop) -> None:
    """S4-13: as its ticks do; and what finds none leaves no trace."""
    schedules = shop.app.schedules
    schedules.add("hourly", shop.price.call("tea"), every="1h")
    now = to_datetime(shop.clock())
    limit(shop, "default", 2)
    schedules.run_now("hourly")

    with pytest.raises(QueueFull):
        schedules.backfill("hourly", now - timedelta(hours=3), now)
    assert (pending(shop), len(schedules.history("hourly"))) == (1, 1)
    schedules.run_now("hourly")
    with pytest.raises(QueueFull):
        schedules.run_now("hourly")
    assert (pending(shop), len(schedules.history("hourly"))) == (2, 2)


def test_it_rings_for_new_jobs(shop: Shop) -> None:
    limit(shop, "default", 5)
    op = store_within_limits(shop.engine, [spec()])

    assert op.rings is not None
    assert op.rings(shop.engine.run(op))


def test_a_store_that_is_a_server_checks_for_itself() -> None:
    class Served(Relay):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(name="http", durable=True, shared=True, joins=False, served=True)

    with opened_shop("memory", Path()) as shop:
        limit(shop, "default", 1)
        shop.engine.run(store_within_limits(Served(shop.engine), [spec(), spec()]))

        assert pending(shop) == 2


@pytest.mark.parametrize("mode", ["keep", "replace", "preserve_run_at", "unsafe_dedupe"])
def test_who_meets_a_held_key_takes_no_room(shop: Shop, mode: KeyMode) -> None:
    """A1: nothing new would be stored."""
    limit(shop, "default", 1)
    [held] = store(shop, spec(key="k"))

    [met] = store(shop, spec(key="k", key_mode=mode))

    assert (met.id, met.status) == (held.id, "existing" if mode in ("keep", "unsafe_dedupe") else "replaced")
    with pytest.raises(QueueFull):
        store(shop, spec(key="k", key_mode=mode), spec())
    with pytest.raises(QueueFull):
        store(shop, spec(key="k", key_mode=mode, tenant="other"))


def test_nor_where_the_job_runs(shop: Shop) -> None:
    limit(shop, "default", 1)
    [running] = store(shop, spec(key="k"))
    shop.claim()
    store(shop, spec())

    assert store(shop, spec(key="k"))[0].id == running.id
    with pytest.raises(QueueFull):
        store(shop, spec(key="k", key_mode="replace"))  # it would be a second one


def test_nor_where_one_that_has_ended_counts(shop: Shop) -> None:
    limit(shop, "default", 1)
    [ended] = store(shop, spec(key="k"))
    shop.settle(Ending.COMPLETED)
    store(shop, spec())

    assert store(shop, spec(key="k", key_mode="unsafe_dedupe"))[0].id == ended.id
    with pytest.raises(QueueFull):
        store(shop, spec(key="k"))


def test_one_that_would_be_moved_here_does(shop: Shop) -> None:
    limit(shop, "default", 1)
    store(shop, spec(), spec("other", key="k"))

    with pytest.raises(QueueFull):
        store(shop, spec(key="k", key_mode="replace"))
    assert store(shop, spec(key="k"))[0].status == "existing"
