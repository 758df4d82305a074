"""Who is told of what, from the failure to the message, on a worker that runs: on virtual time but for threads."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from shigoto import Encryption, Fail, JobHandle, Retry, Shigoto, State
from shigoto.engine.memory import MemoryEngine
from shigoto.model.ids import uuid7
from shigoto.model.job import Job, JobFilter, JobSpec
from shigoto.model.notice import DELIVER, NOTICE, QUEUE, Notice
from shigoto.notify import Log, Notification, on_dead_worker, on_failure, on_missed_schedule, on_queue_age
from shigoto.notify.rules import Rule
from shigoto.options import TaskOptions
from shigoto.scheduler import Scheduler
from shigoto.testing.store import VirtualClock
from shigoto.worker import Worker

TRIES = 2_000  # of a hundredth of a second


class Ear:
    """What was told, and an app whose rules tell it."""

    def __init__(self, *rules: Rule, **options: Any) -> None:
        self.told: list[Notification] = []
        self.broken = 0
        self.app = Shigoto(options.pop("url", None) or "memory:", notify=rules, **options)

    def hear(self, event: Notification) -> None:
        if self.broken:
            self.broken -= 1
            raise ConnectionError("nobody there")
        self.told.append(event)

    async def until(self, enough: Callable[[], bool]) -> None:
        for _ in range(TRIES):
            if enough():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"it did not happen in time: {self.told}")

    def jobs(self, task: str) -> list[Any]:
        return self.app.engine.run(self.app.engine.find(JobFilter(task=task, limit=1_000)))


ears: list[Ear] = []  # the newest is the one of the test


def hear(event: Notification) -> None:
    ears[-1].hear(event)


async def hear_later(event: Notification) -> None:
    await asyncio.sleep(0)
    ears[-1].hear(event)


@pytest.fixture
def ear() -> Callable[..., Ear]:
    def make(*rules: Rule, **options: Any) -> Ear:
        ears.append(Ear(*rules, **options))
        return ears[-1]

    return make


def failing(app: Shigoto, name: str = "bad", **options: Any) -> Callable[[], JobHandle[None]]:
    def bad() -> None:
        raise ValueError("boom")

    task = app.task(name=name, retry=Retry.never(), **options)(bad)
    return task.enqueue


async def test_a_failure_is_told_once_to_each_target_with_its_error_and_not_its_arguments(
    ear: Callable[..., Ear],
) -> None:
    """S0-66, S1-20: also by a worker that serves another queue only."""
    it = ear(on_failure(to=[hear, hear_later]))
    job = failing(it.app)()

    async with Worker(it.app, queues=["default"]):
        await it.until(lambda: len(it.told) == 2)
        await it.until(lambda: all(each.state is State.COMPLETED for each in it.jobs(DELIVER)))

    assert {event.job for event in it.told} == {job.id}
    assert {event.error for event in it.told} == {"ValueError: boom"}
    assert {event.subject for event in it.told} == {"bad"}
    assert len({event.id for event in it.told}) == 2
    assert [each.queue for each in it.jobs(NOTICE)] == [QUEUE]


async def test_of_an_encrypted_failure_the_type_is_told(ear: Callable[..., Ear]) -> None:
    """Whoever reads mail has no key."""
    it = ear(on_failure(to=[hear]), encryption=Encryption({"new": bytes(32)}))
    failing(it.app)()

    async with Worker(it.app):
        await it.until(lambda: len(it.told) == 1)

    assert it.told[0].error == "ValueError (encrypted)"


async def test_an_app_without_rules_writes_nothing() -> None:
    app = Shigoto("memory:")
    failing(app)()

    await Worker(app, drain=True).run()

    stats = app.engine.run(app.engine.stats())
    assert list(stats) == ["default"]


async def test_many_failures_in_a_window_are_one_message_at_once_and_one_when_it_is_over(
    ear: Callable[..., Ear],
) -> None:
    """Once per rule, subject and window, with a count; the store's clock stands still until it is told."""
    clock = VirtualClock()
    it = ear(
        on_failure(to=[hear], window=timedelta(minutes=10)),
        on_failure(name="digest", to=[hear_later], digest=timedelta(minutes=10)),
        engine=MemoryEngine(clock=clock),
        url=None,
    )
    enqueue, other = failing(it.app), failing(it.app, "worse")
    jobs = {enqueue().id for _ in range(7)} | {other().id}

    async with Worker(it.app, poll=0.01):
        await it.until(lambda: len(it.told) == 2)
        await it.until(lambda: all(each.state is State.COMPLETED for each in it.jobs(NOTICE)))
        assert {event.subject for event in it.told} == {"bad", "worse"}
        assert {event.count for event in it.told} == {1}
        assert {event.job for event in it.told} <= jobs
        clock.advance(610_000)
        await it.until(lambda: not [each for each in it.jobs(DELIVER) if not each.state.terminal])

    later = sorted(it.told[2:], key=lambda event: event.rule)
    assert [(event.rule, event.subject, event.count, event.tasks) for event in later] == [
        ("digest", "", 8, {"bad": 7, "worse": 1}),
        ("failure", "bad", 6, {}),
    ]


