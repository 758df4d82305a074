"""The commands that act on all jobs that match a filter: redrive, clear, and cancel and retry if they are given one.

They ask before they act; where there is no terminal to ask on, they need --yes. Only completed jobs are deleted
without a question. Ctrl-C ends them after the batch in hand.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec import structs

from shigoto import bulk
from shigoto.cli import INTERRUPTED, confirm, output
from shigoto.cli.arguments import audited, misuse, read_filter, split_filter, takes_filter, tell_unsearched
from shigoto.cli.confirm import expect_confirmation
from shigoto.cli.target import answers, takes, takes_target, takes_words, target_of
from shigoto.filters import Filters
from shigoto.handle import JobHandle
from shigoto.model.job import TERMINAL, JobFilter, State
from shigoto.model.states import DELETABLE

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

CARE = ("dry_run", "yes", "as_json")
FORCED = (
    "By force a running job counts as cancelled at once, and whatever its worker still reports of it is refused."
    " What it was to do may have happened all the same, and its code may run on for a while."
)

NEVER = "Jobs that are pending have not run, and once deleted they never will."


class BulkRequest(NamedTuple):
    """A request to act on many jobs: which they are, and how careful to be."""

    filters: Filters
    dry_run: bool
    yes: bool
    as_json: bool

    @classmethod
    def of(cls, ctx: click.Context, terms: Sequence[str], options: dict[str, Any]) -> "BulkRequest":
        """What the words and the flags of a command say. Raises a usage error."""
        flags = {name: value for name, value in options.items() if name not in CARE}
        return cls(read_filter(ctx, terms, flags), **{name: options[name] for name in CARE})

    def expect_confirmation(self, ctx: click.Context) -> None:
        """Raise a usage error if nobody has agreed and nobody can be asked; before the store is opened."""
        expect_confirmation(ctx, given=self.yes or self.dry_run, hint=", or --dry-run to look first")


takes_care = takes(
    click.option("--limit", type=click.IntRange(1), help="At most so many, the newest.  [default: all]"),
    click.option("--dry-run", is_flag=True, help="Only tell which they are."),
    click.option("--yes", is_flag=True, help="Do not ask."),
    click.option("--json", "as_json", is_flag=True, help="For programs."),
)


@click.command()
@takes_words("[STORE] [FILTER...]", "store_then_filters")
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
    request = BulkRequest.of(ctx, terms, options)
    request.expect_confirmation(ctx)
    with closing(target_of(ctx).existing_store(store)) as engine:
        return redrive_matching(ctx, engine, request)


def redrive_matching(ctx: click.Context, engine: "Engine", request: BulkRequest) -> int:
    """Retry all that match, after a question; the exit code."""
    state = str(request.filters.get("state") or "failed")
    with misuse(ctx):
        plan = bulk.choose_plan(engine, request.filters, decoder=lambda _: None)
    tell_unsearched(engine, request.filters)
    chosen = bulk.carry_out(engine, plan)
    whole = len(chosen.jobs) + len(chosen.rivals)
    if request.dry_run:
        _tell_dry_redrive(chosen, confirm.counted(len(chosen.jobs), state), as_json=request.as_json)
        return 0
    if (
        whole
        and not request.yes
        and not confirm.confirmed(f"Retry {confirm.counted(len(chosen.jobs), state)}?")
    ):
        return 1
    with confirm.ProgressBar(whole, batch=bulk.PAGE) as bar:
        redriven = bulk.carry_out(
            engine, bulk.retry_plan(audited(engine, request.filters), chosen, after_batch=bar.after_batch)
        )
    _tell_redriven(redriven, confirm.counted(whole, state), request, interrupted=bar.interrupted)
    return INTERRUPTED if bar.interrupted else 0


def _tell_dry_redrive(chosen: bulk.Chosen, count: str, *, as_json: bool) -> None:
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


def _tell_redriven(redriven: bulk.Redriven, count: str, request: BulkRequest, *, interrupted: bool) -> None:
    done = f"{'Interrupted: ' if interrupted else ''}{len(redriven.retried)} of {count} retried"
    groups = {name: getattr(redriven, name) for name in ("retried", "quarantined", "key_taken", "gone")}
    record = {"dry_run": False, "interrupted": interrupted, **_records(groups, wanted=request.as_json)}
    confirm.print_result(
        record, f"{done}.", as_json=request.as_json, done=f"{done}{_named(redriven.retried)}."
    )
    if not request.as_json:
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


def cancel_matching(ctx: click.Context, engine: "Engine", request: BulkRequest, *, force: bool) -> int:
    """Cancel all that match, after a question; the exit code."""
    with misuse(ctx):
        plan = bulk.choose_live_plan(engine, request.filters, decoder=lambda _: None)
    tell_unsearched(engine, request.filters)
    chosen = bulk.carry_out(engine, plan)
    whole = len(chosen.cancelled) + len(chosen.asked)
    if request.dry_run:
        _tell_cancelled(chosen, request, whole, force=force)
        return 0
    if whole and not request.yes and not confirm.confirmed(_cancel_question(chosen, force=force)):
        return 1
    with confirm.ProgressBar(whole, batch=bulk.PAGE) as bar:
        done = bulk.carry_out(
            engine,
            bulk.cancel_plan(
                audited(engine, request.filters), chosen, force=force, after_batch=bar.after_batch
            ),
        )
    _tell_cancelled(done, request, whole, force=force, interrupted=bar.interrupted)
    return INTERRUPTED if bar.interrupted else 0


def _cancel_question(chosen: bulk.Cancelled, *, force: bool) -> str:
    waiting, running = len(chosen.cancelled), len(chosen.asked)
    if not running:
        return f"Cancel {confirm.jobs(waiting)}?"
    if force:
        return f"{FORCED}\nCancel {confirm.jobs(waiting + running)}, {running} of them by force?"
    if not waiting:
        return f"Ask {confirm.counted(running, 'running')} to stop?"
    return f"Cancel {confirm.jobs(waiting)}, and ask {running} running to stop?"


def _tell_cancelled(
    done: bulk.Cancelled, request: BulkRequest, whole: int, *, force: bool, interrupted: bool = False
) -> None:
    dry = request.dry_run
    cancelled, asked = done.cancelled, done.asked
    if dry and force:
        cancelled, asked = [*cancelled, *asked], []
    would = "would be " if dry else ""
    text = f"{len(cancelled)} of {confirm.jobs(whole)} {would}cancelled"
    if asked:
        text += f", {len(asked)} running {would}asked to stop"
    groups = {"cancelled": cancelled, "asked": asked, "gone": done.gone}
    record = {"dry_run": dry, "interrupted": interrupted, **_records(groups, wanted=request.as_json)}
    told = f"{'Interrupted: ' if interrupted else ''}{text}{_named([*cancelled, *asked]) if dry else ''}."
    confirm.print_result(record, told, as_json=request.as_json, done=f"{text}{_named(cancelled)}.")
    if done.gone and not request.as_json:
        click.echo(f"Not cancelled, ended or deleted before{_named(done.gone)}.", err=True)


def _named(handles: Sequence[JobHandle[Any]]) -> str:
    return f": {confirm.names([f'#{handle.number}' for handle in handles])}" if handles else ""


def _records(groups: dict[str, list[JobHandle[Any]]], *, wanted: bool = True) -> dict[str, object]:
    """The jobs of each group for programs; nothing if they are not wanted, for there may be a million."""
    return (
        {}
        if not wanted
        else {name: [{"id": job.id, "number": job.number} for job in group] for name, group in groups.items()}
    )


@click.command()
@takes_words("[STORE] STATE [FILTER...]", "store_then_filters")
@takes_filter
@click.option("--limit", type=click.IntRange(1), help="At most so many, the oldest.  [default: all]")
@click.option("--dry-run", is_flag=True, help="Only tell how many they are.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@answers
def clear(ctx: click.Context, words: tuple[str, ...], **options: Any) -> int:
    """Delete the jobs of a state, with all that is known of them.

    A STATE is completed, failed, cancelled or pending, or all of these. Jobs that run are never deleted. A
    FILTER is made of words such as queue:mail task:send since:2h args.store:7, and all must match.

    Completed jobs are deleted without a question. For all others it asks first, and where there is no terminal
    to ask on it needs --yes: with failed and cancelled jobs goes the only record of what went wrong, and
    pending ones have not run and then never will. Ctrl-C ends it after the batch in hand.
    """
    store, terms = split_filter(words)
    request = BulkRequest.of(ctx, terms, options)
    if not any(name in request.filters for name in ("state", "failure_kind")):
        raise click.UsageError(f"Which jobs? Name a state: {', '.join(DELETABLE)}, or all of these.", ctx)
    with misuse(ctx):
        page, most = bulk.page_to_clear(request.filters)
    if page.state is not State.COMPLETED:
        request.expect_confirmation(ctx)
    with closing(target_of(ctx).existing_store(store)) as engine:
        tell_unsearched(engine, request.filters)
        if request.dry_run:
            _tell_dry_run(engine, page, most, as_json=request.as_json)
            return 0
        asks = output.can_ask() and not request.yes and page.state is not State.COMPLETED
        found = _count(engine, page) if asks or output.can_redraw(sys.stderr) else {}
        noting = audited(engine, request.filters)
        clear_all = partial(bulk.clear_plan, noting, request.filters, dry_run=False)
        if not asks or not any(found.values()):
            return _clear(engine, request, page, sum(found.values()), clear_all, warned=False)
        # What is stored, ends or fails while the question stands was not asked about.
        chosen = bulk.carry_out(engine, bulk.choose_deletable_plan(engine, page, most))
        warning = "" if page.state in TERMINAL else f"{NEVER}\n"
        if not confirm.confirmed(f"{warning}Delete {_amount(found, most)}?"):
            return 1
        return _clear(
            engine, request, page, len(chosen), partial(bulk.delete_plan, noting, chosen, page), warned=True
        )


def _clear(
    engine: "Engine",
    request: BulkRequest,
    page: JobFilter,
    whole: int,
    plan: Callable[..., bulk.BulkPlan[int]],
    *,
    warned: bool,
) -> int:
    with confirm.ProgressBar(min(whole, request.filters.get("limit") or whole), batch=bulk.BATCH) as bar:
        deleted = bulk.carry_out(engine, plan(after_batch=bar.after_batch))
    text = f"{'Interrupted: ' if bar.interrupted else ''}{confirm.counted(deleted, str(page.state or ''))} deleted."
    record = {"dry_run": False, "interrupted": bar.interrupted, "deleted": deleted}
    confirm.print_result(record, text, as_json=request.as_json)
    if deleted and page.state not in TERMINAL and not request.as_json and not warned:
        click.echo(f"Warning: {NEVER}", err=True)
    return INTERRUPTED if bar.interrupted else 0


def _count(engine: "Engine", page: JobFilter) -> dict[str, int]:
    states = DELETABLE if page.state is None else (page.state,)
    return {str(state): engine.run(engine.count(structs.replace(page, state=state))) for state in states}


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
    click.echo(f"{text[0].upper()}{text[1:]}{f', the newest: {confirm.names(newest)}' if newest else ''}.")


def _newest(engine: "Engine", page: JobFilter) -> list[str]:
    """The numbers of the newest that match, as a list would show them."""
    states = DELETABLE if page.state is None else (page.state,)
    found = [
        job.number
        for state in states
        for job in engine.run(engine.find(structs.replace(page, state=state, limit=confirm.SHOWN)))
    ]
    return [f"#{number}" for number in sorted(found, reverse=True)[: confirm.SHOWN]]
