"""Acting on jobs: storing one."""

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from shigoto.cli import output
from shigoto.cli.arguments import (
    WithNumbers,
    hinting_at_texts,
    is_object,
    read_arguments,
    read_length,
    read_moment,
    read_object,
)
from shigoto.cli.target import is_there, shared, split_store, suggest, takes_target, target_of
from shigoto.model.errors import UnknownTask, nearest
from shigoto.model.job import KEY_MODES

if TYPE_CHECKING:
    from shigoto.app import Shigoto
    from shigoto.enqueue import Call
    from shigoto.handle import JobHandle
    from shigoto.options import CallOptions

WHOLE = re.compile(r"-?\d{1,9}")


@click.command(cls=WithNumbers)
@click.argument(
    "words",
    nargs=-1,
    metavar="[STORE] TASK [MESSAGE | JSON] [PRIORITY]",
    shell_complete=suggest("store_then_task"),
)
@click.option(
    "--arg",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument: a text where the task takes a str; else JSON, or a text if it is none.",
)
@click.option("--queue", shell_complete=suggest("queues"), help="Another queue than the task's own.")
@click.option("--priority", type=int, help="Larger runs first.")
@click.option(
    "--delay", metavar="DURATION", callback=read_length, help="Run it so much later: 90, 5m, 2h, 1d, 2w."
)
@click.option("--run-at", metavar="TIME", callback=read_moment, help="Run it then: 2030-01-31T09:00:00Z.")
@click.option("--expires", metavar="DURATION", callback=read_length, help="Fail it if not started by then.")
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

    The arguments are one JSON object or several --arg. Without --app, the built-in tasks user_created,
    data_analysis, email_notification and data_export also take a MESSAGE: any text that is no JSON object.
    The exit code is 0 once the job is stored, even if that cannot be printed.
    """
    from shigoto.enqueue import call_by_name

    target = target_of(ctx)
    app = target.load()
    store, rest = split_store(words, known=app.tasks)
    target.aim(app, store)
    said = read_words(ctx, rest)
    if said.priority is not None:
        if options["priority"] is not None:
            raise click.UsageError("The priority is given twice, as a word and as --priority.", ctx)
        options["priority"] = said.priority
    chosen = cast("CallOptions", {name: value for name, value in options.items() if value not in (None, ())})
    with closing(app):
        shared(app.engine)
        if not allow_unknown:
            expect_known(app, said.task)
        known = app.resolve(said.task)
        payload = said.payload(takes_message=target.app is None and known is not None)
        signature = None if known is None else known.signature
        payload |= read_arguments(arguments, beside=payload, signature=signature)
        with hinting_at_texts(arguments, payload, signature):
            handle = _stored(app, call_by_name(app, said.task, payload, chosen))

    report(handle, as_json=as_json)


def _stored(app: "Shigoto", call: "Call[Any]") -> "JobHandle[Any]":
    """Store a job, if its queue has room. Raises QueueFull."""
    from shigoto.handle import JobHandle
    from shigoto.model.ids import uuid7
    from shigoto.observe import tracing
    from shigoto.queues import storing

    engine = app.engine
    with tracing.storing(app.tracing, [call.spec(uuid7())]) as specs:
        [made] = engine.run(storing(engine, specs))
    return JobHandle(engine, made.id, made.number, made.status, None)


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


class Words(NamedTuple):
    """What is said by position: the task, its arguments as one text, and the priority."""

    task: str
    text: str | None
    priority: int | None

    def payload(self, *, takes_message: bool) -> dict[str, Any]:
        """The arguments in the text. Raises PayloadInvalid."""
        if self.text is None:
            return {}
        if takes_message and not is_object(self.text):
            return {"message": self.text}
        return read_object(self.text)


def read_words(ctx: click.Context, words: list[str]) -> Words:
    """The words after the store. Raises a usage error."""
    if not words:
        raise click.UsageError("Which task? Write its name first.", ctx)
    if len(words) > 3:
        raise click.UsageError(f"{words[3]!r} is one word too many; put a text with blanks in quotes.", ctx)
    number = words[2] if len(words) > 2 else None
    if number is not None and not WHOLE.fullmatch(number):
        raise click.UsageError(
            f"The priority must be a whole number, not {number!r}; put a text with blanks in quotes.", ctx
        )
    return Words(words[0], words[1] if len(words) > 1 else None, None if number is None else int(number))


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
