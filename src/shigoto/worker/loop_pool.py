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

A run is ended by a cancel, and a handler may let that pass. So it is cancelled again and again, and people are told.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextvars import Context as Variables
from contextvars import copy_context
from math import inf

from shigoto.context import Signals
from shigoto.model.job import Lease
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Settlement
from shigoto.observe.events import JobStarted, JobStuck
from shigoto.worker import endings
from shigoto.worker.endings import stack_of_task
from shigoto.worker.pool import Pool, Settle, first_of, named, slot_of, tell_started
from shigoto.worker.runner import HERE, Runner
from shigoto.worker.state import WorkerState

SLICE = 0.001  # seconds that strands may run before the loop turns
MOST_WAKING = 8
GRACE = 2.0  # seconds from one cancel of a run to the next
CLEANUP = 10.0  # seconds in which a handler whose job was cancelled or taken away cleans up, undisturbed
WHY = {Ending.ERRORED: "limit", Ending.CANCELLED: "cancel", Ending.RELEASED: "loss"}
OURS = (*HERE, __file__)

logger = logging.getLogger("shigoto.worker")


class Strand:
    """One place on the event loop, which has `index` among the running jobs.

    `wanted` is how the run shall end once a cancel of ours has got through, `cancels` how many we sent. If the run of
    `limited` is still there at `late_at`, by the worker's clock, it has passed its hard limit unhindered.
    """

    task: asyncio.Task[None]

    def __init__(self, pool: "LoopPool", index: int) -> None:
        self._pool = pool
        self.index = index
        self.lease: Lease | None = None
        self.signals = Signals()
        self.wanted: Ending | None = None
        self.cancels = 0
        self.worn = False
        self.variables: Variables | None = None
        self.limit_at = inf
        self.limited: Lease | None = None
        self.late_at = inf
        self._hard_at = inf
        self._softly = False
        self._kept_stopping: Lease | None = None
        self._told: Lease | None = None

    def limit(self, hard: Millis | None, soft: Millis | None) -> None:
        self.limit_at, self._hard_at, self._softly = first_of(self._pool.time(), hard, soft)
        if self.limit_at < inf:
            self._pool.limits.watch(self.limit_at)
        self.limited = self.lease
        self.late_at = inf if hard is None else self._pool.clock() + hard / 1000

    def time_out(self) -> None:
        """Act on a run that took too long, or was told to end and did not. At the soft limit it may go on."""
        if self._softly:
            self._warn()
            return
        if self._kept_stopping is self.lease and self._told is not self.lease:
            self._told = self.lease
            self._pool.stuck(self)
        self.late_at = inf
        self.keep_stopping(Ending.ERRORED)

    def keep_stopping(self, wanted: Ending, *, grace: float = GRACE) -> None:
        """Stop the run, and again after each grace, until it gives in."""
        self.stop(wanted)
        self._kept_stopping = self.lease
        self._softly = False
        self.limit_at = self._pool.time() + grace
        self._pool.limits.watch(self.limit_at)

    def stop(self, wanted: Ending) -> None:
        """Cancel the run; if it gives in, it ends as `wanted`, or as an earlier cancel wanted it."""
        self.wanted = self.wanted or wanted
        self.cancels += 1
        self.task.cancel()

    def _warn(self) -> None:
        self._softly = False
        self.limit_at = self._hard_at
        self.signals.overdue = True
        if self.wanted is None:
            self.cancels += 1
            self.task.cancel()


