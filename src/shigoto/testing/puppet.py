"""The worker of a test: it claims, runs and settles when it is told to, where it is told to.

    sync jobs    in the thread that tells it, so that a test's transaction, thread-locals and patches hold for them
    async jobs   on the event loop of whoever awaits, or on a private one

How a job runs, what its end means and when it runs again is the real worker's affair: `worker/runner.py`.

A call that runs jobs is a `Round`: a job that enqueues another one inline does not wait for it, the round goes on with
it. So a chain of jobs, however long, is a loop and not a tower of calls.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from random import Random
from typing import Any, Literal

from msgspec import UNSET

from shigoto.app import Shigoto
from shigoto.context import Desk, current_context
from shigoto.handle import on_event_loop
from shigoto.model.errors import DeclarationError, ResultTimeout
from shigoto.model.ids import uuid7
from shigoto.model.job import Job, Lease, State
from shigoto.model.time import to_millis
from shigoto.model.worker import Announcement, SweepOrder, Want
from shigoto.task import Task
from shigoto.testing.hand import Hand
from shigoto.testing.private_loop import PrivateLoop, PrivateLoops
from shigoto.testing.round import MOST_RUNS, Round, inside
from shigoto.testing.runs import Ran, Run, outcome_of
from shigoto.testing.store import EVERYTHING, OwnStore
from shigoto.worker import endings
from shigoto.worker.runner import Runner
from shigoto.worker.starting import Lifespan

FAREWELL = 10.0  # seconds for the app's lifespan to end

Mode = Literal["drain", "inline"]


class Puppet:
    """One worker of a test. `runs` has what it has run; a doomed one never comes to tell the store of it.

    Handlers see the context variables as they were before the test began: what a request sets in the code under test
    does not reach a worker either.
    """

    def __init__(
        self, app: Shigoto, store: OwnStore, *, mode: Mode, state: Any, doomed: Variables | None = None
    ) -> None:
        self._app = app
        self._store = store
        self._mode = mode
        self._state = state
        self._doomed = doomed is not None
        self._loops = PrivateLoops()
        self._random = Random(0)  # so that a test sees the same delays every time
        self._held: dict[int, Lease] = {}
        self._errors: dict[int, BaseException] = {}
        self._made: tuple[dict[str, Task[..., Any]], Any, Runner] | None = None
        self.id = uuid7()
        self.variables = copy_context() if doomed is None else doomed
        self.hands: dict[int, Hand] = {}
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

    def play(self, round: Round) -> Ran:
        """Run the jobs of a round, in the calling thread."""
        with round, self._loops.lend() as loop, ExitStack() as stack:
            for lease in round:
                if round.runner is None:
                    round.runner = self._runner(self._entered(round, loop, stack))
                hand, variables = round.take(lease)
                if self._is_async(lease):
                    loop.run(hand.perform(round.runner, lease, variables), variables)
                else:
                    hand.call(round.runner, lease, variables)
                round.ended()
        return Ran(round.runs)

    async def aplay(self, round: Round) -> Ran:
        """Run the jobs of a round, on the running event loop."""
        if not on_event_loop():
            raise DeclarationError("Jobs run on asyncio's event loop, and this one is none, or another's.")
        lifespan: Lifespan | None = None
        with round:
            try:
                for lease in round:
                    if round.runner is None:
                        lifespan = self._lifespan()
                        round.runner = self._runner(await _aentered(lifespan, round))
                    hand, variables = round.take(lease)
                    if self._is_async(lease):
                        await hand.perform(round.runner, lease, variables)
                    else:
                        hand.call(round.runner, lease, variables)
                    round.ended()
            finally:
                if lifespan is not None:
                    await lifespan.exit(FAREWELL)
        return Ran(round.runs)

    def settle(self, lease: Lease, hand: Hand) -> Run | None:
        """Tell the store how a run ended; None if the job is not even there any more."""
        error = self._errors.pop(lease.number, None)
        self.hands.pop(lease.number, None)
        self._held.pop(lease.number, None)
        settlement = hand.settlement or endings.released(lease)
        if self._doomed:
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
        """Everything that is ready, if jobs run inline; what a job makes ready is left to the round that runs it."""
        round = inside()
        if self._mode == "drain" or (round is not None and round.is_open(self)):
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
        if not self.hands:
            return
        held = [(lease.number, lease.token) for lease in list(self._held.values())]
        orders = self._store.quietly(self._store.engine.beat(self.id, held))
        for number, _ in orders.cancels:
            if (hand := self.hands.get(number)) is not None:
                hand.cancel()
        for number, _ in orders.lost:
            if (hand := self.hands.get(number)) is not None:
                hand.lose()

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

    def _inline(self, leases: Sequence[Lease]) -> Round:
        more = partial(self._store.between_commits, self._ready)
        return Round(self, leases, more, bound=max(MOST_RUNS, 2 * len(leases)))

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

    def _entered(self, round: Round, loop: PrivateLoop, stack: ExitStack) -> Any:
        lifespan = self._lifespan()
        if lifespan is None:
            return None
        variables = round.variables()  # what it enqueues is left to the round, or to the next one
        stack.callback(lambda: loop.run(lifespan.exit(FAREWELL), variables))
        return loop.run(lifespan.enter(), variables)

    def _runner(self, state: Any) -> Runner:
        """One for as many rounds as possible; but one that is made in a task is tied to that task."""
        tasks, state = self.tasks(), state if self._state is UNSET else self._state
        made, here = self._made, on_event_loop()
        if made is not None and not here and made[0] == tasks and made[1] is state:
            return made[2]
        self._app.check()
        desk = Desk(self._store, self.id, state)
        runner = Runner(tasks, self._random, desk=desk, failed=self._note_error)
        if not here:
            self._made = tasks, state, runner
        return runner

    def _note_error(self, lease: Lease, error: BaseException) -> None:
        self._errors[lease.number] = error


async def _aentered(lifespan: Lifespan | None, round: Round) -> Any:
    """Enter a lifespan in a task of its own, for the sake of the context variables; it is ended in that of its own."""
    if lifespan is None:
        return None
    return await asyncio.create_task(lifespan.enter(), name="shigoto-enter", context=round.variables())


def _so_far(job: Job) -> str:
    if not job.failures:
        return "has not run yet"
    times = "once" if job.failures == 1 else f"{job.failures} times"
    return f"has failed {times} ({job.error})" if job.error else f"has failed {times}"
