"""What comes out of a run: one table for people, in a terminal or in the documentation, and JSON with everything."""

import os
import platform
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import DecodeError, Struct, field, json

from bench.comparison.machine import describe
from bench.comparison.report import table as in_markdown
from devtools.postgres.install import binaries
from faults.evidence.checker import quantiles
from faults.experiment import ZEROS, Outcome
from shigoto.model.errors import StoreUnavailable
from shigoto.model.version import VERSION

ROOT = Path(__file__).parents[1]
BEGIN, END = (
    "<!-- results: begin -->",
    "<!-- results: end -->",
)  # of the engine that is meant where none is named
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
HEAD = ("id", "what is done", "N", "lost", "unlicensed", "overlaps", "bad settles", "other")
TAIL = ("recovery p50/p99/max", "seconds", "seed", "result")
ALONE = ("lost", "unlicensed", "overlaps", "bad_settles")  # each has a column of its own
OTHER = ("vanished", "phantom", "after_final", "effects")
UNMEASURED = "–"
WIDEST = 44  # letters of a title in a terminal


def here(engine: str = "sqlite") -> dict[str, str]:
    """What a reader must know to judge the figures of this engine; nothing that would name the machine."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "shigoto": VERSION,
        "python": platform.python_version(),
        engine: _version_of(engine),
        "machine": describe(),
        "cores": str(os.cpu_count()),
        "kernel": ".".join(platform.release().split(".")[:2]),
    }


def _version_of(engine: str) -> str:
    """Of the library or the server that experiments of this engine use here."""
    if engine == "sqlite":
        return sqlite3.sqlite_version
    try:
        words = [str(binaries()[1] / "postgres"), "--version"]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        return said.partition("(PostgreSQL) ")[2].split()[0]
    except (OSError, StoreUnavailable, subprocess.CalledProcessError):
        return "unknown"


def _commit() -> str:
    try:
        words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=, changed", "--abbrev=10"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class Result(Struct, kw_only=True):
    """One experiment of a run. `error` is why it could not be done, `folder` what it left behind if it failed."""

    id: str
    title: str
    engine: str
    seed: int
    full: bool
    seconds: float
    outcome: Outcome
    error: str = ""
    folder: str = ""
    command: str = ""
    setting: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Passed, passed in part, skipped or FAILED."""
        if self.error:
            return "FAILED"
        if self.outcome.skipped:
            return "skipped"
        if not self.outcome.passed:
            return "FAILED"
        return "passed in part" if self.outcome.left_out else "passed"

    @property
    def wrong(self) -> list[str]:
        """Every reason why it is not passed, in words."""
        counted = [f"{count} {name.replace('_', ' ')}" for name, count in self.outcome.zeros.items() if count]
        skipped = [self.outcome.skipped] if self.outcome.skipped else []
        idle = [] if self.error or skipped or self.outcome.n else ["nothing was put at risk"]
        return [*([self.error] if self.error else []), *idle, *counted, *self.outcome.wrong, *skipped]


def row(result: Result) -> list[str]:
    """Its line of the table."""
    outcome = result.outcome
    if result.error or outcome.skipped:
        counts = [""] * 6
    else:
        other = sum(getattr(outcome, name) for name in OTHER) + len(outcome.wrong)
        counts = [
            f"{outcome.n:,}".replace(",", " "),
            *(_count(outcome, name) for name in ALONE),
            str(other),
        ]
    recovery = quantiles(outcome.recovery).values() if outcome.recovery else ()
    times = " / ".join(f"{seconds:.2f}" for seconds in recovery)
    times += f" of {len(outcome.recovery)}" if times else ""
    return [
        result.id,
        result.title,
        *counts,
        times,
        f"{result.seconds:.0f}",
        str(result.seed),
        result.verdict,
    ]


def _count(outcome: Outcome, name: str) -> str:
    """A count that must be zero, as it was measured. What nobody looked for is not zero."""
    count = getattr(outcome, name)
    return str(count) if count or name in outcome.measured else UNMEASURED


def line(result: Result) -> str:
    """What is said of an experiment when it is over."""
    told = f"{result.id:<5} {result.verdict:<8} {result.seconds:6.1f} s  {result.title}"
    return "\n".join([told, *(f"        {reason}" for reason in [*result.wrong, *_missing(result)])])


def _missing(result: Result) -> list[str]:
    return [f"left out: {part}" for part in result.outcome.left_out]


def in_terminal(results: Sequence[Result]) -> str:
    """The table in columns, and below it whatever went wrong."""
    rows = [list(HEAD + TAIL), *(row(result) for result in results)]
    for cells in rows:
        cells[1] = cells[1] if len(cells[1]) <= WIDEST else cells[1][: WIDEST - 1] + "…"
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(_fit(cells, widths)).rstrip() for cells in rows]
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join([*lines, *_reasons(results)])


