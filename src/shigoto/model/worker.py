"""The messages between a worker and the store: announcements, wants, settlements and their answers.

A worker says who it is (`Announcement`), what it can start (`Want`), how its runs are (`Report`) and how they ended
(`Settlement`); the store answers with leases, with `Orders` to a beat, and with a `Verdict` on each settlement.
"""

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from uuid import UUID

from msgspec import Struct

from shigoto.model.job import FailureKind, Lease, LogLine, State
from shigoto.model.time import Millis, Moment

# What a worker does unless it is told otherwise; how many threads and child processes it has depends on the machine.
LEASE: Millis = 30_000
POLL: Millis = 1_000
STOP_TIMEOUT: Millis = 28_000
CONCURRENCY = 100

CLAIM_DEADLINE: Millis = 10_000
# Of payloads, checkpoints and the like; with so many of them a claim may be answered with fewer jobs than are wanted.
CLAIM_BYTES = 8 * 1024 * 1024


class Announcement(Struct, frozen=True, kw_only=True):
    """How a worker introduces itself; the id is random per boot, so a fenced one never comes back.

    `isolates` says that it can run a job in a process of its own. `owner` is the id of the token by which it came
    to the store, which a server puts in, whatever the worker says; None if it is at the store itself.
    """

    id: UUID
    name: str
    tasks: tuple[str, ...]
    queues: tuple[str, ...] | None
    slots: int
    version: str
    lease: Millis = LEASE
    host: str = ""
    pid: int = 0
    isolates: bool = False
    stopping: bool = False
    owner: str | None = None


class WorkerRecord(Struct, frozen=True, kw_only=True):
    """A worker as people see it, a snapshot. `owner` is the id of the token that it was registered by, if by one."""

    id: UUID
    name: str
    tasks: tuple[str, ...]
    queues: tuple[str, ...] | None
    slots: int
    version: str
    host: str
    pid: int
    isolates: bool
    stopping: bool
    started_at: Moment
    lease_until: Moment
    fenced_at: Moment | None
    processing: int
    owner: str | None = None


class Want(Struct, frozen=True, kw_only=True):
    """What one pool of slots can start now: at most `limit` jobs of these tasks from these queues (None: from all).

    `alone` chooses among jobs by whether they must run in a process of their own; None takes either. Nothing that is
    ready may be overlooked if the want is `thorough`; else an engine may, for a second, where it would be dear to see.
    """

    tasks: tuple[str, ...]
    queues: tuple[str, ...] | None
    limit: int
    alone: bool | None = None
    thorough: bool = False


def is_large(leases: Sequence[Lease]) -> bool:
    """Whether the store may have stopped because of their size, so that more is ready.

    On their way some of these texts were escaped, which makes them up to six times as long.
    """
    size = 0
    for lease in leases:
        size += (
            len(lease.payload) + len(lease.checkpoint or "") + len(lease.meta or "") + len(lease.tags or "")
        )
    return size > CLAIM_BYTES // 8


