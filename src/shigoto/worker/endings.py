"""What a handler's exception means for its job: the pure half of running one.

    RetryLater   counts as a failure, runs again after the delay it names
    Snooze       counts as nothing, runs again after the delay it names
    Cancel       the job ends as cancelled
    Fail         the job ends as failed(rejected), whatever retries are left
    any other    counts as a failure; the retry policy says when to run again, or to give up

The store has the last word: it counts, and it knows whether somebody has asked for a cancel.
"""

import logging
from random import Random

from msgspec import structs

from shigoto.context import Cancel, Fail, RetryLater, Signals, Snooze
from shigoto.model.clock import Millis
from shigoto.model.errors import OptionInvalid
from shigoto.model.job import FailureKind, Lease
from shigoto.model.outcome import Ending, Settlement
from shigoto.retry import Retry
from shigoto.worker.errortext import ERROR_LIMIT, describe, fit

logger = logging.getLogger("shigoto.worker")


def raised(
    lease: Lease,
    error: BaseException,
    retry: Retry,
    random: Random,
    *,
    kind: FailureKind = FailureKind.ERROR,
    skip: str = "",
) -> Settlement:
    """The end of a run that raised."""
    match error:
        case Snooze():
            return _ended(lease, Ending.SNOOZED, delay=error.delay)
        case Cancel():
            return cancelled(lease, fit(str(error), ERROR_LIMIT))
        case Fail():
            ending, delay, kind = Ending.FAILED, None, FailureKind.REJECTED
        case RetryLater():
            ending, delay = Ending.ERRORED, error.delay
        case _:
            delay = _delay(lease, error, retry, random)
            ending = Ending.FAILED if delay is None else Ending.ERRORED
    text, trace = describe(error, skip=skip)
    return _ended(lease, ending, delay=delay, error=text, trace=trace, kind=kind)


def refused(lease: Lease, error: BaseException, kind: FailureKind, *, skip: str = "") -> Settlement:
    """The end of a run whose arguments or result do not fit: running it again would not help."""
    text, trace = describe(error, skip=skip)
    return _ended(lease, Ending.FAILED, error=text, trace=trace, kind=kind)


def cancelled(lease: Lease, reason: str | None = None) -> Settlement:
    """The end of a run that was cancelled."""
    return _ended(lease, Ending.CANCELLED, error=reason)


def released(lease: Lease, delay: Millis | None = None) -> Settlement:
    """A lease goes back as if it had never been claimed (T8)."""
    return _ended(lease, Ending.RELEASED, delay=delay)


def with_progress(settlement: Settlement, signals: Signals) -> Settlement:
    """The same with the last progress: it is kept with the job after its end."""
    text = signals.progress_text
    return structs.replace(
        settlement,
        progress=signals.progress,
        progress_text=None if text is None else fit(text, ERROR_LIMIT),
    )


def _ended(
    lease: Lease,
    ending: Ending,
    *,
    delay: Millis | None = None,
    error: str | None = None,
    trace: str | None = None,
    kind: FailureKind = FailureKind.ERROR,
) -> Settlement:
    return Settlement(
        number=lease.number,
        token=lease.token,
        queue=lease.queue,
        ending=ending,
        error=error,
        traceback=trace,
        failure_kind=kind,
        delay=delay,
    )


def _delay(lease: Lease, error: BaseException, retry: Retry, random: Random) -> Millis | None:
    """By the job's own policy before the task's; a policy that is broken must not cost the job its retries."""
    try:
        policy = retry if lease.retry is None else Retry.load(lease.retry)
    except OptionInvalid:
        logger.exception(
            "Job %d has a retry policy that cannot be read; its task's policy is used", lease.number
        )
        policy = retry
    try:
        return policy.delay(lease.failures, error, random, max_failures=lease.max_failures)
    except Exception:
        logger.exception("The retry policy of task %s failed; the default policy is used", lease.task)
        return Retry().delay(lease.failures, error, random, max_failures=lease.max_failures)
