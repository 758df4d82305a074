"""The output of commands: tables that fit the terminal, colours where they are wanted, JSON for programs."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from math import ceil
from typing import NamedTuple, TextIO, TypeVar
from unicodedata import combining, east_asian_width

import click
import msgspec

from shigoto.model.job import Counts, Job, State
from shigoto.model.secrets import masked_payload, presented, without_key

GAP = "  "
BAR = 24  # cells
FULL, EMPTY = "█", "░"
PREVIEW = 200  # characters of a payload or an error that are worth laying out

COLOURS = {
    State.PENDING: "yellow",
    State.PROCESSING: "cyan",
    State.COMPLETED: "green",
    State.FAILED: "red",
    State.CANCELLED: "magenta",
    State.BLOCKED: "blue",
}

OBEYED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}  # by terminals

Paint = Callable[[str], str]
T = TypeVar("T")


class Column(NamedTuple):
    """One column: its title, how it is aligned, and how narrow it may get (None: as wide as its content).

    Where not all columns fit, the one with the highest `spare` is left out first; 0 is for those that stay.
    """

    title: str
    right: bool = False
    least: int | None = None
    spare: int = 0
    paint: Paint | None = None


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The lines of a table, at most `width` cells wide; None is for a reader who has no width."""
    widths = [
        max(cells(column.title), *(cells(row[place]) for row in rows)) if rows else cells(column.title)
        for place, column in enumerate(columns)
    ]
    if width is not None:
        places = _kept(columns, widths, width)
        columns, widths = [columns[place] for place in places], [widths[place] for place in places]
        rows = [[row[place] for place in places] for row in rows]
        room = width - len(GAP) * (len(columns) - 1)
        widths = _fitted(widths, [column.least for column in columns], room)
        widths = _fitted(widths, [None if column.right else 1 for column in columns], room)
        widths = _fitted(widths, [1] * len(columns), room)
    titles = [column.title for column in columns]
    header = _line([column._replace(paint=None) for column in columns], titles, widths)
    lines = [header, *(_line(columns, row, widths) for row in rows)]
    return [line.rstrip() for line in lines]


Columns = Sequence[tuple[Column, Callable[[T], str]]]  # each with what it says of one thing


def table_of(found: Sequence[T], columns: Columns[T], width: int | None) -> list[str]:
    """A table with a line for each thing that was found."""
    return table(*table_parts(found, columns), width)


def table_parts(found: Sequence[T], columns: Columns[T]) -> tuple[list[Column], list[list[str]]]:
    return [column for column, _ in columns], [[tell(each) for _, tell in columns] for each in found]


def print_lines(lines: Sequence[str]) -> None:
    """Lines for people, in colour where that is wanted."""
    click.echo("\n".join(lines), color=in_colour())