class Orders(Struct, frozen=True, kw_only=True):
    """What the store answers to a beat.

    `lost` are leases that the worker believes to hold and does not: somebody has taken them away by force. What it has
    settled itself, a moment ago or in a handler's transaction, is not among them.
    """

    fenced: bool
    cancels: tuple[tuple[int, int], ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    released: int = 0


class Promoted(Struct, frozen=True):
    """How many due jobs became ready, and in how many milliseconds the next one will be due."""

    count: int
    next_in: Millis | None


class SweepOrder(Struct, frozen=True, kw_only=True):
    """What one sweep may do: which workers to fence (seen expired twice), how long to keep what, how much at once.

    Jobs that have been due for longer than `unknown_after`, of a task that no registered worker has known for as long,
    as far as sweeps have seen, are failed; None leaves them to wait. That the only worker of a task is away for a
    moment must cost none of its jobs, nor may a night in which nobody ran at all: if for longer than `longest_gap` no
    sweep has looked for such tasks, the time begins again.
    """

    fence: tuple[UUID, ...] = ()
    keep_completed_for: Millis = 7 * 86_400_000
    keep_failed_for: Millis = 30 * 86_400_000
    keep_cancelled_for: Millis = 30 * 86_400_000
    unknown_after: Millis | None = None
    longest_gap: Millis = LEASE
    batch: int = 1_000


class Rescued(Struct, frozen=True):
    """One job that a sweep took from a worker that is gone."""

    id: UUID
    number: int
    task: str
    state: State


class Swept(Struct, frozen=True, kw_only=True):
    """What one sweep saw and did; `more` says that a batch was full and another sweep has work at once."""

    expired_workers: tuple[UUID, ...] = ()
    shortest_lease: Millis | None = None  # of all workers that are not fenced, the expired ones included
    fenced: tuple[UUID, ...] = ()
    rescued: tuple[Rescued, ...] = ()
    expired: int = 0
    unknown: tuple[str, ...] = ()  # the tasks of jobs that failed because nobody knows them
    pruned: int = 0
    clock_step: Millis = 0
    more: bool = False


UNTOLD = ""  # the queue of a run, where nobody's word is taken for it
KEPT_RELEASES = 100  # a released run is kept for so many claims of its job; nothing else bounds them


class Ending(IntEnum):
    """How a run ended, as its worker saw it; the store decides what that means for the job."""

    COMPLETED = 1
    ERRORED = 2  # may be retried
    FAILED = 3  # must not be retried
    SNOOZED = 4
    RELEASED = 5  # given back unrun or cut short by a stop; counts as nothing
    CANCELLED = 6
    CRASHED = 7  # the process died under it


class LogTail(Struct, frozen=True, gc=False):
    """What a run has written since it was last told: new lines, and the oldest (`first`) that is still to be kept."""

    first: int
    lines: tuple[LogLine, ...]


class Settlement(Struct, frozen=True, kw_only=True, gc=False):
    """One run's end, guarded by (number, token, worker).

    `delay` is the wait before the next run for ERRORED, SNOOZED and CRASHED, computed by the retry policy; a RELEASED
    or CRASHED job keeps its run_at unless a delay is given. `alone` says of a crash that nobody else was in the
    process, so that it counts towards quarantine. `queue` spares the store a look at the job: it is taken at its word,
    unless it is UNTOLD. `ran` says whether the handler was called: a lease that was given
    back without that leaves no trace in the job's history.
    """

    number: int
    token: int
    queue: str
    ending: Ending
    result: str | None = None
    error: str | None = None
    traceback: str | None = None
    failure_kind: FailureKind = FailureKind.ERROR
    delay: Millis | None = None
    alone: bool = False
    ran: bool = True
    progress: float | None = None
    progress_text: str | None = None
    log: LogTail | None = None


def leaves_a_trace(settlement: Settlement) -> bool:
    """Whether a run that ended so belongs into the history of its job."""
    return settlement.ran or settlement.ending is not Ending.RELEASED


class Death(Struct, frozen=True, kw_only=True):
    """One job that was running when its worker's process died, and what is known of that death.

    `alone` says that nothing else ran there, so that it counts towards quarantine.
    """

    number: int
    error: str | None = None
    traceback: str | None = None
    delay: Millis | None = None
    alone: bool = False


class Verdict(StrEnum):
    """What became of a settlement."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"  # this very lease was settled before: the earlier try did commit
    LOST = "lost"  # the lease is no longer this worker's; nothing was written
    BUSY = "busy"  # somebody else has locked the job, so that nothing was written: try again


class Report(Struct, frozen=True, kw_only=True):
    """News of a run in progress, guarded like a settlement; fields that are None stay as they are."""

    number: int
    token: int
    progress: float | None = None
    progress_text: str | None = None
    checkpoint: str | None = None
    log: LogTail | None = None
