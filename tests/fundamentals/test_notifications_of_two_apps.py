"""Apps with rules of their own on one store: whoever takes a notice, everybody hears of it, and once."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shigoto import Retry, Shigoto, State
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.protocol import Engine
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.ids import uuid7
from shigoto.model.job import FailureKind, Job, JobFilter, JobSpec
from shigoto.model.notice import DELIVER, NOTICE, QUEUE, FailedJob, Notice, is_silent, of_failures
from shigoto.model.worker import Announcement
from shigoto.notify import Notification, on_dead_worker, on_failure, on_queue_age
from shigoto.notify.notifier import Notifier
from shigoto.notify.rules import Rule
from shigoto.testing.store import VirtualClock
from shigoto.worker import Worker

TRIES = 2_000  # of a hundredth of a second
DAY = 86_400_000

told: dict[str, list[Notification]] = {}


def first(event: Notification) -> None:
    told["first"].append(event)


def second(event: Notification) -> None:
    told["second"].append(event)


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    told.update(first=[], second=[])


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(
    params=[
        pytest.param("memory", marks=pytest.mark.engine("memory")),
        pytest.param("sqlite", marks=pytest.mark.engine("sqlite")),
    ]
)
def engine(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[Engine]:
    made: Engine
    if request.param == "memory":
        made = MemoryEngine(clock=clock)
    else:
        made = SqliteEngine(tmp_path / "jobs.db", clock=clock)
    made.run(made.switch_notices(True))
    yield made
    made.close()


def app_of(engine: Engine, *rules: Rule) -> Shigoto:
    """An app with these rules, and a task that fails; two of them differ in their rules only."""
    app = Shigoto(engine=engine, notify=rules)

    @app.task(name="bad", retry=Retry.never())
    def bad() -> None:
        raise ValueError("boom")

    return app


def rules_of(app: Shigoto) -> Notifier:
    assert app.notifier is not None
    return app.notifier


def register(app: Shigoto, *, stopping: bool = False) -> None:
    """A worker of the app, which lives and is busy elsewhere."""
    worker = Announcement(
        id=uuid7(), name="busy", tasks=tuple(app.tasks), queues=None, slots=1, version="1", stopping=stopping
    )
    app.engine.run(app.engine.announce(worker))


def fail(engine: Engine, times: int = 1) -> None:
    specs = [
        JobSpec(id=uuid7(), payload="{}", task="bad", queue="default", max_failures=1) for _ in range(times)
    ]
    engine.run(engine.enqueue_many(specs))


def jobs(engine: Engine, task: str) -> list[Job]:
    return engine.run(engine.find(JobFilter(task=task, limit=1_000)))


async def fail_side_by_side(
    engine: Engine, clock: VirtualClock, apps: tuple[Shigoto, Shigoto], times: int
) -> None:
    """So many failures, with a worker of each app, until nothing is left to do; the store's time runs fast."""
    async with Worker(apps[0], poll=0.01, lease=3_600.0), Worker(apps[1], poll=0.01, lease=3_600.0):
        fail(engine, times)
        for _ in range(TRIES):
            if all(job.state.terminal for job in engine.run(engine.find(JobFilter(limit=1_000)))):
                return
            await asyncio.sleep(0.01)
            clock.advance(100)
    raise AssertionError(f"it did not happen in time: {told}")


@pytest.mark.parametrize("taker", [0, 1])
async def test_whichever_worker_takes_the_notice_both_apps_are_told(engine: Engine, taker: int) -> None:
    """Both rules have the usual name, as those of two apps will have."""
    apps = (
        app_of(engine, on_failure(to=[first])),
        app_of(engine, on_failure(to=[second])),
    )
    other = apps[1 - taker]
    register(other)
    fail(engine)

    await Worker(apps[taker], drain=True).run()

    assert [len(told["first"]), len(told["second"])] == [1 - taker, taker]
    await Worker(other, drain=True).run()
    assert [len(told["first"]), len(told["second"])] == [1, 1]
    assert {job.state for job in jobs(engine, DELIVER)} == {State.COMPLETED}


async def test_many_failures_are_told_once_each_to_both_apps_by_workers_that_run_side_by_side(
    engine: Engine, clock: VirtualClock
) -> None:
    mine, theirs = app_of(engine, on_failure(to=[first])), app_of(engine, on_failure(to=[second]))

    await fail_side_by_side(engine, clock, (mine, theirs), 20)

    for events in told.values():
        assert len(events) == 20
        assert len({event.job for event in events}) == 20


