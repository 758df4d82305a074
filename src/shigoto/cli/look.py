"""Looking: counts and lists. Nothing here changes a store, or creates one."""

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import get_args

import click
from msgspec.structs import asdict

from shigoto.cli import output
from shigoto.cli.output import Column
from shigoto.cli.target import split_store, takes_target, target_of
from shigoto.model.job import Counts, Job, State
from shigoto.model.worker import WorkerRecord
from shigoto.query import MAX_PAGE, Filters, KindName, StateName, parse_state, wanted

ROWS = 20
# What a narrow terminal can do without, the highest first.
SPARE = {"cancelled": 6, "scheduled": 5, "blocked": 4, "completed": 3, "processing": 2, "failed": 1}
STATES = (*get_args(StateName), "all")


@click.command()
@click.argument("store", required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def stats(ctx: click.Context, store: str | None, as_json: bool) -> None:
    """Count the jobs, by queue and state.

    Scheduled jobs are those pending ones that are due later.
    """
    with closing(target_of(ctx).existing_store(store)) as engine:
        queues = dict(sorted(engine.run(engine.stats()).items()))

    if as_json:
        output.print_json({"total": output.total(queues), "queues": queues})
    else:
        click.echo("\n".join(stats_table(queues, output.width_of())), color=output.in_colour())


def stats_table(queues: dict[str, Counts], width: int | None) -> list[str]:
    """A line per queue and one for all; blocked jobs have a column only where there are some."""
    sums = output.total(queues)
    states = [state for state in asdict(sums) if state != "blocked" or sums.blocked]
    columns = [
        Column("queue", least=5),
        *(Column(state, right=True, spare=SPARE.get(state, 0)) for state in states),
    ]
    rows = [[name, *(str(asdict(counts)[state]) for state in states)] for name, counts in queues.items()]
    return output.table(columns, [*rows, ["total", *(str(asdict(sums)[state]) for state in states)]], width)


@click.command("list")
@click.argument("words", nargs=-1, metavar="[STORE] [STATE]")
@click.option("--limit", default=ROWS, show_default=True, type=click.IntRange(1, MAX_PAGE), help="How many.")
@click.option("--queue", help="Only of this queue.")
@click.option("--task", help="Only of this task.")
@click.option("--tag", help="Only with this tag.")
@click.option("--key", help="Only with this unique key.")
@click.option("--tenant", help="Only of this tenant.")
@click.option(
    "--kind",
    metavar="KIND",
    type=click.Choice(get_args(KindName)),
    help="Only with this kind of failure, such as timeout or crash_loop.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs: complete records in one array.")
@takes_target
def list_jobs(
    ctx: click.Context,
    words: tuple[str, ...],
    *,
    limit: int,
    queue: str | None,
    task: str | None,
    tag: str | None,
    key: str | None,
    tenant: str | None,
    kind: KindName | None,
    as_json: bool,
) -> None:
    """Show the newest jobs of a state, pending if none is named.

    States are pending, processing, completed, failed, cancelled and blocked; also waiting, running and
    succeeded; scheduled and retrying are parts of pending; all is every job.
    """
    store, rest = split_store(words, known=STATES)
    if len(rest) > 1:
        raise click.UsageError(f"{rest[1]!r} is one word too many: list takes a store and a state.", ctx)
    name = rest[0] if rest else "pending" if kind is None else "failed"
    state = None if name == "all" else parse_state(name)
    chosen = wanted(
        Filters(
            state=state,
            queue=queue,
            task=task,
            tag=tag,
            key=key,
            tenant=tenant,
            failure_kind=kind,
            limit=limit,
        )
    )
    with closing(target_of(ctx).existing_store(store)) as engine:
        jobs = engine.run(engine.find(chosen))

    if as_json:
        output.print_json([output.record(job) for job in jobs])
    elif not jobs:
        click.echo("There are no jobs." if state is None else f"There are no {name} jobs.")
    else:
        width = output.width_of()
        click.echo("\n".join(jobs_table(jobs, width, datetime.now(UTC))), color=output.in_colour())
        if len(jobs) == limit and width is not None:
            click.echo(f"These are the newest {limit}; see more with --limit.", err=True)


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
    running = job.state is State.PROCESSING and job.progress is not None
    return [
        f"#{job.number}",
        job.task,
        job.queue,
        f"{job.state} {job.progress:.0%}" if running else job.state,
        str(job.priority),
        f"{job.failures}/{job.max_failures - 1}",
        output.moment(job.created_at, now) if brief else output.iso(job.created_at),
        output.preview(job),
    ]


@click.command()
@click.argument("store", required=False)
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
