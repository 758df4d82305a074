"""The commands on whole stores: migrate, move, export and import.

    migrate   creates a store, or brings its schema up to date
    move      moves all jobs to another store, while work goes on
    export    writes all jobs to a file, as lines of JSON
    import    fills an empty store from such a file

Each of them shows how far it is where somebody looks, and can be run again if it was interrupted.
"""

import os
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, Protocol, runtime_checkable

import click
from msgspec import structs

from shigoto.cli import output
from shigoto.cli.confirm import StatusLine, jobs, jobs_and_schedules, print_result
from shigoto.cli.settings import Seconds
from shigoto.cli.target import answers, existing, shared, suggest, takes_target, target_of
from shigoto.engine.open import open_engine
from shigoto.model.errors import StoreError, StoreUnavailable, Unsupported
from shigoto.model.time import host_clock

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine
    from shigoto.moving.move import Moved, MoveProgress

WAIT = 30.0  # seconds
DAY = 86_400.0
PHASES = {
    "copying": "copied, while the old store works on",
    "draining": "have ended; no job is started in the old store any more",
    "closing": "copied, while the old store is closed",
    "moved": "copied",
}
EVERY = 10_000  # jobs, between two looks at how far it is


@runtime_checkable
class Scripted(Protocol):
    """An engine whose migrations can be read, and run by somebody else."""

    def migration_script(self, *, everything: bool = False) -> str:
        """The SQL of what `migrate` would do now, or of all of it, for which nobody is asked; empty if it is done."""
        ...


@click.command()
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option(
    "--print", "printing", is_flag=True, help="Print the SQL of what is missing, and change nothing."
)
@click.option("--all", "everything", is_flag=True, help="With --print: all of it, without asking the store.")
@answers
def migrate(
    ctx: click.Context, store: str | None, *, printing: bool, everything: bool, as_json: bool
) -> None:
    """Create the store or bring its schema up to date.

    Doing it again changes nothing, and two at once are as good as one. In a SQLite file workers do so by
    themselves, and this is for those who want it done before. On PostgreSQL nobody else ever does, and it needs a
    role that owns the schema: `shigoto sql bootstrap` makes one.

    \b
    Examples:
      shigoto migrate
      shigoto migrate data/jobs.db
      SHIGOTO_URL=postgresql://jobs_migrator@db/shop shigoto migrate --print > migration.sql
    """
    if everything and not printing:
        raise click.UsageError(
            "--all goes with --print: a migration always applies all that is missing.", ctx
        )
    if printing and as_json:
        raise click.UsageError("--print prints SQL, and --json is something else. Leave one out.", ctx)
    with closing(target_of(ctx).store(store)) as engine:
        if printing:
            if not isinstance(engine, Scripted):
                raise Unsupported(
                    f"The {engine.capabilities.name} engine has no SQL to print: whoever opens a file brings it up to"
                    " date. --print is for PostgreSQL."
                )
            _print_script(engine, everything=everything)
            return
        applied = engine.migrate()

    if as_json:
        output.print_json({"applied": applied})
    elif applied:
        click.echo("\n".join(f"Applied {migration}." for migration in applied))
    else:
        click.echo("The store is up to date.")


def _print_script(engine: Scripted, *, everything: bool) -> None:
    try:
        script = engine.migration_script(everything=everything)
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"{error} `--print --all` prints everything without asking the store."
        ) from error
    click.echo(script or "-- The store is up to date.", nl=not script)


