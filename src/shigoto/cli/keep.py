"""Keeping a store in order."""

from contextlib import closing
from typing import Protocol, runtime_checkable

import click

from shigoto.cli import output
from shigoto.cli.target import suggest, takes_target, target_of
from shigoto.model.errors import StoreUnavailable, Unsupported


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
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
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
            _print(engine, everything=everything)
            return
        applied = engine.migrate()

    if as_json:
        output.print_json({"applied": applied})
    elif applied:
        click.echo("\n".join(f"Applied {migration}." for migration in applied))
    else:
        click.echo("The store is up to date.")


def _print(engine: Scripted, *, everything: bool) -> None:
    try:
        script = engine.migration_script(everything=everything)
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"{error} `--print --all` prints everything without asking the store."
        ) from error
    click.echo(script or "-- The store is up to date.", nl=not script)
