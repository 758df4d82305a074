"""The work of a supervisor at the store: beats, sweeps, deaths and counts.

Where the store is, only the app knows; so the supervisor learns it from its runners. After a reload that may be another
one.

When a runner process has died, what it has left behind is ended, and the store is told who was in it. What ran in it
has crashed and is suspected: it runs again alone. What only lay in its buffers is given back and counts as nothing. If
the supervisor has killed it, nothing has crashed. Its child processes die with it, but what handlers have started there
does not, and nobody says when they are dead. Their jobs must not run again before.
"""

import asyncio
import atexit
import logging
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from random import Random
from uuid import UUID

from msgspec import structs
from msgspec.structs import asdict, replace

from shigoto.engine.open import open_engine
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreError, StoreUnavailable
from shigoto.model.ids import uuid7
from shigoto.model.job import Job
from shigoto.model.states import CRASH_DELAY
from shigoto.model.text import fit
from shigoto.model.time import Millis
from shigoto.model.worker import Death
from shigoto.observe.bus import Bus
from shigoto.observe.events import JobsRescued, RunnerPaused
from shigoto.observe.sentry import SentryReporter
from shigoto.worker.health import Probe, StoreSigns
from shigoto.worker.maintenance import Sweeper
from shigoto.worker.process import WorkerFlag, how_it_ended
from shigoto.worker.state import Trouble, WorkerState, beat_deadline, lease_clock, longest_pause
from shigoto.worker.supervisor import host
from shigoto.worker.supervisor.runner_process import RunnerHello, RunnerProcess

# Of a lease, before the first sweep: to load the driver of a store takes 0.2 s of a processor, just when the first jobs
# of the runners begin.
LATER = 1 / 10
FLUSHED_WITHIN = 0.8  # seconds for the last failures to reach Sentry
# Seconds before a store is first asked whether it is there: the runner has just spoken with it.
LATEST_PROBE = 3.0
logger = logging.getLogger("shigoto.worker")
MOST_TRACE = 16_000  # bytes
FENCED = "the store has fenced it"
PAUSED = "it was stopped by a signal for nearly as long as its lease"
# Of the lease since its last beat: when other workers may have its jobs, none of its processes may be at work.
GIVEN_UP = 0.9
FENCED_WITHIN = 2.0  # seconds to end by itself
REPRIEVE = 1 / 6  # of the lease: others who slept as well need twice as long for two looks at it
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds


