"""The command `schedules` and its verbs: what schedules there are, what becomes of their ticks, and changes of them.

    words and options   names and times, and what describes a schedule and its jobs
    tables and pages    lists, one schedule in full, ticks to come, and ticks that were
    queries             list, show, preview, history
    actions             add, update, remove, pause, resume, run-now, backfill

`shigoto schedules` by itself is `shigoto schedules list`.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import click
from msgspec import Struct
from msgspec.structs import asdict

from shigoto.cli import output
from shigoto.cli.arguments import audited, hinting_at_texts, read_arguments, read_length, read_object
from shigoto.cli.confirm import print_result
from shigoto.cli.jobs import ActionResult, act_on_each, expect_known
from shigoto.cli.output import Column, Columns
from shigoto.cli.target import (
    answers,
    looks_like_store,
    shared,
    split_store,
    suggest,
    takes,
    takes_target,
    takes_words,
    target_of,
)
from shigoto.model.errors import ScheduleInvalid, nearest
from shigoto.model.job import KEY_MODES
from shigoto.model.schedule import ScheduleRecord, TickOutcome, TickRecord
from shigoto.model.time import Millis, host_clock, to_millis
from shigoto.options import CatchUp, Fold, Gap, Overlap, WhenFailed
from shigoto.schedule.definition import Definition, define
from shigoto.schedule.manage import definition_op
from shigoto.schedule.preview import ClockChange, clock_changes, upcoming
from shigoto.schedule.recurrence import FIRST_YEAR, LAST_YEAR, zone_called

if TYPE_CHECKING:
    from shigoto.app import Shigoto
    from shigoto.enqueue import Call
    from shigoto.options import CallOptions
    from shigoto.schedule.manage import Schedules

NAME = "[STORE] NAME"
NAMES = "[STORE] NAME..."
NONE = "none"  # the word for no limit, where there need not be one
LIMITS = ("until", "catch_up_within")
PLAN = (
    "cron", "every", "at", "tz", "catch_up", "catch_up_most", "catch_up_within", "overlap", "jitter", "until", "gap",
    "fold", "when_failed",
)  # fmt: skip
TICKS = 20
FIRES = [outcome for outcome in TickOutcome if outcome.fires]

LABEL = 12
STATUS_COLOURS = {"paused": "yellow", "failed": "red", "undeclared": "yellow", "unreadable": "red"}
OUTCOME_COLOURS = {
    "fired": "green",
    "caught up": "green",
    "backfilled": "green",
    "run now": "cyan",
    "missed": "red",
    "skipped": "yellow",
    "suppressed": "yellow",
}
STATUSES = {
    "active": "",
    "paused": "its ticks are suppressed; `shigoto schedules resume` lets it fire again",
    "failed": "its job could not be made or stored; `shigoto schedules resume` tries again",
    "ended": "it is never due again",
    "undeclared": "no process has declared it lately, so nobody fires it",
    "unreadable": "nobody here can tell when it is due, nor fire it; `shigoto schedules update --tz` gives it another"
    " time zone",
}


def read_time(ctx: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    """A time, as ISO 8601; without a time zone it is on the wall of the schedule's own."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time: write 2030-01-31, 2030-01-31T09:00 or 2030-01-31T09:00:00Z.", ctx, option
        ) from None
    if not FIRST_YEAR <= time.year <= LAST_YEAR:
        raise click.BadParameter(f"{text!r} is not in a year from {FIRST_YEAR} to {LAST_YEAR}.", ctx, option)
    return time


def read_end(ctx: click.Context, option: click.Parameter, text: str | None) -> datetime | str | None:
    return text if text == NONE else read_time(ctx, option, text)


def read_limit(ctx: click.Context, option: click.Parameter, text: str | None) -> timedelta | str | None:
    return text if text == NONE else read_length(ctx, option, text)


