"""Queues: what they hold, and pausing and resuming them."""

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import click

from shigoto.cli import output
from shigoto.cli.arguments import audited, misuse
from shigoto.cli.confirm import print_result
from shigoto.cli.output import Column, Columns
from shigoto.cli.target import answers, looks_like_store, split_store, suggest, takes_words, target_of
from shigoto.options import check_name
from shigoto.queues import MOST_PENDING, Queue, change_op, list_op, pause_op

PAUSED, OPEN = "paused", "open"


@click.command()
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option(
    "--set", "name", metavar="QUEUE", shell_complete=suggest("queues"), help="Change this queue first."
)
@click.option(
    "--max-pending", type=click.IntRange(0, MOST_PENDING), metavar="N",
    help="With --set: refuse more pending jobs than that; 0 for no limit.",
)  # fmt: skip
@answers
def queues(
    ctx: click.Context, store: str | None, *, name: str | None, max_pending: int | None, as_json: bool
) -> None:
    """Show every queue that has had a job or a setting.

    The last column tells how long completed, failed and cancelled jobs are kept, where that was set for the
    queue. Workers start no jobs of a queue that is paused.

    A queue with a limit (--set QUEUE --max-pending N) refuses jobs that come in by HTTP, by this command line
    or by a schedule while so many are pending, those that are due later among them. An application that
    enqueues on a store of its own is not limited.
    """
    if (name is None) != (max_pending is None):
        raise click.UsageError("--set and --max-pending go together.", ctx)
    with misuse(ctx):
        chosen = None if name is None else check_name(name, "The queue")
    with closing(target_of(ctx).existing_store(store)) as engine:
        if chosen is not None:
            engine.run(change_op(audited(engine), chosen, max_pending=max_pending or None))
        found = engine.run(list_op(engine))

    if as_json:
        output.print_json(found)
    elif not found:
        click.echo("There are no queues: there was never a job.")
    else:
        output.print_lines(queues_table(found, output.width_of()))


def queues_table(found: Sequence[Queue], width: int | None) -> list[str]:
    columns: Columns[Queue] = [
        (Column("queue", least=5), lambda queue: output.one_line(queue.name)),
        (
            Column("state", paint=output.painter({PAUSED: "yellow"})),
            lambda queue: PAUSED if queue.paused else OPEN,
        ),
        (Column("pending", right=True), lambda queue: str(queue.counts.pending)),
        (
            Column("limit", right=True),
            lambda queue: "" if queue.max_pending is None else str(queue.max_pending),
        ),
        (Column("scheduled", right=True, spare=4), lambda queue: str(queue.counts.scheduled)),
        (Column("processing", right=True, spare=1), lambda queue: str(queue.counts.processing)),
        (Column("failed", right=True, spare=2), lambda queue: str(queue.counts.failed)),
        (Column("completed", right=True, spare=3), lambda queue: str(queue.counts.completed)),
        (Column("kept for", spare=5), _kept_for),
    ]
    if all(queue.max_pending is None for queue in found):
        columns = [each for each in columns if each[0].title != "limit"]
    return output.table_of(found, columns, width)


def _kept_for(queue: Queue) -> str:
    kept = (queue.keep_completed_for, queue.keep_failed_for, queue.keep_cancelled_for)
    spans = ["default" if length is None else output.span(length) for length in kept]
    return "default" if kept == (None, None, None) else ", ".join(spans)


class Switched(NamedTuple):
    name: str
    before: Queue | None

    def sentence(self, *, paused: bool) -> str:
        if self.before is None:
            note = " No job was ever in it: is the name right?"
            return f"Queue {self.name} {'is paused' if paused else 'was not paused'}.{note}"
        counts = self.before.counts
        if self.before.paused is paused:
            return f"Queue {self.name} was {'paused' if paused else 'open'} already."
        if paused:
            running = f", {counts.processing} still running" if counts.processing else ""
            return f"Queue {self.name} is paused: {counts.pending} pending{running}."
        return f"Queue {self.name} is open again: {counts.pending} pending."


@click.command()
@takes_words("[STORE] QUEUE...", "store_then_queues")
@answers
def pause(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> None:
    """Let no worker start jobs of these queues; those that run go on.

    It holds for every worker and until `shigoto resume`. Jobs can be stored in a paused queue as ever.
    """
    _switch(ctx, words, paused=True, as_json=as_json)


@click.command()
@takes_words("[STORE] QUEUE...", "store_then_queues")
@answers
def resume(ctx: click.Context, words: tuple[str, ...], *, as_json: bool) -> None:
    """Let workers start jobs of these queues again."""
    _switch(ctx, words, paused=False, as_json=as_json)


def _switch(ctx: click.Context, words: Sequence[str], *, paused: bool, as_json: bool) -> None:
    store, given = split_store(words)
    with misuse(ctx):
        names = [check_name(name, "The queue") for name in dict.fromkeys(given)]
    if not names:
        hint = f" {store} is the store." if store and looks_like_store(store) else ""
        raise click.UsageError(f"Which queue? Write its name.{hint}", ctx)
    switched: list[Switched] = []
    with closing(target_of(ctx).existing_store(store)) as engine:
        before = {queue.name: queue for queue in engine.run(list_op(engine))}
        for name in names:
            if paused or name in before:
                engine.run(pause_op(audited(engine), name, paused=paused))
            switched.append(Switched(name, before.get(name)))
    told = [one.sentence(paused=paused) for one in switched]
    records = [{"queue": one.name, "paused": paused, "known": one.before is not None} for one in switched]
    print_result(records, "\n".join(told), as_json=as_json, done=" ".join(told))
