"""Heartbeats of a worker, beside the path of jobs, and the runs that must end before its lease does.

A beat renews the worker's one lease, and with it every job it holds: a job of a day costs what a job of a
second costs. Beats go out from a thread, so that a handler that blocks the event loop does not cost the
worker its lease. (Code that never gives up the interpreter lock still does: that takes a process of its own.)
Tests on virtual time beat from the loop.

    beat sent ──► answered: renewed   in touch for 2/3 of the lease, counted from when the beat was *sent*:
              │                       only then are jobs claimed, and only then are claimed ones started
              │             cancels   jobs that somebody wants cancelled, repeated with every beat
              │             lost      jobs that somebody has taken away by force: stop them
              │             fenced    the lease is lost for ever: stop at once, settle nothing
              │             moved     the jobs are in another store, as if it were fenced
              │             too new   the schema is no longer for this release: stop, in good order
              └─► no answer, for a third of the lease: again soon, on another connection. After 2/3 of a lease
                  claim and start no more, but run on: a day's work must outlive an outage, and the store
                  will say whose it is

The list of held leases is made when the store has begun the beat, not when the beat is asked for: a beat that
had to wait would otherwise disown what was claimed meanwhile, and the store would give those jobs away.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Literal

from msgspec import structs

from shigoto.engine.op import Op
from shigoto.model.errors import SchemaTooNew, StoreError, StoreMoved
from shigoto.model.worker import Orders
from shigoto.task import Task
from shigoto.worker.pool import Pool
from shigoto.worker.state import Trouble, WorkerState, beat_deadline, longest_pause
from shigoto.worker.stopping import Wakeup

logger = logging.getLogger("shigoto.worker")

Beats = Literal["thread", "loop"]

NUDGE_GAP = 1.0  # seconds between beats that were asked for early
THREAD_ENDS_WITHIN = 1.0  # seconds to wait for the beat thread to end
GONE = Orders(fenced=True)  # what a store that was moved would say, if it could
EXCLUSIVE_PART = 0.9  # of a lease
EXCLUSIVE_LOOK = 0.1  # of a lease, at most, between looks


class Keeper:
    """Beats for one worker. `obey` is called on the event loop with the answer to each beat, `back` when it is the
    first after an outage, and `stop` when the store is no longer for this release."""

    def __init__(
        self,
        state: WorkerState,
        beats: Beats,
        obey: Callable[[Orders], None],
        *,
        back: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        self._state = state
        self._beats = beats
        self._obey = obey
        self._back = back
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._asked_at = self._loop.time() - NUDGE_GAP
        self._trouble = Trouble(state, "keeper", longest=longest_pause(state.lease))
        self._nudge_timer: asyncio.TimerHandle | None = None
        self._wakeup = Wakeup()
        self._thread_wakeup = threading.Event()
        self._thread_ended: asyncio.Future[None] = self._loop.create_future()
        self._closed = False

    def nudge(self) -> None:
        """Beat soon: there may be orders. At most once a second."""
        if self._nudge_timer is None:
            at = max(self._loop.time(), self._asked_at + NUDGE_GAP)
            self._nudge_timer = self._loop.call_at(at, self._nudged)

    async def run(self) -> None:
        try:
            if self._beats == "loop":
                await self._beat_on_loop()
            else:
                await self._watch_thread()
        finally:
            if self._nudge_timer is not None:
                self._nudge_timer.cancel()

    def _nudged(self) -> None:
        self._nudge_timer = None
        # Counted from here, not from the answer: a beat that fails may itself write to the store and ring the doorbell.
        self._asked_at = self._loop.time()
        self._wakeup.ring()
        self._thread_wakeup.set()

    def _pause(self) -> float:
        return self._state.lease / 3 * self._state.random.uniform(0.9, 1.1)

    def _beat(self) -> Op[Orders]:
        engine, state = self._state.engine, self._state

        def start() -> Any:
            return engine.beat(state.id, state.held_tokens()).start()

        return structs.replace(engine.beat(state.id, ()), start=start, deadline=beat_deadline(state.lease))

    async def _beat_on_loop(self) -> None:
        pause = self._pause()
        while True:
            await self._wakeup.wait(pause)
            sent_at = self._state.clock()
            try:
                orders = await self._state.ask("beat", self._beat())
            except StoreError as error:
                pause = self._refused(error, sent_at)
            else:
                self._note(sent_at, orders)
                self._answered(orders)
                pause = self._pause()

    async def _watch_thread(self) -> None:
        await self._start_thread()
        try:
            await asyncio.shield(self._thread_ended)
        finally:
            self._closed = True
            self._thread_wakeup.set()
            # A beat may hang in the store; then the thread is left behind, and ends when the store answers.
            await asyncio.wait([self._thread_ended], timeout=THREAD_ENDS_WITHIN)

    async def _start_thread(self) -> None:
        while True:
            try:
                self._state.spawn(self._beat_in_thread, "shigoto-beat")
            except RuntimeError as error:
                # The system is short of threads. Without a beat nothing is claimed or started for long.
                await asyncio.sleep(self._trouble.met(error))
            else:
                return

    def _beat_in_thread(self) -> None:
        pause = self._pause()
        while not self._closed:
            self._thread_wakeup.wait(pause)
            self._thread_wakeup.clear()
            if not self._closed:
                pause = self._beat_once()
        self._on_loop(self._end_thread)

    def _beat_once(self) -> float:
        """Beat from the thread, and return how many seconds to wait."""
        sent_at = self._state.clock()
        try:
            orders = self._state.engine.run(self._beat())
        except StoreError as error:
            return self._refused(error, sent_at)
        except Exception as error:
            # A fault of ours: the worker must not go on without a beat as if nothing had happened.
            self._closed = True
            self._on_loop(self._end_thread, error)
            return 0.0
        # Noted here, not on the loop: that may be blocked, while jobs in threads wait to be started.
        self._note(sent_at, orders)
        self._on_loop(self._state.answered, "beat", self._state.clock() - sent_at)
        self._on_loop(self._answered, orders)
        return self._pause()

    def _refused(self, error: StoreError, sent_at: float) -> float:
        """Act on a beat that was not accepted, in the thread or on the loop; return how many seconds to wait."""
        if isinstance(error, StoreMoved | SchemaTooNew):
            if isinstance(error, StoreMoved):
                self._note(sent_at, GONE)
            self._on_loop(self._give_up, error)
            return self._pause()
        pause = self._trouble.next_pause()
        self._on_loop(self._trouble.tell, error, pause)
        return pause

    def _on_loop(self, fn: Callable[..., None], *args: Any) -> None:
        if self._beats == "loop":
            fn(*args)
            return
        # A closed loop means that the worker is gone, and nothing needs to be told.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(fn, *args)

    def _end_thread(self, error: Exception | None = None) -> None:
        if not self._thread_ended.done():
            if error is None:
                self._thread_ended.set_result(None)
            else:
                self._thread_ended.set_exception(error)

    def _note(self, sent_at: float, orders: Orders) -> None:
        if orders.fenced:
            self._state.may_start_until = -inf
        else:
            self._state.confirm(sent_at)

    def _give_up(self, error: StoreError) -> None:
        logger.error("Worker %s ends: %s", self._state.name, error)
        if isinstance(error, StoreMoved):
            self._obey(GONE)
        else:
            self._stop()

    def _answered(self, orders: Orders) -> None:
        recovered = self._trouble.over()
        self._asked_at = self._loop.time()
        self._obey(orders)
        if recovered and not orders.fenced:
            self._back()


class ExclusiveJobs:
    """Watches over the running jobs of tasks that must never run twice at once, not even for a moment
    (`exclusive=True`).

    A worker that has lost touch with the store goes on running what it has; others may begin the same jobs when its
    lease is over. Runs of exclusive tasks end before that: nine tenths of a lease after the last beat that the store
    has confirmed was sent. Whether the word of the store is late or the store is gone makes no difference to them.
    """

    def __init__(
        self, state: WorkerState, pools: Sequence[Pool], tasks: Mapping[str, Task[..., Any]]
    ) -> None:
        self._state = state
        self._pools = pools
        self.tasks = frozenset(name for name, task in tasks.items() if task.options.exclusive)

    async def run(self) -> None:
        state = self._state
        while True:
            left = state.confirmed_at + state.lease * EXCLUSIVE_PART - state.clock()
            if left <= 0:
                self._cut()
            # Not all of it at once: the clock of leases goes on while the machine sleeps, that of timers does not.
            longest = state.lease * EXCLUSIVE_LOOK
            await asyncio.sleep(min(left, longest) if left > 0 else longest)

    def _cut(self) -> None:
        for pool in self._pools:
            for slot in pool.busy_slots():
                lease = slot.lease
                if lease is not None and lease.task in self.tasks:
                    pool.cut(lease)