class SupervisorStore:
    """The supervisor's worker states, one for each store that its runners have named. Its tasks are the group's.

    If it `probes`, it asks each store again and again whether it is there.
    """

    def __init__(
        self, group: asyncio.TaskGroup, name: str, bus: Bus, *, stats_every: float, probes: bool = False
    ) -> None:
        self._group = group
        self._name = name
        self._bus = bus
        self._stats_every = stats_every
        self._probes: dict[str, Probe] | None = {} if probes else None
        self._states: dict[str, WorkerState] = {}
        self._newest: WorkerState | None = None
        self._sweepers: dict[str, Sweeper] = {}
        self._unknown_after: dict[str, Millis | None] = {}
        self._beside: list[asyncio.Task[None]] = []
        self._death_reports: set[asyncio.Task[None]] = set()
        self._reporter: SentryReporter | None = None

    def state(self, hello: RunnerHello) -> WorkerState:
        """Return the state for the store of this runner, which is swept from now on."""
        state = self._states.get(hello.url)
        if state is None:
            state = self._states[hello.url] = self._open(hello)
        return state

    def serve(self, hello: RunnerHello) -> WorkerState:
        """Do the same for a runner at work: from now on the store is swept as its app wants it."""
        self._unknown_after[hello.url] = hello.unknown_after
        if hello.sentry is not None and self._reporter is None:
            self._reporter = SentryReporter(hello.sentry, self._jobs)
            self._reporter.watch(self._bus)
        self._newest = self.state(hello)
        return self._newest

    @property
    def engine(self) -> Engine:
        """The store of the runner that came to work last. Raises StoreUnavailable if none has."""
        if self._newest is None:
            raise StoreUnavailable("No runner process has said yet where its jobs are.")
        return self._newest.engine

    def signs(self, stores: Collection[str]) -> list[StoreSigns]:
        return [
            replace(probe.signs(), overdue=self._sweepers[url].overdue if url in self._sweepers else 0.0)
            for url, probe in (self._probes or {}).items()
            if url in stores
        ]

    def report_dead(self, hello: RunnerHello, deaths: Sequence[Death], groups: Collection[int]) -> None:
        """Tell the store that this runner's process has ended, however long the store takes to listen; but first end
        these process groups, which it has left behind."""
        death_report = self._begin("death-report", lambda: self._report_dead(hello, deaths, groups))
        self._death_reports.add(death_report)
        death_report.add_done_callback(self._death_reports.discard)

    async def close(self, patience: float) -> bool:
        """End everything; the death reports get so many seconds. Return True if all were made."""
        left = set(self._death_reports)
        if left:
            _, left = await asyncio.wait(left, timeout=patience)
        for task in (*self._beside, *left):
            task.cancel()
        return not left

    def leave(self) -> None:
        """Close every store that was opened. This waits for what has begun there."""
        if self._reporter is not None:
            self._reporter.flush(FLUSHED_WITHIN)
            atexit.unregister(self._reporter.flush)
        for state in self._states.values():
            state.close()

    def _jobs(self, ids: Sequence[UUID]) -> list[Job | None]:
        found: dict[UUID, Job] = {}
        for state in list(self._states.values()):
            engine = state.engine
            found |= {job.id: job for job in engine.run(engine.get(list(ids))) if job is not None}
        return [found.get(id) for id in ids]

    def _open(self, hello: RunnerHello) -> WorkerState:
        clock = lease_clock()
        state = WorkerState(
            id=uuid7(),
            name=self._name,
            opening=lambda: open_engine(hello.url),
            bus=self._bus,
            random=Random(),
            lease=hello.lease,
            poll=hello.lease,
            clock=clock,
            announced_at=clock(),
        )
        self._beside += [
            self._begin("sweeper", lambda: self._sweep(hello.url, state)),
            self._begin("statistics", lambda: tell_counts(lambda: state.engine, self._stats_every)),
        ]
        if self._probes is not None:
            probe = self._probes[hello.url] = Probe(lambda: state.engine, clock)
            self._beside.append(self._begin("probe", lambda: self._ask(probe, state)))
        return state

    async def _ask(self, probe: Probe, state: WorkerState) -> None:
        await asyncio.sleep(min(LATER * state.lease, LATEST_PROBE))
        await probe.run()

    async def _sweep(self, url: str, state: WorkerState) -> None:
        await asyncio.sleep(LATER * state.lease)
        sweeper = self._sweepers[url] = Sweeper(state, lambda: self._unknown_after.get(url))
        await sweeper.run()

    def _begin(self, part: str, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        return self._group.create_task(persist(part, work), name=f"shigoto-{part}")

    async def _report_dead(
        self, hello: RunnerHello, deaths: Sequence[Death], groups: Collection[int]
    ) -> None:
        await end_groups(groups)
        state = self.state(hello)
        engine, trouble = state.engine, Trouble(state, "supervisor")
        while True:
            try:
                rescued = await engine.arun(engine.report_dead(hello.worker, deaths))
            except StoreError as error:
                await asyncio.sleep(trouble.met(error))
                continue
            trouble.over()
            if rescued:
                self._bus.publish(JobsRescued(self._name, tuple(rescued)))
            return


def deaths_in(
    pid: int, code: int, *, inside: Collection[int], in_children: Collection[int], trace: str
) -> tuple[Death, ...]:
    """Return the deaths of the jobs `inside` the process, and of those in child processes, which died with it."""
    how, count = how_it_ended(code), len(inside)
    error = f"The runner process {pid} {how} with {count} job{'' if count == 1 else 's'} inside."
    beside = f"The process of this job was ended together with the runner process {pid}, which {how}."
    # Whoever has most likely killed it waits, lest it kill the next one at once: the one inside, or else the one in a
    # child process. The latter was alone there already, so there will be no better proof.
    delay = CRASH_DELAY if count == 1 else None
    only = not inside and len(in_children) == 1
    return (
        *(
            Death(number=number, error=error, traceback=fit(trace, MOST_TRACE) or None, delay=delay)
            for number in inside
        ),
        *(
            Death(number=number, error=beside, delay=CRASH_DELAY if only else None, alone=only)
            for number in in_children
        ),
    )


async def end_groups(groups: Collection[int]) -> None:
    """Kill these process groups, and wait until they are empty, for 1 s at most."""
    # 0 would mean the supervisor's own group, and so would its number.
    left = {group for group in groups if group > 1 and group != os.getpgrp()}

    def kill() -> set[int]:
        for group in list(left):
            try:
                os.killpg(group, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                # It is empty (some systems say the latter), and another one may have its number soon.
                left.discard(group)
        return left

    if await host.until_gone(kill):
        logger.warning("Processes of a dead runner cannot be ended: groups %s", sorted(left))


async def beat_for(runner: RunnerProcess, hello: RunnerHello, state: WorkerState) -> tuple[str, float] | None:
    """Beat for a runner, from outside of it, until the store does not count it any more, or it is leaving by itself.
    Return why it must end, and in how many seconds.

    The runner beats, too: so it learns of cancels, and gives back what it does not know of. But one long call into
    native code can keep its threads from running at all, for longer than its lease. Its supervisor knows that it lives,
    and says so. A runner that is paused by a signal does nothing for its jobs, and nobody beats for it; after its
    lease others have them. But its child processes go on, so it is killed before, and they die with it. If the
    supervisor was paused itself, or the machine was, the runner may be about to wake up, too, and gets a moment for
    that. (Where the system does not say who is paused, it beats for such a runner, which keeps its jobs.)
    """
    pause = _until_next(hello, state)
    sent_at, paused = state.clock(), False
    trouble = Trouble(state, "supervisor", longest=longest_pause(hello.lease))
    while True:
        due = state.clock() + pause
        await asyncio.sleep(pause)
        pause = _until_next(hello, state)
        if host.is_paused(runner.pid):
            now, reprieve = state.clock(), REPRIEVE * hello.lease
            left = reprieve if now > due + reprieve else sent_at + GIVEN_UP * hello.lease - now
            if left <= 0:
                return PAUSED, 0.0
            if not paused:
                paused = True
                state.bus.publish(RunnerPaused(hello.name, runner.pid))
            pause = min(pause, left)
            continue
        paused, now = False, state.clock()
        try:
            beat = state.engine.beat(hello.worker, None)
            orders = await state.ask("beat", structs.replace(beat, deadline=beat_deadline(hello.lease)))
        except StoreError as error:
            pause = trouble.met(error)
            continue
        trouble.over()
        sent_at = now
        if orders.fenced:
            # Nor does the store know one that has just left; it has said so before.
            return None if runner.running_jobs.has(WorkerFlag.LEAVING) else (FENCED, FENCED_WITHIN)


def _until_next(hello: RunnerHello, state: WorkerState) -> float:
    return hello.lease / 3 * state.random.uniform(0.9, 1.1)


async def tell_counts(opened: Callable[[], Engine], every: float) -> None:
    """Log the counts again and again; never, if `every` is 0."""
    while every > 0:
        await asyncio.sleep(every)
        try:
            engine = opened()
            queues = await engine.arun(engine.stats())
        except StoreError as error:
            logger.warning("The statistics are left out this time: %s", error)
            continue
        counts = Counter[str]()
        for queue in queues.values():
            counts.update(asdict(queue))
        logger.info(
            "Job Stats - Pending: %d, Processing: %d, Completed: %d, Failed: %d",
            *(counts[state] for state in ("pending", "processing", "completed", "failed")),
            extra={"shigoto": dict(counts)},
        )


async def persist(part: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do this to its end. If it breaks, say so, and begin it anew after a pause, each time a longer one: what a
    supervisor does, it does for as long as it lives, and one mistake in it must not end all of it."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await work()
        except Exception:
            logger.exception(
                "The supervisor's %s met an error that nobody had foreseen, and begins anew in %g s",
                part,
                pause,
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
