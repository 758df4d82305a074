"""Acting on jobs that are there: cancel, retry, rerun, and redrive for many at once."""

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import click
from msgspec import Struct

from shigoto.cli import output
from shigoto.cli.pick import pick, split_jobs
from shigoto.cli.target import takes_target, target_of
from shigoto.handle import JobHandle, found
from shigoto.model.errors import ShigotoError, StoreError
from shigoto.model.job import FailureKind, Job, State

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine
    from shigoto.query import Filters
    from shigoto.redrive import Chosen, Redriven

SHOWN = 10  # jobs named in a line of a report
FORCED = (
    "By force a running job counts as cancelled at once, and whatever its worker still reports of it is refused."
    " What it was to do may have happened all the same, and its code may run on for a while."
)


class Told(Struct, frozen=True, kw_only=True):
    """What became of one of the jobs that were named; `code` is that of the error, if it was one."""

    word: str
    text: str
    code: str | None = None
    fields: dict[str, object] = {}

    def record(self) -> dict[str, object]:
        """For programs."""
        error = {"error": {"code": self.code, "message": self.text}} if self.code else {}
        return {"job": self.word, **self.fields, **error}


@click.command()
@click.argument("words", nargs=-1, metavar="[STORE] JOB...")
@click.option("--force", is_flag=True, help="Take running jobs from their workers at once.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def cancel(ctx: click.Context, words: tuple[str, ...], *, force: bool, yes: bool, as_json: bool) -> int:
    """Cancel jobs.

    A JOB is a number, such as 42, or an id. One that waits is cancelled at once. One that runs is asked to
    stop, and is cancelled when it has; if it completes first, it is completed.

    With --force a running job counts as cancelled at once, and whatever its worker still reports of it is
    refused. What it was to do may have happened all the same, and its code may run on for a while.

    The exit code is 1 if any of the jobs could not be cancelled.
    """
    store, jobs = split_jobs(ctx, words)
    with closing(target_of(ctx).existing_store(store)) as engine:
        if force and not yes and not _agreed_to_force(engine, jobs):
            return 1
        return _each(engine, jobs, lambda word, job: _cancel(engine, word, job, force=force), as_json=as_json)


def _agreed_to_force(engine: "Engine", words: Sequence[str]) -> bool:
    """Ask, if there is somebody to ask and a job that runs."""
    if not output.can_ask():
        return True
    running = [word for word in words if _is_running(engine, word)]
    return not running or _agreed(f"{FORCED}\nCancel {_names(running)} by force?")


def _is_running(engine: "Engine", word: str) -> bool:
    try:
        return pick(engine, word).state is State.PROCESSING
    except ShigotoError:  # said when its turn comes
        return False


def _cancel(engine: "Engine", word: str, job: Job, *, force: bool) -> Told:
    state = _handle(engine, job).cancel(force=force)
    name = f"#{job.number} ({job.task})"
    match state:
        case State.CANCELLED if job.state.terminal:
            text = "was cancelled before."
        case State.CANCELLED if job.state is State.PROCESSING:
            text = "is cancelled by force; what it was to do may have happened."
        case State.CANCELLED:
            text = "is cancelled."
        case State.PROCESSING:
            text = "is running and was asked to stop."
        case _:
            text = f"is {state} and cannot be cancelled."
    fields = _fields(job, state=state)
    refused = state not in (State.CANCELLED, State.PROCESSING)
    return Told(
        word=word, text=f"{name} {text}", code="CLI.NOT_CANCELLED" if refused else None, fields=fields
    )


@click.command()
@click.argument("words", nargs=-1, metavar="[STORE] JOB...")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def retry(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> int:
    """Make failed or cancelled jobs ready again, with all their retries.

    A JOB is a number, such as 42, or an id. The exit code is 1 if any of the jobs could not be retried. For
    all jobs of a task, a queue or a kind of failure there is redrive; for completed jobs there is rerun.
    """
    store, jobs = split_jobs(ctx, words)
    with closing(target_of(ctx).existing_store(store)) as engine:
        return _each(engine, jobs, lambda word, job: _retry(engine, word, job), as_json=as_json)


def _retry(engine: "Engine", word: str, job: Job) -> Told:
    _handle(engine, job).retry()
    return Told(
        word=word,
        text=f"#{job.number} ({job.task}) is ready again.",
        fields=_fields(job, state=State.PENDING),
    )


@click.command()
@click.argument("words", nargs=-1, metavar="[STORE] JOB...")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def rerun(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> int:
    """Make new jobs like ones that have ended, to run now.

    A JOB is a number, such as 42, or an id. The new one has the same task, arguments and options, but no
    unique key and no expiry. The exit code is 1 if any of the jobs could not be rerun.
    """
    store, jobs = split_jobs(ctx, words)
    with closing(target_of(ctx).existing_store(store)) as engine:
        return _each(engine, jobs, lambda word, job: _rerun(engine, word, job), as_json=as_json)


def _rerun(engine: "Engine", word: str, job: Job) -> Told:
    new = _handle(engine, job).rerun()
    text = f"#{job.number} ({job.task}) runs again as #{new.number} ({new.id})."
    return Told(
        word=word, text=text, fields=_fields(job, state=job.state, rerun={"id": new.id, "number": new.number})
    )


def _each(engine: "Engine", words: Sequence[str], act: Callable[[str, Job], Told], *, as_json: bool) -> int:
    """Act on one job after the other and tell of each; a store that fails ends it, since it would fail again."""
    told: list[Told] = []
    for word in words:
        try:
            told.append(act(word, pick(engine, word)))
        except ShigotoError as error:
            told.append(Told(word=word, text=str(error), code=error.code))
            if isinstance(error, StoreError):
                break
    tell(told, as_json=as_json)
    return 1 if len(told) < len(words) or any(one.code for one in told) else 0


def tell(told: Sequence[Told], *, as_json: bool) -> None:
    """Say what was done."""

    def say() -> None:
        if as_json:
            output.print_json([one.record() for one in told])
            return
        for one in told:
            click.echo(f"Error [{one.code}]: {one.text}" if one.code else one.text, err=one.code is not None)

    _surely(say, " ".join(one.text for one in told if not one.code))


def _surely(say: Callable[[], None], done: str) -> None:
    """Say it. If that cannot be written, what was done goes to the other stream: doing it again would be wrong."""
    try:
        say()
    except OSError as error:
        output.discard_output()
        click.echo(f"Warning: standard output cannot be written: {error.strerror}. {done}", err=True)


@click.command()
@click.argument("store", required=False)
@click.option("--state", type=click.Choice(["failed", "cancelled"]), default="failed", show_default=True)
@click.option("--queue", help="Only of this queue.")
@click.option("--task", help="Only of this task.")
@click.option("--tag", help="Only with this tag.")
@click.option("--key", help="Only with this unique key.")
@click.option("--tenant", help="Only of this tenant.")
@click.option(
    "--kind",
    "failure_kind",
    metavar="KIND",
    type=click.Choice([str(kind) for kind in FailureKind]),
    help="Only with this kind of failure, such as timeout or crash_loop.",
)
@click.option("--limit", type=click.IntRange(1), help="At most so many, the newest.  [default: all]")
@click.option("--dry-run", is_flag=True, help="Only tell which they are.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def redrive(
    ctx: click.Context, store: str | None, *, dry_run: bool, yes: bool, as_json: bool, **filters: Any
) -> int:
    """Retry all failed jobs that match, oldest first.

    Jobs in quarantine (--kind crash_loop) are left alone unless they are asked for. Jobs whose unique key
    belongs to another one by now are passed over, and told; of several with one key the newest is retried.
    Without a terminal to ask on it needs --yes.
    """
    from shigoto.redrive import carry_out, choosing, retrying

    if not (yes or dry_run or output.can_ask()):
        raise click.UsageError("There is no terminal to ask on: add --yes, or --dry-run to look first.", ctx)
    given = cast("Filters", {name: value for name, value in filters.items() if value is not None})
    with closing(target_of(ctx).existing_store(store)) as engine:
        chosen = carry_out(engine, choosing(engine, given, decoder=lambda _: None))
        whole = len(chosen.jobs) + len(chosen.rivals)
        if dry_run:
            _tell_dry_run(chosen, _counted(len(chosen.jobs), filters["state"]), as_json=as_json)
            return 0
        if whole and not yes and not _agreed(f"Retry {_counted(len(chosen.jobs), filters['state'])}?"):
            return 1
        redriven = carry_out(engine, retrying(engine, chosen, watch=_progress(whole)))
    _tell_redriven(redriven, _counted(whole, filters["state"]), as_json=as_json)
    return 0


def _counted(count: int, state: str) -> str:
    return f"{count} {state} job{'' if count == 1 else 's'}"


def _progress(whole: int) -> Callable[[int], None]:
    """A line that is drawn over itself, where somebody watches and there is something to watch."""
    from shigoto.redrive import PAGE

    if whole <= PAGE or not output.can_redraw(sys.stderr):
        return lambda done: None

    def draw(done: int) -> None:
        end = "\r\x1b[K" if done == whole else ""
        click.echo(f"\r{output.bar(done / whole)} {done} of {whole}{end}", nl=False, err=True)

    return draw


def _tell_dry_run(chosen: "Chosen", count: str, *, as_json: bool) -> None:
    if as_json:
        groups = {
            "retried": chosen.jobs[::-1],
            "quarantined": chosen.quarantined,
            "key_taken": chosen.rivals[::-1],
        }
        output.print_json({"dry_run": True, **_records(groups)})
        return
    named = f": {_names([f'#{job.number}' for job in chosen.jobs[::-1]])}" if chosen.jobs else ""
    click.echo(f"{count} would be retried{named}.")
    _tell_left(chosen.rivals[::-1], "a newer one has the same unique key")
    _tell_quarantined(chosen.quarantined)


def _tell_redriven(redriven: "Redriven", count: str, *, as_json: bool) -> None:
    done = f"{len(redriven.retried)} of {count} retried"

    def say() -> None:
        if as_json:
            groups = {
                name: getattr(redriven, name) for name in ("retried", "quarantined", "key_taken", "gone")
            }
            output.print_json({"dry_run": False, **_records(groups)})
        else:
            click.echo(f"{done}.")

    named = f": {_names([f'#{job.number}' for job in redriven.retried])}" if redriven.retried else ""
    _surely(say, f"{done}{named}.")
    if not as_json:
        _tell_left(redriven.key_taken, "another job holds the unique key")
        _tell_left(redriven.gone, "retried or deleted by somebody else meanwhile")
        _tell_quarantined(redriven.quarantined)


def _tell_left(jobs: Sequence[JobHandle[Any]], why: str) -> None:
    if jobs:
        click.echo(f"Not retried, {why}: {_names([f'#{job.number}' for job in jobs])}.", err=True)


def _tell_quarantined(jobs: Sequence[JobHandle[Any]]) -> None:
    if jobs:
        click.echo(
            f"Left alone, in quarantine: {_names([f'#{job.number}' for job in jobs])}."
            " With --kind crash_loop they are retried.",
            err=True,
        )


def _records(groups: dict[str, list[JobHandle[Any]]]) -> dict[str, object]:
    return {name: [{"id": job.id, "number": job.number} for job in jobs] for name, jobs in groups.items()}


def _agreed(question: str) -> bool:
    agreed = click.confirm(question, err=True)
    if not agreed:
        click.echo("Nothing was changed.", err=True)
    return agreed


def _names(words: Sequence[str]) -> str:
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + more


def _handle(engine: "Engine", job: Job) -> JobHandle[Any]:
    return found(engine, job, job_id=job.id, decode=None)


def _fields(job: Job, **more: object) -> dict[str, object]:
    return {"id": job.id, "number": job.number, **more}
