"""The figures of a bench in a terminal: a table with bars, and how far it is meanwhile."""

from types import TracebackType
from typing import TextIO

import click

from shigoto.bench.figures import Figure, Rate
from shigoto.bench.report import BARE, TITLES, Report, distribution, percentiles
from shigoto.bench.rounds import Step
from shigoto.cli import output
from shigoto.cli.output import Column
from shigoto.cli.top.view import spark

BAR = 20  # cells
BINS = 20
MEGABYTE = 1e6


class Progress:
    """How far it is: a line that is drawn over itself, or where that cannot be a line for each figure."""

    def __init__(self, stream: TextIO, *, quiet: bool) -> None:
        self._stream = stream
        self._drawn = output.can_redraw(stream)
        self._told = not self._drawn and not quiet

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def show(self, step: Step) -> None:
        """Tell of a step."""
        title = TITLES[step.measure]
        if self._drawn:
            text = f"{output.bar(step.done / step.steps, BAR)} round {step.round} of {step.rounds}: {title}"
            # A line that wraps could not be drawn over.
            room = (output.width_of(self._stream) or len(text) + 1) - 1
            self._stream.write(f"\r{output.clip(text, room)}\x1b[K")
        elif self._told and step.figure is not None:
            self._stream.write(f"round {step.round} of {step.rounds}: {title}: {_brief(step.figure)}\n")
        self._stream.flush()


def _brief(figure: Figure) -> str:
    if isinstance(figure, Rate):
        return f"{figure.per_second:,.0f} jobs/s"
    return f"{percentiles(figure.each)['p50']:.2f} ms"


def lines_of(report: Report, width: int | None) -> list[str]:
    """Everything there is to tell people; None is for a reader without a width, who gets no bars either."""
    lines = [*_heading(report, width), ""]
    if report.rates:
        lines += [*rates_table(report, width), ""]
    if report.waits:
        lines += [*waits_table(report, width), ""]
    return [*lines, *_legend(report, width)]


def _heading(report: Report, width: int | None) -> list[str]:
    machine, facts = report.machine, report.facts
    sqlite = f", SQLite {machine.sqlite}" if machine.sqlite else ""
    cores = f"{machine.cores} core{'' if machine.cores == 1 else 's'}"
    settings = "".join(f", {name}={value}" for name, value in facts.settings.items())
    store = "" if facts.store == facts.engine else f", {facts.store}"
    where = f"{report.processes} runner process{'' if report.processes == 1 else 'es'}"
    rounds = f"medians of {report.rounds} rounds" if report.rounds > 1 else "1 round"
    return [
        *output.wrapped(
            f"Shigoto {machine.shigoto}, Python {machine.python}{' with uvloop' if machine.uvloop else ''}{sqlite};"
            f" {machine.system}, {cores}",
            width,
        ),
        *output.wrapped(
            f"{facts.engine}{settings}{store}; {where if facts.shared else 'all in one process'}; {rounds},"
            f" {report.ended_jobs:,} jobs verified",
            width,
        ),
    ]


def rates_table(report: Report, width: int | None) -> list[str]:
    """A line for each measure that has a rate, with a bar where somebody looks."""
    rates = report.rates
    columns = [Column("measure"), Column("jobs/s", right=True)]
    columns += [] if width is None else [Column("", spare=1, paint=_paint_bar)]
    columns += [
        Column("lowest", right=True, spare=5),
        Column("highest", right=True, spare=4),
        *([Column("× bare", right=True)] if BARE in rates else []),
        Column("CPU µs/job", right=True),
        Column("peak MB", right=True, spare=2),
        Column("B/job", right=True, spare=3),
    ]
    most = max(report.per_second(name) for name in rates)
    rows: list[list[str]] = []
    for name, rounds in rates.items():
        each = [rate.per_second for rate in rounds]
        ratio, memory = report.times_bare(name), report.memory(name)
        row = [TITLES[name], f"{report.per_second(name):,.0f}"]
        row += [] if width is None else [output.bar(report.per_second(name) / most, BAR)]
        row += [f"{min(each):,.0f}", f"{max(each):,.0f}"]
        row += [] if ratio is None else [f"{ratio:.2f}"]
        row += [f"{report.cpu_per_job(name):.1f}"]
        row += ["-", "-"] if memory is None else [f"{memory[0] / MEGABYTE:.1f}", f"{memory[1]:.0f}"]
        rows.append(row)
    return output.table(columns, rows, width)


def waits_table(report: Report, width: int | None) -> list[str]:
    """The percentiles of the latency, and its distribution where somebody looks."""
    columns = [Column("latency in ms"), Column("jobs", right=True, spare=2)]
    row = ["enqueue to start", f"{len(report.waits):,}"]
    for name, wait in percentiles(report.waits).items():
        columns.append(Column(name, right=True))
        row.append(f"{wait:.2f}")
    if width is not None:
        columns.append(Column("from least to most", spare=1, paint=_paint_bar))
        row.append(spark(distribution(report.waits, BINS)[1]))
    return output.table(columns, [row], width)


def _legend(report: Report, width: int | None) -> list[str]:
    told: list[str] = []
    if BARE in report.rates:
        told.append(
            "× bare: jobs for each row that a loop inserts and commits on the same disk, nothing else."
        )
    if report.rates:
        told.append("CPU: of the process that stores, for drains of the runner processes.")
    if any(report.memory(name) for name in report.rates):
        told.append(
            "peak: the most memory of a runner process; B/job: what it gained while it ran jobs, for each of them."
        )
    return [line for text in told for line in output.wrapped(text, width)]


def _paint_bar(text: str) -> str:
    return click.style(text, fg="cyan")
