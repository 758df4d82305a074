"""The options of tasks and calls: which there are, how they are checked, and how they combine.

    defaults < the app's defaults < the task's options < using()

Each option is checked once, where it is written, and turned into the store's currency (`Changes`). Laid over what
stands below, the changes give one frozen `Options`, computed once per task object: a call merges nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict, TypeGuard, get_args
from uuid import UUID

from msgspec import Struct, json, structs

from shigoto.codec import encode_json
from shigoto.model.errors import DeclarationError, JobError, OptionInvalid, nearest
from shigoto.model.job import KEY_MODES, MAX_META, MAX_PRIORITY, MIN_PRIORITY, JobSpec, KeyMode
from shigoto.model.text import plain_id, plain_moment, plain_text, plain_whole, shown, storable
from shigoto.model.time import Duration, Millis, milliseconds, to_millis
from shigoto.retry import Retry, check_retries

MAX_PAYLOAD = 1_048_576
MAX_DEPTH = 64
LAST_INSTANT = to_millis(datetime.max.replace(tzinfo=UTC))

NO_STOP_IN_THREAD = (
    "a timeout cannot stop what runs in a thread, and executor='thread' is declared. Leave executor out of the"
    " declaration or say executor='process', for runs in a process that can be stopped; or use soft_timeout."
)

OnError = Literal["raise", "log"]
Executor = Literal["loop", "thread", "process"]


class TaskOptions(TypedDict, total=False):
    """What `@app.task(...)` takes."""

    name: str
    aliases: Sequence[str]
    queue: str
    priority: int
    retry: Retry
    retries: int
    timeout: Duration | None
    soft_timeout: Duration | None
    executor: Executor
    exclusive: bool
    expires: Duration | None
    max_crashes: int | None
    tags: Sequence[str]
    encrypt: bool


CatchUp = Literal["none", "latest", "all"]
Overlap = Literal["allow", "skip", "queue", "cancel"]
Gap = Literal["after", "skip"]
Fold = Literal["first", "both"]
WhenFailed = Literal["keep", "remove"]


class ScheduleOptions(TypedDict, total=False):
    """What can be said about a schedule, beside when it is due and what it does then."""

    tz: str
    catch_up: CatchUp
    catch_up_most: int
    catch_up_within: Duration | None
    overlap: Overlap
    jitter: Duration
    until: datetime | None
    gap: Gap
    fold: Fold
    when_failed: WhenFailed


class ScheduledOptions(TaskOptions, ScheduleOptions, total=False):
    """What `@app.cron(…)` and `@app.every(…)` take: all of a task, and all of a schedule."""


class CallOptions(TypedDict, total=False):
    """What `task.using(...)` takes."""

    queue: str
    priority: int
    delay: Duration
    run_at: datetime
    expires: Duration | datetime | None
    key: str | None
    key_mode: KeyMode
    retry: Retry
    retries: int
    timeout: Duration | None
    soft_timeout: Duration | None
    max_crashes: int | None
    tenant: str
    tags: Sequence[str]
    meta: Mapping[str, Any]
    encrypt: bool
    id: UUID
    connection: object
    on_error: OnError


Changes = dict[str, Any]
# Gives an option in that currency, from its name and value. Raises OptionInvalid.
Read = Callable[[str, Any], Any]


class Options(Struct, frozen=True, kw_only=True):
    """All that is decided about a call but its arguments, in the store's currency.

    `retry`, `timeout` and `soft_timeout` are what is in force; what was given for this one call is in `stored_…`
    as well, and the rest is left to the worker's own task. 0 is a limit that the call has lifted. `executor` is
    None where the function decides, `alone` asks for a process of its own. `encrypt` is None where nobody has said
    anything. `said` are the fields that `using` named.
    """

    queue: str = "default"
    priority: int = 0
    retry: Retry = Retry()
    stored_retry: str | None = None
    timeout: Millis | None = None
    stored_timeout: Millis | None = None
    soft_timeout: Millis | None = None
    stored_soft_timeout: Millis | None = None
    executor: Executor | None = None
    exclusive: bool = False
    alone: bool = False
    max_crashes: int | None = 3
    expires_in: Millis | None = None
    expires_at: Millis | None = None
    delay: Millis = 0
    run_at: Millis | None = None
    key: str | None = None
    key_mode: KeyMode = "keep"
    tenant: str = ""
    tags: str | None = None
    meta: str | None = None
    id: UUID | None = None
    connection: object = None
    on_error: OnError = "raise"
    encrypt: bool | None = None
    said: tuple[str, ...] = ()

    def spec(self, task: str) -> JobSpec:
        """The job that such a call asks for, with its id and payload still to be filled in."""
        return JobSpec(
            id=UUID(int=0),
            task=task,
            queue=self.queue,
            payload="",
            tenant=self.tenant,
            priority=self.priority,
            delay=self.delay,
            run_at=self.run_at,
            expires_in=self.expires_in,
            expires_at=self.expires_at,
            key=self.key,
            key_mode=self.key_mode,
            max_failures=self.retry.max_failures,
            max_crashes=self.max_crashes,
            retry=self.stored_retry,
            timeout=self.stored_timeout,
            soft_timeout=self.stored_soft_timeout,
            tags=self.tags,
            meta=self.meta,
            alone=self.alone,
        )


def lay_over(base: Options, changes: Changes) -> Options:
    """What holds when these checked options are laid over others."""
    fields = dict(changes)
    retries = fields.pop("retries", None)
    if retries is not None:
        fields["retry"] = fields.get("retry", base.retry).with_retries(retries)
    return structs.replace(base, **fields) if fields else base


def lay_call_over(base: Options, changes: Changes, *, where: str, stoppable: bool) -> Options:
    """The same for the options of one call, whose retry policy and time limits are stored with the job.

    Where a run cannot be stopped, as in a thread or by who knows whom, a time limit takes a process of its own.
    """
    if not changes:
        return base
    options = lay_over(base, changes)
    expect_limits_in_order(options, where=where)
    if options.key is None and options.key_mode != "keep":
        raise OptionInvalid(f"key_mode={options.key_mode!r} needs a key= to work on.")
    _check_expiry(options)
    own_retry = options.retry is not base.retry and options.retry.storable
    return structs.replace(
        options,
        stored_retry=options.retry.dump() if own_retry else None,
        stored_timeout=changes.get("timeout"),
        stored_soft_timeout=changes.get("soft_timeout"),
        alone=bool(changes.get("timeout")) and not stoppable,
        said=tuple(changes),
    )


def expect_limits_in_order(options: Options, *, where: str) -> None:
    """Raise OptionInvalid for a soft limit that would never come before the hard one."""
    soft, hard = options.soft_timeout, options.timeout
    if soft and hard and soft >= hard:
        raise OptionInvalid(
            f"{where}: soft_timeout ({soft / 1000:g} s) must be shorter than timeout ({hard / 1000:g} s),"
            " wherever the two come from. Say both, or None for the one that is not wanted."
        )


def executor_of(options: Options, *, is_async: bool) -> Executor:
    """Where runs take place: as said, else as the function needs it."""
    if options.executor is not None:
        return options.executor
    if is_async:
        return "loop"
    return "process" if options.timeout else "thread"


def expect_place(options: Options, *, is_async: bool, where: str) -> None:
    """Raise DeclarationError for an executor that cannot run the function, or cannot do what else is asked."""
    if options.executor == "loop" and not is_async:
        raise DeclarationError(
            f"{where}: executor='loop' is for async functions, and this one is not. Leave executor out, or say"
            " 'thread' or 'process'."
        )
    if options.executor == "thread" and is_async:
        raise DeclarationError(
            f"{where}: executor='thread' is for functions that are not async, and this one is. Leave executor"
            " out, or say 'process'."
        )
    if options.executor == "thread" and options.timeout:
        raise DeclarationError(f"{where}: {NO_STOP_IN_THREAD}")
    if options.exclusive and executor_of(options, is_async=is_async) == "thread":
        raise DeclarationError(
            f"{where}: exclusive=True stops a run when its lease is in doubt, and a thread cannot be stopped."
            " Say executor='process', or make the function async."
        )


def _check_expiry(options: Options) -> None:
    soon = options.expires_in is not None and options.expires_in <= options.delay and options.run_at is None
    early = (
        options.expires_at is not None and options.run_at is not None and options.expires_at <= options.run_at
    )
    if early or (soon and options.delay):
        raise OptionInvalid(
            "The job would expire before it may start: expires is not later than delay or run_at."
        )


def check_name(name: object, what: str) -> str:
    """The name of a task or queue, if it can be one."""
    plain = plain_text(name)
    if plain is None:
        raise OptionInvalid(f"{what} must be a string, not {shown(name)}.")
    if not _NAME.fullmatch(plain):
        raise OptionInvalid(
            f"{what} {shown(plain)} must be kebab-case or snake_case: 1 to 100 of a-z, 0-9, '-', '_', '.',"
            f" and not start with '-' or '.'.{_suggest_name(plain)}"
        )
    return plain


_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,99}")


def _suggest_name(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    better = re.sub(r"[^a-z0-9_.-]+", "_", words).strip("_.-")[:100]
    return f" How about {better!r}?" if _NAME.fullmatch(better) else ""


def expect_times(given: object) -> None:
    """Raise DeclarationError for a function that was given to a decorator of schedules in place of its times."""
    if callable(given):
        raise DeclarationError(
            f"{shown(given)} stands where its times belong. Say when it is due: @app.cron('0 3 * * *'), or"
            " @app.every('5m')."
        )


def several(option: str, value: object) -> Iterable[object]:
    """The members of a list of strings, still to be checked one by one. Raises OptionInvalid."""
    if isinstance(value, str):
        raise OptionInvalid(f"{option} takes a list of strings, not one: write {option}=[{shown(value)}].")
    if not _is_several(value):
        raise OptionInvalid(f"{option} takes a list of strings, not {shown(value)}; [] is for none.")
    return value


def _is_several(value: object) -> TypeGuard[Iterable[object]]:
    return isinstance(value, Iterable) and not isinstance(value, bytes | Mapping)


def instant(value: object, option: str) -> Millis:
    """The store instant of an aware datetime; a naive one is refused: nobody can know what it means."""
    moment = plain_moment(value)
    if moment is None:
        raise OptionInvalid(f"{option} takes a datetime with a time zone, not {shown(value)}.")
    if moment.utcoffset() is None:
        raise OptionInvalid(
            f"{option} has no time zone: {shown(value)}. Use datetime.now(UTC) or a ZoneInfo."
        )
    at = to_millis(moment)
    if not 0 <= at <= LAST_INSTANT:
        raise OptionInvalid(f"{option} must be from 1970 to 9999 in UTC, and is {moment.isoformat()}.")
    return at


def duration(value: Duration, option: str) -> Millis:
    """The duration in milliseconds. Raises OptionInvalid, also for numbers that are too long to be shown."""
    try:
        return milliseconds(value, option)
    except (OverflowError, ValueError):
        raise OptionInvalid(f"{option} is longer than a hundred years. Numbers are seconds.") from None


def whole(option: str, value: object, low: int, high: int) -> int:
    number = plain_whole(value)
    if number is None or not low <= number <= high:
        raise OptionInvalid(f"{option} must be a whole number from {low} to {high}, not {shown(value)}.")
    return number


def text(option: str, value: object, longest: int) -> str:
    plain = plain_text(value)
    if plain is None:
        raise OptionInvalid(f"{option} must be a string, not {shown(value)}.")
    if not 0 < len(plain) <= longest:
        raise OptionInvalid(f"{option} must have 1 to {longest} characters, and has {len(plain)}.")
    return storable(option, plain)


def choice(option: str, value: object, choices: tuple[str, ...]) -> str:
    plain = plain_text(value)
    if plain is None or plain not in choices:
        hint = "" if plain is None else nearest(plain, choices)
        raise OptionInvalid(f"{option} must be one of {', '.join(choices)}, not {shown(value)}.{hint}")
    return plain


MAX_KEY = 512
MAX_TENANT = 100
MAX_TAGS = 20
MAX_TAG = 100
MAX_CRASHES = 10_000


def check_task_options(given: TaskOptions, *, where: str) -> Changes:
    """The checked options of a task or of an app; `name` and `aliases` are left to `check_name`."""
    rest = {option: value for option, value in given.items() if option not in ("name", "aliases")}
    return _check(rest, _TASK, where)


def check_call_options(given: CallOptions, *, where: str) -> Changes:
    """The checked options of `using`."""
    changes = _check(given, _CALL, where)
    if "retry" in changes:
        changes["retry"].dump()
    return changes


def check_defaults(defaults: TaskOptions) -> Options:
    """What an app says of all its tasks."""
    for option in ("name", "aliases"):
        if option in defaults:
            raise OptionInvalid(f"{option} belongs to one task and cannot be a default of the app.")
    where = "Shigoto(defaults=…)"
    options = lay_over(Options(), check_task_options(defaults, where=where))
    expect_limits_in_order(options, where=where)
    return options


def check_patience(unknown_after: Duration | None) -> Millis | None:
    """How long an app's jobs may be due and unknown to everybody."""
    if unknown_after is None:
        return None
    patience = duration(unknown_after, "unknown_after")
    if not patience:
        raise OptionInvalid(
            "unknown_after must be at least a millisecond: with no patience at all, jobs would fail before the worker"
            " that knows them has started. None lets them wait for ever."
        )
    return patience


