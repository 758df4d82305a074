"""One job in the store: what can be asked about it, and what can be done to it.

Every waiting form has a sync and an async twin that share everything but the wait itself.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from math import inf
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable
from uuid import UUID

import msgspec
from msgspec import Struct

from shigoto.encryption import Encryption, opened
from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model import errors
from shigoto.model.ids import uuid7
from shigoto.model.job import Attempt, Enqueued, FailureKind, Job, JobFilter, JobSpec, LoggedLine, State
from shigoto.model.secrets import is_masked, without_key
from shigoto.model.states import not_retryable
from shigoto.model.text import shown
from shigoto.observe.tracing import without

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.25

Decode = Callable[[str], Any]

logger = logging.getLogger("shigoto")


@runtime_checkable
class Foresees(Protocol):
    """An engine that knows whether anybody will run a job while somebody else waits for it."""

    def expect_end(self, job_id: UUID) -> None:
        """See to it that the job gets on. Raises ResultTimeout if to wait for it would be in vain."""
        ...

    async def aexpect_end(self, job_id: UUID) -> None:
        """See to it on the running event loop; see `expect_end`."""
        ...


class JobHandle(Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """One job in the store: its id, and what can be asked and done about it.

    `enqueued` says what became of the request: `inserted`, `existing` or `replaced`; or `not_enqueued`,
    when it failed under `using(on_error="log")`. Everything else is read from the store when asked for.

    A job enqueued in a transaction of your own is not there for others, this handle included, until you
    commit.
    """

    _engine: Engine
    id: UUID
    number: int
    enqueued: Literal["inserted", "existing", "replaced", "not_enqueued"]
    _decode: Decode | None
    _keys: Encryption | None = None

    def __repr__(self) -> str:
        return f"<JobHandle #{self.number} {self.id} {self.enqueued}>"

    def job(self) -> Job:
        """The job as it is now. Raises JobNotFound."""
        return self._engine.run(_read_op(self._engine, self.id))

    async def ajob(self) -> Job:
        """The job as it is now. Raises JobNotFound."""
        return await self._engine.arun(_read_op(self._engine, self.id))

    def status(self) -> State:
        """The state the job is in now. Raises JobNotFound."""
        return self.job().state

    async def astatus(self) -> State:
        """The state the job is in now. Raises JobNotFound."""
        return (await self.ajob()).state

    def attempts(self) -> list[Attempt]:
        """The runs that did not end completed, oldest first, with their errors. Raises JobNotFound."""
        return self._engine.run(_read_beside_op(self._engine, self.id, self._engine.attempts))

    async def aattempts(self) -> list[Attempt]:
        """The runs that did not end completed, oldest first, with their errors. Raises JobNotFound."""
        return await self._engine.arun(_read_beside_op(self._engine, self.id, self._engine.attempts))

    def logs(self) -> list[LoggedLine]:
        """The lines that its runs have written, as far as they are kept, oldest first. Raises JobNotFound."""
        return self._engine.run(_read_beside_op(self._engine, self.id, self._engine.logs))

    async def alogs(self) -> list[LoggedLine]:
        """The lines that its runs have written, as far as they are kept, oldest first. Raises JobNotFound."""
        return await self._engine.arun(_read_beside_op(self._engine, self.id, self._engine.logs))

    def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait until the job has ended and return what it returned.

        Raises JobFailed, JobExpired, JobCancelled, ResultPruned, or ResultTimeout after `timeout` seconds;
        without one it waits for as long as it takes; EncryptionKeyMissing if it cannot be decrypted here.
        Not for event loops, which it blocks: see `aresult`.
        """
        if on_event_loop():
            _warn_of_waiting()
        for wait in self._looks(timeout):
            if isinstance(self._engine, Foresees):
                self._engine.expect_end(self.id)
            [job] = self._engine.run(self._engine.get([self.id]))
            if job is None or job.state.terminal:
                result: R_co = self._result(job)
                return result
            time.sleep(wait)
        raise self._timed_out(timeout)

    async def aresult(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait until the job has ended and return what it returned; see `result`."""
        import asyncio

        for wait in self._looks(timeout):
            if isinstance(self._engine, Foresees):
                await self._engine.aexpect_end(self.id)
            [job] = await self._engine.arun(self._engine.get([self.id]))
            if job is None or job.state.terminal:
                result: R_co = self._result(job)
                return result
            await asyncio.sleep(wait)
        raise self._timed_out(timeout)

    def cancel(self, *, force: bool = False) -> State:
        """Cancel the job and tell the state it is in now. Raises JobNotFound.

        A pending job is cancelled at once. A running one is asked to stop and stays `processing` until it
        has; if it completes first, it is completed. An ended job stays as it is.

        By `force` a running job is cancelled at once, and whatever its worker still reports of it is refused.
        What the job was to do may have happened all the same, and its code may run on for a while.
        """
        return self._cancelled(self._engine.run(self._engine.cancel([self.id], force=force)))

    async def acancel(self, *, force: bool = False) -> State:
        """Cancel the job and tell the state it is in now; see `cancel`."""
        return self._cancelled(await self._engine.arun(self._engine.cancel([self.id], force=force)))

    def retry(self) -> None:
        """Make a failed or cancelled job ready again, with all its retries.

        Raises JobNotFound, JobNotRetryable or KeyTaken.
        """
        self._engine.run(_retry_op(self._engine, self.id))

    async def aretry(self) -> None:
        """Make a failed or cancelled job ready again, with all its retries; see `retry`."""
        await self._engine.arun(_retry_op(self._engine, self.id))

    def rerun(self) -> "JobHandle[R_co]":
        """Make a new job like this one, which has ended, to run now.

        It has the same task, arguments, queue, priority, limits, tags and so on, but no key and no expiry.
        Raises JobNotFound, or JobNotRetryable while the job still waits or runs.
        """
        return self._like(self._engine.run(rerun_op(self._engine, self.id)))

    async def arerun(self) -> "JobHandle[R_co]":
        """Make a new job like this one, which has ended, to run now; see `rerun`."""
        return self._like(await self._engine.arun(rerun_op(self._engine, self.id)))

    def _like(self, made: Enqueued) -> "JobHandle[R_co]":
        return JobHandle(self._engine, made.id, made.number, made.status, self._decode, self._keys)

    def _cancelled(self, states: list[State | None]) -> State:
        [state] = states
        if state is None:
            raise _not_found(self.id)
        return state

    def _looks(self, timeout: float | timedelta | None) -> Iterator[float]:
        """How long to wait after each look until the time is over: short at first, for short jobs."""
        deadline = time.monotonic() + _seconds(timeout)
        wait = FIRST_PAUSE
        while (left := deadline - time.monotonic()) > 0:
            yield min(wait, left)
            wait = min(wait * 2, LONGEST_PAUSE)
        yield 0

    def _result(self, job: Job | None) -> Any:
        if job is None:
            raise errors.ResultPruned(
                f"Job {self.id} is not in the store: its retention has passed, or it never was there."
            )
        name = _called(job)
        if job.state is State.CANCELLED:
            raise errors.JobCancelled(f"{name} was cancelled, so it has no result.")
        if job.failure_kind is FailureKind.EXPIRED:
            raise errors.JobExpired(f"{name} expired before a worker could start it.")
        if job.state is State.FAILED:
            error = "no error was recorded" if job.error is None else self._readable(job, job.error)
            raise errors.JobFailed(f"{name} failed ({job.failure_kind}): {error}")
        if job.result is None:
            return None
        result = opened(self._keys, job.result, job, "result")
        return msgspec.json.decode(result) if self._decode is None else self._decode(result)

    def _readable(self, job: Job, error: str) -> str:
        """What is said of a failure must not depend on a key."""
        try:
            return opened(self._keys, error, job, "error")
        except errors.EncryptionKeyMissing:
            return without_key(error)

    def _timed_out(self, timeout: float | timedelta | None) -> errors.ResultTimeout:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        return errors.ResultTimeout(f"Job {self.id} has not ended within {seconds} s; it goes on by itself.")


def found(
    engine: Engine, job: Job | None, *, job_id: UUID, decode: Decode | None, keys: Encryption | None = None
) -> JobHandle[Any]:
    """The handle of a job that was looked up by its id. Raises JobNotFound."""
    if job is None:
        raise _not_found(job_id)
    return JobHandle(engine, job.id, job.number, "existing", decode, keys)


def on_event_loop() -> bool:
    """Whether the calling thread runs an event loop right now, which a wait would block."""
    # Where nobody has imported asyncio no loop is running; importing it here would double the cost of
    # `import shigoto`. The function is exported in spite of its name, and unlike `get_running_loop` need not raise.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


@cache
def _warn_of_waiting() -> None:
    """Once per process: the next thousand such calls have the same cause."""
    logger.warning(
        "result() was called on an event loop and blocks it until the job has ended, for ever if the job's own"
        " worker runs on it; await aresult() does not. This is said once."
    )


def _stored(engine: Engine, job_id: UUID) -> Steps[Job]:
    [job] = yield from engine.get([job_id]).start()
    if job is None:
        raise _not_found(job_id)
    return job


def _read_op(engine: Engine, job_id: UUID) -> Op[Job]:
    return Op(start=lambda: _stored(engine, job_id), mode="read")


def _read_beside_op(engine: Engine, job_id: UUID, read: Callable[[UUID], Op[T]]) -> Op[T]:
    """What is kept beside a job; where that is nothing, the job itself must at least be there."""

    def steps() -> Steps[T]:
        yield from _stored(engine, job_id)
        return (yield from read(job_id).start())

    return Op(start=steps, mode="read")


def _retry_op(engine: Engine, job_id: UUID) -> Op[None]:
    """T15; why it is refused is said here, with the names that people know the job by."""

    def steps() -> Steps[None]:
        job = yield from _stored(engine, job_id)
        if job.state not in (State.FAILED, State.CANCELLED):
            raise not_retryable(_called(job), job.state)
        try:
            yield from engine.retry([job_id]).start()
        except errors.KeyTaken as error:
            raise (yield from _key_taken(engine, job)) from error

    return Op(start=steps, rings=_always)


def _key_taken(engine: Engine, job: Job) -> Steps[errors.KeyTaken]:
    """Who has the key now; the newest jobs with it are looked at, of which one is alive."""
    jobs = yield from engine.find(JobFilter(key=job.key, tenant=job.tenant)).start()
    holder = next(
        (f"{_called(each)}, which is {each.state}," for each in jobs if not each.state.terminal), "another"
    )
    return errors.KeyTaken(
        f"{_called(job)} cannot be retried: {holder} holds its unique key {job.key!r} now."
        " Wait until that one has ended, or cancel it."
    )


def rerun_op(
    engine: Engine,
    job_id: UUID,
    *,
    named: UUID | None = None,
    store: Callable[[Sequence[JobSpec]], Op[list[Enqueued]]] | None = None,
) -> Op[Enqueued]:
    """Make a new job like one that has ended. Raises JobNotFound, JobNotRetryable.

    If its id is `named`, and it is there already, nothing else is done. `store` is how it is stored, if not just so.
    """
    new_id = named or uuid7()  # one for all starts of the op

    def steps() -> Steps[Enqueued]:
        [made] = [None] if named is None else (yield from engine.get([named]).start())
        if made is not None:
            return Enqueued(made.id, made.number, "existing")
        job = yield from _stored(engine, job_id)
        if not job.state.terminal:
            raise errors.JobNotRetryable(
                f"{_called(job)} is {job.state}; only jobs that have ended can be rerun."
                " Wait until it has, or enqueue another one."
            )
        if engine.capabilities.served and is_masked(job.payload, job.meta):
            raise errors.Forbidden(
                f"{_called(job)} has secret arguments, which this token may not see, so that they cannot be given to a"
                " new job. Use a token with the scope admin, or rerun it where the store is."
            )
        storing = (store or engine.enqueue_many)([_again(job, new_id)])
        [stored] = yield from storing.start()
        return stored

    return Op(start=steps, rings=_always)


def _again(job: Job, new_id: UUID) -> JobSpec:
    """A new job like an old one, due now. An expiry was counted from back then, a key may be another's by now, and the
    trace that the old one was part of is over."""
    return JobSpec(
        id=new_id,
        task=job.task,
        queue=job.queue,
        payload=job.payload,
        tenant=job.tenant,
        priority=job.priority,
        max_failures=job.max_failures,
        max_crashes=job.max_crashes,
        retry=job.retry,
        timeout=job.timeout,
        soft_timeout=job.soft_timeout,
        tags=msgspec.json.encode(job.tags).decode() if job.tags else None,
        meta=without(job.meta),
        alone=job.alone,
    )


def _always(_: object) -> bool:
    return True


def _seconds(timeout: object) -> float:
    """How long to wait at most; callers without a type checker hand in anything."""
    if timeout is None:
        return inf
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout != timeout:
        raise errors.OptionInvalid(
            f"timeout must be a timedelta or a number of seconds, not {shown(timeout)}."
        )
    try:
        return float(timeout)
    except OverflowError:
        return inf


def _called(job: Job) -> str:
    return f"Job #{job.number} ({job.task}, {job.id})"


def _not_found(job_id: UUID) -> errors.JobNotFound:
    return errors.JobNotFound(
        f"There is no job {job_id}: it never was in this store, or its retention has passed."
    )
