"""Option by option: what may be said, and what it is in the store's currency."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, get_args

from msgspec import json

from shigoto.codec import encode_json
from shigoto.model.errors import JobError, OptionInvalid, nearest
from shigoto.model.job import KEY_MODES, MAX_META, MAX_PRIORITY, MIN_PRIORITY
from shigoto.model.text import plain_id, shown
from shigoto.model.time import Duration, Millis
from shigoto.options import (
    MAX_DEPTH,
    CallOptions,
    Changes,
    Executor,
    Options,
    TaskOptions,
    check_name,
    choice,
    duration,
    expect_limits_in_order,
    instant,
    lay_over,
    several,
    text,
    whole,
)
from shigoto.retry import Retry, check_retries

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


def _check(given: Mapping[str, object], table: Mapping[str, Callable[[Any], Changes]], where: str) -> Changes:
    changes: Changes = {}
    for option, value in given.items():
        check = table.get(option)
        if check is None:
            raise OptionInvalid(f"{where} has no option {shown(option)}.{nearest(option, tuple(table))}")
        changes.update(check(value))
    for one, other in (("delay", "run_at"), ("retry", "retries")):
        if one in given and other in given:
            raise OptionInvalid(f"{where} is given both {one} and {other}; say one of them.")
    return changes


def _queue(value: object) -> Changes:
    return {"queue": check_name(value, "The queue")}


def _priority(value: object) -> Changes:
    return {"priority": whole("priority", value, MIN_PRIORITY, MAX_PRIORITY)}


def _retry(value: object) -> Changes:
    if not isinstance(value, Retry):
        raise OptionInvalid(f"retry takes a Retry, not {shown(value)}. For a mere number there is retries=.")
    return {"retry": value, "retries": None}


def _retries(value: object) -> Changes:
    return {"retries": check_retries(value)}


def _limit(option: str, value: Duration | None) -> Millis | None:
    limit = None if value is None else duration(value, option)
    if limit == 0:
        raise OptionInvalid(f"{option} must be more than zero; leave it out, or say None, for no limit.")
    return limit


def _timeout(value: Duration | None) -> Changes:
    return {"timeout": _limit("timeout", value)}


def _soft_timeout(value: Duration | None) -> Changes:
    return {"soft_timeout": _limit("soft_timeout", value)}


def _timeout_of_call(value: Duration | None) -> Changes:
    return {"timeout": _limit("timeout", value) or 0}


def _soft_timeout_of_call(value: Duration | None) -> Changes:
    return {"soft_timeout": _limit("soft_timeout", value) or 0}


def _executor(value: object) -> Changes:
    return {"executor": choice("executor", value, get_args(Executor))}


def _exclusive(value: object) -> Changes:
    if not isinstance(value, bool):
        raise OptionInvalid(f"exclusive is True or False, not {shown(value)}.")
    return {"exclusive": value}


def _encrypt(value: object) -> Changes:
    if not isinstance(value, bool):
        raise OptionInvalid(f"encrypt is True or False, not {shown(value)}.")
    return {"encrypt": value}


def _max_crashes(value: object) -> Changes:
    return {"max_crashes": None if value is None else whole("max_crashes", value, 1, MAX_CRASHES)}


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
    return {"key": None if value is None else text("key", value, MAX_KEY)}


def _key_mode(value: object) -> Changes:
    return {"key_mode": choice("key_mode", value, KEY_MODES)}


def _tenant(value: object) -> Changes:
    return {"tenant": text("tenant", value, MAX_TENANT)}


def _tags(value: object) -> Changes:
    tags = list(dict.fromkeys(_tag(tag) for tag in several("tags", value)))
    if len(tags) > MAX_TAGS:
        raise OptionInvalid(f"A job takes at most {MAX_TAGS} tags, and here are {len(tags)}.")
    return {"tags": json.encode(tags).decode() if tags else None}


def _tag(value: object) -> str:
    tag = text("a tag", value, MAX_TAG)
    if _CONTROL.search(tag):
        raise OptionInvalid(f"a tag is one line of plain text, but {shown(tag)} has a control character.")
    return tag


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _meta(value: object) -> Changes:
    try:
        written = encode_json(value, what="meta", max_bytes=MAX_META, max_depth=MAX_DEPTH)
    except JobError as error:
        raise OptionInvalid(str(error)) from error
    if not written.startswith("{"):
        raise OptionInvalid(f"meta takes a dict of names to JSON values, not {shown(value)}.")
    return {"meta": None if written == "{}" else written}


def _id(value: object) -> Changes:
    id = plain_id(value)
    if id is None:
        raise OptionInvalid(f"id takes a UUID, not {shown(value)}.")
    return {"id": id}


def _connection(value: object) -> Changes:
    return {"connection": value}


def _on_error(value: object) -> Changes:
    return {"on_error": choice("on_error", value, ("raise", "log"))}


_TASK: dict[str, Callable[[Any], Changes]] = {
    "queue": _queue,
    "priority": _priority,
    "retry": _retry,
    "retries": _retries,
    "timeout": _timeout,
    "soft_timeout": _soft_timeout,
    "executor": _executor,
    "exclusive": _exclusive,
    "expires": _expires_in,
    "max_crashes": _max_crashes,
    "tags": _tags,
    "encrypt": _encrypt,
}

_OF_TASKS_ONLY = ("executor", "exclusive")

_CALL: dict[str, Callable[[Any], Changes]] = {
    option: check for option, check in _TASK.items() if option not in _OF_TASKS_ONLY
} | {
    "timeout": _timeout_of_call,
    "soft_timeout": _soft_timeout_of_call,
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
