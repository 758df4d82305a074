"""The command `config`: the settings that hold in this folder, and who says so."""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from shigoto.cli import MISUSED, output, settings
from shigoto.cli.output import Column
from shigoto.cli.settings import Found, Origin
from shigoto.cli.target import CommandTarget, takes_target, target_of
from shigoto.cli.worker import COUNT, find_processes, find_stats_every
from shigoto.model.errors import ShigotoError
from shigoto.model.text import without_secrets


@click.command()
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="For programs: each value with its origin.")
@takes_target
def config(ctx: click.Context, origin: bool, as_json: bool) -> int:
    """Show the settings that hold in this folder.

    They come from shigoto.toml, or else [tool.shigoto] in pyproject.toml; over them stand variables, and over
    these the flags of a command. $SHIGOTO_CONFIG names another file. A password in an address is not shown.
    The exit code is 2 if a variable has a value that cannot be used.

    \b
    A shigoto.toml:
      app = "shop.tasks:app"
      url = "sqlite:///jobs.db"
      [worker]
      processes = 4
      queues = ["mail", "reports"]

    \b
    Examples:
      shigoto config --origin
      SHIGOTO_PROCESSES=2 shigoto config --origin
    """
    target = target_of(ctx)
    found = find_all(ctx, target)
    if as_json:
        output.print_json(
            {
                "file": None if target.settings.file is None else os.path.abspath(target.settings.file),
                "ignored": os.path.abspath(settings.PROJECT) if settings.is_overruled() else None,
                "settings": {name: _for_programs(each) for name, each in found.items()},
            }
        )
    else:
        click.echo("\n".join(_table(found, origin=origin)))
        for warning in warnings():
            click.echo(f"Warning: {warning}", err=True)
        for each in found.values():
            if each.error is not None:
                click.echo(f"Error: {each.error}", err=True)
    return MISUSED if any(each.error for each in found.values()) else 0


def find_all(ctx: click.Context, target: CommandTarget) -> dict[str, Found]:
    found = {"app": target.find_app(), "url": _url(target)}
    for option in settings.worker_options().values():
        found[f"worker.{settings.key_of(option)}"] = _found(ctx, option, target)
    return found


def _found(ctx: click.Context, option: click.Option, target: CommandTarget) -> Found:
    """One setting of `worker`; if it cannot be used, as somebody has written it, with the reason."""
    alone = click.Command("worker", params=[option])  # so that it cannot hide the others
    try:
        parsed = alone.make_context("worker", [], parent=ctx, default_map=dict(target.settings.worker))
        if option.name == "processes":
            return find_processes(parsed, target)
        if option.name == "stats_every":
            return find_stats_every(parsed, target)
        return settings.find_option(parsed, option, target.settings)
    except click.UsageError as error:
        name = str(option.envvar) if isinstance(error, click.BadParameter) else COUNT
        return Found(os.environ.get(name), Origin("variable", name), error.format_message())


def warnings() -> list[str]:
    """What is there and has no effect."""
    told = (
        [f"{settings.PROJECT} has settings too, and none of them counts: {settings.FILE} is there."]
        if settings.is_overruled()
        else []
    )
    variables = (
        settings.CONFIG,
        "SHIGOTO_APP",
        "SHIGOTO_URL",
        *(settings.variable(name) for name in settings.worker_options()),
    )
    known = [name.removeprefix(settings.PREFIX) for name in variables]
    for name in sorted(os.environ):
        word = name.removeprefix(settings.PREFIX)
        if word != name and word not in known and (close := get_close_matches(word, known, n=1)):
            told += [f"the variable {name} is no setting. Did you mean {settings.PREFIX}{close[0]}?"]
    return told


def _url(target: CommandTarget) -> Found:
    """The store; if nobody but the app says which, the app is asked, as far as it can be."""
    found = target.find_url()
    if found.value is not None:
        return found._replace(value=without_secrets(found.value))
    from shigoto.app import DEFAULT_URL

    if target.app is None:
        return Found(DEFAULT_URL, Origin("default"))
    try:
        return Found(without_secrets(target.load().url), Origin("app", "the app"))
    except ShigotoError as error:
        click.echo(f"Warning: the app's own store is not known. {error}", err=True)
        return Found(None, Origin("app", "the app"))


def _for_programs(found: Found) -> dict[str, Any]:
    value = str(found.value) if isinstance(found.value, Path) else found.value
    told = {"value": value, "origin": found.origin.kind, "where": found.origin.where or None}
    return told if found.error is None else {**told, "value": None, "error": found.error}


def _table(found: dict[str, Found], *, origin: bool) -> list[str]:
    columns = [Column("setting"), Column("value", least=10)]
    rows = [[name, output.one_line(_shown(name, each.value))] for name, each in found.items()]
    if origin:
        columns.append(Column("origin", least=10))
        rows = [[*row, str(each.origin)] for row, each in zip(rows, found.values(), strict=True)]
    return output.table(columns, rows, output.width_of())


def _shown(name: str, value: object) -> str:
    """A value as one would write it; what nobody has set as its option describes it."""
    if value is None:
        option = settings.worker_options().get(name.removeprefix("worker.").replace("-", "_"))
        default = None if option is None else option.show_default
        return default if isinstance(default, str) else "the built-in tasks" if name == "app" else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
