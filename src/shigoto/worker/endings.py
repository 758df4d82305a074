"""The meaning of a handler's exception for its job, and its text: the pure half of running one.

    RetryLater   counts as a failure, runs again after the delay it names
    Snooze       counts as nothing, runs again after the delay it names
    Cancel       the job ends as cancelled
    Fail         the job ends as failed(rejected), whatever retries are left
    any other    counts as a failure; the retry policy says when to run again, or to give up

The store has the last word: it counts, and it knows whether somebody has asked for a cancel.

What handlers and their policies say is not believed blindly. A subclass of Snooze can carry any `delay`, and a
settlement that no store can write would come back for ever.

Texts of errors can always be stored (`describe`): they are never too long, and always valid. Handlers raise anything:
errors whose `__str__` raises, messages of 50 MB, texts with NUL or half a surrogate pair, which stores refuse.
Describing an error must not become the next error. (One whose `__str__` raises SystemExit still is: `runner.py` stands
behind this.)
"""

import asyncio
import linecache
import logging
import traceback
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from itertools import islice
from random import Random
from traceback import format_tb
from types import CodeType, FrameType, TracebackType
from typing import Any

from msgspec import structs

from shigoto.context import Cancel, Fail, RetryLater, Signals, Snooze
from shigoto.model.errors import EncryptionKeyMissing, OptionInvalid
from shigoto.model.job import FailureKind, Lease, LogLine
from shigoto.model.secrets import is_encrypted, scrubbed, without_key
from shigoto.model.states import CRASH_DELAY
from shigoto.model.text import ERROR_LIMIT, fit, message_of, name_of
from shigoto.model.time import LONGEST, Millis
from shigoto.model.worker import Ending, Settlement
from shigoto.retry import Retry

logger = logging.getLogger("shigoto.worker")

NOT_COMMITTED = "the transaction that finished this job was not committed"
LEFT_OPEN = "the handler returned inside its transaction block: nothing of it was committed"
TROUBLE_DELAY = 5_000
KEYLESS_DELAY = 60_000
NO_DELAY = (
    "its delay is no whole number of milliseconds; it counts as a failure, and the retry policy decides"
)
DETAILS_LIMIT = 16 * 1024  # bytes of UTF-8, error and traceback together
MOST_FRAMES = 40


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
    """Return the end of a run that raised; `hide` removes its secrets."""
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
    """Return the end of a run whose arguments or result do not fit: running it again would not help."""
    text, trace = describe(error, skip=skip, hide=hide)
    return _ended(lease, Ending.FAILED, error=text, trace=trace, kind=kind)


def undescribed(lease: Lease, error: BaseException, kind: FailureKind, random: Random) -> Settlement:
    """Return the end of a run whose error or retry policy raises when it is asked."""
    text = fit(f"{name_of(error)}: <it cannot be described without raising anew>", ERROR_LIMIT)
    if kind in (FailureKind.PAYLOAD_INVALID, FailureKind.RESULT_INVALID):
        return _ended(lease, Ending.FAILED, error=text, kind=kind)
    delay = Retry().delay(lease.failures, None, random, max_failures=lease.max_failures)
    ending = Ending.FAILED if delay is None else Ending.ERRORED
    return _ended(lease, ending, delay=delay, error=text, kind=kind)


def silent(settlement: Settlement) -> Settlement:
    """Return the same end without progress and log: if these cannot be stored, a success must stay one."""
    return structs.replace(settlement, progress=None, progress_text=None, log=None)


def unstorable(lease: Lease, settlement: Settlement, error: Exception) -> Settlement:
    """Return the end that replaces one which the store cannot write; final, or it would come back."""
    done = settlement.ending is Ending.COMPLETED
    kind = FailureKind.RESULT_INVALID if done else FailureKind.ERROR
    text, _ = describe(error)
    before = "" if settlement.error is None else f", after {without_key(settlement.error)}"
    text = f"The end of this run ({settlement.ending.name}) cannot be stored: {text}{before}"
    return _ended(lease, Ending.FAILED, error=fit(text, ERROR_LIMIT), kind=kind)


def cancelled(lease: Lease, reason: str | None = None) -> Settlement:
    return _ended(lease, Ending.CANCELLED, error=reason)


def released(lease: Lease, delay: Millis | None = None, *, ran: bool = True) -> Settlement:
    """Return the end that gives a lease back as if it had never been claimed (T8); `ran` if its handler was called."""
    return _ended(lease, Ending.RELEASED, delay=delay, ran=ran)


def troubled(lease: Lease, error: Exception) -> Settlement:
    """Release a job whose transaction the store could not take: that says nothing about the job."""
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
    """Log once for each job, however often it comes back."""
    logger.error(
        "%s A job of %s is given back, and is tried again in %d s, here or by a worker that has the key",
        text,
        task,
        KEYLESS_DELAY // 1000,
    )


def crashed(lease: Lease, error: str, stack: str, lines: Iterable[LogLine]) -> Settlement:
    """Return the end of a job whose process has died with no other job in it (T9)."""
    text = fit(error, ERROR_LIMIT)
    return structs.replace(
        _ended(lease, Ending.CRASHED, delay=CRASH_DELAY, error=text, trace=crash_report(text, stack, lines)),
        alone=True,
    )


