"""What the words of a worker elsewhere mean for the store: the end of a run, and lines of its log. Pure decisions."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from msgspec.structs import replace

from shigoto.codec import encode_json
from shigoto.context import LONGEST_LINE, MOST_LINES, MOST_LOG_BYTES, storable_level
from shigoto.model.errors import JobError, RequestInvalid
from shigoto.model.job import FailureKind, Job, LoggedLine, LogLine
from shigoto.model.text import ERROR_LIMIT, fit, spelt_out
from shigoto.model.time import LONGEST, Millis
from shigoto.model.worker import Ending, LogTail, Settlement
from shigoto.options import MAX_DEPTH, MAX_PAYLOAD
from shigoto.retry import Retry
from shigoto.server.worker_wire import Outcome, SettleRequest, WorkerLine

logger = logging.getLogger("shigoto.server")

MOST_TRACE = 16_000  # bytes
ENDINGS: Mapping[Outcome, Ending] = {
    "completed": Ending.COMPLETED,
    "errored": Ending.ERRORED,
    "failed": Ending.FAILED,
    "snoozed": Ending.SNOOZED,
    "released": Ending.RELEASED,
    "cancelled": Ending.CANCELLED,
}


def settlement(job: Job, said: SettleRequest, retry: Retry, random: Random) -> Settlement:
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


def tail(
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
