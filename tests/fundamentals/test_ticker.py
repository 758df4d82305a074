"""Schedules in workers: declared when one begins, fired by all of them together, told of by the one who was heard."""

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from typing import TypeVar

import pytest

from shigoto import NotReady, ScheduleTaken, Shigoto, StoreUnavailable
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op, Steps, drive
from shigoto.model.schedule import Change
from shigoto.observe import events
from shigoto.schedule.failing import after_failure
from shigoto.testing.clock import START, VirtualClock
from shigoto.worker import Worker
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

    def tick(self, changes: Sequence[Change]) -> Op[list[bool]]:
        if self.before is not None and changes:
            first, self.before = self.before, None
            drive(super().tick([first]), _nothing)
        return super().tick(changes)


def _nothing(_: object) -> None: ...


def test_of_two_services_that_declare_a_name_at_once_one_does_not_begin() -> None:
    """A24: whoever was not heard looks again."""
    kept: list[Change] = []

    class Keeping(MemoryEngine):
        def tick(self, changes: Sequence[Change]) -> Op[list[bool]]:
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


# Firing


def test_a_failure_is_told_once_by_whoever_was_heard(stage: Stage) -> None:
    """S4-11, S4-12: counted once and told once, however many workers find it."""

    def fail(tick: object) -> object:
        raise ValueError("no call today")

    stage.app.schedule("broken", "* * * * *", call=fail)  # type: ignore[arg-type]

    async def main() -> None:
        async with stage.working(), stage.working(name="2", random=Random(7)):
            await stage.until(events.ScheduleFailed, 3)

    stage.play(main)

    told = [event.errors for event in stage.all(events.ScheduleFailed)]
    assert told == [1, 2, 3]
    [record] = stage.app.schedules.all()
    assert record.errors == 3


class Unwilling(MemoryEngine):
    """A store that does not take the job of a tick; at first, another worker has failed at it a moment before."""

    failed_before = False

    def tick(self, changes: Sequence[Change]) -> Op[list[bool]]:
        if not any(change.firings for change in changes):
            return super().tick(changes)

        def refuse() -> Steps[list[bool]]:
            [change] = changes
            if not self.failed_before:
                self.failed_before = True
                [known] = drive(super(Unwilling, self).schedules([change.schedule.name]), _nothing)
                other = after_failure(known, ValueError("full"), self._store.now())
                assert drive(super(Unwilling, self).tick([other]), _nothing) == [True]
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
