"""The commands on jobs and workers: enqueue, stats, list, workers, cancel, retry and rerun.

stats, list and workers only look: they change no store, and create none. cancel and retry act on the jobs that are
named, one by one; with a filter, `bulk.py` does it.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click
from msgspec import Struct
from msgspec.structs import asdict

from shigoto.cli import arguments, output
from shigoto.cli.bulk import FORCED, BulkRequest, cancel_matching, redrive_matching, takes_care
from shigoto.cli.confirm import confirmed, expect_confirmation, names, print_or_warn
from shigoto.cli.output import Column, Columns
from shigoto.cli.target import (
    answers,
    is_there,
    shared,
    split_store,
    suggest,
    takes_target,
    takes_words,
    target_of,
)
from shigoto.cli.watch import EndRates, Watching, json_line, takes_watch, watch
from shigoto.filters import MAX_PAGE, Filters, wanted
from shigoto.handle import JobHandle, found
from shigoto.model.errors import ShigotoError, StoreError, UnknownTask, nearest
from shigoto.model.job import KEY_MODES, Counts, Job, State
from shigoto.model.worker import WorkerRecord
from shigoto.server.audit import rerun_op

if TYPE_CHECKING:
    from shigoto.app import Shigoto
    from shigoto.engine.protocol import Engine
    from shigoto.enqueue import Call
    from shigoto.options import CallOptions

WHOLE = re.compile(r"-?\d{1,9}")
ROWS = 20
# What a narrow terminal can do without, the highest first.
SPARE = {"cancelled": 6, "scheduled": 5, "blocked": 4, "completed": 3, "processing": 2, "failed": 1}


@click.command(cls=arguments.WithNumbers)
@takes_words("[STORE] TASK [MESSAGE | JSON] [PRIORITY]", "store_then_task")
@click.option(
    "--arg", "given", multiple=True, metavar="NAME=VALUE",
    help="An argument: a text where the task takes a str; else JSON, or a text if it is none.",
)  # fmt: skip
@click.option("--queue", shell_complete=suggest("queues"), help="Another queue than the task's own.")
@click.option("--priority", type=int, help="Larger runs first.")
@click.option(
    "--delay",
    metavar="DURATION",
    callback=arguments.read_length,
    help="Run it so much later: 90, 5m, 2h, 1d, 2w.",
)
@click.option(
    "--run-at", metavar="TIME", callback=arguments.read_moment, help="Run it then: 2030-01-31T09:00:00Z."
)
@click.option(
    "--expires", metavar="DURATION", callback=arguments.read_length, help="Fail it if not started by then."
)
@click.option("--key", help="Only one job with this key may be waiting or running.")
@click.option("--key-mode", type=click.Choice(KEY_MODES), help="What to do if there is one.")
@click.option("--retries", type=int, help="Another number of retries.")
@click.option("--tag", "tags", multiple=True, help="To find it by; may be given again.")
@click.option("--tenant", help="On whose behalf.")
@click.option("--allow-unknown", is_flag=True, help="Accept a task that nobody knows yet.")
@answers
def enqueue(
    ctx: click.Context,
    words: tuple[str, ...],
    *,
    given: tuple[str, ...],
    allow_unknown: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Store a job.

    The arguments are one JSON object or several --arg. Without --app, the built-in tasks user_created,
    data_analysis, email_notification and data_export also take a MESSAGE: any text that is no JSON object.
    The exit code is 0 once the job is stored, even if that cannot be printed.
    """
    from shigoto.enqueue import call_by_name

    target = target_of(ctx)
    app = target.load()
    store, rest = split_store(words, known=app.tasks)
    target.aim(app, store)
    said = read_words(ctx, rest)
    if said.priority is not None:
        if options["priority"] is not None:
            raise click.UsageError("The priority is given twice, as a word and as --priority.", ctx)
        options["priority"] = said.priority
    chosen = cast("CallOptions", {name: value for name, value in options.items() if value not in (None, ())})
    with closing(app):
        shared(app.engine)
        if not allow_unknown:
            expect_known(app, said.task)
        known = app.resolve(said.task)
        payload = said.payload(takes_message=target.app is None and known is not None)
        signature = None if known is None else known.signature
        payload |= arguments.read_arguments(given, beside=payload, signature=signature)
        with arguments.hinting_at_texts(given, payload, signature):
            handle = _stored(app, call_by_name(app, said.task, payload, chosen))

    report(handle, as_json=as_json)


