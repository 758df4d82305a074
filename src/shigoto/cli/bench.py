"""Measuring: `shigoto bench`, on files of its own or on a store that was named."""

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shigoto.bench import MEASURES
from shigoto.cli import output
from shigoto.cli.run import MOST_PROCESSES
from shigoto.cli.suggest import suggest
from shigoto.cli.surroundings import signals_interrupt
from shigoto.cli.target import Target, existing, is_there, takes_target, target_of
from shigoto.model.errors import Unsupported, nearest

if TYPE_CHECKING:
    from shigoto.bench.report import Report
    from shigoto.bench.rounds import Wishes

JOBS, MOST_JOBS = 1_000, 1_000_000
ROUNDS, MOST_ROUNDS = 3, 100


class Only(click.types.StringParamType):
    """Some of the measures, A,B. Every one is checked, and there must be one."""

    name = "measures"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The names with commas between them. Raises BadParameter."""
        names = [name.strip() for name in str(value).split(",") if name.strip()]
        for name in names:
            if name not in MEASURES:
                hint = nearest(name, tuple(MEASURES)) or f" There are: {', '.join(MEASURES)}."
                self.fail(f"There is no measure {name!r}.{hint}", param, ctx)
        if not names:
            self.fail(f"It names no measure. There are: {', '.join(MEASURES)}.", param, ctx)
        return ",".join(names)


def _complete_only(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    before, comma, _ = incomplete.rpartition(",")
    return [name for each in MEASURES if (name := f"{before}{comma}{each}").startswith(incomplete)]


@click.command()
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option(
    "--jobs",
    type=click.IntRange(1, MOST_JOBS),
    default=JOBS,
    show_default=True,
    metavar="N",
    help="How many to store one by one; others scale.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, MOST_ROUNDS),
    default=ROUNDS,
    show_default=True,
    metavar="N",
    help="How often; the medians count.",
)
@click.option(
    "--only",
    type=Only(),
    default=",".join(MEASURES),
    metavar="A,B",
    shell_complete=_complete_only,
    help="Only these measures.  [default: all]",
)
@click.option(
    "--processes",
    type=click.IntRange(1, MOST_PROCESSES),
    default=1,
    show_default=True,
    metavar="N",
    help="Runner processes that drain together.",
)
@click.option("--picture", type=Path, metavar="FILE.svg", help="Draw the figures, too.")
@click.option("--json", "as_json", is_flag=True, help="For programs: every round of every measure.")
@takes_target
def bench(
    ctx: click.Context, store: str | None, *, only: str, picture: Path | None, as_json: bool, **sizes: int
) -> None:
    """Measure a store on this machine: jobs per second, latency, and what a job costs.

    If no store is named, it measures new SQLite files in the current folder: the disk there is what counts. A
    store that is named may be in use. The jobs of the bench do nothing, are known to no other worker, stand in a
    queue of their own, and are deleted afterwards, also after Ctrl-C.

    \b
    enqueue     jobs stored one by one, each committed
    aenqueue    by 64 callers at once, on one event loop
    bulk        1000 with each call of enqueue_many
    drain       async functions run by a worker in a process of its own, history kept
    drain-sync  functions that are not async, in the threads of such a worker
    latency     from a call of enqueue to the first line of the handler, on an idle worker

    Beside them stands the limit of the disk: a loop that only inserts and commits rows. Whether all jobs are
    there is checked in the store after each measure; the exit code is 1 if not.

    \b
    Examples:
      shigoto bench
      shigoto bench --only enqueue,drain --rounds 5 --picture speed.svg
      shigoto --url "sqlite:///jobs.db?synchronous=normal" bench
      shigoto --url memory: bench --json
    """
    from shigoto.bench.rounds import Wishes

    if picture is not None:
        _expect_writable(picture)
    address = _address(target_of(ctx), store)
    wishes = Wishes(only=only.split(","), **sizes)
    try:
        with signals_interrupt():
            report = _measure(address, wishes, as_json=as_json)
    except KeyboardInterrupt:
        click.echo("Interrupted. What was stored is deleted.", err=True)
        raise click.Abort from None
    if as_json:
        output.print_json(report.for_programs())
    else:
        from shigoto.cli.bench_table import lines_of

        click.echo("\n".join(lines_of(report, output.width_of())), color=output.in_colour())
    if picture is not None:
        from shigoto.bench.picture import draw

        picture.write_text(draw(report), encoding="utf-8")


def _measure(address: str | None, wishes: "Wishes", *, as_json: bool) -> "Report":
    from shigoto.bench.place import open_place
    from shigoto.bench.rounds import run_rounds
    from shigoto.cli.bench_table import Progress

    is_new = address is not None and _is_new(address, wishes)
    with (
        open_place(address, is_new=is_new, complain=_complain) as place,
        Progress(sys.stderr, quiet=as_json) as progress,
    ):
        return run_rounds(place, wishes, progress.show)


def _is_new(address: str, wishes: "Wishes") -> bool:
    """Whether the store is still to be created; what is there must be a store already. Raises StoreError."""
    from shigoto.app import open_store

    with closing(open_store(address)) as engine:
        if not engine.capabilities.shared and wishes.processes > 1:
            raise click.UsageError(
                f"--processes needs a store that several processes can open; {engine.capabilities.name} lives in one."
            )
        if not is_there(engine):
            return True
        existing(engine)
        return False


def _address(target: Target, store: str | None) -> str | None:
    """The store that was asked for, or that of the app; None is for files of our own."""
    address = target.address(store)
    if address is not None or target.app is None:
        return address
    app = target.load()
    try:
        return app.engine.address
    except Unsupported:
        return app.url
    finally:
        app.close()


def _expect_writable(picture: Path) -> None:
    """Refuse what could not be written in the end, before anything is measured."""
    if picture.suffix.lower() != ".svg":
        raise click.UsageError(f"--picture draws an SVG: name a file that ends in .svg, not {picture}.")
    if not picture.parent.is_dir():
        raise click.UsageError(f"--picture needs a folder that is there, not {picture.parent}.")
    target = picture if picture.exists() else picture.parent
    if picture.is_dir() or not os.access(target, os.W_OK):
        raise click.UsageError(f"--picture cannot be written: {target} is {_what(picture)}.")


def _what(picture: Path) -> str:
    return "a folder" if picture.is_dir() else "not yours to write"


def _complain(line: str) -> None:
    click.echo(line, err=True)
