"""Redrive: retry by filter, however many jobs match.

    choose: find page by page, newest first  →  retry in batches, oldest first

Choosing comes first and as a whole, so that a limit means the jobs that a list with the same limit shows, that they run
in their old order, and that a job which fails again is not met twice. Every batch is a transaction of its own; one that
holds a job which cannot be retried is halved until that job stands alone.

Of several jobs with one unique key only one can live. It is the newest: what was enqueued last says what is wanted now.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from shigoto.bulk import PAGE, AfterBatch, Decoder, Plan, go_on, handle_of, page_and_limit, walking
from shigoto.engine.protocol import Engine
from shigoto.filters import Filters
from shigoto.handle import JobHandle
from shigoto.model.errors import JobNotFound, JobNotRetryable, KeyTaken, OptionInvalid
from shigoto.model.job import FailureKind, Job, JobFilter, State
from shigoto.model.time import Clock, host_clock


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


def redriving(
    engine: Engine, filters: Filters, *, dry_run: bool, decoder: Decoder, clock: Clock = host_clock
) -> Plan[Redriven]:
    """Choose, and retry unless it is a dry run."""
    chosen = yield from choosing(engine, filters, decoder=decoder, clock=clock)
    if dry_run:
        return Redriven(
            retried=chosen.jobs[::-1], quarantined=chosen.quarantined, key_taken=chosen.rivals[::-1]
        )
    return (yield from retrying(engine, chosen))


def choosing(
    engine: Engine, filters: Filters, *, decoder: Decoder, clock: Clock = host_clock
) -> Plan[Chosen]:
    """Find what matches. Raises OptionInvalid."""
    page, most = _page_and_limit(filters, clock)
    return _choosing(engine, page, most, decoder)


def _choosing(engine: Engine, page: JobFilter, most: int | None, decoder: Decoder) -> Plan[Chosen]:
    chosen = Chosen()
    keys: set[tuple[str, str]] = set()

    def take(job: Job) -> bool:
        handle = handle_of(engine, job, decoder)
        if job.failure_kind is FailureKind.CRASH_LOOP and page.failure_kind is None:
            chosen.quarantined.append(handle)
            return True
        (chosen.rivals if job.key and (job.tenant, job.key) in keys else chosen.jobs).append(handle)
        if job.key:
            keys.add((job.tenant, job.key))
        return len(chosen.jobs) + len(chosen.rivals) != most

    yield from walking(engine, page, take)
    return chosen


def retrying(engine: Engine, chosen: Chosen, *, after_batch: AfterBatch = go_on) -> Plan[Redriven]:
    """Retry what was chosen, oldest first.

    Rivals come last, the newest first, in case that the one before them is gone.
    """
    redriven = Redriven(quarantined=chosen.quarantined)
    jobs = [*chosen.jobs[::-1], *chosen.rivals]
    for start in range(0, len(jobs), PAGE):
        yield from _retrying(engine, jobs[start : start + PAGE], redriven)
        if not after_batch(min(start + PAGE, len(jobs))):
            break
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


def _page_and_limit(filters: Filters, clock: Clock) -> tuple[JobFilter, int | None]:
    """The filter of the first page, and how many jobs are wanted in all."""
    page, most = page_and_limit(filters, clock)
    if page.state is None and filters.get("state") is not None:
        raise OptionInvalid("Only failed and cancelled jobs can be redriven: name one of these states.")
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
