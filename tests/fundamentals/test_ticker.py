"""Schedules in workers: declared when one begins, fired by all of them together, told of by the one who was heard."""

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from random import Random
from typing import TypeVar
from zoneinfo import ZoneInfoNotFoundError

import pytest
from msgspec.structs import replace

from shigoto import (
    Call,
    NotReady,
    ScheduleTaken,
    SchemaMissing,
    Shigoto,
    State,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    Tick,
    Unsupported,
)
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op, Steps, drive
from shigoto.model.job import QueueSettings
from shigoto.model.schedule import SOON, Change, Schedule
from shigoto.model.text import ERROR_LIMIT
from shigoto.model.time import to_datetime
from shigoto.observe import events
from shigoto.schedule.decide import FIRST_PAUSE, MOST_ERRORS, OVERLAP_LOOK, after_failure
from shigoto.schedule.fire import AT_ONCE
from shigoto.scheduler import Figures, Scheduler
from shigoto.testing.store import START, VirtualClock
from shigoto.worker import Worker
from shigoto.worker.ticker import TURN
from tests.fundamentals.stage import Stage

T = TypeVar("T")


@pytest.fixture
def stage() -> Stage:
    return Stage()


def declare_minutely(app: Shigoto) -> None:
    @app.cron("* * * * *", name="minutely")
    async def minutely() -> None: ...


def declare_ours(app: Shigoto) -> None:
    @app.cron("* * * * *")
    async def report() -> None: ...


def declare_theirs(app: Shigoto) -> None:
    @app.cron("* * * * *", name="theirs")
    async def theirs() -> None: ...

    app.schedule("report", "* * * * *", call=theirs.call())


# Declaring


def test_what_is_declared_is_in_the_store_before_the_worker_is_ready(stage: Stage) -> None:
    """S4-2, C23: the store is the truth, from the first moment on."""
    declare_minutely(stage.app)

    async def main() -> list[str]:
        async with stage.working():
            return [record.name for record in await stage.app.schedules.aall()]

    assert stage.play(main) == ["minutely"]
    assert [event.schedules for event in stage.all(events.SchedulesDeclared)] == [("minutely",)]


def test_a_name_that_somebody_else_has_keeps_a_worker_from_beginning(stage: Stage) -> None:
    """A24: an error of its own, not one inside a group, and not one that ends a worker at work."""
    other = Shigoto(engine=stage.engine)
    declare_theirs(other)
    declare_ours(stage.app)

    async def main() -> list[str]:
        async with Worker(other, beats="loop", random=Random(3), name="other"):
            with pytest.raises(ScheduleTaken, match="'report' is declared by"):
                await stage.worker().run()
            return [worker.name for worker in await stage.engine.arun(stage.engine.workers())]

    assert stage.play(main) == ["other"]
    assert not stage.all(events.WorkerStarted)


class Away(MemoryEngine):
    """A store that cannot be reached by whoever reads schedules, until so many milliseconds have passed."""

    def __init__(self, clock: VirtualClock, milliseconds: int) -> None:
        super().__init__(clock=clock)
        self._time = clock
        self._until = START + milliseconds

    def schedules(self, names: Sequence[str] | None = None) -> Op[list[object]]:  # type: ignore[override]
        if self._time.now < self._until:
            raise StoreUnavailable("the answer was lost")
        return super().schedules(names)  # type: ignore[return-value]


@pytest.mark.parametrize("milliseconds", [1, 1_000, 4_000])
def test_a_store_that_is_away_when_schedules_are_declared_is_asked_again(milliseconds: int) -> None:
    """S4-14, F40."""
    stage = Stage(lambda clock: Away(clock, milliseconds))
    declare_minutely(stage.app)

    async def main() -> None:
        async with stage.working():
            await stage.until(events.TickFired)

    stage.play(main)


