"""The pool of child processes: one job each at a time, and each can be killed without harm to any other.

Here run sync tasks with a time limit, tasks declared with `executor="process"`, and every job that must run alone,
because it may have killed a process before. Children are started when there is work for them, and kept for a while: a
ready one saves the next job 0.3 s, and costs 20 MB.

    slot    empty ──► child starts ──► ready ──► runs a job ──► ready ──► …
                          │                          ├──► died under it: the job has crashed, alone
                          └──► unfit: rest a while   └──► halted: gives in within the grace, or is killed

How a run is halted: the child raises JobCancelled in a sync handler, or cancels an async one. If that has not helped
after a grace, it writes down where it is, and is killed. A child in which an exception was raised from outside is not
used again: it may have struck between any two steps. It is killed even if the run gave in, with all that the handler
has started, and only then is the run settled: the next run of the job must not meet what this one has left behind.

A worker whose event loop is blocked by a bad handler halts nobody. So a child ends by itself, a little later than its
worker would have killed it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from shigoto.context import JobLog, Signals
from shigoto.model.job import Lease, LogLine
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Settlement
from shigoto.observe.events import ChildFailed, JobStarted
from shigoto.worker import child_process, endings
from shigoto.worker.child_process import ChildProcess, Halt, StartChild, Tell, Warn
from shigoto.worker.pool import Pool, Settle, first_of, slot_of, tell_started
from shigoto.worker.runner import Runner, too_long
from shigoto.worker.state import WorkerState
from shigoto.worker.stopping import Wakeup

KEPT_FOR = 60.0  # seconds from the last use
MOST_LINES = 20  # of what a run has written last, for the report of its crash
GRACE = 2.0  # seconds from the word to end a run to the end of its process
SLACK = 3.0  # seconds after that, until a child that nobody has killed ends by itself
DUMP = 0.1  # seconds for a child to write down where it is
LOOK = 0.5  # seconds between looks at children whose sockets others hold open
BEGINS_WITHIN = 60.0  # seconds for a child to load the app and to enter its lifespan
LEAVES_WITHIN = 5.0  # seconds for a child that is not needed any more
DIES_WITHIN = 1.0  # seconds from a kill to the end
FIRST_REST, LONGEST_REST = 1.0, 60.0  # seconds without a try, after a child could not begin


class IdleChildren:
    """The two instants of one pool: until when to have a child ready, and until when to keep those that are there."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._ready_until = 0.0
        self._kept_until = 0.0

    @property
    def wanted(self) -> bool:
        return self._time() < self._ready_until

    @property
    def over(self) -> bool:
        """Return True if children that have nothing to do may go."""
        return self._time() >= max(self._ready_until, self._kept_until)

    def want(self, seconds: float) -> None:
        self._ready_until = max(self._ready_until, self._time() + seconds)

    def use(self) -> None:
        self._kept_until = self._time() + KEPT_FOR


class ProcessSlot:
    """One slot of the pool, which has `index` among the running jobs. A job that is not `sent` waits for its
    child, and one that has not `begun` has not been run by it.

    `signals` mirrors what the child has: what the handler says is written here when it arrives. `settlement` is the end
    of a run that is not told yet, because its process must be gone first.
    """

    def __init__(self, pool: "ProcessPool", index: int) -> None:
        self._pool = pool
        self.index = index
        self.child: ChildProcess | None = None
        self.lease: Lease | None = None
        self.signals = Signals()
        self.wanted: Ending | None = None
        self.settlement: Settlement | None = None
        self.sent = False
        self.begun = False
        self.started = 0.0
        self.lines: deque[LogLine] = deque(maxlen=MOST_LINES)
        self.killing: asyncio.TimerHandle | None = None
        self.limit_at = inf
        self._hard_at = inf
        self._softly = False

    @property
    def readiness(self) -> int:
        return 0 if self.child is None else 1 + self.child.ready

    def take(self, lease: Lease) -> None:
        self.lease, self.signals, self.wanted, self.settlement = lease, Signals(), None, None
        self.sent = self.begun = False
        self.lines.clear()

    def empty(self) -> None:
        self.lease, self.wanted, self.settlement = None, None, None
        self.sent, self.limit_at = False, inf
        if self.killing is not None:
            self.killing.cancel()
            self.killing = None

    def keep(self, settlement: Settlement) -> None:
        """Keep the end of the run until its process is gone."""
        self.settlement, self.limit_at = settlement, inf

    def is_over_limit(self) -> bool:
        """Return True if the run that is here, or was until now, has passed its hard limit."""
        return self._pool.time() >= self._hard_at

    def is_about(self, said: child_process.RunNews) -> bool:
        lease = self.lease
        return self.sent and lease is not None and (said.number, said.token) == (lease.number, lease.token)

    def hear(self, said: child_process.RunNews | Settlement) -> None:
        """Note what the handler has said, while it ran or with its end."""
        signals = self.signals
        if said.progress is not None:
            signals.progress, signals.progress_text = said.progress, said.progress_text or ""
            signals.progress_changed = True
        if said.log is not None:
            signals.lines = signals.lines or JobLog()
            for line in said.log.lines:
                signals.lines.add(line.at, line.level, line.text)
            self.lines.extend(said.log.lines)

    def limit(self, hard: Millis | None, soft: Millis | None) -> None:
        """End the run if it takes longer than the hard limit, and say so at the soft one."""
        self.limit_at, self._hard_at, self._softly = first_of(self._pool.time(), hard, soft)
        if self.limit_at < inf:
            self._pool.limits.watch(self.limit_at)

    def time_out(self) -> None:
        if self._softly:
            self._softly = False
            self.limit_at = self._hard_at
            self._pool.warn(self)
        else:
            self._pool.halt(self, Ending.ERRORED)


