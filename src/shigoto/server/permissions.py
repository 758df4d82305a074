"""Permissions of a caller: what the queues and the tenant of a token let it see and do.

submit       the queue must be among the token's, the tenant is the token's; messages to people are for workers to write
read, admin  one job: that of another queue or tenant is not there; many: the tenant is the token's, and where the
             token has several queues one must be named
work         only the token's queues; no token with a tenant works, for a claim knows no tenants
the rest     what cannot be told apart by queue or tenant is for tokens without either

A unique key holds across all queues of a tenant, so a new job may meet, and even replace, one that its caller must not
know of: `within` is around whatever stores jobs.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from msgspec.structs import replace

from shigoto.app import Shigoto
from shigoto.engine.op import Op, Steps, extended
from shigoto.engine.protocol import Engine
from shigoto.filters import Filters
from shigoto.model.errors import Forbidden, IdTaken, JobNotFound, KeyTaken
from shigoto.model.job import Job, JobFilter, JobSpec, State
from shigoto.model.notice import QUEUE, is_silent
from shigoto.model.secrets import hides
from shigoto.model.worker import WorkerRecord
from shigoto.server.auth import Caller

T = TypeVar("T")

LOOK = 100  # jobs with one key that are looked at at once


def submittable(caller: Caller, task: str, queue: str, tenant: str | None) -> str:
    """The tenant of a new job in this queue, for which somebody has named a tenant or None. Raises Forbidden."""
    expect_queue(caller, queue)
    if is_silent(task) and not caller.may("work", "admin"):
        raise Forbidden(f"{task} tells people of what has happened: it is stored by workers alone.")
    return own_tenant(caller, tenant)


def own_tenant(caller: Caller, tenant: str | None) -> str:
    """The tenant that the caller's new jobs have, if it names this one or none. Raises Forbidden."""
    own = caller.token.tenant if caller.token is not None else None
    if own is None:
        return tenant or ""
    if tenant not in (None, own):
        raise Forbidden("The token is for another tenant.")
    return own


def expect_queue(caller: Caller, queue: str) -> None:
    """Raise Forbidden for a queue that is none of the token's."""
    if not allows_queue(caller, queue):
        raise Forbidden("The token is for other queues.")


def allows_queue(caller: Caller, queue: str) -> bool:
    """Whether the queue is one of the token's."""
    return caller.token is None or caller.token.queues is None or queue in caller.token.queues


def allows_tenant(caller: Caller, tenant: str) -> bool:
    """Whether the tenant is the token's."""
    return caller.token is None or caller.token.tenant in (None, tenant)


def sees(caller: Caller, queue: str, tenant: str) -> bool:
    """Whether the caller may know of what belongs to this queue and tenant."""
    return allows_queue(caller, queue) and allows_tenant(caller, tenant)


def within(caller: Caller, engine: Engine, specs: Sequence[JobSpec], op: Op[T]) -> Op[T]:
    """The op that stores these jobs, if none of them meets a job of somebody else, by its id or by its unique key.
    Raises IdTaken or KeyTaken, and then nothing is stored."""
    if not caller.restricted:
        return op

    def steps() -> Steps[T]:
        for job in (yield from engine.get([spec.id for spec in specs]).start()):
            if job is not None and not sees(caller, job.queue, job.tenant):
                raise IdTaken("The id is that of another job: choose another one.")
        for spec in specs:
            if spec.key is not None:
                yield from _expect_own_key(caller, engine, spec)
        return (yield from op.start())

    return extended(op, steps)


def _expect_own_key(caller: Caller, engine: Engine, spec: JobSpec) -> Steps[None]:
    jobs = yield from engine.find(JobFilter(key=spec.key, tenant=spec.tenant, limit=LOOK)).start()
    if len(jobs) == LOOK:  # the one that counts may be older than all of these
        for state in (State.PENDING, State.PROCESSING, State.BLOCKED):
            page = JobFilter(key=spec.key, tenant=spec.tenant, state=state, limit=LOOK)
            jobs += yield from engine.find(page).start()
    for job in jobs:
        counts = not job.state.terminal or spec.key_mode == "unsafe_dedupe"
        if counts and not sees(caller, job.queue, job.tenant):
            raise KeyTaken("Another job holds the unique key: choose another one.")