def test_a_store_that_stays_away_is_told_when_the_worker_begins() -> None:
    """S4-2: WORKER.NOT_READY."""
    stage = Stage(lambda clock: Away(clock, 600_000))
    declare_minutely(stage.app)

    with pytest.raises(NotReady, match="the answer was lost"):
        stage.play(lambda: stage.worker().run())

    assert stage.engine.run(stage.engine.workers()) == []


class Beaten(MemoryEngine):
    """A store in which another service declares the same name just before we do."""

    before: Change | None = None

    def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
        if self.before is not None and changes:
            first, self.before = self.before, None
            drive(super().tick([first]).start(), _nothing)
        return super().tick(changes)


def _nothing(_: object) -> None: ...


def test_of_two_services_that_declare_a_name_at_once_one_does_not_begin() -> None:
    """A24: whoever was not heard looks again."""
    kept: list[Change] = []

    class Keeping(MemoryEngine):
        def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
            kept.extend(changes)
            return super().tick(changes)

    first = Stage(lambda clock: Keeping(clock=clock))
    declare_theirs(first.app)

    async def begin() -> None:
        async with first.working():
            pass

    first.play(begin)
    stage = Stage(lambda clock: Beaten(clock=clock))
    engine = stage.engine
    assert isinstance(engine, Beaten)
    engine.before = next(change for change in kept if change.schedule.name == "report")
    declare_ours(stage.app)

    with pytest.raises(ScheduleTaken):
        stage.play(lambda: stage.worker().run())