def crash_report(error: str, stack: str, lines: Iterable[LogLine]) -> str | None:
    """Describe a process that is gone: where it was, and its last log lines; None if nothing is known."""
    written = [f"{line.level}: {line.text}" for line in lines if not is_encrypted(line.text)]
    parts = [stack.rstrip()] if stack.strip() else []
    parts += ["\n".join(["last log lines:", *written])] if written else []
    return fit("\n\n".join(parts), DETAILS_LIMIT - len(error.encode()), keep_end=True) if parts else None


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
    """Return the end of a job that its transaction has completed: completed, whatever happened since."""
    if settlement.ending is not Ending.COMPLETED:
        said = settlement if signals.redaction is None else signals.redaction.settlement(settlement, 0)
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
    """Ask the job's own policy before the task's; a policy that fails must not cost the job its retries."""
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
    """Return the delay that the handler named, within bounds; None if it is not a number of milliseconds."""
    try:
        delay: object = error.delay
    except Exception:
        delay = None
    if type(delay) is int and delay >= 0:
        return min(delay, LONGEST)
    logger.error("Job %d raised %s: %s", lease.number, type(error).__qualname__, NO_DELAY)
    return None


def describe(
    error: BaseException, *, skip: Collection[str] = (), hide: Callable[[str], str] = str
) -> tuple[str, str | None]:
    """The error as `Type: message`, and its traceback without the frames of the files `skip` at both ends.

    `hide` takes secrets out of them, before they are cut: half of a secret would not be known as one.
    """
    name = name_of(error)
    message = message_of(error)
    text = fit(scrubbed(hide(f"{name}: {message}" if message else name)), ERROR_LIMIT)
    frames = _without(error.__traceback__, skip)
    if frames is None:
        return text, None
    trace = _short_trace(text, frames) if len(message) > ERROR_LIMIT else _trace(error, frames, skip)
    return text, fit(scrubbed(hide(trace)), DETAILS_LIMIT - len(text.encode()), keep_end=True)


def stack_of(frame: FrameType, *, skip: Collection[str] = ()) -> str:
    """Return the stack of a thread now, without the frames of the files `skip`; the most recent call last."""
    entries = traceback.extract_stack(frame, MOST_FRAMES)
    lines = traceback.format_list([entry for entry in entries if entry.filename not in skip])
    return fit("".join(lines), DETAILS_LIMIT, keep_end=True)


def stack_of_task(task: "asyncio.Task[Any]", *, skip: Collection[str] = ()) -> str:
    """Return the stack of a suspended task, without the frames of the files `skip`; the most recent call last."""
    frames: list[tuple[FrameType, int]] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(frames) < MOST_FRAMES:
        frame = _attribute_of(awaited, "frame")
        if isinstance(frame, FrameType):
            frames.append((frame, frame.f_lineno))
        awaited = _attribute_of(awaited, "await") or _attribute_of(awaited, "yieldfrom")
    entries = traceback.StackSummary.extract(iter(frames))
    lines = traceback.format_list([entry for entry in entries if entry.filename not in skip])
    return fit("".join(lines), DETAILS_LIMIT, keep_end=True)


def _attribute_of(awaited: object, name: str) -> Any:
    found = (getattr(awaited, f"{kind}_{name}", None) for kind in ("cr", "gi", "ag"))
    return next((value for value in found if value is not None), None)


def _without(frames: TracebackType | None, skip: Collection[str]) -> TracebackType | None:
    """Leave out the frames in which the runtime calls the handler."""
    while frames is not None and frames.tb_frame.f_code.co_filename in skip:
        frames = frames.tb_next
    return frames


def _trace(error: BaseException, frames: TracebackType, skip: Collection[str]) -> str:
    try:
        quick = _quick_trace(error, frames, skip) if _stands_alone(error) else None
        if quick is not None:
            return quick
        told = traceback.TracebackException(type(error), error, frames, limit=-MOST_FRAMES, compact=True)
        while told.stack and told.stack[-1].filename in skip:
            # What the runtime has raised in a handler, it has not raised by itself.
            told.stack.pop()
        return "".join(told.format())
    except Exception as broken:
        return f"<the traceback cannot be shown: {type(broken).__qualname__}>"


def _stands_alone(error: BaseException) -> bool:
    """Return True if there is nothing to tell but its own frames and its message."""
    linked = error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__)
    # A NameError makes a suggestion by what its frame knows.
    return not linked and not isinstance(error, BaseExceptionGroup | SyntaxError | NameError)


def _quick_trace(error: BaseException, frames: TracebackType, skip: Collection[str]) -> str | None:
    """The same text for a tenth: handlers fail in the same places again and again, and to find the line of a place, and
    what to underline in it, takes up to 60 µs, so it is remembered. None for a recursion, which is told in other words.
    """
    places: list[TracebackType] = []
    at: TracebackType | None = frames
    while at is not None:
        places.append(at)
        at = at.tb_next
    while places and places[-1].tb_frame.f_code.co_filename in skip:
        places.pop()
    if any(place.tb_lasti < 0 for place in places):  # made by hand
        return None
    texts = [_place(place) for place in places[-MOST_FRAMES:]]
    if len(set(texts)) < len(texts):
        return None
    last = traceback.TracebackException(type(error), error, None, compact=True).format_exception_only()
    return "".join([*(["Traceback (most recent call last):\n"] if texts else []), *texts, *last])


def _place(at: TracebackType) -> str:
    code = at.tb_frame.f_code
    linecache.lazycache(code.co_filename, at.tb_frame.f_globals)  # where the source may lie, if not in a file
    return _place_in(code, code.co_filename, at.tb_lasti)


@lru_cache(maxsize=1_000)
def _place_in(code: CodeType, filename: str, instruction: int) -> str:
    """Return the text of a place; the file is named because codes of two files can be equal."""
    line, end_line, column, end_column = next(islice(code.co_positions(), instruction // 2, None))
    entry = traceback.FrameSummary(
        filename, line, code.co_name, end_lineno=end_line, colno=column, end_colno=end_column
    )
    return "".join(traceback.format_list([entry]))


def _short_trace(text: str, frames: TracebackType) -> str:
    return "".join([*traceback.format_tb(frames, -MOST_FRAMES), text[:200]])