def _stored(app: "Shigoto", call: "Call[Any]") -> "JobHandle[Any]":
    """Store a job, if its queue has room. Raises QueueFull."""
    from shigoto.handle import JobHandle
    from shigoto.model.ids import uuid7
    from shigoto.observe import tracing
    from shigoto.queues import store_within_limits

    engine = app.engine
    with tracing.storing(app.tracing, [call.spec(uuid7())]) as specs:
        [made] = engine.run(store_within_limits(engine, specs))
    return JobHandle(engine, made.id, made.number, made.status, None)


def report(handle: "JobHandle[Any]", *, as_json: bool) -> None:
    """Say what was stored. If that cannot be written it is no error any more: the job is there."""
    line = f"#{handle.number} ({handle.id}) {handle.enqueued}"
    try:
        if as_json:
            output.print_json({"id": handle.id, "number": handle.number, "status": handle.enqueued})
        else:
            click.echo(line)
    except OSError as error:
        output.discard_output()
        click.echo(
            f"Warning: {line}, but standard output cannot be written: {error.strerror}."
            " Do not enqueue it again.",
            err=True,
        )


class TaskWords(NamedTuple):
    """What is said by position: the task, its arguments as one text, and the priority."""

    task: str
    text: str | None
    priority: int | None

    def payload(self, *, takes_message: bool) -> dict[str, Any]:
        """The arguments in the text. Raises PayloadInvalid."""
        if self.text is None:
            return {}
        if takes_message and not arguments.is_object(self.text):
            return {"message": self.text}
        return arguments.read_object(self.text)


def read_words(ctx: click.Context, words: list[str]) -> TaskWords:
    """The words after the store. Raises a usage error."""
    if not words:
        raise click.UsageError("Which task? Write its name first.", ctx)
    if len(words) > 3:
        raise click.UsageError(f"{words[3]!r} is one word too many; put a text with blanks in quotes.", ctx)
    number = words[2] if len(words) > 2 else None
    if number is not None and not WHOLE.fullmatch(number):
        raise click.UsageError(
            f"The priority must be a whole number, not {number!r}; put a text with blanks in quotes.", ctx
        )
    return TaskWords(words[0], words[1] if len(words) > 1 else None, None if number is None else int(number))


def expect_known(app: "Shigoto", task: str) -> None:
    """Raise UnknownTask if neither the app nor any live worker has the task. Creates no store."""
    if app.resolve(task) is not None:
        return
    engine = app.engine
    workers = engine.run(engine.workers()) if is_there(engine) else []
    known = {name for worker in workers for name in worker.tasks} | set(app.tasks)
    if task not in known:
        hint = nearest(task, known) or f" Known are: {', '.join(sorted(known)[:20]) or 'none'}."
        raise UnknownTask(
            f"No task is called {task!r}, neither in the app nor by any live worker.{hint}"
            " With --allow-unknown the job waits for a worker that knows it."
        )


@click.command(cls=Watching)
@click.argument("store", required=False, shell_complete=suggest("files"))
@takes_watch
@answers
def stats(ctx: click.Context, store: str | None, *, watch: float | None, as_json: bool) -> None:
    """Count the jobs, by queue and state.

    Scheduled jobs are those pending ones that are due later. With --watch, ended/s is how many jobs have
    ended per second since the last look.
    """
    with closing(target_of(ctx).existing_store(store)) as engine:
        if watch is not None:
            _watch_stats(engine, watch, as_json=as_json)
            return
        queues = _counts(engine)

    if as_json:
        output.print_json({"total": output.total(queues), "queues": queues})
    else:
        output.print_lines(stats_table(queues, output.width_of()))


def _counts(engine: "Engine") -> dict[str, Counts]:
    return dict(sorted(engine.run(engine.stats()).items()))


def _watch_stats(engine: "Engine", every: float, *, as_json: bool) -> None:
    rates = EndRates()

    def query() -> list[str]:
        queues = _counts(engine)
        ended = rates.since_last(queues)
        if as_json:
            told = {"total": output.total(queues), "queues": queues, "ended_per_second": ended}
            return [json_line(told)]
        return stats_table(queues, output.width_of(), ended)

    watch(query, every, as_json=as_json)


