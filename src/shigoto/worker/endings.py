"""What a handler's exception means for its job: the pure half of running one.

    RetryLater   counts as a failure, runs again after the delay it names
    Snooze       counts as nothing, runs again after the delay it names
    Cancel       the job ends as cancelled
    Fail         the job ends as failed(rejected), whatever retries are left
    any other    counts as a failure; the retry policy says when to run again, or to give up

The store has the last word: it counts, and it knows whether somebody has asked for a cancel.

What handlers and their policies say is not believed blindly. A subclass of Snooze can carry any `delay`, and a
settlement that no store can write would come back for ever.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from random import Random
from traceback import format_tb

from msgspec import structs

from shigoto.context import Cancel, Fail, RetryLater, Signals, Snooze
from shigoto.model.errors import EncryptionKeyMissing, OptionInvalid
from shigoto.model.job import FailureKind, Lease, LogLine
from shigoto.model.secrets import is_sealed, without_key
from shigoto.model.states import CRASH_DELAY
from shigoto.model.text import ERROR_LIMIT, fit, message_of, name_of
from shigoto.model.time import LONGEST, Millis
from shigoto.model.worker import Ending, Settlement
from shigoto.retry import Retry
from shigoto.worker.errortext import LIMIT, describe

logger = logging.getLogger("shigoto.worker")

NOT_COMMITTED = "the transaction that finished this job was not committed"
LEFT_OPEN = "the handler returned inside its transaction block: nothing of it was committed"
TROUBLE_DELAY = 5_000
KEYLESS_DELAY = 60_000
NO_DELAY = (
    "its delay is no whole number of milliseconds; it counts as a failure, and the retry policy decides"
)


def raised(
    lease: Lease,
    error: BaseException,
    retry: Retry,
    random: Random,
    *,
    kind: FailureKind = FailureKind.ERROR,
    skip: Collection[str] = (),
    hide: Callable[[str], str] = str,
) -> Settlement:
    """The end of a run that raised; `hide` takes its secrets out of what is said of it."""
    if isinstance(error, Cancel):
        return cancelled(lease, fit(hide(message_of(error)), ERROR_LIMIT))
    asked = _asked_for(lease, error) if isinstance(error, Snooze | RetryLater) else None
    if isinstance(error, Snooze) and asked is not None:
        return _ended(lease, Ending.SNOOZED, delay=asked)
    if isinstance(error, Fail):
        ending, delay, kind = Ending.FAILED, None, FailureKind.REJECTED
    else:
        delay = _delay(lease, error, retry, random) if asked is None else asked
        ending = Ending.FAILED if delay is None else Ending.ERRORED
    text, trace = describe(error, skip=skip, hide=hide)
    if asked is None and isinstance(error, Snooze | RetryLater):
        text = fit(f"{type(error).__qualname__}: {NO_DELAY}", ERROR_LIMIT)
    return _ended(lease, ending, delay=delay, error=text, trace=trace, kind=kind)


def refused(
    lease: Lease,
    error: BaseException,
    kind: FailureKind,
    *,
    skip: Collection[str] = (),
    hide: Callable[[str], str] = str,
) -> Settlement:
    """The end of a run whose arguments or result do not fit: running it again would not help."""
    text, trace = describe(error, skip=skip, hide=hide)
    return _ended(lease, Ending.FAILED, error=text, trace=trace, kind=kind)


def undescribed(lease: Lease, error: BaseException, kind: FailureKind, random: Random) -> Settlement:
    """The end of a run whose error, or whose retry policy, does not even let itself be asked."""
    text = fit(f"{name_of(error)}: <it cannot be described without raising anew>", ERROR_LIMIT)
    if kind in (FailureKind.PAYLOAD_INVALID, FailureKind.RESULT_INVALID):
        return _ended(lease, Ending.FAILED, error=text, kind=kind)
    delay = Retry().delay(lease.failures, None, random, max_failures=lease.max_failures)
    ending = Ending.FAILED if delay is None else Ending.ERRORED
    return _ended(lease, ending, delay=delay, error=text, kind=kind)


def silent(settlement: Settlement) -> Settlement:
    """The same end without what the run has said: that it cannot be stored must not make a success a failure."""
    return structs.replace(settlement, progress=None, progress_text=None, log=None)


def instead_of(settlement: Settlement, other: Settlement) -> Settlement:
    """Another end of the same run, which has said the same."""
    return structs.replace(
        other,
        progress=settlement.progress,
        progress_text=settlement.progress_text,
        log=settlement.log,
    )


def unstorable(lease: Lease, settlement: Settlement, error: Exception) -> Settlement:
    """What is settled instead of something that the store cannot write; final, for it would come back."""
    done = settlement.ending is Ending.COMPLETED
    kind = FailureKind.RESULT_INVALID if done else FailureKind.ERROR
    text, _ = describe(error)
    before = "" if settlement.error is None else f", after {without_key(settlement.error)}"
    text = f"The end of this run ({settlement.ending.name}) cannot be stored: {text}{before}"
    return _ended(lease, Ending.FAILED, error=fit(text, ERROR_LIMIT), kind=kind)


def cancelled(lease: Lease, reason: str | None = None) -> Settlement:
    """The end of a run that was cancelled."""
    return _ended(lease, Ending.CANCELLED, error=reason)


def released(lease: Lease, delay: Millis | None = None, *, ran: bool = True) -> Settlement:
    """A lease goes back as if it had never been claimed (T8); `ran` if its handler was called."""
    return _ended(lease, Ending.RELEASED, delay=delay, ran=ran)


def troubled(lease: Lease, error: Exception) -> Settlement:
    """The store could not take the transaction of the job, which says nothing about the job."""
    logger.warning("Job %d is given back: the store did not take its transaction: %s", lease.number, error)
    return released(lease, TROUBLE_DELAY)


def keyless(lease: Lease, error: BaseException) -> Settlement:
    """The job is encrypted, and this worker has not got the key: that is no fault of the job, which waits for one that
    has. What is missing stands in its history."""
    text = fit(
        message_of(error)
        if isinstance(error, EncryptionKeyMissing)
        else f"The arguments of job {lease.id} ({lease.task}) are encrypted, and this worker has no key.",
        ERROR_LIMIT,
    )
    _complain_of_keys(lease.task, text)
    return structs.replace(released(lease, KEYLESS_DELAY), error=text)


@lru_cache(maxsize=1_000)
def _complain_of_keys(task: str, text: str) -> None:
    """Once for each job, however often it comes back."""
    logger.error(
        "%s A job of %s is given back, and is tried again in %d s, here or by a worker that has the key",
        text,
        task,
        KEYLESS_DELAY // 1000,
    )


def crashed(lease: Lease, error: str, stack: str, lines: Iterable[LogLine]) -> Settlement:
    """The process of the job has died, and nobody else was in it (T9)."""
    text = fit(error, ERROR_LIMIT)
    return structs.replace(
        _ended(lease, Ending.CRASHED, delay=CRASH_DELAY, error=text, trace=last_words(text, stack, lines)),
        alone=True,
    )


def last_words(error: str, stack: str, lines: Iterable[LogLine]) -> str | None:
    """What is known of a process that is gone: where it was, and what it has written last; None if nothing is."""
    written = [f"{line.level}: {line.text}" for line in lines if not is_sealed(line.text)]
    parts = [stack.rstrip()] if stack.strip() else []
    parts += ["\n".join(["last log lines:", *written])] if written else []
    return fit("\n\n".join(parts), LIMIT - len(error.encode()), keep_end=True) if parts else None


def with_signals(settlement: Settlement, signals: Signals) -> Settlement:
    """The same with what the run has said last, progress and log lines, which are kept after the end; and cancelled,
    if the job was asked to stop and did anything but succeed (T13)."""
    cancelled = signals.cancelled and settlement.ending is not Ending.COMPLETED
    return structs.replace(
        settlement,
        ending=Ending.CANCELLED if cancelled else settlement.ending,
        delay=None if cancelled else settlement.delay,
        progress=signals.progress,
        progress_text=signals.progress_text,
        log=None if signals.lines is None else signals.lines.tail(),
    )


def after_commit(lease: Lease, settlement: Settlement, signals: Signals) -> Settlement:
    """What is settled after a transaction has completed the job: the same once more, whatever happened since."""
    if settlement.ending is not Ending.COMPLETED:
        said = settlement if signals.cover is None else signals.cover.settlement(settlement, 0)
        logger.error(
            "Job %d was completed by its transaction; what happened afterwards changes nothing: %s",
            lease.number,
            without_key(said.error or said.ending.name.lower()),
        )
    elif settlement.result not in ("null", signals.result):
        logger.warning(
            "Job %d was completed by its transaction; what its handler returned afterwards is dropped."
            " Give it to tx.finish() instead",
            lease.number,
        )
    return _ended(lease, Ending.COMPLETED)


def _ended(
    lease: Lease,
    ending: Ending,
    *,
    delay: Millis | None = None,
    error: str | None = None,
    trace: str | None = None,
    kind: FailureKind = FailureKind.ERROR,
    ran: bool = True,
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
        ran=ran,
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
        delay = policy.delay(lease.failures, error, random, max_failures=lease.max_failures)
        return None if delay is None else min(max(0, delay), LONGEST)
    except Exception as broken:
        # What it says may be what the handler's error says, and that may be encrypted.
        logger.error(
            "The retry policy of task %s failed; the default policy is used: %s\n%s",
            lease.task,
            name_of(broken),
            "".join(format_tb(broken.__traceback__)),
        )
        return Retry().delay(lease.failures, error, random, max_failures=lease.max_failures)


def _asked_for(lease: Lease, error: Snooze | RetryLater) -> Millis | None:
    """The delay that the handler named, within reason; None if it is no number of milliseconds at all."""
    try:
        delay: object = error.delay
    except Exception:
        delay = None
    if type(delay) is int and delay >= 0:
        return min(delay, LONGEST)
    logger.error("Job %d raised %s: %s", lease.number, type(error).__qualname__, NO_DELAY)
    return None
