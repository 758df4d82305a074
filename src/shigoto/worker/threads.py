"""The pool of threads, for sync tasks.

A queue in, a list out, and one wake-up of the event loop for however many jobs ended meanwhile. That is all
an executor does too, but `run_in_executor` makes two futures and one wake-up per job, and was 2.7 times
slower in the whole worker.

    loop:    give ──► queue ─┐                      ┌─► collect: settle them all, there is room again
    thread:                  └─► take, run, put out ┘   (called once, however many have put something out)

A thread cannot be stopped from outside. At the end of a worker the idle ones are ended; one that still runs a
handler is left behind, its lease is given back, and what it returns is dropped.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from shigoto.context import Signals
from shigoto.model.job import Lease
from shigoto.model.outcome import Settlement
from shigoto.observe.events import JobStarted
from shigoto.worker import endings
from shigoto.worker.pool import Settle, tell_started
from shigoto.worker.runner import Runner
from shigoto.worker.slots import Slots
from shigoto.worker.station import Station

JOIN_TIMEOUT = 1.0


class Seat:
    """One thread, and the job it runs. The thread writes `lease` and `signals`, the event loop reads them."""

    __slots__ = ("lease", "signals", "thread")

    thread: threading.Thread

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.signals = Signals()


class Threads:
    """Runs jobs of sync tasks, at most `size` at once; threads are started when there is work for them."""

    def __init__(
        self,
        station: Station,
        runner: Runner,
        tasks: Sequence[str],
        *,
        size: int,
        settle: Settle,
        room: Callable[[], None],
    ) -> None:
        self.tasks = tuple(tasks)
        self._loop = asyncio.get_running_loop()
        self.slots = Slots(size, self._loop.time())
        self._station = station
        self._runner = runner
        self._settle = settle
        self._room = room
        self._tell = False
        self._seats: list[Seat] = []
        self._queue: SimpleQueue[Lease | None] = SimpleQueue()
        # What threads have put out: a lease and None when it starts, its settlement and seconds when it has
        # ended.
        self._out: deque[tuple[Lease, Settlement | None, float]] = deque()
        self._outstanding = 0
        self._ringing = False
        self._closed = False

    @property
    def buffered(self) -> int:
        """How many leases wait for a thread."""
        return self._queue.qsize()

    def hands(self) -> list[Seat]:
        """The threads that run a job right now."""
        return [seat for seat in self._seats if seat.lease is not None]

    def give(self, leases: Sequence[Lease]) -> None:
        """Run these, in this order."""
        self._tell = self._station.bus.wants(JobStarted)
        self._outstanding += len(leases)
        for lease in leases:
            self._queue.put(lease)
        while len(self._seats) < min(self._outstanding, self.slots.size):
            self._start_thread()

    def take_back(self) -> list[Lease]:
        """Every lease that no thread has taken yet."""
        leases: list[Lease] = []
        with suppress(Empty):
            while True:
                lease = self._queue.get_nowait()
                if lease is not None:
                    leases.append(lease)
        self._outstanding -= len(leases)
        return leases

    def cancel(self, lease: Lease) -> bool:
        """Tell a running job that it should stop; it has to look."""
        for seat in self._seats:
            # Read before the lease and again after it: the thread may be changing over to its next job.
            signals = seat.signals
            if seat.lease is lease and seat.signals is signals:
                signals.cancelled = True
                return True
        return False

    def close(self) -> None:
        """Collect what has ended, then end the idle threads; what the others still put out is dropped.

        Closing twice is fine.
        """
        self._collect()
        self._closed = True
        self.take_back()
        for _ in self._seats:
            self._queue.put(None)
        for seat in self._seats:
            if seat.lease is None:
                seat.thread.join(JOIN_TIMEOUT)

    def _start_thread(self) -> None:
        seat = Seat()
        name = f"shigoto-thread-{len(self._seats) + 1}"
        self._seats.append(seat)
        seat.thread = self._station.spawn(partial(self._work, seat), name)

    def _work(self, seat: Seat) -> None:
        take, run, out = self._queue.get, self._runner.run_in_thread, self._out
        station, clock = self._station, self._station.clock
        while (lease := take()) is not None:
            if self._closed:
                # Taken in the very moment of the close, which gives it back.
                continue
            started = clock()
            if started >= station.may_start_until:
                # Perhaps somebody else's by now. The store knows; it takes back only what is still ours.
                out.append((lease, endings.released(lease), 0.0))
                self._ring()
                continue
            if self._tell:
                out.append((lease, None, 0.0))
                self._ring()
            settlement = run(seat, lease)
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
                tell_started(self._station.bus, self._station.name, lease)
            else:
                self._outstanding -= 1
                self._settle(lease, settlement, seconds)
        if not self._closed:
            self._room()