def _kept(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """The places of the columns that fit next to each other, when each is as narrow as it may get."""
    places = list(range(len(columns)))
    least = [
        needed if column.least is None else min(needed, column.least)
        for column, needed in zip(columns, widths, strict=True)
    ]
    while sum(least[place] + len(GAP) for place in places) - len(GAP) > width:
        most_spare = max(places, key=lambda place: columns[place].spare)
        if not columns[most_spare].spare:
            break
        places.remove(most_spare)
    most = max(1, (width + len(GAP)) // (1 + len(GAP)))  # of one cell each
    return places[:most]


def _fitted(widths: list[int], least: list[int | None], room: int) -> list[int]:
    """Take cells from the widest column that may shrink until all fit, or none may shrink any more."""
    widths = list(widths)
    while sum(widths) > room:
        spare = [
            (width, place)
            for place, (width, limit) in enumerate(zip(widths, least, strict=True))
            if limit is not None and width > limit
        ]
        if not spare:
            break
        widths[max(spare)[1]] -= 1
    return widths


def _line(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> str:
    words: list[str] = []
    for column, text, width in zip(columns, row, widths, strict=True):
        word = clip(text, width)
        padding = " " * (width - cells(word))
        painted = word if column.paint is None else column.paint(word)
        words.append(padding + painted if column.right else painted + padding)
    return GAP.join(words)


def cells(text: str) -> int:
    """How many cells of a terminal a text takes: two for wide letters, none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def clip(text: str, width: int) -> str:
    """The text cut to so many cells, with … where something is missing."""
    if cells(text) <= width:
        return text
    kept = ""
    for letter in text:
        if cells(kept + letter) > width - 1:
            break
        kept += letter
    return f"{kept}…" if width > 0 else ""


def one_line(text: str) -> str:
    """The text without line breaks and without anything that a terminal would take for a command."""
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def lines_of(text: str) -> list[str]:
    """The lines of a text, each without anything that a terminal would take for a command."""
    return [one_line(line.expandtabs(4)) for line in text.rstrip().split("\n")]


def _escaped(letter: str) -> str:
    return " " if letter in "\n\r\t" else letter.encode("unicode_escape").decode("ascii")


def width_of(stream: TextIO | None = None) -> int | None:
    """The width of the terminal, or None if nobody looks at one."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def wrapped(text: str, width: int | None, *, first: str = "", later: str = "") -> list[str]:
    """The text in lines of at most `width` cells, broken between words; None is for a reader without a width."""
    if width is None:
        return [first + text]
    lines: list[str] = []
    line, empty = first, True
    for word in text.split():
        if not empty and cells(line) + 1 + cells(word) > width:
            lines.append(line)
            line, empty = later, True
        line += word if empty else f" {word}"
        empty = False
    return [clip(line, width) for line in (*lines, line)]


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether the stream, standard output unless another is given, is a terminal."""
    return _is_terminal(stream or sys.stdout)


def can_ask() -> bool:
    """Whether somebody sits at a terminal and can answer."""
    return _is_terminal(sys.stdin)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # Python has no stream where the shell has closed one


def discard_output() -> None:
    """Send standard output nowhere from now on: what is left to be written would fail again at the exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def can_redraw(stream: TextIO | None = None) -> bool:
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def in_colour(stream: TextIO | None = None) -> bool:
    """Whether to colour: on a terminal that can, unless NO_COLOR says otherwise."""
    return can_redraw(stream) and not os.environ.get("NO_COLOR")


def paint_state(text: str) -> str:
    """A state's name in its colour; anything else as it is."""
    word = text.partition(" ")[0]
    return click.style(text, fg=COLOURS[State(word)]) if word in list(State) else text


def painter(colours: Mapping[str, str]) -> Paint:
    """What paints these words in their colours, and leaves anything else as it is."""
    return lambda text: click.style(text, fg=colours[text]) if text in colours else text


def moment(at: datetime, now: datetime) -> str:
    """An instant in local time, as short as it can be and still be understood."""
    local, today = at.astimezone(), now.astimezone()
    if local.date() == today.date():
        return f"{local:%H:%M:%S}"
    return f"{local:%b %d %H:%M}" if local.year == today.year else f"{local:%Y-%m-%d}"


def span(length: timedelta) -> str:
    """How long, in as few words as it takes: 40 ms, 1.5 s, 12 s, 5 min, 3 h 20 min, 4 d 2 h."""
    seconds = length.total_seconds()
    if abs(seconds) < 0.95:
        return f"{seconds * 1_000:.0f} ms"
    if abs(seconds) < 9.95:
        return f"{seconds:.1f} s"
    minutes, hours, days = seconds / 60, seconds / 3_600, seconds / 86_400
    if abs(minutes) < 2:
        return f"{seconds:.0f} s"
    if abs(hours) < 2:
        return f"{minutes:.0f} min"
    if abs(days) < 2:
        return f"{int(hours)} h {int(abs(minutes) % 60)} min"
    return f"{int(days)} d {int(abs(hours) % 24)} h"


def instant(at: datetime, now: datetime, *, brief: bool) -> str:
    """An instant in local time and short, or else as ISO 8601 in UTC."""
    return moment(at, now) if brief else iso(at)


def iso(at: datetime) -> str:
    """An instant for programs: ISO 8601, in UTC, to the second."""
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def bar(share: float, length: int = BAR) -> str:
    """A bar of fixed length, filled to this share; anything but nothing shows."""
    full = min(length, ceil(share * length))
    return FULL * full + EMPTY * (length - full)


def total(queues: dict[str, Counts]) -> Counts:
    sums = Counter[str]()
    for counts in queues.values():
        sums.update(msgspec.structs.asdict(counts))
    return Counts(**sums)


def preview(job: Job) -> str:
    """What is most worth seeing of a job in one line: its error if it did not succeed, else its arguments."""
    failed = job.error and job.state is not State.COMPLETED
    return brief(without_key(job.error or "") if failed else masked_payload(job.payload, job.meta))


def brief(text: str) -> str:
    """The beginning of a text in one line, with … where something is missing."""
    return one_line(text[:PREVIEW]) + ("…" if len(text) > PREVIEW else "")


def record(job: Job) -> dict[str, object]:
    """The job for programs, without its secrets; what is stored as JSON is part of it, not text inside of it."""
    fields = msgspec.structs.asdict(presented(job))
    for name in ("payload", "result", "meta"):
        text: object = fields[name]
        if isinstance(text, str):
            fields[name] = embedded(text)
    return fields


def embedded(text: str) -> object:
    """Stored JSON as it is, digit by digit; text that is no JSON as a string."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):  # one that was written by hand may be as deep as it likes
        return text
    return msgspec.Raw(text.encode())


def print_json(value: object) -> None:
    """One JSON value on standard output: laid out for eyes on a terminal, on one line otherwise."""
    text = msgspec.json.encode(value)
    click.echo(harmless_json(msgspec.json.format(text, indent=2) if is_terminal() else text))


def harmless_json(text: bytes) -> bytes:
    """The same JSON without a character that a terminal obeys; the encoder escapes those below the space."""
    return text.decode().translate(OBEYED).encode()
