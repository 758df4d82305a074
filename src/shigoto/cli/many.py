"""Acting on all jobs that match a filter: clear and redrive, and cancel and retry when they are given one."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from shigoto.bulk import (
    PAGE,
    Cancelled,
    Chosen,
    Redriven,
    cancelling,
    carry_out,
    choosing,
    choosing_live,
    retrying,
)
from shigoto.cli import INTERRUPTED, output
from shigoto.cli.arguments import audited, misuse, read_filter, split_filter, takes_filter, tell_unsearched
from shigoto.cli.consent import Bar, agreed, counted, expect_consent, jobs, names, surely
from shigoto.cli.target import suggest, takes_target, target_of
from shigoto.filters import Filters
from shigoto.handle import JobHandle

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

F = TypeVar("F", bound=Callable[..., Any])

CARE = ("dry_run", "yes", "as_json")
FORCED = (
    "By force a running job counts as cancelled at once, and whatever its worker still reports of it is refused."
    " What it was to do may have happened all the same, and its code may run on for a while."
)


class Terms(NamedTuple):
    """Which jobs are meant, and how careful to be."""

    filters: Filters
    dry_run: bool
    yes: bool
    as_json: bool

    @classmethod
    def of(cls, ctx: click.Context, terms: Sequence[str], options: dict[str, Any]) -> "Terms":
        """What the words and the flags of a command say. Raises a usage error."""
        flags = {name: value for name, value in options.items() if name not in CARE}
        return cls(read_filter(ctx, terms, flags), **{name: options[name] for name in CARE})

    def expect_consent(self, ctx: click.Context) -> None:
        """Raise a usage error if nobody has agreed and nobody can be asked; before the store is opened."""
        expect_consent(ctx, given=self.yes or self.dry_run, hint=", or --dry-run to look first")


def takes_care(command: F) -> F:
    """The flags of every command that acts on many jobs."""
    flags = [
        click.option("--limit", type=click.IntRange(1), help="At most so many, the newest.  [default: all]"),
        click.option("--dry-run", is_flag=True, help="Only tell which they are."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--json", "as_json", is_flag=True, help="For programs."),
    ]
    for flag in reversed(flags):
        command = flag(command)
    return command


@click.command()
@click.argument(
    "words", nargs=-1, metavar="[STORE] [FILTER...]", shell_complete=suggest("store_then_filters")
)
@click.option(
    "--state", type=click.Choice(["failed", "cancelled"]), help="Only in this state.  [default: failed]"
)
@takes_filter
@takes_care
@takes_target
def redrive(ctx: click.Context, words: tuple[str, ...], **options: Any) -> int:
    """Retry all failed jobs that match, oldest first.

    A FILTER is made of words such as queue:mail task:send tag:vip tenant:acme kind:timeout since:2h
    args.store:7 or error:"connection refused"; all must match.

    Jobs in quarantine (--kind crash_loop) are left alone unless they are asked for. Jobs whose unique key
    belongs to another one by now are passed over, and told; of several with one key the newest is retried.
    Without a terminal to ask on it needs --yes. Ctrl-C ends it after the batch in hand.
    """
    store, terms = split_filter(words)
    meant = Terms.of(ctx, terms, options)
    meant.expect_consent(ctx)
    with closing(target_of(ctx).existing_store(store)) as engine:
        return redrive_matching(ctx, engine, meant)


def redrive_matching(ctx: click.Context, engine: "Engine", terms: Terms) -> int:
    """Retry all that match, after a question; the exit code."""
    state = str(terms.filters.get("state") or "failed")
    with misuse(ctx):
        plan = choosing(engine, terms.filters, decoder=lambda _: None)
    tell_unsearched(engine, terms.filters)
    chosen = carry_out(engine, plan)
    whole = len(chosen.jobs) + len(chosen.rivals)
    if terms.dry_run:
        _tell_dry_redrive(chosen, counted(len(chosen.jobs), state), as_json=terms.as_json)
        return 0
    if whole and not terms.yes and not agreed(f"Retry {counted(len(chosen.jobs), state)}?"):
        return 1
    with Bar(whole, batch=PAGE) as bar:
        redriven = carry_out(
            engine, retrying(audited(engine, terms.filters), chosen, after_batch=bar.after_batch)
        )
    _tell_redriven(redriven, counted(whole, state), terms, interrupted=bar.interrupted)
    return INTERRUPTED if bar.interrupted else 0


def _tell_dry_redrive(chosen: Chosen, count: str, *, as_json: bool) -> None:
    if as_json:
        groups = {
            "retried": chosen.jobs[::-1],
            "quarantined": chosen.quarantined,
            "key_taken": chosen.rivals[::-1],
        }
        output.print_json({"dry_run": True, **_records(groups)})
        return
    click.echo(f"{count} would be retried{_named(chosen.jobs[::-1])}.")
    _tell_left(chosen.rivals[::-1], "a newer one has the same unique key")
    _tell_quarantined(chosen.quarantined)


def _tell_redriven(redriven: Redriven, count: str, terms: Terms, *, interrupted: bool) -> None:
    done = f"{'Interrupted: ' if interrupted else ''}{len(redriven.retried)} of {count} retried"

    def say() -> None:
        if terms.as_json:
            groups = {
                name: getattr(redriven, name) for name in ("retried", "quarantined", "key_taken", "gone")
            }
            output.print_json({"dry_run": False, "interrupted": interrupted, **_records(groups)})
        else:
            click.echo(f"{done}.")

    surely(say, f"{done}{_named(redriven.retried)}.")
    if not terms.as_json:
        _tell_left(redriven.key_taken, "another job holds the unique key")
        _tell_left(redriven.gone, "retried or deleted by somebody else meanwhile")
        _tell_quarantined(redriven.quarantined)


def _tell_left(handles: Sequence[JobHandle[Any]], why: str) -> None:
    if handles:
        click.echo(f"Not retried, {why}{_named(handles)}.", err=True)


def _tell_quarantined(handles: Sequence[JobHandle[Any]]) -> None:
    if handles:
        click.echo(
            f"Left alone, in quarantine{_named(handles)}. With --kind crash_loop they are retried.", err=True
        )


def cancel_matching(ctx: click.Context, engine: "Engine", terms: Terms, *, force: bool) -> int:
    """Cancel all that match, after a question; the exit code."""
    with misuse(ctx):
        plan = choosing_live(engine, terms.filters, decoder=lambda _: None)
    tell_unsearched(engine, terms.filters)
    chosen = carry_out(engine, plan)
    whole = len(chosen.cancelled) + len(chosen.asked)
    if terms.dry_run:
        _tell_cancelled(chosen, terms, whole, force=force)
        return 0
    if whole and not terms.yes and not agreed(_question(chosen, force=force)):
        return 1
    with Bar(whole, batch=PAGE) as bar:
        done = carry_out(
            engine,
            cancelling(audited(engine, terms.filters), chosen, force=force, after_batch=bar.after_batch),
        )
    _tell_cancelled(done, terms, whole, force=force, interrupted=bar.interrupted)
    return INTERRUPTED if bar.interrupted else 0


def _question(chosen: Cancelled, *, force: bool) -> str:
    waiting, running = len(chosen.cancelled), len(chosen.asked)
    if not running:
        return f"Cancel {jobs(waiting)}?"
    if force:
        return f"{FORCED}\nCancel {jobs(waiting + running)}, {running} of them by force?"
    if not waiting:
        return f"Ask {counted(running, 'running')} to stop?"
    return f"Cancel {jobs(waiting)}, and ask {running} running to stop?"


def _tell_cancelled(
    done: Cancelled, terms: Terms, whole: int, *, force: bool, interrupted: bool = False
) -> None:
    dry = terms.dry_run
    cancelled, asked = done.cancelled, done.asked
    if dry and force:
        cancelled, asked = [*cancelled, *asked], []
    would = "would be " if dry else ""
    text = f"{len(cancelled)} of {jobs(whole)} {would}cancelled"
    if asked:
        text += f", {len(asked)} running {would}asked to stop"

    def say() -> None:
        if terms.as_json:
            groups = {"cancelled": cancelled, "asked": asked, "gone": done.gone}
            output.print_json({"dry_run": dry, "interrupted": interrupted, **_records(groups)})
        else:
            named = _named([*cancelled, *asked]) if dry else ""
            click.echo(f"{'Interrupted: ' if interrupted else ''}{text}{named}.")

    surely(say, f"{text}{_named(cancelled)}.")
    if done.gone and not terms.as_json:
        click.echo(f"Not cancelled, ended or deleted before{_named(done.gone)}.", err=True)


def _named(handles: Sequence[JobHandle[Any]]) -> str:
    return f": {names([f'#{handle.number}' for handle in handles])}" if handles else ""


def _records(groups: dict[str, list[JobHandle[Any]]]) -> dict[str, object]:
    return {name: [{"id": job.id, "number": job.number} for job in group] for name, group in groups.items()}
