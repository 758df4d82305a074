"""Acting on jobs that are there, one by one: cancel, retry and rerun. With a filter, `many.py` does it."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from shigoto.cli import output
from shigoto.cli.arguments import Meant, actor, audited, pick, split_jobs, split_meant
from shigoto.cli.consent import agreed, expect_consent, names, surely
from shigoto.cli.many import FORCED, Terms, cancel_matching, redrive_matching, takes_care
from shigoto.cli.target import suggest, takes_target, target_of
from shigoto.handle import JobHandle, found
from shigoto.model.errors import ShigotoError, StoreError
from shigoto.model.job import Job, State
from shigoto.server.audit import rerunning

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine


class Answer(Struct, frozen=True, kw_only=True):
    """What became of one of the jobs that were named; `code` is that of the error, if it was one.

    Other commands name other things than jobs.
    """

    word: str
    text: str
    code: str | None = None
    fields: dict[str, object] = {}
    noun: str = "job"

    def record(self) -> dict[str, object]:
        """For programs."""
        error = {"error": {"code": self.code, "message": self.text}} if self.code else {}
        return {self.noun: self.word, **self.fields, **error}


@click.command()
@click.argument(
    "words", nargs=-1, metavar="[STORE] JOB... | FILTER...", shell_complete=suggest("store_then_filters")
)
@click.option("--force", is_flag=True, help="Take running jobs from their workers at once.")
@takes_care
@takes_target
def cancel(ctx: click.Context, words: tuple[str, ...], *, force: bool, **options: Any) -> int:
    """Cancel jobs.

    A JOB is a number, such as 42, or an id. One that waits is cancelled at once. One that runs is asked to
    stop, and is cancelled when it has; if it completes first, it is completed.

    With a FILTER, such as queue:mail since:1h, all jobs that match and have not ended are cancelled; the word
    all means every one of them. It asks first; where there is no terminal to ask on it needs --yes.

    With --force a running job counts as cancelled at once, and whatever its worker still reports of it is
    refused. What it was to do may have happened all the same, and its code may run on for a while. So it asks
    first, for single jobs too; where there is no terminal to ask on it needs --yes.

    The exit code is 1 if any of the jobs that were named could not be cancelled.
    """
    meant, terms = _meant(ctx, words, options)
    if force and terms is None:
        expect_consent(ctx, given=options["yes"])
    with closing(target_of(ctx).existing_store(meant.store)) as engine:
        if terms is not None:
            return cancel_matching(ctx, engine, terms, force=force)
        if force and not options["yes"] and not _agreed_to_force(engine, meant.jobs):
            return 1
        return _each(
            engine,
            meant.jobs,
            lambda word, job: _cancel(engine, word, job, force=force),
            as_json=options["as_json"],
        )


def _meant(ctx: click.Context, words: tuple[str, ...], options: dict[str, Any]) -> tuple[Meant, Terms | None]:
    """Jobs one by one, or all that match; what makes sense for many only is refused for one."""
    meant = split_meant(ctx, words)
    if meant.terms:
        terms = Terms.of(ctx, meant.terms, options)
        terms.expect_consent(ctx)
        return meant, terms
    for name in ("dry_run", "limit"):
        if options[name]:
            flag = name.replace("_", "-")
            raise click.UsageError(f"--{flag} goes with a filter, not with the numbers of jobs.", ctx)
    return meant, None


def _agreed_to_force(engine: "Engine", words: Sequence[str]) -> bool:
    """Ask, if one of the jobs runs."""
    running = [word for word in words if _is_running(engine, word)]
    return not running or agreed(f"{FORCED}\nCancel {names(running)} by force?")


def _is_running(engine: "Engine", word: str) -> bool:
    try:
        return pick(engine, word).state is State.PROCESSING
    except ShigotoError:  # said when its turn comes
        return False


def _cancel(engine: "Engine", word: str, job: Job, *, force: bool) -> Answer:
    state = _handle(audited(engine), job).cancel(force=force)
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
    return Answer(
        word=word, text=f"{name} {text}", code="CLI.NOT_CANCELLED" if refused else None, fields=fields
    )


@click.command()
@click.argument(
    "words", nargs=-1, metavar="[STORE] JOB... | FILTER...", shell_complete=suggest("store_then_filters")
)
@takes_care
@takes_target
def retry(ctx: click.Context, words: tuple[str, ...], **options: Any) -> int:
    """Make failed or cancelled jobs ready again, with all their retries.

    A JOB is a number, such as 42, or an id. The exit code is 1 if any of the jobs could not be retried. For
    completed jobs there is rerun.

    With a FILTER, such as failed task:send since:1h, it is the same as redrive.
    """
    meant, terms = _meant(ctx, words, options)
    with closing(target_of(ctx).existing_store(meant.store)) as engine:
        if terms is not None:
            return redrive_matching(ctx, engine, terms)
        return _each(
            engine, meant.jobs, lambda word, job: _retry(engine, word, job), as_json=options["as_json"]
        )


def _retry(engine: "Engine", word: str, job: Job) -> Answer:
    _handle(audited(engine), job).retry()
    return Answer(
        word=word,
        text=f"#{job.number} ({job.task}) is ready again.",
        fields=_fields(job, state=State.PENDING),
    )


@click.command()
@click.argument("words", nargs=-1, metavar="[STORE] JOB...", shell_complete=suggest("files"))
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


def _rerun(engine: "Engine", word: str, job: Job) -> Answer:
    new = engine.run(rerunning(engine, job.id, actor=actor()))
    text = f"#{job.number} ({job.task}) runs again as #{new.number} ({new.id})."
    return Answer(
        word=word, text=text, fields=_fields(job, state=job.state, rerun={"id": new.id, "number": new.number})
    )


def _each(engine: "Engine", words: Sequence[str], act: Callable[[str, Job], Answer], *, as_json: bool) -> int:
    """Act on one job after the other and tell of each; a store that fails ends it, since it would fail again."""
    told: list[Answer] = []
    for word in words:
        try:
            told.append(act(word, pick(engine, word)))
        except ShigotoError as error:
            told.append(Answer(word=word, text=str(error), code=error.code))
            if isinstance(error, StoreError):
                break
    tell(told, as_json=as_json)
    return 1 if len(told) < len(words) or any(one.code for one in told) else 0


def tell(told: Sequence[Answer], *, as_json: bool) -> None:
    """Say what was done."""

    def say() -> None:
        if as_json:
            output.print_json([one.record() for one in told])
            return
        for one in told:
            click.echo(f"Error [{one.code}]: {one.text}" if one.code else one.text, err=one.code is not None)

    surely(say, " ".join(one.text for one in told if not one.code))


def _handle(engine: "Engine", job: Job) -> JobHandle[Any]:
    return found(engine, job, job_id=job.id, decode=None)


def _fields(job: Job, **more: object) -> dict[str, object]:
    return {"id": job.id, "number": job.number, **more}
