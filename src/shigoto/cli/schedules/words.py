"""The words of a command on schedules: names, times, and what is said of a schedule and of its jobs."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, get_args

import click

from shigoto.cli.arguments import audited, hinting_at_texts, read_arguments, read_object
from shigoto.cli.arguments import read_length as read_span
from shigoto.cli.jobs import expect_known
from shigoto.cli.target import looks_like_store, shared, split_store, suggest, target_of
from shigoto.model.errors import ScheduleInvalid
from shigoto.model.job import KEY_MODES
from shigoto.options import CatchUp, Fold, Gap, Overlap, WhenFailed
from shigoto.schedule.recurrence import FIRST_YEAR, LAST_YEAR, zone_called

if TYPE_CHECKING:
    from shigoto.app import Shigoto
    from shigoto.enqueue import Call
    from shigoto.options import CallOptions
    from shigoto.schedule.manage import Schedules

F = TypeVar("F", bound=Callable[..., Any])

NAME = "[STORE] NAME"
NAMES = "[STORE] NAME..."
NONE = "none"  # the word for no limit, where there need not be one
LIMITS = ("until", "catch_up_within")


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
    """A time, or the word for none."""
    return text if text == NONE else read_time(ctx, option, text)


def read_length(ctx: click.Context, option: click.Parameter, text: str | None) -> timedelta | str | None:
    """A duration, or the word for none."""
    return text if text == NONE else read_span(ctx, option, text)


def takes_plan(command: F) -> F:
    """The options that say when a schedule is due, and what if that does not go as planned."""
    options = [
        click.option("--cron", metavar="EXPRESSION", help="Due then: '0 3 * * *', or '@daily'."),
        click.option("--every", metavar="DURATION", help="Due at this interval: 90s, 5m, 2h, 1d."),
        click.option("--at", metavar="TIME", callback=read_time, help="Due once: 2030-01-31T09:00."),
        click.option("--tz", metavar="ZONE", help="The time zone, such as Europe/Berlin; UTC if not said."),
        click.option(
            "--catch-up", type=click.Choice(get_args(CatchUp)), help="Of ticks nobody was there for."
        ),
        click.option("--catch-up-most", type=int, metavar="N", help="With --catch-up all: so many at once."),
        click.option(
            "--catch-up-within", metavar="DURATION", callback=read_length, help="Only if no later than this."
        ),
        click.option(
            "--overlap", type=click.Choice(get_args(Overlap)), help="While the job before has not ended."
        ),
        click.option("--jitter", metavar="DURATION", callback=read_span, help="Start up to so much later."),
        click.option("--until", metavar="TIME", callback=read_end, help="The end of it."),
        click.option("--gap", type=click.Choice(get_args(Gap)), help="For times that the clocks skip."),
        click.option(
            "--fold", type=click.Choice(get_args(Fold)), help="For times that the clocks show twice."
        ),
        click.option(
            "--when-failed", type=click.Choice(get_args(WhenFailed)), help="If it cannot submit its job."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def takes_call(command: F) -> F:
    """The options that say what is stored at each tick, beside the task."""
    options = [
        click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument."),
        click.option("--queue", shell_complete=suggest("queues"), help="Another queue than the task's own."),
        click.option("--priority", type=int, help="Larger runs first."),
        click.option("--key", help="Only one job with this key may be waiting or running."),
        click.option("--key-mode", type=click.Choice(KEY_MODES), help="What to do if there is one."),
        click.option("--retries", type=int, help="Another number of retries."),
        click.option("--tag", "tags", multiple=True, help="To find it by; may be given again."),
        click.option("--tenant", help="On whose behalf."),
        click.option("--allow-unknown", is_flag=True, help="Accept a task that nobody knows yet."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


PLAN = (
    "cron", "every", "at", "tz", "catch_up", "catch_up_most", "catch_up_within", "overlap", "jitter", "until", "gap",
    "fold", "when_failed",
)  # fmt: skip


def plan_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was said of the schedule itself; a limit that is taken away is None here."""
    said = {name: options[name] for name in PLAN if options[name] is not None}
    return {name: None if name in LIMITS and value == NONE else value for name, value in said.items()}


def said_of_jobs(options: Mapping[str, Any]) -> list[str]:
    """The flags of what was said of its jobs."""
    flags = {"arguments": "arg", "tags": "tag"}
    said = [name for name, value in options.items() if name not in PLAN and value not in (None, (), False)]
    return [f"--{flags.get(name, name).replace('_', '-')}" for name in said]


class Said(NamedTuple):
    """What is said by position: the schedule, the task that it runs, and the arguments as JSON."""

    name: str
    task: str | None
    text: str | None


def split_task(ctx: click.Context, words: Sequence[str]) -> tuple[str | None, Said]:
    """The store, and the words after it. Raises a usage error."""
    store, rest = split_store(words)
    _expect_name(ctx, store, rest)
    if len(rest) > 3:
        raise click.UsageError(f"{rest[3]!r} is one word too many; put JSON with blanks in quotes.", ctx)
    name, task, text, *_ = (*rest, None, None)
    return store, Said(str(name), task, text)


def split_names(ctx: click.Context, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The store and the names after it, of which there must be one. Raises a usage error."""
    store, names = split_store(words)
    _expect_name(ctx, store, names)
    return store, list(dict.fromkeys(names))


def split_one(ctx: click.Context, words: Sequence[str], *, hint: str = "") -> tuple[str | None, str]:
    """The store and the one name after it. Raises a usage error."""
    store, names = split_store(words)
    _expect_name(ctx, store, names, hint)
    if len(names) > 1:
        raise click.UsageError(f"{names[1]!r} is one word too many: it takes a store and a schedule.", ctx)
    return store, names[0]


def _expect_name(ctx: click.Context, store: str | None, names: Sequence[str], hint: str = "") -> None:
    if not names:
        note = f" {store} is the store." if store and looks_like_store(store) else ""
        raise click.UsageError(f"Which schedule? Write its name.{note}{hint}", ctx)


def acting(app: "Shigoto") -> "Schedules":
    """The schedules of an app, which note what is done to them."""
    from shigoto.schedule.manage import Schedules

    return Schedules(app, audited(app.engine))


@contextmanager
def opened(ctx: click.Context, store: str | None) -> "Generator[Schedules]":
    """The schedules of a store that is there."""
    with closing(target_of(ctx).app_of_store(store)) as app:
        yield acting(app)


@contextmanager
def loaded(ctx: click.Context, store: str | None, *, existing: bool) -> "Generator[Shigoto]":
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


def call_of(app: "Shigoto", said: Said, options: Mapping[str, Any]) -> "Call[Any]":
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


def local(at: datetime, tz: str) -> datetime:
    """The instant that somebody means, who may have left out the zone."""
    return at if at.tzinfo is not None else at.replace(tzinfo=zone_called(tz))
