"""What a schedule promises as a whole: each tick once, whoever runs, and after whatever went wrong."""

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, Literal, TypeVar
from zoneinfo import ZoneInfo

import psycopg
import pytest

from shigoto import Call, Retry, Shigoto, StoreUnavailable, Tick, TickOutcome
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op, Steps
from shigoto.model.schedule import Change
from shigoto.model.time import to_datetime, to_millis
from shigoto.observe import events
from shigoto.scheduler import Scheduler
from shigoto.testing.store import START
from shigoto.worker import Worker
from tests.fundamentals.shop import Shop
from tests.fundamentals.stage import Stage

T = TypeVar("T")

PERIOD = 5_000


class Ear:
    """Hears the events of one kind from whoever runs on this very loop."""

    def __init__(self, app: Shigoto, kind: type[events.Event]) -> None:
        self._heard = 0
        self._news = asyncio.Event()
        app.bus.subscribe(self._hear, kind)

    async def more(self, count: int = 1) -> None:
        """Wait for so many more."""
        wanted = self._heard + count
        async with asyncio.timeout(60):
            while self._heard < wanted:
                self._news.clear()
                await self._news.wait()

    def _hear(self, event: events.Event) -> None:
        self._heard += 1
        self._news.set()


class Distant(MemoryEngine):
    """A store to which every question takes a moment, in which others can ask theirs."""

    async def arun(self, op: Op[T]) -> T:
        await asyncio.sleep(0.001)
        return self.run(op)


def report_on(app: Shigoto) -> Any:
    @app.task(priority=3)
    async def report() -> None: ...

    return report


def test_r3_every_five_seconds_for_two_minutes_is_24_of_24_with_three_workers() -> None:
    """R3: every five seconds, over two minutes, with the policies that are usual; none is skipped in silence."""
    stage = Stage(lambda clock: Distant(clock=clock))
    report = report_on(stage.app)
    stage.app.schedules.add("each", report.call(), every="5s")

    async def main() -> None:
        async with (
            stage.working(name="1", random=Random(1)),
            stage.working(name="2", random=Random(2)),
            stage.working(name="3", random=Random(3)),
        ):
            await asyncio.sleep(122)
            await stage.until(events.JobCompleted, 24)

    stage.play(main)

    told = stage.app.schedules.history("each", limit=100)[::-1]
    assert [tick.outcome for tick in told] == [TickOutcome.FIRED] * 24
    first = START - START % PERIOD + PERIOD
    assert [round(tick.at.timestamp() * 1000) for tick in told] == [first + PERIOD * n for n in range(24)]
    jobs = [job.id for job in stage.app.find(limit=100, state="completed")]
    assert len(jobs) == 24
    assert set(jobs) == {tick.job for tick in told}
    assert stage.all(events.TickLost), "they were rivals"


def test_a_scheduler_is_made_idle_then_runs_schedules_again_and_again_and_handles_their_errors() -> None:
    """S4-1: made with an app whose store it has tested, it does not run yet; then it fires, plans the next run, and
    goes on with the others where one fails. Instead of a lock that expires, the store hears one of many.
    """
    stage = Stage()
    report = report_on(stage.app)

    def fail(tick: object) -> Any:
        raise ValueError("no call today")

    stage.app.schedule("broken", "* * * * *", call=fail)
    stage.app.schedules.add("sound", report.call(), cron="* * * * *")

    async def main() -> None:
        made = Scheduler(stage.app, random=Random(5), name="clock")
        assert (made.ready, made.figures(), made.health().state) == (False, None, "new")
        async with made:
            await stage.until(events.TickFired, 3)
            before = stage.app.schedules.get("sound")
            await stage.until(events.TickFired, 4)
            after = stage.app.schedules.get("sound")
        assert before.next_at is not None
        assert after.next_at is not None
        assert (after.next_at - before.next_at).total_seconds() == 60

    stage.play(main)

    assert {event.schedule for event in stage.all(events.TickFired)} == {"sound"}
    assert {event.schedule for event in stage.all(events.ScheduleFailed)} == {"broken"}
    assert stage.app.schedules.get("broken").errors > 1


