"""A scheduler without a worker, on virtual time."""

import asyncio
import logging
from collections.abc import Collection
from random import Random
from typing import Any, TypeVar

import pytest

from shigoto import NotReady, ScheduleTaken, SchemaMissing, Shigoto, State, StoreMoved, StoreUnavailable
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.model.schedule import Change, Due
from shigoto.model.time import Millis
from shigoto.model.worker import Announcement
from shigoto.observe import events
from shigoto.scheduler import Scheduler, SchedulerExit
from shigoto.testing.store import VirtualClock
from tests.fundamentals.stage import Stage

T = TypeVar("T")


def plan(stage: Stage) -> None:
    @stage.app.cron("* * * * *", name="minutely", priority=3)
    async def minutely() -> None: ...


def scheduler(stage: Stage, **options: Any) -> Scheduler:
    usual: dict[str, Any] = {"random": Random(5), "name": "clock"}
    return Scheduler(stage.app, **usual | options)


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    plan(stage)
    return stage


def test_it_fires_and_promotes_and_sweeps_but_claims_nothing(stage: Stage) -> None:
    """S3-68, S4-6, S4-9, A15: and no worker is to be seen."""

    @stage.app.task
    async def later() -> None: ...

    async def main() -> tuple[list[State], list[str]]:
        await later.using(delay=30).aenqueue()
        gone = Announcement(
            id=stage.worker().id,
            name="gone",
            tasks=("later",),
            queues=None,
            slots=1,
            version="1",
            host="h",
            pid=1,
        )
        await stage.engine.arun(stage.engine.announce(gone))
        async with scheduler(stage) as running:
            await stage.until(events.TickFired, 3)
            ready = [running.ready]
            await stage.until(events.WorkersFenced)
            workers = [each.name for each in await stage.engine.arun(stage.engine.workers())]
        assert [*ready, running.ready] == [True, False]
        return [job.state for job in stage.app.find(limit=100)], workers

    states, workers = stage.play(main)

    assert set(states) == {State.PENDING}
    assert workers == []
    assert stage.all(events.JobsPromoted)
    at = [event.at for event in stage.all(events.TickFired)]
    assert at == [at[0] + 60_000 * number for number in range(len(at))]


