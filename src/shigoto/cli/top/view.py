"""The picture of the live view: what was read and what was chosen, as the lines of a terminal of any size.

    header   store, workers, speed, and on a high terminal the counts
    panels   queues, running jobs, failures; each a title, headings and rows, in as many lines as it gets
    footer   the last message, and the keys that there are

All of it is pure.
"""

from collections.abc import Sequence
from datetime import datetime

import click
from msgspec import Struct

from shigoto.cli import show
from shigoto.cli.output import (
    PREVIEW,
    Column,
    Columns,
    Paint,
    bar,
    cells,
    clip,
    moment,
    one_line,
    span,
    table,
    table_parts,
    total,
    wrapped,
)
from shigoto.cli.top.store import PANELS, Choices, Panel, TopSnapshot, named, rows_of
from shigoto.cli.watch import Pace, Size, filled
from shigoto.model.job import Counts, Job, State
from shigoto.model.secrets import without_key
from shigoto.model.worker import WorkerRecord

MARK, NO_MARK = "> ", "  "
BAR = 10  # cells
NO_ROWS = {Panel.QUEUES: "no queue yet", Panel.RUNNING: "no job runs", Panel.FAILURES: "no job has failed"}

LEAST = Size(40, 10)
LOW = 16  # lines, below which the totals are left out, and messages are cut to one line
MOST_SAID = 3  # lines of a message
GAP = "   "
SPARKS = "▁▂▃▄▅▆▇█"
LEAST_SPARKS = 5

HELP = (
    ("↑ ↓, k j", "choose a row; Page Up, Page Down, g and G go further"),
    ("Tab", "the next panel: queues, running jobs, failures"),
    ("Enter", "all about the chosen job; Esc goes back"),
    ("p", "pause the chosen queue, or resume it"),
    ("c", "ask the chosen running job to stop"),
    ("r", "retry the chosen failed job"),
    ("R", "retry all failed jobs of its task that match the filter"),
    ("/", "show only jobs that match, such as task:send queue:mail; Esc shows all again"),
    ("Ctrl-L", "look again and draw everything anew"),
    ("?", "this help"),
    ("q, Ctrl-C", "leave"),
)
KEYS = {
    Panel.QUEUES: ("q quit", "? help", "Tab panel", "p pause/resume", "/ filter"),
    Panel.RUNNING: ("q quit", "? help", "Tab panel", "c cancel", "Enter details", "/ filter"),
    Panel.FAILURES: ("q quit", "? help", "Tab panel", "r retry", "R retry task", "Enter details", "/ filter"),
}


