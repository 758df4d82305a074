"""Fires the ticks of schedules. Every worker does; there is no leader, and no need for one.

    due ──► decide (schedule/deciding.py) ──► jobs and entries (schedule/firing.py) ──► one transaction (engine.tick)
                                                                                          heard, or another was first

The store says when the next schedule is due, and the ticker sleeps until then, or for a poll: schedules come and change
while it sleeps. A schedule whose job cannot be made is tried again, later each time, and has failed after some tries;
nothing of that holds up the others.
"""

import asyncio
from collections.abc import Mapping, Sequence
from uuid import UUID

from msgspec.structs import replace

from shigoto.model.clock import Millis
from shigoto.model.errors import StoreError, StoreMoved, StoreUnavailable
from shigoto.model.ids import uuid7
from shigoto.model.schedule import Change, DueSchedule, Schedule
from shigoto.observe.events import ScheduleFailed, SchedulesDeclared, TickFired, TickLost, TickPassed
from shigoto.schedule.declaring import Declared, reconciling
from shigoto.schedule.failing import after_failure
from shigoto.schedule.looking import looked_at
from shigoto.worker.station import Station, Trouble

AT_ONCE = 200  # schedules of one transaction
DECLARE_EVERY = 30.0  # seconds


class Ticker:
    """Fires what is due, and keeps the store informed of what this code declares."""

    def __init__(self, station: Station, declared: Mapping[str, Declared]) -> None:
        self._station = station
        self._declared = declared
        self._time = asyncio.get_running_loop().time
        self._trouble = Trouble(station, "ticker")
        self._declared_at: float | None = None

    async def run(self) -> None:
        """Fire until cancelled."""
        while True:
            try:
                await self._declare()
                pause = await self._cycle()
            except StoreError as error:
                await asyncio.sleep(self._trouble.met(error))
                continue
            self._trouble.over()
            await asyncio.sleep(pause)

    async def _declare(self) -> None:
        """Bring the declared ones into the store, and say now and then that they still are."""
        engine, now = self._station.engine, self._time()
        if not self._declared or (self._declared_at is not None and now < self._declared_at + DECLARE_EVERY):
            return
        if self._declared_at is None:
            changed = await engine.arun(reconciling(engine, self._declared, uuid7))
            if changed:
                self._station.bus.publish(SchedulesDeclared(self._station.name, tuple(changed)))
        else:
            await engine.arun(engine.declare(list(self._declared)))
        self._declared_at = now

    async def _cycle(self) -> float:
        """Fire what is due, and return how many seconds to wait."""
        engine = self._station.engine
        due = await engine.arun(engine.due(list(self._declared), AT_ONCE))
        changes = [self._change(each, due.now) for each in due.schedules]
        if changes:
            await self._carry_out(changes, due.now)
        if len(due.schedules) == AT_ONCE:
            return 0.0
        # What was fired is due again; how soon, only the schedules themselves know.
        waits = [each.schedule.look_at - due.now for each in changes if each.schedule.look_at is not None]
        if due.next_in is not None:
            waits.append(due.next_in)
        return min([self._station.jittered_poll(), *(max(0, wait) / 1000 for wait in waits)])

    def _change(self, due: DueSchedule, now: Millis) -> Change:
        """What becomes of a schedule. Its code may raise anything."""
        try:
            return looked_at(due, self._declared, now)
        except Exception as error:
            return self._failed(due.schedule, error, now)

    async def _carry_out(self, changes: Sequence[Change], now: Millis) -> None:
        """Store the changes together; if that cannot be, one by one, so that one does not stop the others."""
        engine = self._station.engine
        try:
            heard = await engine.arun(engine.tick(changes))
        except (StoreUnavailable, StoreMoved, asyncio.CancelledError):
            raise
        except Exception as error:
            if len(changes) == 1:
                await engine.arun(engine.tick([self._failed(await self._again(changes[0]), error, now)]))
                return
            for change in changes:
                await self._carry_out([change], now)
            return
        for change, was_heard in zip(changes, heard, strict=True):
            self._tell(change, was_heard=was_heard)

    async def _again(self, change: Change) -> Schedule:
        """The schedule as it was before the change that did not work."""
        engine = self._station.engine
        known = await engine.arun(engine.schedules([change.schedule.name]))
        return known[0] if known else replace(change.schedule, revision=change.seen)

    def _failed(self, schedule: Schedule, error: Exception, now: Millis) -> Change:
        change = after_failure(schedule, error, now)
        changed = change.schedule
        self._station.bus.publish(
            ScheduleFailed(
                self._station.name, schedule.name, str(changed.error), changed.errors, changed.failed
            )
        )
        return change

    def _tell(self, change: Change, *, was_heard: bool) -> None:
        bus, name, schedule = self._station.bus, self._station.name, change.schedule.name
        if not was_heard:
            bus.publish(TickLost(name, schedule))
            return
        for firing in change.firings:
            entry = firing.entry
            late = entry.decided_at - entry.at
            if firing.spec is not None:
                job: UUID = firing.spec.id
                bus.publish(TickFired(name, schedule, entry.at, entry.outcome.value, job, late))
            else:
                bus.publish(TickPassed(name, schedule, entry.at, entry.outcome.value, entry.count))
