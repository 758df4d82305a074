"""A whole store as a file: `shigoto export` and `shigoto import`."""

import os
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from typing import BinaryIO

import click

from shigoto.cli import output
from shigoto.cli.confirm import jobs, jobs_and_schedules
from shigoto.cli.target import suggest, takes_target, target_of

EVERY = 10_000  # jobs, between two looks at how far it is


@click.command()
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option(
    "--output",
    "file",
    metavar="FILE",
    help="A new file, which only you may read.  [default: standard output]",
)
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
        _written(file) as stream,
        Counter() as count,
    ):
        written = write(engine, stream, tell=count.show)
    click.echo(f"{jobs_and_schedules(written.jobs, written.schedules)} exported.", err=True)


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
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
        Counter() as count,
    ):
        loaded = load(engine, stream, file, tell=count.show)
    if as_json:
        output.print_json({"imported": loaded.jobs, "schedules": loaded.schedules})
    else:
        click.echo(f"{jobs_and_schedules(loaded.jobs, loaded.schedules)} imported.")


class Counter:
    """How many jobs are done, where somebody looks."""

    def __init__(self) -> None:
        self._drawn = output.can_redraw(sys.stderr)
        self._next = EVERY

    def __enter__(self) -> "Counter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            click.echo("\r\x1b[K", nl=False, err=True)

    def show(self, done: int) -> None:
        """Show it, now and then."""
        if self._drawn and done >= self._next:
            self._next = done + EVERY
            click.echo(f"\r{jobs(done)}", nl=False, err=True)


@contextmanager
def _written(file: str | None) -> Generator[BinaryIO]:
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