class Panels:
    def __init__(
        self, snapshot: TopSnapshot, pace: Pace, choices: Choices, now: datetime, colour: bool
    ) -> None:
        self._snapshot = snapshot
        self._pace = pace
        self._choices = choices
        self._now = now
        self._colour = colour
        self._worker_names = {worker.id: worker.name for worker in snapshot.workers}

    def height(self, panel: Panel) -> int:
        """How many lines the panel would fill: a title, headings, its rows, and a blank at the end."""
        count = len(rows_of(self._snapshot, panel))
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
            marked = None if chosen is None else chosen - start
            lines += self._rows(columns, rows[start : start + room], width, marked)
        return filled(lines, height)

    def _chosen(self, panel: Panel) -> int | None:
        """The place of the chosen row; where it is gone, none is marked."""
        rows, chosen = rows_of(self._snapshot, panel), self._choices.cursor.chosen
        return rows.index(chosen) if panel is self._choices.panel and chosen in rows else None

    def _title(self, panel: Panel, width: int) -> str:
        words = {Panel.QUEUES: "Queues", Panel.RUNNING: "Running", Panel.FAILURES: "Last failures"}[panel]
        focus = panel is self._choices.panel
        if not (count := len(rows_of(self._snapshot, panel))):
            is_filtered = self._choices.filtered and panel is not Panel.QUEUES
            words += f": {'none that matches' if is_filtered else NO_ROWS[panel]}"
        elif panel is not Panel.QUEUES and count < (whole := self._whole(panel)):
            words += f": {count} of {whole}{self._among(panel)}"
        else:
            words += f": {count}"
        line = clip(f"{'[' if focus else ' '}{words}{']' if focus else ''} ", width)
        line += "─" * (width - cells(line))
        return click.style(line, bold=True, fg="cyan" if focus else None) if self._colour else line

    def _whole(self, panel: Panel) -> int:
        counts = self._snapshot.queues.values()
        return sum(each.processing if panel is Panel.RUNNING else each.failed for each in counts)

    def _among(self, panel: Panel) -> str:
        """Which they are, if not all were looked at: others may run for longer, or have failed later."""
        seen = self._snapshot.among.get(State.PROCESSING if panel is Panel.RUNNING else State.FAILED)
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
                return table_parts(list(self._snapshot.queues.items()), self._queue_columns())
            case Panel.RUNNING:
                return table_parts(self._snapshot.running, self._running_columns())
            case Panel.FAILURES:
                return table_parts(self._snapshot.failed, self._failure_columns())

    def _queue_columns(self) -> Columns[tuple[str, Counts]]:
        paused, failing = self._hue("yellow", "paused"), self._hue("red", "", but="0")
        return [
            (Column("queue", least=8), lambda each: one_line(each[0])),
            (Column("state", paint=paused, spare=1), lambda each: self._state(each[0])),
            (Column("ready", right=True), lambda each: str(each[1].pending - each[1].scheduled)),
            (Column("scheduled", right=True, spare=6), lambda each: str(each[1].scheduled)),
            (Column("processing", right=True, spare=3), lambda each: str(each[1].processing)),
            (Column("completed", right=True, spare=5), lambda each: str(each[1].completed)),
            (Column("failed", right=True, spare=2, paint=failing), lambda each: str(each[1].failed)),
            (Column("cancelled", right=True, spare=7), lambda each: str(each[1].cancelled)),
            (Column("jobs/s", right=True, spare=4), lambda each: self._speed(each[0])),
        ]

    def _state(self, queue: str) -> str:
        return "paused" if queue in self._snapshot.paused else "open"

    def _speed(self, queue: str) -> str:
        speed = self._pace.per_second(queue)
        return f"{speed:.1f}" if speed else "-"

    def _running_columns(self) -> Columns[Job]:
        return [
            (Column("job", right=True), lambda job: f"#{job.number}"),
            (Column("task", least=8), lambda job: one_line(job.task)),
            (Column("queue", least=6, spare=5), lambda job: one_line(job.queue)),
            (Column("for", right=True, spare=3), lambda job: span(self._now - (job.started_at or self._now))),
            (Column("attempt", spare=1, paint=self._hue("magenta", "after")), history),
            (Column("worker", least=6, spare=4), self._worker),
            (Column("progress", spare=2, paint=self._hue("cyan", "")), progress),
            (
                Column("", least=8, spare=6),
                lambda job: one_line(without_key(job.progress_text or "")[:PREVIEW]),
            ),
        ]

    def _worker(self, job: Job) -> str:
        return one_line(self._worker_names.get(job.worker, "gone") if job.worker else "gone")

    def _failure_columns(self) -> Columns[Job]:
        return [
            (Column("job", right=True), lambda job: f"#{job.number}"),
            (Column("task", least=8), lambda job: one_line(job.task)),
            (Column("queue", least=6, spare=4), lambda job: one_line(job.queue)),
            (Column("when", spare=2), lambda job: moment(job.finished_at or job.created_at, self._now)),
            (Column("kind", spare=1, paint=self._hue("red", "")), lambda job: str(job.failure_kind or "")),
            (Column("attempts", right=True, spare=3), lambda job: str(job.attempt)),
            (Column("error", least=10), first_line),
        ]

    def _hue(self, colour: str, word: str, but: str | None = None) -> Paint | None:
        """Paints cells that have this word in them."""
        if not self._colour:
            return None
        return lambda text: click.style(text, fg=colour) if word in text and text != but else text


def progress(job: Job) -> str:
    return "" if job.progress is None else f"{bar(job.progress, BAR)} {job.progress:4.0%}"


def first_line(job: Job) -> str:
    """The beginning of its error."""
    return one_line(without_key(job.error or "").lstrip()[:PREVIEW].split("\n")[0])


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


class Scene(Struct, frozen=True, kw_only=True):
    store: str
    snapshot: TopSnapshot | None
    pace: Pace
    choices: Choices
    size: Size
    now: datetime
    colour: bool


class Part(Struct, frozen=True):
    text: str
    colour: str | None = None


