"""The audit: who has done what to a store."""

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime

import click
from msgspec.structs import asdict

from shigoto.cli import output
from shigoto.cli.jobs import ROWS
from shigoto.cli.output import Column, Columns
from shigoto.cli.target import suggest, takes_target, target_of
from shigoto.filters import MAX_NUMBER, MAX_PAGE
from shigoto.model.service import AuditEntry
from shigoto.model.time import to_datetime


@click.command()
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option(
    "--target",
    help="Only what was done to this: the id of a job, a queue, a schedule, the id of a token, or a filter.",
)
@click.option("--limit", default=ROWS, show_default=True, type=click.IntRange(1, MAX_PAGE), help="How many.")
@click.option(
    "--before", type=click.IntRange(0, MAX_NUMBER), metavar="NUMBER",
    help="Only older ones than the entry of this number: the next page.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="For programs: complete records in one array.")
@takes_target
def audit(
    ctx: click.Context,
    store: str | None,
    *,
    target: str | None,
    limit: int,
    before: int | None,
    as_json: bool,
) -> None:
    """Show what operators have done, the newest first: who, what, to what, and how it was before and after.

    Every cancel, retry, rerun and deletion is noted, every change of a queue, a schedule or a token, by HTTP or by this
    command line; not what your own code does. It has states, settings and counts, never arguments, results or errors.
    Entries are kept for a year. From a server (--url http://...) it takes a token with the scope admin.

    \b
    Examples:
      shigoto audit jobs.db
      shigoto audit jobs.db --target mail --limit 100
      shigoto --url https://jobs.example.org audit --json
    """
    with closing(target_of(ctx).existing_store(store)) as engine:
        found = engine.run(engine.registry.noted(before=before, limit=limit, target=target))

    if as_json:
        output.print_json([_record(entry) for entry in found])
        return
    if not found:
        click.echo(_nothing(before, target))
        return
    width = output.width_of()
    click.echo("\n".join(audit_table(found, width, datetime.now(UTC))))
    if len(found) == limit and width is not None:
        click.echo(f"These are {limit} entries; see older ones with --before {found[-1].number}.", err=True)


def audit_table(found: Sequence[AuditEntry], width: int | None, now: datetime) -> list[str]:
    """A line per entry. On a terminal (one with a width) times are local and short, else ISO 8601 in UTC."""
    brief = width is not None
    columns: Columns[AuditEntry] = [
        (Column("entry", right=True, spare=3), lambda entry: str(entry.number)),
        (Column("at"), lambda entry: output.instant(to_datetime(entry.at), now, brief=brief)),
        (Column("actor", least=12), lambda entry: output.one_line(entry.actor)),
        (Column("action"), lambda entry: output.one_line(entry.action)),
        (Column("target", least=12), lambda entry: output.brief(entry.target) or "-"),
        (
            Column("before", least=8, spare=2),
            lambda entry: "-" if entry.before is None else output.brief(entry.before),
        ),
        (
            Column("after", least=8, spare=1),
            lambda entry: "-" if entry.after is None else output.brief(entry.after),
        ),
    ]
    return output.table_of(found, columns, width)


def _nothing(before: int | None, target: str | None) -> str:
    of = "" if target is None else " to that target"
    older = "" if before is None else f" before entry {before}"
    return f"Nothing was done{of}{older}, or it was more than a year ago."


def _record(entry: AuditEntry) -> dict[str, object]:
    """The entry for programs; `before` and `after` are JSON, or a text where they were too long to be kept whole."""
    before = None if entry.before is None else output.embedded(entry.before)
    after = None if entry.after is None else output.embedded(entry.after)
    return {**asdict(entry), "at": to_datetime(entry.at), "before": before, "after": after}
