"""The command `worker`, and the options that scheduler and server share with it.

It starts a supervisor, which runs jobs in processes of its own; with `--processes 0`, for debuggers, the worker runs in
this very process.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import structs

from shigoto.cli import daemon, settings
from shigoto.cli.settings import Seconds
from shigoto.cli.target import CommandTarget, suggest, takes_target, target_of
from shigoto.model.text import storable
from shigoto.model.worker import CONCURRENCY, LEASE, POLL, STOP_TIMEOUT

if TYPE_CHECKING:
    from shigoto.app import Shigoto

STATS_EVERY = 30.0  # seconds, where no app is given
LEVELS = ("debug", "info", "warning", "error", "critical")
BUILT_IN = "shigoto.demo:app"
UNNAMED = (
    "No app is named: these are the built-in tasks. Name yours with --app module:attr, $SHIGOTO_APP or app in"
    " shigoto.toml."
)
COUNT = "WORKER_COUNT"  # what it was called in the first form of this program
MOST_PROCESSES = 1_000
MOST_SLOTS = 10_000
MOST_JOBS = 10**12
DAY = 86_400.0
SLOTS = click.IntRange(1, MOST_SLOTS)
ALIKE = ("concurrency", "threads", "children", "drain", "ticks", "max_jobs", "lease", "poll", "any_role")

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Configured(click.Command):
    """A command whose options the settings file of the current folder can set."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words, over what the file says. Whoever asks for help needs no file, be it good or not."""
        if not ctx.resilient_parsing and not set(args) & set(ctx.help_option_names):
            ctx.default_map = dict(target_of(ctx).settings.worker)
        return super().parse_args(ctx, args)


def setting(flag: str, **attributes: Any) -> Callable[[F], F]:
    """An option that a variable and the settings file can set, too. Help shows its default, and seconds as such."""
    attributes.setdefault("show_default", "default" in attributes)
    if isinstance(attributes.get("type"), Seconds):
        attributes.setdefault("metavar", "SECONDS")
    return click.option(
        flag, cls=settings.Setting, envvar=settings.variable(flag.partition("/")[0]), **attributes
    )


@click.command(cls=Configured)
@click.argument("store", required=False, shell_complete=suggest("files"))
@setting(
    "--queues", type=settings.Queues(), metavar="A,B", show_default="all", shell_complete=suggest("queues"),
    help="Only from these queues.",
)  # fmt: skip
@setting(
    "--processes", type=click.IntRange(0, MOST_PROCESSES), show_default="1; without --app $WORKER_COUNT, or 3",
    help="Runner processes; 0 for none but this one.",
)  # fmt: skip
@setting("--concurrency", type=SLOTS, default=CONCURRENCY, metavar="N", help="Async jobs at once, in each.")
@setting(
    "--threads", type=SLOTS, show_default="4 per core, at most 32", metavar="N", help="Sync jobs at once, in each.",
)  # fmt: skip
@setting(
    "--children", type=click.IntRange(0, MOST_SLOTS), show_default="1 per core", metavar="N",
    help="Jobs in processes of their own, of each.",
)  # fmt: skip
@setting(
    "--drain",
    is_flag=True,
    help="Stop when no job is due. Those due later, retries among them, do not count.",
)
@setting(
    "--ticks/--no-ticks", default=True, show_default="ticks", help="Fire schedules, or leave that to others."
)
@setting("--reload", is_flag=True, help="Start anew when the code in this folder changes.")
@setting(
    "--max-jobs", type=click.IntRange(1, MOST_JOBS), metavar="N", help="Replace a runner process after so many jobs.",
)  # fmt: skip
@setting(
    "--max-memory", type=click.IntRange(1), metavar="MB", help="Replace a runner process that uses more."
)
@setting(
    "--lease", type=Seconds(1, DAY), default=LEASE / 1000, help="Without a beat for so long, others get the jobs.",
)  # fmt: skip
@setting(
    "--poll", type=Seconds(0.010, DAY), default=POLL / 1000, help="The longest wait between looks at the store.",
)  # fmt: skip
@setting(
    "--stop-timeout", type=Seconds(0, DAY), default=STOP_TIMEOUT / 1000, help="How long a stop may take."
)
@setting("--name", show_default="host and process", help="What the logs call it.")
@setting("--ready-file", type=Path, metavar="FILE", help="A file that is there while it is ready.")
@setting(
    "--health", type=settings.HealthPlace(), metavar="[HOST:]PORT",
    help="A port that says whether it is ready: /healthz and /readyz.",
)  # fmt: skip
@setting("--stop-on-eof", is_flag=True, help="Stop when standard input ends, or whoever holds it.")
@setting(
    "--stats-every", type=Seconds(0, DAY), show_default="30; with --app 0",
    help="How often the log has a line of counts; 0 for never.",
)  # fmt: skip
@setting("--any-role", is_flag=True, help="Work even as a superuser, or as the owner of the schema.")
@setting("--log-format", type=click.Choice(["text", "json"]), default="text")
@setting("--log-level", type=click.Choice(LEVELS), default="info")
@takes_target
def worker(ctx: click.Context, store: str | None, **flags: Any) -> int:
    """Run jobs until told to stop.

    A small process supervises others, which run the jobs, and replaces those that die. SIGINT or SIGTERM ends
    them gracefully: what runs may finish for a while, the rest is given back. A second signal makes them hurry.
    The exit code is 0, or 1 if jobs could not be given back.

    Each option can also be a variable, such as SHIGOTO_STOP_TIMEOUT, or stand in the table [worker] of
    shigoto.toml; `shigoto config --origin` shows what holds.

    \b
    Examples:
      shigoto worker                          the built-in tasks, on workers.db
      shigoto --app shop.tasks:app worker --processes 4 --queues mail,reports
      shigoto --app shop.tasks:app worker --drain
    """
    daemon.begin_quietly()
    target = target_of(ctx)
    options = WorkerOptions(**flags)
    daemon.check_process_options(target.url_flag or store, options)
    count = find_processes(ctx, target).value
    options = structs.replace(options, stats_every=find_stats_every(ctx, target).value)
    return _alone(target, store, options) if count == 0 else _supervise(target, store, options, count)