def drawn(scene: Scene) -> list[str]:
    """The lines, as many as the terminal has, none wider than it is."""
    width, height = scene.size
    if width < LEAST.columns or height < LEAST.lines:
        said = f"The terminal is too small: {width}x{height}, and {LEAST.columns}x{LEAST.lines} is the least."
        return filled([clip(line, width) for line in wrapped(said, max(1, width))], height)
    head, foot = header(scene), footer(scene)
    room = height - len(head) - len(foot)
    return [*head, *filled(_body(scene, room), room), *foot]


def header(scene: Scene) -> list[str]:
    """Where, when, who and how fast; on a high terminal also how many."""
    width = scene.size.columns
    clock = f"{scene.now.astimezone():%H:%M:%S}"
    store = clip(f"shigoto top  {one_line(scene.store)}", width - len(clock) - len(GAP))
    lines = [_bold(f"{store}{' ' * (width - cells(store) - len(clock))}{clock}", scene.colour)]
    if scene.snapshot is None:
        return [*lines, "No look at the store yet."]
    parts = [*_workers(scene.snapshot.workers, scene.now), *_speed(scene.pace)]
    room = width - sum(cells(part.text) + len(GAP) for part in parts)
    lines.append(_joined([*parts, *_recent(scene.pace, room)], scene))
    return lines if scene.size.lines < LOW else [*lines, _joined(_totals(scene.snapshot), scene)]


def _workers(workers: Sequence[WorkerRecord], now: datetime) -> list[Part]:
    overdue = sum(worker.lease_until < now for worker in workers)
    stopping = sum(worker.stopping and worker.lease_until >= now for worker in workers)
    live = len(workers) - overdue - stopping
    parts = [Part(f"{live} live worker{'' if live == 1 else 's'}", "green" if live else "red")]
    if overdue:
        parts.append(Part(f"{overdue} overdue", "red"))
    if stopping:
        parts.append(Part(f"{stopping} stopping", "yellow"))
    return parts


def _speed(pace: Pace) -> list[Part]:
    failures = pace.failures_of_last_minute()
    return [
        Part(f"{rate(pace.per_second())} jobs/s"),
        Part(f"{failures} failed/min", "red" if failures else None),
    ]


def _recent(pace: Pace, room: int) -> list[Part]:
    """The speed of the last minute, or of as much of it as there is room for."""
    columns = pace.columns()[-max(0, room) :] if room >= LEAST_SPARKS else []
    return [Part(spark(columns), "cyan")] if columns else []


def _totals(snapshot: TopSnapshot) -> list[Part]:
    counts = total(snapshot.queues)
    parts = [
        Part(f"{counts.processing} processing", "cyan"),
        Part(f"{counts.pending - counts.scheduled} ready", "yellow"),
        Part(f"{counts.failed} failed", "red" if counts.failed else None),
        Part(f"{counts.scheduled} scheduled"),
        Part(f"{counts.completed} completed", "green"),
        Part(f"{counts.cancelled} cancelled"),
    ]
    return [*parts, Part(f"{counts.blocked} blocked")] if counts.blocked else parts


def rate(per_second: float) -> str:
    """A rate in as few digits as say something."""
    return f"{per_second:.0f}" if per_second >= 100 or per_second == 0 else f"{per_second:.1f}"


def spark(values: Sequence[float]) -> str:
    """A little picture of values: nothing is the lowest mark, anything is higher."""
    most = max(values, default=0.0)
    if most <= 0:
        return SPARKS[0] * len(values)
    top = len(SPARKS) - 1
    return "".join(SPARKS[0 if value <= 0 else max(1, round(value / most * top))] for value in values)


def footer(scene: Scene) -> list[str]:
    """What there is to say, in a line or a few, and which keys there are."""
    text, colour = _said(scene.choices)
    width, height = scene.size
    if scene.choices.typed is not None and not scene.choices.told.bad:
        lines = [_end_of(one_line(text), width)]
    else:
        lines = wrapped(one_line(text), width)[: 1 if height < LOW else MOST_SAID]
    return [
        *(_painted(line, colour, scene.colour) for line in lines),
        _painted(_keys(scene), "bright_black", scene.colour),
    ]


