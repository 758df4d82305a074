"""The definition of a schedule, checked where it is declared, and stored as JSON."""

import re
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, Unpack
from uuid import UUID
from zoneinfo import available_timezones

from cronsim import CronSim, CronSimError
from msgspec import MsgspecError, Struct, json
from msgspec.structs import replace

from shigoto.model.errors import OptionInvalid, ScheduleInvalid, nearest
from shigoto.model.job import JobSpec, KeyMode
from shigoto.model.schedule import Schedule
from shigoto.model.secrets import masked_payload
from shigoto.model.text import plain_moment, plain_text, plain_whole, shown
from shigoto.model.time import (
    Duration,
    Millis,
    milliseconds,
    read_duration,
    to_datetime,
    to_millis,
    write_duration,
)
from shigoto.options import CatchUp, Overlap, ScheduleOptions, WhenFailed
from shigoto.schedule.recurrence import (
    EPOCH,
    FIRST_YEAR,
    LAST_YEAR,
    WORDS,
    Cron,
    Every,
    Once,
    spelled_out,
    zone_called,
)

CATCH_UPS: tuple[CatchUp, ...] = ("none", "latest", "all")
OVERLAPS: tuple[Overlap, ...] = ("allow", "skip", "queue", "cancel")
MOST_CAUGHT_UP = 100
SHORTEST: Millis = 1_000
LONGEST_CRON = 1_000
FIELDS = (("second", 60), ("minute", 60), ("hour", 24), ("day", 31), ("month", 12), ("weekday", 7))
_STEP = re.compile(r"/([0-9]+)")
MOST = 10_000  # ticks that are caught up at once


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
        return JobSpec(id=id, **{name: getattr(self, name) for name in self.__struct_fields__})


def template(spec: JobSpec) -> Template:
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
UNREADABLE = Definition(recurrence=Once(0))


def written(definition: Definition) -> str:
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


def define(
    where: str,
    *,
    cron: str | None = None,
    every: Duration | str | None = None,
    at: datetime | None = None,
    task: str | None = None,
    job: Template | None = None,
    **options: Unpack[ScheduleOptions],
) -> Definition:
    """The definition that these words make. Raises ScheduleInvalid, which names the field."""
    unknown = options.keys() - ScheduleOptions.__annotations__.keys()
    if unknown:
        name = min(unknown)
        raise ScheduleInvalid(
            f"{where}: there is no option {name!r}.{nearest(name, set(ScheduleOptions.__annotations__))}",
            name,
        )
    expect_room(where, None if job is None else job.key, options.get("overlap"))
    tz = _zone(where, options.get("tz", "UTC"))
    within = options.get("catch_up_within")
    until = options.get("until")
    return Definition(
        recurrence=_recurrence(where, cron, every, at, tz, options),
        tz=tz,
        task=task,
        job=job,
        catch_up=_choice(where, "catch_up", options.get("catch_up", "latest"), CATCH_UPS),
        most=_most(where, options.get("catch_up_most", MOST_CAUGHT_UP)),
        within=None if within is None else _span(where, "catch_up_within", within),
        overlap=_choice(where, "overlap", options.get("overlap", "allow"), OVERLAPS),
        jitter=_span(where, "jitter", options.get("jitter", 0)),
        until=None if until is None else _instant(where, "until", until, tz),
        when_failed=_choice(where, "when_failed", options.get("when_failed", "keep"), ("keep", "remove")),
    )


def expect_room(where: str, key: str | None, overlap: object) -> None:
    """Raise ScheduleInvalid for a job whose place is kept by the one before, which is only asked to make room."""
    if key is not None and overlap == "cancel":
        raise ScheduleInvalid(
            f"{where}: overlap='cancel' cannot make room for a job whose unique key {shown(key)} lets nobody replace"
            " the one before while that runs. Leave out the key, or say overlap='skip'.",
            "overlap",
        )


def expect_future(where: str, definition: Definition, now: Millis) -> Millis:
    """The first tick after now. Raises ScheduleInvalid if there is none."""
    following = definition.next_after(now)
    if following is None:
        field = "at" if isinstance(definition.recurrence, Once) else "until"
        raise ScheduleInvalid(f"{where}: {field} lies in the past, so it would never be due.", field)
    return following


def _recurrence(
    where: str, cron: object, every: object, at: object, tz: str, options: ScheduleOptions
) -> Cron | Every | Once:
    given = [name for name, value in (("cron", cron), ("every", every), ("at", at)) if value is not None]
    if len(given) != 1:
        said = " and ".join(given) or "none of them"
        raise ScheduleInvalid(f"{where}: say one of cron, every and at, not {said}.", (given or ["cron"])[-1])
    for name in ("gap", "fold"):
        if cron is None and name in options:
            raise ScheduleInvalid(
                f"{where}: {name} is about times on the wall, and goes with cron, not with {given[0]}.", name
            )
    if at is not None:
        return Once(_instant(where, "at", at, tz))
    if every is not None:
        return Every(_interval(where, every))
    return Cron(
        _expression(where, cron),
        tz,
        _choice(where, "gap", options.get("gap", "after"), ("after", "skip")),
        _choice(where, "fold", options.get("fold", "first"), ("first", "both")),
    )


