"""The command `top`, the live view of a store in a terminal.

    app:  keys, signals, snapshots and results come in  →  state: a pure step  →  view: pure lines  →  the terminal

Whatever the store is asked is asked in a thread of its own, so that the screen answers while the store does not.
"""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shigoto.cli import output
from shigoto.cli.target import FileEngine, ServerEngine, suggest, takes_target, target_of

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

NEEDS_A_TERMINAL = (
    "top needs a terminal that can be drawn on and has a keyboard."
    " Without one `shigoto stats --watch` shows the counts, and `shigoto stats --json` is for programs."
)


@click.command()
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option(
    "--interval", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, metavar="SECONDS",
    help="How often to look at the store.",
)  # fmt: skip
@takes_target
def top(ctx: click.Context, store: str | None, interval: float) -> None:
    """Watch a store live: queues, speed, running jobs with their progress, failures.

    Keys pause queues, cancel and retry jobs, and show all about one; ? tells which. A store that is not there
    yet, or cannot be read, is tried again until it can.
    """
    if not output.can_redraw() or not output.can_ask():
        raise click.UsageError(NEEDS_A_TERMINAL, ctx)
    from shigoto.cli.top.app import Loop
    from shigoto.cli.top.terminal import Terminal
    from shigoto.cli.watch import Canvas

    with (
        closing(target_of(ctx).store(store)) as engine,
        Terminal(sys.stdin.fileno(), Canvas(sys.stdout, whole=True)) as terminal,
    ):
        Loop(engine, terminal, store=_name(engine), interval=interval, colour=output.in_colour()).run()


def _name(engine: "Engine") -> str:
    """Which store it is, in as few words as it takes."""
    if isinstance(engine, ServerEngine):
        return engine.shown
    if not isinstance(engine, FileEngine):
        return engine.capabilities.name
    try:
        return str(engine.path.resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(engine.path)
