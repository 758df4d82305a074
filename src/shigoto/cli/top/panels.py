"""The three panels: queues, running jobs, failures; each a title, headings and rows, in as many lines as it gets."""

from collections.abc import Callable, Sequence
from datetime import datetime

import click

from shigoto.cli.output import PREVIEW, Column, Paint, bar, cells, clip, moment, one_line, span, table
from shigoto.cli.top.looking import Sight
from shigoto.cli.top.state import Choices, Panel, rows_of
from shigoto.cli.watch import Pace, filled
from shigoto.model.job import Counts, Job, State
from shigoto.model.secrets import without_key

MARK, NO_MARK = "> ", "  "
BAR = 10  # cells
NO_ROWS = {
    Panel.QUEUES: "no queue yet",
    Panel.RUNNING: "no job runs",
    Panel.FAILURES: "no job has failed",
}


class Panels:
    """The panels of one picture."""

    def __init__(self, sight: Sight, pace: Pace, choices: Choices, now: datetime, colour: bool) -> None:
        self._sight = sight
        self._pace = pace
        self._choices = choices
        self._now = now
        self._colour = colour
        self._worker_names = {worker.id: worker.name for worker in sight.workers}

    def height(self, panel: Panel) -> int:
        """How many lines the panel would fill: a title, headings, its rows, and a blank at the end."""
        count = len(rows_of(self._sight, panel))
        return count + 3 if count else 2

    def lines(self, panel: Panel, width: int, height: int) -> list[str]:
        """The panel in exactly so many lines."""
        columns, rows = self._table(panel)
        lines = [self._title(panel, width)]
        room = height - 2
        if rows and room > 0:
            place = self._choices.cursor.place if panel is self._choices.panel else 0
            chosen = self._chosen(panel)
            start = window(len(rows), room, place if chosen is None else chosen)
            lines += self._rows(columns, rows[start : start + room], width, _less(chosen, start))
        return filled(lines, height)

    def _chosen(self, panel: Panel) -> int | None:
        """The place of the chosen row; where it is gone, none is marked."""
        rows, chosen = rows_of(self._sight, panel), self._choices.cursor.chosen
        return rows.index(chosen) if panel is self._choices.panel and chosen in rows else None

    def _title(self, panel: Panel, width: int) -> str:
        words = {
            Panel.QUEUES: "Queues",
            Panel.RUNNING: "Running",
            Panel.FAILURES: "Last failures",
        }[panel]
        focus = panel is self._choices.panel
        if not (count := len(rows_of(self._sight, panel))):
            words += f": {self._nothing(panel)}"
        elif panel is not Panel.QUEUES and count < (whole := self._whole(panel)):
            words += f": {count} of {whole}{self._among(panel)}"
        else:
            words += f": {count}"
        line = clip(f"{'[' if focus else ' '}{words}{']' if focus else ''} ", width)
        line += "─" * (width - cells(line))
        return click.style(line, bold=True, fg="cyan" if focus else None) if self._colour else line

    def _nothing(self, panel: Panel) -> str:
        return "none that matches" if self._choices.filtered and panel is not Panel.QUEUES else NO_ROWS[panel]

    def _whole(self, panel: Panel) -> int:
        counts = self._sight.queues.values()
        return sum(each.processing if panel is Panel.RUNNING else each.failed for each in counts)

    def _among(self, panel: Panel) -> str:
        """Which they are, if not all were looked at: others may run for longer, or have failed later."""
        seen = self._sight.among.get(State.PROCESSING if panel is Panel.RUNNING else State.FAILED)
        return "" if seen is None else f", found among the newest {seen}"

    def _rows(
        self, columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, chosen: int | None
    ) -> list[str]:
        headings, *lines = table(columns, rows, width - len(MARK))
        marked = [f"{MARK if place == chosen else NO_MARK}{line}" for place, line in enumerate(lines)]
        if not self._colour:
            return [NO_MARK + headings, *marked]
        if chosen is not None:
            plain = click.unstyle(marked[chosen])
            marked[chosen] = click.style(plain + " " * (width - cells(plain)), reverse=True)
        return [click.style(NO_MARK + headings, fg="bright_black"), *marked]

    def _table(self, panel: Panel) -> tuple[list[Column], list[list[str]]]:
        match panel:
            case Panel.QUEUES:
                return self._queue_columns(), [
                    self._queue(name, counts) for name, counts in self._sight.queues.items()
                ]
            case Panel.RUNNING:
                return self._running_columns(), [self._running(job) for job in self._sight.running]
            case Panel.FAILURES:
                return self._failure_columns(), [self._failure(job) for job in self._sight.failed]

    def _queue_columns(self) -> list[Column]:
        return [
            Column("queue", least=8),
            Column("state", paint=self._hue("yellow", "paused"), spare=1),
            Column("ready", right=True),
            Column("scheduled", right=True, spare=6),
            Column("processing", right=True, spare=3),
            Column("completed", right=True, spare=5),
            Column("failed", right=True, spare=2, paint=self._hue("red", "", but="0")),
            Column("cancelled", right=True, spare=7),
            Column("jobs/s", right=True, spare=4),
        ]

    def _queue(self, name: str, counts: Counts) -> list[str]:
        speed = self._pace.per_second(name)
        return [
            one_line(name),
            "paused" if name in self._sight.paused else "open",
            str(counts.pending - counts.scheduled),
            str(counts.scheduled),
            str(counts.processing),
            str(counts.completed),
            str(counts.failed),
            str(counts.cancelled),
            f"{speed:.1f}" if speed else "-",
        ]

    def _running_columns(self) -> list[Column]:
        return [
            Column("job", right=True),
            Column("task", least=8),
            Column("queue", least=6, spare=5),
            Column("for", right=True, spare=3),
            Column("attempt", spare=1, paint=self._hue("magenta", "after")),
            Column("worker", least=6, spare=4),
            Column("progress", spare=2, paint=self._hue("cyan", "")),
            Column("", least=8, spare=6),
        ]

    def _running(self, job: Job) -> list[str]:
        share = "" if job.progress is None else f"{bar(job.progress, BAR)} {job.progress:4.0%}"
        return [
            f"#{job.number}",
            one_line(job.task),
            one_line(job.queue),
            span(self._now - (job.started_at or self._now)),
            history(job),
            one_line(self._worker_names.get(job.worker, "gone") if job.worker else "gone"),
            share,
            one_line(without_key(job.progress_text or "")[:PREVIEW]),
        ]

    def _failure_columns(self) -> list[Column]:
        return [
            Column("job", right=True),
            Column("task", least=8),
            Column("queue", least=6, spare=4),
            Column("when", spare=2),
            Column("kind", spare=1, paint=self._hue("red", "")),
            Column("attempts", right=True, spare=3),
            Column("error", least=10),
        ]

    def _failure(self, job: Job) -> list[str]:
        first, *_ = without_key(job.error or "").lstrip()[:PREVIEW].split("\n")
        return [
            f"#{job.number}",
            one_line(job.task),
            one_line(job.queue),
            moment(job.finished_at or job.created_at, self._now),
            str(job.failure_kind or ""),
            str(job.attempt),
            one_line(first),
        ]

    def _hue(self, colour: str, word: str, but: str | None = None) -> Paint | None:
        """Paints cells that have this word in them."""
        return _painter(colour, word, but) if self._colour else None


def _painter(colour: str, word: str, but: str | None) -> Callable[[str], str]:
    return lambda text: click.style(text, fg=colour) if word in text and text != but else text


def history(job: Job) -> str:
    """Which attempt it is, and what is worth knowing of it: that it came after a crash, that it is to stop."""
    words = [str(job.attempt)]
    if job.crashes:
        words.append("after a crash" if job.crashes == 1 else f"after {job.crashes} crashes")
    if job.cancel_requested_at is not None:
        words.append("asked to stop")
    return ", ".join(words)


def window(count: int, room: int, chosen: int) -> int:
    """The first of the rows that are shown, so that the chosen one is in the middle where that is possible."""
    return max(0, min(chosen - room // 2, count - room))


def _less(place: int | None, start: int) -> int | None:
    return None if place is None else place - start