class DaemonOptions(daemon.ProcessOptions, frozen=True, kw_only=True):
    """The options of workers and schedulers."""

    lease: float
    poll: float
    stop_timeout: float
    health: str | None
    stats_every: float | None
    any_role: bool


class WorkerOptions(DaemonOptions, frozen=True, kw_only=True):
    queues: str | None
    processes: int | None
    concurrency: int
    threads: int | None
    children: int | None
    drain: bool
    ticks: bool
    reload: bool
    max_jobs: int | None
    max_memory: int | None

    def for_worker(self) -> dict[str, Any]:
        return {
            "queues": None if self.queues is None else tuple(self.queues.split(",")),
            "name": self.shown_name,
            **{name: getattr(self, name) for name in ALIKE},
        }


def find_processes(ctx: click.Context, target: CommandTarget) -> settings.Found:
    """How many runner processes, and who says so; the first form of this program had three, or $WORKER_COUNT."""
    found = settings.find_option(ctx, settings.worker_options()["processes"], target.settings)
    if found.origin.kind in ("flag", "variable"):
        return found
    if target.app is None and (text := settings.from_environment(COUNT)):
        if not text.isdecimal() or not 1 <= int(text) <= MOST_PROCESSES:
            raise click.UsageError(
                f"{COUNT} must be a whole number from 1 to {MOST_PROCESSES}, not {text!r}."
            )
        return settings.Found(int(text), settings.Origin("variable", COUNT))
    if found.value is not None:
        return found
    return found._replace(value=3 if target.app is None else 1)


def find_stats_every(ctx: click.Context, target: CommandTarget) -> settings.Found:
    found = settings.find_option(ctx, settings.worker_options()["stats_every"], target.settings)
    if found.value is not None:
        return found
    return found._replace(value=STATS_EVERY if target.app is None else 0.0)


def _supervise(target: CommandTarget, store: str | None, options: WorkerOptions, count: int) -> int:
    from shigoto.worker.process import Source, folder_here, search_path
    from shigoto.worker.supervisor.runner_process import Start
    from shigoto.worker.supervisor.supervisor import SupervisorSettings, supervise

    address = target.address(store)
    start = Start(
        source=Source(
            reference=storable("--app", target.app or BUILT_IN),
            url=None if address is None else storable("The store", address),
            path=search_path(),
            folder=folder_here(),
        ),
        log_format=options.log_format,
        log_level=options.log_level,
        **options.for_worker(),
    )
    supervisor_settings = SupervisorSettings(
        processes=count,
        stop_timeout=options.stop_timeout,
        stats_every=options.stats_every or 0.0,
        reload=options.reload,
        stop_on_eof=options.stop_on_eof,
        max_memory=None if options.max_memory is None else options.max_memory << 20,
        ready_file=options.ready_file,
        health=daemon.place_of(options.health),
        numbered=target.app is None,
        notice=UNNAMED if target.app is None else None,
    )
    return supervise(
        start,
        supervisor_settings,
        lambda failed: click.echo(f"Error [{failed.code}]: {failed.text}", err=True),
    )


def _alone(target: CommandTarget, store: str | None, options: WorkerOptions) -> int:
    from asyncio import gather

    from shigoto.worker import Worker
    from shigoto.worker.supervisor.store import tell_counts

    for name in ("reload", "max_memory", "ready_file"):
        if getattr(options, name):
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} needs a supervisor: use --processes 1 or more.")
    if os.environ.get("NOTIFY_SOCKET"):
        raise click.UsageError(
            "A service manager waits to hear that the worker is ready ($NOTIFY_SOCKET), and only a supervisor says so:"
            " use --processes 1 or more."
        )
    if target.app is None:
        options = structs.replace(options, name=options.name or "1")
    app, made = made_here(
        target, store, lambda app: Worker(app, stop_timeout=options.stop_timeout, **options.for_worker())
    )
    if app.tracing is not None:
        app.tracing.rule()
    health = daemon.port_of_worker(daemon.place_of(options.health), app, made, options.poll)

    async def beside() -> None:
        await gather(tell_counts(lambda: app.engine, options.stats_every or 0.0), health())

    return daemon.run_here(app, made, options, beside, notice=None if target.app else UNNAMED)


def made_here(
    target: CommandTarget, store: str | None, make: "Callable[[Shigoto], T]"
) -> "tuple[Shigoto, T]":
    """The app, loaded into this very process, and what is made of it to run here."""
    from shigoto.engine.open import expect_shared

    with daemon.signals_interrupt():
        # Nothing is held yet. Loading may take long, and whoever is impatient need not wait for it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        app = target.load(printing=True)
        target.aim(app, store)
        expect_shared(app.engine)
        return app, make(app)
