"""Which jobs are meant: the filters of `app.find`, of bulk actions and of the command line."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from math import isfinite
from typing import Literal, TypedDict, TypeGuard, get_args
from uuid import UUID

import msgspec

from shigoto.model.errors import OptionInvalid, nearest
from shigoto.model.job import FailureKind, JobFilter, State, View
from shigoto.model.text import plain_id, plain_number, plain_text, plain_whole, shown, storable, writable
from shigoto.model.time import Clock, Millis, host_clock, milliseconds
from shigoto.options import instant

MAX_PAGE = 1_000
MAX_NUMBER = 2**63 - 1

Scalar = str | int | float | bool | None
StateName = Literal[
    "pending",
    "processing",
    "completed",
    "failed",
    "cancelled",
    "blocked",
    "scheduled",
    "retrying",
    "waiting",
    "running",
    "succeeded",
    "all",
]
KindName = Literal[
    "error",
    "timeout",
    "rejected",
    "payload_invalid",
    "result_invalid",
    "unknown_task",
    "expired",
    "snoozed_out",
    "superseded",
    "crash_loop",
]


class Filters(TypedDict, total=False):
    """Which jobs are meant; everything given must match, and None means that it was not given.

    `worker` is the name or the id of the one that runs the job now, `error` a part of its error. `since` is the
    earliest moment at which it was stored, or how long ago that was: it says nothing of when it ran or ended. `args`
    are arguments of the job by their path: `{"store": 7, "user.name": "Ada"}`. The state `all` is every one.
    """

    state: State | StateName | None
    queue: str | None
    task: str | None
    tag: str | None
    key: str | None
    tenant: str | None
    failure_kind: FailureKind | KindName | None
    worker: str | UUID | None
    error: str | None
    since: datetime | timedelta | None
    args: Mapping[str, Scalar] | None
    before: int | None
    limit: int


def wanted(filters: Filters, clock: Clock = host_clock) -> JobFilter:
    """The filter in the store's words, as of now. Raises OptionInvalid for what cannot be meant."""
    for name in filters:
        if name not in Filters.__annotations__:
            raise OptionInvalid(
                f"There is no filter {shown(name)}.{nearest(name, tuple(Filters.__annotations__))}"
            )
    kind = filters.get("failure_kind")
    return JobFilter(
        state=_state_of(filters),
        queue=_text_of("queue", filters),
        task=_text_of("task", filters),
        tag=_text_of("tag", filters),
        key=_text_of("key", filters),
        tenant=_text_of("tenant", filters),
        failure_kind=None if kind is None else parse_kind(kind),
        worker=_worker_of(filters),
        error=_text_of("error", filters),
        since=_since_of(filters, clock),
        args=_args_of(filters),
        before=_before_of(filters),
        limit=_limit_of(filters),
    )


def parse_id(job_id: object) -> UUID:
    """The id of a job, given as one or as its text. Raises OptionInvalid."""
    id, text = plain_id(job_id), plain_text(job_id)
    if text is not None:
        with suppress(ValueError):
            id = UUID(text)
    if id is not None:
        return id
    raise OptionInvalid(f"The id of a job is a UUID or its text, not {shown(job_id)}.")


def parse_state(name: object) -> State | View:
    """The state, or view of pending, that a word means; the aliases of other systems are understood."""
    known = get_args(StateName)
    word = plain_text(name)
    if word is None:
        raise OptionInvalid(f"A state is one of {', '.join(known)}, not {shown(name)}.")
    match word:
        case "scheduled" | "retrying":
            return word
        case "waiting":
            return State.PENDING
        case "running":
            return State.PROCESSING
        case "succeeded":
            return State.COMPLETED
        case _:
            pass
    try:
        return State(word)
    except ValueError:
        raise OptionInvalid(
            f"There is no state {shown(word)}.{nearest(word, known)} States are: {', '.join(known)}."
        ) from None


def parse_kind(name: object) -> FailureKind:
    """The kind of failure that a word means."""
    known = [str(kind) for kind in FailureKind]
    word = plain_text(name)
    if word is None:
        raise OptionInvalid(f"A kind of failure is one of {', '.join(known)}, not {shown(name)}.")
    try:
        return FailureKind(word)
    except ValueError:
        raise OptionInvalid(
            f"There is no kind of failure {shown(word)}.{nearest(word, known)} Kinds are: {', '.join(known)}."
        ) from None


def _state_of(filters: Filters) -> State | View | None:
    """None for every one. Who asks for a kind of failure, and for no state, means failed jobs."""
    state = filters.get("state")
    if state is None:
        return None if filters.get("failure_kind") is None else State.FAILED
    return None if plain_text(state) == "all" else parse_state(state)


def _before_of(filters: Filters) -> int | None:
    before = filters.get("before")
    number = plain_whole(before)
    if before is not None and (number is None or not 0 <= number <= MAX_NUMBER):
        raise OptionInvalid(f"before must be the number of a job, not {shown(before)}.")
    return number


def _limit_of(filters: Filters) -> int:
    limit = filters.get("limit", 20)
    number = plain_whole(limit)
    if number is None or not 1 <= number <= MAX_PAGE:
        raise OptionInvalid(
            f"limit must be a whole number from 1 to {MAX_PAGE}, not {shown(limit)};"
            " for the next page there is before=."
        )
    return number


def _text_of(
    name: Literal["queue", "task", "tag", "key", "tenant", "worker", "error"], filters: Filters
) -> str | None:
    value: object = filters.get(name)
    if value is None:
        return None
    text = plain_text(value)
    if text is None:
        raise OptionInvalid(f"{name} must be a string, not {shown(value)}.")
    return storable(name, text)


def _worker_of(filters: Filters) -> str | None:
    id = plain_id(filters.get("worker"))
    return _text_of("worker", filters) if id is None else str(id)


def _since_of(filters: Filters, clock: Clock) -> Millis | None:
    since = filters.get("since")
    if since is None:
        return None
    if isinstance(since, timedelta):
        return max(0, clock() - milliseconds(since, "since"))
    return instant(since, "since")


def _args_of(filters: Filters) -> tuple[tuple[str, str], ...]:
    args = {check_path(path): value for path, value in arguments_of(filters).items()}
    return tuple((path, argument_text(path, value)) for path, value in args.items())


def arguments_of(filters: Filters) -> Mapping[object, object]:
    """The arguments that are asked for, by their paths. Raises OptionInvalid for what is no mapping."""
    args: object = filters.get("args")
    if args is None:
        return {}
    if not _is_mapping(args):
        raise OptionInvalid(f'args takes paths and values, such as {{"store": 7}}, not {shown(args)}.')
    return args


def _is_mapping(value: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(value, Mapping)


def check_path(path: object) -> str:
    """The path of an argument: its name, and the names inside of it after dots. Raises OptionInvalid."""
    plain = plain_text(path)
    if plain is None or not all(plain.split(".")):
        raise OptionInvalid(
            f"The path of an argument is its name, and names inside of it after dots, not {shown(path)}."
        )
    return writable("The path of an argument", plain)


def argument_text(path: object, value: object) -> str:
    """The text that stands for a value in the store's filter: of a string itself, of anything else its JSON."""
    text = plain_text(value)
    if text is not None:
        return writable(f"The argument {path}", text)
    plain = value if type(value) is bool else plain_number(value)
    if value is None or (plain is not None and (type(plain) is not float or isfinite(plain))):
        with suppress(ValueError):  # of a number that is too long to be written
            return msgspec.json.encode(plain).decode()
    raise OptionInvalid(
        f"The argument {path} is compared with a string, a number, true, false or null, not {shown(value)}."
    )
