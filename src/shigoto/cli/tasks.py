"""The catalogue of tasks: what each is called, how it runs, and what it takes and returns."""

from collections.abc import Sequence
from datetime import timedelta
from inspect import Parameter
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import UNSET

from shigoto.app import Shigoto
from shigoto.cli import output
from shigoto.cli.output import Column, Columns
from shigoto.cli.target import suggest, takes_target, target_of
from shigoto.codec.signature import raw_signature
from shigoto.model.time import Millis
from shigoto.options import Executor
from shigoto.retry import Custom, Exponential, Retry
from shigoto.server import task_catalog as catalog
from shigoto.server.task_catalog import AnyTask

if TYPE_CHECKING:
    from shigoto.schedule.declare import Declared

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
        task = catalog.find(app, name)
        planned = catalog.schedules_of(app, task)
        if as_json:
            output.print_json(catalog.record(task, planned))
        else:
            output.print_lines(page(task, output.width_of(), planned))
    elif as_json:
        output.print_json(
            [catalog.record_in_list(task, catalog.schedules_of(app, task)) for task in app.tasks.values()]
        )
    elif app.tasks:
        click.echo("\n".join(tasks_table(app, output.width_of())))
        if others := [each for each in app.declared.values() if each.definition.task is None]:
            told = ", ".join(f"{each.name} ({in_short(each)})" for each in others)
            click.echo(f"Which tasks these schedules run, their code says: {told}.")
    else:
        click.echo(
            "The app has no tasks. Decorate a function with @app.task, and name its module in imports=."
        )


def in_short(schedule: "Declared") -> str:
    """When it is due; the zone, if it is another than UTC."""
    given = schedule.definition
    return given.when if given.zone == "UTC" else f"{given.when} {given.zone}"


def tasks_table(app: Shigoto, width: int | None) -> list[str]:
    """A line per task, in the order of their declaration."""
    planned = {name: catalog.schedules_of(app, task) for name, task in app.tasks.items()}
    columns: Columns[AnyTask] = [
        (Column("task"), lambda task: task.name),
        (Column("kind", spare=3), lambda task: catalog.kind_of(planned[task.name])),
        (
            Column("when", least=9, spare=4),
            lambda task: ", ".join(in_short(each) for each in planned[task.name]) or "-",
        ),
        (Column("parameters", least=8, spare=2), _parameters),
        (Column("queue", least=6, spare=5), lambda task: task.options.queue),
        (Column("runs in", spare=7), lambda task: task.executor),
        (Column("timeout", right=True, spare=8), lambda task: _span(task.options.timeout) or "-"),
        (Column("attempts", right=True, spare=6), lambda task: str(task.options.retry.retries + 1)),
        (Column("declared", least=8, spare=9), lambda task: "{}:{}".format(*catalog.place_of(task))),
        (Column("what it does", least=12, spare=1), lambda task: output.one_line(catalog.summary_of(task))),
    ]
    if not any(app.declared):  # nothing is ever due
        columns = [*columns[:2], *columns[3:]]
    return output.table_of(list(app.tasks.values()), columns, width)


def page(task: AnyTask, width: int | None, schedules: "Sequence[Declared]" = ()) -> list[str]:
    schema = task.schema()
    lines = [*_title(task, width), ""]
    for label, text in [*facts(task), *(("scheduled", in_short(each)) for each in schedules)]:
        indent = " " * (LABEL + 2)
        lines += output.wrapped(output.one_line(text), width, first=f"  {label:<{LABEL}}", later=indent)
    if parameters := catalog.parameters_of(task):
        lines += ["", click.style("Parameters", bold=True)]
        columns = [Column(""), Column("", least=8), Column("")]
        rows = [[f"  {each.name}", each.type, _default(each)] for each in parameters]
        lines += output.table(columns, rows, width)[1:]
    for title in ("arguments", "result"):
        text = msgspec.json.format(msgspec.json.encode(schema[title]), indent=2).decode()
        lines += ["", click.style(f"JSON Schema of the {title}", bold=True), *output.lines_of(text)]
    return lines


def _title(task: AnyTask, width: int | None) -> list[str]:
    summary = output.one_line(catalog.summary_of(task))
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
        ("tags", "" if options.tags is None else ", ".join(catalog.tags_of(options.tags))),
        ("declared", "{}, line {}".format(*catalog.place_of(task))),
    ]
    return [(label, text) for label, text in told if text]


def in_words(retry: Retry) -> str:
    """A retry policy: `3, after 5 min, 10 min and 15 min`."""
    if not retry.retries:
        return "never"
    if isinstance(retry.curve, Custom):
        return f"{retry.retries}, when a function says"
    spans = [_span(wait) if wait else "0 s" for wait in catalog.waits(retry)]
    more = ", …" if retry.retries > len(spans) else ""
    about = "about " if isinstance(retry.curve, Exponential) and retry.curve.jitter else ""
    return f"{retry.retries}, after {about}{', '.join(spans)}{more}"


def _parameters(task: AnyTask) -> str:
    known = list(raw_signature(task.fn).parameters.items())[task.takes_context :]
    return ", ".join(
        name if parameter.default is Parameter.empty else f"{name}?" for name, parameter in known
    )


def _default(parameter: catalog.TaskParameter) -> str:
    if parameter.default is UNSET:
        return "required"
    return f"= {output.clip(output.one_line(parameter.default), 60)}"


def _span(limit: Millis | None) -> str:
    return output.span(timedelta(milliseconds=limit)) if limit else ""
