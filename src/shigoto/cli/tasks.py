"""The catalogue of tasks: what each is called, how it runs, and what it takes and returns."""

from collections.abc import Sequence
from datetime import timedelta
from inspect import Parameter, getdoc, unwrap
from random import Random
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import structs

from shigoto.app import Shigoto
from shigoto.cli import output
from shigoto.cli.output import Column
from shigoto.cli.suggest import suggest
from shigoto.cli.target import takes_target, target_of
from shigoto.codec.annotations import shown
from shigoto.codec.declaration import raw_signature
from shigoto.model.clock import Millis
from shigoto.model.errors import DeclarationError, UnknownTask, nearest
from shigoto.options import Executor
from shigoto.retry import Custom, Exponential, Retry
from shigoto.task import Task

if TYPE_CHECKING:
    from shigoto.schedule.declaring import Declared

AnyTask = Task[..., Any]

WAITS = 5  # of a retry policy, that are worth showing
LABEL = 12
PLACES: dict[Executor, str] = {
    "loop": "the event loop",
    "thread": "a thread",
    "process": "a process of its own",
}


@click.command()
@click.argument("name", required=False, shell_complete=suggest("tasks"))
@click.option("--json", "as_json", is_flag=True, help="For programs, with the JSON Schemas.")
@takes_target
def tasks(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """Show the tasks of the app, or one of them in full.

    The kind is scheduled for those that a schedule runs which the code declares, and on demand for all others;
    attempts are how often a job is run before it has failed. With NAME you also see the JSON Schema (draft
    2020-12) of its arguments and of its result. Without --app these are the built-in tasks.

    \b
    Examples:
      shigoto tasks
      shigoto --app shop.tasks:app tasks send_invitation
      shigoto --app shop.tasks:app tasks --json
    """
    app = target_of(ctx).load()
    if name is not None:
        task = find(app, name)
        planned = schedules_of(app, task)
        if as_json:
            output.print_json(record(task, planned))
        else:
            click.echo("\n".join(page(task, output.width_of(), planned)), color=output.in_colour())
    elif as_json:
        output.print_json([record_in_list(task, schedules_of(app, task)) for task in app.tasks.values()])
    elif app.tasks:
        click.echo("\n".join(tasks_table(app, output.width_of())))
        if others := [each for each in app.declared.values() if each.definition.task is None]:
            told = ", ".join(f"{each.name} ({in_short(each)})" for each in others)
            click.echo(f"Which tasks these schedules run, their code says: {told}.")
    else:
        click.echo(
            "The app has no tasks. Decorate a function with @app.task, and name its module in imports=."
        )


def find(app: Shigoto, name: str) -> AnyTask:
    """The task of this name or alias. Raises UnknownTask."""
    task = app.resolve(name)
    if task is None:
        known = [each for task in app.tasks.values() for each in (task.name, *task.aliases)]
        hint = nearest(name, known) or f" It has: {', '.join(known) or 'none'}."
        raise UnknownTask(f"The app has no task {name!r}.{hint}")
    return task


def schedules_of(app: Shigoto, task: AnyTask) -> "list[Declared]":
    """The schedules that run the task, as far as the code says so beforehand."""
    return [each for each in app.declared.values() if each.definition.task == task.name]


def in_short(schedule: "Declared") -> str:
    """When it is due; the zone, if it is another than UTC."""
    given = schedule.definition
    return given.when if given.zone == "UTC" else f"{given.when} {given.zone}"


def tasks_table(app: Shigoto, width: int | None) -> list[str]:
    """A line per task, in the order of their declaration."""
    columns = [
        Column("task"),
        Column("kind", spare=3),
        Column("when", least=9, spare=4),
        Column("parameters", least=8, spare=2),
        Column("queue", least=6, spare=5),
        Column("runs in", spare=7),
        Column("timeout", right=True, spare=8),
        Column("attempts", right=True, spare=6),
        Column("declared", least=8, spare=9),
        Column("what it does", least=12, spare=1),
    ]
    rows = [_row(task, schedules_of(app, task)) for task in app.tasks.values()]
    if not any(app.declared):  # nothing is ever due
        columns, rows = [*columns[:2], *columns[3:]], [[*row[:2], *row[3:]] for row in rows]
    return output.table(columns, rows, width)


def page(task: AnyTask, width: int | None, schedules: "Sequence[Declared]" = ()) -> list[str]:
    """All about one task, for people. Raises DeclarationError."""
    schema = task.schema()
    lines = [*_title(task, width), ""]
    for label, text in [*facts(task), *(("scheduled", in_short(each)) for each in schedules)]:
        indent = " " * (LABEL + 2)
        lines += output.wrapped(output.one_line(text), width, first=f"  {label:<{LABEL}}", later=indent)
    if parameters := _parameters(task):
        lines += ["", click.style("Parameters", bold=True)]
        columns = [Column(""), Column("", least=8), Column("")]
        rows = [[f"  {each['name']}", each["type"], _default(each)] for each in parameters]
        lines += output.table(columns, rows, width)[1:]
    for title in ("arguments", "result"):
        text = msgspec.json.format(msgspec.json.encode(schema[title]), indent=2).decode()
        lines += ["", click.style(f"JSON Schema of the {title}", bold=True), *output.lines_of(text)]
    return lines


def _title(task: AnyTask, width: int | None) -> list[str]:
    summary = output.one_line(_summary(task))
    first, *more = output.wrapped(f"{task.name}: {summary}" if summary else task.name, width, later="  ")
    named = first.startswith(task.name)
    return [click.style(task.name, bold=True) + first[len(task.name) :] if named else first, *more]


def facts(task: AnyTask) -> list[tuple[str, str]]:
    """What there is to know of a task, but for its arguments and what is as usual."""
    options = task.options
    told = [
        ("aliases", ", ".join(task.aliases)),
        ("queue", options.queue),
        ("priority", str(options.priority or "")),
        ("runs in", PLACES[task.executor] + (", never twice at once" if options.exclusive else "")),
        ("timeout", _span(options.timeout)),
        ("soft limit", _span(options.soft_timeout)),
        ("retries", in_words(options.retry)),
        ("crashes", "for ever" if options.max_crashes is None else f"at most {options.max_crashes}"),
        ("expires", f"after {_span(options.expires_in)}" if options.expires_in else ""),
        ("tags", "" if options.tags is None else ", ".join(_tags(options.tags))),
        ("declared", "{}, line {}".format(*_place(task))),
    ]
    return [(label, text) for label, text in told if text]


def record(task: AnyTask, schedules: "Sequence[Declared]" = ()) -> dict[str, Any]:
    """All about one task, for programs; times are in seconds. Raises DeclarationError."""
    options = task.options
    module, line = _place(task)
    return {
        "name": task.name,
        "aliases": task.aliases,
        "summary": _summary(task),
        "module": module,
        "line": line,
        "kind": _kind(schedules),
        "schedules": [
            {"name": each.name, "when": each.definition.when, "tz": each.definition.zone}
            for each in schedules
        ],
        "queue": options.queue,
        "priority": options.priority,
        "executor": task.executor,
        "exclusive": options.exclusive,
        "timeout": _seconds(options.timeout),
        "soft_timeout": _seconds(options.soft_timeout),
        "expires": _seconds(options.expires_in),
        "max_crashes": options.max_crashes,
        "attempts": options.retry.retries + 1,
        "retries": options.retry.retries,
        "retry_waits": [None if wait is None else wait / 1000 for wait in waits(options.retry)],
        "tags": [] if options.tags is None else _tags(options.tags),
        "parameters": _parameters(task),
        **task.schema(),
    }


def record_in_list(task: AnyTask, schedules: "Sequence[Declared]" = ()) -> dict[str, Any]:
    """The same among others: a task whose annotations make no sense must not hide the rest."""
    try:
        return record(task, schedules)
    except DeclarationError as error:
        module, line = _place(task)
        return {"name": task.name, "module": module, "line": line, "error": str(error)}


def in_words(retry: Retry) -> str:
    """A retry policy: `3, after 5 min, 10 min and 15 min`."""
    if not retry.retries:
        return "never"
    if isinstance(retry.curve, Custom):
        return f"{retry.retries}, when a function says"
    spans = [_span(wait) if wait else "0 s" for wait in waits(retry)]
    more = ", …" if retry.retries > len(spans) else ""
    about = "about " if isinstance(retry.curve, Exponential) and retry.curve.jitter else ""
    return f"{retry.retries}, after {about}{', '.join(spans)}{more}"


def waits(retry: Retry) -> list[Millis | None]:
    """The first waits of a policy, at their longest; none of one that only a function knows."""
    if isinstance(retry.curve, Custom):
        return []
    if isinstance(retry.curve, Exponential):
        retry = structs.replace(retry, curve=structs.replace(retry.curve, jitter=False))
    return [retry.delay(failures, None, Random(0)) for failures in range(min(retry.retries, WAITS))]


def _kind(schedules: "Sequence[Declared]") -> str:
    return "scheduled" if schedules else "on demand"


def _row(task: AnyTask, schedules: "Sequence[Declared]") -> list[str]:
    module, line = _place(task)
    options = task.options
    return [
        task.name,
        _kind(schedules),
        ", ".join(in_short(each) for each in schedules) or "-",
        ", ".join(
            name if parameter.default is Parameter.empty else f"{name}?"
            for name, parameter in list(raw_signature(task.fn).parameters.items())[task.takes_context :]
        ),
        options.queue,
        task.executor,
        _span(options.timeout) or "-",
        str(options.retry.retries + 1),
        f"{module}:{line}",
        output.one_line(_summary(task)),
    ]


def _parameters(task: AnyTask) -> list[dict[str, Any]]:
    arguments = task.signature.arguments
    return [
        {
            "name": name,
            "type": shown(slot.annotation),
            "required": name in arguments.required,
            **({} if name in arguments.required else {"default": _plain(arguments.defaults[name])}),
        }
        for name, slot in arguments.slots.items()
    ]


def _plain(default: object) -> str:
    return output.clip(output.one_line(repr(default)), 60)


def _default(parameter: dict[str, Any]) -> str:
    return "required" if parameter["required"] else f"= {parameter['default']}"


def _summary(task: AnyTask) -> str:
    """The first line of its docstring."""
    return (getdoc(task.fn) or "").partition("\n")[0]


def _place(task: AnyTask) -> tuple[str, int]:
    fn: Any = unwrap(task.fn)
    return task.fn.__module__, fn.__code__.co_firstlineno


def _tags(stored: str) -> list[str]:
    return msgspec.json.decode(stored, type=list[str])


def _seconds(limit: Millis | None) -> float | None:
    return limit / 1000 if limit else None


def _span(limit: Millis | None) -> str:
    return output.span(timedelta(milliseconds=limit)) if limit else ""
