"""Goals, and whether they were reached in one run of the comparison.

A figure is the median over the rounds. The ratio of two figures is the ratio of their medians, and its lowest and
highest value are those of single rounds. The best peer is the one with the best median:
the highest, or the lowest where less is better. A goal is not reached
unless both sides succeeded in every round that was asked for, and each peer that took part in at least one.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from bench.comparison.entries import Peer

Run = dict[str, Any]


class Figure(NamedTuple):
    """One number of one contestant at one workload."""

    work: str
    name: str
    key: str = "jobs_per_s"


class Goal(NamedTuple):
    """The ratio of a figure to the best of some others, or the figure itself if there are none, within a bound.

    In the words, `{history:,}` stands for the number of jobs in the store that was prepared so.
    """

    what: str
    figure: Figure
    beside: tuple[Figure, ...] = ()
    least: float | None = None
    most: float | None = None
    unit: str = "×"
    strict: bool = False  # the bound itself is not enough
    rounds: int | None = None  # that it is measured in, where that is not all of them

    @property
    def needed(self) -> str:
        """The bound in words."""
        if self.least is not None:
            return f"{'>' if self.strict else '≥'} {self.least:g} {self.unit}"
        return f"{'<' if self.strict else '≤'} {self.most:g} {self.unit}"

    def holds(self, value: float) -> bool:
        """If a value is within the bound."""
        if value in (self.least, self.most):
            return not self.strict
        return (self.least is None or value > self.least) and (self.most is None or value < self.most)


class Verdict(NamedTuple):
    """What came out; `beside` is the name of what the figure was compared with, `rounds` in how many both succeeded,
    and `failed` are those who should have been compared too, but never succeeded."""

    value: float
    lowest: float
    highest: float
    beside: str
    rounds: int
    failed: tuple[str, ...]
    met: bool


def peers_at(peers: Sequence[Peer], *works: str) -> tuple[Figure, ...]:
    """What all peers that count do at these workloads."""
    return tuple(
        Figure(work, peer.name) for work in works for peer in peers if work in peer.jobs and peer.judged
    )


def judge(goal: Goal, runs: Sequence[Run], rounds: int) -> Verdict | None:
    """What the runs of so many rounds say of a goal; None if something that it needs was not measured."""
    values = by_round(goal.figure, runs)
    if not values:
        return None
    beside = best_of(goal.beside, runs, lowest=goal.least is None)
    if goal.beside and beside is None:
        return None
    value, ratios, complete = median(values.values()), list(values.values()), len(values)
    if beside is not None:
        others = by_round(beside, runs)
        value /= median(others.values())
        ratios = [values[number] / others[number] for number in values.keys() & others.keys()]
        complete = len(ratios)
    failed = tuple(figure.name for figure in goal.beside if has_failed(figure, runs))
    return Verdict(
        value,
        min(ratios, default=value),
        max(ratios, default=value),
        beside="" if beside is None else beside.name,
        rounds=complete,
        failed=failed,
        met=goal.holds(value) and complete >= min(rounds, goal.rounds or rounds) and not failed,
    )


def has_failed(figure: Figure, runs: Sequence[Run]) -> bool:
    """If it was tried, and never measured."""
    tried = any((run["work"], run["name"]) == figure[:2] for run in runs)
    return tried and not by_round(figure, runs)


def best_of(figures: Sequence[Figure], runs: Sequence[Run], *, lowest: bool = False) -> Figure | None:
    """The figure with the highest median, or the lowest, of those that were measured."""
    measured = [(median(values.values()), figure) for figure in figures if (values := by_round(figure, runs))]
    if not measured:
        return None
    return (min if lowest else max)(measured)[1]


def by_round(figure: Figure, runs: Sequence[Run]) -> dict[int, float]:
    """The values of a figure, without those of runs that went wrong."""
    return {
        run["round"]: float(run[figure.key])
        for run in runs
        if (run["work"], run["name"]) == figure[:2] and "error" not in run and run.get(figure.key) is not None
    }