# The options that say when a schedule is due, and what if that does not go as planned.
takes_plan = takes(
    click.option("--cron", metavar="EXPRESSION", help="Due then: '0 3 * * *', or '@daily'."),
    click.option("--every", metavar="DURATION", help="Due at this interval: 90s, 5m, 2h, 1d."),
    click.option("--at", metavar="TIME", callback=read_time, help="Due once: 2030-01-31T09:00."),
    click.option("--tz", metavar="ZONE", help="The time zone, such as Europe/Berlin; UTC if not said."),
    click.option("--catch-up", type=click.Choice(get_args(CatchUp)), help="Of ticks nobody was there for."),
    click.option("--catch-up-most", type=int, metavar="N", help="With --catch-up all: so many at once."),
    click.option(
        "--catch-up-within", metavar="DURATION", callback=read_limit, help="Only if no later than this."
    ),
    click.option(
        "--overlap", type=click.Choice(get_args(Overlap)), help="While the job before has not ended."
    ),
    click.option("--jitter", metavar="DURATION", callback=read_length, help="Start up to so much later."),
    click.option("--until", metavar="TIME", callback=read_end, help="The end of it."),
    click.option("--gap", type=click.Choice(get_args(Gap)), help="For times that the clocks skip."),
    click.option("--fold", type=click.Choice(get_args(Fold)), help="For times that the clocks show twice."),
    click.option(
        "--when-failed", type=click.Choice(get_args(WhenFailed)), help="If it cannot submit its job."
    ),
)


# The options that say what is stored at each tick, beside the task.
takes_call = takes(
    click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument."),
    click.option("--queue", shell_complete=suggest("queues"), help="Another queue than the task's own."),
    click.option("--priority", type=int, help="Larger runs first."),
    click.option("--key", help="Only one job with this key may be waiting or running."),
    click.option("--key-mode", type=click.Choice(KEY_MODES), help="What to do if there is one."),
    click.option("--retries", type=int, help="Another number of retries."),
    click.option("--tag", "tags", multiple=True, help="To find it by; may be given again."),
    click.option("--tenant", help="On whose behalf."),
    click.option("--allow-unknown", is_flag=True, help="Accept a task that nobody knows yet."),
)


def plan_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was said of the schedule itself; a limit that is taken away is None here."""
    said = {name: options[name] for name in PLAN if options[name] is not None}
    return {name: None if name in LIMITS and value == NONE else value for name, value in said.items()}


def said_of_jobs(options: Mapping[str, Any]) -> list[str]:
    flags = {"arguments": "arg", "tags": "tag"}
    said = [name for name, value in options.items() if name not in PLAN and value not in (None, (), False)]
    return [f"--{flags.get(name, name).replace('_', '-')}" for name in said]


class ScheduleWords(NamedTuple):
    """What is said by position: the schedule, the task that it runs, and the arguments as JSON."""

    name: str
    task: str | None
    text: str | None


def split_task(ctx: click.Context, words: Sequence[str]) -> tuple[str | None, ScheduleWords]:
    """The store, and the words after it. Raises a usage error."""
    store, rest = split_store(words)
    _expect_name(ctx, store, rest)
    if len(rest) > 3:
        raise click.UsageError(f"{rest[3]!r} is one word too many; put JSON with blanks in quotes.", ctx)
    name, task, text, *_ = (*rest, None, None)
    return store, ScheduleWords(str(name), task, text)


def split_names(ctx: click.Context, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The store and the names after it, of which there must be one. Raises a usage error."""
    store, names = split_store(words)
    _expect_name(ctx, store, names)
    return store, list(dict.fromkeys(names))


def split_one(ctx: click.Context, words: Sequence[str], *, hint: str = "") -> tuple[str | None, str]:
    store, names = split_store(words)
    _expect_name(ctx, store, names, hint)
    if len(names) > 1:
        raise click.UsageError(f"{names[1]!r} is one word too many: it takes a store and a schedule.", ctx)
    return store, names[0]


def _expect_name(ctx: click.Context, store: str | None, names: Sequence[str], hint: str = "") -> None:
    if not names:
        note = f" {store} is the store." if store and looks_like_store(store) else ""
        raise click.UsageError(f"Which schedule? Write its name.{note}{hint}", ctx)


def audited_schedules(app: "Shigoto") -> "Schedules":
    """The schedules of an app, which note what is done to them."""
    from shigoto.schedule.manage import Schedules

    return Schedules(app, audited(app.engine))


