"""Queues: their settings, their pause, and the limit of their pending jobs.

The limit, `max_pending`, is checked where jobs come in by HTTP, command line or schedule; not where an application with
a store of its own enqueues: that would cost each of its enqueues a look, and its code can count for itself. On SQLite
and in memory the check is exact. On PostgreSQL several callers at once may exceed it by what they have under way.

A job that is stored already takes no room, whether it has the same id or a unique key that a job holds; nor does a job
that takes the place of one that a schedule cancels for it. Of a batch with many keys those are not looked at, and
neither is a key that two jobs of a batch share: then a full queue refuses what it could take.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from msgspec import Struct, structs

from shigoto.engine.op import Op, Steps, extended
from shigoto.engine.protocol import Engine
from shigoto.model.errors import OptionInvalid, QueueFull
from shigoto.model.job import Counts, Enqueued, JobFilter, JobSpec, QueueSettings, State
from shigoto.model.schedule import Change
from shigoto.model.text import shown
from shigoto.model.time import LONGEST, Millis
from shigoto.options import check_name

MOST_PENDING = 10**9
SETTINGS = frozenset(QueueSettings.__struct_fields__) - {"name"}


class Queue(Struct, frozen=True, kw_only=True):
    """One queue: how many jobs it holds by state, and what an operator has set; None is the default."""

    name: str
    paused: bool
    counts: Counts
    keep_completed_for: timedelta | None = None
    keep_failed_for: timedelta | None = None
    keep_cancelled_for: timedelta | None = None
    max_pending: int | None = None  # None: any number


def list_op(engine: Engine) -> Op[list[Queue]]:
    """Every queue that has had a job or a setting, by name, as of one moment."""

    def steps() -> Steps[list[Queue]]:
        stored = yield from engine.settings().start()
        counts = yield from engine.stats().start()
        settings = {name: QueueSettings(name=name) for name in counts} | {each.name: each for each in stored}
        return [_queue(settings[name], counts.get(name, Counts())) for name in sorted(settings)]

    return Op(start=steps, mode="read")


def change_op(engine: Engine, queue: str, **fields: Any) -> Op[QueueSettings]:
    """Change some settings of a queue, by the names they have in QueueSettings, and leave the others as they are, in
    one transaction. Raises OptionInvalid."""
    queue = check_name(queue, "The queue")
    _expect_settings(fields)

    def steps() -> Steps[QueueSettings]:
        stored = yield from engine.settings().start()
        settings = next((each for each in stored if each.name == queue), QueueSettings(name=queue))
        settings = structs.replace(settings, **fields)
        yield from engine.configure(settings).start()
        return settings

    return Op(start=steps, rings=lambda settings: not settings.paused)


def pause_op(engine: Engine, queue: str, *, paused: bool) -> Op[QueueSettings]:
    """Pause or resume a queue, and leave its other settings as they are, in one transaction."""
    return change_op(engine, queue, paused=paused)


def expect_settings(settings: QueueSettings) -> QueueSettings:
    """The settings, if a queue can have them. Raises OptionInvalid."""
    fields = structs.asdict(settings)
    check_name(fields.pop("name"), "The queue")
    _expect_settings(fields)
    return settings


def _expect_settings(fields: Mapping[str, object]) -> None:
    for name, value in fields.items():
        low, high = (1, MOST_PENDING) if name == "max_pending" else (0, LONGEST)
        if name == "paused" or isinstance(value, bool):
            valid = name == "paused" and isinstance(value, bool)
        else:
            valid = value is None or (isinstance(value, int) and low <= value <= high)
        if name not in SETTINGS or not valid:
            raise OptionInvalid(f"{name} of a queue cannot be {shown(value)}.")


def _queue(settings: QueueSettings, counts: Counts) -> Queue:
    return Queue(
        name=settings.name,
        paused=settings.paused,
        counts=counts,
        keep_completed_for=_length(settings.keep_completed_for),
        keep_failed_for=_length(settings.keep_failed_for),
        keep_cancelled_for=_length(settings.keep_cancelled_for),
        max_pending=settings.max_pending,
    )


def _length(kept: Millis | None) -> timedelta | None:
    return None if kept is None else timedelta(milliseconds=kept)


MOST_KEYS = 100  # that are looked at for a batch: others want to write, too


def store_within_limits(
    engine: Engine, specs: Sequence[JobSpec], limits: Mapping[str, int] | None = None
) -> Op[list[Enqueued]]:
    """Store the jobs, all or none, if there is room for them. Raises QueueFull.

    `limits` are those that somebody has seen a moment ago, so that nobody needs to look where there is none. A store
    that is a server checks for itself.
    """
    inner = engine.enqueue_many(specs)
    none_set = limits is not None and not any(spec.queue in limits for spec in specs)
    if not specs or none_set or engine.capabilities.served:
        return inner

    def steps() -> Steps[list[Enqueued]]:
        yield from _expect_room(engine, specs)
        return (yield from inner.start())

    return extended(inner, steps)


def tick_within_limits(engine: Engine, changes: Sequence[Change]) -> Op[list[Change | None]]:
    """Change schedules, if there is room for their jobs, be it those of ticks or those that somebody asks for. Raises
    QueueFull."""
    inner = engine.tick(changes)
    specs = [firing.spec for change in changes for firing in change.firings if firing.spec is not None]
    leaving = [id for change in changes for id in change.cancel]
    if not specs or engine.capabilities.served:
        return inner

    def steps() -> Steps[list[Change | None]]:
        yield from _expect_room(engine, specs, leaving)
        return (yield from inner.start())

    return extended(inner, steps)


def _expect_room(engine: Engine, specs: Sequence[JobSpec], leaving: Sequence[UUID] = ()) -> Steps[None]:
    """`leaving` are jobs that make room for these."""
    settings = yield from engine.settings().start()
    limits = {each.name: each.max_pending for each in settings if each.max_pending is not None}
    limited = [spec for spec in specs if spec.queue in limits]
    if not limited:
        return
    counts = yield from engine.stats().start()
    pending = Counter({queue: each.pending for queue, each in counts.items()})
    if _full(limited, limits, pending) is None:
        return
    # What is stored already takes no room; only whoever is about to be refused is looked at so closely.
    stored = yield from engine.get([spec.id for spec in limited]).start()
    new = [spec for spec, job in zip(limited, stored, strict=True) if job is None]
    met = yield from _met(engine, [spec for spec in new if spec.key is not None])
    new = [spec for spec in new if spec.id not in met]
    if leaving:
        jobs = yield from engine.get(leaving).start()
        pending.subtract(job.queue for job in jobs if job is not None and job.state is State.PENDING)
    full = _full(new, limits, pending)
    if full is not None:
        raise _refusal(full, pending[full], sum(spec.queue == full for spec in new), limits[full])


def _refusal(queue: str, pending: int, coming: int, limit: int) -> QueueFull:
    if coming > limit:
        return QueueFull(
            f"Queue {queue} never has room for {coming} jobs at once, but for {limit} (max_pending). Send fewer."
        )
    return QueueFull(
        f"Queue {queue} is full: {pending} pending, at most {limit} (max_pending). Try again later."
    )


def _met(engine: Engine, keyed: Sequence[JobSpec]) -> Steps[set[UUID]]:
    """The ids of those jobs whose unique key is held already."""
    met: set[UUID] = set()
    for spec in keyed if len(keyed) <= MOST_KEYS else ():
        if (yield from _is_met(engine, spec)):
            met.add(spec.id)
    return met


def _is_met(engine: Engine, spec: JobSpec) -> Steps[bool]:
    """Whether the unique key of a job is held by one that would be answered or replaced, so that no job is added."""
    held = yield from engine.find(JobFilter(key=spec.key, tenant=spec.tenant, limit=1)).start()
    if not held:
        return False
    [holder] = held
    match spec.key_mode:
        case "keep":
            return not holder.state.terminal
        case "unsafe_dedupe":
            return True  # also by one that has ended
        case _:  # it is replaced, and may come from another queue
            return holder.state is State.PENDING and holder.queue == spec.queue


def _full(specs: Sequence[JobSpec], limits: Mapping[str, int], pending: Counter[str]) -> str | None:
    """The first queue that has no room for what is to come."""
    for queue, coming in Counter(spec.queue for spec in specs).items():
        if pending[queue] + coming > limits[queue]:
            return queue
    return None
