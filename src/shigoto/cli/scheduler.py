"""The command `scheduler`, which fires schedules in this very process."""

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from shigoto.cli.daemon import begin_quietly, check_process_options, place_of, port_of_scheduler, run_here
from shigoto.cli.target import suggest, takes_target, target_of
from shigoto.cli.worker import Configured, DaemonOptions, find_stats_every, made_here, worker

if TYPE_CHECKING:
    from shigoto.scheduler import Scheduler

logger = logging.getLogger("shigoto.worker")

UNNAMED = (
    "No app is named: only schedules that were added at run time are fired. Name yours with --app module:attr,"
    " $SHIGOTO_APP or app in shigoto.toml."
)


@click.command(cls=Configured)
@click.argument("store", required=False, shell_complete=suggest("files"))
@takes_target
def scheduler(ctx: click.Context, store: str | None, **flags: Any) -> int:
    """Fire schedules until told to stop, without running any job.

    Every worker does that, too, unless it has --no-ticks: a scheduler is for ticks while no worker runs. There may be
    several, and none of them leads: each tick fires once. It also makes due jobs ready, and frees those of workers that
    are gone. SIGINT or SIGTERM ends it when the cycle at hand is finished, a second one at once. The exit code is 0,
    or 1 if it had to be cut off, or its store was moved away.

    Its options are those of `shigoto worker`, with the same variables, and stand in the table [worker] of
    shigoto.toml, too.

    \b
    Examples:
      shigoto --app shop.tasks:app scheduler
      shigoto --app shop.tasks:app worker --no-ticks
    """
    begin_quietly()
    target = target_of(ctx)
    options = DaemonOptions(**flags)
    check_process_options(target.url_flag or store, options)
    options = structs.replace(options, stats_every=find_stats_every(ctx, target).value)
    from shigoto.observe.events import SchedulerStarted, SchedulerStopping
    from shigoto.scheduler import Scheduler
    from shigoto.worker.supervisor.host import ReadyFile, ServiceManager

    app, made = made_here(
        target,
        store,
        lambda app: Scheduler(
            app,
            lease=options.lease,
            poll=options.poll,
            stop_timeout=options.stop_timeout,
            name=options.shown_name,
            any_role=options.any_role,
        ),
    )
    health = port_of_scheduler(place_of(options.health), app, made)
    manager = ServiceManager(os.environ)
    with ReadyFile(options.ready_file) as ready_file:

        def began(_: SchedulerStarted) -> None:
            ready_file.show()
            manager.ready("Fires schedules")

        def ends(_: SchedulerStopping) -> None:
            ready_file.hide()
            manager.stopping()

        async def beside() -> None:
            await asyncio.gather(manager.run(), tell_figures(made, options.stats_every or 0.0), health())

        app.bus.subscribe(began, SchedulerStarted)
        app.bus.subscribe(ends, SchedulerStopping)
        return run_here(app, made, options, beside, notice=None if target.app else UNNAMED)


scheduler.params += [option for option in worker.params if option.name in DaemonOptions.__struct_fields__]


async def tell_figures(scheduler: "Scheduler", every: float) -> None:
    """Log what the scheduler has counted, and how it is, again and again; never, if there is no time between."""
    while every > 0:
        await asyncio.sleep(every)
        figures, health = scheduler.figures(), scheduler.health()
        if figures is None:
            continue
        late = figures.lateness.p99
        logger.info(
            "Schedule Stats - Health: %s, Fired: %d, Passed: %d, Lost: %d, Failures: %d, Rate: %.2f/s, Late p99: %s",
            " ".join((health.status, *health.details)),
            *(figures.fired, figures.passed, figures.lost, figures.failures, figures.rates.total),
            "-" if late is None else f"{late:.0f} ms",
            extra={"shigoto": {"health": structs.asdict(health), "figures": structs.asdict(figures)}},
        )
