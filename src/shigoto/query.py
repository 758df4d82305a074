"""Finding jobs: the filters of `app.find`, `app.redrive` and the command line; and pausing their queues."""

from contextlib import suppress
from typing import Literal, TypedDict, get_args
from uuid import UUID

from msgspec import structs

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model.errors import OptionInvalid, nearest, storable
from shigoto.model.job import FailureKind, JobFilter, QueueSettings, State
from shigoto.options import check_name, shown

MAX_PAGE = 1_000
MAX_NUMBER = 2**63 - 1

View = Literal["scheduled", "retrying"]
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
    """Which jobs to find; every one given must match."""

    state: State | StateName | None
    queue: str | None
    task: str | None
    tag: str | None
    key: str | None
    tenant: str | None
    failure_kind: FailureKind | KindName | None
    before: int | None
    limit: int


def wanted(filters: Filters) -> JobFilter:
    """The filter in the store's words. Raises OptionInvalid for what cannot be meant."""
    for name in filters:
        if name not in Filters.__annotations__:
            raise OptionInvalid(
                f"There is no filter {name!r}.{nearest(name, tuple(Filters.__annotations__))}"
            )
    limit, before, kind = filters.get("limit", 20), filters.get("before"), filters.get("failure_kind")
    state = filters.get("state") or (None if kind is None else State.FAILED)
    if not is_whole(limit) or not 1 <= limit <= MAX_PAGE:
        raise OptionInvalid(
            f"limit must be a whole number from 1 to {MAX_PAGE}, not {shown(limit)};"
            " for the next page there is before=."
        )
    if before is not None and (not is_whole(before) or not 0 <= before <= MAX_NUMBER):
        raise OptionInvalid(f"before must be the number of a job, not {shown(before)}.")
    return JobFilter(
        state=None if state is None else parse_state(state),
        queue=_text_of("queue", filters),
        task=_text_of("task", filters),
        tag=_text_of("tag", filters),
        key=_text_of("key", filters),
        tenant=_text_of("tenant", filters),
        failure_kind=None if kind is None else parse_kind(kind),
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
            f"There is no state {name!r}.{nearest(name, known)} States are: {', '.join(known)}."
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
            f"There is no kind of failure {name!r}.{nearest(name, known)} Kinds are: {', '.join(known)}."
        ) from None


def pausing(engine: Engine, queue: str, *, paused: bool) -> Op[None]:
    """Pause or resume a queue, and leave its other settings as they are, in one transaction."""
    queue = check_name(queue, "The queue")

    def steps() -> Steps[None]:
        stored = yield from engine.settings().start()
        settings = next((each for each in stored if each.name == queue), QueueSettings(name=queue))
        yield from engine.configure(structs.replace(settings, paused=paused)).start()

    return Op(start=steps, rings=None if paused else _always)


def _always(_: None) -> bool:
    return True


def _text_of(name: Literal["queue", "task", "tag", "key", "tenant"], filters: Filters) -> str | None:
    value: object = filters.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise OptionInvalid(f"{name} must be a string, not {shown(value)}.")
    return storable(name, str.__str__(value))


def is_whole(value: object) -> bool:
    """Whether it is a whole number, and no truth value in disguise."""
    return isinstance(value, int) and not isinstance(value, bool)
