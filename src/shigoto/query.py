"""Looking at jobs and managing them, once they are in the store.

`JobHandle` is one job; the functions below it build the operations that `Shigoto` runs for whole queues.
Every waiting form has a sync and an async twin that share everything but the wait itself.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Any, Generic, Literal, TypedDict, TypeVar, get_args
from uuid import UUID

import msgspec
from msgspec import structs

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model.errors import (
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    OptionInvalid,
    ResultPruned,
    ResultTimeout,
    nearest,
    storable,
)
from shigoto.model.job import FailureKind, Job, JobFilter, QueueSettings, State
from shigoto.options import check_name, shown

R_co = TypeVar("R_co", covariant=True)

FIRST_WAIT, LONGEST_WAIT = 0.002, 0.25
MAX_PAGE = 1_000
MAX_NUMBER = 2**63 - 1

Decode = Callable[[str], Any]
View = Literal["scheduled", "retrying"]
StateName = Literal[
    "pending",
    "processing",
    "completed",
    "failed",
    "cancelled",
    "blocked",
    "scheduled",
    "retrying",
    "waiting",
    "running",
    "succeeded",
]


class JobHandle(Generic[R_co]):
    """One job in the store: its id, and what can be asked and done about it.

    `enqueued` says what became of the request: `inserted`, `existing` or `replaced`; or `not_enqueued`,
    when it failed under `using(on_error="log")`. Everything else is read from the store when asked for.

    A job enqueued in a transaction of your own is not there for others, this handle included, until you
    commit.
    """

    __slots__ = ("_decode", "_engine", "enqueued", "id", "number")

    def __init__(
        self,
        engine: Engine,
        job_id: UUID,
        *,
        number: int,
        enqueued: Literal["inserted", "existing", "replaced", "not_enqueued"],
        decode: Decode | None,
    ) -> None:
        self._engine = engine
        self._decode = decode
        self.id = job_id
        self.number = number
        self.enqueued = enqueued

    def __repr__(self) -> str:
        return f"<JobHandle #{self.number} {self.id} {self.enqueued}>"

    def job(self) -> Job:
        """The job as it is now. Raises JobNotFound."""
        return self._found(self._engine.run(self._engine.get([self.id])))

    async def ajob(self) -> Job:
        """The job as it is now. Raises JobNotFound."""
        return self._found(await self._engine.arun(self._engine.get([self.id])))

    def status(self) -> State:
        """The state the job is in now. Raises JobNotFound."""
        return self.job().state

    async def astatus(self) -> State:
        """The state the job is in now. Raises JobNotFound."""
        return (await self.ajob()).state

    def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait until the job has ended and return what it returned.

        Raises JobFailed, JobExpired, JobCancelled, ResultPruned, or ResultTimeout after `timeout` seconds;
        without one it waits for as long as it takes.
        """
        for wait in self._looks(timeout):
            [job] = self._engine.run(self._engine.get([self.id]))
            if self._ended(job):
                result: R_co = self._result(job)
                return result
            time.sleep(wait)
        raise self._timed_out(timeout)

    async def aresult(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait until the job has ended and return what it returned; see `result`."""
        import asyncio

        for wait in self._looks(timeout):
            [job] = await self._engine.arun(self._engine.get([self.id]))
            if self._ended(job):
                result: R_co = self._result(job)
                return result
            await asyncio.sleep(wait)
        raise self._timed_out(timeout)

    def cancel(self) -> State:
        """Cancel the job and tell the state it is in now. Raises JobNotFound.

        A pending job is cancelled at once. A running one is asked to stop and stays `processing` until it
        has; if it completes first, it is completed. An ended job stays as it is.
        """
        return self._cancelled(self._engine.run(self._engine.cancel([self.id])))

    async def acancel(self) -> State:
        """Cancel the job and tell the state it is in now; see `cancel`."""
        return self._cancelled(await self._engine.arun(self._engine.cancel([self.id])))

    def retry(self) -> None:
        """Make a failed or cancelled job ready again, with all its retries.

        Raises JobNotFound, JobNotRetryable or KeyTaken.
        """
        self._engine.run(self._engine.retry([self.id]))

    async def aretry(self) -> None:
        """Make a failed or cancelled job ready again, with all its retries; see `retry`."""
        await self._engine.arun(self._engine.retry([self.id]))

    def _found(self, jobs: list[Job | None]) -> Job:
        [job] = jobs
        if job is None:
            raise _not_found(self.id)
        return job

    def _cancelled(self, states: list[State | None]) -> State:
        [state] = states
        if state is None:
            raise _not_found(self.id)
        return state

    def _looks(self, timeout: float | timedelta | None) -> Iterator[float]:
        """How long to wait after each look until the time is over: short at first, for short jobs."""
        deadline = time.monotonic() + _seconds(timeout)
        wait = FIRST_WAIT
        while (left := deadline - time.monotonic()) > 0:
            yield min(wait, left)
            wait = min(wait * 2, LONGEST_WAIT)
        yield 0

    def _ended(self, job: Job | None) -> bool:
        return job is None or job.state.terminal

    def _result(self, job: Job | None) -> Any:
        if job is None:
            raise ResultPruned(
                f"Job {self.id} is not in the store: its retention has passed, or it never was there."
            )
        name = f"Job #{job.number} ({job.task}, {job.id})"
        if job.state is State.CANCELLED:
            raise JobCancelled(f"{name} was cancelled, so it has no result.")
        if job.failure_kind is FailureKind.EXPIRED:
            raise JobExpired(f"{name} expired before a worker could start it.")
        if job.state is State.FAILED:
            raise JobFailed(f"{name} failed ({job.failure_kind}): {job.error or 'no error was recorded'}")
        if job.result is None:
            return None
        return msgspec.json.decode(job.result) if self._decode is None else self._decode(job.result)

    def _timed_out(self, timeout: float | timedelta | None) -> ResultTimeout:
        return ResultTimeout(f"Job {self.id} has not ended within {timeout}; it goes on by itself.")


def found(engine: Engine, job: Job | None, *, job_id: UUID, decode: Decode | None) -> JobHandle[Any]:
    """The handle of a job that was looked up by its id. Raises JobNotFound."""
    if job is None:
        raise _not_found(job_id)
    return JobHandle(engine, job.id, number=job.number, enqueued="existing", decode=decode)


class Filters(TypedDict, total=False):
    """Which jobs `app.find` is to find; every one given must match."""

    state: State | StateName | None
    queue: str | None
    task: str | None
    tag: str | None
    key: str | None
    tenant: str | None
    before: int | None
    limit: int


def wanted(filters: Filters) -> JobFilter:
    """The filter in the store's words. Raises OptionInvalid for what cannot be meant."""
    for name in filters:
        if name not in Filters.__annotations__:
            raise OptionInvalid(
                f"There is no filter {name!r}.{nearest(name, tuple(Filters.__annotations__))}"
            )
    limit, state, before = filters.get("limit", 20), filters.get("state"), filters.get("before")
    if not _is_whole(limit) or not 1 <= limit <= MAX_PAGE:
        raise OptionInvalid(
            f"limit must be a whole number from 1 to {MAX_PAGE}, not {shown(limit)};"
            " for the next page there is before=."
        )
    if before is not None and (not _is_whole(before) or not 0 <= before <= MAX_NUMBER):
        raise OptionInvalid(f"before must be the number of a job, not {shown(before)}.")
    return JobFilter(
        state=None if state is None else parse_state(state),
        queue=_text_of("queue", filters),
        task=_text_of("task", filters),
        tag=_text_of("tag", filters),
        key=_text_of("key", filters),
        tenant=_text_of("tenant", filters),
        before=before,
        limit=limit,
    )


def parse_id(job_id: object) -> UUID:
    """The id of a job, given as one or as its text. Raises OptionInvalid."""
    if isinstance(job_id, UUID):
        return job_id
    if isinstance(job_id, str):
        with suppress(ValueError):
            return UUID(job_id)
    raise OptionInvalid(f"The id of a job is a UUID or its text, not {shown(job_id)}.")


def parse_state(name: object) -> State | View:
    """The state, or view of pending, that a word means; the aliases of other systems are understood."""
    known = get_args(StateName)
    if not isinstance(name, str):
        raise OptionInvalid(f"A state is one of {', '.join(known)}, not {shown(name)}.")
    match name:
        case "scheduled" | "retrying":
            return name
        case "waiting":
            return State.PENDING
        case "running":
            return State.PROCESSING
        case "succeeded":
            return State.COMPLETED
        case _:
            pass
    try:
        return State(name)
    except ValueError:
        raise OptionInvalid(
            f"There is no state {name!r}.{nearest(name, known)} States are: {', '.join(known)}."
        ) from None


def pausing(engine: Engine, queue: str, *, paused: bool) -> Op[None]:
    """Pause or resume a queue, and leave its other settings as they are, in one transaction."""
    queue = check_name(queue, "The queue")

    def steps() -> Steps[None]:
        stored = yield from engine.settings().start()
        settings = next((each for each in stored if each.name == queue), QueueSettings(name=queue))
        yield from engine.configure(structs.replace(settings, paused=paused)).start()

    return Op(start=steps, rings=None if paused else _always)


def _always(_: None) -> bool:
    return True


def _seconds(timeout: object) -> float:
    """How long to wait at most; callers without a type checker hand in anything."""
    if timeout is None:
        return inf
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout != timeout:
        raise OptionInvalid(f"timeout must be a timedelta or a number of seconds, not {shown(timeout)}.")
    try:
        return float(timeout)
    except OverflowError:
        return inf


def _text_of(name: Literal["queue", "task", "tag", "key", "tenant"], filters: Filters) -> str | None:
    value: object = filters.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise OptionInvalid(f"{name} must be a string, not {shown(value)}.")
    return storable(name, str.__str__(value))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _not_found(job_id: UUID) -> JobNotFound:
    return JobNotFound(f"There is no job {job_id}: it never was in this store, or its retention has passed.")
