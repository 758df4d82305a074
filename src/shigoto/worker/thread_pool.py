"""The pool of threads, for sync tasks.

A queue in, a list out, and one wake-up of the event loop for however many jobs ended meanwhile. That is all
an executor does too, but `run_in_executor` makes two futures and one wake-up per job, and was 2.7 times
slower in the whole worker.

    loop:    give ──► queue ─┐                      ┌─► collect: settle them all, there is room again
    thread:                  └─► take, run, put out ┘   (called once, however many have put something out)

A thread cannot be stopped from outside. At its soft limit a handler is told, if it looks, and people are told where
it is. At the end of a worker the idle threads are ended; one that still runs a handler is left behind, its lease is
given back, and what it returns is dropped.

A system that is short of threads may refuse to start one. Then the pool asks for no more jobs than it has threads, and
for none without any, until it tries again.
"""

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from types import FrameType

from shigoto.context import Signals
from shigoto.model.job import Lease
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Settlement
from shigoto.observe.events import JobStarted, JobStuck
from shigoto.worker import endings
from shigoto.worker.endings import stack_of
from shigoto.worker.pool import Pool, Settle, named, tell_started
from shigoto.worker.runner import HERE, Runner
from shigoto.worker.state import WorkerState

JOIN_TIMEOUT = 1.0  # seconds for all threads together: the event loop stands still meanwhile
REST = 5.0  # seconds without a try, after a thread could not be started
CURRENT_FRAMES = "_current_frames"
OURS = (*HERE, __file__, threading.__file__)

logger = logging.getLogger("shigoto.worker")


class ThreadSlot:
    """One thread, and the job it runs. The thread writes `lease` and `signals`, the event loop reads them.

    `limit_at` is for the lease `limited`: by the time the event loop looks, the thread may have gone on to another.
    """

    thread: threading.Thread

    def __init__(self, pool: "ThreadPool", index: int) -> None:
        self._pool = pool
        self.index = index
        self.lease: Lease | None = None
        self.signals = Signals()
        self.wanted: Ending | None = None
        self.limit_at = inf
        self.limited: Lease | None = None

    def limit(self, hard: Millis | None, soft: Millis | None) -> None:
        """Publish that a run takes longer than this; nothing more can be done about it."""
        limits = [limit for limit in (hard, soft) if limit is not None]
        if limits:
            self._pool.expect(self, min(limits))

    def time_out(self) -> None:
        self._pool.stuck(self)


