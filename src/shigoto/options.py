"""What can be said about a task and about one call of it, and how the sayings add up.

    defaults < the app's defaults < the task's options < using()

Each saying is checked once, where it is written, and turned into the store's currency (`Changes`). Laid
over what stands below, it gives one frozen `Options`, computed once per task object: a call merges nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict, TypeGuard
from uuid import UUID

from msgspec import Struct, json, structs

from shigoto.codec import encode_json
from shigoto.model.clock import Millis, to_millis
from shigoto.model.duration import Duration, milliseconds
from shigoto.model.errors import JobError, OptionInvalid, nearest, storable
from shigoto.model.job import KEY_MODES, MAX_PRIORITY, MIN_PRIORITY, JobSpec, KeyMode
from shigoto.retry import Retry, check_retries

MAX_PAYLOAD = 1_048_576
MAX_DEPTH = 64
MAX_KEY = 512
MAX_TENANT = 100
MAX_TAGS = 20
MAX_TAG = 100
MAX_META = 16 * 1024
MAX_CRASHES = 10_000

MAX_SHOWN = 200
LAST_INSTANT = to_millis(datetime.max.replace(tzinfo=UTC))

OnError = Literal["raise", "log"]


class TaskOptions(TypedDict, total=False):
    """What `@app.task(...)` takes."""

    name: str
    aliases: Sequence[str]
    queue: str
    priority: int
    retry: Retry
    retries: int
    timeout: Duration | None
    expires: Duration | None
    max_crashes: int | None
    tags: Sequence[str]


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
    max_crashes: int | None
    tenant: str
    tags: Sequence[str]
    meta: Mapping[str, Any]
    id: UUID
    connection: object
    on_error: OnError


Changes = dict[str, Any]


class Options(Struct, frozen=True, kw_only=True):
    """All that is decided about a call but its arguments, in the store's currency.

    `retry` is the policy in force, `stored_retry` its text when it was given for this one call.
    """

    queue: str = "default"
    priority: int = 0
    retry: Retry = Retry()
    stored_retry: str | None = None
    timeout: Millis | None = None
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
            timeout=self.timeout,
            tags=self.tags,
            meta=self.meta,
        )


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


def lay_over(base: Options, changes: Changes) -> Options:
    """What holds when these checked options are laid over others."""
    if not changes:
        return base
    retries = changes.get("retries")
    fields = {key: value for key, value in changes.items() if key != "retries"}
    if retries is not None:
        fields["retry"] = fields.get("retry", base.retry).with_retries(retries)
    return structs.replace(base, **fields)


def lay_call_over(base: Options, changes: Changes) -> Options:
    """The same for the options of one call, whose retry policy is stored with the job."""
    if not changes:
        return base
    options = lay_over(base, changes)
    if options.key is None and options.key_mode != "keep":
        raise OptionInvalid(f"key_mode={options.key_mode!r} needs a key= to work on.")
    _check_expiry(options)
    if options.retry is not base.retry and options.retry.storable:
        return structs.replace(options, stored_retry=options.retry.dump())
    return options


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
    if not isinstance(name, str):
        raise OptionInvalid(f"{what} must be a string, not {shown(name)}.")
    if not _NAME.fullmatch(name):
        raise OptionInvalid(
            f"{what} {shown(name)} must be kebab-case or snake_case: 1 to 100 of a-z, 0-9, '-', '_', '.',"
            f" and not start with '-' or '.'.{_suggest_name(name)}"
        )
    return str.__str__(name)


_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,99}")


def _suggest_name(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    better = re.sub(r"[^a-z0-9_.-]+", "_", words).strip("_.-")[:100]
    return f" How about {better!r}?" if _NAME.fullmatch(better) else ""


def _check(given: Mapping[str, object], table: Mapping[str, Callable[[Any], Changes]], where: str) -> Changes:
    changes: Changes = {}
    for option, value in given.items():
        check = table.get(option)
        if check is None:
            raise OptionInvalid(f"{where} has no option {option!r}.{nearest(option, tuple(table))}")
        changes.update(check(value))
    for one, other in (("delay", "run_at"), ("retry", "retries")):
        if one in given and other in given:
            raise OptionInvalid(f"{where} is given both {one} and {other}; say one of them.")
    return changes


def _queue(value: object) -> Changes:
    return {"queue": check_name(value, "The queue")}


def _priority(value: object) -> Changes:
    return {"priority": _whole("priority", value, MIN_PRIORITY, MAX_PRIORITY)}


def _retry(value: object) -> Changes:
    if not isinstance(value, Retry):
        raise OptionInvalid(f"retry takes a Retry, not {shown(value)}. For a mere number there is retries=.")
    return {"retry": value, "retries": None}


def _retries(value: object) -> Changes:
    check_retries(value)
    return {"retries": value}


def _timeout(value: Duration | None) -> Changes:
    limit = None if value is None else duration(value, "timeout")
    if limit == 0:
        raise OptionInvalid("timeout must be more than zero; leave it out, or say None, for no limit.")
    return {"timeout": limit}


def _max_crashes(value: object) -> Changes:
    return {"max_crashes": None if value is None else _whole("max_crashes", value, 1, MAX_CRASHES)}


def _expires_in(value: Duration | None) -> Changes:
    return {"expires_in": None if value is None else duration(value, "expires"), "expires_at": None}


def _expires(value: Duration | datetime | None) -> Changes:
    if isinstance(value, datetime):
        return {"expires_in": None, "expires_at": instant(value, "expires")}
    return _expires_in(value)


def _delay(value: Duration) -> Changes:
    return {"delay": duration(value, "delay"), "run_at": None}


def _run_at(value: object) -> Changes:
    return {"delay": 0, "run_at": instant(value, "run_at")}


def _key(value: object) -> Changes:
    return {"key": None if value is None else _text("key", value, MAX_KEY)}


def _key_mode(value: object) -> Changes:
    return {"key_mode": _choice("key_mode", value, KEY_MODES)}


def _tenant(value: object) -> Changes:
    return {"tenant": _text("tenant", value, MAX_TENANT)}


def _tags(value: object) -> Changes:
    tags = list(dict.fromkeys(_tag(tag) for tag in several("tags", value)))
    if len(tags) > MAX_TAGS:
        raise OptionInvalid(f"A job takes at most {MAX_TAGS} tags, and here are {len(tags)}.")
    return {"tags": json.encode(tags).decode() if tags else None}


def _tag(value: object) -> str:
    tag = _text("a tag", value, MAX_TAG)
    if _CONTROL.search(tag):
        raise OptionInvalid(f"a tag is one line of plain text, but {shown(tag)} has a control character.")
    return tag


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _meta(value: object) -> Changes:
    try:
        text = encode_json(value, what="meta", max_bytes=MAX_META, max_depth=MAX_DEPTH)
    except JobError as error:
        raise OptionInvalid(str(error)) from error
    if not text.startswith("{"):
        raise OptionInvalid(f"meta takes a dict of names to JSON values, not {shown(value)}.")
    return {"meta": None if text == "{}" else text}


def _id(value: object) -> Changes:
    if not isinstance(value, UUID):
        raise OptionInvalid(f"id takes a UUID, not {shown(value)}.")
    return {"id": value}


def _connection(value: object) -> Changes:
    return {"connection": value}


def _on_error(value: object) -> Changes:
    return {"on_error": _choice("on_error", value, ("raise", "log"))}


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
    if not isinstance(value, datetime):
        raise OptionInvalid(f"{option} takes a datetime with a time zone, not {shown(value)}.")
    if value.utcoffset() is None:
        raise OptionInvalid(
            f"{option} has no time zone: {shown(value)}. Use datetime.now(UTC) or a ZoneInfo."
        )
    at = to_millis(value)
    if not 0 <= at <= LAST_INSTANT:
        raise OptionInvalid(f"{option} must be from 1970 to 9999 in UTC, and is {value.isoformat()}.")
    return at


def duration(value: Duration, option: str) -> Millis:
    """The duration in milliseconds. Raises OptionInvalid, also for numbers that are too long to be shown."""
    try:
        return milliseconds(value, option)
    except (OverflowError, ValueError):
        raise OptionInvalid(f"{option} is longer than a hundred years. Numbers are seconds.") from None


def shown(value: object) -> str:
    """The value as it stands in a message: on one short line, whatever it is."""
    try:
        text = repr(value)
    except Exception:
        text = f"{type(value).__qualname__}, which cannot be shown"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _whole(option: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise OptionInvalid(f"{option} must be a whole number from {low} to {high}, not {shown(value)}.")
    return int(value)


def _text(option: str, value: object, longest: int) -> str:
    if not isinstance(value, str):
        raise OptionInvalid(f"{option} must be a string, not {shown(value)}.")
    if not 0 < len(value) <= longest:
        raise OptionInvalid(f"{option} must have 1 to {longest} characters, and has {len(value)}.")
    return storable(option, str.__str__(value))


def _choice(option: str, value: object, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        hint = nearest(value, choices) if isinstance(value, str) else ""
        raise OptionInvalid(f"{option} must be one of {', '.join(choices)}, not {shown(value)}.{hint}")
    return str.__str__(value)


_TASK: dict[str, Callable[[Any], Changes]] = {
    "queue": _queue,
    "priority": _priority,
    "retry": _retry,
    "retries": _retries,
    "timeout": _timeout,
    "expires": _expires_in,
    "max_crashes": _max_crashes,
    "tags": _tags,
}

_CALL: dict[str, Callable[[Any], Changes]] = _TASK | {
    "delay": _delay,
    "run_at": _run_at,
    "expires": _expires,
    "key": _key,
    "key_mode": _key_mode,
    "tenant": _tenant,
    "meta": _meta,
    "id": _id,
    "connection": _connection,
    "on_error": _on_error,
}
