"""The parts of one worker, put together, and which pool runs the jobs of a task.

                 doorbell, poll                 slot free
    listener ───────────────────► claimer ◄────────────────────────── pools ──► settler
                 promoter ───────────▲    ──── leases ────►     (runner)                     │
                     ▲                                                                       │ due again in …
                     └───────────────────────────────────────────────────────────────────────┘

The keeper, the reporter and the sweeper work beside them.

Pools ask for the jobs of each task, and for the jobs that must run alone:

    loop_pool      async tasks               ┐ all but the jobs that must run alone, unless nobody can do that for
    thread_pool    sync tasks                ┘ these tasks
    process_pool   tasks that always need a process, and of every other task the jobs that must run alone

A child is a new interpreter, which imports the app anew. What it cannot find there, it cannot run: a function of the
main program or of a notebook, one that was made inside another, an app that no module has. Tasks that always need a
child are refused when the worker starts. For the others it only means that a job which must run alone waits for a
worker that can do that.

If for ten minutes no live worker could, such jobs run beside others again: a suspect that waits for ever would be lost
work. (With a store that only this process can open nobody else ever could, so they run at once.)

The phases in which it stops:

    phase 0  at once   no new claims; a claim in flight and what lies in the buffers is given back
    phase 1  20/28     handlers see `ctx.stopping` and may end by themselves; beats and settlements go on
    phase 2   5/28     async handlers and those in child processes are cancelled; those that give in are released
    phase 3   3/28     child processes are killed; flush; then, as the very last commit, release what could not be
                       stopped, with a delay that lets this process end first; then leave

The parts are those of `stop_timeout`, 28 s unless told otherwise; each ends as soon as nothing is held any
more. A second request leads straight to phase 3. A fenced worker has nothing to give back: it cancels, drops every
result, and is gone.

Never do two runs of a job overlap. An async handler that gave in may have left a thread at work behind, by
`asyncio.to_thread`, which nobody can stop or even tell from an idle one. So if there are threads here that are not the
worker's own, what it has cut short is released last, too.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from shigoto.app import Shigoto
from shigoto.context import JobServices
from shigoto.model.errors import DeclarationError, OptionInvalid, StoreError, Unsupported
from shigoto.model.job import Lease
from shigoto.model.time import Millis
from shigoto.model.worker import Orders
from shigoto.observe.events import WorkerLeaving
from shigoto.observe.log import log_setup
from shigoto.observe.tracing import Tracing
from shigoto.schedule.declare import Declared
from shigoto.task import Task
from shigoto.worker.child_process import StartChild
from shigoto.worker.claimer import Claimer, Listener
from shigoto.worker.keeper import Beats, ExclusiveJobs, Keeper
from shigoto.worker.loop_pool import LoopPool
from shigoto.worker.maintenance import Promoter, Sweeper, queue_age_watch_of
from shigoto.worker.pool import Pool, WorkKind, running
from shigoto.worker.process import NOT_IMPORTABLE, Source
from shigoto.worker.process_pool import ProcessPool
from shigoto.worker.reporting import ProgressReporter
from shigoto.worker.runner import Runner
from shigoto.worker.settler import Settler
from shigoto.worker.starting import Lifespan
from shigoto.worker.state import Repeated, WorkerState
from shigoto.worker.stopping import LEAST_PATIENCE, Stopped, StopSwitch
from shigoto.worker.thread_pool import ThreadPool
from shigoto.worker.ticker import Ticker

if TYPE_CHECKING:
    from shigoto.notify.notifier import Notifier

SOFT, CANCEL, RELEASE = 20 / 28, 25 / 28, 3 / 28  # of the stop time-out
RETRY_PAUSE = 0.2  # seconds
LAST_DELAY: Millis = 2_000
ASK_EVERY = 60.0  # seconds between questions whether another worker can run jobs alone
ALONE_FOR = 600.0  # seconds without one, until jobs that should run alone run beside others
# A supervised worker has a child ready while it has work, although no task asks for one: when another runner dies, its
# jobs are run alone, and starting a child for them takes 0.3 s on an idle machine and 1 s on a busy one. But not in its
# first seconds: half a second of processor time is a sixth of a drain of 100 000 jobs on two cores. And an idle worker
# need not be so quick, and leaves the memory to others.
READY_CHILD_AFTER, READY_CHILD_FOR = 10.0, 60.0


class Isolation(Struct, frozen=True):
    """What a worker can run in child processes: jobs of the tasks `able`, from `source`; without a source none."""

    source: Source | None
    able: frozenset[str]


def isolation_of(app: Shigoto, source: Source | None, *, children: int, virtual: bool) -> Isolation:
    """Return what can run in child processes. Raises DeclarationError if a task that must cannot."""
    source = source or Source.of(app)
    obstacle = _obstacle(app, source, children=children, virtual=virtual)
    able: set[str] = set()
    refused: list[str] = []
    for task in app.tasks.values():
        reason = obstacle or _obstacle_of(task)
        if reason is None:
            able.update((task.name, *task.aliases))
        elif task.executor == "process":
            because = "" if task.options.executor == "process" else ", because it has a timeout"
            refused.append(f"task {task.name!r} needs a process of its own{because}, but {reason}.")
    if refused:
        raise DeclarationError("\n".join(refused))
    if source is None or not able:
        return Isolation(None, frozenset())
    return Isolation(source.with_modules_of(app).settled(app), frozenset(able))


def _obstacle(app: Shigoto, source: Source | None, *, children: int, virtual: bool) -> str | None:
    if not app.engine.capabilities.shared:
        return (
            f"the {app.engine.capabilities.name} engine exists in one process only;"
            " use a store that several can open, such as sqlite:///jobs.db"
        )
    if not _has_address(app):
        return "the path of the store is no text that could be told to another process; rename its folder"
    if os.name != "posix" or not sys.executable:
        return "this system cannot start one; run the worker on Linux or macOS"
    if virtual:
        return "a worker on virtual time has none; let it beat from a thread"
    if not children:
        return "the worker was given children=0; leave that out"
    if source is None:
        return (
            "its app is not found in any module that can be imported; make it a global variable of a module,"
            " or tell the worker where it is: Worker(app, source=Source(reference='module:attr'))"
        )
    return None


def _has_address(app: Shigoto) -> bool:
    try:
        return bool(app.engine.address)
    except (OptionInvalid, Unsupported):
        return False


def _obstacle_of(task: Task[..., Any]) -> str | None:
    module, name = task.fn.__module__, task.fn.__qualname__
    if module in NOT_IMPORTABLE:
        return f"its function {name!r} is in the main program; move it to a module that can be imported"
    if "<locals>" in name:
        return f"its function {name!r} is made inside another; move it to the top level of its module"
    return None


class IsolationWatch(Repeated):
    """Lets jobs that should run alone run in ordinary pools, if no live worker can do better. `look` is called then.

    The `kinds` are those of tasks that this worker cannot isolate, in a store that others can open.
    """

    def __init__(self, state: WorkerState, kinds: Sequence[WorkKind], look: Callable[[], None]) -> None:
        super().__init__(state, "isolation")
        self._kinds = kinds
        self._look = look
        self._since = self._time()

    async def _round(self) -> float:
        engine = self._state.engine
        workers = await engine.arun(engine.workers())
        isolated = {
            task
            for worker in workers
            if worker.isolates and worker.fenced_at is None
            for task in worker.tasks
        }
        if all(isolated.issuperset(kind.tasks) for kind in self._kinds):
            self._since = self._time()
        alone = None if self._time() - self._since >= ALONE_FOR else False
        for kind in self._kinds:
            if kind.alone is not alone:
                kind.alone = alone
                self._look()
        return ASK_EVERY


def routes_of(
    tasks: Mapping[str, Task[..., Any]],
    isolation: Isolation,
    loop_pool: Pool,
    thread_pool: Pool,
    process_pool: Pool | None,
    *,
    shared: bool,
) -> tuple[list[WorkKind], list[WorkKind]]:
    """Return the kinds of work that the pools ask for, and of them those that another worker might isolate, but this
    one cannot. `shared` says that other processes can open the store."""
    able, unable = isolation.able, set(tasks) - isolation.able
    kinds: list[WorkKind] = []
    doubtful: list[WorkKind] = []
    for pool, executor in ((loop_pool, "loop"), (thread_pool, "thread")):
        names = [name for name, task in tasks.items() if task.executor == executor]
        if here := [name for name in names if name in able]:
            kinds.append(WorkKind(pool, here, alone=False))
        if here := [name for name in names if name in unable]:
            kinds.append(WorkKind(pool, here, alone=False if shared else None))
            doubtful.append(kinds[-1])
    if process_pool is not None:
        always = [name for name, task in tasks.items() if task.executor == "process"]
        others = [name for name in able if name not in always]
        kinds += [WorkKind(process_pool, always, alone=None)] if always else []
        kinds += [WorkKind(process_pool, others, alone=True)] if others else []
    return kinds, doubtful if shared else []


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """How a worker was asked to work, checked."""

    queues: tuple[str, ...] | None
    concurrency: int
    threads: int
    children: int
    drain: bool
    lease: float
    poll: float
    stop_timeout: float
    beats: Beats
    sweeps: bool
    ticks: bool
    supervised: bool
    max_jobs: int | None
    unknown_after: Millis | None


Seeker = Listener | Promoter | Repeated  # a part that looks for work


class WorkerParts:
    """Makes the parts, knows who tells whom, and starts them. For the running event loop."""

    def __init__(
        self,
        state: WorkerState,
        tasks: Mapping[str, Task[..., Any]],
        declared: Mapping[str, Declared],
        settings: WorkerSettings,
        switch: StopSwitch,
        *,
        isolation: Isolation,
        lifespan: Lifespan,
        lifespan_state: Any,
        tracing: Tracing | None = None,
        notifier: "Notifier | None" = None,
    ) -> None:
        self.state = state
        self.switch = switch
        self.lifespan = lifespan
        self.settler = Settler(state, self._flushed)
        self.keeper = Keeper(state, settings.beats, self._obey, back=self._look, stop=switch.throw)
        self.claimer = Claimer(
            state,
            self.settler,
            queues=settings.queues,
            drained=(lambda: switch.throw("drained")) if settings.drain else None,
        )
        self.promoter = Promoter(state, self.claimer.look)
        self._max_jobs = settings.max_jobs
        runner = Runner(
            tasks, state.random, services=JobServices(state.engine, state.id, lifespan_state), tracing=tracing
        )
        settle, room = self.settler.add, self.claimer.room
        self.loop_pool = LoopPool(state, runner, size=settings.concurrency, settle=settle, room=room)
        self.thread_pool = ThreadPool(state, runner, size=settings.threads, settle=settle, room=room)
        self.process_pool: ProcessPool | None = None
        if isolation.source is not None:
            begin = StartChild(source=isolation.source, worker=state.id, log=log_setup())
            size, put = settings.children, self.settler.put
            self.process_pool = ProcessPool(state, runner, begin, size=size, settle=put, room=room)
        capabilities = state.engine.capabilities
        self.kinds, unable = routes_of(
            tasks, isolation, self.loop_pool, self.thread_pool, self.process_pool, shared=capabilities.shared
        )
        self.pools: list[Pool] = list(dict.fromkeys(kind.pool for kind in self.kinds))
        self._reporter = ProgressReporter(state, self.pools)
        # If the store does not leave repairs to workers (a server), it also fires schedules and makes jobs ready.
        repairs = capabilities.repairs
        self.ticker = Ticker(state, declared, tracing=tracing) if settings.ticks and repairs else None
        self._seeking = self._make_seekers(settings, notifier, unable, repairs=repairs)
        self._exclusive_jobs = ExclusiveJobs(state, self.pools, tasks)
        self._needs_child = any(task.executor == "process" for task in tasks.values())
        self._time = asyncio.get_running_loop().time
        self._ready_child_from = self._time() + READY_CHILD_AFTER if settings.supervised else inf
        self._group: asyncio.TaskGroup
        self._seekers: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []
        self._claiming: asyncio.Task[None] | None = None

    def _make_seekers(
        self,
        settings: WorkerSettings,
        notifier: "Notifier | None",
        unable: Sequence[WorkKind],
        *,
        repairs: bool,
    ) -> dict[str, Seeker | None]:
        state = self.state
        sweeps = settings.sweeps and repairs
        return {
            "listener": Listener(state, self._look, self._rung),
            "promoter": self.promoter if repairs else None,
            "ticker": self.ticker,
            "sweeper": Sweeper(state, lambda: settings.unknown_after) if sweeps else None,
            "queue-age-watch": queue_age_watch_of(state, notifier),
            "isolation-watch": IsolationWatch(state, unable, self.claimer.look) if unable else None,
        }

    def start(self, group: asyncio.TaskGroup) -> None:
        """Start every part as a task of the group; a part that fails ends them all."""
        self._group = group
        self.aside("settler", self.settler.run())
        self.aside("keeper", self.keeper.run())
        self.aside("reporter", self._reporter.run())
        if self._exclusive_jobs.tasks:
            self.aside("exclusive-jobs", self._exclusive_jobs.run())
        if self.process_pool is not None and self._needs_child:
            self.process_pool.keep_child_ready(inf)
        self._claiming = self._begin("claimer", self.claimer.run(self.kinds))
        self._claiming.add_done_callback(lambda _: self.switch.changed.ring())
        self._seekers = [
            self._begin(name, part.run()) for name, part in self._seeking.items() if part is not None
        ]

    def aside(self, part: str, work: Coroutine[Any, Any, None]) -> None:
        self._others.append(self._begin(part, work))

    def _begin(self, part: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._group.create_task(work, name=f"shigoto-{part}-{self.state.name}")

    async def wind_down(self, timeout: float) -> None:
        """Go through phases 0 to 2, as soon as nothing is held or on a hurry to their end; then end every part."""
        switch = self.switch
        self.claimer.close()
        for task in self._seekers:
            task.cancel()
        for pool in self.pools:
            self.settler.release(pool.take_back())
        # A worker that is recycled has run enough; what still runs is not disturbed until it is asked to stop.
        while switch.reason == "recycled" and not (switch.asked or switch.hurried or self._idle()):
            await switch.changed.wait(None)
        began_at = self._time()
        await self._until_idle(began_at + timeout * SOFT)
        if not switch.hurried:
            self.settler.be_careful(foreign_threads_alive)
            self.loop_pool.stop_all()
            if self.process_pool is not None:
                self.process_pool.stop_all()
            await self._until_idle(began_at + timeout * CANCEL)
        for task in (*self._seekers, *self._others, *([self._claiming] if self._claiming else [])):
            task.cancel()

    async def leave(self, timeout: float) -> Stopped:
        """Go through phase 3, when every part has ended."""
        patience = max(LEAST_PATIENCE, timeout * RELEASE)
        end, reason = self._time() + patience, self.switch.reason or "stopped"
        self.settler.be_careful(foreign_threads_alive)
        try:
            closing = [self.loop_pool.close(patience / 3)]
            closing += [self.process_pool.close(patience / 3)] if self.process_pool is not None else []
            await asyncio.gather(*closing)
            await self.lifespan.exit(patience / 3)
            if reason != "fenced":
                # If the store does not answer in time, what is still held comes back when the lease ends.
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(end):
                        await self._give_back_the_rest()
        finally:
            self.thread_pool.close()
            self.settler.drop()
        unreleased = 0 if reason == "fenced" else len(self.state.held)
        return Stopped(reason=reason, unreleased=unreleased, running=self._running())

    async def _until_idle(self, deadline: float) -> None:
        while not self._idle() and not self.switch.hurried and (left := deadline - self._time()) > 0:
            for pool in self.pools:
                pool.tell_stopping()
            await self.switch.changed.wait(left)

    async def _give_back_the_rest(self) -> None:
        """Settle what has ended, release what has not, and leave; again until the store answers."""
        state, settler, told = self.state, self.settler, False
        while True:
            try:
                await settler.flush()
                self.thread_pool.close()
                await settler.flush()
                if not told:
                    state.bus.publish(WorkerLeaving(state.name, self._running() + settler.held_back))
                    told = True
                settler.release_last(list(state.held.values()), LAST_DELAY)
                await settler.flush()
                await state.engine.arun(state.engine.leave(state.id))
            except StoreError:
                await asyncio.sleep(RETRY_PAUSE)
            else:
                return

    def _idle(self) -> bool:
        """Return True if no claim is in flight and nothing is held that could still end by itself."""
        held = len(self.state.held) - self.settler.held_back
        return held <= 0 and (self._claiming is None or self._claiming.done())

    def _running(self) -> int:
        return sum(running(pool) for pool in self.pools)

    def _flushed(self, delays: list[Millis]) -> None:
        self.claimer.room()
        if self.process_pool is not None and self._time() >= self._ready_child_from:
            self.process_pool.keep_child_ready(READY_CHILD_FOR)
        self.switch.changed.ring()
        if 0 in delays:
            self.claimer.look()
        if later := [delay for delay in delays if delay]:
            self.promoter.expect(min(later))
        if self._max_jobs is not None and self.settler.ended >= self._max_jobs and self.switch.reason is None:
            self.switch.throw("recycled")

    def _look(self) -> None:
        # In one moment, so that the store is asked once for both.
        self.claimer.look()
        self.promoter.look()

    def _rung(self) -> None:
        if self.state.held:
            self.keeper.nudge()

    def _obey(self, orders: Orders) -> None:
        if orders.fenced:
            self.settler.drop(lost=True)
            for lease in list(self.state.held.values()):
                self._lose(lease)
            self.switch.fence()
            return
        self.claimer.room()
        for lease in self._held(orders.cancels):
            if not any(pool.cancel(lease) for pool in self.pools):
                # It lies in a buffer, or is on its way to the store: ask again soon.
                self.keeper.nudge()
        for lease in self._held(orders.lost):
            if not self._lose(lease):
                self.keeper.nudge()

    def _held(self, tokens: Iterable[tuple[int, int]]) -> list[Lease]:
        found = [(self.state.held.get(number), token) for number, token in tokens]
        return [lease for lease, token in found if lease is not None and lease.token == token]

    def _lose(self, lease: Lease) -> bool:
        return any(pool.lose(lease) for pool in self.pools)


def foreign_threads_alive() -> bool:
    """Return True if there are threads here that are not the worker's own."""
    ours = (threading.main_thread(), threading.current_thread())
    return any(
        thread not in ours and not thread.name.startswith("shigoto-") for thread in threading.enumerate()
    )
