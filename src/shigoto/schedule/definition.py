"""What a schedule is: when it is due, what is done then, and what if that does not go as planned. Stored as JSON."""

from datetime import timedelta
from itertools import takewhile
from uuid import UUID

from msgspec import MsgspecError, Struct, json
from msgspec.structs import replace

from shigoto.model.errors import ScheduleInvalid
from shigoto.model.job import JobSpec, KeyMode
from shigoto.model.schedule import Schedule
from shigoto.model.secrets import masked_payload
from shigoto.model.time import Millis, to_datetime, write_duration
from shigoto.options import CatchUp, Overlap, WhenFailed
from shigoto.schedule.recurrence import Cron, Every, Once

CATCH_UPS: tuple[CatchUp, ...] = ("none", "latest", "all")
OVERLAPS: tuple[Overlap, ...] = ("allow", "skip", "queue", "cancel")
MOST_CAUGHT_UP = 100


class Template(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job of each tick, but for its id and its time."""

    task: str
    queue: str
    payload: str
    tenant: str = ""
    priority: int = 0
    delay: Millis = 0
    expires_in: Millis | None = None
    key: str | None = None
    key_mode: KeyMode = "keep"
    max_failures: int = 6
    max_crashes: int | None = 3
    retry: str | None = None
    timeout: Millis | None = None
    soft_timeout: Millis | None = None
    tags: str | None = None
    meta: str | None = None
    alone: bool = False

    def spec(self, id: UUID) -> JobSpec:
        """A job of it."""
        return JobSpec(id=id, **{name: getattr(self, name) for name in self.__struct_fields__})


def template(spec: JobSpec) -> Template:
    """The template that makes such jobs."""
    return Template(**{name: getattr(spec, name) for name in Template.__struct_fields__})


class Definition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that somebody has said about a schedule."""

    recurrence: Cron | Every | Once
    tz: str = "UTC"  # in which ticks are told; a cron expression has its own
    task: str | None = None  # as far as that is known beforehand
    job: Template | None = None  # None: it is made by the code that declares the schedule
    catch_up: CatchUp = "latest"
    most: int = MOST_CAUGHT_UP  # ticks that are caught up at once
    within: Millis | None = None  # how late a tick may be caught up
    overlap: Overlap = "allow"
    jitter: Millis = 0
    until: Millis | None = None
    when_failed: WhenFailed = "keep"  # after so many errors in a row that it is tried no more

    @property
    def when(self) -> str:
        """When it is due, for people: the expression, `every 5m` or `at 2030-01-31T09:00:00+00:00`."""
        recurrence = self.recurrence
        if isinstance(recurrence, Cron):
            return recurrence.expression
        if isinstance(recurrence, Every):
            return f"every {write_duration(timedelta(milliseconds=recurrence.interval))}"
        return f"at {to_datetime(recurrence.at).isoformat()}"

    @property
    def zone(self) -> str:
        """The time zone of the schedule, in which its ticks are told."""
        return self.recurrence.tz if isinstance(self.recurrence, Cron) else self.tz

    def next_after(self, at: Millis) -> Millis | None:
        """The first tick later than `at`."""
        due = next(self.recurrence.after(at), None)
        return None if due is None or (self.until is not None and due > self.until) else due

    def between(self, after: Millis, to: Millis) -> list[Millis]:
        """The ticks later than `after` and not later than `to`."""
        end = to if self.until is None else min(to, self.until)
        return list(takewhile(lambda at: at <= end, self.recurrence.after(after)))


_decode = json.Decoder(Definition).decode


def written(definition: Definition) -> str:
    """The definition as the store keeps it."""
    return json.encode(definition).decode()


def read(text: str) -> Definition:
    """The definition of a stored schedule. Raises ScheduleInvalid for one that nobody of this release has written."""
    try:
        return _decode(text)
    except MsgspecError as error:
        raise ScheduleInvalid(
            f"What is stored of the schedule cannot be read: {error}. Remove it, and add it again.",
            "definition",
        ) from error


def masked(text: str) -> str:
    """A stored definition as it may be shown: without the secrets in its arguments. One that cannot be read is shown as
    nothing: nobody can tell what is in it."""
    try:
        definition = read(text)
    except ScheduleInvalid:
        return ""
    job = definition.job
    if job is None:
        return text
    return written(replace(definition, job=replace(job, payload=masked_payload(job.payload, job.meta))))


def trouble_with(schedule: Schedule) -> str | None:
    """Why this process cannot tell when the schedule is due, if so: nobody here knows its time zone, or what it means.
    Others may; if none does, nobody fires it."""
    try:
        read(schedule.definition).next_after(schedule.decided_to)
    except (ScheduleInvalid, KeyError, ValueError, OSError) as error:
        return str(error)
    return None


UNREADABLE = Definition(recurrence=Once(0))