class Full(MemoryEngine):
    """A store that takes no job while it is full."""

    full = True

    def tick(self, changes: Sequence[Change]) -> Any:
        if not (self.full and any(change.firings for change in changes)):
            return super().tick(changes)

        def refuse() -> Steps[Any]:
            raise ValueError("the queue is full")

        return Op(start=refuse)


@pytest.mark.parametrize("first_ends", [True, False])
def test_what_could_not_be_submitted_is_for_anybody_to_try_again(first_ends: bool) -> None:
    """S4-7, S4-13: a full queue is an error of the schedule, and nothing stays locked by whoever met it."""
    stage = Stage(lambda clock: Full(clock=clock))
    engine = stage.engine
    assert isinstance(engine, Full)
    report = report_on(stage.app)
    stage.app.schedules.add("each", report.call(), cron="* * * * *")

    async def main() -> None:
        async with Scheduler(stage.app, random=Random(1), name="first") as first:
            await stage.until(events.ScheduleFailed, 2)
            due = stage.app.schedules.get("each").next_at
            if first_ends:
                first.stop()
                await first.wait()
            engine.full = False
            async with Scheduler(stage.app, random=Random(2), name="second"):
                await stage.until(events.TickFired)
        [fired] = stage.app.schedules.history("each")
        assert fired.at == due, "the very tick that could not be submitted"

    stage.play(main)

    record = stage.app.schedules.get("each")
    assert (record.status, record.errors, record.error) == ("active", 0, None)
    if first_ends:
        assert stage.all(events.TickFired)[0].worker == "second"


class Dying(Full):
    """A store that does not answer its workers any more once a schedule has failed in it."""

    last = dead = False

    def tick(self, changes: Sequence[Change]) -> Any:
        self.last = any(change.schedule.failed for change in changes)
        return super().tick(changes)

    async def arun(self, op: Op[T]) -> T:
        if self.dead:
            raise StoreUnavailable("it is gone")
        answer = await super().arun(op)
        self.dead = self.last
        return answer


@pytest.mark.parametrize("when_failed", ["keep", "remove"])
def test_a_schedule_that_has_failed_is_kept_or_removed_as_it_was_said(
    when_failed: Literal["keep", "remove"], caplog: pytest.LogCaptureFixture
) -> None:
    """S4-12: marked failed and logged when the tries are used up, and removed if so configured; others stay."""
    stage = Stage(lambda clock: Full(clock=clock))
    report = report_on(stage.app)
    stage.app.schedules.add("each", report.call(), cron="* * * * *", when_failed=when_failed)
    stage.app.schedules.add("yearly", report.call(), cron="@yearly", when_failed="remove")

    async def main() -> None:
        async with Scheduler(stage.app, random=Random(1), name="clock"):
            await stage.until(events.ScheduleFailed, 6)
            assert stage.all(events.ScheduleFailed)[-1].failed
            await asyncio.sleep(300)

    with caplog.at_level(logging.INFO, "shigoto.worker"):
        stage.play(main)

    left = {record.name: record.status for record in stage.app.schedules.all()}
    removed = [event.schedule for event in stage.all(events.ScheduleRemoved)]
    said = [message for message in caplog.messages if "has failed for good" in message]
    assert len(stage.all(events.ScheduleFailed)) == 6
    if when_failed == "keep":
        assert (left, removed) == ({"each": "failed", "yearly": "active"}, [])
        assert "mend it, then resume it" in said[-1]
    else:
        assert (left, removed) == ({"yearly": "active"}, ["each"])
        assert said == ["clock: Schedule each has failed for good, and is removed as it was said of it"]
        assert not [message for message in caplog.messages if "resume it" in message]