def test_what_was_removed_while_its_process_slept_is_declared_again(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """S4-2, C23: also in a store that was emptied, or restored from before."""
    declare_minutely(stage.app)

    async def main() -> None:
        async with stage.working():
            await stage.until(events.TickFired)
            await stage.engine.arun(stage.engine.remove_schedules(["minutely"]))
            await stage.until(events.TickFired, 3)

    stage.play(main)

    assert [event.schedules for event in stage.all(events.SchedulesDeclared)] == [("minutely",)] * 2
    assert [message for message in caplog.messages if "gone from the store" in message] == [
        "1: 1 of its schedules are gone from the store, and declared again"
    ]


def test_a_removed_one_that_another_service_has_now_is_left_to_it(stage: Stage) -> None:
    """A24: and what else this code declares is brought back."""
    other = Shigoto(engine=stage.engine)
    declare_theirs(other)
    declare_ours(stage.app)

    @stage.app.cron("* * * * *")
    async def ours() -> None: ...

    async def main() -> dict[str, str | None]:
        async with stage.working():
            await stage.until(events.TickFired)
            await stage.engine.arun(stage.engine.remove_schedules(["report", "ours"]))
            async with Worker(other, beats="loop", random=Random(3), name="other"):
                await stage.until(events.SchedulesDeclared, 2)
                return {each.name: each.task for each in await other.schedules.aall()}

    assert stage.play(main).keys() == {"ours", "report", "theirs"}
    assert stage.all(events.SchedulesDeclared)[1].schedules == ("ours",)


class Contested(MemoryEngine):
    """A store in which what was removed is declared by another service, a moment before it is declared again."""

    other: Change | None = None

    def schedules(self, names: Sequence[str] | None = None) -> Op[list[Schedule]]:
        answer = drive(super().schedules(names).start(), _nothing)
        if self.other is not None and not answer:
            first, self.other = self.other, None
            drive(super().tick([first]).start(), _nothing)

        def told() -> Steps[list[Schedule]]:
            yield from ()
            return answer

        return Op(start=told, mode="read")


def test_one_that_another_service_takes_at_that_moment_does_not_end_the_ticker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A24."""
    stage = Stage(lambda clock: Contested(clock=clock))
    engine = stage.engine
    assert isinstance(engine, Contested)
    declare_minutely(stage.app)
    stage.app.schedules.add("added", stage.app.tasks["minutely"].call(), every="1m")

    async def main() -> None:
        async with stage.working():
            await stage.until(events.TickFired, 2)
            [known] = engine.run(engine.schedules(["minutely"]))
            engine.run(engine.remove_schedules(["minutely"]))
            theirs = replace(known, origin="", look_at=None)
            engine.other = Change(schedule=theirs, seen=0)
            await stage.until(events.TickFired, 5)

    stage.play(main)

    assert [message for message in caplog.messages if "was added to the store before" in message]


# Firing


def test_a_failure_is_told_once_by_whoever_was_heard(stage: Stage) -> None:
    """S4-11, S4-12: counted once and told once, however many workers find it; each try twice as late as the one
    before."""

    def fail(tick: object) -> object:
        raise ValueError("no call today")

    stage.app.schedule("broken", "* * * * *", call=fail)  # type: ignore[arg-type]

    async def main() -> None:
        async with stage.working(), stage.working(name="2", random=Random(7)):
            await stage.until(events.ScheduleFailed, MOST_ERRORS)

    stage.play(main)

    told = [event.errors for event in stage.all(events.ScheduleFailed)]
    assert told == [1, 2, 3, 4, 5, 6]
    times = stage.times(events.ScheduleFailed)
    assert [later - earlier for earlier, later in pairwise(times)] == [2_000, 4_000, 8_000, 16_000, 32_000]
    [record] = stage.app.schedules.all()
    assert (record.errors, record.status) == (6, "failed")


def test_a_full_queue_is_a_failed_submission_and_others_fire_meanwhile(stage: Stage) -> None:
    """S4-13, S4-11: it is told as what it is, tried again, and works when there is room; nobody else is held up."""
    engine = stage.engine
    engine.run(engine.configure(QueueSettings(name="small", paused=True, max_pending=1)))
    declare_minutely(stage.app)

    @stage.app.cron("* * * * *", name="crowded", queue="small")
    async def crowded() -> None: ...

    async def main() -> None:
        async with stage.working():
            await stage.until(events.ScheduleFailed, 2)
            crowd = stage.app.schedules.get("crowded")
            assert (crowd.status, crowd.errors) == ("active", 2)
            text = "Queue small is full: 1 pending, at most 1 (max_pending). Try again later."
            assert crowd.error == f"QueueFull: {text}"
            [waiting] = stage.app.find(queue="small")
            assert waiting.state is State.PENDING
            await engine.arun(engine.configure(QueueSettings(name="small", max_pending=1)))
            fired = [event.schedule for event in stage.all(events.TickFired)].count("crowded")
            while [event.schedule for event in stage.all(events.TickFired)].count("crowded") < fired + 2:
                await stage.until(events.TickFired, len(stage.all(events.TickFired)) + 1)

    stage.play(main)

    assert [event.errors for event in stage.all(events.ScheduleFailed)] == [1, 2]
    minutely = [
        at for at, event in stage.told if isinstance(event, events.TickFired) and event.schedule == "minutely"
    ]
    assert minutely == [60_000 * (1 + at) for at in range(len(minutely))]
    record = stage.app.schedules.get("crowded")
    assert (record.errors, record.error, record.counts.get("missed", 0)) == (0, None, 0)


def test_what_is_caught_up_fills_a_queue_as_far_as_there_is_room(stage: Stage) -> None:
    """S4-13, S4-22: more than the queue may ever hold at once; else it could not be caught up by anybody."""
    stage.engine.run(stage.engine.configure(QueueSettings(name="small", max_pending=3)))

    @stage.app.task(queue="small")
    async def work() -> None: ...

    stage.app.schedules.add("behind", work.call(), every=60, catch_up="all")
    stage.clock.advance(10 * 60_000)

    async def main() -> None:
        async with asyncio.timeout(600), stage.working():
            await stage.until(events.JobCompleted, 10)

    stage.play(main)

    caught_up = [event.at for event in stage.all(events.TickFired)][:10]
    assert caught_up == list(range(caught_up[0], caught_up[0] + 10 * 60_000, 60_000))
    record = stage.app.schedules.get("behind")
    assert (record.status, record.errors, record.counts.get("missed", 0)) == ("active", 0, 0)


def test_a_job_that_makes_room_for_the_next_one_is_no_reason_to_refuse_it(stage: Stage) -> None:
    """S4-13: with `overlap="cancel"` a full queue does not get fuller."""
    stage.engine.run(stage.engine.configure(QueueSettings(name="small", paused=True, max_pending=1)))

    @stage.app.cron("* * * * *", overlap="cancel", queue="small")
    async def newest() -> None: ...

    async def main() -> None:
        async with asyncio.timeout(600), Scheduler(stage.app, random=Random(5)):
            await stage.until(events.TickFired, 3)

    stage.play(main)

    assert not stage.all(events.ScheduleFailed)
    states = [job.state for job in stage.app.find(queue="small", state="all")]
    assert sorted(states) == ["cancelled", "cancelled", "pending"]


def test_a_schedule_whose_zone_is_not_known_here_is_left_to_others(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4-11: it is no fault of the schedule; more of them than are looked at at once hold up nobody either."""
    declare_minutely(stage.app)
    call = stage.app.tasks["minutely"].call()
    for number in range(3):
        stage.app.schedules.add(f"tokyo{number}", call, cron="* * * * *", tz="Asia/Tokyo")
    stage.app.schedules.add("utc", call, every="1m")

    async def main() -> None:
        async with stage.working():
            await stage.until(events.TickFired, 6)

    monkeypatch.setattr("shigoto.worker.ticker.AT_ONCE", 2)
    monkeypatch.setattr("shigoto.schedule.recurrence.ZoneInfo", _unknown)
    stage.play(main)
    monkeypatch.undo()

    assert {event.schedule for event in stage.all(events.TickFired)} == {"minutely", "utc"}
    assert stage.all(events.ScheduleFailed) == []
    assert sorted(message for message in caplog.messages if "left to other" in message) == [
        f"1: Schedule tokyo{number} is left to other processes: This system does not know the time zone 'Asia/Tokyo'."
        " `pip install tzdata` brings all there are."
        for number in range(3)
    ]


def test_whoever_leaves_a_schedule_to_others_says_so_in_its_health_until_that_is_mended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4-14, S4-18: never silence."""
    declare_minutely(stage.app)
    call = stage.app.tasks["minutely"].call()
    for number in range(2):
        stage.app.schedules.add(f"tokyo{number}", call, cron="* * * * *", tz="Asia/Tokyo")

    async def main() -> list[tuple[str, tuple[str, ...]]]:
        async with Scheduler(stage.app, random=Random(7)) as scheduler:
            await stage.until(events.TickFired, 3)
            before = scheduler.health()
            stage.app.schedules.update("tokyo0", tz="UTC")
            stage.app.schedules.remove("tokyo1")
            await stage.until(events.TickFired, 5)
            after = scheduler.health()
            return [(each.status, each.details) for each in (before, after)]

    monkeypatch.setattr("shigoto.schedule.recurrence.ZoneInfo", _unknown)

    assert stage.play(main) == [
        (
            "Warning",
            ("2 schedules are left to others, in time zones that are not known here: tokyo0, tokyo1.",),
        ),
        ("OK", ()),
    ]


def test_a_maker_that_asks_for_a_zone_that_is_not_there_has_failed(stage: Stage) -> None:
    """S4-11: that is its own affair."""
    stage.app.schedule("broken", "* * * * *", call=lambda tick: _unknown("Mars/Olympus"))  # type: ignore[arg-type,return-value]

    async def main() -> None:
        async with stage.working():
            await stage.until(events.ScheduleFailed)

    stage.play(main)


def _unknown(name: str) -> tzinfo:
    raise ZoneInfoNotFoundError(f"No time zone found with key {name}")


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Ruder(Exception):
    def __str__(self) -> str:
        raise SystemExit(4)


RAISED = {
    "rude": (Rude(), "Rude: <its message cannot be shown: __str__ raised RuntimeError>"),
    "ruder": (Ruder(), "Ruder: <its message cannot be shown: __str__ raised SystemExit>"),
    "exit": (SystemExit(3), "SystemExit: 3"),
    "cancel": (asyncio.CancelledError(), "CancelledError"),
    "interrupt": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "generator": (GeneratorExit(), "GeneratorExit"),
    "nul": (ValueError("a\0b"), "ValueError: a\\x00b"),
    "surrogate": (ValueError("a\ud800b"), "ValueError: a\\ud800b"),
}


@pytest.mark.parametrize("kind", RAISED)
def test_whatever_a_schedule_raises_is_its_own_failure(stage: Stage, kind: str) -> None:
    """S4-11, S4-12: it is tried again, has failed in the end, and nobody else notices."""
    raised, text = RAISED[kind]

    def fail(tick: object) -> object:
        raise raised

    stage.app.schedule("broken", "* * * * *", call=fail)  # type: ignore[arg-type]
    declare_minutely(stage.app)

    async def main() -> None:
        async with stage.working():
            await stage.until(events.ScheduleFailed, MOST_ERRORS)
            await stage.until(events.TickFired, 5)

    stage.play(main)

    record = stage.app.schedules.get("broken")
    assert (record.status, record.errors, record.error) == ("failed", MOST_ERRORS, text)


@pytest.mark.parametrize("returns", [True, False])
def test_a_maker_that_cancels_the_task_it_runs_in_has_failed_and_ends_nobody(
    stage: Stage, returns: bool
) -> None:
    """S4-11, S4-12: that is its own failure, and no cancel of the ticker."""

    @stage.app.task
    async def work() -> None: ...

    def make(tick: Tick) -> Call[None]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel("enough")
        task.cancel()
        if returns:
            return work.call()
        raise ValueError("and more")

    stage.app.schedule("broken", "* * * * *", call=make)
    declare_minutely(stage.app)

    async def main() -> None:
        async with asyncio.timeout(3_600), Scheduler(stage.app, random=Random(7)):
            await stage.until(events.ScheduleFailed, MOST_ERRORS)
            await stage.until(events.TickFired, 5)

    stage.play(main)

    record = stage.app.schedules.get("broken")
    assert (record.status, record.errors) == ("failed", MOST_ERRORS)
    assert str(record.error).startswith("CancelledError" if returns else "ValueError: and more")
    assert {job.task for job in stage.app.find()} == {"minutely"}


def test_the_words_of_a_failure_are_cut(stage: Stage) -> None:
    """S4-11: they go into the store, and into logs."""

    def fail(tick: object) -> object:
        raise ValueError("x" * 5_000_000)

    stage.app.schedule("broken", "* * * * *", call=fail)  # type: ignore[arg-type]

    async def main() -> None:
        async with stage.working():
            await stage.until(events.ScheduleFailed)

    stage.play(main)

    error = stage.app.schedules.get("broken").error or ""
    assert (len(error), error[:13], error[-8:]) == (ERROR_LIMIT - 2, "ValueError: x", " … (cut)")


class Unwilling(MemoryEngine):
    """A store that does not take the job of a tick; at first, another worker has failed at it a moment before."""

    failed_before = False

    def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
        if not any(change.firings for change in changes):
            return super().tick(changes)

        def refuse() -> Steps[list[Change | None]]:
            [change] = changes
            if not self.failed_before:
                self.failed_before = True
                [known] = drive(super(Unwilling, self).schedules([change.schedule.name]).start(), _nothing)
                other = after_failure(known, ValueError("full"), self._store.now())
                assert drive(super(Unwilling, self).tick([other]).start(), _nothing) == [other]
            raise ValueError("full")

        return Op(start=refuse)


def test_a_failure_that_another_worker_has_told_is_not_told_again() -> None:
    """S4-11, S4-13: two who cannot store the same tick have failed once."""
    stage = Stage(lambda clock: Unwilling(clock=clock))
    declare_minutely(stage.app)

    async def main() -> None:
        async with stage.working():
            await stage.until(events.ScheduleFailed)

    stage.play(main)

    assert [event.errors for event in stage.all(events.ScheduleFailed)] == [2]
    assert len(stage.all(events.TickLost)) == 1


class Refusing(MemoryEngine):
    """A store that takes no job of a tick for two minutes: a grant is missing, or a part of the schema."""

    error: StoreError = StoreRefused("no grant")

    def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
        if self._store.now() < START + 180_000 and any(change.firings for change in changes):
            raise self.error
        return super().tick(changes)


@pytest.mark.parametrize("kind", [StoreRefused, SchemaMissing, Unsupported, StoreUnavailable, StoreError])
def test_what_is_wrong_with_the_store_is_not_the_fault_of_its_schedules(kind: type[StoreError]) -> None:
    """S4-12, S4-14: else a grant that is missing for a minute would make every schedule fail for good."""
    stage = Stage(lambda clock: Refusing(clock=clock))
    assert isinstance(stage.engine, Refusing)
    stage.engine.error = kind("not now")
    declare_ours(stage.app)

    async def main() -> None:
        async with asyncio.timeout(600), stage.working():
            await stage.until(events.TickFired, 2)

    stage.play(main)

    assert not stage.all(events.ScheduleFailed)
    assert {(record.status, record.errors) for record in stage.app.schedules.all()} == {("active", 0)}
    assert {event.error for event in stage.all(events.StoreTrouble)} == {"not now"}


class Distant(MemoryEngine):
    """A store to which every question takes a moment, in which others can ask theirs."""

    async def arun(self, op: Op[T]) -> T:
        await asyncio.sleep(0.001)
        return self.run(op)


def test_whoever_loses_a_tick_logs_that_another_instance_fired_it(caplog: pytest.LogCaptureFixture) -> None:
    """S4-8, S4-20: and goes on with the next."""
    stage = Stage(lambda clock: Distant(clock=clock))
    declare_minutely(stage.app)

    async def main() -> None:
        async with stage.working(), stage.working(name="2", random=Random(7)):
            await stage.until(events.TickFired, 5)
            await asyncio.sleep(1)

    with caplog.at_level(logging.DEBUG, "shigoto.worker"):
        stage.play(main)

    lost = [message for message in caplog.messages if "by another instance" in message]
    assert len(lost) == len(stage.all(events.TickLost)) > 0
    assert "Schedule minutely" in lost[0]
    assert len({event.at for event in stage.all(events.TickFired)}) == len(stage.all(events.TickFired)) == 5


def test_a_tick_that_has_fired_before_is_not_told_nor_counted_again() -> None:
    """F23, F25, S4-21: the clock goes back by three minutes, and what was fired since stays as it is."""
    back = 0
    stage = Stage(lambda clock: MemoryEngine(clock=lambda: clock() - back))

    @stage.app.cron("* * * * *", name="minutely", overlap="cancel")
    async def minutely() -> None: ...

    async def main() -> tuple[Figures | None, list[State]]:
        nonlocal back
        async with Scheduler(stage.app, random=Random(7)) as scheduler:
            await stage.until(events.TickFired, 5)
            back = 180_000
            await asyncio.sleep(150)
            states = sorted(job.state for job in stage.app.find())
            await stage.until(events.TickFired, 7)
            return scheduler.figures(), states

    figures, before = stage.play(main)

    fired = [event.at for event in stage.all(events.TickFired)]
    [record] = stage.app.schedules.all()
    assert before == ["cancelled"] * 4 + ["pending"]
    assert len(fired) == len(set(fired)) == len(stage.app.find()) == record.counts["fired"] == 7
    assert figures is not None
    assert figures.fired == 7


def test_each_tick_that_passes_is_told_by_its_own_instant(stage: Stage) -> None:
    """S4-19: also if it is in one entry with those before it."""
    declare_minutely(stage.app)

    async def main() -> None:
        async with Scheduler(stage.app, random=Random(7)):
            await stage.until(events.TickFired)
            await stage.app.schedules.apause("minutely")
            await stage.until(events.TickPassed, 3)

    stage.play(main)

    fired, passed = stage.all(events.TickFired)[0], stage.all(events.TickPassed)
    assert [event.at - fired.at for event in passed] == [60_000, 120_000, 180_000]
    assert [event.count for event in passed] == [1, 1, 1]


class Counting(MemoryEngine):
    """A store that notes how many jobs come with one transaction."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.jobs: list[int] = []

    def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
        firings = [firing for change in changes for firing in change.firings]
        self.jobs.append(sum(firing.spec is not None for firing in firings))
        return super().tick(changes)


def test_what_is_caught_up_goes_in_portions_and_nothing_is_lost_in_between() -> None:
    """S4-22: many schedules with many ticks each would be one transaction that no store ends in time."""
    stage = Stage(Counting)
    engine = stage.engine
    assert isinstance(engine, Counting)
    made: list[datetime] = []

    @stage.app.task
    async def work() -> None: ...

    def make(tick: Tick) -> Call[None]:
        made.append(tick.at)
        return work.call()

    stage.app.schedule("one", every=1, call=make, catch_up="all", catch_up_most=10_000)
    for name in ("two", "three"):
        stage.app.schedules.add(name, work.call(), every=1, catch_up="all", catch_up_most=10_000)

    async def begin() -> None:
        async with Scheduler(stage.app, random=Random(7)):
            await stage.until(events.TickFired, 3)

    stage.play(begin)
    stage.clock.advance(1_500_000)
    engine.jobs.clear()
    stage.play(lambda: _until_caught_up(stage))

    fired = [(event.schedule, event.at) for event in stage.all(events.TickFired)]
    assert max(engine.jobs) == 1_000
    assert len(fired) == len(set(fired))
    for name in ("one", "two", "three"):
        instants = sorted(at for schedule, at in fired if schedule == name)
        assert instants == list(range(instants[0], instants[-1] + 1, 1_000))
        assert len(instants) > 1_500
    assert len(made) == len(set(made))
    assert {outcome for each in stage.app.schedules.all() for outcome in each.counts} == {
        "fired",
        "caught_up",
    }


async def _until_caught_up(stage: Stage) -> None:
    async with asyncio.timeout(600), Scheduler(stage.app, random=Random(8)):
        await stage.until(events.TickFired, 4_510)


@pytest.mark.parametrize("many", [1, AT_ONCE + 10])
def test_whoever_has_much_to_catch_up_keeps_nobody_waiting(many: int) -> None:
    """S4-22: its ticks are older than those of all others, and would come first until the last of them."""
    stage = Stage(Counting)
    engine, ticks = stage.engine, 3_500 // many
    assert isinstance(engine, Counting)

    @stage.app.task
    async def work() -> None: ...

    for number in range(many):
        stage.app.schedules.add(
            f"behind{number}", work.call(), every=10, catch_up="all", catch_up_most=10_000
        )
    stage.clock.advance((ticks - 1) * 10_000)
    stage.app.schedules.add("other", work.call(), every=10)
    stage.clock.advance(10_000)
    engine.jobs.clear()

    async def main() -> None:
        async with asyncio.timeout(600), Scheduler(stage.app, random=Random(8)):
            await stage.until(events.TickFired, many * ticks + 1)

    stage.play(main)

    told = [event.schedule for event in stage.all(events.TickFired)]
    first = stage.all(events.TickFired)[told.index("other")]
    assert told.index("other") < sum(engine.jobs[:2])
    assert first.late < 10_000
    assert max(engine.jobs) <= 1_000
    for number in range(many):
        caught_up = [event.at for event in stage.all(events.TickFired) if event.schedule == f"behind{number}"]
        assert caught_up == list(range(caught_up[0], caught_up[-1] + 1, 10_000))


def test_all_schedules_of_one_round_are_compared_with_one_instant(stage: Stage) -> None:
    """S4-9: although time goes by while they are decided, and one that becomes due meanwhile is for the next round."""

    @stage.app.task
    async def work() -> None: ...

    def make(tick: Tick) -> Call[None]:
        stage.clock.advance(7_000)
        return work.call()

    for name in ("a", "b", "c"):
        stage.app.schedule(name, "* * * * *", call=make)
    minute = to_datetime(START - START % 60_000 + 60_000)
    stage.app.schedule("soon", at=minute + timedelta(seconds=5), call=work.call())

    async def main() -> None:
        async with Scheduler(stage.app, random=Random(7)):
            await stage.until(events.TickFired, 4)

    stage.play(main)

    first = {name: stage.app.schedules.history(name)[-1] for name in ("a", "b", "c", "soon")}
    assert [first[name].decided_at for name in ("a", "b", "c")] == [minute] * 3
    assert first["soon"].decided_at >= minute + timedelta(seconds=21)
    assert [event.schedule for event in stage.all(events.TickFired)][:4] == ["a", "b", "c", "soon"]


def test_others_get_their_turn_while_many_schedules_are_decided(stage: Stage) -> None:
    """Jobs run on the same event loop, and so do the functions that make the calls of schedules."""
    turns: list[str] = []
    seen: list[int] = []

    @stage.app.task
    async def work() -> None: ...

    def make(tick: Tick) -> Call[None]:
        seen.append(len(turns))
        asyncio.get_running_loop().call_soon(turns.append, "another")
        time.sleep(2 * TURN)
        return work.call()

    for name in ("a", "b", "c"):
        stage.app.schedule(name, "* * * * *", call=make)

    async def main() -> None:
        async with asyncio.timeout(600), Scheduler(stage.app, random=Random(7)):
            await stage.until(events.TickFired, 3)

    stage.play(main)

    assert seen == [0, 1, 2]


def test_a_clock_that_was_ahead_for_a_while_silences_nobody() -> None:
    """E28: neither what waited for a job then, nor what could not be made, nor what seemed to be over."""
    ahead = [0]
    stage = Stage(lambda clock: MemoryEngine(clock=lambda: clock.now + ahead[0]))

    @stage.app.every("1m", overlap="queue", name="queued")
    async def queued() -> None:
        await asyncio.sleep(90)

    def fail(tick: object) -> object:
        if ahead[0]:
            raise ValueError("the certificate has expired")
        return queued.call()

    stage.app.schedule("flaky", every="1m", call=fail)  # type: ignore[arg-type]
    stage.app.schedule("over", every="1m", call=queued.call(), until=to_datetime(START + 86_400_000))

    async def main() -> list[str]:
        async with stage.working(concurrency=50):
            await stage.until(events.TickFired, 3)
            ahead[0] = 2 * 86_400_000
            await stage.until(events.ScheduleFailed, 2)
            statuses: list[str] = [record.status for record in await stage.app.schedules.aall()]
            ahead[0] = 0
            before = len(stage.told)
            await asyncio.sleep(600)
            later = {
                event.schedule for _, event in stage.told[before:] if isinstance(event, events.TickFired)
            }
            assert later == {"flaky", "over", "queued"}
            return statuses

    assert stage.play(main) == ["active", "ended", "active"]


def test_what_waits_is_looked_at_soon() -> None:
    """What the stores go by when they look for schedules that a clock ahead has touched."""
    assert OVERLAP_LOOK <= SOON
    assert FIRST_PAUSE * 2 ** (MOST_ERRORS - 2) <= SOON
