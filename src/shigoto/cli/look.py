"""Looking: counts and lists. Nothing here changes a store, or creates one."""

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from shigoto.cli import output
from shigoto.cli.arguments import misuse, read_filter, split_filter, takes_filter, tell_unsearched
from shigoto.cli.output import Column
from shigoto.cli.target import suggest, takes_target, target_of
from shigoto.cli.watch import Rates, Watching, json_line, takes_watch, watch
from shigoto.filters import MAX_PAGE, Filters, wanted
from shigoto.model.job import Counts, Job, State
from shigoto.model.worker import WorkerRecord

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

ROWS = 20
# What a narrow terminal can do without, the highest first.
SPARE = {"cancelled": 6, "scheduled": 5, "blocked": 4, "completed": 3, "processing": 2, "failed": 1}


@click.command(cls=Watching)
@click.argument("store", required=False, shell_complete=suggest("files"))
@takes_watch
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
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
        click.echo("\n".join(stats_table(queues, output.width_of())), color=output.in_colour())


def _counts(engine: "Engine") -> dict[str, Counts]:
    return dict(sorted(engine.run(engine.stats()).items()))


def _watch_stats(engine: "Engine", every: float, *, as_json: bool) -> None:
    rates = Rates()

    def look() -> list[str]:
        queues = _counts(engine)
        ended = rates.since_last(queues)
        if as_json:
            told = {"total": output.total(queues), "queues": queues, "ended_per_second": ended}
            return [json_line(told)]
        return stats_table(queues, output.width_of(), ended)

    watch(look, every, as_json=as_json)


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
@click.argument(
    "words", nargs=-1, metavar="[STORE] [STATE] [FILTER...]", shell_complete=suggest("store_then_filters")
)
@click.option("--limit", default=ROWS, show_default=True, type=click.IntRange(1, MAX_PAGE), help="How many.")
@takes_filter
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
    store, terms = split_filter(words)
    filters = read_filter(ctx, terms, flags) or Filters(state=State.PENDING)
    filters["limit"] = limit
    with misuse(ctx):
        wanted(filters)
    with closing(target_of(ctx).existing_store(store)) as engine:
        if watch is not None:
            _watch_jobs(engine, filters, watch, as_json=as_json)
            return
        jobs = engine.run(engine.find(wanted(filters)))
        tell_unsearched(engine, filters)

    if as_json:
        output.print_json([output.record(job) for job in jobs])
        return
    width = output.width_of()
    click.echo("\n".join(_jobs_lines(jobs, filters, width)), color=output.in_colour())
    if len(jobs) == limit and width is not None:
        click.echo(f"These are the newest {limit}; see more with --limit.", err=True)


def _watch_jobs(engine: "Engine", filters: Filters, every: float, *, as_json: bool) -> None:
    def look() -> list[str]:
        jobs = engine.run(engine.find(wanted(filters)))  # anew each time: `since:5m` moves along
        if as_json:
            return [json_line([output.record(job) for job in jobs])]
        return _jobs_lines(jobs, filters, output.width_of())

    watch(look, every, as_json=as_json)


def _jobs_lines(jobs: Sequence[Job], filters: Filters, width: int | None) -> list[str]:
    if jobs:
        return jobs_table(jobs, width, datetime.now(UTC))
    state = filters.get("state") or "all"
    others = [name for name in filters if name not in ("state", "limit")]
    return [f"There are no {'' if state == 'all' else f'{state} '}jobs{' that match' if others else ''}."]


def jobs_table(jobs: Sequence[Job], width: int | None, now: datetime) -> list[str]:
    """A line per job. On a terminal (one with a width) times are local and short, else ISO 8601 in UTC."""
    columns = [
        Column("job", right=True),
        Column("task", least=8),
        Column("queue", least=7, spare=5),
        Column("state", paint=output.paint_state),
        Column("prio", right=True, spare=3),
        Column("retries", right=True, spare=2),
        Column("created", spare=4),
        Column("payload or error", least=10, spare=1),
    ]
    return output.table(columns, [_row(job, now, brief=width is not None) for job in jobs], width)


def _row(job: Job, now: datetime, *, brief: bool) -> list[str]:
    return [
        f"#{job.number}",
        job.task,
        job.queue,
        _state(job, now),
        str(job.priority),
        f"{min(job.failures, job.max_failures - 1)}/{job.max_failures - 1}",
        output.moment(job.created_at, now) if brief else output.iso(job.created_at),
        output.preview(job),
    ]


def _state(job: Job, now: datetime) -> str:
    """The state, with how far a job is that runs, and when one is due that waits."""
    if job.state is State.PROCESSING and job.progress is not None:
        return f"{job.state} {job.progress:.0%}"
    if job.state is State.PENDING and job.run_at > now:
        return f"{job.state} in {output.span(job.run_at - now)}"
    return job.state


@click.command()
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
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
        lines = workers_table(found, output.width_of(), datetime.now(UTC))
        click.echo("\n".join(lines), color=output.in_colour())


def workers_table(found: Sequence[WorkerRecord], width: int | None, now: datetime) -> list[str]:
    """A line per worker, in the order of their start."""
    columns = [
        Column("worker", least=8),
        Column("host", least=6, spare=5),
        Column("pid", right=True, spare=3),
        Column("queues", least=6, spare=4),
        Column("slots", right=True, spare=6),
        Column("jobs", right=True),
        Column("since", spare=7),
        Column("lease", paint=_paint_lease),
        Column("alone", spare=8),
        Column("state", spare=2),
        Column("version", spare=9),
    ]
    return output.table(
        columns, [_worker_row(worker, now, brief=width is not None) for worker in found], width
    )


def _worker_row(worker: WorkerRecord, now: datetime, *, brief: bool) -> list[str]:
    left = worker.lease_until - now
    return [
        output.one_line(worker.name),
        output.one_line(worker.host) or "-",
        str(worker.pid or "-"),
        "all" if worker.queues is None else ",".join(worker.queues),
        str(worker.slots),
        str(worker.processing),
        output.moment(worker.started_at, now) if brief else output.iso(worker.started_at),
        f"{output.span(left)} left" if left.total_seconds() >= 0 else f"{output.span(-left)} overdue",
        "yes" if worker.isolates else "no",
        "stopping" if worker.stopping else "working",
        output.one_line(worker.version),
    ]


def _paint_lease(text: str) -> str:
    return click.style(text, fg="red") if text.endswith("overdue") else text