def test_whoever_dies_at_the_last_failure_leaves_no_schedule_that_shall_be_removed() -> None:
    """S4-12: it fails for good and goes in one transaction, so nobody finds it failed."""
    stage = Stage(lambda clock: Dying(clock=clock))
    report = report_on(stage.app)
    stage.app.schedules.add("each", report.call(), cron="* * * * *", when_failed="remove")

    async def main() -> None:
        async with Scheduler(stage.app, random=Random(1), name="clock"):
            await stage.until(events.ScheduleFailed, 6)
            await asyncio.sleep(300)

    stage.play(main)

    assert stage.app.schedules.all() == []


def test_what_is_not_said_of_a_schedule_is_utc_active_and_looked_at_within_a_minute() -> None:
    """S4-23: its time zone, its status, and how soon somebody looks, also if it comes while all of them sleep."""
    stage = Stage()
    report = report_on(stage.app)

    async def main() -> None:
        async with Scheduler(stage.app, random=Random(5), name="clock"):
            await asyncio.sleep(30.5)
            added = await stage.app.schedules.aadd("daily", report.call(), cron="0 9 * * *")
            assert (added.tz, added.status) == ("UTC", "active")
            assert added.next_at is not None
            assert (added.next_at.hour, added.next_at.utcoffset()) == (9, timedelta(0))
            await stage.app.schedules.aadd("often", report.call(), every="1s")
            began = stage.now
            await stage.until(events.TickFired)
            assert stage.now - began <= 60_000
            await stage.until(events.TickFired, 10)

    stage.play(main)

    assert max(event.late for event in stage.all(events.TickFired)) <= 60_000


@pytest.mark.tier("nightly")
def test_what_a_job_is_about_is_made_once_of_its_tick_and_stored() -> None:
    """C15: caught up hours later, and retried after that, it is still the day before the tick in its own zone."""
    stage = Stage()
    made: list[datetime] = []
    seen: list[str] = []

    @stage.app.task(retry=Retry.delays([timedelta(days=1)]))
    async def close(day: str) -> None:
        seen.append(day)
        if len(seen) == 1:
            raise ConnectionError("tomorrow")

    def make(tick: Tick) -> Call[None]:
        made.append(tick.at)
        return close.call(str(tick.local_date - timedelta(days=1)))

    three = to_datetime(START).astimezone(ZoneInfo("Asia/Tokyo")) + timedelta(days=1)
    three = three.replace(hour=3, minute=0, second=0, microsecond=0)
    stage.app.schedule("close", call=make, at=three, tz="Asia/Tokyo")

    async def declare() -> None:
        async with Scheduler(stage.app, random=Random(5)):
            pass

    async def main() -> None:
        async with stage.working():
            await stage.until(events.JobCompleted)

    stage.play(declare)
    stage.clock.advance(to_millis(three) + 7 * 3_600_000 - stage.clock.now)
    stage.play(main)

    day = str(three.date() - timedelta(days=1))
    [entry] = stage.app.schedules.history("close")
    [job] = stage.app.find(state="all", task="close")
    assert (entry.outcome, entry.at, made) == (TickOutcome.CAUGHT_UP, three, [three])
    assert (seen, job.payload) == ([day, day], f'{{"day":"{day}"}}')


def test_the_rate_of_submissions_is_told_in_all_by_schedule_and_by_priority() -> None:
    """S4-19, S4-23: a rate of each, from what was counted, beside what the store has counted for all instances."""
    stage = Stage()
    report = report_on(stage.app)
    stage.app.schedules.add("often", report.call(), every="15s")
    stage.app.schedules.add("urgent", report.using(priority=9).call(), cron="* * * * *")

    async def main() -> None:
        async with Scheduler(stage.app, random=Random(5), name="clock") as running:
            await asyncio.sleep(601)
            figures, totals = running.figures(), await running.totals()
        assert figures is not None
        assert (figures.seconds, figures.by_priority) == (601.0, {3: 40, 9: 10})
        assert figures.rates.total == pytest.approx(50 / 601)
        assert figures.rates.by_schedule == {
            "often": pytest.approx(40 / 601),
            "urgent": pytest.approx(10 / 601),
        }
        assert figures.rates.by_priority == {3: pytest.approx(40 / 601), 9: pytest.approx(10 / 601)}
        assert {name: counts["fired"] for name, counts in totals.items()} == {"often": 40, "urgent": 10}

    stage.play(main)