def _check(given: Mapping[str, object], table: Mapping[str, Read], where: str) -> Changes:
    changes: Changes = {}
    for option, value in given.items():
        read = table.get(option)
        if read is None:
            raise OptionInvalid(f"{where} has no option {shown(option)}.{nearest(option, tuple(table))}")
        field = option
        if option == "expires":
            field = "expires_at" if isinstance(value, datetime) else "expires_in"
        changes |= {field: read(option, value), **_RESETS.get(field, {})}
    for one, other in (("delay", "run_at"), ("retry", "retries")):
        if one in given and other in given:
            raise OptionInvalid(f"{where} is given both {one} and {other}; say one of them.")
    return changes


# What else an option says: it takes the place of one that was said before.
_RESETS: dict[str, Changes] = {
    "retry": {"retries": None},
    "expires_in": {"expires_at": None},
    "expires_at": {"expires_in": None},
    "delay": {"run_at": None},
    "run_at": {"delay": 0},
}


def _retry(option: str, value: object) -> Retry:
    if not isinstance(value, Retry):
        raise OptionInvalid(
            f"{option} takes a Retry, not {shown(value)}. For a mere number there is retries=."
        )
    return value


def _limit(option: str, value: Duration | None) -> Millis | None:
    limit = _duration_or_none(option, value)
    if limit == 0:
        raise OptionInvalid(f"{option} must be more than zero; leave it out, or say None, for no limit.")
    return limit