def stats_table(
    queues: dict[str, Counts], width: int | None, rates: dict[str, float | None] | None = None
) -> list[str]:
    """A line per queue and one for all; blocked jobs have a column only where there are some."""
    sums = output.total(queues)
    states = [state for state in asdict(sums) if state != "blocked" or sums.blocked]
    columns = [
        Column("queue", least=5),
        *(Column(state, right=True, spare=SPARE.get(state, 0)) for state in states),
    ]
    rows = [[name, *(str(asdict(counts)[state]) for state in states)] for name, counts in queues.items()]
    rows.append(["total", *(str(asdict(sums)[state]) for state in states)])
    if rates is not None:
        columns.append(Column("ended/s", right=True))
        known = [rate for rate in rates.values() if rate is not None]
        told = [*(rates[name] for name in queues), sum(known) if known else None]
        rows = [[*row, "-" if rate is None else f"{rate:.1f}"] for row, rate in zip(rows, told, strict=True)]
    return output.table(columns, rows, width)


@click.command("list", cls=Watching)
@takes_words("[STORE] [STATE] [FILTER...]", "store_then_filters")
@click.option("--limit", default=ROWS, show_default=True, type=click.IntRange(1, MAX_PAGE), help="How many.")
@arguments.takes_filter
@takes_watch
@click.option("--json", "as_json", is_flag=True, help="For programs: complete records in one array.")
@takes_target
def list_jobs(
    ctx: click.Context,
    words: tuple[str, ...],
    *,
    limit: int,
    watch: float | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Show the newest jobs that match; the pending ones, if neither a state nor a filter is given.

    States are pending, processing, completed, failed, cancelled and blocked; also waiting, running and
    succeeded; scheduled and retrying are parts of pending; all is every job.

    \b
    A FILTER is made of such words, and all must match:
      queue:mail  task:send  tag:vip  key:order-7  tenant:acme
      worker:web-1               runs there now; its name or its id
      kind:timeout               failed for this reason
      error:"connection refused" has this in its error
      since:2h                   stored since then; also 90s, 5m, 1d, 2w, 2030-01-31, 2030-01-31T09:00:00Z
      args.store:7               has this argument; args.user.name:Ada looks into it
    """
    store, terms = arguments.split_filter(words)
    filters = arguments.read_filter(ctx, terms, flags) or Filters(state=State.PENDING)
    filters["limit"] = limit
    with arguments.misuse(ctx):
        wanted(filters)
    with closing(target_of(ctx).existing_store(store)) as engine:
        if watch is not None:
            _watch_jobs(engine, filters, watch, as_json=as_json)
            return
        jobs = engine.run(engine.find(wanted(filters)))
        arguments.tell_unsearched(engine, filters)

    if as_json:
        output.print_json([output.record(job) for job in jobs])
        return
    width = output.width_of()
    output.print_lines(_jobs_lines(jobs, filters, width))
    if len(jobs) == limit and width is not None:
        click.echo(f"These are the newest {limit}; see more with --limit.", err=True)


def _watch_jobs(engine: "Engine", filters: Filters, every: float, *, as_json: bool) -> None:
    def query() -> list[str]:
        jobs = engine.run(engine.find(wanted(filters)))  # anew each time: `since:5m` moves along
        if as_json:
            return [json_line([output.record(job) for job in jobs])]
        return _jobs_lines(jobs, filters, output.width_of())

    watch(query, every, as_json=as_json)


def _jobs_lines(jobs: Sequence[Job], filters: Filters, width: int | None) -> list[str]:
    if jobs:
        return jobs_table(jobs, width, datetime.now(UTC))
    state = filters.get("state") or "all"
    others = [name for name in filters if name not in ("state", "limit")]
    return [f"There are no {'' if state == 'all' else f'{state} '}jobs{' that match' if others else ''}."]


def jobs_table(jobs: Sequence[Job], width: int | None, now: datetime) -> list[str]:
    """A line per job. On a terminal (one with a width) times are local and short, else ISO 8601 in UTC."""
    brief = width is not None
    columns: Columns[Job] = [
        (Column("job", right=True), lambda job: f"#{job.number}"),
        (Column("task", least=8), lambda job: job.task),
        (Column("queue", least=7, spare=5), lambda job: job.queue),
        (Column("state", paint=output.paint_state), lambda job: _state(job, now)),
        (Column("prio", right=True, spare=3), lambda job: str(job.priority)),
        (Column("retries", right=True, spare=2), _retries),
        (Column("created", spare=4), lambda job: output.instant(job.created_at, now, brief=brief)),
        (Column("payload or error", least=10, spare=1), output.preview),
    ]
    return output.table_of(jobs, columns, width)


def _retries(job: Job) -> str:
    return f"{min(job.failures, job.max_failures - 1)}/{job.max_failures - 1}"


def _state(job: Job, now: datetime) -> str:
    """The state, with how far a job is that runs, and when one is due that waits."""
    if job.state is State.PROCESSING and job.progress is not None:
        return f"{job.state} {job.progress:.0%}"
    if job.state is State.PENDING and job.run_at > now:
        return f"{job.state} in {output.span(job.run_at - now)}"
    return job.state


@click.command()
@click.argument("store", required=False, shell_complete=suggest("files"))
@answers
def workers(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Show the workers: where they are, what they take, and how long their lease lasts.

    A worker renews its lease every few seconds. One that is overdue may be gone; if it does not come back,
    the others take its jobs over. With "alone" it can run a job in a process of its own.
    """
    with closing(target_of(ctx).existing_store(store)) as engine:
        found = engine.run(engine.workers())

    if as_json:
        output.print_json(found)
    elif not found:
        click.echo("There are no workers.")
    else:
        output.print_lines(workers_table(found, output.width_of(), datetime.now(UTC)))


def workers_table(found: Sequence[WorkerRecord], width: int | None, now: datetime) -> list[str]:
    """A line per worker, in the order of their start."""
    brief = width is not None
    columns: Columns[WorkerRecord] = [
        (Column("worker", least=8), lambda each: output.one_line(each.name)),
        (Column("host", least=6, spare=5), lambda each: output.one_line(each.host) or "-"),
        (Column("pid", right=True, spare=3), lambda each: str(each.pid or "-")),
        (
            Column("queues", least=6, spare=4),
            lambda each: "all" if each.queues is None else ",".join(each.queues),
        ),
        (Column("slots", right=True, spare=6), lambda each: str(each.slots)),
        (Column("jobs", right=True), lambda each: str(each.processing)),
        (Column("since", spare=7), lambda each: output.instant(each.started_at, now, brief=brief)),
        (Column("lease", paint=_paint_lease), lambda each: _lease(each.lease_until - now)),
        (Column("alone", spare=8), lambda each: "yes" if each.isolates else "no"),
        (Column("state", spare=2), lambda each: "stopping" if each.stopping else "working"),
        (Column("version", spare=9), lambda each: output.one_line(each.version)),
    ]
    return output.table_of(found, columns, width)


def _lease(left: timedelta) -> str:
    return f"{output.span(left)} left" if left >= timedelta() else f"{output.span(-left)} overdue"


def _paint_lease(text: str) -> str:
    return click.style(text, fg="red") if text.endswith("overdue") else text


class ActionResult(Struct, frozen=True, kw_only=True):
    """What became of one of the jobs that were named; `code` is that of the error, if it was one.

    Other commands name other things than jobs.
    """

    word: str
    text: str
    code: str | None = None
    fields: dict[str, object] = {}
    noun: str = "job"

    def record(self) -> dict[str, object]:
        error = {"error": {"code": self.code, "message": self.text}} if self.code else {}
        return {self.noun: self.word, **self.fields, **error}


@click.command()
@takes_words("[STORE] JOB... | FILTER...", "store_then_filters")
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
    selection, request = _selected(ctx, words, options)
    if force and request is None:
        expect_confirmation(ctx, given=options["yes"])
    with closing(target_of(ctx).existing_store(selection.store)) as engine:
        if request is not None:
            return cancel_matching(ctx, engine, request, force=force)
        if force and not options["yes"] and not _agreed_to_force(engine, selection.jobs):
            return 1
        return act_on_each(
            selection.jobs, lambda word: _cancel(engine, word, force=force), as_json=options["as_json"]
        )


def _selected(
    ctx: click.Context, words: tuple[str, ...], options: dict[str, Any]
) -> tuple[arguments.Selection, BulkRequest | None]:
    """Jobs one by one, or all that match; what makes sense for many only is refused for one."""
    selection = arguments.split_selection(ctx, words)
    if selection.terms:
        request = BulkRequest.of(ctx, selection.terms, options)
        request.expect_confirmation(ctx)
        return selection, request
    for name in ("dry_run", "limit"):
        if options[name]:
            flag = name.replace("_", "-")
            raise click.UsageError(f"--{flag} goes with a filter, not with the numbers of jobs.", ctx)
    return selection, None


def _agreed_to_force(engine: "Engine", words: Sequence[str]) -> bool:
    """Ask, if one of the jobs runs."""
    running = [word for word in words if _is_running(engine, word)]
    return not running or confirmed(f"{FORCED}\nCancel {names(running)} by force?")


def _is_running(engine: "Engine", word: str) -> bool:
    try:
        return arguments.pick(engine, word).state is State.PROCESSING
    except ShigotoError:  # said when its turn comes
        return False


def _cancel(engine: "Engine", word: str, *, force: bool) -> ActionResult:
    job = arguments.pick(engine, word)
    state = _handle(arguments.audited(engine), job).cancel(force=force)
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
    return ActionResult(
        word=word, text=f"{name} {text}", code="CLI.NOT_CANCELLED" if refused else None, fields=fields
    )


@click.command()
@takes_words("[STORE] JOB... | FILTER...", "store_then_filters")
@takes_care
@takes_target
def retry(ctx: click.Context, words: tuple[str, ...], **options: Any) -> int:
    """Make failed or cancelled jobs ready again, with all their retries.

    A JOB is a number, such as 42, or an id. The exit code is 1 if any of the jobs could not be retried. For
    completed jobs there is rerun.

    With a FILTER, such as failed task:send since:1h, it is the same as redrive.
    """
    selection, request = _selected(ctx, words, options)
    with closing(target_of(ctx).existing_store(selection.store)) as engine:
        if request is not None:
            return redrive_matching(ctx, engine, request)
        return act_on_each(selection.jobs, lambda word: _retry(engine, word), as_json=options["as_json"])


def _retry(engine: "Engine", word: str) -> ActionResult:
    job = arguments.pick(engine, word)
    _handle(arguments.audited(engine), job).retry()
    return ActionResult(
        word=word,
        text=f"#{job.number} ({job.task}) is ready again.",
        fields=_fields(job, state=State.PENDING),
    )


@click.command()
@takes_words("[STORE] JOB...")
@answers
def rerun(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> int:
    """Make new jobs like ones that have ended, to run now.

    A JOB is a number, such as 42, or an id. The new one has the same task, arguments and options, but no
    unique key and no expiry. The exit code is 1 if any of the jobs could not be rerun.
    """
    store, jobs = arguments.split_jobs(ctx, words)
    with closing(target_of(ctx).existing_store(store)) as engine:
        return act_on_each(jobs, lambda word: _rerun(engine, word), as_json=as_json)


def _rerun(engine: "Engine", word: str) -> ActionResult:
    job = arguments.pick(engine, word)
    new = engine.run(rerun_op(engine, job.id, actor=arguments.actor()))
    text = f"#{job.number} ({job.task}) runs again as #{new.number} ({new.id})."
    return ActionResult(
        word=word, text=text, fields=_fields(job, state=job.state, rerun={"id": new.id, "number": new.number})
    )


def act_on_each(
    words: Sequence[str], act: Callable[[str], ActionResult], *, noun: str = "job", as_json: bool
) -> int:
    """Act on one thing after the other and tell of each; a store that fails ends it, since it would fail again."""
    told: list[ActionResult] = []
    for word in words:
        try:
            told.append(act(word))
        except ShigotoError as error:
            told.append(ActionResult(word=word, text=str(error), code=error.code, noun=noun))
            if isinstance(error, StoreError):
                break
    done = [one for one in told if not one.code]

    def say() -> None:
        if as_json:
            output.print_json([one.record() for one in told])
            return
        for one in told:
            click.echo(f"Error [{one.code}]: {one.text}" if one.code else one.text, err=one.code is not None)

    print_or_warn(say, " ".join(one.text for one in done))
    return 0 if len(done) == len(words) else 1


def _handle(engine: "Engine", job: Job) -> JobHandle[Any]:
    return found(engine, job, job_id=job.id, decode=None)


def _fields(job: Job, **more: object) -> dict[str, object]:
    return {"id": job.id, "number": job.number, **more}