class ThreadPool(Pool):
    """Runs jobs of sync tasks, at most `size` at once; threads are started when there is work for them."""

    def __init__(
        self, state: WorkerState, runner: Runner, *, size: int, settle: Settle, room: Callable[[], None]
    ) -> None:
        super().__init__(state, size=size, settle=settle, room=room)
        self._size = size
        self._runner = runner
        self._indexes = state.take_indexes(size)
        self._thread_slots: list[ThreadSlot] = []
        self._queue: SimpleQueue[Lease | None] = SimpleQueue()
        # What threads have put out: a lease and None when it starts, its settlement and seconds when it has
        # ended.
        self._out: deque[tuple[Lease, Settlement | None, float]] = deque()
        self._outstanding = 0
        self._ringing = False
        self._rest_timer: asyncio.TimerHandle | None = None
        self._complained = False

    @property
    def resting(self) -> bool:
        return self._rest_timer is not None and not self._thread_slots

    @property
    def buffered(self) -> int:
        return self._queue.qsize()

    def busy_slots(self) -> list[ThreadSlot]:
        return [slot for slot in self._thread_slots if slot.lease is not None]

    def give(self, leases: Sequence[Lease]) -> None:
        self._tell = self._state.bus.wants(JobStarted)
        self._outstanding += len(leases)
        for lease in leases:
            self._queue.put(lease)
        while self._rest_timer is None and len(self._thread_slots) < min(self._outstanding, self.slots.size):
            self._start_thread()
        if not self._thread_slots:
            leases = self.take_back()
            self.slots.took_back(len(leases))
            self.slots.collapse()
            self._release(leases)

    def take_back(self) -> list[Lease]:
        leases: list[Lease] = []
        with suppress(Empty):
            while True:
                lease = self._queue.get_nowait()
                if lease is not None:
                    leases.append(lease)
        self._outstanding -= len(leases)
        return leases

    def cancel(self, lease: Lease) -> bool:
        signals = self._signals_of(lease)
        if signals is not None:
            signals.cancelled = True
        return signals is not None

    def lose(self, lease: Lease) -> bool:
        signals = self._signals_of(lease)
        if signals is not None:
            signals.lost = True
        return signals is not None

    def cut(self, lease: Lease) -> None:
        """Do nothing: a thread cannot be stopped."""

    def expect(self, slot: ThreadSlot, limit: Millis) -> None:
        """Watch the job of a slot, called by its thread; only the event loop may set a timer."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._watch, slot, slot.lease, limit / 1000)

    def stuck(self, slot: ThreadSlot) -> None:
        lease = slot.limited
        signals = None if lease is None else self._signals_of(lease)
        frame = _frames_of_threads().get(slot.thread.ident or 0)
        if lease is None or signals is None:
            return
        signals.overdue = True
        stack = "" if frame is None else stack_of(frame, skip=OURS)
        limit = min(limit for limit in self._runner.limits(lease) if limit is not None)
        self._state.bus.publish(JobStuck(*named(self._state.name, lease), limit, stack))

    def close(self) -> None:
        """Collect what has ended, then end the idle threads; what the others still put out is dropped.

        Closing twice is fine.
        """
        self.limits.close()
        self._collect()
        self._closed = True
        if self._rest_timer is not None:
            self._rest_timer.cancel()
        self.take_back()
        for _ in self._thread_slots:
            self._queue.put(None)
        deadline = time.monotonic() + JOIN_TIMEOUT
        for slot in self._thread_slots:
            if slot.lease is None:
                slot.thread.join(max(0.0, deadline - time.monotonic()))

    def _signals_of(self, lease: Lease) -> Signals | None:
        for slot in self._thread_slots:
            # Read before the lease and again after it: the thread may be changing over to its next job.
            signals = slot.signals
            if slot.lease is lease and slot.signals is signals:
                return signals
        return None

    def _watch(self, slot: ThreadSlot, lease: Lease | None, seconds: float) -> None:
        if slot.lease is lease and not self._closed:
            slot.limited, slot.limit_at = lease, self._loop.time() + seconds
            self.limits.watch(slot.limit_at)

    def _start_thread(self) -> None:
        slot = ThreadSlot(self, self._indexes[len(self._thread_slots)])
        name = f"shigoto-thread-{len(self._thread_slots) + 1}"
        self._thread_slots.append(slot)
        try:
            slot.thread = self._state.spawn(partial(self._work, slot), name)
        except RuntimeError as error:
            self._thread_slots.pop()
            self._rest(error)
        else:
            self._complained = self._complained and len(self._thread_slots) < self._size

    def _rest(self, error: RuntimeError) -> None:
        self.slots.size = len(self._thread_slots)
        self._rest_timer = self._loop.call_later(REST, self._rested)
        if not self._complained:
            self._complained = True
            logger.warning(
                "Worker %s cannot start a thread (%s); it goes on with those it has, %d, and tries again soon",
                self._state.name,
                error,
                len(self._thread_slots),
            )

    def _rested(self) -> None:
        self._rest_timer = None
        self.slots.size = self._size
        self._room()

    def _work(self, slot: ThreadSlot) -> None:
        take, run, out = self._queue.get, self._runner.run_in_thread, self._out
        state, clock = self._state, self._state.clock
        numbers, index = state.running_jobs.numbers, slot.index
        while (lease := take()) is not None:
            if self._closed:
                # Taken in the very moment of the close, which gives it back.
                continue
            started = clock()
            if started >= state.may_start_until:
                # Perhaps somebody else's by now. The store knows; it takes back only what is still ours.
                out.append((lease, endings.released(lease, ran=False), 0.0))
                self._ring()
                continue
            if self._tell:
                out.append((lease, None, 0.0))
                self._ring()
            numbers[index] = lease.number
            settlement = run(slot, lease)
            numbers[index] = 0
            out.append((lease, settlement, clock() - started))
            self._ring()

    def _ring(self) -> None:
        # Read and written without a lock: `_collect` lowers the flag before it looks, so whoever finds the
        # flag raised has put its job out early enough to be found. At worst the loop is woken once too often.
        if not self._ringing:
            self._ringing = True
            # A closed loop means that the worker is gone, and that this job was given back by it.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._ringing = False
        while self._out and not self._closed:
            lease, settlement, seconds = self._out.popleft()
            if settlement is None:
                tell_started(self._state.bus, self._state.name, lease)
            else:
                self._outstanding -= 1
                self._settle(lease, settlement, seconds)
        if not self._closed:
            self._room()


def _frames_of_threads() -> Mapping[int, FrameType]:
    """Return where every thread is now, if this Python can tell."""
    frames: Callable[[], Mapping[int, FrameType]] = getattr(sys, CURRENT_FRAMES, dict)
    return frames()