def _limit_of_call(option: str, value: Duration | None) -> Millis:
    return _limit(option, value) or 0


def _flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise OptionInvalid(f"{option} is True or False, not {shown(value)}.")
    return value


def _duration_or_none(option: str, value: Duration | None) -> Millis | None:
    return None if value is None else duration(value, option)


def _expires(option: str, value: Duration | datetime | None) -> Millis | None:
    return instant(value, option) if isinstance(value, datetime) else _duration_or_none(option, value)


def _tags(option: str, value: object) -> str | None:
    tags = list(dict.fromkeys(_tag(tag) for tag in several(option, value)))
    if len(tags) > MAX_TAGS:
        raise OptionInvalid(f"A job takes at most {MAX_TAGS} tags, and here are {len(tags)}.")
    return json.encode(tags).decode() if tags else None


def _tag(value: object) -> str:
    tag = text("a tag", value, MAX_TAG)
    if _CONTROL.search(tag):
        raise OptionInvalid(f"a tag is one line of plain text, but {shown(tag)} has a control character.")
    return tag


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _meta(option: str, value: object) -> str | None:
    try:
        written = encode_json(value, what=option, max_bytes=MAX_META, max_depth=MAX_DEPTH)
    except JobError as error:
        raise OptionInvalid(str(error)) from error
    if not written.startswith("{"):
        raise OptionInvalid(f"{option} takes a dict of names to JSON values, not {shown(value)}.")
    return None if written == "{}" else written


