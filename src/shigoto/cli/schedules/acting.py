"""Changing schedules, and asking for jobs of theirs."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from shigoto.cli import output
from shigoto.cli.confirm import surely
from shigoto.cli.jobs import Answer, tell
from shigoto.cli.schedules.pages import record_of
from shigoto.cli.schedules.words import (
    NAME,
    NAMES,
    NONE,
    acting,
    call_of,
    loaded,
    local,
    opened,
    plan_of,
    read_time,
    said_of_jobs,
    split_names,
    split_one,
    split_task,
    takes_call,
    takes_plan,
)
from shigoto.cli.target import suggest, takes_target
from shigoto.model.errors import ShigotoError, StoreError
from shigoto.model.schedule import ScheduleRecord

if TYPE_CHECKING:
    from shigoto.schedule.manage import Schedules


@click.command()
@click.argument("words", nargs=-1, metavar="[STORE] NAME TASK [JSON]", shell_complete=suggest("files"))
@takes_plan
@takes_call
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def add(ctx: click.Context, words: tuple[str, ...], *, as_json: bool, **options: Any) -> None:
    """Add a schedule.

    At each tick it stores a job of TASK, with these arguments. When it is due is said by one of --cron, --every
    and --at. A time without a zone is on the wall of --tz.

    \b
    Examples:
      shigoto schedules add nightly clean_up --cron '30 2 * * *' --tz Europe/Berlin
      shigoto schedules add ping check_site '{"site": "shop"}' --every 5m --overlap skip
      shigoto schedules add launch send_news --at 2030-01-31T09:00 --tz Asia/Tokyo
    """
    store, said = split_task(ctx, words)
    if said.task is None:
        raise click.UsageError("Which task? Write its name after that of the schedule.", ctx)
    with loaded(ctx, store, existing=False) as app:
        record = acting(app).add(said.name, call_of(app, said, options), **plan_of(options))
    _tell_changed(record, f"Schedule {record.name} is added: {_next(record)}.", as_json=as_json)


@click.command()
@click.argument(
    "words", nargs=-1, metavar="[STORE] NAME [TASK [JSON]]", shell_complete=suggest("store_then_schedules")
)
@takes_plan
@takes_call
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def update(ctx: click.Context, words: tuple[str, ...], *, as_json: bool, **options: Any) -> None:
    """Change some of a schedule.

    What is not named stays, and all of it holds from now on. With TASK all that its jobs are is said anew.
    The word none takes --until and --catch-up-within away. What is declared in code is changed there.
    """
    store, said = split_task(ctx, words)
    for name in ("cron", "every"):
        if options[name] == NONE:
            raise click.UsageError(
                f"--{name} none: a schedule must be due at some time. Say --cron, --every or --at anew; or pause it.",
                ctx,
            )
    plan, of_jobs = plan_of(options), said_of_jobs(options)
    if said.task is None and of_jobs:
        raise click.UsageError(
            f"{of_jobs[0]} needs the TASK: what its jobs are is said anew as a whole.", ctx
        )
    if said.task is None and not plan:
        raise click.UsageError("What shall be changed? Write an option, such as --cron.", ctx)
    with loaded(ctx, store, existing=True) as app:
        call = None if said.task is None else call_of(app, said, options)
        record = acting(app).update(said.name, call=call, **plan)
    _tell_changed(record, f"Schedule {record.name} is changed: {_next(record)}.", as_json=as_json)


@click.command()
@click.argument("words", nargs=-1, metavar=NAMES, shell_complete=suggest("store_then_schedules"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def remove(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> int:
    """Forget schedules.

    Their history is gone with them; their jobs stay. What is declared in code is removed there; here it can
    be paused.
    """

    def act(known: "Schedules", name: str) -> str:
        known.remove(name)
        return f"Schedule {name} is removed; its jobs stay."

    return _each(ctx, words, act, as_json=as_json)


@click.command()
@click.argument("words", nargs=-1, metavar=NAMES, shell_complete=suggest("store_then_schedules"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def pause(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> int:
    """Let schedules fire no more.

    Their ticks are suppressed until they are resumed, and the history tells which.
    """

    def act(known: "Schedules", name: str) -> str:
        known.pause(name)
        return f"Schedule {name} is paused."

    return _each(ctx, words, act, as_json=as_json)


@click.command()
@click.argument("words", nargs=-1, metavar=NAMES, shell_complete=suggest("store_then_schedules"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def resume(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> int:
    """Let schedules fire again.

    Those that are paused, and those that have failed, go on from now. What was due meanwhile is not made up
    for; `shigoto schedules backfill` does that.
    """

    def act(known: "Schedules", name: str) -> str:
        return f"Schedule {name} goes on: {_next(known.resume(name))}."

    return _each(ctx, words, act, as_json=as_json)


@click.command(name="run-now")
@click.argument("words", nargs=-1, metavar=NAME, shell_complete=suggest("store_then_schedules"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def run_now(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> None:
    """Store a job of a schedule now.

    It stands beside those of the ticks. For one that is declared in code, --app must name that code, which
    makes the job.
    """
    store, name = split_one(ctx, words)
    with loaded(ctx, store, existing=True) as app:
        job = acting(app).run_now(name)
    text = f"Job {job} of schedule {name} is stored."
    surely(lambda: output.print_json({"schedule": name, "job": job}) if as_json else click.echo(text), text)


@click.command()
@click.argument("words", nargs=-1, metavar=NAME, shell_complete=suggest("store_then_schedules"))
@click.option("--from", "since", metavar="TIME", callback=read_time, required=True, help="The first instant.")
@click.option("--to", metavar="TIME", callback=read_time, required=True, help="The last instant.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def backfill(
    ctx: click.Context, words: tuple[str, ...], *, since: datetime, to: datetime, as_json: bool
) -> None:
    """Fire ticks that have not fired.

    All in a stretch of time: missed, skipped or suppressed, or before the schedule was there. Doing it twice
    does no more than doing it once. A time without a zone is on the wall of the schedule's own; a date is its
    midnight. For a schedule that is declared in code, --app must name that code.
    """
    store, name = split_one(ctx, words)
    with loaded(ctx, store, existing=True) as app:
        tz = app.schedules.get(name).tz
        stored = acting(app).backfill(name, local(since, tz), local(to, tz))
    text = f"{len(stored)} tick{'' if len(stored) == 1 else 's'} of schedule {name} fired."
    surely(
        lambda: output.print_json({"schedule": name, "jobs": stored}) if as_json else click.echo(text), text
    )


def _next(record: ScheduleRecord) -> str:
    return "never due again" if record.next_at is None else f"due next at {output.iso(record.next_at)}"


def _tell_changed(record: ScheduleRecord, text: str, *, as_json: bool) -> None:
    surely(lambda: output.print_json(record_of(record)) if as_json else click.echo(text), text)


def _each(
    ctx: click.Context,
    words: tuple[str, ...],
    act: Callable[["Schedules", str], str],
    *,
    as_json: bool,
) -> int:
    """Act on one schedule after the other and tell of each; a store that fails ends it, since it would fail again."""
    store, names = split_names(ctx, words)
    told: list[Answer] = []
    with opened(ctx, store) as known:
        for name in names:
            try:
                told.append(Answer(word=name, text=act(known, name), noun="schedule"))
            except ShigotoError as error:
                told.append(Answer(word=name, text=str(error), code=error.code, noun="schedule"))
                if isinstance(error, StoreError):
                    break
    tell(told, as_json=as_json)
    return 1 if len(told) < len(names) or any(one.code for one in told) else 0
