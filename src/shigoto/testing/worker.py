"""The worker of a test: it claims, runs and settles when it is told to, where it is told to.

    sync jobs    in the thread that tells it, so that a test's transaction, thread-locals and patches hold for them
    async jobs   on the event loop of whoever awaits, or on a private one

How a job runs, what its end means and when it runs again is the real worker's affair: `worker/runner.py`.

A call that runs jobs is a `RunLoop`: a job that enqueues another one inline does not wait for it, the loop goes on with
it. So a chain of jobs, however long, is a loop and not a tower of calls.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import Context as Variables
from contextvars import ContextVar, copy_context
from functools import partial
from math import inf
from random import Random
from threading import Timer
from typing import Any, Literal, TypeVar

from msgspec import UNSET

from shigoto.app import Shigoto
from shigoto.context import JobServices, Signals, current_context
from shigoto.handle import on_event_loop
from shigoto.model.errors import DeclarationError, ResultTimeout
from shigoto.model.ids import uuid7
from shigoto.model.job import Job, Lease, State
from shigoto.model.time import Millis, to_millis
from shigoto.model.worker import Announcement, Ending, Settlement, SweepOrder, Want
from shigoto.task import Task
from shigoto.testing.runs import Ran, Run, outcome_of, surprising
from shigoto.testing.store import EVERYTHING, OwnStore, ProcessDied
from shigoto.worker import endings
from shigoto.worker.reporting import capturing
from shigoto.worker.runner import Runner
from shigoto.worker.starting import Lifespan

T = TypeVar("T")


class PrivateLoop:
    """One private event loop. Where a loop is running already, it runs in a thread, and the caller waits for it."""

    def __init__(self) -> None:
        # With a factory, the loop is not made the current one: whoever asks for that gets what it had before.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def run(self, main: Coroutine[Any, Any, T], variables: Variables) -> T:
        """Run a coroutine to its end, with these context variables."""
        return _apart(lambda: self._runner.run(main, context=variables))

    def close(self) -> None:
        """Cancel what is left on it, and close it."""
        _apart(self._runner.close)


class PrivateLoops:
    """Private event loops, kept for the whole test: a client that outlives the job which made it needs its loop."""

    def __init__(self) -> None:
        self._idle: list[PrivateLoop] = []

    @contextmanager
    def lend(self) -> Generator[PrivateLoop]:
        """A loop for one caller; the same one next time, unless two want one at once."""
        try:
            loop = self._idle.pop()
        except IndexError:
            loop = PrivateLoop()
        try:
            yield loop
        finally:
            self._idle.append(loop)

    def close(self) -> None:
        """Close them all."""
        while self._idle:
            self._idle.pop().close()


@contextmanager
def no_loop() -> Generator[None]:
    """Hide the running event loop and its task for a while, as a worker's threads have none.

    What looks for one, asyncio.run() and Django's guards among it, would refuse in a test what it allows in production.
    """
    if not on_event_loop():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        if task is not None:
            asyncio.tasks._enter_task(loop, task)


def _apart(work: Callable[[], T]) -> T:
    """Do it here, or in another thread if this one is busy with an event loop."""
    if not on_event_loop():
        return work()
    with ThreadPoolExecutor(1, "shigoto-test") as threads:
        return threads.submit(work).result()


LOOP_GRACE = 2.0  # seconds from one cancel of a run to the next


class JobRun:
    """The job in hand: in the calling thread if it is sync, in a task of its own if it is async.

    Time limits count real seconds. A sync handler is only told of its soft one: nothing can stop what runs in the
    calling thread.
    """

    task: asyncio.Task[Any]

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.signals = Signals()
        self.wanted: Ending | None = None
        self.cancels = 0
        self.worn = False
        self.variables: Variables | None = None
        self.limit_at = inf
        self.settlement: Settlement | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers: list[asyncio.TimerHandle | Timer] = []

    def call(self, runner: Runner, lease: Lease, variables: Variables) -> None:
        """Run a sync job, here and now, as if no event loop ran here."""
        try:
            with no_loop():
                self.settlement = runner.run_in_thread(self, lease, variables)
        finally:
            self._over()

    async def perform(self, runner: Runner, lease: Lease, variables: Variables) -> None:
        """Run an async job. If the caller is cancelled, so is the job, which is then given back."""
        self._loop = asyncio.get_running_loop()
        self.task = asyncio.create_task(
            self._run(runner, lease), name=f"shigoto-job-{lease.number}", context=variables
        )
        try:
            await asyncio.wait([self.task])
        finally:
            while not self.task.done():
                self._stop(Ending.RELEASED)
                await asyncio.wait([self.task], timeout=LOOP_GRACE)
            self._over()
            if not self.task.cancelled():  # by its own handler, which returned all the same
                self.task.result()

    def limit(self, hard: Millis | None, soft: Millis | None) -> None:
        """Do something about a run that takes longer than one of these."""
        if hard is not None:
            self._later(hard / 1000, self._halt)
        if soft is not None and self._loop is None:
            timer = Timer(soft / 1000, self._tell)
            timer.daemon = True
            timer.start()
            self._timers.append(timer)
        elif soft is not None:
            self._later(soft / 1000, self._warn)

    def cancel(self) -> None:
        """Somebody wants the job to stop."""
        if not self.signals.cancelled:
            self.signals.cancelled = True
            self._interrupt(Ending.CANCELLED)

    def lose(self) -> None:
        """Somebody has taken the job away."""
        if not self.signals.lost:
            self.signals.lost = True
            self._interrupt(Ending.RELEASED)

    async def _run(self, runner: Runner, lease: Lease) -> None:
        self.settlement = await runner.run(self, lease)

    def _interrupt(self, wanted: Ending) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop, wanted)

    def _halt(self) -> None:
        self._stop(Ending.ERRORED)
        self._later(LOOP_GRACE, self._halt)

    def _tell(self) -> None:
        self.signals.overdue = True

    def _warn(self) -> None:
        self._tell()
        if self.wanted is None and not self.task.done():
            self.cancels += 1
            self.task.cancel()

    def _stop(self, wanted: Ending) -> None:
        if not self.task.done():
            self.wanted = self.wanted or wanted
            self.cancels += 1
            self.task.cancel()

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        if self._loop is not None:
            self._timers.append(self._loop.call_later(seconds, do))

    def _over(self) -> None:
        for timer in self._timers:
            timer.cancel()


MOST_RUNS = 10_000

# What a handler may raise without stopping the test. Anything else means the test itself: Ctrl-C, pytest.fail().
HANDLERS_OWN = (Exception, SystemExit, asyncio.CancelledError, ProcessDied)


class RunLoop:
    """The runs of one call; what a job has enqueued meanwhile is part of it, and what the app's lifespan has.

    However it ends, nothing is left half done: a run that was begun is settled, the rest is given back. Of `bound` runs
    there were some `before` it; `remedy` is what to do if they are not enough.
    """

    def __init__(
        self,
        worker: "ManualWorker",
        leases: Sequence[Lease],
        more: Callable[[], Sequence[Lease]],
        *,
        bound: int = MOST_RUNS,
        before: int = 0,
        remedy: str = "jobs.run_all() goes on with them.",
        raise_errors: bool = False,
    ) -> None:
        self._worker = worker
        self._waiting = deque(leases)
        self._more = more
        self._bound = bound
        self._before = before
        self._remedy = remedy
        self._raise_errors = raise_errors
        self._current: Lease | None = None
        self._job_run: JobRun | None = None
        self._open = True
        self._stack = ExitStack()
        self.runner: Runner | None = None
        self.runs: list[Run] = []

    def __enter__(self) -> "RunLoop":
        self._stack.enter_context(capturing())
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._settle()
        unstarted = [*self._waiting] if self._current is None else [self._current, *self._waiting]
        if unstarted:
            self._worker.release(unstarted)
        self._stack.close()

    def __iter__(self) -> Iterator[Lease]:
        while True:
            if not self._waiting:
                self._waiting.extend(self._more())
            if not self._waiting:
                return
            if self._before + len(self.runs) >= self._bound:
                raise RuntimeError(self._endless(self._waiting[0].task))
            self._current = self._waiting.popleft()
            yield self._current

    def take(self, lease: Lease) -> tuple[JobRun, Variables]:
        """Begin a run: where it takes place, and the context variables it sees."""
        job_run = self._job_run = self._worker.job_runs[lease.number] = JobRun()
        return job_run, self.variables()

    def variables(self) -> Variables:
        """Context variables for what belongs to this loop: a run, or the app's lifespan."""
        variables = self._worker.variables.copy()
        variables.run(_inside.set, self)
        return variables

    def ended(self) -> None:
        """The run is over. Raises what its handler has raised, if that is wanted, or if it was not meant for us."""
        run = self._settle()
        if run is None or run.error is None:
            return
        if not isinstance(run.error, HANDLERS_OWN):
            raise run.error
        if self._raise_errors and (error := surprising(run)) is not None:
            raise error

    def is_open(self, worker: "ManualWorker") -> bool:
        """Whether it goes on, and will run what its worker is given."""
        return self._open and self._worker is worker

    def _endless(self, task: str) -> str:
        return (
            f"{self._bound} runs, and there is still a job that is due ({task}): do jobs enqueue each other for ever?"
            " A job that puts itself off with run_at=datetime.now() + … does: the host's clock does not move with"
            f" jobs.advance(); delay=… means the same, and does. {self._remedy}"
        )

    def _settle(self) -> Run | None:
        lease, job_run = self._current, self._job_run
        if lease is None or job_run is None:
            return None
        self._current = self._job_run = None
        run = self._worker.settle(lease, job_run)
        if run is not None:
            self.runs.append(run)
        return run