def _id(option: str, value: object) -> UUID:
    id = plain_id(value)
    if id is None:
        raise OptionInvalid(f"{option} takes a UUID, not {shown(value)}.")
    return id


_TASK: dict[str, Read] = {
    "queue": lambda _, value: check_name(value, "The queue"),
    "priority": lambda option, value: whole(option, value, MIN_PRIORITY, MAX_PRIORITY),
    "retry": _retry,
    "retries": lambda _, value: check_retries(value),
    "timeout": _limit,
    "soft_timeout": _limit,
    "executor": lambda option, value: choice(option, value, get_args(Executor)),
    "exclusive": _flag,
    "expires": _duration_or_none,
    "max_crashes": lambda option, value: None if value is None else whole(option, value, 1, MAX_CRASHES),
    "tags": _tags,
    "encrypt": _flag,
}

_OF_TASKS_ONLY = ("executor", "exclusive")

_CALL: dict[str, Read] = {
    **{option: read for option, read in _TASK.items() if option not in _OF_TASKS_ONLY},
    "timeout": _limit_of_call,
    "soft_timeout": _limit_of_call,
    "delay": lambda option, value: duration(value, option),
    "run_at": lambda option, value: instant(value, option),
    "expires": _expires,
    "key": lambda option, value: None if value is None else text(option, value, MAX_KEY),
    "key_mode": lambda option, value: choice(option, value, KEY_MODES),
    "tenant": lambda option, value: text(option, value, MAX_TENANT),
    "meta": _meta,
    "id": _id,
    "connection": lambda _, value: value,
    "on_error": lambda option, value: choice(option, value, ("raise", "log")),
}