@pytest.mark.engine("postgres")
@pytest.mark.newest_postgres
def test_a_connection_that_is_lost_in_the_midst_of_a_tick_costs_no_tick(postgres_database: str) -> None:
    """S4-13, S4-14: the server ends the connection on which a tick is about to be stored; it is stored on another."""
    app = Shigoto(postgres_database)
    app.engine.migrate()
    report = report_on(app)
    app.schedules.add("each", report.call(), every="1s", catch_up="all")

    async def main() -> None:
        fired = Ear(app, events.TickFired)
        async with Scheduler(app, any_role=True, name="clock"):
            await fired.more()
            for _ in range(3):
                await asyncio.to_thread(cut_off_a_tick, postgres_database)
                await fired.more(2)

    try:
        asyncio.run(main())
        told = app.schedules.history("each", limit=1_000)[::-1]
        record = app.schedules.get("each")
    finally:
        app.close()
    seconds = [round(tick.at.timestamp()) for tick in told]
    assert seconds == list(range(seconds[0], seconds[0] + len(seconds)))
    assert {tick.outcome for tick in told} <= {TickOutcome.FIRED, TickOutcome.CAUGHT_UP}
    assert len({tick.job for tick in told}) == len(told)
    assert (record.status, record.errors) == ("active", 0), "the connection is no fault of the schedule"


@pytest.mark.parametrize("late", [timedelta(0), timedelta(minutes=10)], ids=["on time", "after an outage"])
def test_on_servers_and_files_too_a_tick_is_judged_by_the_time_of_the_store(
    shop: Shop, late: timedelta
) -> None:
    """A21, S3-59 = GWT-7: the clock of the store is moved, that of the host is not, and the day is that of the tick."""

    @shop.app.cron("0 3 * * *", tz="Asia/Tokyo")
    async def aggregate(tick: Tick) -> str:
        return str(tick.local_date - timedelta(days=1))

    begun = to_datetime(shop.clock.now).astimezone(ZoneInfo("Asia/Tokyo"))
    three = (begun + timedelta(days=1)).replace(hour=3, minute=0, second=0, microsecond=0)

    async def main() -> None:
        async with Scheduler(shop.app, any_role=True, name="clock"):
            pass  # which has brought the schedule into the store
        completed = Ear(shop.app, events.JobCompleted)
        shop.clock.now = to_millis(three + late)
        async with Worker(shop.app, any_role=True, beats="loop"):
            await completed.more()

    asyncio.run(main())

    newest = shop.app.schedules.history("aggregate")[0]
    assert (newest.at, newest.decided_at) == (three, three + late)
    [job] = shop.app.find(task="aggregate")
    assert (job.id, job.result) == (newest.job, f'"{three.date() - timedelta(days=1)}"')


def cut_off_a_tick(address: str) -> None:
    """Hold up the next tick in its transaction, and end its connection there."""
    with psycopg.connect(address) as holder, psycopg.connect(address, autocommit=True) as other:
        holder.execute("LOCK TABLE shigoto.schedule IN EXCLUSIVE MODE")
        waiting = "SELECT pid FROM pg_locks WHERE relation = 'shigoto.schedule'::regclass AND NOT granted"
        deadline = time.monotonic() + 30
        while not (pids := other.execute(waiting).fetchall()):
            assert time.monotonic() < deadline, "no tick came"
            time.sleep(0.01)
        for pid in pids:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", pid)
