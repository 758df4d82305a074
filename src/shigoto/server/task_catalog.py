"""The catalog of tasks: each as a record for programs, with the JSON Schemas of what it takes and returns.

`shigoto tasks` prints it, and the service serves it.
"""

from collections.abc import Sequence
from inspect import getdoc, unwrap
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from shigoto.codec.annotations import annotation_text
from shigoto.model.errors import DeclarationError, UnknownTask, nearest
from shigoto.model.text import HIDDEN, shown
from shigoto.model.time import Millis
from shigoto.options import Executor
from shigoto.retry import Custom, Exponential, Retry
from shigoto.task import Task

if TYPE_CHECKING:
    from shigoto.app import Shigoto
    from shigoto.schedule.declare import Declared

AnyTask = Task[..., Any]

WAITS = 5  # of a retry policy, that are worth showing


class TaskParameter(Struct, frozen=True, kw_only=True):
    """One parameter of a task; the default is as Python writes it."""

    name: str
    type: str
    required: bool
    default: str | UnsetType = UNSET


class TaskSchedule(Struct, frozen=True, kw_only=True):
    """A schedule that the code declares for the task."""

    name: str
    when: str
    tz: str


class TaskRecord(Struct, frozen=True, kw_only=True):
    """All about one task; times are in seconds, `arguments` and `result` are JSON Schemas (draft 2020-12)."""

    name: str
    aliases: tuple[str, ...]
    summary: str
    module: str
    line: int
    kind: str  # scheduled, or on demand
    schedules: list[TaskSchedule]
    queue: str
    priority: int
    executor: Executor
    exclusive: bool
    timeout: float | None
    soft_timeout: float | None
    expires: float | None
    max_crashes: int | None
    attempts: int
    retries: int
    retry_waits: list[float | None]
    tags: list[str]
    parameters: list[TaskParameter]
    arguments: dict[str, Any]
    result: dict[str, Any]


class BrokenTask(Struct, frozen=True, kw_only=True):
    """A task whose annotations make no sense, and why."""

    name: str
    module: str
    line: int
    error: str


def find(app: "Shigoto", name: str) -> AnyTask:
    """The task of this name or alias. Raises UnknownTask."""
    task = app.resolve(name)
    if task is None:
        known = [each for task in app.tasks.values() for each in (task.name, *task.aliases)]
        hint = nearest(name, known) or f" It has: {', '.join(known) or 'none'}."
        raise UnknownTask(f"The app has no task {name!r}.{hint}")
    return task


def schedules_of(app: "Shigoto", task: AnyTask) -> "list[Declared]":
    """The schedules that run the task, as far as the code says so beforehand."""
    return [each for each in app.declared.values() if each.definition.task == task.name]


def record(task: AnyTask, schedules: "Sequence[Declared]" = ()) -> TaskRecord:
    """All about one task, for programs. Raises DeclarationError."""
    options = task.options
    module, line = place_of(task)
    return TaskRecord(
        name=task.name,
        aliases=task.aliases,
        summary=summary_of(task),
        module=module,
        line=line,
        kind=kind_of(schedules),
        schedules=[
            TaskSchedule(name=each.name, when=each.definition.when, tz=each.definition.zone)
            for each in schedules
        ],
        queue=options.queue,
        priority=options.priority,
        executor=task.executor,
        exclusive=options.exclusive,
        timeout=_seconds(options.timeout),
        soft_timeout=_seconds(options.soft_timeout),
        expires=_seconds(options.expires_in),
        max_crashes=options.max_crashes,
        attempts=options.retry.retries + 1,
        retries=options.retry.retries,
        retry_waits=[None if wait is None else wait / 1000 for wait in waits(options.retry)],
        tags=[] if options.tags is None else tags_of(options.tags),
        parameters=parameters_of(task),
        **task.schema(),
    )


def record_in_list(task: AnyTask, schedules: "Sequence[Declared]" = ()) -> TaskRecord | BrokenTask:
    """The same among others: a task whose annotations make no sense must not hide the rest."""
    try:
        return record(task, schedules)
    except DeclarationError as error:
        module, line = place_of(task)
        return BrokenTask(name=task.name, module=module, line=line, error=str(error))


def kind_of(schedules: "Sequence[Declared]") -> str:
    return "scheduled" if schedules else "on demand"


def parameters_of(task: AnyTask) -> list[TaskParameter]:
    """What the task takes, in the order of its declaration. Raises DeclarationError."""
    arguments = task.signature.arguments
    return [
        TaskParameter(
            name=name,
            type=annotation_text(slot.annotation),
            required=name in arguments.required,
            default=UNSET
            if name in arguments.required
            else HIDDEN
            if name in arguments.secrets
            else shown(arguments.defaults[name]),
        )
        for name, slot in arguments.slots.items()
    ]


def waits(retry: Retry) -> list[Millis | None]:
    """The first waits of a policy, at their longest; none of one that only a function knows."""
    if isinstance(retry.curve, Custom):
        return []
    if isinstance(retry.curve, Exponential):
        retry = structs.replace(retry, curve=structs.replace(retry.curve, jitter=False))
    return [retry.delay(failures, None, Random(0)) for failures in range(min(retry.retries, WAITS))]


def summary_of(task: AnyTask) -> str:
    """The first line of its docstring."""
    return (getdoc(task.fn) or "").partition("\n")[0]


def place_of(task: AnyTask) -> tuple[str, int]:
    fn: Any = unwrap(task.fn)
    return task.fn.__module__, fn.__code__.co_firstlineno


def tags_of(stored: str) -> list[str]:
    return msgspec.json.decode(stored, type=list[str])


def _seconds(limit: Millis | None) -> float | None:
    return limit / 1000 if limit else None