def _fit(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Words begin at the left, numbers end at the right."""
    words = (0, 1, len(cells) - 1)
    return [
        cell.ljust(width) if column in words else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]


def _reasons(results: Sequence[Result]) -> list[str]:
    told: list[str] = []
    for result in results:
        if reasons := [*result.wrong, *_missing(result)]:
            told += ["", f"{result.id} {result.verdict}:", *(f"  {reason}" for reason in reasons)]
        if result.folder:
            told.append(f"  what it left behind is in {result.folder}")
    return told


def page(results: Sequence[Result]) -> str:
    """The results in markdown, with everything that is needed to get them again."""
    parts = [_preface(results), in_markdown((*HEAD, "upper bound", *TAIL), map(_wide_row, results))]
    parts.append(
        "N counts what was put at risk: jobs, rounds, points or crash images, as the experiment says.\n"
        f"A count is there where it was looked for, and a {UNMEASURED} where it was not: an experiment that does not"
        " have the evidence for it says nothing about it.\n"
        "By the rule of three the true rate behind a 0 of N is below 3/N with 95 % confidence: that is the upper bound."
        " A count that could not have been of all N has its own: only a job that ran again can have done so without a"
        " licence, and only a job with an effect can have had two.\n"
        "`other` sums whatever of this was looked for: jobs that vanished, ran unasked, began after their end or had"
        " another number of effects than one, and what else must not be in that experiment.\n"
        "Recovery is in seconds, from a fault to the next start of the work it cut short, and of how many such starts;"
        " of E31, from when there was room again until everything was done."
    )
    seen = [f"- **{result.id}** {figures}" for result in results if (figures := _figures(result))]
    parts += ["What else was seen:", "\n".join(seen)] if seen else []
    wrong = [
        f"- **{result.id}** {result.verdict}: {'; '.join(reasons)}"
        for result in results
        if (reasons := [*result.wrong, *_missing(result)])
    ]
    parts += ["What was skipped, left out or went wrong:", "\n".join(wrong)] if wrong else []
    return "\n\n".join(parts) + "\n"


def _preface(results: Sequence[Result]) -> str:
    commands = dict.fromkeys(f"`{result.command}`" for result in results)
    dates = sorted({result.setting.get("date", "") for result in results})
    settings = dict.fromkeys(
        f"Shigoto {s.get('shigoto')} ({s.get('commit')}) on Python {s.get('python')} with"
        f" {NAMES.get(engine, engine)} {s.get(engine)}; {s.get('machine')}."
        for engine, s in ((result.engine, result.setting) for result in results)
    )
    return "\n".join([f"Run on {' and '.join(dates)} with {' and '.join(commands)}.", *settings])


def _wide_row(result: Result) -> list[str]:
    cells = row(result)
    bounds = _bounds(result.outcome) if cells[2] else ""
    return [*cells[: len(HEAD)], bounds, *cells[len(HEAD) :]]


def _bounds(outcome: Outcome) -> str:
    """The rule of three for each count that is zero: first where all of N was at risk, then where it was less."""
    bounds: dict[str, list[str]] = {}
    for name in ZEROS:
        if name in outcome.measured and not getattr(outcome, name):
            bounds.setdefault(_bound(outcome.risk(name)), []).append(name.replace("_", " "))
    whole = _bound(outcome.n)
    first = [whole] if whole in bounds and whole else []
    own = [f"{', '.join(names)} {bound or 'none'}" for bound, names in bounds.items() if bound != whole]
    return "; ".join([*first, *own])


def _bound(risk: int) -> str:
    return f"{3 / risk:.1g}" if risk >= 3 else ""  # below three, the rule says nothing


def _figures(result: Result) -> str:
    shown = {name: value for name, value in result.outcome.figures.items() if name != "reasons" and value}
    return ", ".join(f"{name} {_value(value)}" for name, value in shown.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{name} {_value(one)}" for name, one in value.items()) + ")"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_value(one) for one in value) + ")"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markers(engine: str) -> tuple[str, str]:
    """Between which the results of an engine stand on a page."""
    if engine == "sqlite":
        return BEGIN, END
    return BEGIN.replace("results", f"results on {engine}"), END.replace("results", f"results on {engine}")


class Unusable(Exception):
    """A file of results, or a page for them, cannot be used; the text says what to do."""


def expect_place(path: Path, engine: str) -> None:
    """Raise Unusable if the results of this engine cannot be put on that page."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"the page {path} cannot be read: {error}.") from error
    begin, end = markers(engine)
    if text and not 0 <= text.find(begin) < text.find(end):
        raise Unusable(
            f"the page {path} has no place for the results: it needs the lines {begin} and {end}, in this order."
            " Name a new file, or add them."
        )
    expect_writable(path)


def expect_writable(path: Path) -> None:
    """Raise Unusable if nothing can be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        beside = _beside(path)
        beside.touch()
        beside.unlink()
    except OSError as error:
        raise Unusable(f"{path} cannot be written: {error}. Name another place.") from error


def put(path: Path, text: str, engine: str = "sqlite") -> None:
    """Write the results there: between the engine's markers of a page, or as the whole of a new file."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    begin, end = markers(engine)
    before, after = (old.partition(begin)[0], old.partition(end)[2]) if old else ("", "\n")
    _replace(path, f"{before}{begin}\n\n{text}\n{end}{after}".encode())


def save(path: Path, results: Sequence[Result]) -> None:
    """All results as JSON, one object for each."""
    _replace(path, json.format(json.encode(list(results), enc_hook=str), indent=1) + b"\n")


def _replace(path: Path, content: bytes) -> None:
    """The old file stays whole until the new one is: hours of results may be in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(path)
    beside.write_bytes(content)
    beside.replace(path)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def load(path: Path) -> list[Result]:
    """What was saved there, nothing if it is not there. Raises Unusable if it is something else."""
    try:
        return json.decode(path.read_bytes(), type=list[Result]) if path.exists() else []
    except (OSError, DecodeError) as error:
        raise Unusable(f"{path} is no file of results: {error}. Move it away, or leave --add out.") from error
