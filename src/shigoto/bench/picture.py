"""The figures of a bench as a picture: one SVG, by itself, for light and for dark backgrounds.

Every bar begins at zero, on one scale, so that a bar twice as long is twice as fast. Whiskers go from the lowest round
to the highest. The latency has a scale of its own, whose steps grow, since its tail is long.
"""

from html import escape
from math import floor, log, log10

from shigoto.bench.report import BARE, TITLES, Report, distribution, percentiles

WIDTH, MARGIN = 900, 32
LEFT, RIGHT = 262, 660  # where bars begin, and where the longest ends: what is said of it stands beside
ROW, BAR = 46, 18
HISTOGRAM, BINS = 130, 48

STYLE = """
text { font-family: ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1c2330 }
.title { font-size: 22px; font-weight: 650 } .head { font-size: 15px; font-weight: 600 }
.label { font-size: 14px } .value { font-size: 14px; font-weight: 650 }
.note { font-size: 12px; fill: #667085 } .end { text-anchor: end } .middle { text-anchor: middle }
.paper { fill: #ffffff; stroke: #e4e7ec } .grid { stroke: #eaecf0 } .whisker { stroke: #1c2330; stroke-opacity: 0.55 }
.limit { stroke: #98a2b3; stroke-dasharray: 4 4 } .mark { stroke: #d9480f; stroke-width: 1.5 }
.bare { fill: #b4bcc8 } .stored { fill: #4c6ef5 } .run { fill: #12a594 } .wait { fill: #f0a860 }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9ef } .note { fill: #98a2b3 } .paper { fill: #12161e; stroke: #262d39 } .grid { stroke: #232a35 }
.whisker { stroke: #ffffff; stroke-opacity: 0.6 } .limit { stroke: #667085 } .mark { stroke: #ff922b }
.bare { fill: #566072 } .stored { fill: #748ffc } .run { fill: #2fc6b2 } .wait { fill: #c98743 }
}
"""


def draw(report: Report) -> str:
    """The picture, as the text of an SVG file."""
    drawing = Drawing()
    _heading(drawing, report)
    if report.rates:
        _rates(drawing, report)
    if report.waits:
        _waits(drawing, report)
    return drawing.svg(f"How fast Shigoto {report.machine.shigoto} is on {report.facts.engine}")


