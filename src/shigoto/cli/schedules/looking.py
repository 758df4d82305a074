"""Looking at schedules: which there are, what was said of them, when they are due, and what became of their ticks."""

from contextlib import closing
from datetime import UTC, datetime
from typing import Any, get_args

import click

from shigoto.cli import output
from shigoto.cli.schedules import pages
from shigoto.cli.schedules.words import NAME, local, opened, read_time, split_one
from shigoto.cli.target import suggest, takes_target, target_of
from shigoto.model.time import Millis, host_clock, to_millis
from shigoto.options import Fold, Gap
from shigoto.schedule.definition import Definition, define
from shigoto.schedule.manage import defining

TICKS = 20


@click.command(name="list")
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def list_schedules(ctx: click.Context, store: str | None, *, as_json: bool) -> None:
    """Show every schedule.

    When it is due, what it runs, and how it is. One is undeclared if it was declared in code, and no process
    with that code was heard of lately; unreadable, if nobody here can tell when it is due.
    """
    with opened(ctx, store) as known:
        found = known.all()
    if as_json:
        output.print_json([pages.record_of(record) for record in found])
    elif not found:
        click.echo(
            "There are no schedules. Declare some with @app.cron, or see `shigoto schedules add --help`."
        )
    else:
        lines = pages.schedules_table(found, output.width_of(), datetime.now(UTC))
        click.echo("\n".join(lines), color=output.in_colour())


@click.command()
@click.argument("words", nargs=-1, metavar=NAME, shell_complete=suggest("store_then_schedules"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def show(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> None:
    """Show one schedule in full."""
    store, name = split_one(ctx, words)
    with opened(ctx, store) as known:
        record = known.get(name)
    if as_json:
        output.print_json(pages.record_of(record))
    else:
        click.echo("\n".join(pages.page(record, output.width_of())), color=output.in_colour())


@click.command()
@click.argument("words", nargs=-1, metavar="[STORE] [NAME]", shell_complete=suggest("store_then_schedules"))
@click.option("--cron", metavar="EXPRESSION", help="No schedule of the store, but this expression.")
@click.option("--tz", metavar="ZONE", help="With --cron: its time zone.")
@click.option("--gap", type=click.Choice(get_args(Gap)), help="With --cron: for times that the clocks skip.")
@click.option("--fold", type=click.Choice(get_args(Fold)), help="With --cron: for times they show twice.")
@click.option(
    "--from", "since", metavar="TIME", callback=read_time, help="The first instant; now if not said."
)
@click.option("--to", metavar="TIME", callback=read_time, help="The last instant.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=TICKS,
    show_default=True,
    help="How many ticks at most.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def preview(
    ctx: click.Context,
    words: tuple[str, ...],
    *,
    cron: str | None,
    since: datetime | None,
    to: datetime | None,
    limit: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Show when a schedule is due.

    And what happens where the clocks are changed. Times are local to the schedule, with how far its clocks
    are ahead of UTC. A time without a zone is on the wall there, too; a date is its midnight.

    \b
    Examples:
      shigoto schedules preview nightly --from 2030-03-30 --to 2030-04-02
      shigoto schedules preview --cron '30 2 * * *' --tz Europe/Berlin --from 2030-03-30 --limit 3
    """
    if cron is None:
        said = [f"--{name}" for name, value in options.items() if value is not None]
        if said:
            raise click.UsageError(f"{said[0]} goes with --cron; a schedule has its own.", ctx)
        store, name = split_one(ctx, words, hint=" Or say --cron.")
        given, now = _definition(ctx, store, name)
    elif words:
        raise click.UsageError("Name a schedule or say --cron, not both.", ctx)
    else:
        chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        given, now = define("preview", cron=cron, **chosen), host_clock()
    tz = given.zone
    first = now if since is None else to_millis(local(since, tz))
    last = None if to is None else to_millis(local(to, tz))
    shown = pages.preview(given, tz, first, last, limit)
    if as_json:
        output.print_json(shown.record())
        return
    lines = shown.lines(output.width_of())
    click.echo("\n".join(lines) or "It is not due in that time.")
    if shown.more and to is not None:
        click.echo(f"These are the first {limit}; see more with --limit.", err=True)


@click.command()
@click.argument("words", nargs=-1, metavar=NAME, shell_complete=suggest("store_then_schedules"))
@click.option("--limit", type=click.IntRange(1, 10_000), default=TICKS, show_default=True, help="How many.")
@click.option("--before", metavar="TIME", callback=read_time, help="Only ticks before this.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def history(
    ctx: click.Context, words: tuple[str, ...], *, limit: int, before: datetime | None, as_json: bool
) -> None:
    """Show what became of ticks, the newest first.

    \b
    A tick has
      fired        at its time
      caught up    later, because nobody was there at its time
      skipped      not fired, since the job before had not ended
      missed       not fired, since nobody was there, and the schedule does not catch up so far
      suppressed   not fired, since the schedule was paused
      backfilled   fired later, because somebody asked for it

    "run now" is a job that somebody asked for, beside the ticks. One line may stand for several ticks. The
    newest thousand lines are kept.
    """
    store, name = split_one(ctx, words)
    with opened(ctx, store) as known:
        tz = known.get(name).tz
        ticks = known.history(name, before=None if before is None else local(before, tz), limit=limit)
    if as_json:
        output.print_json(ticks)
    elif not ticks:
        click.echo("There were no ticks so far.")
    else:
        click.echo("\n".join(pages.history_table(ticks, tz, output.width_of())), color=output.in_colour())


def _definition(ctx: click.Context, store: str | None, name: str) -> tuple[Definition, Millis]:
    """What was said about a schedule, and what time it is for its store, which judges what is due."""
    with closing(target_of(ctx).existing_store(store)) as engine:
        return engine.run(defining(engine, name)), engine.run(engine.time())