def tried(it: Ear, times: int) -> bool:
    return [each.failures for each in it.jobs(DELIVER)] == [times]


async def test_a_delivery_that_fails_is_tried_again_and_triggers_nothing(ear: Callable[..., Ear]) -> None:
    clock = VirtualClock()
    it = ear(on_failure(to=[hear]), engine=MemoryEngine(clock=clock), url=None)
    it.broken = 2
    failing(it.app)()

    async with Worker(it.app, poll=0.01):
        for tries in (1, 2):
            await it.until(partial(tried, it, tries))
            clock.advance(60_000)
        await it.until(lambda: len(it.told) == 1)
        await it.until(lambda: it.jobs(DELIVER)[0].state is State.COMPLETED)

    assert len(it.jobs(NOTICE)) == 1


async def test_a_target_that_can_never_be_reached_ends_its_job_as_failed_and_nobody_is_told(
    ear: Callable[..., Ear],
) -> None:
    def refuse(event: Notification) -> None:
        raise Fail("no such place")

    it = ear(on_failure(to=[refuse]))
    failing(it.app)()

    async with Worker(it.app):
        await it.until(lambda: [each.state for each in it.jobs(DELIVER)] == [State.FAILED])

    assert len(it.jobs(NOTICE)) == 1


async def test_a_rule_that_this_worker_does_not_know_is_left_to_others_and_then_given_up(
    ear: Callable[..., Ear],
) -> None:
    """While a new release is rolled out, the old workers must not drop what the new ones tell."""
    clock = VirtualClock()
    engine = MemoryEngine(clock=clock)
    new = Shigoto(engine=engine, notify=[on_failure(to=[hear])])
    assert new.notifier is not None
    it = ear(on_failure(name="another", to=[Log()]), engine=engine, url=None)
    first, second = (
        new.notifier.messages(uuid7(), Notice(kind="failed", subject="x", at=at, job=UUID(int=at)))[0]
        for at in (1, 2)
    )

    def job_of(spec: JobSpec) -> Job:
        [job] = engine.run(engine.get([spec.id]))
        assert job is not None
        return job

    engine.run(engine.enqueue_many([first]))
    await Worker(it.app, drain=True).run()
    assert (job_of(first).state, it.told) == (State.PENDING, [])
    clock.advance(60_000)
    await Worker(new, drain=True).run()
    assert [event.job for event in it.told] == [UUID(int=1)]

    engine.run(engine.enqueue_many([second]))
    while not job_of(second).state.terminal:
        await Worker(it.app, drain=True).run()
        clock.advance(3_600_000)
    assert len(it.told) == 1
    assert "no longer has the rule" in str(job_of(second).result)


