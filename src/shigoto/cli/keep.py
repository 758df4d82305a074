"""Keeping a store in order."""

from contextlib import closing

import click

from shigoto.cli import output
from shigoto.cli.suggest import suggest
from shigoto.cli.target import takes_target, target_of


@click.command()
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def migrate(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Create the store or bring its schema up to date.

    Workers do so by themselves; this is for those who want it done before. Doing it again changes nothing.

    \b
    Examples:
      shigoto migrate
      shigoto migrate data/jobs.db
    """
    with closing(target_of(ctx).store(store)) as engine:
        applied = engine.migrate()

    if as_json:
        output.print_json({"applied": applied})
    elif applied:
        click.echo("\n".join(f"Applied {migration}." for migration in applied))
    else:
        click.echo("The store is up to date.")
