"""The page that comes out: markdown that can stand in the documentation."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from msgspec import Struct

from bench.comparison.contest import Column, Contest, Words
from bench.comparison.goals import Figure, Goal, by_round, judge

Run = dict[str, Any]


class Setting(Struct, frozen=True, kw_only=True):
    """What a page says beside the figures."""

    date: str
    machine: str
    command: str
    software: str
    rounds: int
    sizes: Mapping[str, int]
    infos: Mapping[str, Mapping[str, Any]] = {}


def page(runs: Sequence[Run], setting: Setting, contest: Contest) -> str:
    """All of it."""
    words = contest.words
    parts = [
        f"# {words.title}",
        _preface(runs, setting, words),
        "## Goals",
        _goals(runs, setting, contest.goals),
        "## What each promises",
        _promises(setting.infos, words.promises),
    ]
    for work in dict.fromkeys(run["work"] for run in runs if run["work"] in words.titles):
        parts.append(f"## {words.titles[work].format_map(setting.sizes)}")
        parts += [words.notes[work]] if work in words.notes else []
        parts.append(_work(work, [run for run in runs if run["work"] == work], words))
    if troubles := _troubles(runs):
        parts += ["## What went wrong", troubles]
    return "\n\n".join(parts) + "\n"


def _preface(runs: Sequence[Run], setting: Setting, words: Words) -> str:
    middle, spread = _spread(by_round(Figure("machine", "fdatasync", "ms"), runs).values())
    lines = (
        f"Measured on {setting.date} with `{setting.command}`.",
        f"The machine: {setting.machine}; to write and sync a page (fdatasync) took {middle} ms there ({spread}).",
        setting.software,
        f"Figures are medians of {setting.rounds} interleaved rounds, in each of which everybody runs once.",
        *words.preface,
        "Lines in the log for each job are left out for everybody, but where it says that they are on.",
        words.counted,
        "Jobs are verified afterwards: the store has all that were enqueued.",
        "After a drain handlers ran once for each, nothing is left, and history, if kept, is complete.",
    )
    return "\n".join(lines)


def _goals(runs: Sequence[Run], setting: Setting, goals: Sequence[Goal]) -> str:
    named = [goal._replace(what=goal.what.format_map(setting.sizes)) for goal in goals]
    rows = [_goal(goal, runs, setting.rounds) for goal in named]
    return table(["goal", "needed", "measured", "lowest..highest", "beside", "succeeded", "reached"], rows)


def _goal(goal: Goal, runs: Sequence[Run], rounds: int) -> list[str]:
    verdict = judge(goal, runs, rounds)
    if verdict is None:
        return [goal.what, goal.needed, "not measured"]
    reached = "yes" if verdict.met else "**no**"
    return [
        goal.what,
        goal.needed,
        f"{verdict.value:.2f} {goal.unit}",
        f"{verdict.lowest:.2f}..{verdict.highest:.2f}",
        verdict.beside,
        f"{verdict.rounds} of {min(rounds, goal.rounds or rounds)} rounds",
        f"{reached}: {', '.join(verdict.failed)} failed" if verdict.failed else reached,
    ]


def _promises(infos: Mapping[str, Mapping[str, Any]], promises: Sequence[str]) -> str:
    rows = [
        [name, *(str({**info, **info.get("promises", {})}.get(word, "")) for word in promises)]
        if "error" not in info
        else [name, f"could not be asked: {info['error']}", *[""] * (len(promises) - 1)]
        for name, info in infos.items()
    ]
    return table(["", *promises], rows)


def _work(work: str, runs: Sequence[Run], words: Words) -> str:
    names = list(dict.fromkeys(run["name"] for run in runs))
    if work in words.plain:
        return _plain(work, names, runs, words.plain[work])
    if work == "idle":
        succeeded = [run for run in runs if "error" not in run]
        if not succeeded:
            return table(["", ""], [[names[0], f"failed: {_reason(names[0], runs)}"]])
        keys = [key for key in succeeded[0] if key.startswith(("idle", "pick-up", "bare"))]
        rows = [[key, *_spread(by_round(Figure(work, names[0], key), runs).values())] for key in keys]
        return table(["", "median", "lowest..highest"], rows)
    speeds = _speeds(work, names, runs, words.costs)
    samples = [run["samples"] for run in runs if "samples" in run]
    return f"{speeds}\n\n{_samples(samples[0])}" if samples else speeds


def _samples(samples: Sequence[Mapping[str, float]]) -> str:
    """How something went on over time: every fourth, and the last."""
    shown = [*samples[:-1:4], samples[-1]]
    return table(list(shown[0]), [[f"{value:,g}" for value in sample.values()] for sample in shown])


def _speeds(work: str, names: Iterable[str], runs: Sequence[Run], costs: Sequence[Column]) -> str:
    measured = {name: list(by_round(Figure(work, name), runs).values()) for name in names}
    best = max((median(values) for values in measured.values() if values), default=0.0)
    told = costs if any("commits_per_job" in run for run in runs) else ()
    counted = any("stored" in run for run in runs)
    ranked = sorted(measured, key=lambda name: -median(measured[name] or [0.0]))
    rows = [
        [
            name,
            *_speed(measured[name], best),
            *(_cost(Figure(work, name, column.key), runs, column) for column in told),
            *([_stored(name, runs)] if counted else []),
        ]
        if measured[name]
        else [name, f"failed: {_reason(name, runs)}"]
        for name in ranked
    ]
    head = ["", "jobs/s", "of the best", "lowest..highest", *(column.head for column in told)]
    return table([*head, *(["in the store"] if counted else [])], rows)


def _speed(values: Sequence[float], best: float) -> list[str]:
    middle = median(values)
    return [f"{middle:,.0f}", f"{middle / best:.2f}", f"{min(values):,.0f}..{max(values):,.0f}"]


def _cost(figure: Figure, runs: Sequence[Run], column: Column) -> str:
    values = list(by_round(figure, runs).values())
    return format(median(values), column.shape) if values else ""


def _stored(name: str, runs: Sequence[Run]) -> str:
    """Who was asked has all jobs: a run with another answer went wrong."""
    asked = any(run.get("stored") is not None for run in runs if run["name"] == name)
    return "all" if asked else "not asked"


def _plain(work: str, names: Iterable[str], runs: Sequence[Run], columns: Mapping[str, str]) -> str:
    rows = []
    for name in names:
        figures = [list(by_round(Figure(work, name, key), runs).values()) for key in columns]
        if figures[0]:
            rows.append([name, *(f"{median(values):.3f}" for values in figures)])
        else:
            rows.append([name, f"failed: {_reason(name, runs)}"])
    return table(["", *columns.values()], rows)


def _spread(values: Iterable[float]) -> list[str]:
    ranked = sorted(values)
    return [f"{median(ranked):.2f}", f"{ranked[0]:.2f}..{ranked[-1]:.2f}"] if ranked else ["", ""]


def _reason(name: str, runs: Sequence[Run]) -> str:
    return next((str(run["error"]) for run in runs if run["name"] == name and "error" in run), "")


def _troubles(runs: Sequence[Run]) -> str:
    return "\n".join(
        f"- {run['work']}, {run['name']}, round {run['round'] + 1}: {run['error']}"
        for run in runs
        if "error" in run
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in markdown; short rows are filled up."""
    lines = [head, ["---"] * len(head), *([*row, *[""] * (len(head) - len(row))] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
