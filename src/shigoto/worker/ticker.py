"""The ticker: fires the ticks of schedules, and counts what it does.

    due ──► decide (schedule/decide.py) ──► jobs and entries (schedule/fire.py) ──► one transaction (engine.tick)
                                                                                          heard, or another was first

Every worker fires ticks; there is no leader, and no need for one. The store says when the next schedule is due, and the
ticker sleeps until then, or for a poll: schedules come and change while it sleeps. A schedule whose job cannot be made
is tried again, later each time, and has failed after some tries; nothing of that holds up the others.

Whoever has much to catch up gets a share of each transaction, behind those that are on time.

The functions that make the calls of schedules (`call=`) run on the event loop, one after the other, and what they wait
for everybody waits for: they should take milliseconds. What has to ask somebody belongs into the task.

What a ticker counts (`Tally`) is kept in memory, for this process alone. What all of them together have done with a
schedule is in the store, in its `counts`.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Protocol
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from shigoto.model.errors import QueueFull, ScheduleTaken, SchemaTooNew, StoreError, StoreMoved
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec
from shigoto.model.schedule import Change, Due, DueSchedule, Schedule
from shigoto.model.time import Millis
from shigoto.observe import events
from shigoto.observe.tracing import Tracing, storing
from shigoto.queues import tick_within_limits
from shigoto.schedule.decide import after_failure
from shigoto.schedule.declare import Declared, declare_op
from shigoto.schedule.fire import AT_ONCE, MOST_JOBS, PORTION, due_op, looked_at
from shigoto.schedule.recurrence import ZoneMissing
from shigoto.worker.state import Repeated, WorkerState

TURN = 0.005  # seconds of deciding before others on the event loop get theirs
DECLARE_EVERY = 30.0  # seconds

logger = logging.getLogger("shigoto.worker")
WINDOW = 1_000  # values of which the spread is told, the newest,
WITHIN = 600.0  # and of ticks those of so many seconds: an outage that is over is no news for ever
RECENT = 100  # cycles that count for the rate of errors
MOST_NAMED = 10_000  # schedules that are counted one by one


class TickStep(Struct, frozen=True):
    """A schedule as it was seen, and what is to become of it."""

    due: DueSchedule
    change: Change

    @property
    def seen(self) -> Schedule:
        return self.due.schedule

    @property
    def jobs(self) -> int:
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


class Ticker(Repeated):
    """Fires what is due, and says now and then that what this code declares still is."""

    def __init__(
        self,
        state: WorkerState,
        declared: Mapping[str, Declared],
        *,
        watcher: Watcher | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(state, "ticker")
        self._tracing = tracing
        self._declared = declared
        self._watcher = watcher
        self.tally = Tally(self._time)
        self._declared_at = self._time()  # or a moment ago, when the worker began
        self._behind = set[str]()  # schedules that have more to catch up than goes into one transaction

    async def _round(self) -> float:
        self.tally.begin()
        await self._declare()
        pause = await self._cycle()
        down_for = self.tally.down_for
        self.tally.end()
        if self._watcher is not None and down_for is not None:
            self._watcher.back(down_for)
        return pause

    def _failed(self, error: StoreError) -> None:
        news = self.tally.broke(error)
        if self._watcher is not None and isinstance(error, StoreMoved | SchemaTooNew):
            self._watcher.gone(error)
        elif self._watcher is not None and news:
            self._watcher.lost(error)

    async def _declare(self) -> None:
        engine, now = self._state.engine, self._time()
        if self._declared and now >= self._declared_at + DECLARE_EVERY:
            if await engine.arun(engine.declare(list(self._declared))) < len(self._declared):
                await self._declare_anew()
            self._declared_at = now

    async def _declare_anew(self) -> None:
        """Bring back schedules that were removed while this process slept, or with another store, and log that."""
        engine, name = self._state.engine, self._state.name
        known = {each.name for each in await engine.arun(engine.schedules(list(self._declared)))}
        gone = {each: declared for each, declared in self._declared.items() if each not in known}
        if not gone:
            return
        logger.warning("%s: %d of its schedules are gone from the store, and declared again", name, len(gone))
        try:
            changed = await engine.arun(declare_op(engine, gone, uuid7))
        except ScheduleTaken as error:  # a moment ago
            logger.error("%s: %s", name, error)
        else:
            self._state.bus.publish(events.SchedulesDeclared(name, tuple(changed)))

    async def _cycle(self) -> float:
        """Fire what is due, and return how many seconds to wait."""
        engine = self._state.engine
        left_alone = self.tally.left_alone
        limit = AT_ONCE + len(left_alone | self._behind)  # which stay due here, and take nobody's place
        self.tally.look()
        due = await self._state.ask("due", due_op(engine, list(self._declared), limit))
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
        return min([self._state.jittered_poll(), *(max(0, wait) / 1000 for wait in waits)])

    async def _decided(self, due: Due) -> tuple[list[TickStep], bool]:
        """What becomes of those that are due, as many as have jobs for one transaction, and whether these are all. Each
        may have as many jobs as would be left for each of those after it.

        All that shares the event loop gets its turn: to find the ticks of a long outage takes many milliseconds.
        """
        steps: list[TickStep] = []
        clock = self._state.clock  # not the loop's time: uvloop's stands still during a turn
        left, until = MOST_JOBS, clock() + TURN
        others_first = sorted(due.schedules, key=lambda each: each.schedule.name in self._behind)
        for waiting, each in zip(range(len(others_first), 0, -1), others_first, strict=True):
            if not left:
                return steps, False
            least = PORTION if each.schedule.name in self._behind else 1
            change = await self._change(each, due.now, min(left, max(least, left // waiting)))
            if change is not None:
                steps.append(TickStep(each, change))
                left -= steps[-1].jobs
            if clock() >= until:
                await asyncio.sleep(0)
                until = clock() + TURN
        return steps, True

    def _remember(self, due: Due, steps: Sequence[TickStep]) -> None:
        """Note which schedules have more to catch up than their share: the others come first the next time."""
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
            if due.schedule.name not in self.tally.left_alone:
                told = self._state.name, due.schedule.name, error
                logger.warning("%s: Schedule %s is left to other processes: %s", *told)
            self.tally.left_alone.add(due.schedule.name)
            return None
        self.tally.left_alone.discard(due.schedule.name)
        return change if error is None else after_failure(due.schedule, error, now)

    async def _carry_out(self, steps: Sequence[TickStep], now: Millis) -> None:
        """Store the changes together; if that cannot be, one by one, so that one does not stop the others. What is
        caught up may be more than a queue has room for, or ever will: then as much as goes in."""
        engine = self._state.engine
        try:
            done = await self._stored([step.change for step in steps])
        except StoreError:
            # No schedule is to blame for it: a value that cannot be stored is another error.
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
                await self._carry_out([TickStep(step.due, fewer)], now)
                return
            # By the same revision: of several who could not store it, one has failed.
            change = after_failure(step.seen, error, now)
            steps = [TickStep(step.due, change)]
            done = await self._state.ask("tick", engine.tick([change]))
        for step, change_done in zip(steps, done, strict=True):
            self._tell(step, change_done)

    async def _stored(self, changes: list[Change]) -> "list[Change | None]":
        """Store the changes, with the traces that their jobs begin."""
        engine = self._state.engine
        made = [firing.spec for change in changes for firing in change.firings if firing.spec is not None]
        with storing(self._tracing, made) as specs:
            return await self._state.ask("tick", tick_within_limits(engine, _marked(changes, specs)))

    def _tell(self, step: TickStep, change: Change | None) -> None:
        """Publish what was done; None if another process was first."""
        bus, name, schedule = self._state.bus, self._state.name, step.change.schedule
        if change is None:
            self.tally.lost(schedule.name)
            bus.publish(events.TickLost(name, schedule.name))
            return
        self.tally.told(change, waiting_for_overlap=step.seen.waiting_for_overlap)
        if schedule.errors:
            error = str(schedule.error)
            removes = change.removes
            bus.publish(
                events.ScheduleFailed(name, schedule.name, error, schedule.errors, schedule.failed, removes)
            )
            if removes:
                bus.publish(events.ScheduleRemoved(name, schedule.name))
        for firing in change.firings:
            entry = firing.entry
            late = entry.decided_at - entry.at + self.tally.waited
            if firing.spec is not None:
                job: UUID = firing.spec.id
                bus.publish(events.TickFired(name, schedule.name, entry.at, entry.outcome.value, job, late))
            elif firing.ticks:
                bus.publish(
                    events.TickPassed(name, schedule.name, firing.at, entry.outcome.value, firing.ticks)
                )


def _marked(changes: list[Change], specs: Sequence[JobSpec]) -> list[Change]:
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


class Spread(Struct, frozen=True, kw_only=True):
    """Of the newest values the middle one, and that which one in a hundred exceeds; None if there is none."""

    p50: float | None
    p99: float | None


class ScheduleFigures(Struct, frozen=True, kw_only=True):
    """What this process has done with one schedule; `last_at` is the newest tick that it has fired."""

    fired: int = 0
    passed: int = 0
    lost: int = 0
    failures: int = 0
    last_at: Millis | None = None


class Figures(Struct, frozen=True, kw_only=True):
    """What a ticker has done since it began.

    Ticks that it `fired`, that `passed` without a job (missed, skipped, suppressed), that it `lost` to another
    instance; `failures` are jobs that could not be made or stored, `errors` are cycles in which the store did not
    answer. `error_rate` is the part of the newest cycles in which something failed. `lateness` in milliseconds is that
    of ticks which fired, also of those that were caught up, but not of those that waited for the job before. `cycle`
    is in seconds, and so is `idle`: since when no cycle has ended. `down_for` is since when the store does not answer,
    None if it does; `trouble` is what it said last. `last_fired` is an instant of the store. `left_alone` are schedules
    that are due, but in time zones that are not known here.
    """

    fired: int
    passed: int
    lost: int
    failures: int
    errors: int
    cycles: int
    cycle_seconds: float
    cycle: Spread
    lateness: Spread
    error_rate: float
    idle: float
    down_for: float | None
    trouble: str | None
    last_fired: Millis | None
    by_schedule: dict[str, ScheduleFigures]
    by_priority: dict[int, int]
    seconds: float  # since it began to count
    left_alone: tuple[str, ...] = ()

    @property
    def rates(self) -> "Rates":
        """The jobs that it has stored per second, since it began."""
        seconds = self.seconds or 1.0
        return Rates(
            total=self.fired / seconds,
            by_schedule={name: each.fired / seconds for name, each in self.by_schedule.items()},
            by_priority={priority: fired / seconds for priority, fired in self.by_priority.items()},
        )


class Tally:
    """Counts. For one event loop, whose seconds `time` tells."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._since = self._began_at = self._looked_at = self._ended_at = time()
        self._down_since: float | None = None
        self._trouble: str | None = None
        self._failed = False  # something in this cycle
        self._totals = Counter[str]()
        self._seconds = 0.0
        self._cycles: deque[float] = deque(maxlen=WINDOW)
        self._outcomes: deque[bool] = deque(maxlen=RECENT)
        self._lateness: deque[tuple[float, Millis]] = deque(maxlen=WINDOW)
        self._last_fired: Millis | None = None
        self._named: dict[str, Counter[str]] = {}
        self._last_at: dict[str, Millis] = {}
        self._priorities = Counter[int]()
        self.left_alone: set[str] = set()  # schedules that this process cannot look at

    def begin(self) -> None:
        self._began_at = self._looked_at = self._time()
        self._failed = False

    def look(self) -> None:
        self._looked_at = self._time()

    def end(self) -> None:
        self._ended_at = self._time()
        self._down_since = self._trouble = None
        self._totals["cycles"] += 1
        self._seconds += self._ended_at - self._began_at
        self._cycles.append(self._ended_at - self._began_at)
        self._outcomes.append(self._failed)

    def broke(self, error: Exception) -> bool:
        """Note that the store does not answer; return True if that is news."""
        news = self._down_since is None
        # Since it was asked, not since it was given up: a store may take its time to say that it cannot.
        self._down_since = self._began_at if self._down_since is None else self._down_since
        self._trouble = str(error)
        self._totals["errors"] += 1
        self._outcomes.append(True)
        return news

    @property
    def down_for(self) -> float | None:
        """The seconds for which the store has not answered; None if it does."""
        return None if self._down_since is None else self._time() - self._down_since

    @property
    def waited(self) -> Millis:
        """The time that this cycle has taken since it looked at the store's clock."""
        return round((self._time() - self._looked_at) * 1000)

    def lost(self, schedule: str) -> None:
        """Another instance was first."""
        self._count(schedule, "lost")

    def told(self, change: Change, *, waiting_for_overlap: bool = False) -> None:
        """The store has done this; `waiting_for_overlap` if it had to wait for the job before, which makes ticks late
        on purpose."""
        schedule = change.schedule
        if schedule.errors:
            self._count(schedule.name, "failures")
            self._failed = True
        for firing in change.firings:
            entry = firing.entry
            if firing.spec is None:
                self._count(schedule.name, "passed", firing.ticks)
                continue
            self._count(schedule.name, "fired")
            self._priorities[firing.spec.priority] += 1
            self._last_fired = entry.decided_at
            if schedule.name in self._named:
                self._last_at[schedule.name] = entry.at
            if not waiting_for_overlap:
                self._lateness.append((self._time(), entry.decided_at - entry.at + self.waited))

    def figures(self) -> Figures:
        total, now = self._totals, self._time()
        return Figures(
            fired=total["fired"],
            passed=total["passed"],
            lost=total["lost"],
            failures=total["failures"],
            errors=total["errors"],
            cycles=total["cycles"],
            cycle_seconds=self._seconds,
            cycle=spread(self._cycles),
            lateness=spread([late for at, late in self._lateness if at >= now - WITHIN]),
            error_rate=sum(self._outcomes) / len(self._outcomes) if self._outcomes else 0.0,
            idle=now - self._ended_at,
            down_for=self.down_for,
            trouble=self._trouble,
            last_fired=self._last_fired,
            by_schedule={
                name: ScheduleFigures(**counts, last_at=self._last_at.get(name))
                for name, counts in self._named.items()
            },
            by_priority=dict(self._priorities),
            seconds=now - self._since,
            left_alone=tuple(sorted(self.left_alone)),
        )

    def _count(self, schedule: str, what: str, count: int = 1) -> None:
        self._totals[what] += count
        if schedule in self._named or len(self._named) < MOST_NAMED:
            self._named.setdefault(schedule, Counter())[what] += count


def spread(values: Sequence[float]) -> Spread:
    """Return the median of the values, and their 99th percentile."""
    ordered = sorted(values)
    p50, p99 = (ordered[max(0, ceil(len(ordered) * part) - 1)] if ordered else None for part in (0.50, 0.99))
    return Spread(p50=p50, p99=p99)


class Rates(Struct, frozen=True, kw_only=True):
    """Jobs of ticks that were stored, per second: in all, of each schedule, and by priority."""

    total: float
    by_schedule: dict[str, float]
    by_priority: dict[int, float]
