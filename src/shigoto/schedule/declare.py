"""Schedules that are declared in code, and how they get into the store without losing what is remembered of them."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, TypeGuard
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.enqueue import Call
from shigoto.model.errors import DeclarationError, ScheduleInvalid, ScheduleTaken
from shigoto.model.schedule import Change, Schedule
from shigoto.model.text import shown
from shigoto.model.time import Duration, Millis, to_datetime
from shigoto.options import ScheduledOptions, ScheduleOptions, check_name
from shigoto.schedule.decide import redefined
from shigoto.schedule.definition import Definition, define, expect_room, read, written
from shigoto.schedule.tick import Tick, annotations_of, takes_tick
from shigoto.task import Task, Tasks

Maker = Callable[[Tick], Call[Any]]

HEARD_WITHIN: Millis = 120_000
"""A schedule of whose declaration nothing was heard for longer is nobody's."""


class Declared(Struct, frozen=True, eq=False):
    """A schedule of this code: what it is, and the call that each of its ticks makes."""

    name: str
    definition: Definition
    call: Maker
    origin: str  # module and name of the function, or of the schedule if it always makes the same call


def scheduled(
    tasks: Tasks,
    fn: Callable[..., Any],
    cron: str | None,
    every: Duration | str | None,
    options: ScheduledOptions,
) -> Task[..., Any]:
    """Declare a function as a task, and a schedule of the same name that runs it. Raises DeclarationError."""
    words: dict[str, Any] = {**options}
    said = {word: value for word, value in words.items() if word in ScheduleOptions.__annotations__}
    of_task: Any = {word: value for word, value in words.items() if word not in said}
    name: object = options.get("name", getattr(fn, "__name__", None))
    where = f"schedule {shown(name)}"
    given = _to_stay(where, define(where, cron=cron, every=every, **said))
    task = tasks.declare(fn, of_task)
    tasks.plan(Declared(task.name, replace(given, task=task.name), caller(task), _origin(fn)))
    return task


def planned(tasks: Tasks, name: str, call: Call[Any] | Maker, **words: Any) -> None:
    """Declare a schedule for calls of any task. Raises ScheduleInvalid, DeclarationError."""
    where = f"schedule {check_name(name, 'The schedule')!r}"
    if _makes_calls(call):
        made = Declared(name, _to_stay(where, define(where, **words)), call, _origin(call))
    else:
        fixed = checked_call(where, call, words.get("overlap"))
        task = fixed.route.spec.task
        origin = f"{fixed.route.app.tasks[task].fn.__module__}:{name}"
        given = _to_stay(where, define(where, task=task, **words))
        made = Declared(name, given, lambda tick: fixed, origin)
    tasks.plan(made)


def _to_stay(where: str, given: Definition) -> Definition:
    """The definition, if the schedule may be declared so. Raises ScheduleInvalid."""
    if given.when_failed == "remove":
        raise ScheduleInvalid(
            f"{where}: when_failed='remove' is for schedules that are added at run time; what code declares would be"
            " back at once. Leave it out, and remove the declaration when it is no longer wanted.",
            "when_failed",
        )
    return given


def _makes_calls(call: Call[Any] | Maker) -> TypeGuard[Maker]:
    """Whether it is a function of the tick; a task is none."""
    return callable(call) and not isinstance(call, Task)


def checked_call(where: str, call: Any, overlap: object = None) -> Call[Any]:
    """The call, if each tick can make it. Raises ScheduleInvalid."""

    def wrong(why: str) -> ScheduleInvalid:
        return ScheduleInvalid(f"{where}: {why}", "call")

    given: object = call
    if not isinstance(given, Call):
        raise wrong(
            "call must be a call such as task.call(…), or in code a function that makes one of the tick, not"
            f" {shown(call)}."
        )
    checked: Call[Any] = call
    options = checked.route.options
    expect_room(where, options.key, overlap)
    if options.expires_at is not None:
        raise wrong(
            f"expires={to_datetime(options.expires_at).isoformat()} of using(…) is one instant, after which the job of"
            " each tick would have expired. Say how long it may wait, such as timedelta(hours=1), or end the schedule"
            " with until=."
        )
    if options.id is not None or options.connection is not None:
        raise wrong(
            "each tick is a job of its own, which can have neither the id nor the connection of using(…)."
        )
    if options.run_at is not None:
        raise wrong(
            "each tick is a job that starts at its tick, not at the run_at of using(…). Use delay= to have it start"
            " later."
        )
    return checked


