"""What is told of the end of a run, once the store has accepted it."""

from collections.abc import Iterable

from shigoto.model.job import FailureKind, Job, Lease, State
from shigoto.model.secrets import unless_sealed, without_key
from shigoto.model.states import Counters, Held, after
from shigoto.model.worker import Ending, Settlement
from shigoto.observe import events
from shigoto.worker.pool import named

Ended = tuple[Lease, Settlement, float]  # and the seconds that it took


def completions(worker: str, ended: Iterable[Ended]) -> list[events.JobCompleted]:
    """Of runs that were completed. Without `named`: each call more is one for every job."""
    return [
        events.JobCompleted(
            worker, lease.id, lease.number, lease.task, lease.queue, lease.tenant, lease.attempt, seconds
        )
        for lease, _, seconds in ended
    ]


def event_of(
    worker: str, lease: Lease, settlement: Settlement, seconds: float, fate: Job | None
) -> events.Event:
    """What an accepted settlement that says something else than completed means, by the rules the store went by, or by
    its word."""
    job = named(worker, lease)
    if fate is not None and fate.state is State.COMPLETED:
        return events.JobCompleted(*job, seconds)
    if fate is not None and fate.failure_kind is FailureKind.CRASH_LOOP:
        return events.JobFailed(
            *job, seconds, FailureKind.CRASH_LOOP, _said(settlement), unless_sealed(settlement.traceback)
        )
    counters = Counters(failures=lease.failures, snoozes=lease.snoozes)
    move = after(Held(counters, lease.max_failures, max_crashes=None), settlement)
    if move.state is State.FAILED:
        kind = move.failure_kind or settlement.failure_kind
        return events.JobFailed(
            *job, seconds, kind, _said(settlement) or str(kind), unless_sealed(settlement.traceback)
        )
    if move.state is State.CANCELLED or (fate is not None and fate.state is State.CANCELLED):
        return events.JobCancelled(*job, seconds)
    if settlement.ending is Ending.RELEASED:
        return events.JobReleased(*job, seconds)
    if settlement.ending is Ending.CRASHED:
        return events.JobCrashed(*job, seconds, move.delay or 0, _said(settlement))
    if settlement.ending is Ending.SNOOZED:
        return events.JobSnoozed(*job, seconds, move.delay or 0)
    return events.JobRetried(*job, seconds, move.delay or 0, settlement.failure_kind, _said(settlement))


def _said(settlement: Settlement) -> str:
    """What is told of an error: of one that is encrypted, its type."""
    return "" if settlement.error is None else without_key(settlement.error)
