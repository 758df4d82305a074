"""The two log lines of a job that goes well, made without a record of the standard library for each of them.

To make a record, to pass it around and to format it takes thirty microseconds, and a job takes eleven. But these lines
differ in little: the time, the job's number and id, the attempt, the duration. So each task's line is made once, the
long way, of a job whose number and so on can be found in it, and cut into pieces there. What is then put together of
them is what the formatter would have given, to the letter.

This is right only if nobody could tell the difference: the one handler that would get the record is ours, with nothing
in between that might want to see it. That is asked again in every millisecond in which somebody tells. If it is not
so, lines go the long way. Whatever a formatter or a filter makes of one of them, the others are written.
"""

import logging
import re
from collections.abc import Callable, Sequence
from contextvars import Context
from time import time
from uuid import UUID

from msgspec import to_builtins

from shigoto.observe.events import Event, JobCompleted, JobStarted
from shigoto.observe.log_format import LogHandler, time_text
from shigoto.observe.log_writer import MOST_LINES, LosslessWriter

logger = logging.getLogger("shigoto.observe")

MOST_KNOWN = 4096  # tasks, each in a queue and of a tenant
MOST_DURATIONS = 10_000  # microseconds that are known as text

Key = tuple[str, str, str, str]  # worker, task, queue, tenant
Pieces = tuple[str, ...]  # of a line, between what differs; none if it cannot be cut so

# A job that nobody has. What stands in its line, in this order, is what differs from job to job.
CREATED, NUMBER, ATTEMPT, DURATION = (
    946_684_799.123,
    8_675_309_143_298_667,
    7_341_298_667_530_941,
    86_753.482913,
)
ID = UUID("8f0e9a51-7c36-4d2b-b1a4-63e5d7c08f92")
TIME = time_text(CREATED)
DIFFERENT = (TIME, str(NUMBER), str(ID), str(NUMBER), str(ATTEMPT))
DIFFERENT_AT_THE_END = (*DIFFERENT, str(DURATION))

_FOUND = re.compile("|".join(re.escape(each) for each in DIFFERENT_AT_THE_END))
_WAYS = (
    "isEnabledFor",
    "makeRecord",
    "handle",
    "callHandlers",
    "filter",
)  # of a record; others may have changed them