def caller(task: Task[..., Any]) -> Maker:
    """What makes a call of the task for a tick: with the tick, if it asks for one. Raises DeclarationError."""
    asked = list(signature(task.fn).parameters.values())[task.takes_context :]
    types = annotations_of(task.fn)
    ticks = [each for each in asked if each.name == "tick" or takes_tick(types.get(each.name))]
    for each in ticks[:1]:
        _expect_tick(task.name, each.name, types.get(each.name, Any))
    needed = [each.name for each in asked if each.default is Parameter.empty and each not in ticks[:1]]
    if needed:
        raise DeclarationError(
            f"task {task.name!r} is run by a schedule, which knows nothing but the tick: {', '.join(needed)} would be"
            " missing. Give them defaults, or use app.schedule(…, call=lambda tick: …)."
        )
    if not ticks:
        return lambda tick: task.call()
    name = ticks[0].name
    return lambda tick: task.call(**{name: tick})


def _expect_tick(task: str, name: str, annotation: object) -> None:
    anything = annotation is Any or annotation is object or isinstance(annotation, str)
    if not anything and not takes_tick(annotation):
        raise DeclarationError(
            f"task {task!r} is run by a schedule, which gives it the tick as {name!r}, and that is declared as"
            f" {shown(annotation)}. Write {name}: Tick, or choose another name for the parameter."
        )


def declare_op(
    engine: Engine,
    declared: Mapping[str, Declared],
    new_id: Callable[[], UUID],
    warn: Callable[[str], None] = lambda text: None,
) -> Op[list[str]]:
    """Bring what is declared into the store, and tell which of it is new or has changed. Raises ScheduleTaken.

    A schedule that is known keeps its id, its history, its pause and what is due (`redefined`). One that is no
    longer declared stays as it is: nobody fires it any more, and listings say so.
    Whoever is not heard, because another process declares the same at this moment, looks again: it may be another's.
    """

    def steps() -> Steps[list[str]]:
        now = yield from engine.time().start()
        changed: list[str] = []
        heard: list[Change | None] = [None]
        while not all(heard):
            stored = yield from engine.schedules(list(declared)).start()
            known = {each.name: each for each in stored}
            changes = [_change(each, known.get(name), now, new_id) for name, each in declared.items()]
            needed = [change for change in changes if change is not None]
            heard = (yield from engine.tick(needed).start()) if needed else []
            names = [each.schedule.name for each, was in zip(needed, heard, strict=True) if was]
            changed += names
            for name in names:
                if name in known and _is_anothers(declared[name], known[name], now):
                    warn(_adopted(declared[name], known[name]))
        yield from engine.declare(list(declared)).start()
        return changed

    return Op(start=steps, rings=bool)


def _change(each: Declared, known: Schedule | None, now: Millis, new_id: Callable[[], UUID]) -> Change | None:
    text = written(each.definition)
    if known is None:
        look_at = each.definition.next_after(now)
        schedule = Schedule(
            id=new_id(), name=each.name, definition=text, origin=each.origin, look_at=look_at, decided_to=now,
            created_at=now, declared_at=now,
        )  # fmt: skip
        return Change(schedule=schedule, seen=0)
    _expect_ours(each, known, now)
    if known.definition == text and known.origin == each.origin:
        return None
    change = redefined(known, each.definition, now)
    return replace(change, schedule=replace(change.schedule, origin=each.origin))


def _expect_ours(each: Declared, known: Schedule, now: Millis) -> None:
    if not known.origin:
        raise ScheduleTaken(
            f"The schedule {each.name!r} is declared by {each.origin}, but was added to the store before. Remove"
            f" that one (`shigoto schedules remove {each.name}`), or rename this."
        )
    tasks = (read(known.definition).task, each.definition.task)
    if _is_anothers(each, known, now) and None not in tasks:
        raise ScheduleTaken(
            f"The schedule {each.name!r} is declared by {known.origin} and by {each.origin}, which run at the same"
            f" time, for the tasks {tasks[0]!r} and {tasks[1]!r}. Rename one of them."
        )


def _is_anothers(each: Declared, known: Schedule, now: Millis) -> bool:
    """Whether other code was heard of lately that declares the schedule, and not for the same task as far as we know.

    Which task a function calls is not known before it is called. Such a function may just have moved, in a release that
    replaces the other one at this moment, so it is believed; two tasks that differ are two services.
    """
    if known.origin == each.origin or known.declared_at < now - HEARD_WITHIN:
        return False
    task = read(known.definition).task
    return task is None or task != each.definition.task


def _adopted(each: Declared, known: Schedule) -> str:
    return (
        f"The schedule {each.name!r} was declared by {known.origin} until now, and is declared by {each.origin} from"
        " now on. If that is not the same code at another place, rename one of them: each would make jobs of its own."
    )


def _origin(fn: Callable[..., Any]) -> str:
    return f"{fn.__module__}:{getattr(fn, '__qualname__', 'call')}"
