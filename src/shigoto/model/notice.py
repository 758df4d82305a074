"""A notice: one thing that somebody may want to hear of, written down as a job where it happens.

The store writes it in the very transaction that makes it true, so that nobody's death can lose it, and knows no more
than whether notices are wanted at all. Who is told what, and how often, is decided when the job runs
(`shigoto.notify`).
"""

from collections.abc import Iterable
from typing import Literal
from uuid import UUID, uuid5

from msgspec import Struct, json

from shigoto.model.job import FailureKind, JobSpec
from shigoto.model.schedule import Change, TickOutcome
from shigoto.model.time import Millis

QUEUE = "shigoto"
NOTICE = "shigoto.notice"
DELIVER = "shigoto.deliver"
RULES = "shigoto.rules."  # what the tasks that see to a notice for one set of rules begin with
SWITCH = "notices"  # what it is called where a store keeps whether notices are wanted
# Failures of a job about notices before it is given up: some hours. A store or a mail server that is away is back then.
MAX_FAILURES = 16

Kind = Literal["failed", "fenced", "missed", "old"]


class Notice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened, and to what: `subject` names a task, a worker, a schedule or a queue.

    `queue`, `job` and `failure` tell of a job that failed. Of a schedule, `count` ticks were missed, the first of them
    at `since`; the oldest job of a queue has been due since then. Names and instants only: what a job was given, and
    what its error says, stays with the job.
    """

    kind: Kind
    subject: str
    at: Millis
    queue: str | None = None
    job: UUID | None = None
    failure: FailureKind | None = None
    since: Millis | None = None
    count: int = 1


def is_silent(task: str) -> bool:
    """Whether the failure of a job of this task is no news: what cannot be delivered must not lead to a message."""
    return task in (NOTICE, DELIVER) or task.startswith(RULES)


class FailedJob(Struct, frozen=True):
    """A job that has just failed for good, whatever the way; its token tells this failure from an earlier one."""

    number: int
    id: UUID
    task: str
    queue: str
    token: int
    kind: FailureKind | None


def of_failures(now: Millis, jobs: Iterable[FailedJob]) -> list[JobSpec]:
    """The notices of jobs that have failed, in the order of their numbers. One that fails again, after a retry, has
    another."""
    return [
        as_job(
            uuid5(job.id, f"failed {job.token} {now}"),
            Notice(kind="failed", subject=job.task, at=now, queue=job.queue, job=job.id, failure=job.kind),
        )
        for job in sorted(jobs, key=lambda job: job.number)
        if not is_silent(job.task)
    ]


def of_fences(now: Millis, workers: Iterable[tuple[UUID, str]]) -> list[JobSpec]:
    """The notices of workers, by id and name, that were found dead. A fence is for ever, so there is one of each."""
    return [as_job(uuid5(id, "fenced"), Notice(kind="fenced", subject=name, at=now)) for id, name in workers]


def of_misses(now: Millis, changes: Iterable[Change]) -> list[JobSpec]:
    """The notices of ticks that are written down as missed by these changes, one for each stretch of them."""
    return [
        as_job(
            uuid5(change.schedule.id, f"missed {firing.at}"),
            Notice(kind="missed", subject=change.schedule.name, at=now, since=firing.at, count=firing.ticks),
        )
        for change in changes
        for firing in change.firings
        if firing.entry.outcome is TickOutcome.MISSED and firing.ticks > 0
    ]


def as_job(id: UUID, notice: Notice) -> JobSpec:
    """The job that carries a notice. Its id is made from what happened, so however often it is stored, it is one."""
    return JobSpec(
        id=id, payload=json.encode(notice).decode(), task=NOTICE, queue=QUEUE, max_failures=MAX_FAILURES
    )