def visible(caller: Caller, job: Job | None, id: UUID) -> Job:
    """The job, if the caller may know of it. Raises JobNotFound, whether there is none or none for the caller."""
    if job is None or not sees(caller, job.queue, job.tenant):
        raise JobNotFound(f"There is no job {id}: it never was in this store, or its retention has passed.")
    return job


def narrowed(caller: Caller, filters: Filters) -> Filters:
    """The filters, for nothing but what the caller may see. Raises Forbidden if they name anything else."""
    token = caller.token
    if token is None:
        return filters
    within: Filters = {**filters}
    if token.tenant is not None:
        within["tenant"] = own_tenant(caller, within.get("tenant"))
    if token.queues is not None:
        within["queue"] = _own_queue(caller, token.queues, within.get("queue"))
    return within


def _own_queue(caller: Caller, queues: tuple[str, ...], queue: str | None) -> str:
    if queue is not None:
        expect_queue(caller, queue)
        return queue
    if len(queues) != 1:
        raise Forbidden("The token is for several queues: name one of them in the filter, as queue:NAME.")
    return queues[0]


def claimable(caller: Caller, queues: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The queues that the caller may take work from, of those it wants; None is all. Raises Forbidden."""
    own = caller.token.queues if caller.token is not None else None
    if caller.token is not None and caller.token.tenant is not None:
        raise Forbidden("A token for one tenant cannot work: a claim knows no tenants.")
    if own is None:
        return queues
    if queues is None:
        return own
    for queue in queues:
        expect_queue(caller, queue)
    return queues


def expect_no_tenant(caller: Caller) -> None:
    """Raise Forbidden for a token with a tenant, where what is told is not known by tenant."""
    if caller.token is not None and caller.token.tenant is not None:
        raise Forbidden("The token is for one tenant, and this is known of all of them together only.")


def workers_for(caller: Caller, tasks: Iterable[str], workers: Sequence[WorkerRecord]) -> list[WorkerRecord]:
    """The workers that may take jobs that the caller may know of, as far as it may: of their queues the caller's, and
    of their tasks these, which are those of its queues, and whatever its own workers have, which must know who else
    does. Whoever works off notices must know who else has rules."""
    token = caller.token
    if token is None or token.queues is None:
        return list(workers)
    known = {*tasks, *(task for worker in workers if worker.owner == token.id for task in worker.tasks)}
    found: list[WorkerRecord] = []
    for worker in workers:
        queues = None if worker.queues is None else tuple(q for q in worker.queues if q in token.queues)
        if queues != ():
            own = tuple(
                task for task in worker.tasks if task in known or (is_silent(task) and QUEUE in token.queues)
            )
            found.append(replace(worker, queues=queues, tasks=own))
    return found


def unrestricted(caller: Caller) -> None:
    """Raise Forbidden for a token with queues or a tenant."""
    if caller.restricted:
        raise Forbidden("This is for tokens without queues and without a tenant.")


def expect_no_secret(caller: Caller, app: Shigoto, task: str | None, paths: Collection[str]) -> None:
    """Raise Forbidden if a filter looks into arguments that are secret, or may be: who may not see them could guess
    until one is found. Which are is known of the tasks of the app alone. Operators may see all of them."""
    if not paths or caller.may("admin"):
        return
    declared = None if task is None else app.resolve(task)
    if declared is None:
        raise Forbidden(
            "Only a token with the scope admin finds jobs of any task by their arguments: name one whose code this"
            " server has, as task:NAME, so that it knows which arguments are secret."
        )
    secrets = declared.signature.arguments.secrets
    for path in paths:
        first, *_ = names = path.split(".")
        if first in secrets or any(map(hides, names)):
            raise Forbidden(
                f"The argument {path!r} is secret: only a token with the scope admin finds jobs by it."
            )
