"""Running: a worker, and the demo."""

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Literal

import click
from msgspec.structs import asdict

from shigoto.cli.target import shared, takes_target, target_of
from shigoto.model.errors import storable

if TYPE_CHECKING:
    from shigoto.demo.show import Report

STATS_EVERY = 30.0  # seconds, where no app is given
SHOW_FOR = 12.0  # seconds
LEVELS = ("debug", "info", "warning", "error")


@click.command()
@click.argument("store", required=False)
@click.option("--queues", metavar="A,B", help="Only from these queues; all, unless told otherwise.")
@click.option("--concurrency", type=int, default=100, show_default=True, help="Async jobs at once.")
@click.option("--threads", type=int, help="Other jobs at once.  [default: 4 per core, at most 32]")
@click.option("--drain", is_flag=True, help="Stop when there is nothing left to do.")
@click.option(
    "--poll", type=float, default=1.0, show_default=True, help="Seconds between looks at the store."
)
@click.option("--name", help="What the logs call it.  [default: host and process]")
@click.option("--stop-on-eof", is_flag=True, help="Stop when standard input ends, or whoever holds it.")
@click.option("--stats-every", type=float, help="Seconds between lines of counts; 0 for none.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@takes_target
def worker(
    ctx: click.Context,
    store: str | None,
    *,
    queues: str | None,
    concurrency: int,
    threads: int | None,
    drain: bool,
    poll: float,
    name: str | None,
    stop_on_eof: bool,
    stats_every: float | None,
    log_format: Literal["text", "json"],
    log_level: str,
) -> int:
    """Run jobs until told to stop.

    SIGINT or SIGTERM ends it gracefully: what runs may finish for a while, the rest is given back. A second
    signal makes it hurry. The exit code is 0, or 1 if jobs could not be given back.
    """
    from shigoto.cli.work import Shift, work
    from shigoto.worker import Worker

    target = target_of(ctx)
    app = target.load()
    target.aim(app, store)
    shared(app.engine)
    if stats_every is None:
        stats_every = STATS_EVERY if target.app is None else 0
    made = Worker(
        app,
        queues=None if queues is None else _names(queues),
        concurrency=concurrency,
        threads=threads,
        drain=drain,
        poll=poll,
        name=None if name is None else storable("--name", name),
    )
    shift = Shift(
        stats_every=stats_every, stop_on_eof=stop_on_eof, log_format=log_format, log_level=log_level
    )
    return work(app, made, shift)


def _names(queues: str) -> list[str]:
    from shigoto.options import check_name

    return [check_name(queue.strip(), "The queue") for queue in queues.split(",") if queue.strip()]


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3_600, min_open=True),
    default=SHOW_FOR,
    show_default=True,
    help="How long to make jobs.",
)
@click.option("--keep", is_flag=True, help="Keep the store, and say where it is.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome for programs, and nothing else.")
def demo(seconds: float, keep: bool, as_json: bool) -> int:
    """See jobs run: two workers on one SQLite file.

    Makes a store in a temporary folder, starts two worker processes, and feeds them for a while with jobs of
    every kind. At the end every job is looked up; the exit code is 0 if all of them completed.
    """
    from shigoto.cli import live, output

    try:
        with _signals_interrupt():
            report, kept = _perform(seconds, keep=keep, as_json=as_json)
    except KeyboardInterrupt:
        click.echo("Interrupted. The workers have stopped.", err=True)
        raise click.Abort from None
    if as_json:
        output.print_json({**asdict(report), **({"store": kept} if kept else {})})
    else:
        click.echo("\n".join(live.summary(report, kept=kept)))
    return 0 if report.ended_well and not report.lost else 1


def _perform(seconds: float, *, keep: bool, as_json: bool) -> "tuple[Report, str | None]":
    """Put the show on, on a screen, in lines or unseen; and tell where the store is, if it is kept."""
    from shigoto.cli import live, output
    from shigoto.demo.show import put_on, temporary_folder

    with temporary_folder(keep=keep) as folder:
        if as_json:
            report = put_on(folder, seconds=seconds, watch=lambda _: None, complain=_complain)
        elif output.can_redraw():
            with live.Screen(sys.stdout) as screen:
                report = put_on(folder, seconds=seconds, watch=screen.show, complain=_complain)
        else:
            watch = live.Ticker(sys.stdout).show
            report = put_on(folder, seconds=seconds, watch=watch, complain=_complain)
        return report, str(folder / "jobs.db") if keep else None


def _complain(line: str) -> None:
    click.echo(line, err=True)


@contextmanager
def _signals_interrupt() -> Generator[None]:
    """Let SIGTERM and a closed terminal do what Ctrl-C does, so that all is put away before the end."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # One that is ignored (by nohup, say) stays ignored.
    numbers = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN
    ]
    former = [(number, signal.signal(number, interrupt)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in former:
            signal.signal(number, handler)
