"""The demo: jobs of every kind on a store of its own, for people to watch."""

import sys
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from shigoto.cli.daemon import signals_interrupt

if TYPE_CHECKING:
    from shigoto.demo.show import Report

SHOW_FOR = 12.0  # seconds


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
        with signals_interrupt():
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
    from shigoto.cli.watch import Canvas
    from shigoto.demo.show import put_on, temporary_folder

    with temporary_folder(keep=keep) as folder:
        if as_json:
            report = put_on(folder, seconds=seconds, watch=lambda _: None, complain=_complain)
        elif output.can_redraw():
            with Canvas(sys.stdout) as canvas:
                screen = live.Screen(canvas, colour=output.in_colour())
                report = put_on(folder, seconds=seconds, watch=screen.show, complain=_complain)
        else:
            watch = live.Ticker(sys.stdout).show
            report = put_on(folder, seconds=seconds, watch=watch, complain=_complain)
        return report, str(folder / "jobs.db") if keep else None


def _complain(line: str) -> None:
    click.echo(line, err=True)