@click.command()
@click.option(
    "--from", "source", required=True, metavar="STORE", envvar="SHIGOTO_MOVE_FROM", show_envvar=True,
    shell_complete=suggest("files"), help="The old store: a file, or postgresql://USER@HOST/DATABASE.",
)  # fmt: skip
@click.option(
    "--to", "target", required=True, metavar="STORE", envvar="SHIGOTO_MOVE_TO", show_envvar=True,
    shell_complete=suggest("files"), help="The new one, which has neither jobs nor schedules yet.",
)  # fmt: skip
@click.option(
    "--wait", type=Seconds(0, DAY), default=WAIT, show_default=True, metavar="SECONDS",
    help="How long running jobs have to end, before others run them again in the new store.",
)  # fmt: skip
@click.option("--give-up", is_flag=True, help="Let the old store work on, and empty the new one.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def move(source: str, target: str, *, wait: float, give_up: bool, as_json: bool) -> None:
    """Move all jobs and schedules to another store, with their ids, numbers, keys and history.

    Work goes on while finished jobs are copied. Then the old store starts no more jobs, and closes for as long as it
    takes to copy the rest: whoever enqueues hears STORE.MOVING meanwhile, and may try again. No tick of a schedule
    is lost or fired twice: what was due while both were closed is caught up in the new store. At the end the old store
    says STORE.MOVED, and where its jobs are; its workers exit. It keeps its jobs, and nobody can run them there.

    If this is interrupted, run it again: it goes on where it was. On PostgreSQL it needs the role that owns the
    schema. A password in a command can be seen by others: put it into the variables, or into a passfile.

    \b
    Examples:
      shigoto move --from workers.db --to postgresql://jobs_migrator@db/shop
      shigoto move --from workers.db --to postgresql://jobs_migrator@db/shop --wait 300
    """
    from shigoto.cli.daemon import signals_interrupt
    from shigoto.moving.move import StoreMove

    with (
        closing(existing(shared(open_engine(source)))) as old,
        closing(shared(open_engine(target))) as new,
        signals_interrupt(),
        MoveProgressBar() as display,
    ):
        plan = StoreMove(old, new, wait=wait, tell=display.show)
        if give_up:
            plan.give_up()
            click.echo("The move was given up: the old store works on, and the new one is empty.", err=True)
            return
        moved = plan.run()
        tokens = _left_behind(old)
    names = plan.names
    record = {"from": names[0], "to": names[1], **structs.asdict(moved), "tokens_left_behind": tokens}
    print_result(record, _move_sentence(moved, names, tokens), as_json=as_json)


def _left_behind(old: "Engine") -> int:
    """How many tokens still open the old store; they are not moved."""
    try:
        tokens, now = old.run(old.registry.tokens()), host_clock()
    except StoreError:  # the jobs are where they should be, which is what counts
        return 0
    return sum(token.alive(now) for token in tokens)


class MoveProgressBar(StatusLine):
    """How far a move is: a bar where somebody looks, else a line for each phase."""

    def __init__(self) -> None:
        super().__init__()
        self._phase = ""

    def show(self, progress: "MoveProgress") -> None:
        text = f"{progress.done} of {progress.whole} {PHASES[progress.phase]}"
        share = progress.done / progress.whole if progress.whole else 1.0
        self.draw(f"{output.bar(share)} {text}")
        if not self.is_drawn and progress.phase != self._phase:
            click.echo(text, err=True)
        self._phase = progress.phase


def _move_sentence(moved: "Moved", names: tuple[str, str], tokens: int) -> str:
    old, new = names
    if moved.already:
        return f"{old} was moved to {new} before. Nothing was left to do."
    copied = jobs_and_schedules(moved.jobs, moved.schedules)
    text = f"{old} was moved to {new}: {copied} copied, closed for {moved.closed_for:.1f} s."
    if moved.released:
        text += f" {jobs(moved.released)} still running then run again in the new store."
    text += " Use the new address everywhere now, and start workers there."
    if tokens:
        stay = "1 token of the service stays" if tokens == 1 else f"{tokens} tokens of the service stay"
        text += f" {stay} behind: make new ones there with shigoto token create."
    return text


@click.command()
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option(
    "--output", "file", metavar="FILE", help="A new file, which only you may read.  [default: standard output]",
)  # fmt: skip
@takes_target
def export(ctx: click.Context, store: str | None, *, file: str | None) -> None:
    """Write all jobs and schedules to a file, as lines of JSON: as they are at one instant, while work goes on.

    The first line says how to read the rest, the last one how much there is. Payloads, results and errors are in
    it: keep it as safe as the store itself.

    \b
    Examples:
      shigoto export workers.db --output jobs.jsonl
      shigoto export | gzip > jobs.jsonl.gz
    """
    from shigoto.moving.files import export as write

    with (
        closing(target_of(ctx).existing_store(store)) as engine,
        _opened_for_writing(file) as stream,
        JobCounter() as count,
    ):
        written = write(engine, stream, tell=count.show)
    click.echo(f"{jobs_and_schedules(written.jobs, written.schedules)} exported.", err=True)


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("store", required=False, shell_complete=suggest("files"))
@answers
def import_jobs(ctx: click.Context, file: str, store: str | None, *, as_json: bool) -> None:
    """Fill an empty store with the jobs and schedules of a file that `shigoto export` has written.

    Ids, numbers, keys and history stay as they were. Jobs that were processing are pending, for another worker. All or
    nothing: if a line cannot be read the store stays empty, and nobody can use it before it has everything. If this is
    killed, run it again: it begins anew. On PostgreSQL it needs the role that owns the schema.

    \b
    Examples:
      shigoto import jobs.jsonl other.db
      SHIGOTO_URL=postgresql://jobs_migrator@db/shop shigoto import jobs.jsonl
    """
    from shigoto.cli.daemon import signals_interrupt
    from shigoto.moving.files import load

    with (
        closing(target_of(ctx).store(store)) as engine,
        open(file, "rb") as stream,
        signals_interrupt(),
        JobCounter() as count,
    ):
        loaded = load(engine, stream, file, tell=count.show)
    if as_json:
        output.print_json({"imported": loaded.jobs, "schedules": loaded.schedules})
    else:
        click.echo(f"{jobs_and_schedules(loaded.jobs, loaded.schedules)} imported.")


class JobCounter(StatusLine):
    """How many jobs are done, where somebody looks."""

    def __init__(self) -> None:
        super().__init__()
        self._next = EVERY

    def show(self, done: int) -> None:
        if done >= self._next:
            self._next = done + EVERY
            self.draw(jobs(done))


@contextmanager
def _opened_for_writing(file: str | None) -> Generator[BinaryIO]:
    """Where to write to; a file that is not written to its end is not left behind."""
    if file is None:
        yield sys.stdout.buffer
        return
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise click.UsageError(f"{file} is there already. Name another file, or remove it first.") from None
    done = False
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
        done = True
    finally:
        if not done:
            with suppress(OSError):
                os.unlink(file)