_inside: ContextVar[RunLoop | None] = ContextVar("shigoto_test_round", default=None)


def inside() -> RunLoop | None:
    """The loop that has called the code that calls this."""
    return _inside.get()


CLOSING_SECONDS = 10.0  # seconds for the app's lifespan to end

Mode = Literal["drain", "inline"]


class ManualWorker:
    """One worker of a test. `runs` has what it has run; one that is crashing never comes to tell the store of it.

    Handlers see the context variables as they were before the test began: what a request sets in the code under test
    does not reach a worker either.
    """

    def __init__(
        self, app: Shigoto, store: OwnStore, *, mode: Mode, state: Any, crashing: Variables | None = None
    ) -> None:
        self._app = app
        self._store = store
        self._mode = mode
        self._state = state
        self._crashing = crashing is not None
        self._loops = PrivateLoops()
        self._random = Random(0)  # so that a test sees the same delays every time
        self._held: dict[int, Lease] = {}
        self._errors: dict[int, BaseException] = {}
        self._made: tuple[dict[str, Task[..., Any]], Any, Runner] | None = None
        self.id = uuid7()
        self.variables = copy_context() if crashing is None else crashing
        self.job_runs: dict[int, JobRun] = {}
        self.runs: list[Run] = []
        store.ours.add(self.id)

    def claim(
        self, limit: int, *, tasks: Sequence[str] | None = None, queue: str | None = None
    ) -> list[Lease]:
        """Claim what is due: of all tasks of the app, or of these only."""
        store, known = self._store, self.announce()
        store.promote_due()
        want = Want(
            tasks=known if tasks is None else tuple(tasks),
            queues=None if queue is None else (queue,),
            limit=limit,
            thorough=True,
        )
        leases = store.quietly(store.engine.claim(self.id, [want]))
        self._held.update((lease.number, lease) for lease in leases)
        return leases

    def announce(self) -> tuple[str, ...]:
        """Make itself known to the store, with the tasks it can run now."""
        known = tuple(self.tasks())
        me = Announcement(
            id=self.id, name="test", tasks=known, queues=None, slots=1, version="test", isolates=True
        )
        self._store.quietly(self._store.engine.announce(me))
        return known

    def tidy(self) -> None:
        """Do for the store what any worker does every few seconds."""
        self.announce()  # or nobody would be known to have these tasks
        self._store.tidy(SweepOrder(unknown_after=self._app.unknown_after))

    def release(self, leases: Sequence[Lease]) -> None:
        """Give back what has not been run."""
        settlements = [endings.released(lease, ran=False) for lease in leases]
        self._store.quietly(self._store.engine.settle(self.id, settlements))
        for lease in leases:
            self._held.pop(lease.number, None)

    def play(self, run_loop: RunLoop) -> Ran:
        """Run the jobs of a loop, in the calling thread."""
        with run_loop, self._loops.lend() as loop, ExitStack() as stack:
            for lease in run_loop:
                if run_loop.runner is None:
                    run_loop.runner = self._runner(self._entered(run_loop, loop, stack))
                job_run, variables = run_loop.take(lease)
                if self._is_async(lease):
                    loop.run(job_run.perform(run_loop.runner, lease, variables), variables)
                else:
                    job_run.call(run_loop.runner, lease, variables)
                run_loop.ended()
        return Ran(run_loop.runs)

    async def aplay(self, run_loop: RunLoop) -> Ran:
        """Run the jobs of a loop, on the running event loop."""
        if not on_event_loop():
            raise DeclarationError("Jobs run on asyncio's event loop, and this one is none, or another's.")
        lifespan: Lifespan | None = None
        with run_loop:
            try:
                for lease in run_loop:
                    if run_loop.runner is None:
                        lifespan = self._lifespan()
                        run_loop.runner = self._runner(await _aentered(lifespan, run_loop))
                    job_run, variables = run_loop.take(lease)
                    if self._is_async(lease):
                        await job_run.perform(run_loop.runner, lease, variables)
                    else:
                        job_run.call(run_loop.runner, lease, variables)
                    run_loop.ended()
            finally:
                if lifespan is not None:
                    await lifespan.exit(CLOSING_SECONDS)
        return Ran(run_loop.runs)

    def settle(self, lease: Lease, job_run: JobRun) -> Run | None:
        """Tell the store how a run ended; None if the job is not even there any more."""
        error = self._errors.pop(lease.number, None)
        self.job_runs.pop(lease.number, None)
        self._held.pop(lease.number, None)
        settlement = job_run.settlement or endings.released(lease)
        if self._crashing:
            job = self._store.read(lease.id)
            run = None if job is None else Run(job, "lost", error)
        else:
            verdict, job = self._store.settled(self.id, settlement, lease.id)
            run = None if job is None else Run(job, outcome_of(settlement, verdict, job), error)
        if run is not None:
            self.runs.append(run)
        return run

    def close(self) -> None:
        """Close the private event loops."""
        self._loops.close()

    def tasks(self) -> dict[str, Task[..., Any]]:
        """The tasks it can run, by name and alias."""
        self._app.load()
        tasks = self._app.tasks.values()
        return {name: task for task in tasks for name in (task.name, *task.aliases)}

    # What the store asks for.

    def claim_ready(self) -> list[Lease]:
        """Everything that is ready, if jobs run inline; what a job makes ready is left to the loop that runs it."""
        run_loop = inside()
        if self._mode == "drain" or (run_loop is not None and run_loop.is_open(self)):
            return []
        return self._ready()

    def run_ready(self, leases: Sequence[Lease]) -> None:
        """Run these, and whatever they enqueue."""
        self.play(self._inline(leases))

    async def arun_ready(self, leases: Sequence[Lease]) -> None:
        """Run these, and whatever they enqueue, on the running event loop."""
        await self.aplay(self._inline(leases))

    def obey(self) -> None:
        """Let running jobs know that somebody wants them to stop, or has taken them away."""
        if not self.job_runs:
            return
        held = [(lease.number, lease.token) for lease in list(self._held.values())]
        orders = self._store.quietly(self._store.engine.beat(self.id, held))
        for number, _ in orders.cancels:
            if (job_run := self.job_runs.get(number)) is not None:
                job_run.cancel()
        for number, _ in orders.lost:
            if (job_run := self.job_runs.get(number)) is not None:
                job_run.lose()

    def awaited(self, job: Job) -> list[Lease]:
        """A job that is waited for inside of another one runs now; one that nobody will run is an error."""
        if job.state is State.PROCESSING:
            running = current_context.get(None)
            if running is None or running.job_id != job.id:
                return []
            raise ResultTimeout(f"Job #{job.number} ({job.task}) waits for its own result.")
        if job.expires_at is not None and to_millis(job.expires_at) < self._store.clock.now:
            self.tidy()
            return []
        if self._mode == "inline" and (leases := self._ready()):
            return leases
        raise ResultTimeout(
            f"Job #{job.number} ({job.task}) {_so_far(job)}, and to wait for it is in vain: {self._remedy(job)}"
        )

    def _inline(self, leases: Sequence[Lease]) -> RunLoop:
        more = partial(self._store.between_commits, self._ready)
        return RunLoop(self, leases, more, bound=max(MOST_RUNS, 2 * len(leases)))

    def _remedy(self, job: Job) -> str:
        later = to_millis(job.run_at) - self._store.clock.now
        if later > 0:
            again = "runs again" if job.failures else "is due"
            return f"it {again} in {later / 1000:g} s. Call jobs.advance() first."
        if job.task not in self.tasks():
            return "the app has no such task."
        if self._mode == "inline":
            return "its queue is paused."
        return "nothing runs here before jobs.run_all(), unless you say app.test(run='inline')."

    def _ready(self) -> list[Lease]:
        return self.claim(EVERYTHING)

    def _is_async(self, lease: Lease) -> bool:
        task = self._app.resolve(lease.task)
        return task is not None and task.is_async

    def _lifespan(self) -> Lifespan | None:
        if self._state is not UNSET or not self._app.has_lifespan:
            return None
        return Lifespan(self._app.enter_lifespan, lambda: None)

    def _entered(self, run_loop: RunLoop, loop: PrivateLoop, stack: ExitStack) -> Any:
        lifespan = self._lifespan()
        if lifespan is None:
            return None
        variables = run_loop.variables()  # what it enqueues is left to the loop, or to the next one
        stack.callback(lambda: loop.run(lifespan.exit(CLOSING_SECONDS), variables))
        return loop.run(lifespan.enter(), variables)

    def _runner(self, state: Any) -> Runner:
        """One for as many rounds as possible; but one that is made in a task is tied to that task."""
        tasks, state = self.tasks(), state if self._state is UNSET else self._state
        made, here = self._made, on_event_loop()
        if made is not None and not here and made[0] == tasks and made[1] is state:
            return made[2]
        self._app.check()
        services = JobServices(self._store, self.id, state)
        runner = Runner(tasks, self._random, services=services, failed=self._note_error)
        if not here:
            self._made = tasks, state, runner
        return runner

    def _note_error(self, lease: Lease, error: BaseException) -> None:
        self._errors[lease.number] = error


async def _aentered(lifespan: Lifespan | None, run_loop: RunLoop) -> Any:
    """Enter a lifespan in a task of its own, for the sake of the context variables; it is ended in that of its own."""
    if lifespan is None:
        return None
    return await asyncio.create_task(lifespan.enter(), name="shigoto-enter", context=run_loop.variables())


def _so_far(job: Job) -> str:
    if not job.failures:
        return "has not run yet"
    times = "once" if job.failures == 1 else f"{job.failures} times"
    return f"has failed {times} ({job.error})" if job.error else f"has failed {times}"