class LoopPool(Pool):
    """Runs jobs of async tasks, at most `size` at once."""

    def __init__(
        self, state: WorkerState, runner: Runner, *, size: int, settle: Settle, room: Callable[[], None]
    ) -> None:
        super().__init__(state, size=size, settle=settle, room=room)
        self.time, self.clock = self._loop.time, state.clock
        self._runner = runner
        self._variables = copy_context()
        self._indexes = list(state.take_indexes(size))
        # In order, for the sake of simulations that must repeat exactly.
        self._strands: dict[Strand, None] = {}
        self._parked: list[asyncio.Future[None]] = []
        self._waking = 0
        self._turn_open = False
        self._slice_ends = 0.0

    def busy_slots(self) -> list[Strand]:
        return [strand for strand in self._strands if strand.lease is not None]

    def give(self, leases: Sequence[Lease]) -> None:
        self._tell = self._state.bus.wants(JobStarted)
        self._buffer.extend(leases)
        self._wake()

    def cancel(self, lease: Lease) -> bool:
        strand = slot_of(lease, self._strands)
        if strand is not None and not strand.signals.cancelled:
            strand.signals.cancelled = True
            strand.keep_stopping(Ending.CANCELLED, grace=CLEANUP)
        return strand is not None

    def lose(self, lease: Lease) -> bool:
        strand = slot_of(lease, self._strands)
        if strand is not None and not strand.signals.lost:
            strand.signals.lost = True
            strand.keep_stopping(Ending.RELEASED, grace=CLEANUP)
        return strand is not None

    def cut(self, lease: Lease) -> None:
        strand = slot_of(lease, self._strands)
        if strand is not None and strand.wanted is None:
            strand.keep_stopping(Ending.RELEASED)

    def stop_all(self) -> None:
        """Cancel every running job; what gives in is released."""
        for strand in self.busy_slots():
            strand.stop(Ending.RELEASED)

    async def close(self, patience: float) -> None:
        """End the strands. A handler that will not be cancelled is left behind after `patience` seconds."""
        self._closed = True
        self.limits.close()
        for strand in self._strands:
            strand.worn = True
            strand.stop(Ending.RELEASED)
        if tasks := [strand.task for strand in self._strands]:
            await asyncio.wait(tasks, timeout=patience)

    def stuck(self, strand: Strand) -> None:
        """Publish that the run of a strand has ignored a cancel."""
        lease, wanted = strand.lease, strand.wanted
        if lease is not None and wanted is not None:
            limit = self._runner.limits(lease)[0] if wanted is Ending.ERRORED else None
            stack = stack_of_task(strand.task, skip=OURS)
            job = named(self._state.name, lease)
            self._state.bus.publish(JobStuck(*job, limit, stack, WHY[wanted]))

    async def _work(self, strand: Strand) -> None:
        state, buffer, run, settle = self._state, self._buffer, self._runner.run, self._settle
        numbers, index = state.running_jobs.numbers, strand.index
        # Not the loop's time: uvloop's stands still during a turn, and a whole pause may fit into one.
        time = state.clock
        self._waking -= 1
        ended = time()
        while not strand.worn:
            if not buffer:
                await self._park()
                ended = time()
                continue
            lease = buffer.popleft()
            if ended >= state.may_start_until:
                # Perhaps somebody else's by now. The store knows; it takes back only what is still ours.
                settle(lease, endings.released(lease, ran=False), 0.0)
                continue
            left = len(buffer)
            if left == self.slots.low_water:
                self._room()
            if left and self._waking < MOST_WAKING:
                self._wake()
            if self._tell:
                tell_started(state.bus, state.name, lease)
            # One reading of the clock per job: a strand has nothing else to do between two of them.
            started = ended
            numbers[index] = lease.number
            settlement = await run(strand, lease)
            numbers[index] = 0
            ended = time()
            settle(lease, settlement, ended - started)
            if ended > strand.late_at:
                self._was_late(strand, lease, settlement, ended - started)
            if ended > self._slice_ends and self._slice_is_over(ended):
                await asyncio.sleep(0)
                ended = time()

    def _was_late(self, strand: Strand, lease: Lease, settlement: Settlement, seconds: float) -> None:
        strand.late_at = inf
        if strand.limited is lease and settlement.ending is Ending.COMPLETED:
            logger.warning(
                "Job %d (%s) is completed, but it took %.3g s, longer than its limit of %g s: it kept the event loop"
                " busy, so nobody could stop it",
                lease.number,
                lease.task,
                seconds,
                (self._runner.limits(lease)[0] or 0) / 1000,
            )

    def _slice_is_over(self, now: float) -> bool:
        """Return True if strands have run for long enough in this turn of the loop; in a new turn, begin a slice."""
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
        """Wake strands for buffered leases, or make new ones; a few now, which then wake others."""
        while self._waking < MOST_WAKING and self._waking < len(self._buffer):
            if self._parked:
                self._parked.pop().set_result(None)
            elif len(self._strands) < self.slots.size and not self._closed:
                self._make_strand()
            else:
                return
            self._waking += 1

    def _make_strand(self) -> None:
        strand = Strand(self, self._indexes.pop())
        # Not with the context variables of a strand, which may have made this one.
        strand.task = self._loop.create_task(
            self._work(strand),
            name=f"shigoto-strand-{len(self._strands) + 1}",
            context=self._variables.copy(),
        )
        strand.task.add_done_callback(lambda _: self._ended(strand))
        self._strands[strand] = None

    def _ended(self, strand: Strand) -> None:
        """Replace a strand that is gone. If it had a job, that job has failed."""
        self._strands.pop(strand, None)
        self._state.running_jobs.numbers[strand.index] = 0
        self._indexes.append(strand.index)
        error = asyncio.CancelledError() if strand.task.cancelled() else strand.task.exception()
        if strand.lease is not None and error is not None:
            self._settle(strand.lease, self._runner.broke(strand.lease, error), 0.0)
        elif isinstance(error, Exception):
            logger.error(
                "A strand of worker %s failed; another takes its place", self._state.name, exc_info=error
            )
        if not self._closed:
            self._wake()
            self._room()
