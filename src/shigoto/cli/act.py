"""Acting on jobs: storing one."""

import re
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from shigoto.cli import output
from shigoto.cli.target import is_there, shared, split_store, takes_target, target_of
from shigoto.model.errors import PayloadInvalid, UnknownTask, nearest
from shigoto.model.job import KEY_MODES

if TYPE_CHECKING:
    from shigoto.app import Shigoto
    from shigoto.handle import JobHandle
    from shigoto.options import CallOptions

UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
WHOLE = re.compile(r"-?\d{1,9}")
FORMS = """Write '{"name": "value"}' or --arg name=value."""


def read_duration(ctx: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """A duration in seconds: 90, 90s, 5m, 2h or 1d."""
    if text is None:
        return None
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is no duration: write seconds, or 90s, 5m, 2h, 1d.", ctx, option)
    return float(match[1]) * UNITS[match[2]]


def read_moment(ctx: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    """A moment with its time zone, as ISO 8601."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time: write 2030-01-31T09:00:00Z.", ctx, option) from None
    if moment.utcoffset() is None:
        raise click.BadParameter(f"{text!r} has no time zone: end it with Z or +09:00.", ctx, option)
    return moment


@click.command()
@click.argument("words", nargs=-1, metavar="[STORE] TASK [MESSAGE | JSON] [PRIORITY]")
@click.option(
    "--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument; JSON, or else a string."
)
@click.option("--queue", help="Another queue than the task's own.")
@click.option("--priority", type=int, help="Larger runs first.")
@click.option(
    "--delay", metavar="DURATION", callback=read_duration, help="Run it so much later: 90, 5m, 2h, 1d."
)
@click.option("--run-at", metavar="TIME", callback=read_moment, help="Run it then: 2030-01-31T09:00:00Z.")
@click.option("--expires", metavar="DURATION", callback=read_duration, help="Fail it if not started by then.")
@click.option("--key", help="Only one job with this key may be waiting or running.")
@click.option("--key-mode", type=click.Choice(KEY_MODES), help="What to do if there is one.")
@click.option("--retries", type=int, help="Another number of retries.")
@click.option("--tag", "tags", multiple=True, help="To find it by; may be given again.")
@click.option("--tenant", help="On whose behalf.")
@click.option("--allow-unknown", is_flag=True, help="Accept a task that nobody knows yet.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def enqueue(
    ctx: click.Context,
    words: tuple[str, ...],
    *,
    arguments: tuple[str, ...],
    allow_unknown: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Store a job.

    With --app the arguments are one JSON object or several --arg. The built-in tasks user_created,
    data_analysis, email_notification and data_export take a MESSAGE. The exit code is 0 once the job is
    stored, even if that cannot be printed.
    """
    target = target_of(ctx)
    app = target.load()
    store, rest = split_store(words, known=app.tasks)
    target.aim(app, store)
    task, payload, priority = read_words(ctx, rest, takes_message=target.app is None)
    if priority is not None:
        if options["priority"] is not None:
            raise click.UsageError("The priority is given twice, as a word and as --priority.", ctx)
        options["priority"] = priority
    payload |= dict(read_argument(argument) for argument in arguments)
    chosen = cast("CallOptions", {name: value for name, value in options.items() if value not in (None, ())})
    with closing(app):
        shared(app.engine)
        if not allow_unknown:
            expect_known(app, task)
        handle = app.enqueue_by_name(task, payload, allow_unknown=True, **chosen)

    report(handle, as_json=as_json)


def report(handle: "JobHandle[Any]", *, as_json: bool) -> None:
    """Say what was stored. If that cannot be written it is no error any more: the job is there."""
    line = f"#{handle.number} ({handle.id}) {handle.enqueued}"
    try:
        if as_json:
            output.print_json({"id": handle.id, "number": handle.number, "status": handle.enqueued})
        else:
            click.echo(line)
    except OSError as error:
        output.discard_output()
        click.echo(
            f"Warning: {line}, but standard output cannot be written: {error.strerror}."
            " Do not enqueue it again.",
            err=True,
        )


def read_words(
    ctx: click.Context, words: list[str], *, takes_message: bool
) -> tuple[str, dict[str, Any], int | None]:
    """The task, its arguments and the priority, as far as they are given by position."""
    if not words:
        raise click.UsageError("Which task? Write its name first.", ctx)
    if len(words) > 3:
        raise click.UsageError(f"{words[3]!r} is one word too many; put a text with blanks in quotes.", ctx)
    text = words[1] if len(words) > 1 else None
    number = words[2] if len(words) > 2 else None
    if number is not None and not WHOLE.fullmatch(number):
        raise click.UsageError(
            f"The priority must be a whole number, not {number!r}; put a text with blanks in quotes.", ctx
        )
    priority = None if number is None else int(number)
    if text is None:
        return words[0], {}, priority
    return words[0], {"message": text} if takes_message else read_object(text), priority


def read_object(text: str) -> dict[str, Any]:
    """The arguments in a JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError):
        raise PayloadInvalid(f"The arguments are no JSON object: {output.clip(text, 60)}. {FORMS}") from None


def read_argument(argument: str) -> tuple[str, Any]:
    """The name and value of one NAME=VALUE; a value that is no JSON is a string."""
    name, sign, value = argument.partition("=")
    if not sign or not name.isidentifier():
        raise click.UsageError(f"--arg takes NAME=VALUE, not {argument!r}.")
    try:
        return name, msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError):
        return name, value


def expect_known(app: "Shigoto", task: str) -> None:
    """Raise UnknownTask if neither the app nor any live worker has the task. Creates no store."""
    if app.resolve(task) is not None:
        return
    engine = app.engine
    workers = engine.run(engine.workers()) if is_there(engine) else []
    known = {name for worker in workers for name in worker.tasks} | set(app.tasks)
    if task not in known:
        hint = nearest(task, known) or f" Known are: {', '.join(sorted(known)[:20]) or 'none'}."
        raise UnknownTask(
            f"No task is called {task!r}, neither in the app nor by any live worker.{hint}"
            " With --allow-unknown the job waits for a worker that knows it."
        )