async def test_while_a_new_release_is_rolled_out_a_rule_that_both_have_tells_once(
    engine: Engine, clock: VirtualClock
) -> None:
    rule = on_failure(to=[first])
    digest = on_failure(name="digest", to=[second], digest=5)
    old = app_of(engine, rule, digest)
    new = app_of(engine, digest, rule, on_dead_worker(to=[second]))
    assert rules_of(old).fingerprint != rules_of(new).fingerprint

    await fail_side_by_side(engine, clock, (old, new), 10)

    assert len({event.job for event in told["first"]}) == len(told["first"]) == 10
    assert sum(event.count for event in told["second"]) == 10


async def test_two_digests_of_one_name_to_one_place_have_counts_of_their_own(
    engine: Engine, clock: VirtualClock
) -> None:
    """Apps choose their own failures; that of the other must neither take the digest's place nor count for it."""
    mine = app_of(engine, on_failure(to=[first], digest=60, tasks=["bad"]))
    theirs = app_of(engine, on_failure(to=[first], digest=60, tasks=["worse"]))

    @theirs.task(name="worse", retry=Retry.never())
    def worse() -> None:
        raise ValueError("boom")

    register(mine)
    register(theirs)
    fail(engine, 3)
    worse.enqueue()
    await Worker(mine, drain=True).run()
    await Worker(theirs, drain=True).run()
    await Worker(mine, drain=True).run()
    clock.advance(70_000)
    register(mine)
    register(theirs)

    for app in (theirs, mine, theirs):
        await Worker(app, drain=True).run()
        clock.advance(5_000)

    assert sorted(tuple(event.tasks.items()) for event in told["first"]) == [
        (("bad", 3),),
        (("worse", 1),),
    ]


class TestForeignDelivery:
    """A message waits for a worker that has its rule, as long as there is one."""

    def delivery(self, app: Shigoto, engine: Engine) -> Callable[[], Job]:
        now = engine.run(engine.time())
        notice = Notice(kind="failed", subject="bad", at=now, job=uuid7(), failure=FailureKind.ERROR)
        [spec] = rules_of(app).messages(uuid7(), notice)
        engine.run(engine.enqueue_many([spec]))

        def look() -> Job:
            [job] = engine.run(engine.get([spec.id]))
            assert job is not None
            return job

        return look

    async def test_it_is_not_lost_to_the_worker_of_another_app_and_counts_as_no_attempt(
        self, engine: Engine, clock: VirtualClock
    ) -> None:
        mine = app_of(engine, on_failure(to=[first]))
        theirs = app_of(engine, on_failure(to=[second]), on_queue_age(to=[second], limit=60))
        job = self.delivery(mine, engine)
        register(mine)

        await Worker(theirs, drain=True).run()

        assert (job().state, job().failures, job().snoozes) == (State.PENDING, 0, 1)
        clock.advance(5_000)
        await Worker(mine, drain=True).run()
        assert job().state is State.COMPLETED
        assert [len(told["first"]), len(told["second"])] == [1, 0]

    async def test_a_rule_of_the_same_name_to_the_same_place_is_not_mistaken_for_it(
        self, engine: Engine
    ) -> None:
        mine = app_of(engine, on_failure(to=[first], tasks=["bad"]))
        theirs = app_of(engine, on_failure(to=[first], tasks=["worse"]))
        job = self.delivery(mine, engine)
        register(mine)

        await Worker(theirs, drain=True).run()

        assert (job().state, told["first"]) == (State.PENDING, [])

    async def test_whoever_has_the_very_rule_delivers_it_whatever_else_his_rules_are(
        self, engine: Engine
    ) -> None:
        old = app_of(engine, on_failure(to=[first]))
        new = app_of(engine, on_failure(to=[first]), on_dead_worker(to=[first]))
        job = self.delivery(old, engine)
        register(old)

        await Worker(new, drain=True).run()

        assert job().state is State.COMPLETED

    @pytest.mark.parametrize("how", ["stopping", "silent", "gone"])
    async def test_without_such_a_worker_it_is_tried_for_some_time_as_before(
        self, engine: Engine, clock: VirtualClock, how: str
    ) -> None:
        mine, theirs = app_of(engine, on_failure(to=[first])), app_of(engine, on_failure(to=[second]))
        job = self.delivery(mine, engine)
        if how != "gone":
            register(mine, stopping=how == "stopping")
        if how == "silent":
            clock.advance(60_000)

        await Worker(theirs, drain=True, sweeps=False).run()

        assert (job().state, job().failures) == (State.PENDING, 1)

    async def test_it_is_left_alone_for_longer_the_longer_it_waits(
        self, engine: Engine, clock: VirtualClock
    ) -> None:
        """A thousand snoozes are the end of a job: they must last longer than any job that keeps a worker busy."""
        mine, theirs = app_of(engine, on_failure(to=[first])), app_of(engine, on_failure(to=[second]))
        job = self.delivery(mine, engine)
        for _ in range(4):
            register(mine)
            await Worker(theirs, drain=True).run()
            clock.advance(DAY)

        assert job().snoozes == 4
        assert (job().run_at - job().created_at).total_seconds() > 3 * 86_400 + 40