def test_it_says_when_it_begins_and_ends(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """S4-16: initiated, then finished, then published as stopped, then logged as completed; nothing active: at once."""

    async def main() -> SchedulerExit:
        async with scheduler(stage) as running:
            await stage.until(events.TickFired)
            began = stage.now
            running.stop()
            ended = await running.wait()
            assert stage.now == began
        return ended

    with caplog.at_level(logging.INFO, "shigoto.worker"):
        ended = stage.play(main)

    assert (ended, ended.exit_code) == (SchedulerExit(reason="stopped"), 0)
    assert stage.all(events.SchedulerStopped) == [events.SchedulerStopped("clock", "stopped", 0)]
    said = [message for message in caplog.messages if message.startswith("Scheduler")]
    assert said == [
        "Scheduler clock started, with 1 schedules of its own code",
        "Scheduler clock: Stop initiated: stopped",
        "Scheduler clock: Stop completed",
    ]


class Slow(MemoryEngine):
    """A store that takes its time for every tick."""

    seconds = 5.0

    async def arun(self, op: Op[T]) -> T:
        value = self.run(op)
        if isinstance(value, list) and value and isinstance(value[0], Change):
            await asyncio.sleep(self.seconds)
        return value


@pytest.mark.parametrize("stop_timeout", [28.0, 2.0])
def test_a_stop_lets_the_cycle_at_hand_finish_but_not_for_ever(
    stop_timeout: float, caplog: pytest.LogCaptureFixture
) -> None:
    """S4-16, S4-17."""
    stage = Stage(lambda clock: Slow(clock=clock))
    plan(stage)

    async def main() -> tuple[SchedulerExit, float]:
        running = scheduler(stage, stop_timeout=stop_timeout)
        task = asyncio.create_task(running.run())
        await stage.until(events.SchedulerStarted)
        await asyncio.sleep(61)  # in the middle of a cycle
        began = asyncio.get_running_loop().time()
        running.stop()
        return await task, asyncio.get_running_loop().time() - began

    with caplog.at_level(logging.INFO, "shigoto.worker"):
        ended, seconds = stage.play(main)

    if stop_timeout > Slow.seconds:
        assert (ended, ended.exit_code) == (SchedulerExit(reason="stopped"), 0)
        assert len(stage.all(events.TickFired)) == 1
        assert seconds <= Slow.seconds
    else:
        assert (ended.running, ended.exit_code) == (1, 1)
        assert "Scheduler clock: Stop forced: 1 of its parts did not end in time" in caplog.messages
        assert seconds == pytest.approx(2.0, abs=0.1)


def test_a_second_request_makes_it_hurry() -> None:
    """S4-17."""
    stage = Stage(lambda clock: Slow(clock=clock))
    plan(stage)

    async def main() -> tuple[SchedulerExit, float]:
        running = scheduler(stage)
        task = asyncio.create_task(running.run())
        await stage.until(events.SchedulerStarted)
        await asyncio.sleep(61)
        began = asyncio.get_running_loop().time()
        running.stop()
        running.stop()
        return await task, asyncio.get_running_loop().time() - began

    ended, seconds = stage.play(main)
    assert (ended.running, seconds <= 2) == (1, True)


class Shaky(MemoryEngine):
    """A store that does not answer while it is down, or is gone."""

    down = False
    moved = False

    def run(self, op: Op[T]) -> T:
        if self.moved:
            raise StoreMoved("the jobs are elsewhere")
        if self.down:
            raise StoreUnavailable("the disk is gone")
        return super().run(op)


def test_an_outage_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """S4-14: degraded mode keeps trying, and what was due meanwhile is caught up; never silence."""
    stage = Stage(lambda clock: Shaky(clock=clock))
    plan(stage)
    engine = stage.engine
    assert isinstance(engine, Shaky)

    async def main() -> tuple[str, str, str]:
        async with scheduler(stage) as running:
            await stage.until(events.TickFired)
            fine = running.health().status
            engine.down = True
            await asyncio.sleep(300)
            bad = running.health()
            assert (bad.connected, bad.details[0]) == (
                False,
                "The store has not answered for 299 s: the disk is gone.",
            )
            engine.down = False
            await stage.until(events.TickFired, 3)
            await asyncio.sleep(660)
            return fine, bad.status, running.health().status

    with caplog.at_level(logging.INFO, "shigoto.worker"):
        assert stage.play(main) == ("OK", "Error", "OK")

    assert len(stage.all(events.SchedulerDegraded)) == len(stage.all(events.SchedulerRecovered)) == 1
    assert [m for m in caplog.messages if "is degraded" in m] == [
        "Scheduler clock is degraded: it cannot reach its store, fires nothing, and keeps trying: the disk is gone"
    ]
    [passed] = [event for event in stage.all(events.TickPassed) if event.outcome == "missed"]
    assert passed.count == 4


def test_a_store_that_is_gone_for_good_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    """S4-14: permanently lost: it stops gracefully, and logs why."""
    stage = Stage(lambda clock: Shaky(clock=clock))
    plan(stage)
    engine = stage.engine
    assert isinstance(engine, Shaky)

    async def main() -> SchedulerExit:
        async with scheduler(stage) as running:
            await stage.until(events.TickFired)
            engine.moved = True
            return await running.wait()

    ended = stage.play(main)

    assert (ended.reason, ended.exit_code) == ("lost", 1)
    assert "Scheduler clock ends: the jobs are elsewhere" in caplog.messages
    assert stage.all(events.SchedulerStopped) == [
        events.SchedulerStopped("clock", "the jobs are elsewhere", 0)
    ]


class Unmade(MemoryEngine):
    """A store that somebody else has to make, or that is away."""

    error: Exception = SchemaMissing("no schema here")

    def expect_ready(self, *, any_role: bool) -> Op[None]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SchemaMissing("no schema here"), "WORKER.SCHEMA_MISSING"),
        (StoreUnavailable("no route"), "WORKER.NOT_READY"),
    ],
)
def test_whoever_makes_one_learns_that_the_store_is_not_there(error: Exception, code: str) -> None:
    """S4-2: at once where nobody else waits, or when it begins."""
    stage = Stage(lambda clock: Unmade(clock=clock))
    assert isinstance(stage.engine, Unmade)
    stage.engine.error = error

    with pytest.raises((NotReady, SchemaMissing)) as sync:
        scheduler(stage)
    assert sync.value.code == code

    async def main() -> str:
        made = scheduler(stage)
        with pytest.raises((NotReady, SchemaMissing)) as later:
            await made.run()
        return later.value.code

    assert stage.play(main) == code


