"""Redrive: retry by filter, however many jobs match.

    choose: find page by page, newest first  →  retry in batches, oldest first

Choosing comes first and as a whole, so that a limit means the jobs that a list with the same limit shows, that they run
in their old order, and that a job which fails again is not met twice. Every batch is a transaction of its own; one that
holds a job which cannot be retried is halved until that job stands alone.

Of several jobs with one unique key only one can live. It is the newest: what was enqueued last says what is wanted now.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import structs

from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.handle import Decode, JobHandle
from shigoto.model.errors import JobError, JobNotFound, JobNotRetryable, KeyTaken, OptionInvalid
from shigoto.model.job import FailureKind, Job, JobFilter, State
from shigoto.options import shown
from shigoto.query import Filters, is_whole, wanted

T = TypeVar("T")

PAGE = 100  # jobs come with their payloads, and others want to write too

Plan = Generator[Op[Any], Any, T]  # ops, each run by itself; what one raises is thrown back in


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """What a redrive did: which jobs it made ready again, and which not, and why.

    `quarantined` jobs have killed their process again and again and are left alone unless asked for by
    `failure_kind="crash_loop"`; of `key_taken` another job holds the unique key; `gone` are those that somebody else
    has retried or deleted meanwhile.
    """

    retried: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])
    quarantined: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])
    key_taken: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])
    gone: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which jobs match, newest first. `rivals` have the unique key of a newer one; `quarantined` are left alone."""

    jobs: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])
    rivals: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])
    quarantined: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])


def carry_out(engine: Engine, plan: Plan[T]) -> T:
    """Run the ops of a plan in the calling thread."""
    try:
        op = next(plan)
        while True:
            try:
                value = engine.run(op)
            except JobError as error:
                op = plan.throw(error)
            else:
                op = plan.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def acarry_out(engine: Engine, plan: Plan[T]) -> T:
    """Run the ops of a plan without blocking the event loop."""
    try:
        op = next(plan)
        while True:
            try:
                value = await engine.arun(op)
            except JobError as error:
                op = plan.throw(error)
            else:
                op = plan.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


def redriving(
    engine: Engine, filters: Filters, *, dry_run: bool, decoder: Callable[[Job], Decode | None]
) -> Plan[Redriven]:
    """Choose, and retry unless it is a dry run."""
    chosen = yield from choosing(engine, filters, decoder=decoder)
    if dry_run:
        return Redriven(
            retried=chosen.jobs[::-1], quarantined=chosen.quarantined, key_taken=chosen.rivals[::-1]
        )
    return (yield from retrying(engine, chosen))


def choosing(engine: Engine, filters: Filters, *, decoder: Callable[[Job], Decode | None]) -> Plan[Chosen]:
    """Find what matches. Raises OptionInvalid."""
    page, most = _page_and_limit(filters)
    return _choosing(engine, page, most, decoder)


def _choosing(
    engine: Engine, page: JobFilter, most: int | None, decoder: Callable[[Job], Decode | None]
) -> Plan[Chosen]:
    chosen = Chosen()
    keys: set[tuple[str, str]] = set()
    while True:
        jobs: list[Job] = yield engine.find(page)
        for job in jobs:
            handle = JobHandle[Any](
                engine, job.id, number=job.number, enqueued="existing", decode=decoder(job)
            )
            if job.failure_kind is FailureKind.CRASH_LOOP and page.failure_kind is None:
                chosen.quarantined.append(handle)
                continue
            (chosen.rivals if job.key and (job.tenant, job.key) in keys else chosen.jobs).append(handle)
            if job.key:
                keys.add((job.tenant, job.key))
            if len(chosen.jobs) + len(chosen.rivals) == most:
                return chosen
        if len(jobs) < page.limit:
            return chosen
        page = structs.replace(page, before=jobs[-1].number)


def retrying(
    engine: Engine, chosen: Chosen, *, watch: Callable[[int], None] = lambda done: None
) -> Plan[Redriven]:
    """Retry what was chosen, oldest first; `watch` hears how many are dealt with.

    Rivals come last, the newest first, in case that the one before them is gone.
    """
    redriven = Redriven(quarantined=chosen.quarantined)
    jobs = [*chosen.jobs[::-1], *chosen.rivals]
    for start in range(0, len(jobs), PAGE):
        yield from _retrying(engine, jobs[start : start + PAGE], redriven)
        watch(min(start + PAGE, len(jobs)))
    redriven.key_taken.sort(key=lambda handle: handle.number or 0)
    return redriven


def _retrying(engine: Engine, batch: Sequence[JobHandle[Any]], redriven: Redriven) -> Plan[None]:
    try:
        yield engine.retry([handle.id for handle in batch])
    except (KeyTaken, JobNotRetryable, JobNotFound) as error:
        if len(batch) == 1:
            (redriven.key_taken if isinstance(error, KeyTaken) else redriven.gone).extend(batch)
            return
    else:
        redriven.retried.extend(batch)
        return
    half = len(batch) // 2
    yield from _retrying(engine, batch[:half], redriven)
    yield from _retrying(engine, batch[half:], redriven)


def _page_and_limit(filters: Filters) -> tuple[JobFilter, int | None]:
    """The filter of the first page, and how many jobs are wanted in all."""
    most = filters.get("limit")
    if most is not None and (not is_whole(most) or most < 1):
        raise OptionInvalid(f"limit must be a whole number from 1 on, not {shown(most)}.")
    page = wanted({**filters, "limit": PAGE})
    if page.state is None:
        page = structs.replace(page, state=State.FAILED)
    if page.state not in (State.FAILED, State.CANCELLED):
        raise OptionInvalid(
            f"Only failed and cancelled jobs can be redriven, not those that are {page.state}."
        )
    if page.state is State.CANCELLED and page.failure_kind is not None:
        raise OptionInvalid(
            "Only failed jobs have a kind of failure: leave that out to redrive cancelled ones."
        )
    return page, most
