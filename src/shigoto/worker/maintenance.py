"""Work that every long-lived process does for the store: promoting, sweeping, watching the age of queues.

The sweeper repairs what others left behind: it fences workers that are gone, frees their jobs, expires, prunes. Every
long-lived process sweeps, so none is needed for it. The danger is to fence a worker that lives: its jobs would run
twice. The lease alone does not decide; three rules guard it.

    two looks   a worker is fenced only if two sweeps, a third of a lease apart on *our* clock, both saw it
                expired: had we been asleep, or the machine, the first look after waking proves nothing
    amnesty     after an outage nobody has been able to beat; whoever lost the store waits for a whole lease
                of unbroken contact before it fences, and if that is short, for as long as others may take to
                notice that the store is back. So does whoever has not looked for so long: it was asleep, and the
                others may still be
    the store   fences only a worker that is still expired at that very moment

    seen expired ──1/3 lease──► seen again ──at once──► ordered to be fenced
         └── not seen any more, or the clock was set back: forgotten

Jobs of a task that nobody knows wait for somebody who does, for ever unless the app says how long. Where nobody swept
for a whole lease, nobody was there, and that time does not count.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING
from uuid import UUID

from shigoto.model.errors import StoreError
from shigoto.model.time import Millis
from shigoto.model.worker import SweepOrder, Swept
from shigoto.observe.events import ClockStepped, JobsPromoted, JobsRescued, TasksUnknown, WorkersFenced
from shigoto.worker.state import Repeated, Trouble, WorkerState
from shigoto.worker.stopping import Wakeup

if TYPE_CHECKING:
    from shigoto.notify.notifier import Notifier

PROMOTE_AT_ONCE = 1_000
# A doorbell that rings all the time asks for a look at the schedule all the time; this is often enough.
PROMOTE_PAUSE = 0.020
MORE_AT_ONCE = 0.010
BACK_WITHIN = 5.0  # seconds: a store that is back is noticed by everybody; see `Trouble`
SHORTEST_PACE = 6.0  # seconds of a lease: oftener than every second nobody sweeps for others
SHORTEST_LOOK, LONGEST_LOOK = 1.0, 30.0  # seconds


class Promoter:
    """Makes scheduled jobs ready at their instant, for all workers; `promoted` is called when jobs have become ready.

    The store says when the next one is due, and the promoter sleeps until then. It wakes early for what it could not
    know: the doorbell rang, or a job of this very worker will be due sooner. And the listener tells it to look once per
    poll in any case, because a doorbell may be missed.
    """

    def __init__(self, state: WorkerState, promoted: Callable[[], None]) -> None:
        self._state = state
        self._promoted = promoted
        self._time = asyncio.get_running_loop().time
        self._wakeup = Wakeup()
        self._closing = Wakeup()
        self._trouble = Trouble(state, "promoter")
        self._due_at = 0.0
        self._rung = False
        self._closed = False

    def close(self) -> None:
        """Finish what has begun, and begin nothing more."""
        self._closed = True
        self._closing.ring()
        self._wakeup.ring()

    def look(self) -> None:
        self._rung = True
        self._wakeup.ring()

    def expect(self, delay: Millis) -> None:
        """Look again in so many milliseconds, when a job will be due."""
        due_at = self._time() + delay / 1000
        if due_at < self._due_at:
            self._due_at = due_at
            self._wakeup.ring()

    async def run(self) -> None:
        while not self._closed:
            began_at, self._due_at, self._rung = self._time(), inf, False
            try:
                pause = await self._promote()
            except StoreError as error:
                await self._closing.wait(self._trouble.met(error))
                continue
            self._trouble.over()
            # The earlier of what the store said and what came up while it was asked.
            self._due_at = min(self._due_at, began_at + pause)
            await self._sleep(began_at + PROMOTE_PAUSE)

    async def _promote(self) -> float:
        engine, limit = self._state.engine, PROMOTE_AT_ONCE
        promoted = await self._state.ask("promote", engine.promote(limit))
        if promoted.count:
            self._state.bus.publish(JobsPromoted(self._state.name, promoted.count))
            self._promoted()
        if promoted.count == limit:
            return 0.0
        return inf if promoted.next_in is None else promoted.next_in / 1000

    async def _sleep(self, soonest: float) -> None:
        """Wait until the next job is due; a ring may shorten that, but not below the shortest pause."""
        while not self._closed:
            if self._rung:
                self._due_at = min(self._due_at, soonest)
            pause = self._due_at - self._time()
            if pause <= 0 or not await self._wakeup.wait(None if pause == inf else pause):
                return


def pace(own: float, shortest: Millis | None) -> float:
    """Return the lease by which to sweep: its own, or the `shortest` of other workers if that is shorter."""
    return own if shortest is None else min(own, max(SHORTEST_PACE, shortest / 1000))


class FenceDecision:
    """Decides whom to fence; pure, but for what it remembers. Times are seconds on a monotonic clock."""

    def __init__(self, own: UUID, lease: float) -> None:
        self._own = own
        self._amnesty = max(lease, BACK_WITHIN)  # seconds
        self.apart = lease / 3  # seconds between two looks
        self._first_seen: dict[UUID, float] = {}
        self._in_touch = True
        self._looked_at: float | None = None
        self._no_fence_before = 0.0
        self.to_fence: tuple[UUID, ...] = ()

    def saw(self, now: float, expired: tuple[UUID, ...]) -> None:
        """Note the expired workers that a sweep at `now` saw; it carried the order to fence `to_fence`."""
        asleep = self._looked_at is not None and now - self._looked_at > self._amnesty
        if asleep or not self._in_touch:
            self._no_fence_before = now + self._amnesty
        self._in_touch, self._looked_at = True, now
        # Whoever was ordered to be fenced and is still there needs two new looks: the store knew better.
        known = {worker: at for worker, at in self._first_seen.items() if worker not in self.to_fence}
        self._first_seen = {worker: known.get(worker, now) for worker in expired if worker != self._own}
        ripe = now - self.apart
        self.to_fence = tuple(
            worker for worker, at in self._first_seen.items() if at <= ripe and now >= self._no_fence_before
        )

    def lost_contact(self) -> None:
        self.forget()
        self._in_touch = False

    def forget(self) -> None:
        self._first_seen = {}
        self.to_fence = ()

    def next_look(self, now: float) -> float | None:
        """Return in how many seconds a second look is due."""
        if not self._first_seen:
            return None
        due = max(min(self._first_seen.values()) + self.apart, self._no_fence_before)
        return max(0.0, due - now)


class Sweeper(Repeated):
    """Sweeps about six times per lease: every five seconds with the usual one.

    `unknown_after` tells how long jobs may wait for somebody who knows their task; it is asked every time. One that
    `follows` sweeps for workers that do not sweep themselves: if one of them has a shorter lease, by that.
    """

    def __init__(
        self, state: WorkerState, unknown_after: Callable[[], Millis | None], *, follows: bool = False
    ) -> None:
        super().__init__(state, "sweeper")
        self._unknown_after = unknown_after
        self._follows = follows
        self._pace = state.lease
        self._fence_decision = FenceDecision(state.id, state.lease)
        self._swept_at = self._time()

    @property
    def overdue(self) -> float:
        """For how many seconds a sweep should have ended well, and none has: every one of them writes, so that this
        tells if nobody can."""
        return max(0.0, self._time() - self._swept_at - self._pace / 6)

    async def _round(self) -> float:
        engine = self._state.engine
        order = SweepOrder(
            fence=self._fence_decision.to_fence,
            unknown_after=self._unknown_after(),
            longest_gap=round(self._state.lease * 1000),
        )
        swept = await self._state.ask("sweep", engine.sweep(order))
        now = self._swept_at = self._time()
        if self._follows:
            self._pace = pace(self._state.lease, swept.shortest_lease)
            self._fence_decision.apart = self._pace / 3
        if swept.clock_step:
            self._fence_decision.forget()
        else:
            self._fence_decision.saw(now, swept.expired_workers)
        self._tell(swept)
        return self._pause(now, swept)

    def _failed(self, error: StoreError) -> None:
        self._fence_decision.lost_contact()

    def _pause(self, now: float, swept: Swept) -> float:
        if swept.more or self._fence_decision.to_fence:
            return MORE_AT_ONCE
        pause = self._pace / 6 * self._state.random.uniform(0.8, 1.0)
        second_look = self._fence_decision.next_look(now)
        return pause if second_look is None else min(pause, max(second_look, MORE_AT_ONCE))

    def _tell(self, swept: Swept) -> None:
        name, bus = self._state.name, self._state.bus
        if swept.clock_step:
            bus.publish(ClockStepped(name, swept.clock_step))
        if swept.fenced:
            bus.publish(WorkersFenced(name, swept.fenced))
        if swept.rescued:
            bus.publish(JobsRescued(name, swept.rescued))
        if swept.unknown:
            bus.publish(TasksUnknown(name, swept.unknown))


class QueueAgeWatch(Repeated):
    """Looks for queues that wait too long, for rules that ask for it: four times within the shortest limit of these,
    and at least twice a minute.

    Nothing changes in the store when a queue does. Every long-lived process of the app looks, and the notice of a queue
    is named after the window in which it is too old. So however many look, they write one.
    """

    def __init__(self, state: WorkerState, notifier: "Notifier", limit: int) -> None:
        super().__init__(state, "queue-age-watch")
        self._notifier = notifier
        self._pause = min(LONGEST_LOOK, max(SHORTEST_LOOK, limit / 4_000))
        self._told: set[UUID] = set()  # by the look before: to tell of it again would change nothing

    async def _round(self) -> float:
        engine = self._state.engine
        now = await engine.arun(engine.time())
        notices = self._notifier.looks(now, await engine.arun(engine.oldest()))
        new = [notice for notice in notices if notice.id not in self._told]
        if new:
            await engine.arun(engine.enqueue_many(new))
        self._told = {notice.id for notice in notices}
        return self._pause * self._state.random.uniform(0.8, 1.0)


def queue_age_watch_of(state: WorkerState, notifier: "Notifier | None") -> QueueAgeWatch | None:
    """Return a watch if a rule of the app asks for one, and the store leaves that to workers."""
    limit = None if notifier is None else notifier.shortest_limit
    if notifier is None or limit is None or not state.engine.capabilities.repairs:
        return None
    return QueueAgeWatch(state, notifier, limit)
