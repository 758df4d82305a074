"""A store as lines of JSON, one record on each:

{"kind":"header","format":1,…}    first: how to read the rest, and the highest number that a job ever had
{"kind":"queue",…}                what operators have set, for each queue
{"kind":"schedule",…}             every schedule, with its history, in the order of their names
{"kind":"job",…}                  every job, whole, in the order of their numbers
{"kind":"end","jobs":2,…}         last: so that half a file is not taken for a whole one
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, BinaryIO
from uuid import UUID

from msgspec import DecodeError, Meta, Struct, ValidationError, json

from shigoto.model.errors import ScheduleInvalid, StoreRefused
from shigoto.model.record import LARGEST, Instant, JobRecord, QueueRecord, StoredSchedule
from shigoto.schedule.definition import read

FORMAT = 1
LONGEST = 256 * 1024 * 1024  # bytes of a line

BEGINNING = b'{"kind":"header"'


class Header(Struct, frozen=True, kw_only=True, tag_field="kind", tag="header"):
    """The first line."""

    format: int
    shigoto: str
    engine: str
    exported_at: Instant
    highest: Annotated[int, Meta(ge=0, le=LARGEST)]


class End(Struct, frozen=True, kw_only=True, tag_field="kind", tag="end"):
    """The last line."""

    jobs: int
    schedules: int = 0


Line = Header | QueueRecord | StoredSchedule | JobRecord | End

_encoder = json.Encoder()
_decoder: json.Decoder[Line] = json.Decoder(Line)


def encode(line: Line) -> bytes:
    """One line, with its end."""
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
        line = _read(text, file, number)
        if (number == 1) != isinstance(line, Header):
            raise BadLine(file, number, _misplaced(number))
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


def _read(text: bytes, file: str, number: int) -> Line:
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
        """What is wrong with the next one, or nothing."""
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


def _misplaced(number: int) -> str:
    return "an export begins with a header, and this does not" if number == 1 else "it is a second header"


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