@contextmanager
def opened_schedules(ctx: click.Context, store: str | None) -> "Generator[Schedules]":
    with closing(target_of(ctx).app_of_store(store)) as app:
        yield audited_schedules(app)


@contextmanager
def opened_app(ctx: click.Context, store: str | None, *, existing: bool) -> "Generator[Shigoto]":
    """The app with all its code, aimed at a store, which may have to be there."""
    target = target_of(ctx)
    if existing:
        app = target.app_of_store(store, loaded=True)
    else:
        app = target.load()
        target.aim(app, store)
    with closing(app):
        shared(app.engine)
        try:
            yield app
        except ScheduleInvalid as error:
            if error.field == "call" and target.app is None:
                raise ScheduleInvalid(f"{error} Name your app with --app.", error.field) from error
            raise


def call_of(app: "Shigoto", said: ScheduleWords, options: Mapping[str, Any]) -> "Call[Any]":
    """The call that each tick makes. Raises UnknownTask, PayloadInvalid."""
    from shigoto.enqueue import call_by_name

    task, arguments = str(said.task), options["arguments"]
    if not options["allow_unknown"]:
        expect_known(app, task)
    known = app.resolve(task)
    signature = None if known is None else known.signature
    payload = {} if said.text is None else read_object(said.text)
    payload |= read_arguments(arguments, beside=payload, signature=signature)
    names = ("queue", "priority", "key", "key_mode", "retries", "tags", "tenant")
    chosen = {name: options[name] for name in names if options[name] not in (None, ())}
    with hinting_at_texts(arguments, payload, signature):
        return call_by_name(app, task, payload, cast("CallOptions", chosen))


def with_zone(at: datetime, tz: str) -> datetime:
    """The instant that somebody means, who may have left out the zone."""
    return at if at.tzinfo is not None else at.replace(tzinfo=zone_called(tz))


def schedules_table(found: Sequence[ScheduleRecord], width: int | None, now: datetime) -> list[str]:
    brief = width is not None
    columns: Columns[ScheduleRecord] = [
        (Column("schedule", least=8), lambda each: output.one_line(each.name)),
        (Column("when", least=9), lambda each: output.one_line(each.when)),
        (Column("time zone", least=6, spare=3), lambda each: output.one_line(each.tz)),
        (Column("task", least=6, spare=2), lambda each: output.one_line(each.task or "-")),
        (Column("status", paint=output.painter(STATUS_COLOURS)), lambda each: each.status),
        (
            Column("next tick"),
            lambda each: "-" if each.next_at is None else output.instant(each.next_at, now, brief=brief),
        ),
        (
            Column("fired", right=True, spare=5),
            lambda each: str(sum(each.counts.get(outcome, 0) for outcome in FIRES)),
        ),
        (Column("missed", right=True, spare=4), lambda each: str(each.counts.get(TickOutcome.MISSED, 0))),
        (Column("declared in", least=8, spare=6), lambda each: output.one_line(each.origin or "-")),
    ]
    return output.table_of(found, columns, width)


def record_of(record: ScheduleRecord) -> dict[str, object]:
    """The schedule for programs; its arguments are part of it, not text inside of it."""
    payload = None if record.payload is None else output.embedded(record.payload)
    return {**asdict(record), "payload": payload}


def page(record: ScheduleRecord, width: int | None) -> list[str]:
    lines = [f"{click.style(record.name, bold=True)}: {output.one_line(record.when)}", ""]
    for label, text in facts_of(record):
        later = " " * (LABEL + 2)
        lines += output.wrapped(output.one_line(text), width, first=f"  {label:<{LABEL}}", later=later)
    return lines


