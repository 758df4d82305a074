"""The pool of the event loop: strands, each a coroutine that runs one job after the other.

A strand takes a lease from the buffer, runs it to its end, and takes the next. A handler that never suspends
thus costs no task switch, and one strand alone runs thousands of them. Strands are made when there is more to do
than strands at work, and then park for ever after.

    give ──► buffer ──► strand: take, run, settle, take, run, settle … ──► park ──► woken by the next give
                          └─ woken strands wake others while the buffer is not empty, a few at a time

If handlers do suspend, all strands fill within a few turns of the loop; if they do not, the few strands that were
woken for nothing park again. All strands together take about a millisecond of each turn of the loop, so that
claims and settlements travel meanwhile, and so that the store's thread gets the interpreter lock. A strand that
a handler left worn ends, and another takes its place.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from shigoto.context import Signals
from shigoto.model.clock import Millis
from shigoto.model.job import Lease
from shigoto.model.outcome import Ending
from shigoto.observe.events import JobStarted
from shigoto.worker import endings
from shigoto.worker.limits import Limits, first_of
from shigoto.worker.pool import Settle, tell_started
from shigoto.worker.runner import Runner
from shigoto.worker.slots import Slots
from shigoto.worker.station import Station

SLICE = 0.001  # seconds that strands may run before the loop turns
MOST_WAKING = 8

logger = logging.getLogger("shigoto.worker")


class Strand:
    """One place on the event loop, which is `place` on the slate.

    `wanted` is how the run shall end once a cancel of ours has got through, `cancels` how many we sent.
    """

    __slots__ = (
        "_hard_at",
        "_limits",
        "_softly",
        "_time",
        "cancels",
        "lease",
        "limit_at",
        "place",
        "signals",
        "task",
        "wanted",
        "worn",
    )

    task: asyncio.Task[None]

    def __init__(self, limits: Limits, time: Callable[[], float], place: int) -> None:
        self._limits = limits
        self._time = time
        self.place = place
        self.lease: Lease | None = None
        self.signals = Signals()
        self.wanted: Ending | None = None
        self.cancels = 0
        self.worn = False
        self.limit_at = inf
        self._hard_at = inf
        self._softly = False

    def limit(self, hard: Millis | None, soft: Millis | None) -> None:
        """Cancel the run if it takes longer than one of these."""
        self.limit_at, self._hard_at, self._softly = first_of(self._time(), hard, soft)
        if self.limit_at < inf:
            self._limits.watch(self.limit_at)

    def time_out(self) -> None:
        """The run took too long; if it gives in, it has failed. At the soft limit it may go on."""
        if not self._softly:
            self.stop(Ending.ERRORED)
            return
        self._softly = False
        self.limit_at = self._hard_at
        self.signals.overdue = True
        if self.wanted is None:
            self.cancels += 1
            self.task.cancel()

    def stop(self, wanted: Ending) -> None:
        """Cancel the run; if it gives in, it ends as `wanted`, or as an earlier cancel wanted it."""
        self.wanted = self.wanted or wanted
        self.cancels += 1
        self.task.cancel()


class Strands:
    """Runs jobs of async tasks, at most `size` at once."""

    resting = False

    def __init__(
        self,
        station: Station,
        runner: Runner,
        *,
        size: int,
        settle: Settle,
        room: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.slots = Slots(size, self._loop.time())
        self._station = station
        self._runner = runner
        self._settle = settle
        self._room = room
        self._limits = Limits(self.hands)
        self._tell = False
        self._places = list(station.take_places(size))
        self._buffer: deque[Lease] = deque()
        self._strands: set[Strand] = set()
        self._parked: list[asyncio.Future[None]] = []
        self._waking = 0
        self._turn_open = False
        self._slice_ends = 0.0
        self._closed = False

    @property
    def buffered(self) -> int:
        """How many leases wait for a strand."""
        return len(self._buffer)

    def hands(self) -> list[Strand]:
        """The strands that run a job right now."""
        return [strand for strand in self._strands if strand.lease is not None]

    def give(self, leases: Sequence[Lease]) -> None:
        """Run these, in this order."""
        self._tell = self._station.bus.wants(JobStarted)
        self._buffer.extend(leases)
        self._wake()

    def take_back(self) -> list[Lease]:
        """Every lease that no strand has taken yet."""
        leases = list(self._buffer)
        self._buffer.clear()
        return leases

    def cancel(self, lease: Lease) -> bool:
        """Cancel a running job, once: a handler that cleans up must not be disturbed again."""
        for strand in self.hands():
            if strand.lease is lease:
                if not strand.signals.cancelled:
                    strand.signals.cancelled = True
                    strand.stop(Ending.CANCELLED)
                return True
        return False

    def lose(self, lease: Lease) -> bool:
        """Cancel a running job that somebody has taken away, once."""
        for strand in self.hands():
            if strand.lease is lease:
                if not strand.signals.lost:
                    strand.signals.lost = True
                    strand.stop(Ending.RELEASED)
                return True
        return False

    def cut(self, lease: Lease) -> None:
        """Cancel a running job; if it gives in, it is released."""
        for strand in self.hands():
            if strand.lease is lease and strand.wanted is None:
                strand.stop(Ending.RELEASED)

    def tell_stopping(self) -> None:
        """Let running jobs know that the worker is about to stop."""
        for strand in self.hands():
            strand.signals.stopping = True

    def stop_all(self) -> None:
        """Cancel every running job; what gives in is released."""
        for strand in self.hands():
            strand.stop(Ending.RELEASED)

    async def close(self, patience: float) -> None:
        """End the strands. A handler that will not be cancelled is left behind after `patience` seconds."""
        self._closed = True
        self._limits.close()
        for strand in self._strands:
            strand.worn = True
            strand.stop(Ending.RELEASED)
        if tasks := [strand.task for strand in self._strands]:
            await asyncio.wait(tasks, timeout=patience)

    async def _work(self, strand: Strand) -> None:
        station, buffer, run, settle = self._station, self._buffer, self._runner.run, self._settle
        cells, place = station.slate.cells, strand.place
        # Not the loop's time: uvloop's stands still during a turn, and a whole pause may fit into one.
        time = station.clock
        self._waking -= 1
        ended = time()
        while not strand.worn:
            if not buffer:
                await self._park()
                ended = time()
                continue
            lease = buffer.popleft()
            if ended >= station.may_start_until:
                # Perhaps somebody else's by now. The store knows; it takes back only what is still ours.
                settle(lease, endings.released(lease), 0.0)
                continue
            left = len(buffer)
            if left == self.slots.low_water:
                self._room()
            if left and self._waking < MOST_WAKING:
                self._wake()
            if self._tell:
                tell_started(station.bus, station.name, lease)
            # One reading of the clock per job: a strand has nothing else to do between two of them.
            started = ended
            cells[place] = lease.number
            settlement = await run(strand, lease)
            cells[place] = 0
            ended = time()
            settle(lease, settlement, ended - started)
            if ended > self._slice_ends and self._slice_is_over(ended):
                await asyncio.sleep(0)
                ended = time()

    def _slice_is_over(self, now: float) -> bool:
        """Whether strands have run for long enough in this turn of the loop; in a new turn, begin a slice."""
        if self._turn_open:
            return True
        self._turn_open = True
        self._slice_ends = now + SLICE
        self._loop.call_soon(self._close_turn)
        return False

    def _close_turn(self) -> None:
        self._turn_open = False

    async def _park(self) -> None:
        self._room()
        woken = self._loop.create_future()
        self._parked.append(woken)
        try:
            await woken
        finally:
            if woken.cancelled():
                self._parked.remove(woken)
            else:
                self._waking -= 1

    def _wake(self) -> None:
        """Wake strands for what is buffered, or make new ones; a few now, and those will wake others."""
        while self._waking < MOST_WAKING and self._waking < len(self._buffer):
            if self._parked:
                self._parked.pop().set_result(None)
            elif len(self._strands) < self.slots.size and not self._closed:
                self._make_strand()
            else:
                return
            self._waking += 1

    def _make_strand(self) -> None:
        strand = Strand(self._limits, self._loop.time, self._places.pop())
        strand.task = self._loop.create_task(
            self._work(strand), name=f"shigoto-strand-{len(self._strands) + 1}"
        )
        strand.task.add_done_callback(lambda _: self._ended(strand))
        self._strands.add(strand)

    def _ended(self, strand: Strand) -> None:
        """Replace a strand that is gone. If it went down with a job in hand, that job has failed."""
        self._strands.discard(strand)
        self._station.slate.cells[strand.place] = 0
        self._places.append(strand.place)
        error = asyncio.CancelledError() if strand.task.cancelled() else strand.task.exception()
        if strand.lease is not None and error is not None:
            self._settle(strand.lease, self._runner.broke(strand.lease, error), 0.0)
        elif isinstance(error, Exception):
            logger.error(
                "A strand of worker %s failed; another takes its place", self._station.name, exc_info=error
            )
        if not self._closed:
            self._wake()
            self._room()