def _said(choices: Choices) -> tuple[str, str | None]:
    """The one thing that matters most now, and its colour."""
    if choices.question is not None:
        return f"{choices.question.text} (y/n)", "yellow"
    if choices.told.text and choices.told.bad:
        return choices.told.text, "red"
    if choices.typed is not None:
        return f"filter: {choices.typed}_", "yellow"
    if choices.trouble:
        return choices.trouble, "red"
    if choices.busy is not None:
        doing = named(choices.busy)
        return f"{doing[0].upper()}{doing[1:]} …", "yellow"
    if choices.told.text:
        return choices.told.text, "green"
    return (f"Jobs that match {choices.filtered} (Esc shows all)", None) if choices.filtered else ("", None)


def _end_of(text: str, width: int) -> str:
    """The end of a text, which is what counts while somebody types."""
    while cells(text) > width:
        text = text[1:]
    return text


def _keys(scene: Scene) -> str:
    choices = scene.choices
    if choices.question is not None:
        words: Sequence[str] = ("y yes", "any other key no")
    elif choices.typed is not None:
        words = ("Enter shows what matches", "Esc goes back", "Ctrl-U empties it")
    elif choices.page != "panels":
        words = ("q quit", "Esc back", "↑ ↓ scroll")
    else:
        words = KEYS[choices.panel]
    line = ""
    for word in words:
        longer = f"{line}{GAP if line else ''}{word}"
        if cells(longer) > scene.size.columns:
            break
        line = longer
    return line


def _body(scene: Scene, room: int) -> list[str]:
    if scene.choices.page == "help":
        return _scrolled(["Keys", "", *(f"  {keys:<12}{meaning}" for keys, meaning in HELP)], scene, room)
    if scene.choices.page == "job":
        return _scrolled(_story_lines(scene), scene, room)
    if scene.snapshot is None:
        return []
    panels = Panels(scene.snapshot, scene.pace, scene.choices, scene.now, scene.colour)
    shares = shared_out([panels.height(panel) for panel in PANELS], room, PANELS.index(scene.choices.panel))
    lines: list[str] = []
    for panel, share in zip(PANELS, shares, strict=True):
        lines += panels.lines(panel, scene.size.columns, share)
    return lines


def _story_lines(scene: Scene) -> list[str]:
    story = None if scene.snapshot is None else scene.snapshot.story
    opened = scene.choices.opened
    if opened is None or story is None or story.job.id != opened.id:
        return [f"#{opened.number if opened else ''} is being looked up, or is gone."]
    lines = show.page(story, scene.now, width=scene.size.columns, all_traces=False, log_lines=show.LOG_LINES)
    return [one_line(click.unstyle(line)) for line in lines]


def _scrolled(lines: Sequence[str], scene: Scene, room: int) -> list[str]:
    """The part of a long text that is looked at; its headings are the lines that are not indented."""
    start = max(0, min(scene.choices.scrolled, len(lines) - room))
    shown = [clip(line, scene.size.columns) for line in lines[start : start + room]]
    return [_bold(line, scene.colour) if line[:1].strip() else line for line in shown]


def shared_out(wanted: Sequence[int], room: int, first: int) -> list[int]:
    """How many lines each panel gets: all it wants if there is room, else a fair share, with more for the first.

    A line is enough to say what is there; two, with a heading and no row beneath it, are not worth having.
    """
    shares = [1] * len(wanted)
    shares[first] += max(0, min(wanted[first], max(4, room // 2), room - len(wanted) + 1) - 1)
    left = room - sum(shares)
    while left > 0:
        open_to = [place for place, each in enumerate(wanted) if shares[place] < each]
        if not open_to:
            break
        shares[min(open_to, key=lambda place: (shares[place], place != first))] += 1
        left -= 1
    spared = [place for place, each in enumerate(wanted) if shares[place] == 2 < each and place != first]
    for place in spared:
        shares[place] = 1
    shares[first] = min(wanted[first], shares[first] + len(spared))
    return shares


def _joined(parts: Sequence[Part], scene: Scene) -> str:
    """As many of the parts as there is room for, in their order."""
    line, taken = "", 0
    for part in parts:
        needed = cells(part.text) + (len(GAP) if taken else 0)
        if taken + needed > scene.size.columns:
            break
        line += (GAP if taken else "") + _painted(part.text, part.colour, scene.colour)
        taken += needed
    return line


def _painted(text: str, colour: str | None, colours: bool) -> str:
    return click.style(text, fg=colour) if colours and colour and text else text


def _bold(text: str, colours: bool) -> str:
    return click.style(text, bold=True) if colours and text else text
