"""S0-66: what operators do is noted, with who did it, in the same transaction; and nothing else is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec import json

from shigoto import JobNotFound, JobNotRetryable, OptionInvalid, State
from shigoto.bulk import cancel_plan, carry_out, choose_live_plan, choose_plan, clear_plan, retry_plan
from shigoto.engine.protocol import Capabilities, Relay
from shigoto.handle import JobHandle
from shigoto.model.job import QueueSettings
from shigoto.model.service import AUDIT_TEXT, AuditEntry
from shigoto.model.worker import Ending
from shigoto.schedule.fire import looked_at
from shigoto.server.audit import Audited, cancel_op, change_queue_op, noted, rerun_op
from tests.unit.shop import Shop, opened_shop

ACTOR = "token:aaaabbbbcccc (ops)"


@pytest.fixture(params=["memory", "sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    with opened_shop(str(request.param), tmp_path) as shop:
        yield shop


def audit(shop: Shop) -> list[AuditEntry]:
    return shop.engine.run(shop.engine.registry.noted(limit=1_000))


def told(shop: Shop) -> list[tuple[str, str, Any, Any]]:
    """What was noted, the oldest first."""
    entries = audit(shop)
    assert {entry.actor for entry in entries} <= {ACTOR}
    return [
        (
            entry.action,
            entry.target,
            None if entry.before is None else json.decode(entry.before),
            None if entry.after is None else json.decode(entry.after),
        )
        for entry in reversed(entries)
    ]


def failed(shop: Shop) -> JobHandle[Any]:
    job = shop.price.enqueue("tea")
    shop.settle(Ending.FAILED, error="secret")
    return job


def test_a_cancel_is_noted_with_the_states_before_and_after(shop: Shop) -> None:
    running = shop.price.enqueue("tea")
    shop.claim()
    waiting = shop.price.enqueue("milk")

    states = shop.engine.run(cancel_op(shop.engine, [waiting.id, running.id], force=False, actor=ACTOR))
    shop.engine.run(cancel_op(shop.engine, [running.id], force=True, actor=ACTOR))

    assert states == [State.CANCELLED, State.PROCESSING]
    assert told(shop) == [
        ("job.cancel", str(waiting.id), {"state": "pending"}, {"state": "cancelled", "force": False}),
        ("job.cancel", str(running.id), {"state": "processing"}, {"state": "processing", "force": False}),
        ("job.cancel", str(running.id), {"state": "processing"}, {"state": "cancelled", "force": True}),
    ]


def test_what_changes_nothing_is_not_noted(shop: Shop) -> None:
    job = failed(shop)

    shop.engine.run(cancel_op(shop.engine, [job.id, uuid4()], force=True, actor=ACTOR))
    shop.engine.run(Audited(shop.engine, ACTOR, "pending").delete([job.number], [State.PENDING]))
    shop.engine.run(change_queue_op(shop.engine, "default", actor=ACTOR, paused=False))
    shop.engine.run(Audited(shop.engine, ACTOR).remove_schedules(["none"]))

    assert told(shop) == []


def test_a_retry_and_a_rerun_are_noted_and_what_is_refused_is_not(shop: Shop) -> None:
    job = failed(shop)
    shop.engine.run(Audited(shop.engine, ACTOR).retry([job.id]))
    with pytest.raises(JobNotRetryable):
        shop.engine.run(Audited(shop.engine, ACTOR).retry([job.id]))
    with pytest.raises(JobNotFound):
        shop.engine.run(Audited(shop.engine, ACTOR).retry([uuid4()]))
    with pytest.raises(JobNotRetryable):
        shop.engine.run(rerun_op(shop.engine, job.id, actor=ACTOR))
    shop.settle(Ending.COMPLETED)
    again = shop.engine.run(rerun_op(shop.engine, job.id, actor=ACTOR))

    assert told(shop) == [
        ("job.retry", str(job.id), {"state": "failed"}, {"state": "pending"}),
        ("job.rerun", str(job.id), None, {"id": str(again.id), "number": again.number}),
    ]


def test_a_queue_is_noted_by_what_has_changed(shop: Shop) -> None:
    shop.engine.run(change_queue_op(shop.engine, "mail", actor=ACTOR, paused=True))
    shop.engine.run(change_queue_op(shop.engine, "mail", actor=ACTOR, max_pending=10, keep_failed_for=5))
    shop.engine.run(change_queue_op(shop.engine, "mail", actor=ACTOR, paused=False))
    changed = shop.engine.run(change_queue_op(shop.engine, "mail", actor=ACTOR, max_pending=None))

    assert changed == QueueSettings(name="mail", keep_failed_for=5)
    assert told(shop) == [
        ("queue.pause", "mail", {"paused": False}, {"paused": True}),
        (
            "queue.configure",
            "mail",
            {"keep_failed_for": None, "max_pending": None},
            {"keep_failed_for": 5, "max_pending": 10},
        ),
        ("queue.resume", "mail", {"paused": True}, {"paused": False}),
        ("queue.configure", "mail", {"max_pending": 10}, {"max_pending": None}),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_pending": 0},
        {"max_pending": True},
        {"max_pending": 1.5},
        {"paused": None},
        {"keep_failed_for": -1},
        {"x": 1},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(fields: dict[str, Any]) -> None:
    with opened_shop("memory", Path()) as shop, pytest.raises(OptionInvalid, match=next(iter(fields))):
        change_queue_op(shop.engine, "mail", actor=ACTOR, **fields)


def test_bulk_actions_note_each_batch_once_with_the_filter(shop: Shop) -> None:
    jobs = [failed(shop) for _ in range(3)]
    engine = Audited(shop.engine, ACTOR, "failed task:price")

    chosen = carry_out(engine, choose_plan(engine, {"state": State.FAILED}, decoder=lambda _: None))
    carry_out(engine, retry_plan(engine, chosen))
    live = carry_out(engine, choose_live_plan(engine, {"state": "pending"}, decoder=lambda _: None))
    carry_out(engine, cancel_plan(engine, live))
    carry_out(engine, clear_plan(engine, {"state": State.CANCELLED}, dry_run=False))

    ids = [str(job.id) for job in jobs]
    assert told(shop) == [
        ("jobs.retry", "failed task:price", None, {"retried": 3, "ids": ids}),
        ("jobs.cancel", "failed task:price", None, {"cancelled": 3, "force": False, "ids": ids[::-1]}),
        ("jobs.delete", "failed task:price", None, {"deleted": 3, "of": [job.number for job in jobs]}),
    ]


def test_an_entry_about_the_largest_batch_is_whole_json(shop: Shop) -> None:
    jobs = shop.app.enqueue_many(shop.price.call("tea") for _ in range(600))
    engine = Audited(shop.engine, ACTOR, "all")

    shop.engine.run(engine.cancel([job.id for job in jobs]))

    [(_, _, _, after)] = told(shop)
    assert (after["cancelled"], len(after["ids"])) == (600, 400)
    assert all(len((entry.after or "").encode()) <= AUDIT_TEXT for entry in audit(shop))


def test_handles_on_an_audited_engine_note_what_they_do(shop: Shop) -> None:
    job = failed(shop)
    handle = JobHandle[Any](Audited(shop.engine, ACTOR), job.id, job.number, "existing", None)

    handle.retry()
    handle.cancel()

    assert [action for action, *_ in told(shop)] == ["job.retry", "job.cancel"]


def test_what_is_done_to_schedules_is_noted_and_a_tick_is_not(shop: Shop) -> None:
    app = shop.app
    with app.lend(Audited(shop.engine, ACTOR), app.url):
        app.schedules.add("tea", shop.price.call("tea"), every="1h")
        app.schedules.update("tea", every="2h")
        app.schedules.pause("tea")
        app.schedules.resume("tea")
        app.schedules.run_now("tea")
        shop.clock.now += 3 * 3_600_000
        due = shop.engine.run(shop.engine.due((), 10))
        ticks = [looked_at(each, {}, due.now) for each in due.schedules]
        assert ticks[0].firings
        app.engine.run(app.engine.tick(ticks))
        app.schedules.remove("tea")

    assert [(action, target) for action, target, *_ in told(shop)] == [
        ("schedule.add", "tea"),
        ("schedule.update", "tea"),
        ("schedule.pause", "tea"),
        ("schedule.resume", "tea"),
        ("schedule.run", "tea"),
        ("schedule.remove", "tea"),
    ]


def test_whoever_ends_a_pause_is_noted_also_if_ticks_from_before_it_are_still_due(shop: Shop) -> None:
    app = shop.app
    app.schedules.add("tea", shop.price.call("tea"), every="1h")
    with app.lend(Audited(shop.engine, ACTOR), app.url):
        for verb in (app.schedules.pause, app.schedules.resume):
            shop.clock.now += 2 * 3_600_000
            verb("tea")
        due = shop.engine.run(shop.engine.due((), 10))
        [tick] = [looked_at(each, {}, due.now) for each in due.schedules]
        app.engine.run(app.engine.tick([tick]))

    assert {firing.entry.outcome for firing in tick.firings} >= {"suppressed"}
    assert [action for action, *_ in told(shop)] == ["schedule.pause", "schedule.resume"]


def test_arguments_results_and_errors_are_never_noted(shop: Shop) -> None:
    job = shop.price.using(meta={"m": "secret"}, tags=["secret"]).enqueue("secret")
    shop.settle(Ending.FAILED, error="secret")
    app = shop.app
    with app.lend(Audited(shop.engine, ACTOR), app.url):
        app.schedules.add("tea", shop.price.call("secret"), every="1h")
    shop.engine.run(Audited(shop.engine, ACTOR).retry([job.id]))
    shop.engine.run(cancel_op(shop.engine, [job.id], force=True, actor=ACTOR))
    shop.engine.run(rerun_op(shop.engine, job.id, actor=ACTOR))

    assert len(audit(shop)) == 4
    assert "secret" not in str(audit(shop))


def test_anything_else_can_be_noted_by_its_value_and_rings_as_before(shop: Shop) -> None:
    def entries(states: list[State | None], _: object) -> list[AuditEntry]:
        known = states[0] is not None
        return [AuditEntry(actor=ACTOR, action="job.cancel", target="x")] if known else []

    op = shop.engine.cancel([uuid4()])
    assert noted(shop.engine, op, entries).rings is op.rings
    shop.engine.run(noted(shop.engine, op, entries))
    shop.engine.run(noted(shop.engine, shop.engine.cancel([shop.price.enqueue("tea").id]), entries))

    assert [target for _, target, *_ in told(shop)] == ["x"]


def test_a_store_that_is_a_server_notes_for_itself() -> None:
    class Served(Relay):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(name="http", durable=True, shared=True, joins=False, served=True)

    with opened_shop("memory", Path()) as shop:
        engine = Audited(Served(shop.engine), ACTOR)
        job = failed(shop)
        engine.run(engine.retry([job.id]))
        engine.run(engine.cancel([job.id]))
        engine.run(engine.delete([job.number], [State.CANCELLED]))
        engine.run(engine.configure(QueueSettings(name="q", paused=True)))

        assert told(shop) == []