async def test_a_notice_that_nobody_can_read_does_not_keep_a_digest_from_being_told(
    ear: Callable[..., Ear],
) -> None:
    """Whoever may submit jobs may submit this one, too."""
    clock = VirtualClock()
    it = ear(on_failure(to=[hear], digest=60), engine=MemoryEngine(clock=clock), url=None)
    engine = it.app.engine
    engine.run(engine.switch_notices(True))
    failing(it.app)()
    forged = [JobSpec(id=uuid7(), payload=text, task=NOTICE, queue=QUEUE) for text in ("{}", "[7]")]
    engine.run(engine.enqueue_many(forged))

    await Worker(it.app, drain=True).run()
    clock.advance(120_000)
    await Worker(it.app, drain=True).run()

    assert [event.count for event in it.told] == [1]


@pytest.mark.parametrize("defaults", [{"executor": "loop"}, {"exclusive": True}, {"timeout": 30}])
async def test_what_is_said_of_all_tasks_is_not_said_of_ours(
    ear: Callable[..., Ear], defaults: TaskOptions
) -> None:
    it = ear(on_failure(to=[hear]), defaults=defaults)

    @it.app.task(retries=0)
    async def bad() -> None:
        raise ValueError("boom")

    bad.enqueue()

    await Worker(it.app, drain=True, children=0).run()

    assert len(it.told) == 1


async def test_why_a_message_is_not_delivered_is_told_although_jobs_are_encrypted(
    ear: Callable[..., Ear],
) -> None:
    it = ear(on_failure(to=[hear]), encryption=Encryption({"a": bytes(range(32))}))
    it.broken = 100
    failing(it.app)()

    await Worker(it.app, drain=True).run()

    assert [each.error for each in it.jobs(DELIVER)] == ["ConnectionError: nobody there"]


async def test_a_dead_worker_is_told_of(ear: Callable[..., Ear]) -> None:
    clock = VirtualClock()
    it = ear(on_dead_worker(to=[hear]), engine=MemoryEngine(clock=clock), url=None)
    from shigoto.model.worker import Announcement, SweepOrder

    engine = it.app.engine
    dead = Announcement(id=uuid7(), name="lost-at-sea", tasks=(), queues=None, slots=1, version="1")
    engine.run(engine.announce(dead))
    async with Worker(it.app, poll=0.01, lease=3_600.0):
        clock.advance(60_000)
        engine.run(engine.sweep(SweepOrder(fence=(dead.id,))))
        await it.until(lambda: bool(it.told))

    assert [(event.kind, event.subject) for event in it.told] == [("fenced", "lost-at-sea")]


async def test_a_queue_that_waits_too_long_is_told_of_once_by_however_many_look(
    ear: Callable[..., Ear],
) -> None:
    it = ear(on_queue_age(to=[hear], limit=1.0, queues=["slow"]))
    failing(it.app, "never", queue="slow")()
    failing(it.app, "other", queue="other")()

    async with Scheduler(it.app), Worker(it.app, queues=["nothing"]), Worker(it.app, queues=["nothing"]):
        await it.until(lambda: bool(it.told))
        await asyncio.sleep(1.5)  # for two more looks of each, which must not tell again

    assert [(event.kind, event.subject) for event in it.told] == [("old", "slow")]


async def test_ticks_that_were_missed_are_told_of(ear: Callable[..., Ear]) -> None:
    clock = VirtualClock()
    engine = MemoryEngine(clock=clock)
    it = ear(on_missed_schedule(to=[hear]), engine=engine, url=None)

    @it.app.every(60, name="minutely", catch_up="none")
    def minutely() -> None: ...

    async with Worker(it.app, poll=0.01):
        pass
    clock.advance(600_000)

    async with Worker(it.app, poll=0.01):
        await it.until(lambda: bool(it.told))

    [event] = it.told
    assert (event.kind, event.subject) == ("missed", "minutely")
    assert event.count >= 9
