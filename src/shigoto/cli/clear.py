"""Deleting jobs: `shigoto clear workers.db completed`."""

import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from shigoto.bulk import BATCH, Plan, carry_out, choosing_deletable, clearing, deleting, page_to_clear
from shigoto.cli import INTERRUPTED, output
from shigoto.cli.arguments import audited, misuse, split_filter, takes_filter, tell_unsearched
from shigoto.cli.consent import SHOWN, Bar, agreed, counted, names, surely
from shigoto.cli.many import Terms
from shigoto.cli.target import suggest, takes_target, target_of
from shigoto.model.job import TERMINAL, JobFilter, State
from shigoto.model.states import DELETABLE

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

NEVER = "Jobs that are pending have not run, and once deleted they never will."


@click.command()
@click.argument(
    "words", nargs=-1, metavar="[STORE] STATE [FILTER...]", shell_complete=suggest("store_then_filters")
)
@takes_filter
@click.option("--limit", type=click.IntRange(1), help="At most so many, the oldest.  [default: all]")
@click.option("--dry-run", is_flag=True, help="Only tell how many they are.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def clear(ctx: click.Context, words: tuple[str, ...], **options: Any) -> int:
    """Delete the jobs of a state, with all that is known of them.

    A STATE is completed, failed, cancelled or pending, or all of these. Jobs that run are never deleted. A
    FILTER is made of words such as queue:mail task:send since:2h args.store:7, and all must match.

    Completed jobs are deleted without a question. For all others it asks first, and where there is no terminal
    to ask on it needs --yes: with failed and cancelled jobs goes the only record of what went wrong, and
    pending ones have not run and then never will. Ctrl-C ends it after the batch in hand.
    """
    store, terms = split_filter(words)
    meant = Terms.of(ctx, terms, options)
    if not any(name in meant.filters for name in ("state", "failure_kind")):
        raise click.UsageError(f"Which jobs? Name a state: {', '.join(DELETABLE)}, or all of these.", ctx)
    with misuse(ctx):
        page, most = page_to_clear(meant.filters)
    if page.state is not State.COMPLETED:
        meant.expect_consent(ctx)
    with closing(target_of(ctx).existing_store(store)) as engine:
        tell_unsearched(engine, meant.filters)
        if meant.dry_run:
            _tell_dry_run(engine, page, most, as_json=meant.as_json)
            return 0
        asks = output.can_ask() and not meant.yes and page.state is not State.COMPLETED
        found = _count(engine, page) if asks or output.can_redraw(sys.stderr) else {}
        noting = audited(engine, meant.filters)
        clear_all = partial(clearing, noting, meant.filters, dry_run=False)
        if not asks or not any(found.values()):
            return _clear(engine, meant, page, sum(found.values()), clear_all, warned=False)
        # What is stored, ends or fails while the question stands was not asked about.
        chosen = carry_out(engine, choosing_deletable(engine, page, most))
        if not agreed(_question(page, found, most)):
            return 1
        return _clear(engine, meant, page, len(chosen), partial(deleting, noting, chosen, page), warned=True)


def _clear(
    engine: "Engine",
    meant: Terms,
    page: JobFilter,
    whole: int,
    plan: Callable[..., Plan[int]],
    *,
    warned: bool,
) -> int:
    with Bar(min(whole, meant.filters.get("limit") or whole), batch=BATCH) as bar:
        deleted = carry_out(engine, plan(after_batch=bar.after_batch))
    text = f"{'Interrupted: ' if bar.interrupted else ''}{counted(deleted, _name(page))} deleted."

    def say() -> None:
        if meant.as_json:
            output.print_json({"dry_run": False, "interrupted": bar.interrupted, "deleted": deleted})
        else:
            click.echo(text)

    surely(say, text)
    if deleted and page.state not in TERMINAL and not meant.as_json and not warned:
        click.echo(f"Warning: {NEVER}", err=True)
    return INTERRUPTED if bar.interrupted else 0


def _count(engine: "Engine", page: JobFilter) -> dict[str, int]:
    """How many match, by state."""
    states = DELETABLE if page.state is None else (page.state,)
    return {str(state): engine.run(engine.count(structs.replace(page, state=state))) for state in states}


def _question(page: JobFilter, found: dict[str, int], most: int | None) -> str:
    warning = "" if page.state in TERMINAL else f"{NEVER}\n"
    return f"{warning}Delete {_amount(found, most)}?"


def _amount(found: dict[str, int], most: int | None) -> str:
    whole = sum(found.values())
    parts = [f"{count} {state}" for state, count in found.items() if count] or ["0"]
    text = f"{' and '.join([', '.join(parts[:-1]), parts[-1]] if parts[1:] else parts)}"
    text += f" job{'' if whole == 1 else 's'}"
    return text if most is None or most >= whole else f"the oldest {most} of {text}"


def _tell_dry_run(engine: "Engine", page: JobFilter, most: int | None, *, as_json: bool) -> None:
    found = _count(engine, page)
    whole = sum(found.values())
    count = whole if most is None else min(most, whole)
    if as_json:
        output.print_json({"dry_run": True, "interrupted": False, "deleted": count})
        return
    text = f"{_amount(found, most)} would be deleted"
    newest = [] if count < whole else _newest(engine, page)
    click.echo(f"{text[0].upper()}{text[1:]}{f', the newest: {names(newest)}' if newest else ''}.")


def _newest(engine: "Engine", page: JobFilter) -> list[str]:
    """The numbers of the newest that match, as a list would show them."""
    states = DELETABLE if page.state is None else (page.state,)
    found = [
        job.number
        for state in states
        for job in engine.run(engine.find(structs.replace(page, state=state, limit=SHOWN)))
    ]
    return [f"#{number}" for number in sorted(found, reverse=True)[:SHOWN]]


def _name(page: JobFilter) -> str:
    return "" if page.state is None else str(page.state)
