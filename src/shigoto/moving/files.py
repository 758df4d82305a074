"""Stores to files and back: `shigoto export` and `shigoto import`."""

from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO
from uuid import uuid4

from msgspec import Struct, structs

from shigoto.engine.movable import Gate, Mover, mover_of
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreError, StoreRefused
from shigoto.model.job import QueueSettings
from shigoto.model.record import MOST_BYTES, MOST_JOBS, JobRecord, QueueRecord, StoredSchedule, weight_of
from shigoto.model.time import Clock, host_clock
from shigoto.model.version import VERSION
from shigoto.moving.landing import landed
from shigoto.moving.lines import FORMAT, BadLine, End, Header, encode, read_lines

Tell = Callable[[int], None]
A_FILE = "a file"  # where jobs come from that are imported


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
    gate = mover.run(mover.gate())
    if gate is not None:
        if (gate.kind, gate.other) != ("filling", A_FILE):
            raise StoreRefused(f"{gate.refusal(mover.shown)} Nothing can be imported meanwhile.")
        mover.run(mover.shut(gate))
        mover.run(mover.wipe())  # of an import that was killed
        return
    expect_empty(mover, "Nothing was imported")
    mover.run(mover.shut(Gate(kind="filling", move=uuid4().hex, other=A_FILE)))
    if not mover.run(mover.is_empty()):  # something came in between the two
        mover.run(mover.open())
        expect_empty(mover, "Nothing was imported")


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
    """Put everything, and tell the highest number and how much it was."""
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
            filling.add(number, landed(line, exported_at))
            highest = max(highest, line.number)
    filling.flush()
    filling.flush_schedules()
    return highest, Carried(filling.jobs, filling.schedules)


def _length(job: JobRecord) -> int:
    lines = sum(len(line.text) for line in job.log)
    errors = sum(len(run.error or "") + len(run.traceback or "") for run in job.attempts)
    return len(job.payload) + len(job.result or "") + len(job.checkpoint or "") + lines + errors
