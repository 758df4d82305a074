"""Requests and answers of workers in any language, and what the end of a run means for the store.

Requests are JSON, and unknown fields are refused. What a request means is decided here, purely.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Annotated, Any, Literal, get_args
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from shigoto.codec import encode_json
from shigoto.context import LONGEST_LINE, MOST_LINES, MOST_LOG_BYTES, storable_level
from shigoto.model.errors import JobError, RequestInvalid
from shigoto.model.job import FailureKind, Job, LoggedLine, LogLine, State
from shigoto.model.text import ERROR_LIMIT, fit, spelt_out
from shigoto.model.time import LONGEST, Millis, Moment
from shigoto.model.worker import Ending, LogTail, Settlement, Verdict
from shigoto.options import MAX_DEPTH, MAX_PAYLOAD
from shigoto.retry import Retry
from shigoto.server.request_limits import LONGEST_WAIT

logger = logging.getLogger("shigoto.server")

MOST_TASKS = 1_000
MOST_AT_ONCE = 500
SHORTEST_LEASE, LONGEST_LEASE = 10, 3_600
LONGEST_DELAY = 100 * 365 * 86_400  # seconds
MOST_REPORTED_LINES = 100
MOST_HELD = 10_000

Name = Annotated[str, Meta(pattern="^[a-z0-9_][a-z0-9_.-]{0,99}$", description="The name of a task or queue")]
Label = Annotated[str, Meta(min_length=1, max_length=200)]
Names = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MOST_TASKS)]
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_DELAY)]
LeaseToken = Annotated[int, Meta(ge=0, le=2**31 - 1, description="The token of the lease, from the claim")]
Number = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(max_length=4_096)]
Outcome = Literal["completed", "errored", "failed", "snoozed", "released", "cancelled"]

MOST_TRACE = 16_000  # bytes
ENDINGS: Mapping[Outcome, Ending] = {outcome: Ending[outcome.upper()] for outcome in get_args(Outcome)}


class WorkerRegistration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker introduces itself. The same id again changes what it said."""

    name: Label
    tasks: Names
    queues: Names | None = None
    slots: Annotated[int, Meta(ge=1, le=100_000)] = 1
    lease: Annotated[float, Meta(ge=SHORTEST_LEASE, le=LONGEST_LEASE)] = 30.0
    isolates: Annotated[
        bool, Meta(description="It runs each job of `alone` in a process that it can afford to lose")
    ] = False
    id: UUID | None = None
    host: Annotated[str, Meta(max_length=200)] = ""
    pid: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    version: Annotated[str, Meta(max_length=100)] = ""


class WorkerRegistered(Struct, frozen=True, kw_only=True):
    """The worker's id, its lease, and how often it should show a sign of life, both in seconds."""

    worker: UUID
    lease: float
    beat_every: float


class HeldLease(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lease that the worker holds; the id is optional, and comes back with what is told of it."""

    number: Number
    token: LeaseToken
    id: UUID | None = None


Held = Annotated[
    tuple[HeldLease, ...],
    Meta(
        max_length=MOST_HELD,
        description="All that the worker holds: whatever else was given to it, more than ten seconds ago, is given"
        " back. If this is never sent, a job whose claim was answered in vain stays with the worker",
    ),
]


class ClaimRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many jobs the worker can start now; of which tasks and queues, if not of all that it registered. Always send
    `held`, if need be as an empty list: an answer can be lost on its way, and the jobs in it are only freed if the
    worker says that it has not got them."""

    limit: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = 1
    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT)] = 0.0
    held: Held | None = None
    tasks: Names | None = None
    queues: Names | None = None


class WorkItem(Struct, frozen=True, kw_only=True):
    """One job, leased. `token` is the lease: everything that is said of the job names it."""

    id: UUID
    number: int
    token: int
    task: str
    queue: str
    tenant: str
    attempt: int
    failures: int
    max_failures: int
    priority: int
    run_at: Moment
    claimed_at: Moment
    timeout: float | None
    key: str | None
    tags: Any
    meta: Any
    checkpoint: Any
    payload: Any
    alone: bool


class ClaimAnswer(Struct, frozen=True):
    """What the worker got; nothing, if nothing came in time."""

    jobs: list[WorkItem]


class BeatRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sign of life. Always send `held`, as with a claim; without it nothing is given back, and nothing is `lost`."""

    held: Held | None = None


class LeaseNotice(Struct, frozen=True, kw_only=True):
    """A lease that something is to be said of."""

    id: UUID | None
    number: int
    token: int


class BeatAnswer(Struct, frozen=True, kw_only=True):
    """Which jobs to stop: somebody wants them cancelled, or has taken them away."""

    cancels: list[LeaseNotice]
    lost: list[LeaseNotice]
    released: int


class WorkerLine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of a job's log."""

    text: Annotated[str, Meta(max_length=2_000)]
    level: Annotated[str, Meta(min_length=1, max_length=20)] = "info"


class ProgressReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """News of a run: how far it is, in what, and what it has written."""

    token: LeaseToken
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    text: Annotated[str, Meta(max_length=1_000)] | None = None
    log: Annotated[tuple[WorkerLine, ...], Meta(max_length=MOST_REPORTED_LINES)] = ()
    line: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=10**9,
                description="The number of the first of these lines, if the worker counts what it writes in a run, from"
                " 1 on: then what is sent twice is kept once. Else lines are numbered as they come: a report that is"
                " sent again doubles them, and of two reports at once the lines of one may be lost",
            ),
        ]
        | None
    ) = None


class CheckpointReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the next run can go on, if this one does not come to its end."""

    token: LeaseToken
    checkpoint: Any


class SettleRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a run ended. `errored` without a delay leaves it to the job's retry policy when to try again, and whether."""

    token: LeaseToken
    outcome: Outcome
    result: Any = None
    error: Text | None = None
    traceback: Annotated[str, Meta(max_length=65_536)] | None = None
    delay: Seconds | None = None


class SettleItem(SettleRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several."""

    id: UUID


class SettleBatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ends of several runs. Each is judged by itself."""

    settlements: Annotated[tuple[SettleItem, ...], Meta(min_length=1, max_length=MOST_AT_ONCE)]


class SettleAnswer(Struct, frozen=True, kw_only=True):
    """What became of it: `accepted`, or `repeated` if it was said before; and what the job is now."""

    verdict: Verdict
    state: State | None
    id: UUID | UnsetType = UNSET


class SettleBatchAnswer(Struct, frozen=True):
    """The same of each, in order; `lost` if the lease is no longer the worker's, `busy` if it should be said again."""

    verdicts: list[SettleAnswer]


class LeaveAnswer(Struct, frozen=True):
    """How many jobs the worker still held, which others can have now."""

    released: int


class DoorbellAnswer(Struct, frozen=True):
    """How often the doorbell has rung: work may be ready when it is another number than before."""

    rung: int


def settlement_of(job: Job, said: SettleRequest, retry: Retry, random: Random) -> Settlement:
    """The end of the job's run. When an error is tried again, if nobody says it, the job's policy decides, or else the
    task's. Raises RequestInvalid for a snooze without an end.
    """
    ending, delay, kind, result = ENDINGS[said.outcome], _millis(said.delay), FailureKind.ERROR, None
    error = said.error
    if ending is Ending.COMPLETED:
        try:
            result = encode_json(said.result, what="The result", max_bytes=MAX_PAYLOAD, max_depth=MAX_DEPTH)
        except JobError as refused:
            # The effect has happened; to run it again would only bring it about twice.
            ending, kind, error = Ending.FAILED, FailureKind.RESULT_INVALID, str(refused)
    elif ending is Ending.ERRORED and delay is None:
        delay = _delay(job, retry, random)
        ending = Ending.FAILED if delay is None else ending
    elif ending is Ending.SNOOZED and delay is None:
        raise RequestInvalid("A snooze takes a delay: for how many seconds.", "delay")
    return Settlement(
        number=job.number,
        token=said.token,
        queue=job.queue,
        ending=ending,
        result=result,
        error=None if error is None else fit(error, ERROR_LIMIT),
        traceback=None if said.traceback is None else fit(said.traceback, MOST_TRACE),
        failure_kind=kind,
        delay=delay if ending in (Ending.ERRORED, Ending.SNOOZED, Ending.RELEASED) else None,
    )


def refused(settlement: Settlement, error: Exception) -> Settlement:
    """The same run, whose result does not fit."""
    return replace(
        settlement,
        ending=Ending.FAILED,
        failure_kind=FailureKind.RESULT_INVALID,
        result=None,
        error=fit(str(error), ERROR_LIMIT),
    )


def log_tail_of(
    written: Iterable[LoggedLine],
    token: int,
    lines: Sequence[WorkerLine],
    now: Millis,
    *,
    first: int | None = None,
) -> LogTail:
    """New lines of a run, numbered from the `first` on, as their worker counts them, or else behind those that it has
    written. The newest are kept, as of any run."""
    before = {
        line.line: len(line.text.encode()) + len(line.level.encode())
        for line in written
        if line.token == token
    }
    number = max(before, default=0) + 1 if first is None else first
    new = [
        LogLine(at, now, storable_level(line.level), spelt_out(line.text)[:LONGEST_LINE])
        for at, line in enumerate(lines, number)
    ]
    sizes = {line.line: len(line.text.encode()) + len(line.level.encode()) for line in new} | before
    room, oldest = MOST_LOG_BYTES, max(sizes, default=number)
    for at in sorted(sizes, reverse=True)[:MOST_LINES]:
        room -= sizes[at]
        if room < 0:
            break
        oldest = at
    return LogTail(first=oldest, lines=tuple(line for line in new if line.line >= oldest))


def _delay(job: Job, retry: Retry, random: Random) -> Millis | None:
    try:
        policy = retry if job.retry is None else Retry.load(job.retry)
        delay = policy.delay(job.failures, None, random, max_failures=job.max_failures)
    except Exception:
        logger.exception(
            "The retry policy of job %d failed; the default policy is used",
            job.number,
            extra={
                "shigoto": {"job_id": str(job.id), "number": job.number, "task": job.task, "queue": job.queue}
            },
        )
        delay = Retry().delay(job.failures, None, random, max_failures=job.max_failures)
    return None if delay is None else min(max(0, delay), LONGEST)


def _millis(seconds: float | None) -> Millis | None:
    return None if seconds is None else round(seconds * 1000)