def _expression(where: str, given: object) -> str:
    def wrong(why: str) -> ScheduleInvalid:
        return ScheduleInvalid(f"{where}: {why}", "cron")

    text = plain_text(given)
    if text is None:
        raise wrong(f"cron must be an expression such as '0 3 * * *', not {shown(given)}.")
    if len(text) > LONGEST_CRON:
        raise wrong(f"cron must have at most {LONGEST_CRON} characters; {shown(text)} has {len(text)}.")
    fields = spelled_out(text)
    if fields.startswith("@"):
        raise wrong(f"cron knows {', '.join(WORDS)}, and not {shown(text)}.")
    count = len(fields.split())
    if count not in (5, 6):
        raise wrong(
            "cron needs five fields (minute, hour, day, month, weekday), or six with seconds first;"
            f" {shown(text)} has {count}."
        )
    try:
        due = next(CronSim(fields, EPOCH), None)
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        if name != "day-of-month" or not _fits_january(fields):
            raise wrong(
                f"the {name} of cron {shown(text)} cannot be meant. The fields are"
                f" {'second, ' if count == 6 else ''}minute 0-59, hour 0-23, day 1-31, month 1-12 or JAN-DEC, weekday"
                " 0-7 or SUN-SAT."
            ) from error
        due = None
    if due is None:
        raise wrong(
            f"cron {shown(text)} is never due: no month that it names has such a day. Choose another day."
        )
    for (name, size), field in zip(FIELDS[-count:], fields.split(), strict=True):
        for step in _STEP.findall(field):
            if int(step) > size:
                raise wrong(
                    f"cron {shown(text)} takes every {step}th {name}, and there are only {size}. Use every=,"
                    " or name the times."
                )
    return text


def _fits_january(fields: str) -> bool:
    """Whether each field can be meant by itself, and only the months are too short for the day."""
    *others, _, weekday = fields.split()
    try:
        CronSim(" ".join((*others, "1", weekday)), EPOCH)
    except CronSimError:
        return False
    return True


def _zone(where: str, given: object) -> str:
    name = plain_text(given)
    try:
        if name is None:
            raise ValueError
        zone_called(name)
    except (ValueError, OSError, KeyError) as error:
        hint = " This system has no time zones: `pip install tzdata` brings them."
        if known := available_timezones():
            hint = nearest(name or "", known)
        raise ScheduleInvalid(
            f"{where}: tz must be the name of a time zone such as 'Europe/Berlin', not {shown(given)}.{hint}",
            "tz",
        ) from error
    return name


def _interval(where: str, given: Any) -> Millis:
    spoken = read_duration(given) if isinstance(given, str) else given
    interval = 0 if spoken is None else _span(where, "every", spoken)
    if interval < SHORTEST:
        raise ScheduleInvalid(
            f"{where}: every must be at least a second, as a timedelta, a number of seconds or a text such as '5m',"
            f" not {shown(given)}.",
            "every",
        )
    return interval


def _span(where: str, field: str, given: Duration) -> Millis:
    try:
        return milliseconds(given, field)
    except OptionInvalid as error:
        raise ScheduleInvalid(f"{where}: {error}", field) from error


def _instant(where: str, field: str, given: object, tz: str) -> Millis:
    """An instant; a time without a zone is on the wall of the schedule's own."""
    moment = plain_moment(given)
    if moment is None:
        raise ScheduleInvalid(f"{where}: {field} must be a datetime, not {shown(given)}.", field)
    expect_in_calendar(f"{where}: {field}", moment, field)
    local = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone_called(tz))
    return to_millis(local.astimezone(UTC))


def expect_in_calendar(what: str, moment: datetime, field: str) -> None:
    """Raise ScheduleInvalid for a moment so far away that it may be beyond the calendar in some zone."""
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise ScheduleInvalid(
            f"{what} must be in a year from {FIRST_YEAR} to {LAST_YEAR}, not {moment.isoformat()}.", field
        )


def _most(where: str, given: object) -> int:
    most = plain_whole(given)
    if most is None or not 1 <= most <= MOST:
        raise ScheduleInvalid(
            f"{where}: catch_up_most must be a whole number from 1 to {MOST}, not {shown(given)}.",
            "catch_up_most",
        )
    return most


def _choice(where: str, field: str, given: Any, allowed: tuple[Any, ...]) -> Any:
    if given not in allowed:
        words = ", ".join(map(repr, allowed))
        raise ScheduleInvalid(f"{where}: {field} must be one of {words}, not {shown(given)}.", field)
    return given


def words_of(given: Definition) -> dict[str, Any]:
    """What would have to be said to `define` for this one: for whoever changes some of it."""
    recurrence = given.recurrence
    words: dict[str, Any] = {
        "task": given.task,
        "job": given.job,
        "catch_up": given.catch_up,
        "catch_up_most": given.most,
        "catch_up_within": None if given.within is None else given.within / 1000,
        "overlap": given.overlap,
        "jitter": given.jitter / 1000,
        "until": None if given.until is None else to_datetime(given.until),
        "tz": given.tz,
        "when_failed": given.when_failed,
    }
    if isinstance(recurrence, Cron):
        return words | {"cron": recurrence.expression, "gap": recurrence.gap, "fold": recurrence.fold}
    if isinstance(recurrence, Every):
        return words | {"every": recurrence.interval / 1000}
    return words | {"at": to_datetime(recurrence.at)}
