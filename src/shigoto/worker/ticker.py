"""Fires the ticks of schedules. Every worker does; there is no leader, and no need for one.

    due ──► decide (schedule/deciding.py) ──► jobs and entries (schedule/firing.py) ──► one transaction (engine.tick)
                                                                                          heard, or another was first

The store says when the next schedule is due, and the ticker sleeps until then, or for a poll: schedules come and change
while it sleeps. A schedule whose job cannot be made is tried again, later each time, and has failed after some tries;
nothing of that holds up the others.

Whoever has much to catch up gets a share of each transaction, behind those that are on time.

The functions that make the calls of schedules (`call=`) run on the event loop, one after the other, and what they wait
for everybody waits for: they should take milliseconds. What has to ask somebody belongs into the task.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from shigoto.middleware.tracing import Tracing, storing
from shigoto.model.errors import QueueFull, ScheduleTaken, SchemaTooNew, StoreError, StoreMoved
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec
from shigoto.model.schedule import Change, Due, DueSchedule, Schedule
from shigoto.model.time import Millis
from shigoto.observe.events import (
    ScheduleFailed,
    ScheduleRemoved,
    SchedulesDeclared,
    TickFired,
    TickLost,
    TickPassed,
)
from shigoto.queues import ticking
from shigoto.schedule.declaring import Declared, reconciling
from shigoto.schedule.failing import after_failure
from shigoto.schedule.looking import AT_ONCE, MOST_JOBS, PORTION, looked_at, looking
from shigoto.schedule.zones import ZoneMissing
from shigoto.worker.station import Station, Trouble
from shigoto.worker.tally import Tally
from shigoto.worker.wakeup import Wakeup

TURN = 0.005  # seconds of deciding before others on the event loop get theirs
DECLARE_EVERY = 30.0  # seconds

logger = logging.getLogger("shigoto.worker")


class Step(Struct, frozen=True):
    """A schedule as it was seen, and what is to become of it."""

    due: DueSchedule
    change: Change

    @property
    def seen(self) -> Schedule:
        """The schedule."""
        return self.due.schedule

    @property
    def jobs(self) -> int:
        """How many jobs it stores."""
        return sum(firing.spec is not None for firing in self.change.firings)


class Watcher(Protocol):
    """Whoever wants to know how the ticker gets on with the store."""

    def lost(self, error: StoreError) -> None:
        """The store does not answer; told once."""
        ...

    def back(self, seconds: float) -> None:
        """It answers again, after so long."""
        ...

    def gone(self, error: StoreError) -> None:
        """It will never answer to this process again."""
        ...


class Ticker:
    """Fires what is due, and says now and then that what this code declares still is."""

    def __init__(
        self,
        station: Station,
        declared: Mapping[str, Declared],
        *,
        watcher: Watcher | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._station = station
        self._tracing = tracing
        self._declared = declared
        self._watcher = watcher
        self._time = asyncio.get_running_loop().time
        self._trouble = Trouble(station, "ticker")
        self._wakeup = Wakeup()
        self._closed = False
        self.tally = Tally(self._time)
        self._declared_at = self._time()  # or a moment ago, when the worker began
        self._behind = set[str]()  # schedules that have more to catch up than goes into one transaction

    def close(self) -> None:
        """Finish the cycle at hand, and begin no other."""
        self._closed = True
        self._wakeup.ring()

    async def run(self) -> None:
        """Fire until closed or cancelled."""
        while not self._closed:
            self.tally.begin()
            try:
                await self._declare()
                pause = await self._cycle()
            except StoreError as error:
                pause = self._trouble.met(error)
                self._broke(error)
            else:
                self._trouble.over()
                self._ended()
            await self._wakeup.wait(pause)

    def _broke(self, error: StoreError) -> None:
        news = self.tally.broke(error)
        if self._watcher is not None:
            if isinstance(error, StoreMoved | SchemaTooNew):
                self._watcher.gone(error)
            elif news:
                self._watcher.lost(error)

    def _ended(self) -> None:
        down_for = self.tally.down_for
        self.tally.end()
        if self._watcher is not None and down_for is not None:
            self._watcher.back(down_for)

    async def _declare(self) -> None:
        engine, now = self._station.engine, self._time()
        if self._declared and now >= self._declared_at + DECLARE_EVERY:
            if await engine.arun(engine.declare(list(self._declared))) < len(self._declared):
                await self._declare_anew()
            self._declared_at = now

    async def _declare_anew(self) -> None:
        """Somebody has removed some while this process slept, or the store is another: bring them back, and say so."""
        engine, name = self._station.engine, self._station.name
        known = {each.name for each in await engine.arun(engine.schedules(list(self._declared)))}
        gone = {each: declared for each, declared in self._declared.items() if each not in known}
        if not gone:
            return
        logger.warning("%s: %d of its schedules are gone from the store, and declared again", name, len(gone))
        try:
            changed = await engine.arun(reconciling(engine, gone, uuid7))
        except ScheduleTaken as error:  # a moment ago
            logger.error("%s: %s", name, error)
        else:
            self._station.bus.publish(SchedulesDeclared(name, tuple(changed)))

    async def _cycle(self) -> float:
        """Fire what is due, and return how many seconds to wait."""
        engine = self._station.engine
        left_alone = self.tally.left_alone
        limit = AT_ONCE + len(left_alone | self._behind)  # which stay due here, and take nobody's place
        self.tally.look()
        due = await self._station.ask("due", looking(engine, list(self._declared), limit))
        if len(due.schedules) < limit:  # whoever is not among them was mended by somebody, or removed
            left_alone.intersection_update(each.schedule.name for each in due.schedules)
        steps, all_of_them = await self._decided(due)
        self._remember(due, steps)
        if steps:
            await self._carry_out(steps, due.now)
        if len(due.schedules) == limit or not all_of_them:
            return 0.0
        # What was fired is due again; how soon, only the schedules themselves know.
        looks = [step.change.schedule.look_at for step in steps]
        waits = [look_at - due.now for look_at in looks if look_at is not None]
        if due.next_in is not None:
            waits.append(due.next_in)
        return min([self._station.jittered_poll(), *(max(0, wait) / 1000 for wait in waits)])

    async def _decided(self, due: Due) -> tuple[list[Step], bool]:
        """What becomes of those that are due, as many as have jobs for one transaction, and whether these are all. Each
        may have as many jobs as would be left for each of those after it.

        All that shares the event loop gets its turn: to find the ticks of a long outage takes many milliseconds.
        """
        steps: list[Step] = []
        clock = self._station.clock  # not the loop's time: uvloop's stands still during a turn
        left, until = MOST_JOBS, clock() + TURN
        others_first = sorted(due.schedules, key=lambda each: each.schedule.name in self._behind)
        for waiting, each in zip(range(len(others_first), 0, -1), others_first, strict=True):
            if not left:
                return steps, False
            least = PORTION if each.schedule.name in self._behind else 1
            change = await self._change(each, due.now, min(left, max(least, left // waiting)))
            if change is not None:
                steps.append(Step(each, change))
                left -= steps[-1].jobs
            if clock() >= until:
                await asyncio.sleep(0)
                until = clock() + TURN
        return steps, True

    def _remember(self, due: Due, steps: Sequence[Step]) -> None:
        """Which schedules have more to catch up than was their share: the others come first the next time."""
        waiting = {each.schedule.name for each in due.schedules} - {step.seen.name for step in steps}
        looks = {step.seen.name: step.change.schedule.look_at for step in steps}
        more = {name for name, look_at in looks.items() if look_at is not None and look_at <= due.now}
        self._behind = (self._behind & waiting) | more

    async def _change(self, due: DueSchedule, now: Millis, most: int) -> Change | None:
        """What becomes of a schedule, with so many jobs at most; None if a process must do it that knows its time zone.

        Its code may raise anything, also what would end a task or a program, and may cancel the task that it runs in.
        Nobody awaits meanwhile, so whatever arrives is by that code, and no cancel of our own.
        """
        task, change, error = asyncio.current_task(), None, None
        before = 0 if task is None else task.cancelling()
        try:
            change = looked_at(due, self._declared, now, most=most)
        except BaseException as raised:
            error = raised
        if task is not None and task.cancelling() > before:
            await _go_on(task, before)
            error = error or asyncio.CancelledError("its code cancels the task that it runs in")
        if isinstance(error, ZoneMissing):
            self._leave_alone(due.schedule.name, error)
            return None
        self.tally.left_alone.discard(due.schedule.name)
        return change if error is None else after_failure(due.schedule, error, now)

    def _leave_alone(self, schedule: str, error: ZoneMissing) -> None:
        if schedule not in self.tally.left_alone:
            self.tally.left_alone.add(schedule)
            name = self._station.name
            logger.warning("%s: Schedule %s is left to other processes: %s", name, schedule, error)

    async def _carry_out(self, steps: Sequence[Step], now: Millis) -> None:
        """Store the changes together; if that cannot be, one by one, so that one does not stop the others. What is
        caught up may be more than a queue has room for, or ever will: then as much as goes in."""
        engine = self._station.engine
        try:
            done = await self._stored([step.change for step in steps])
        except (
            StoreError
        ):  # which no schedule is to blame for: a value that cannot be stored is another error
            raise
        except Exception as error:
            if len(steps) > 1:
                for step in steps:
                    await self._carry_out([step], now)
                return
            [step] = steps
            fewer = None
            if isinstance(error, QueueFull) and step.jobs > 1:
                fewer = await self._change(step.due, now, step.jobs // 2)
            if fewer is not None:
                await self._carry_out([Step(step.due, fewer)], now)
                return
            # By the same revision: of several who could not store it, one has failed.
            change = after_failure(step.seen, error, now)
            steps = [Step(step.due, change)]
            done = await self._station.ask("tick", engine.tick([change]))
        for step, change_done in zip(steps, done, strict=True):
            self._tell(step, change_done)

    async def _stored(self, changes: list[Change]) -> "list[Change | None]":
        """Store the changes, with the traces that their jobs begin."""
        engine = self._station.engine
        made = [firing.spec for change in changes for firing in change.firings if firing.spec is not None]
        with storing(self._tracing, made) as specs:
            return await self._station.ask("tick", ticking(engine, _marked(changes, specs)))

    def _tell(self, step: Step, change: Change | None) -> None:
        """Tell what was done; None if another was first."""
        bus, name, schedule = self._station.bus, self._station.name, step.change.schedule
        if change is None:
            self.tally.lost(schedule.name)
            bus.publish(TickLost(name, schedule.name))
            return
        self.tally.told(change, held=step.seen.held)
        if schedule.errors:
            error = str(schedule.error)
            removes = change.removes
            bus.publish(ScheduleFailed(name, schedule.name, error, schedule.errors, schedule.failed, removes))
            if removes:
                bus.publish(ScheduleRemoved(name, schedule.name))
        for firing in change.firings:
            entry = firing.entry
            late = entry.decided_at - entry.at + self.tally.waited
            if firing.spec is not None:
                job: UUID = firing.spec.id
                bus.publish(TickFired(name, schedule.name, entry.at, entry.outcome.value, job, late))
            elif firing.ticks:
                bus.publish(TickPassed(name, schedule.name, firing.at, entry.outcome.value, firing.ticks))


def _marked(changes: list[Change], specs: Sequence[JobSpec]) -> list[Change]:
    """The same changes with these jobs in the place of theirs."""
    jobs = {spec.id: spec for spec in specs}
    return [
        replace(
            change,
            firings=tuple(
                firing if firing.spec is None else replace(firing, spec=jobs[firing.spec.id])
                for firing in change.firings
            ),
        )
        for change in changes
    ]


async def _go_on(task: "asyncio.Task[object]", before: int) -> None:
    """Take back all cancels of this task but so many. Before Python 3.13 one is raised all the same where it waits."""
    while task.cancelling() > before:
        task.uncancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if task.cancelling() > before:  # by somebody else
            raise
