"""Events as log lines, and the set-up of logging.

The message is a sentence for people; the same facts ride beside it as fields, in the record's attribute
`shigoto`, for our formatters or for any of your own:

    message         Worker 1: Job 42 completed successfully
    record.shigoto  {"worker": "1", "job_id": "0192…", "number": 42, "task": "resize", "attempt": 1, …}

A line that nobody would see costs one question, `isEnabledFor`; and the lines of every single job cost
nothing at all if they are switched off when the worker starts.

The two lines of a job that goes well are made without a record of the standard library for each of them (`JobLines`).

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
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from math import isfinite
from time import time
from typing import Any, Literal, cast
from uuid import UUID

from msgspec import Struct, to_builtins

from shigoto.observe import events
from shigoto.observe.bus import Bus
from shigoto.observe.events import Event, JobCompleted, JobStarted
from shigoto.observe.log_format import Fields, Hide, JsonFormatter, LogHandler, formatter_for, time_text
from shigoto.observe.log_writer import MOST_LINES, DroppingWriter, LosslessWriter, Stream

logger = logging.getLogger("shigoto.worker")
trouble_logger = logging.getLogger("shigoto.observe")

MOST_NAMED = 10  # schedules or tasks, in a sentence
MEND = " It has failed for good: mend it, then resume it"
MOST_LISTED = 20  # of what an event names one by one
PER_JOB = (events.JobStarted, events.JobCompleted)
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
# Of a record; others may have changed them.
_WAYS = ("isEnabledFor", "makeRecord", "handle", "callHandlers", "filter")
_LIBRARY = logging.LogRecord.__init__.__code__.co_filename
_PLAIN = frozenset((str, int))
_STUCK = {
    "soft limit": "still runs after its soft limit of {}; a thread cannot be stopped",
    "limit": "does not give in at its limit of {}; it is told again every few seconds",
    "cancel": "does not give in to its cancel; it is told again every few seconds",
    "loss": "still runs, but is no longer held by this worker; it is told again every few seconds",
}


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
            trouble_logger.exception(
                "The line of a job that was completed could not be written; the worker goes on"
            )

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


def log_events(bus: Bus) -> None:
    """Write a line for every event from now on; a second call changes nothing.

    At 90 000 jobs a second even an event that becomes no line has its price. So the lines of jobs that go
    well are left out for good if the logger does not want them now: set up logging first.
    """
    if not bus.hears(_write):
        bus.subscribe(_write, *(kind for kind in _SENTENCES if kind not in PER_JOB))
        if logger.isEnabledFor(logging.INFO):
            lines = JobLines(logger, _record_of, _write)
            bus.subscribe(lines.started, events.JobStarted)
            bus.subscribe_batches(lines.completed, events.JobCompleted)


def configure_logging(
    *,
    format: Literal["text", "json"] = "text",
    level: int | str = logging.INFO,
    fields: Callable[[], Fields] | None = None,
    hide: Hide | None = None,
    stream: Stream | None = None,
    never_wait: bool = False,
    gather: bool = False,
) -> None:
    """Set up the root logger of a program of ours: one handler, one line per record, to standard error.

    If whoever reads it is too slow, we wait; or `never_wait`, and leave out what finds no room any more. With `gather`
    the lines of jobs that go well wait for each other for a few milliseconds, which makes them cheap.

    `fields` is asked at every record that names no job, so that what a handler logs by itself names its job too; `hide`
    takes out of a text what is secret where it was written.
    Calling it again replaces the earlier set-up. Handlers of others stay.

    The level is that of what is written there. Records of others down to INFO are made in any case, because the
    logs of jobs have them; our own, one or two per job, only if they are written.
    """
    writer: Stream | None = None
    if stream is None and (never_wait or gather):
        writer = (
            DroppingWriter.instead_of(sys.stderr) if never_wait else LosslessWriter.instead_of(sys.stderr)
        )
    handler = LogHandler(writer or stream or sys.stderr, fields)
    handler.setLevel(level)
    handler.setFormatter(formatter_for(format, sys.stderr if stream is None else None, hide))
    root = logging.getLogger()
    for former in [handler for handler in root.handlers if isinstance(handler, LogHandler)]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(min(handler.level, logging.INFO))
    logging.getLogger("shigoto").setLevel(handler.level)


class LogSetup(Struct, frozen=True):
    """How `configure_logging` was called, for another process to do the same."""

    format: Literal["text", "json"]
    level: int


def log_setup() -> LogSetup | None:
    """How logging was set up by `configure_logging`; None if it was not."""
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, LogHandler):
            return LogSetup("json" if isinstance(handler.formatter, JsonFormatter) else "text", handler.level)
    return None


def _write(event: Event) -> None:
    level, sentence = _SENTENCES[type(event)]
    if isinstance(event, events.StoreTrouble) and event.repeated:
        level = logging.DEBUG
    elif isinstance(event, events.SchedulerStopped) and event.forced:
        level = logging.WARNING
    elif isinstance(event, events.TickPassed) and event.outcome == "suppressed":
        level = logging.INFO  # somebody wants it so
    if logger.isEnabledFor(level):
        logger.handle(_record(event, level, sentence))


def _record_of(event: Event) -> logging.LogRecord:
    return _record(event, *_SENTENCES[type(event)])


def _record(event: Event, level: int, sentence: "_Sentence") -> logging.LogRecord:
    """What `trouble_logger.log` would make, but for the search for its caller: these lines have none of interest."""
    record = logger.makeRecord(logger.name, level, __file__, _LINE, "%s", (sentence(event),), None, "_write")
    record.shigoto = _facts(event)
    return record


_LINE = _write.__code__.co_firstlineno


def _facts(event: Event) -> Fields:
    fields: dict[str, object] = to_builtins(event)
    fields.pop("traceback", None)
    for name, value in fields.items():
        if type(value) not in _PLAIN:
            fields[name] = _some(value)
    return fields


def _some(value: object) -> object:
    """A value of an event for the log: seconds to the microsecond, of a long list its beginning."""
    if isinstance(value, float):
        return round(value * 1e6) / 1e6 if isfinite(value) else value
    if not isinstance(value, tuple | list):
        return value
    every = cast("Sequence[object]", value)
    left_out = len(every) - MOST_LISTED
    return every if left_out <= 0 else [*every[:MOST_LISTED], f"and {left_out} more"]


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"


def _named(tasks: Sequence[str]) -> str:
    return f"the {'task' if len(tasks) == 1 else 'tasks'} {some_of(tasks, MOST_LISTED)}"


def _next_runner(event: events.RunnerDied | events.RunnerFailed) -> str:
    if event.retry_in is None:
        if isinstance(event, events.RunnerDied):
            return "No other one takes its place"
        return "No other one is started until something changes"
    return f"The next one starts {f'in {_seconds(event.retry_in)}' if event.retry_in else 'at once'}"


def _stopped(event: events.SchedulerStopped) -> str:
    if event.forced:
        return f"Scheduler {event.worker}: Stop forced: {event.forced} of its parts did not end in time"
    return f"Scheduler {event.worker}: Stop completed"


_Sentence = Callable[[Any], str]

_BY_LEVEL: dict[int, dict[type[Event], _Sentence]] = {
    logging.DEBUG: {
        events.WorkerLeaving: lambda e: f"Worker {e.worker} leaves, with {e.running} handlers at work",
        events.JobsPromoted: lambda e: f"Worker {e.worker}: {e.count} scheduled jobs became ready",
        events.TickLost: lambda e: (
            f"{e.worker}: Schedule {e.schedule} was fired, or changed, by another instance"
        ),
        events.RunnerStarted: lambda e: f"Worker {e.worker}: Runner process {e.pid} was started",
    },
    logging.INFO: {
        events.WorkerStarted: lambda e: f"Worker {e.worker} started",
        events.WorkerStopping: lambda e: f"Worker {e.worker} received stop signal",
        events.WorkerStopped: lambda e: f"Worker {e.worker} stopped",
        events.JobStarted: lambda e: f"Worker {e.worker}: Processing job {e.number} (type: {e.task})",
        events.JobCompleted: lambda e: f"Worker {e.worker}: Job {e.number} completed successfully",
        events.JobSnoozed: lambda e: (
            f"Worker {e.worker}: Job {e.number} snoozed for {_seconds(e.delay / 1000)}"
        ),
        events.JobReleased: lambda e: (
            f"Worker {e.worker}: Job {e.number} given back; another worker can take it at once"
        ),
        events.JobCancelledEvent: lambda e: f"Worker {e.worker}: Job {e.number} cancelled",
        events.SchedulesDeclared: lambda e: f"{e.worker}: {_schedules(e.schedules)} now what this code says",
        events.TickFired: lambda e: (
            f"{e.worker}: Schedule {e.schedule} has {e.outcome.replace('_', ' ')}, {e.late} ms after its time"
        ),
        events.SchedulerStarted: lambda e: (
            f"Scheduler {e.worker} started, with {len(e.schedules)} schedules of its own code"
        ),
        events.SchedulerStopping: lambda e: f"Scheduler {e.worker}: Stop initiated: {e.reason}",
        events.SchedulerStopped: _stopped,
        events.SchedulerRecovered: lambda e: (
            f"Scheduler {e.worker} has recovered: it reaches its store again after {_seconds(e.seconds)}"
        ),
        events.RunnerRetired: lambda e: f"Worker {e.worker}: Runner process {e.pid} is replaced: {e.reason}",
        events.StoreRecovered: lambda e: (
            f"Worker {e.worker}: The {e.part} reaches the store again after {e.tries} tries in vain"
        ),
    },
    logging.WARNING: {
        events.JobRetried: lambda e: f"Worker {e.worker}: Job {e.number} failed: {e.error}",
        events.JobStuck: lambda e: (
            f"Worker {e.worker}: Job {e.number} {_STUCK[e.why].format(_seconds((e.limit or 0) / 1000))}"
        ),
        events.LeaseLostEvent: lambda e: (
            f"Worker {e.worker}: Job {e.number} is no longer held by this worker; its outcome is dropped"
        ),
        events.WorkersFenced: lambda e: (
            f"Worker {e.worker}: {len(e.workers)} workers did not beat any more and were fenced"
        ),
        events.JobsRescued: lambda e: (
            f"Worker {e.worker}: {len(e.jobs)} jobs rescued from workers that are gone"
        ),
        events.TasksUnknown: lambda e: (
            f"Worker {e.worker}: Jobs failed because no worker knows {_named(e.tasks)}."
            " Start one whose app does, then redrive them"
        ),
        events.TickPassed: lambda e: (
            f"{e.worker}: Schedule {e.schedule}: {e.count} {'tick was' if e.count == 1 else 'ticks were'} {e.outcome}"
        ),
        events.SchedulerDegraded: lambda e: (
            f"Scheduler {e.worker} is degraded: it cannot reach its store, fires nothing, and keeps trying: {e.error}"
        ),
        events.RunnerPaused: lambda e: (
            f"Worker {e.worker}: Runner process {e.pid} is stopped by a signal."
            " Others get its jobs if it is not continued before its lease is over"
        ),
        events.StoreTrouble: lambda e: (
            f"Worker {e.worker}: The {e.part} cannot reach the store: {e.error.rstrip('.')}."
            f" It tries again in {_seconds(e.retry_in)}"
        ),
        events.ClockStepped: lambda e: (
            f"Worker {e.worker}: The store's clock was set back by {_seconds(e.step / 1000)};"
            " every lease began anew"
        ),
    },
    logging.ERROR: {
        events.JobFailedEvent: lambda e: f"Worker {e.worker}: Job {e.number} failed: {e.error}",
        events.JobCrashed: lambda e: (
            f"Worker {e.worker}: Job {e.number} crashed: {e.error} It runs again, alone, in {_seconds(e.delay / 1000)}"
        ),
        events.ScheduleFailed: lambda e: (
            f"{e.worker}: Schedule {e.schedule} could not submit its job ({e.errors} in a row): {e.error.rstrip('.')}."
            + ("" if e.removed else MEND if e.failed else " It is tried again")
        ),
        events.ScheduleRemoved: lambda e: (
            f"{e.worker}: Schedule {e.schedule} has failed for good, and is removed as it was said of it"
        ),
        events.ChildFailed: lambda e: (
            f"Worker {e.worker}: A process for single jobs could not begin: {e.error}"
            f" The next one is tried in {_seconds(e.retry_in)}"
        ),
        events.RunnerFailed: lambda e: (
            f"Worker {e.worker}: A runner process could not begin: {e.error} {_next_runner(e)}"
        ),
        events.RunnerDied: lambda e: (
            f"Worker {e.worker}: Runner process {e.pid} {e.how} with {e.jobs} jobs running"
            f"{', which run again alone' if e.jobs else ''}. {_next_runner(e)}"
        ),
    },
}
_SENTENCES = {kind: (level, sentence) for level, some in _BY_LEVEL.items() for kind, sentence in some.items()}


def some_of(names: Iterable[str], most: int = MOST_NAMED) -> str:
    """Names for a sentence: of many the first ten, and how many more there are."""
    first, more = (every := tuple(names))[:most], len(every) - most
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def _schedules(names: Sequence[str]) -> str:
    named = some_of(names)
    return f"Schedule {named} is" if len(names) == 1 else f"{len(names)} schedules ({named}) are"