class TestForwarding:
    async def test_a_notice_is_handed_to_each_rule_set_once_however_often_it_runs(
        self, engine: Engine
    ) -> None:
        mine, theirs = app_of(engine, on_failure(to=[first])), app_of(engine, on_failure(to=[second]))
        register(theirs)
        register(theirs)
        register(mine)
        notice = Notice(kind="failed", subject="bad", at=1, job=uuid7())
        id = uuid7()

        for _ in range(2):
            assert rules_of(mine).notice(id, notice) == 1

        [handed] = jobs(engine, rules_of(theirs).task)
        assert handed.queue == QUEUE
        assert jobs(engine, rules_of(mine).task) == []

    async def test_what_nobody_has_taken_within_a_day_is_given_up(
        self, engine: Engine, clock: VirtualClock
    ) -> None:
        """The rules of a release that is gone come back no more, and nothing may wait for them for ever."""
        mine, theirs = app_of(engine, on_failure(to=[first])), app_of(engine, on_failure(to=[second]))
        register(theirs)
        rules_of(mine).notice(uuid7(), Notice(kind="failed", subject="bad", at=1, job=uuid7()))
        clock.advance(DAY + 1)

        await Worker(mine, drain=True).run()

        [handed] = jobs(engine, rules_of(theirs).task)
        assert (handed.state, handed.failure_kind) == (State.FAILED, FailureKind.EXPIRED)
        assert jobs(engine, NOTICE) == []

    def test_a_queue_that_is_old_for_one_app_may_become_so_for_the_other_later(self, engine: Engine) -> None:
        """One notice in a window would be spent by the shorter limit."""
        mine = app_of(engine, on_queue_age(to=[first], limit=60))
        theirs = app_of(engine, on_queue_age(to=[second], limit=600))
        now = 1_700_000_000_000

        [early] = rules_of(mine).looks(now, {"slow": now - 60_000})
        [late] = rules_of(theirs).looks(now, {"slow": now - 600_000})

        assert early.id != late.id

    def test_the_failure_of_any_of_these_jobs_is_no_news(self, engine: Engine) -> None:
        app = app_of(engine, on_failure(to=[first]))
        ours = {NOTICE, DELIVER, rules_of(app).task}
        assert set(app.tasks) == {*ours, "bad"}
        assert all(map(is_silent, ours))
        assert not is_silent("bad")
        failed = [
            FailedJob(number, uuid7(), task, QUEUE, 1, FailureKind.ERROR)
            for number, task in enumerate([*ours, "bad"])
        ]
        assert len(of_failures(1, failed)) == 1


class TestFingerprint:
    """What two processes of one app agree on, and two apps with different rules do not."""

    def fingerprint(self, *rules: Rule) -> str:
        return rules_of(Shigoto("memory:", notify=rules)).fingerprint

    def test_the_same_rules_in_another_order_are_the_same(self) -> None:
        one, two = on_failure(to=[first], tasks=["b", "a"]), on_dead_worker(to=[second])
        other = on_failure(to=[first], tasks=["a", "b"])
        assert self.fingerprint(one, two) == self.fingerprint(two, other)

    def test_everything_that_matters_of_a_rule_tells_it_from_others(self) -> None:
        sets = [
            (on_failure(to=[first]),),
            (on_failure(to=[second]),),
            (on_failure(to=[first], name="other"),),
            (on_failure(to=[first], window=60),),
            (on_failure(to=[first], digest=60),),
            (on_failure(to=[first], tasks=["a"]),),
            (on_failure(to=[first], queues=["a"]),),
            (on_failure(to=[first], kinds=["error"]),),
            (on_failure(to=[first]), on_dead_worker(to=[first])),
            (on_dead_worker(to=[first], name="failure"),),
            (on_queue_age(to=[first], limit=60, name="failure"),),
            (on_queue_age(to=[first], limit=61, name="failure"),),
        ]
        assert len({self.fingerprint(*rules) for rules in sets}) == len(sets)
