"""Which jobs are meant: the filters of `app.find`, of bulk actions and of the command line."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from math import isfinite
from typing import Literal, TypedDict, TypeGuard, get_args
from uuid import UUID

import msgspec

from shigoto.model.clock import Clock, Millis, host_clock
from shigoto.model.duration import milliseconds
from shigoto.model.errors import OptionInvalid, nearest, storable
from shigoto.model.job import FailureKind, JobFilter, State, View
from shigoto.model.text import shown
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
    limit, before, kind = filters.get("limit", 20), filters.get("before"), filters.get("failure_kind")
    state = filters.get("state") or ("all" if kind is None else State.FAILED)
    if not is_whole(limit) or not 1 <= limit <= MAX_PAGE:
        raise OptionInvalid(
            f"limit must be a whole number from 1 to {MAX_PAGE}, not {shown(limit)};"
            " for the next page there is before=."
        )
    if before is not None and (not is_whole(before) or not 0 <= before <= MAX_NUMBER):
        raise OptionInvalid(f"before must be the number of a job, not {shown(before)}.")
    return JobFilter(
        state=None if state == "all" else parse_state(state),
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
        before=before,
        limit=limit,
    )


def parse_id(job_id: object) -> UUID:
    """The id of a job, given as one or as its text. Raises OptionInvalid."""
    if isinstance(job_id, UUID):
        return job_id
    if isinstance(job_id, str):
        with suppress(ValueError):
            return UUID(job_id)
    raise OptionInvalid(f"The id of a job is a UUID or its text, not {shown(job_id)}.")


def parse_state(name: object) -> State | View:
    """The state, or view of pending, that a word means; the aliases of other systems are understood."""
    known = get_args(StateName)
    if not isinstance(name, str):
        raise OptionInvalid(f"A state is one of {', '.join(known)}, not {shown(name)}.")
    match name:
        case "scheduled" | "retrying":
            return name
        case "waiting":
            return State.PENDING
        case "running":
            return State.PROCESSING
        case "succeeded":
            return State.COMPLETED
        case _:
            pass
    try:
        return State(name)
    except ValueError:
        raise OptionInvalid(
            f"There is no state {shown(name)}.{nearest(name, known)} States are: {', '.join(known)}."
        ) from None


def parse_kind(name: object) -> FailureKind:
    """The kind of failure that a word means."""
    known = [str(kind) for kind in FailureKind]
    if not isinstance(name, str):
        raise OptionInvalid(f"A kind of failure is one of {', '.join(known)}, not {shown(name)}.")
    try:
        return FailureKind(name)
    except ValueError:
        raise OptionInvalid(
            f"There is no kind of failure {shown(name)}.{nearest(name, known)} Kinds are: {', '.join(known)}."
        ) from None


def _text_of(
    name: Literal["queue", "task", "tag", "key", "tenant", "worker", "error"], filters: Filters
) -> str | None:
    value: object = filters.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise OptionInvalid(f"{name} must be a string, not {shown(value)}.")
    return storable(name, str.__str__(value))


def _worker_of(filters: Filters) -> str | None:
    worker = filters.get("worker")
    return str(worker) if isinstance(worker, UUID) else _text_of("worker", filters)


def _since_of(filters: Filters, clock: Clock) -> Millis | None:
    since = filters.get("since")
    if since is None:
        return None
    if isinstance(since, timedelta):
        return max(0, clock() - milliseconds(since, "since"))
    return instant(since, "since")


def _args_of(filters: Filters) -> tuple[tuple[str, str], ...]:
    args = arguments_of(filters)
    return tuple((check_path(path), argument_text(path, value)) for path, value in args.items())


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
    if not isinstance(path, str) or not all(path.split(".")):
        raise OptionInvalid(
            f"The path of an argument is its name, and names inside of it after dots, not {shown(path)}."
        )
    return storable("The path of an argument", str.__str__(path))


def argument_text(path: object, value: object) -> str:
    """The text that stands for a value in the store's filter: of a string itself, of anything else its JSON."""
    if isinstance(value, str):
        return storable(f"The argument {path}", str.__str__(value))
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        with suppress(ValueError):  # of a number that is too long to be written
            return msgspec.json.encode(value).decode()
    raise OptionInvalid(
        f"The argument {path} is compared with a string, a number, true, false or null, not {shown(value)}."
    )


def is_whole(value: object) -> bool:
    """Whether it is a whole number, and no truth value in disguise."""
    return isinstance(value, int) and not isinstance(value, bool)