def facts_of(record: ScheduleRecord) -> list[tuple[str, str]]:
    """What there is to know of a schedule, but for what is as usual."""
    local = zone_or_utc(record.tz)
    meaning = STATUSES[record.status]
    catch_up = "" if record.catch_up != "all" else f", at most {record.catch_up_most} at once"
    within = "" if record.catch_up_within is None else f", up to {output.span(record.catch_up_within)} late"
    counts = [f"{count} {outcome.replace('_', ' ')}" for outcome, count in record.counts.items() if count]
    told = [
        ("status", f"{record.status}: {meaning}" if meaning else record.status),
        ("next tick", "" if record.next_at is None else in_zone(record.next_at, local)),
        ("time zone", record.tz),
        ("task", record.task or "as its code says"),
        ("arguments", output.brief(record.payload or "")),
        ("queue", record.queue or ""),
        ("catch up", f"{record.catch_up}{catch_up}{within}"),
        ("overlap", record.overlap),
        ("jitter", f"up to {output.span(record.jitter)}" if record.jitter else ""),
        ("until", "" if record.until is None else in_zone(record.until, local)),
        ("ticks", ", ".join(counts) or "none so far"),
        ("last job", "" if record.last_job is None else str(record.last_job)),
        ("errors", f"{record.errors} in a row" if record.errors else ""),
        ("error", record.error or ""),
        ("when failed", record.when_failed if record.when_failed != "keep" else ""),
        ("declared in", record.origin or ""),
        ("created", in_zone(record.created_at, local)),
    ]
    return [(label, text) for label, text in told if text]


def zone_or_utc(name: str) -> tzinfo:
    """The time zone of this name; UTC where nobody knows it, so that looking is no error."""
    try:
        return zone_called(name)
    except (ValueError, OSError, KeyError):
        return UTC


def in_zone(at: datetime, zone: tzinfo) -> str:
    """An instant on the wall of a zone, with the day of the week and how far its clocks are ahead."""
    local = at.astimezone(zone).replace(microsecond=0)
    return f"{local:%a %Y-%m-%d %H:%M:%S} {local.isoformat()[19:]}"


class Preview(Struct, frozen=True, kw_only=True):
    """The ticks of a definition in a stretch of time, and the changes of the clocks within it."""

    tz: str
    ticks: list[datetime]
    changes: list[ClockChange]
    more: bool  # there are later ones

    def record(self) -> dict[str, object]:
        changes = [
            {**asdict(change), "by": change.by.total_seconds(), "meaning": change.sentence()}
            for change in self.changes
        ]
        return {"tz": self.tz, "ticks": self.ticks, "more": self.more, "clock_changes": changes}

    def lines(self, width: int | None) -> list[str]:
        """A line per tick, and what happens where the clocks are changed, in the order of time."""
        local = zone_or_utc(self.tz)
        told = [(at.astimezone(UTC), 1, [in_zone(at, local)]) for at in self.ticks]
        for change in self.changes:  # above a tick of the same instant, which may make up for others
            sentence = output.wrapped(change.sentence(), width, first="  ", later="  ")
            told.append((change.at.astimezone(UTC), 0, sentence))
        return [line for _, _, lines in sorted(told) for line in lines]


def preview_of(given: Definition, tz: str, since: Millis, to: Millis | None, limit: int) -> Preview:
    """What happens from an instant on: until `to`, and not more than `limit` ticks."""
    ticks = upcoming(given, since - 1, to, limit + 1)
    more = len(ticks) > limit
    ticks = ticks[:limit]
    last = to if to is not None and not more else to_millis(ticks[-1]) if ticks else since
    return Preview(tz=tz, ticks=ticks, changes=clock_changes(given, since - 1, last), more=more)


def history_table(ticks: Sequence[TickRecord], tz: str, width: int | None) -> list[str]:
    local = zone_or_utc(tz)
    columns: Columns[TickRecord] = [
        (Column("tick"), lambda tick: in_zone(tick.at, local)),
        (
            Column("outcome", paint=output.painter(OUTCOME_COLOURS)),
            lambda tick: tick.outcome.replace("_", " "),
        ),
        (Column("ticks", right=True, spare=2), lambda tick: str(tick.count)),
        (Column("late", right=True, spare=1), _lateness),
        (Column("job", spare=3), lambda tick: "-" if tick.job is None else str(tick.job)),
    ]
    return output.table_of(ticks, columns, width)


def _lateness(tick: TickRecord) -> str:
    has_time = tick.outcome.fires and tick.outcome is not TickOutcome.RUN_NOW
    return output.span(timedelta(seconds=tick.lateness)) if has_time else "-"