class Drawing:
    """Shapes one below the other; `y` is how far down they have come."""

    def __init__(self) -> None:
        self.y = MARGIN
        self._shapes: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "label") -> None:
        """Words, with their base line at y."""
        self._shapes.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>')

    def rect(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A bar; one that would be too thin to be seen is a line."""
        self._shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(1.5, width):.1f}" height="{height:.1f}" rx="2" class="{kind}"/>'
        )

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str) -> None:
        """A line."""
        self._shapes.append(
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" class="{kind}"/>'
        )

    def svg(self, title: str) -> str:
        """The whole file."""
        height = self.y + MARGIN // 2
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" role="img">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10" class="paper"/>\n'
            + "\n".join(self._shapes)
            + "\n</svg>\n"
        )


def _heading(drawing: Drawing, report: Report) -> None:
    machine, facts = report.machine, report.facts
    settings = [f"{name}={value}" for name, value in facts.settings.items()]
    workers = f"{report.processes} runner process{'' if report.processes == 1 else 'es'}"
    loop = " with uvloop" if machine.uvloop else ""
    sqlite = [f"SQLite {machine.sqlite}"] if machine.sqlite else [facts.engine]
    rounds = f"median of {report.rounds} rounds" if report.rounds > 1 else "one round"
    first = [*sqlite, *settings, workers if facts.shared else "all in one process", rounds]
    second = [
        f"Python {machine.python}{loop}",
        machine.system,
        f"{machine.cores} core{'' if machine.cores == 1 else 's'}",
        f"{report.at:%Y-%m-%d}",
    ]
    drawing.text(MARGIN, drawing.y + 16, f"Shigoto {machine.shigoto}", "title")
    drawing.text(MARGIN, drawing.y + 40, " · ".join(first), "note")
    drawing.text(MARGIN, drawing.y + 57, " · ".join(second), "note")
    processes = f" --processes {report.processes}" if report.processes > 1 else ""
    command = f"shigoto bench --jobs {report.jobs} --rounds {report.rounds}{processes}"
    drawing.text(WIDTH - MARGIN, drawing.y + 16, command, "note end")
    drawing.text(
        WIDTH - MARGIN, drawing.y + 57, f"{report.ended_jobs:,} jobs verified in the store", "note end"
    )
    drawing.y += 92


def _rates(drawing: Drawing, report: Report) -> None:
    top, rates = drawing.y + 14, report.rates
    most = max(rate.per_second for rounds in rates.values() for rate in rounds)
    scale = (RIGHT - LEFT) / most
    bottom = top + 12 + ROW * len(rates)
    drawing.text(MARGIN, drawing.y, "Jobs per second", "head")
    told = ["thin line: lowest to highest round"] if report.rounds > 1 else []
    told += ["dashed: the limit of the disk, one commit per row"] if BARE in rates else []
    drawing.text(WIDTH - MARGIN, drawing.y, " · ".join(told), "note end")
    for tick in _ticks(most):
        x = LEFT + tick * scale
        drawing.line(x, top, x, bottom, "grid")
        drawing.text(x, bottom + 16, f"{tick:,.0f}", "note middle")
    if BARE in rates:
        x = LEFT + report.per_second(BARE) * scale
        drawing.line(x, top, x, bottom, "limit")
    for place, name in enumerate(rates):
        _rate(drawing, report, name, top + 12 + ROW * place, scale)
    drawing.y = bottom + 58


def _rate(drawing: Drawing, report: Report, name: str, y: float, scale: float) -> None:
    each = [rate.per_second for rate in report.rates[name]]
    value, middle = report.per_second(name), y + BAR / 2
    kind = "bare" if name == BARE else "run" if name.startswith("drain") else "stored"
    drawing.text(LEFT - 14, y + 8, TITLES[name], "label end")
    drawing.text(LEFT - 14, y + 25, _costs(report, name), "note end")
    drawing.rect(LEFT, y, value * scale, BAR, kind)
    if len(each) > 1:
        least, most = LEFT + min(each) * scale, LEFT + max(each) * scale
        drawing.line(least, middle, most, middle, "whisker")
        for end in (least, most):
            drawing.line(end, middle - 4, end, middle + 4, "whisker")
    x = LEFT + max(each) * scale + 10
    drawing.text(x, middle + 5, f"{value:,.0f}", "value")
    ratio = report.times_bare(name)
    if ratio is not None and name != BARE:
        drawing.text(x + 9 * len(f"{value:,.0f}") + 6, middle + 5, f"{ratio:.2g} × bare", "note")


def _costs(report: Report, name: str) -> str:
    memory = report.memory(name)
    peak = "" if memory is None else f" · {memory[0] / 1e6:.0f} MB peak"
    return f"{report.cpu_per_job(name):.3g} µs CPU per job{peak}"


def _waits(drawing: Drawing, report: Report) -> None:
    bounds, counts = distribution(report.waits, BINS)
    top, bottom = drawing.y + 42, drawing.y + 42 + HISTOGRAM
    scale = (WIDTH - 2 * MARGIN) / log(bounds[-1] / bounds[0])

    def across(wait: float) -> float:
        return MARGIN + log(max(wait, bounds[0]) / bounds[0]) * scale

    drawing.text(MARGIN, drawing.y, "Latency in milliseconds", "head")
    told = f"from the call of enqueue to the first line of the handler · idle worker · {len(report.waits):,} jobs"
    drawing.text(WIDTH - MARGIN, drawing.y, told, "note end")
    for place, count in enumerate(counts):
        height = count / max(counts) * HISTOGRAM
        x, end = across(bounds[place]), across(bounds[place + 1])
        if count:
            drawing.rect(x + 0.75, bottom - height, end - x - 1.5, height, "wait")
    drawing.line(MARGIN, bottom, WIDTH - MARGIN, bottom, "grid")
    for tick in _growing_ticks(bounds[0], bounds[-1]):
        drawing.text(across(tick), bottom + 17, f"{tick:g}", "note middle")
    _marks(
        drawing, {name: (wait, across(wait)) for name, wait in percentiles(report.waits).items()}, top, bottom
    )
    drawing.y = bottom + 30


def _marks(drawing: Drawing, marks: dict[str, tuple[float, float]], top: float, bottom: float) -> None:
    """A line for each percentile; its words stand where they cover no others."""
    free = [0.0, 0.0]  # up to where the two rows of words are taken
    for name, (wait, x) in marks.items():
        words = f"{name} {wait:.2f}"
        half = 4.0 * len(words)
        middle = min(max(x, MARGIN + half), WIDTH - MARGIN - half)
        row = 0 if middle - half > free[0] else 1
        free[row] = middle + half
        drawing.line(x, top - 4 - 15 * row, x, bottom, "mark")
        drawing.text(middle, top - 9 - 15 * row, words, "note middle")


def _ticks(most: float) -> list[float]:
    """A few round numbers from zero on."""
    step = 10 ** floor(log10(most))
    while most / step < 3:
        step /= 2
    return [step * place for place in range(int(most / step) + 1)]


def _growing_ticks(least: float, most: float) -> list[float]:
    """Round numbers between the two that grow by about the same factor; more of them where there is little between."""
    digits = (1, 2, 5) if most / least > 20 else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = (digit * 10.0**power for power in range(-4, 7) for digit in digits)
    return [tick for tick in ticks if least <= tick <= most]