class JobLines:
    """Writes the lines of jobs that go well. For one event loop; `write` is the long way, `record_of` a part of it."""

    def __init__(
        self,
        logger: logging.Logger,
        record_of: Callable[[Event], logging.LogRecord],
        write: Callable[[Event], None],
    ) -> None:
        self._logger = logger
        self._record_of = record_of
        self._write = write
        # Imported here: whoever only enqueues needs no asyncio.
        from asyncio import CancelledError

        self._failures = (Exception, CancelledError)
        self._since = self._until = 0.0  # the millisecond at hand
        self._time = ""
        self._shows_time = True
        self._writer: LosslessWriter | None = None
        self._formatter: logging.Formatter | None = None
        self._terminator = ""
        self._started: dict[Key, Pieces] = {}
        self._completed: dict[Key, Pieces] = {}
        self._durations: dict[int, str] = {}  # by microseconds

    def started(self, event: JobStarted) -> None:
        """A handler is about to be called."""
        if not self._since <= (now := time()) < self._until:
            self._look(now)
        writer = self._writer
        key = event.worker, event.task, event.queue, event.tenant
        pieces = self._started.get(key)
        if pieces is None:
            pieces = self._learn(self._started, key, JobStarted(*_sample(key)), DIFFERENT)
        if writer is None or not pieces:
            self._write(event)
            return
        first, second, third, fourth, fifth, last = pieces
        number, id = str(event.number), to_builtins(event.job_id)
        writer.lines.append(
            f"{first}{self._time}{second}{number}{third}{id}{fourth}{number}{fifth}{event.attempt}{last}"
        )
        if writer.asleep:
            writer.wake()

    def completed(self, batch: Sequence[JobCompleted]) -> None:
        """They have returned, and their results are stored."""
        if not self._since <= (now := time()) < self._until:
            self._look(now)
        writer, shown, known, durations = self._writer, self._time, self._completed, self._durations
        if writer is None:
            for event in batch:
                self._write_safely(event)
            return
        add = writer.lines.append
        ids: list[str] = to_builtins([event.job_id for event in batch])
        for event, id in zip(batch, ids, strict=True):
            key = event.worker, event.task, event.queue, event.tenant
            pieces = known.get(key)
            if pieces is None:
                sample = JobCompleted(*_sample(key), DURATION)
                pieces = self._learn(known, key, sample, DIFFERENT_AT_THE_END)
            if not pieces:
                self._write_safely(event)
                continue
            first, second, third, fourth, fifth, sixth, last = pieces
            number, micros = str(event.number), round(event.duration * 1e6)
            duration = durations.get(micros) or self._duration(micros)
            add(
                f"{first}{shown}{second}{number}{third}{id}{fourth}{number}{fifth}{event.attempt}{sixth}"
                f"{duration}{last}"
            )
        if writer.asleep:
            writer.wake()

    def _write_safely(self, event: JobCompleted) -> None:
        """The long way, which may lead past code of others."""
        try:
            self._write(event)
        except self._failures:
            logger.exception("The line of a job that was completed could not be written; the worker goes on")

    def _duration(self, micros: int) -> str:
        """As text. The durations of short jobs are always the same few, and a float takes long to print."""
        text = repr(micros / 1e6)
        if micros < MOST_DURATIONS:
            self._durations[micros] = text
        return text

    def _look(self, now: float) -> None:
        """A new millisecond: its text, and where its lines go."""
        millis = int(now * 1000)
        self._since, self._until = millis / 1000, (millis + 1) / 1000
        handler = _only_handler(self._logger)
        stream = None if handler is None else handler.stream
        if handler is None or not isinstance(stream, LosslessWriter) or stream.is_forked:
            self._writer = None
            return
        if handler.formatter is not self._formatter or handler.terminator != self._terminator:
            self._formatter, self._terminator = handler.formatter, handler.terminator
            self._started.clear()
            self._completed.clear()
            self._shows_time = TIME in self._line(JobStarted(*_sample(("", "", "", ""))))
        self._time = time_text(now) if self._shows_time else ""
        self._writer = stream
        if len(stream.lines) > MOST_LINES:
            stream.drain()

    def _learn(self, known: dict[Key, Pieces], key: Key, sample: Event, expected: tuple[str, ...]) -> Pieces:
        """The pieces of the lines of jobs like this one."""
        if len(known) >= MOST_KNOWN:
            known.clear()
        line = self._line(sample)
        found, pieces = tuple(_FOUND.findall(line)), tuple(_FOUND.split(line))
        if not self._shows_time:
            found, pieces = (TIME, *found), ("", *pieces)
        known[key] = pieces if found == expected else ()
        return known[key]

    def _line(self, sample: Event) -> str:
        """Of the formatter; nothing if it fails, and then whoever writes such a line will tell. In nobody's job: some
        have secrets that look like the name of a task."""
        if self._formatter is None:
            return ""
        record = self._record_of(sample)
        record.created = CREATED
        try:
            return Context().run(self._formatter.format, record) + self._terminator
        except self._failures:
            return ""


def _sample(key: Key) -> tuple[str, UUID, int, str, str, str, int]:
    worker, task, queue, tenant = key
    return worker, ID, NUMBER, task, queue, tenant, ATTEMPT


def _only_handler(logger: logging.Logger) -> LogHandler | None:
    """The handler of ours that gets the records of this logger at level INFO, if they pass nobody else."""
    if not logger.isEnabledFor(logging.INFO) or logger.filters or not _is_untouched(type(logger)):
        return None
    found: LogHandler | None = None
    each: logging.Logger | None = logger
    while each is not None:
        for handler in each.handlers:
            if handler.level > logging.INFO or getattr(handler, "leaves_out_ours", False):
                continue
            if found is not None or type(handler) is not LogHandler or handler.filters:
                return None
            found = handler
        each = each.parent if each.propagate else None
    return found


def _is_untouched(kind: type[logging.Logger]) -> bool:
    """Whether records are made and passed on as the standard library does it."""
    if logging.getLogRecordFactory() is not logging.LogRecord:
        return False
    ways = [getattr(getattr(kind, name), "__code__", None) for name in _WAYS]
    return all(way is not None and way.co_filename == _LIBRARY for way in ways)


_LIBRARY = logging.LogRecord.__init__.__code__.co_filename
