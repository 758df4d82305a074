"""The picture: what was read and what was chosen, as the lines of a terminal of any size. Pure, all of it."""

from collections.abc import Sequence
from datetime import datetime

import click
from msgspec import Struct

from shigoto.cli import show
from shigoto.cli.output import cells, clip, one_line, total, wrapped
from shigoto.cli.top.acting import named
from shigoto.cli.top.looking import Sight
from shigoto.cli.top.panels import Panels
from shigoto.cli.top.state import PANELS, Choices, Panel
from shigoto.cli.watch import Pace, Size, filled
from shigoto.model.worker import WorkerRecord

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


class Scene(Struct, frozen=True, kw_only=True):
    """Everything that a picture is made of."""

    store: str
    sight: Sight | None
    pace: Pace
    choices: Choices
    size: Size
    now: datetime
    colour: bool


class Part(Struct, frozen=True):
    """A few words of a line, in a colour."""

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
    if scene.sight is None:
        return [*lines, "No look at the store yet."]
    parts = [*_workers(scene.sight.workers, scene.now), *_speed(scene.pace)]
    lines.append(_joined([*parts, *_recent(scene.pace, _room_beside(parts, width))], scene))
    return lines if scene.size.lines < LOW else [*lines, _joined(_totals(scene.sight), scene)]


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


def _room_beside(parts: Sequence[Part], width: int) -> int:
    return width - sum(cells(part.text) + len(GAP) for part in parts)


def _totals(sight: Sight) -> list[Part]:
    counts = total(sight.queues)
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
        return _scrolled(_story(scene), scene, room)
    if scene.sight is None:
        return []
    panels = Panels(scene.sight, scene.pace, scene.choices, scene.now, scene.colour)
    shares = shared_out([panels.height(panel) for panel in PANELS], room, PANELS.index(scene.choices.panel))
    lines: list[str] = []
    for panel, share in zip(PANELS, shares, strict=True):
        lines += panels.lines(panel, scene.size.columns, share)
    return lines


def _story(scene: Scene) -> list[str]:
    story = None if scene.sight is None else scene.sight.story
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