class ProcessPool(Pool):
    """Runs jobs in child processes, at most `size` at once."""

    def __init__(
        self,
        state: WorkerState,
        runner: Runner,
        begin: StartChild,
        *,
        size: int,
        settle: Settle,
        room: Callable[[], None],
    ) -> None:
        super().__init__(state, size=size, settle=settle, room=room)
        self.time = self._loop.time
        self._runner = runner
        self._begin = begin
        self._process_slots = [ProcessSlot(self, index) for index in state.take_indexes(size)]
        self._leaving: set[ChildProcess] = set()
        self._changed = Wakeup()
        self._look_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._told: str | None = None
        self._idle_children = IdleChildren(self.time)

    @property
    def resting(self) -> bool:
        return self._rest_timer is not None

    def busy_slots(self) -> list[ProcessSlot]:
        return [slot for slot in self._process_slots if slot.lease is not None]

    def keep_child_ready(self, seconds: float = 0.0) -> None:
        """Have a child ready for so long, or for as long as was asked before."""
        self._idle_children.want(seconds)
        may_start = self._idle_children.wanted and not self._closed and not self.resting
        if may_start and all(slot.child is None for slot in self._process_slots):
            self._start(self._process_slots[0])

    def give(self, leases: Sequence[Lease]) -> None:
        self._tell = self._state.bus.wants(JobStarted)
        self._idle_children.use()
        self._buffer.extend(leases)
        if self.resting or self._closed:
            self._release(self.take_back())
        else:
            self._feed()

    def take_back(self) -> list[Lease]:
        leases = super().take_back()
        for slot in self._process_slots:
            if slot.lease is not None and not slot.sent:
                leases.append(slot.lease)
                slot.empty()
        return leases

    def cancel(self, lease: Lease) -> bool:
        slot = slot_of(lease, self._process_slots)
        if slot is None:
            return False
        if not slot.sent:
            self._put_out(slot, endings.cancelled(lease))
        elif not slot.signals.cancelled:
            slot.signals.cancelled = True
            self._tell_child(slot, cancelled=True)
            self.halt(slot, Ending.CANCELLED)
        return True

    def lose(self, lease: Lease) -> bool:
        slot = slot_of(lease, self._process_slots)
        if slot is not None:
            slot.signals.lost = True
            self._cut(slot)
        return slot is not None

    def cut(self, lease: Lease) -> None:
        slot = slot_of(lease, self._process_slots)
        if slot is not None:
            self._cut(slot)

    def tell_stopping(self) -> None:
        """Tell running jobs that the worker is about to stop, and end idle children."""
        self._closed = True
        for slot in self._process_slots:
            if slot.sent and not slot.signals.stopping:
                slot.signals.stopping = True
                self._tell_child(slot, stopping=True)
            elif slot.lease is None and slot.child is not None:
                self._retire(slot)

    def stop_all(self) -> None:
        """Halt every running job; what gives in is released, and the rest is killed by `close`."""
        for slot in self.busy_slots():
            self.halt(slot, Ending.RELEASED, kill=False)

    async def close(self, patience: float) -> None:
        """Kill every running job, and give the idle children `patience` seconds to end by themselves."""
        self.tell_stopping()
        for slot in self.busy_slots():
            self._cut(slot)
        deadline = self._loop.time() + patience
        await self._until_gone(deadline)
        for child in self._leaving:
            child.kill()
        await self._until_gone(max(deadline, self._loop.time() + DIES_WITHIN))
        self.limits.close()
        for timer in (self._look_timer, self._rest_timer, *(slot.killing for slot in self._process_slots)):
            if timer is not None:
                timer.cancel()

    def warn(self, slot: ProcessSlot) -> None:
        """Tell the child that its run has reached its soft limit."""
        lease = slot.lease
        if lease is not None and slot.child is not None and slot.wanted is None:
            slot.signals.overdue = True
            text = too_long("soft limit", self._runner.limits(lease)[1])
            slot.child.send(Warn(number=lease.number, token=lease.token, text=text))

    def halt(self, slot: ProcessSlot, wanted: Ending, *, kill: bool = True) -> None:
        """End the run, as `wanted` or as an earlier order wanted it; kill its process after a grace, if `kill`."""
        lease, child = slot.lease, slot.child
        if lease is None or child is None or not slot.sent:
            return
        if slot.wanted is None:
            slot.wanted = wanted
            child.send(Halt(number=lease.number, token=lease.token, wanted=wanted))
        if kill and slot.killing is None:
            slot.killing = self._loop.call_later(GRACE, self._dump, slot, child)

    def _dump(self, slot: ProcessSlot, child: ChildProcess) -> None:
        child.dump()
        slot.killing = self._loop.call_later(DUMP, child.kill)

    def _cut(self, slot: ProcessSlot) -> None:
        if slot.lease is not None and not slot.sent:
            self._put_out(slot, endings.released(slot.lease, ran=False))
        elif slot.child is not None:
            slot.wanted = slot.wanted or Ending.RELEASED
            slot.child.kill()

    def _tell_child(self, slot: ProcessSlot, *, cancelled: bool = False, stopping: bool = False) -> None:
        lease, child = slot.lease, slot.child
        if lease is not None and child is not None:
            child.send(Tell(number=lease.number, token=lease.token, cancelled=cancelled, stopping=stopping))

    def _feed(self) -> None:
        """Give buffered leases to free slots, first to those whose child is ready."""
        while self._buffer:
            free = [slot for slot in self._process_slots if slot.lease is None]
            if not free:
                return
            slot = max(free, key=lambda slot: slot.readiness)
            slot.take(self._buffer.popleft())
            if slot.child is None:
                self._start(slot)
            elif slot.child.ready:
                self._send(slot)

    def _start(self, slot: ProcessSlot) -> None:
        try:
            child = slot.child = ChildProcess(self._begin, self._heard, self._ended)
        except OSError as error:
            self._failed(f"it cannot be started: {error}.")
            return
        self._loop.call_later(BEGINS_WITHIN, self._expect_ready, child)
        if self._look_timer is None:
            self._look_timer = self._loop.call_later(LOOK, self._look)

    def _expect_ready(self, child: ChildProcess) -> None:
        if not child.ready:
            child.error = f"it was not ready within {BEGINS_WITHIN:g} s."
            child.kill()

    def _look(self) -> None:
        """Notice the death of children whose sockets are held open by others."""
        children = [*self._leaving, *(slot.child for slot in self._process_slots if slot.child is not None)]
        self._look_timer = self._loop.call_later(LOOK, self._look) if children else None
        for child in children:
            child.look()
        for slot in self._process_slots if self._idle_children.over else ():
            if slot.lease is None:
                self._retire(slot)

    def _send(self, slot: ProcessSlot) -> None:
        state, lease, child = self._state, slot.lease, slot.child
        if lease is None or child is None:
            return
        slot.started = state.clock()
        if slot.started >= state.may_start_until:
            # Perhaps somebody else's by now. The store knows; it takes back only what is still ours.
            self._put_out(slot, endings.released(lease, ran=False))
            return
        if self._tell:
            tell_started(state.bus, state.name, lease)
        state.running_jobs.pids[slot.index] = child.pid
        state.running_jobs.numbers[slot.index] = -lease.number
        slot.sent = True
        hard, soft = self._runner.limits(lease)
        slot.limit(hard, soft)
        child.send(child_process.RunJob(lease, None if hard is None else hard / 1000 + GRACE + SLACK))

    def _heard(self, child: ChildProcess, news: child_process.ChildNews) -> None:
        slot = next((slot for slot in self._process_slots if slot.child is child), None)
        if isinstance(news, child_process.ChildUnfit):
            child.error = news.error
        elif isinstance(news, child_process.ChildReady):
            child.ready = True
        if slot is None:
            return
        if isinstance(news, child_process.ChildReady) and slot.lease is not None:
            self._send(slot)
        elif isinstance(news, child_process.RunBegan):
            slot.begun = True
            child.jobs += 1
        elif isinstance(news, child_process.RunNews) and slot.is_about(news):
            slot.hear(news)
        elif isinstance(news, child_process.RunEnded) and slot.sent and slot.settlement is None:
            self._finished(slot, child, news.settlement)

    def _finished(self, slot: ProcessSlot, child: ChildProcess, settlement: Settlement) -> None:
        self._failures, self._told = 0, None
        slot.hear(settlement)
        if slot.wanted is not None or slot.signals.overdue:
            slot.keep(settlement)
            child.kill()
            return
        self._put_out(slot, endings.with_signals(settlement, slot.signals))
        if self._closed:
            self._retire(slot)
        self._go_on()

    def _put_out(self, slot: ProcessSlot, settlement: Settlement) -> None:
        lease, seconds = slot.lease, self._state.clock() - slot.started if slot.sent else 0.0
        self._state.running_jobs.numbers[slot.index] = 0
        slot.empty()
        self._idle_children.use()
        if lease is not None:
            self._settle(lease, settlement, seconds)

    def _ended(self, child: ChildProcess) -> None:
        slot = next((slot for slot in self._process_slots if slot.child is child), None)
        self._leaving.discard(child)
        if slot is not None:
            slot.child = None
            killed = slot.wanted is not None
            if slot.sent and slot.lease is not None:
                self._put_out(slot, self._end_of_dead_run(slot, slot.lease, child))
            if not child.ready and not killed:
                self._failed(child.error or f"it {child.how()}")
        child.close()
        self._changed.ring()
        self._go_on()

    def _end_of_dead_run(self, slot: ProcessSlot, lease: Lease, child: ChildProcess) -> Settlement:
        """Return the end of a run whose process is gone: its own, a wanted one, none before it began, or a crash."""
        wanted = slot.wanted
        if wanted is None and slot.is_over_limit() and child.ran_out_of_time():
            wanted = Ending.ERRORED
        if slot.settlement is not None:
            settlement = slot.settlement
        elif wanted is not None:
            trace = endings.crash_report("", child.crash_report(), slot.lines)
            settlement = self._runner.cut_short(wanted, lease, trace)
        elif slot.begun:
            settlement = endings.crashed(
                lease, f"The process of this job {child.how()}", child.crash_report(), slot.lines
            )
        else:
            return endings.released(lease, ran=False)
        return endings.with_signals(settlement, slot.signals)

    def _failed(self, error: str) -> None:
        """Rest after a child that could not begin. The job that waited for it is not to blame."""
        self._release(self.take_back())
        if self._closed or self.resting:
            return
        pause = min(LONGEST_REST, FIRST_REST * 2.0 ** min(self._failures, 30))
        pause *= self._state.random.uniform(0.8, 1)
        self._failures += 1
        self._rest_timer = self._loop.call_later(pause, self._rested)
        if error != self._told:
            self._told = error
            self._state.bus.publish(ChildFailed(self._state.name, error, pause))

    def _rested(self) -> None:
        self._rest_timer = None
        self._go_on()

    def _go_on(self) -> None:
        if not self._closed:
            if not self.resting:
                self._feed()
                self.keep_child_ready()
            self._room()

    def _retire(self, slot: ProcessSlot) -> None:
        """End a child that is not needed. One that has not begun has nothing to put away, and is killed."""
        child, slot.child = slot.child, None
        if child is not None:
            self._leaving.add(child)
            child.send(child_process.Leave())
            self._loop.call_later(LEAVES_WITHIN if child.ready else 0, child.kill)

    async def _until_gone(self, deadline: float) -> None:
        while self._leaving or any(slot.child is not None for slot in self._process_slots):
            if not await self._changed.wait(max(0.0, deadline - self._loop.time())):
                return
