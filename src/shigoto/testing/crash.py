"""Workers that die in a test: the job is claimed, perhaps run, and its end is never reported."""

from contextvars import Context as Variables
from typing import Any, Literal

from shigoto.app import Shigoto
from shigoto.handle import JobHandle
from shigoto.model.errors import JobError, OptionInvalid
from shigoto.model.job import Job, Lease, State
from shigoto.model.text import shown
from shigoto.model.time import to_millis
from shigoto.model.worker import LEASE, SweepOrder
from shigoto.options import choice
from shigoto.task import Task
from shigoto.testing.store import OwnStore
from shigoto.testing.worker import ManualWorker, RunLoop

When = Literal["before", "during", "after"]
Victim = Job | JobHandle[Any] | Task[..., Any]


class Crash:
    """The death of one worker under one job, which is due. Raises JobError if there is no such job."""

    def __init__(
        self, app: Shigoto, store: OwnStore, victim: Victim, *, when: When, state: Any, variables: Variables
    ) -> None:
        choice("when", when, ("before", "during", "after"))
        self._app = app
        self._store = store
        self._when = when
        self._worker = ManualWorker(app, store, mode="drain", state=state, crashing=variables)
        self._lease = self._claimed(victim)
        if when == "during":
            store.crashing.add(self._worker.id)

    def happen(self) -> Job:
        """Let the worker run the job, as far as it gets, and die; then let the others notice."""
        try:
            if self._when != "before":
                self._worker.play(self._run_loop())
        finally:
            self._worker.close()
        return self._rescued()

    async def ahappen(self) -> Job:
        if self._when != "before":
            await self._worker.aplay(self._run_loop())
        return self._rescued()

    def _run_loop(self) -> RunLoop:
        return RunLoop(self._worker, [self._lease], list)

    def _rescued(self) -> Job:
        """The lease runs out, the sweep frees the job, and however long that takes, it is due again."""
        store, worker = self._store, self._worker.id
        store.move(store.clock.now + LEASE + 1)
        store.tidy(SweepOrder(fence=(worker,), unknown_after=self._app.unknown_after))
        job = self._stored(self._lease)
        if job.state is State.PENDING:
            store.move(to_millis(job.run_at))
            store.promote_due()
        if worker in store.crashing:
            store.crashing.remove(worker)
            raise JobError(
                f"Job #{job.number} ({job.task}) was to die at its first checkpoint, and made none."
                " Call ctx.checkpoint() in it, or say when='after'."
            )
        return job

    def _stored(self, lease: Lease) -> Job:
        job = self._store.read(lease.id)
        if job is None:
            raise JobError(f"Job #{lease.number} ({lease.task}) was deleted by itself.")
        return job

    def _claimed(self, victim: Victim) -> Lease:
        if isinstance(victim, Task):
            leases = self._worker.claim(1, tasks=(victim.name, *victim.aliases))
            if leases:
                return leases[0]
            raise JobError(f"No job of task {victim.name!r} is due, so no worker can die under one.")
        if isinstance(victim, JobHandle):
            return self._claimed_one(victim.job())
        return self._claimed_one(_expect_job(victim))

    def _claimed_one(self, job: Job) -> Lease:
        """The lease of this very job. The store gives out the best first: those are given back."""
        others: list[Lease] = []
        try:
            while leases := self._worker.claim(1, tasks=[job.task], queue=job.queue):
                if leases[0].id == job.id:
                    return leases[0]
                others += leases
        finally:
            self._worker.release(others)
        raise JobError(
            f"Job #{job.number} ({job.task}) is not waiting to be run now, so no worker can die under it:"
            f" it is {self._now(job)}."
        )

    def _now(self, job: Job) -> str:
        stored = self._store.read(job.id)
        if stored is None:
            return "not in this store"
        later = to_millis(stored.run_at) - self._store.clock.now
        if stored.state is State.PENDING and later > 0:
            return f"due in {later / 1000:g} s. Call jobs.advance() first"
        return str(stored.state)


def _expect_job(victim: object) -> Job:
    if not isinstance(victim, Job):
        raise OptionInvalid(f"crash takes a task, a job or a handle, not {shown(victim)}.")
    return victim
