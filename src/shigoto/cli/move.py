"""Moving all jobs to another store: `shigoto move`."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from shigoto.cli import output
from shigoto.cli.confirm import jobs, jobs_and_schedules, surely
from shigoto.cli.settings import Seconds
from shigoto.cli.target import existing, shared, suggest
from shigoto.engine.open import open_engine
from shigoto.model.errors import StoreError
from shigoto.model.time import host_clock

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine
    from shigoto.moving.move import Moved, Progress

WAIT = 30.0  # seconds
DAY = 86_400.0
PHASES = {
    "copying": "copied, while the old store works on",
    "draining": "have ended; no job is started in the old store any more",
    "closing": "copied, while the old store is closed",
    "moved": "copied",
}


@click.command()
@click.option(
    "--from",
    "source",
    required=True,
    metavar="STORE",
    envvar="SHIGOTO_MOVE_FROM",
    show_envvar=True,
    shell_complete=suggest("files"),
    help="The old store: a file, or postgresql://USER@HOST/DATABASE.",
)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="STORE",
    envvar="SHIGOTO_MOVE_TO",
    show_envvar=True,
    shell_complete=suggest("files"),
    help="The new one, which has neither jobs nor schedules yet.",
)
@click.option(
    "--wait",
    type=Seconds(0, DAY),
    default=WAIT,
    show_default=True,
    metavar="SECONDS",
    help="How long running jobs have to end, before others run them again in the new store.",
)
@click.option("--give-up", is_flag=True, help="Let the old store work on, and empty the new one.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def move(source: str, target: str, *, wait: float, give_up: bool, as_json: bool) -> None:
    """Move all jobs and schedules to another store, with their ids, numbers, keys and history.

    Work goes on while finished jobs are copied. Then the old store starts no more jobs, and closes for as long as it
    takes to copy the rest: whoever enqueues hears STORE.MOVING meanwhile, and may try again. No tick of a schedule
    is lost or fired twice: what was due while both were closed is caught up in the new store. At the end the old store
    says STORE.MOVED, and where its jobs are; its workers exit. It keeps its jobs, and nobody can run them there.

    If this is interrupted, run it again: it goes on where it was. On PostgreSQL it needs the role that owns the
    schema. A password in a command can be seen by others: put it into the variables, or into a passfile.

    \b
    Examples:
      shigoto move --from workers.db --to postgresql://jobs_migrator@db/shop
      shigoto move --from workers.db --to postgresql://jobs_migrator@db/shop --wait 300
    """
    from shigoto.cli.daemon import signals_interrupt
    from shigoto.moving.move import Move

    with (
        closing(existing(shared(open_engine(source)))) as old,
        closing(shared(open_engine(target))) as new,
        signals_interrupt(),
        Display() as display,
    ):
        plan = Move(old, new, wait=wait, tell=display.show)
        if give_up:
            plan.give_up()
            click.echo("The move was given up: the old store works on, and the new one is empty.", err=True)
            return
        moved = plan.run()
        tokens = _left_behind(old)
    names = plan.names
    surely(lambda: _report(moved, names, tokens, as_json=as_json), _sentence(moved, names, tokens))


def _left_behind(old: "Engine") -> int:
    """How many tokens still open the old store; they are not moved."""
    try:
        tokens, now = old.run(old.registry.tokens()), host_clock()
    except StoreError:  # the jobs are where they should be, which is what counts
        return 0
    return sum(token.alive(now) for token in tokens)


class Display:
    """How far a move is: a bar where somebody looks, else a line for each phase."""

    def __init__(self) -> None:
        self._drawn = output.can_redraw(sys.stderr)
        self._phase = ""

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._drawn and self._phase:
            click.echo("\r\x1b[K", nl=False, err=True)

    def show(self, progress: "Progress") -> None:
        """Show it."""
        if self._drawn:
            share = progress.done / progress.whole if progress.whole else 1.0
            text = f"{output.bar(share)} {progress.done} of {progress.whole} {PHASES[progress.phase]}"
            room = (output.width_of(sys.stderr) or len(text) + 1) - 1
            click.echo(f"\r\x1b[K{output.clip(text, room)}", nl=False, err=True)
        elif progress.phase != self._phase:
            click.echo(f"{progress.done} of {progress.whole} {PHASES[progress.phase]}", err=True)
        self._phase = progress.phase


def _report(moved: "Moved", names: tuple[str, str], tokens: int, *, as_json: bool) -> None:
    if as_json:
        record = {"from": names[0], "to": names[1], **structs.asdict(moved), "tokens_left_behind": tokens}
        output.print_json(record)
    else:
        click.echo(_sentence(moved, names, tokens))


def _sentence(moved: "Moved", names: tuple[str, str], tokens: int) -> str:
    old, new = names
    if moved.already:
        return f"{old} was moved to {new} before. Nothing was left to do."
    copied = jobs_and_schedules(moved.jobs, moved.schedules)
    text = f"{old} was moved to {new}: {copied} copied, closed for {moved.closed_for:.1f} s."
    if moved.released:
        text += f" {jobs(moved.released)} still running then run again in the new store."
    text += " Use the new address everywhere now, and start workers there."
    if tokens:
        stay = "1 token of the service stays" if tokens == 1 else f"{tokens} tokens of the service stay"
        text += f" {stay} behind: make new ones there with shigoto token create."
    return text
