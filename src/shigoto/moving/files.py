"""A store as a file of JSON lines: `shigoto export` and `shigoto import`.

Each line is one record:

    {"kind":"header","format":1,…}    first: how to read the rest, and the highest number that a job ever had
    {"kind":"queue",…}                what operators have set, for each queue
    {"kind":"schedule",…}             every schedule, with its history, in the order of their names
    {"kind":"job",…}                  every job, whole, in the order of their numbers
    {"kind":"end","jobs":2,…}         last: so that half a file is not taken for a whole one

An export is the store as it was at one instant. An import fills an empty store, all of it or nothing: a store that is
being filled is closed to everybody else. No worker comes with the jobs, so a job that was processing is released (T8).
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Annotated, BinaryIO
from uuid import UUID, uuid4

from msgspec import DecodeError, Meta, Struct, ValidationError, json, structs

from shigoto.engine.movable import MoveLock, Mover, mover_of
from shigoto.engine.protocol import Engine
from shigoto.model.errors import ScheduleInvalid, StoreError, StoreRefused
from shigoto.model.job import QueueSettings, State
from shigoto.model.record import (
    LARGEST,
    MOST_BYTES,
    MOST_JOBS,
    Instant,
    JobRecord,
    QueueRecord,
    StoredSchedule,
    weight_of,
)
from shigoto.model.states import Counters, Held, after
from shigoto.model.time import Clock, Millis, host_clock
from shigoto.model.version import VERSION
from shigoto.model.worker import Ending, Settlement
from shigoto.schedule.definition import read

Tell = Callable[[int], None]
A_FILE = "a file"  # where jobs come from that are imported
FORMAT = 1
LONGEST = 256 * 1024 * 1024  # bytes of a line


class Carried(Struct, frozen=True):
    """How much went into a file, or came out of it."""

    jobs: int
    schedules: int


def export(engine: Engine, stream: BinaryIO, *, tell: Tell, clock: Clock = host_clock) -> Carried:
    """Write everything as it is at one instant, and tell how much that is. Changes nothing."""
    mover = mover_of(engine)
    written = schedules = 0

    def begin(highest: int, queues: list[QueueSettings]) -> None:
        header = Header(
            format=FORMAT,
            shigoto=VERSION,
            engine=engine.capabilities.name,
            exported_at=clock(),
            highest=highest,
        )
        stream.write(encode(header))
        stream.writelines(encode(QueueRecord(**structs.asdict(settings))) for settings in queues)

    def write_schedules(some: list[StoredSchedule]) -> None:
        nonlocal schedules
        stream.write(b"".join(map(encode, some)))
        schedules += len(some)

    def write(records: list[JobRecord]) -> None:
        nonlocal written
        stream.write(b"".join(map(encode, records)))
        written += len(records)
        tell(written)

    jobs = mover.run(mover.export(begin, write_schedules, write))
    stream.write(encode(End(jobs=jobs, schedules=schedules)))
    stream.flush()
    return Carried(jobs, schedules)


def load(engine: Engine, stream: BinaryIO, file: str, *, tell: Tell) -> Carried:
    """Fill an empty store, and tell with how much. All or nothing: if something is wrong it stays empty.

    Nobody can use the store before it has everything. A process that is killed leaves it so, and the next import
    begins anew.
    """
    mover = mover_of(engine)
    engine.migrate()
    _close(mover)
    done = False
    try:
        highest, carried = _fill(mover, stream, file, tell)
        mover.run(mover.open_filled(highest))
        done = True
    finally:
        if not done:
            with suppress(StoreError):  # of an unreachable store: the next import begins anew
                mover.run(mover.wipe())
                mover.run(mover.open())
    return carried


def _close(mover: Mover) -> None:
    move_lock = mover.run(mover.move_lock())
    if move_lock is not None:
        if (move_lock.kind, move_lock.other) != ("filling", A_FILE):
            raise StoreRefused(f"{move_lock.refusal(mover.shown)} Nothing can be imported meanwhile.")
        mover.run(mover.shut(move_lock))
        mover.run(mover.wipe())  # of an import that was killed
        return
    lock_empty(mover, A_FILE, "Nothing was imported")


def lock_empty(mover: Mover, other: str, so_far: str) -> MoveLock:
    """Close an empty store that is to be filled from the other. Raises StoreRefused if it is not empty."""
    expect_empty(mover, so_far)
    move_lock = MoveLock(kind="filling", move=uuid4().hex, other=other)
    mover.run(mover.shut(move_lock))
    if not mover.run(mover.is_empty()):  # something came in between the two
        mover.run(mover.open())
        expect_empty(mover, so_far)
    return move_lock


def expect_empty(mover: Mover, so_far: str) -> None:
    """Raise StoreRefused if there are jobs or schedules: their numbers, ids and names could be the same."""
    if not mover.run(mover.is_empty()):
        raise StoreRefused(
            f"{mover.shown} has jobs or schedules already, and only an empty store can be filled. {so_far}. Name a new"
            " file, or another schema (postgresql://…?schema=NAME); or clear the jobs that are there, and remove the"
            " schedules."
        )


class _Filling:
    """One import, on its way into the store in portions."""

    def __init__(self, mover: Mover, file: str, tell: Tell) -> None:
        self._mover, self._file, self._tell = mover, file, tell
        self._waiting: list[JobRecord] = []
        self._size = 0
        self._first = self._last = 0  # lines
        self._planned: list[StoredSchedule] = []
        self._planned_size = 0
        self.jobs = self.schedules = 0

    def add(self, number: int, job: JobRecord) -> None:
        """Put the job of this line, sooner or later."""
        size = _length(job)
        if self._waiting and (len(self._waiting) == MOST_JOBS or self._size + size > MOST_BYTES):
            self.flush()
        if not self._waiting:
            self._first = number
        self._waiting.append(job)
        self._size += size
        self._last = number

    def flush(self) -> None:
        """Put what waits. Raises BadLine if the store has another job with the same id or key."""
        if not self._waiting:
            return
        try:
            self._mover.run(self._mover.put(self._waiting))
        except Exception as error:
            if "unique" not in str(error).lower():  # as every store calls it
                raise
            raise BadLine(
                self._file,
                self._first,
                f"a job between here and line {self._last} has the id, or holds the key, of another one ({error})",
            ) from error
        self.jobs += len(self._waiting)
        self._waiting, self._size = [], 0
        self._tell(self.jobs)

    def add_schedule(self, schedule: StoredSchedule) -> None:
        """Put the schedule, sooner or later."""
        size = weight_of(len(schedule.history))
        if self._planned and (len(self._planned) == MOST_JOBS or self._planned_size + size > MOST_BYTES):
            self.flush_schedules()
        self._planned.append(schedule)
        self._planned_size += size

    def flush_schedules(self) -> None:
        """Put the schedules that wait; that no two are alike was seen when they were read."""
        if self._planned:
            self._mover.run(self._mover.put_schedules(self._planned))
            self.schedules += len(self._planned)
            self._planned, self._planned_size = [], 0


def _fill(mover: Mover, stream: BinaryIO, file: str, tell: Tell) -> tuple[int, Carried]:
    filling = _Filling(mover, file, tell)
    highest = exported_at = 0
    for number, line in read_lines(stream, file):
        if isinstance(line, Header):
            highest, exported_at = line.highest, line.exported_at
        elif isinstance(line, QueueRecord):
            mover.run(mover.put_settings([QueueSettings(**structs.asdict(line))]))
        elif isinstance(line, StoredSchedule):
            filling.add_schedule(line)
        elif isinstance(line, JobRecord):
            filling.add(number, with_stopped_run(line, exported_at))
            highest = max(highest, line.number)
    filling.flush()
    filling.flush_schedules()
    return highest, Carried(filling.jobs, filling.schedules)


def _length(job: JobRecord) -> int:
    lines = sum(len(line.text) for line in job.log)
    errors = sum(len(run.error or "") + len(run.traceback or "") for run in job.attempts)
    return len(job.payload) + len(job.result or "") + len(job.checkpoint or "") + lines + errors


class Header(Struct, frozen=True, kw_only=True, tag_field="kind", tag="header"):
    format: int
    shigoto: str
    engine: str
    exported_at: Instant
    highest: Annotated[int, Meta(ge=0, le=LARGEST)]


class End(Struct, frozen=True, kw_only=True, tag_field="kind", tag="end"):
    jobs: int
    schedules: int = 0


Line = Header | QueueRecord | StoredSchedule | JobRecord | End

_encoder = json.Encoder()
_decoder: json.Decoder[Line] = json.Decoder(Line)


def encode(line: Line) -> bytes:
    return _encoder.encode(line) + b"\n"


class BadLine(StoreRefused):
    """A line that cannot be imported."""

    def __init__(self, file: str, number: int, reason: str) -> None:
        super().__init__(f"Line {number} of {file} cannot be imported: {reason}. The store stays empty.")


def read_lines(stream: BinaryIO, file: str) -> Iterator[tuple[int, Line]]:
    """The lines, counted from 1. Raises BadLine. The first is a header and the last an end, or that is raised, too."""
    number, jobs, last = 0, 0, 0
    schedules = _Schedules()
    while text := stream.readline(LONGEST + 1):
        number += 1
        line = _decoded(text, file, number)
        if (number == 1) != isinstance(line, Header):
            reason = (
                "an export begins with a header, and this does not"
                if number == 1
                else "it is a second header"
            )
            raise BadLine(file, number, reason)
        if isinstance(line, JobRecord):
            jobs += 1
            if line.number <= last:
                raise BadLine(
                    file, number, f"job {line.number} comes after job {last}; their numbers must rise"
                )
            last = line.number
            if reason := _contradiction(line):
                raise BadLine(file, number, f"job {line.number} {reason}")
        elif isinstance(line, StoredSchedule) and (reason := schedules.wrong_with(line)):
            raise BadLine(file, number, f"schedule {line.name!r} {reason}")
        yield number, line
        if isinstance(line, End):
            if reason := _miscounted(line, jobs, schedules.count):
                raise BadLine(file, number, reason)
            if stream.read(1):
                raise BadLine(file, number + 1, "something follows after the end")
            return
    raise BadLine(file, number + 1, "the file ends here, before its end; was the export interrupted?")


def _decoded(text: bytes, file: str, number: int) -> Line:
    if len(text) > LONGEST:
        raise BadLine(file, number, f"it is longer than {LONGEST >> 20} MiB")
    try:
        line = _decoder.decode(text)
    except ValidationError as error:
        raise BadLine(file, number, str(error)) from error
    except (DecodeError, RecursionError) as error:
        reason = "it is not what `shigoto export` writes" if number == 1 else f"it is no JSON ({error})"
        raise BadLine(file, number, reason) from error
    if isinstance(line, Header) and line.format != FORMAT:
        raise BadLine(
            file,
            number,
            f"it is in format {line.format}, and this release reads {FORMAT}; use shigoto {line.shigoto}",
        )
    return line


class _Schedules:
    """The schedules of a file, as far as it was read."""

    def __init__(self) -> None:
        self._ids: set[UUID] = set()
        self._last = ""

    @property
    def count(self) -> int:
        return len(self._ids)

    def wrong_with(self, line: StoredSchedule) -> str:
        if line.name <= self._last:
            return (
                f"comes after schedule {self._last!r}; their names must rise" if line.name else "has no name"
            )
        if line.id in self._ids:
            return "has the id of another one"
        self._last = line.name
        self._ids.add(line.id)
        try:
            read(line.definition)
        except (ScheduleInvalid, RecursionError) as error:
            return f"has a definition that cannot be read ({error.__cause__ or error})"
        if any(after.at <= before.at for before, after in pairwise(line.history)):
            return "has a history whose instants do not rise"
        return ""


def _miscounted(end: End, jobs: int, schedules: int) -> str:
    if end.jobs != jobs:
        return f"it counts {end.jobs} jobs, and there were {jobs}"
    if end.schedules != schedules:
        return f"it counts {end.schedules} schedules, and there were {schedules}"
    return ""


def _contradiction(job: JobRecord) -> str:
    if job.state.terminal != (job.finished_at is not None):
        return f"is {job.state}, and {'has no finished_at' if job.state.terminal else 'has a finished_at'}"
    if job.holds_key and job.key is None:
        return "holds a key and has none"
    if job.settled_token > job.token:
        return f"has settled_token {job.settled_token} and token {job.token}"
    for what, text in (("task", job.task), ("queue", job.queue)):
        if not text:
            return f"has no {what}"
    return ""


def with_stopped_run(record: JobRecord, at: Millis) -> JobRecord:
    """The job as it is put into a store where nobody runs it: given back (T8), if it was processing at that instant.

    Its token stays, and the next claim raises it: what its former worker may still send is out of date.
    """
    if record.state is not State.PROCESSING:
        return record
    counters = Counters(
        record.failures, record.crashes, record.solo_crashes, record.releases, record.snoozes, record.suspect
    )
    held = Held(
        counters,
        record.max_failures,
        record.max_crashes,
        cancel_requested=record.cancel_requested_at is not None,
        superseded=record.superseded,
    )
    given_back = Settlement(
        number=record.number, token=record.token, queue=record.queue, ending=Ending.RELEASED, ran=False
    )
    to = after(held, given_back)
    record = structs.replace(
        record, state=to.state, failure_kind=to.failure_kind, releases=to.counters.releases, superseded=False
    )
    if to.state is State.PENDING:
        return structs.replace(record, started_at=None, cancel_requested_at=None)
    return structs.replace(record, finished_at=at)
