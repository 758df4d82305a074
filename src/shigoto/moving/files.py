"""Stores to files and back: `shigoto export` and `shigoto import`."""

from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO
from uuid import uuid4

from msgspec import structs

from shigoto.engine.movable import Gate, Mover, mover_of
from shigoto.engine.protocol import Engine
from shigoto.model.clock import Clock, host_clock
from shigoto.model.errors import StoreError, StoreRefused
from shigoto.model.job import QueueSettings
from shigoto.model.record import MOST_BYTES, MOST_JOBS, JobRecord, QueueRecord
from shigoto.model.version import VERSION
from shigoto.moving.landing import landed
from shigoto.moving.lines import FORMAT, BadLine, End, Header, encode, read_lines

Tell = Callable[[int], None]
A_FILE = "a file"  # where jobs come from that are imported


def export(engine: Engine, stream: BinaryIO, *, tell: Tell, clock: Clock = host_clock) -> int:
    """Write everything as it is at one instant, and tell how many jobs that are. Changes nothing."""
    mover = mover_of(engine)
    written = 0

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

    def write(records: list[JobRecord]) -> None:
        nonlocal written
        stream.write(b"".join(map(encode, records)))
        written += len(records)
        tell(written)

    jobs = mover.run(mover.export(begin, write))
    stream.write(encode(End(jobs=jobs)))
    stream.flush()
    return jobs


def load(engine: Engine, stream: BinaryIO, file: str, *, tell: Tell) -> int:
    """Fill an empty store, and tell with how many jobs. All or nothing: if something is wrong it stays empty.

    Nobody can use the store before it has everything. A process that is killed leaves it so, and the next import
    begins anew.
    """
    mover = mover_of(engine)
    engine.migrate()
    _close(mover)
    done = False
    try:
        highest, jobs = _fill(mover, stream, file, tell)
        mover.run(mover.open_filled(highest))
        done = True
    finally:
        if not done:
            with suppress(StoreError):  # of an unreachable store: the next import begins anew
                mover.run(mover.wipe())
                mover.run(mover.open())
    return jobs


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
    """Raise StoreRefused if there are jobs: their numbers and ids could be the same."""
    if not mover.run(mover.is_empty()):
        raise StoreRefused(
            f"{mover.shown} has jobs already, and only an empty store can be filled. {so_far}. Name a new file, or"
            " another schema (postgresql://…?schema=NAME); or clear the jobs that are there."
        )


class _Filling:
    """One import, on its way into the store in portions."""

    def __init__(self, mover: Mover, file: str, tell: Tell) -> None:
        self._mover, self._file, self._tell = mover, file, tell
        self._waiting: list[JobRecord] = []
        self._size = 0
        self._first = self._last = 0  # lines
        self.jobs = 0

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


def _fill(mover: Mover, stream: BinaryIO, file: str, tell: Tell) -> tuple[int, int]:
    """Put everything, and tell the highest number and how many jobs."""
    filling = _Filling(mover, file, tell)
    highest = exported_at = 0
    for number, line in read_lines(stream, file):
        if isinstance(line, Header):
            highest, exported_at = line.highest, line.exported_at
        elif isinstance(line, QueueRecord):
            mover.run(mover.put_settings([QueueSettings(**structs.asdict(line))]))
        elif isinstance(line, JobRecord):
            filling.add(number, landed(line, exported_at))
            highest = max(highest, line.number)
    filling.flush()
    return highest, filling.jobs


def _length(job: JobRecord) -> int:
    lines = sum(len(line.text) for line in job.log)
    errors = sum(len(run.error or "") + len(run.traceback or "") for run in job.attempts)
    return len(job.payload) + len(job.result or "") + len(job.checkpoint or "") + lines + errors
