"""The demo's display: a picture of the queue, drawn over itself, or plain lines for no terminal."""

from typing import TextIO

import click

from shigoto.cli.output import bar, clip, one_line, total
from shigoto.cli.watch import Canvas, filled
from shigoto.demo.show import SHOWN_EVENTS, SHOWN_RUNNING, Report, Snapshot
from shigoto.model.job import Job
from shigoto.model.secrets import without_key

PHASES = {
    "starting": "starting two worker processes",
    "producing": "jobs go in, workers take them out",
    "draining": "no new jobs; the last ones are run",
}


class Screen:
    """The picture, drawn over itself."""

    def __init__(self, canvas: Canvas, *, colour: bool) -> None:
        self._canvas = canvas
        self._colour = colour

    def show(self, snapshot: Snapshot) -> None:
        """Draw it."""
        self._canvas.draw(picture(snapshot, self._canvas.size.columns, colour=self._colour))


class Ticker:
    """A line about once a second, with the newest event."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0.0
        self._event = ""

    def show(self, snapshot: Snapshot) -> None:
        """Write a line if it is time for one."""
        if snapshot.seconds < self._next:
            return
        self._next = snapshot.seconds + 1
        counts = total(snapshot.queues)
        self._stream.write(
            f"{snapshot.seconds:5.1f} s  enqueued {snapshot.enqueued:5}  pending {counts.pending:4}"
            f"  processing {counts.processing:3}  completed {counts.completed:5}"
            f"  retried {snapshot.retried:3}  failed {counts.failed}\n"
        )
        if snapshot.events and snapshot.events[-1] != self._event:
            self._event = snapshot.events[-1]
            self._stream.write(f"         {one_line(self._event)}\n")
        self._stream.flush()


def picture(snapshot: Snapshot, width: int, *, colour: bool) -> list[str]:
    """The lines of one picture; always as many, so that nothing jumps."""
    counts = total(snapshot.queues)
    workers = f"{snapshot.workers} worker{'' if snapshot.workers == 1 else 's'}"
    lines = [
        f"Shigoto demo: {workers} on {snapshot.store}",
        f"{snapshot.seconds:.1f} s: {PHASES[snapshot.phase]}",
        "",
        f"  {'enqueued':<11}{snapshot.enqueued:6}",
        _gauge("pending", counts.pending, snapshot.enqueued),
        _gauge("processing", counts.processing, snapshot.enqueued),
        _gauge("completed", counts.completed, snapshot.enqueued) + f"  {snapshot.rate:.0f} jobs/s",
        _gauge("retried", snapshot.retried, snapshot.enqueued),
        _gauge("failed", counts.failed, snapshot.enqueued),
        "",
        "Running",
        *filled([_running(job) for job in snapshot.running], SHOWN_RUNNING),
        "",
        "Last events",
        *filled([f"  {event}" for event in snapshot.events], SHOWN_EVENTS),
    ]
    return [_painted(clip(one_line(line), width - 1), colour=colour) for line in lines]


def _gauge(name: str, count: int, whole: int) -> str:
    return f"  {name:<11}{count:6}  {bar(count / whole if whole else 0)}"


def _running(job: Job) -> str:
    if job.progress is None:
        return f"  #{job.number:<6}{job.task}"
    share = f"{bar(job.progress)} {job.progress:4.0%}"
    return f"  #{job.number:<6}{job.task:<14}{share}  {without_key(job.progress_text or '')}"


HUES = {
    "  pending": "yellow",
    "  processing": "cyan",
    "  completed": "green",
    "  retried": "magenta",
    "  failed": "red",
}


def _painted(line: str, *, colour: bool) -> str:
    if not colour:
        return line
    if line and not line.startswith(" "):
        return click.style(line, bold=True)
    for start, hue in HUES.items():
        if line.startswith(start):
            return click.style(line, fg=hue)
    if " failed and will run again" in line:
        return click.style(line, fg="magenta")
    return line


def summary(report: Report, *, kept: str | None) -> list[str]:
    """What was shown, and what to try next."""
    ends = f"{report.completed} completed, {report.retried} of them after a retry, {report.failed} failed"
    kinds = "async tasks and plain functions, with priorities, delays, progress and retries"
    elsewhere = "`shigoto enqueue user_created hello`, then `shigoto stats`"
    lines = [
        f"{report.enqueued} jobs in {report.seconds:.1f} s on one SQLite file: {ends}, {report.lost} lost.",
        f"{report.workers} worker processes shared them: {kinds}.",
        f"Next: `shigoto worker`; in another terminal, in this folder, {elsewhere}.",
    ]
    if kept is not None:
        lines.append(f"The store is kept; look into it: shigoto list {kept} completed")
    return lines