class Deaf(MemoryEngine):
    """A store that is made by whoever needs it, and cannot be made."""

    def due(self, declared: Collection[str], limit: int) -> Op[Due]:
        raise StoreUnavailable("the folder is not there")

    def time(self) -> Op[Millis]:
        raise StoreUnavailable("the folder is not there")


def test_the_connection_is_tested_also_where_a_store_needs_no_preparation() -> None:
    """S4-2."""
    stage = Stage(lambda clock: Deaf(clock=clock))

    with pytest.raises(NotReady, match=r"The scheduler cannot begin\. the folder is not there"):
        scheduler(stage)

    async def main() -> None:
        with pytest.raises(NotReady, match="the folder is not there"):
            await scheduler(stage).run()

    stage.play(main)


def test_a_name_that_somebody_else_has_keeps_it_from_beginning(stage: Stage) -> None:
    """A24."""
    stage.app.schedules.add("taken", stage.app.tasks["minutely"].call(), every="5m")
    other = Shigoto(engine=stage.engine)

    @other.cron("@daily", name="taken")
    async def taken() -> None: ...

    async def main() -> None:
        with pytest.raises(ScheduleTaken, match="'taken'"):
            async with Scheduler(other):
                pass

    stage.play(main)


def test_one_that_is_stopped_before_it_begins_does_nothing(stage: Stage) -> None:
    async def main() -> SchedulerExit:
        made = scheduler(stage)
        made.stop()
        return await made.run()

    assert stage.play(main) == SchedulerExit(reason="stopped")
    assert stage.told == []


def test_a_tick_is_fired_by_one_of_many(stage: Stage) -> None:
    """S4-8, S4-20: high availability without a leader; one of them may end at any time."""
    distant = Stage(Distant)
    plan(distant)

    async def main() -> int:
        async with scheduler(distant, name="a"), distant.working(name="b", random=Random(5)):
            async with scheduler(distant, name="c") as other:
                await distant.until(events.TickFired, 5)
                figures = other.figures()
                assert figures is not None
            await distant.until(events.TickFired, 10)
            return figures.fired + figures.lost

    assert distant.play(main) >= 4
    at = [event.at for event in distant.all(events.TickFired)]
    assert at == [at[0] + 60_000 * number for number in range(10)]
    assert distant.all(events.TickLost)


class Distant(MemoryEngine):
    """A store to which every question takes a moment, in which others can ask theirs."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)

    async def arun(self, op: Op[T]) -> T:
        await asyncio.sleep(0.001)
        return self.run(op)


def test_it_counts_what_it_does_and_so_does_a_worker(stage: Stage) -> None:
    """S4-19, S4-23: statistics per schedule and priority, in memory and in the store."""

    async def main() -> None:
        made = scheduler(stage)
        assert made.figures() is None
        assert made.health().status == "Error"
        async with made:
            await stage.until(events.TickFired, 3)
            figures, totals = made.figures(), await made.totals()
        assert figures is not None
        assert (figures.fired, figures.by_schedule["minutely"].fired, figures.by_priority) == (3, 3, {3: 3})
        assert totals == {"minutely": {"fired": 3}}
        assert (figures.errors, figures.error_rate, figures.lateness.p99) == (0, 0.0, 0)
        assert figures.cycles >= 3
        async with stage.working() as worker:
            await stage.until(events.TickFired, 4)
            counted = worker.figures()
        assert counted is not None
        assert counted.fired == 1
        async with stage.working(ticks=False) as worker:
            assert worker.figures() is None

    stage.play(main)