@click.command(name="list")
@click.argument("store", required=False, shell_complete=suggest("files"))
@answers
def list_schedules(ctx: click.Context, store: str | None, *, as_json: bool) -> None:
    """Show every schedule.

    When it is due, what it runs, and how it is. One is undeclared if it was declared in code, and no process
    with that code was heard of lately; unreadable, if nobody here can tell when it is due.
    """
    with opened_schedules(ctx, store) as known:
        found = known.all()
    if as_json:
        output.print_json([record_of(record) for record in found])
    elif not found:
        click.echo(
            "There are no schedules. Declare some with @app.cron, or see `shigoto schedules add --help`."
        )
    else:
        output.print_lines(schedules_table(found, output.width_of(), datetime.now(UTC)))


@click.command()
@takes_words(NAME)
@answers
def show(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> None:
    """Show one schedule in full."""
    store, name = split_one(ctx, words)
    with opened_schedules(ctx, store) as known:
        record = known.get(name)
    if as_json:
        output.print_json(record_of(record))
    else:
        output.print_lines(page(record, output.width_of()))


@click.command()
@takes_words("[STORE] [NAME]")
@click.option("--cron", metavar="EXPRESSION", help="No schedule of the store, but this expression.")
@click.option("--tz", metavar="ZONE", help="With --cron: its time zone.")
@click.option("--gap", type=click.Choice(get_args(Gap)), help="With --cron: for times that the clocks skip.")
@click.option("--fold", type=click.Choice(get_args(Fold)), help="With --cron: for times they show twice.")
@click.option(
    "--from", "since", metavar="TIME", callback=read_time, help="The first instant; now if not said."
)
@click.option("--to", metavar="TIME", callback=read_time, help="The last instant.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=TICKS, show_default=True, help="How many ticks at most.",
)  # fmt: skip
@answers
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
    first = now if since is None else to_millis(with_zone(since, tz))
    last = None if to is None else to_millis(with_zone(to, tz))
    shown = preview_of(given, tz, first, last, limit)
    if as_json:
        output.print_json(shown.record())
        return
    lines = shown.lines(output.width_of())
    click.echo("\n".join(lines) or "It is not due in that time.")
    if shown.more and to is not None:
        click.echo(f"These are the first {limit}; see more with --limit.", err=True)


@click.command()
@takes_words(NAME)
@click.option("--limit", type=click.IntRange(1, 10_000), default=TICKS, show_default=True, help="How many.")
@click.option("--before", metavar="TIME", callback=read_time, help="Only ticks before this.")
@answers
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
    with opened_schedules(ctx, store) as known:
        tz = known.get(name).tz
        ticks = known.history(name, before=None if before is None else with_zone(before, tz), limit=limit)
    if as_json:
        output.print_json(ticks)
    elif not ticks:
        click.echo("There were no ticks so far.")
    else:
        output.print_lines(history_table(ticks, tz, output.width_of()))


def _definition(ctx: click.Context, store: str | None, name: str) -> tuple[Definition, Millis]:
    """What was said about a schedule, and what time it is for its store, which judges what is due."""
    with closing(target_of(ctx).existing_store(store)) as engine:
        return engine.run(definition_op(engine, name)), engine.run(engine.time())


@click.command()
@takes_words("[STORE] NAME TASK [JSON]")
@takes_plan
@takes_call
@answers
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
    with opened_app(ctx, store, existing=False) as app:
        record = audited_schedules(app).add(said.name, call_of(app, said, options), **plan_of(options))
    print_result(record_of(record), f"Schedule {record.name} is added: {_next(record)}.", as_json=as_json)


@click.command()
@takes_words("[STORE] NAME [TASK [JSON]]")
@takes_plan
@takes_call
@answers
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
    with opened_app(ctx, store, existing=True) as app:
        call = None if said.task is None else call_of(app, said, options)
        record = audited_schedules(app).update(said.name, call=call, **plan)
    print_result(record_of(record), f"Schedule {record.name} is changed: {_next(record)}.", as_json=as_json)


@click.command()
@takes_words(NAMES)
@answers
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
@takes_words(NAMES)
@answers
def pause(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> int:
    """Let schedules fire no more.

    Their ticks are suppressed until they are resumed, and the history tells which.
    """

    def act(known: "Schedules", name: str) -> str:
        known.pause(name)
        return f"Schedule {name} is paused."

    return _each(ctx, words, act, as_json=as_json)


@click.command()
@takes_words(NAMES)
@answers
def resume(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> int:
    """Let schedules fire again.

    Those that are paused, and those that have failed, go on from now. What was due meanwhile is not made up
    for; `shigoto schedules backfill` does that.
    """

    def act(known: "Schedules", name: str) -> str:
        return f"Schedule {name} goes on: {_next(known.resume(name))}."

    return _each(ctx, words, act, as_json=as_json)


@click.command(name="run-now")
@takes_words(NAME)
@answers
def run_now(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> None:
    """Store a job of a schedule now.

    It stands beside those of the ticks. For one that is declared in code, --app must name that code, which
    makes the job.
    """
    store, name = split_one(ctx, words)
    with opened_app(ctx, store, existing=True) as app:
        job = audited_schedules(app).run_now(name)
    text = f"Job {job} of schedule {name} is stored."
    print_result({"schedule": name, "job": job}, text, as_json=as_json)


@click.command()
@takes_words(NAME)
@click.option("--from", "since", metavar="TIME", callback=read_time, required=True, help="The first instant.")
@click.option("--to", metavar="TIME", callback=read_time, required=True, help="The last instant.")
@answers
def backfill(
    ctx: click.Context, words: tuple[str, ...], *, since: datetime, to: datetime, as_json: bool
) -> None:
    """Fire ticks that have not fired.

    All in a stretch of time: missed, skipped or suppressed, or before the schedule was there. Doing it twice
    does no more than doing it once. A time without a zone is on the wall of the schedule's own; a date is its
    midnight. For a schedule that is declared in code, --app must name that code.
    """
    store, name = split_one(ctx, words)
    with opened_app(ctx, store, existing=True) as app:
        tz = app.schedules.get(name).tz
        stored = audited_schedules(app).backfill(name, with_zone(since, tz), with_zone(to, tz))
    text = f"{len(stored)} tick{'' if len(stored) == 1 else 's'} of schedule {name} fired."
    print_result({"schedule": name, "jobs": stored}, text, as_json=as_json)


def _next(record: ScheduleRecord) -> str:
    return "never due again" if record.next_at is None else f"due next at {output.iso(record.next_at)}"


def _each(
    ctx: click.Context, words: tuple[str, ...], act: Callable[["Schedules", str], str], *, as_json: bool
) -> int:
    store, names = split_names(ctx, words)
    with opened_schedules(ctx, store) as known:
        return act_on_each(
            names,
            lambda name: ActionResult(word=name, text=act(known, name), noun="schedule"),
            noun="schedule",
            as_json=as_json,
        )


class Verbs(click.Group):
    """The commands below; without one of them, the list."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, those that look before those that act."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words, with the command that is meant if none is named."""
        words = iter(args)
        first = next((word for word in words if not _is_option(word, words)), None)
        asks_for_help = bool({"-h", "--help"} & set(args))
        is_list = first is None or (first not in self.commands and looks_like_store(first))
        if not asks_for_help and not ctx.resilient_parsing and is_list:
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(f"There is no command 'schedules {args[0]}'.{nearest(args[0], tuple(self.commands))}")
        return super().resolve_command(ctx, args)


def _is_option(word: str, rest: Iterator[str]) -> bool:
    """Whether a word is an option; if it is one that takes a value, that is taken."""
    if word in ("--app", "--url"):
        next(rest, None)
    return word.startswith("-")


@click.group(cls=Verbs)
@takes_target
def schedules(ctx: click.Context) -> None:
    """Show the schedules of the store, or what is done by one of the commands below.

    A schedule makes a job at each of its ticks. It is declared in code, with @app.cron, or added here. Every
    worker fires ticks, and each becomes one job however many workers there are.

    \b
    Examples:
      shigoto schedules
      shigoto schedules add weekly send_report '{"to": "all"}' --cron '0 7 * * MON' --tz Europe/Berlin
      shigoto schedules preview weekly --from 2030-03-01 --to 2030-04-30
      shigoto schedules history weekly
    """


for verb in (list_schedules, show, preview, history, add, update, remove, pause, resume, run_now, backfill):
    schedules.add_command(verb)
