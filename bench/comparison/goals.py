"""The goals, and whether they were reached in one run of the comparison.

A figure is the median over the rounds. The ratio of two figures is the ratio of their medians, and its lowest and
highest value are those of single rounds. The best peer is the one with the best median. A goal is not reached
unless both sides succeeded in every round that was asked for, and each peer that took part in at least one.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from bench.comparison.plan import FULL, NORMAL, PEERS, SMALL

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


def peers(*works: str) -> tuple[Figure, ...]:
    """What all peers do at these workloads."""
    return tuple(Figure(work, peer.name) for work in works for peer in PEERS if work in peer.jobs)


def goals() -> list[Goal]:
    """As they stand in the plan of the project, in that order."""
    return [*_drains(), *_enqueues(), *_mixes(), *_growth(), *_idle()]


def _drains() -> list[Goal]:
    best = peers("drain")
    either = peers("drain", "threads")
    return [
        Goal("drain, async no-op, NORMAL, beside the best peer", Figure("drain", NORMAL), best, least=10),
        Goal("drain, async no-op, FULL, beside the best peer", Figure("drain", FULL), best, least=9),
        Goal(
            "drain, sync functions in threads, NORMAL, beside the best peer",
            Figure("threads", NORMAL),
            either,
            8,
        ),
        Goal(
            "drain, sync functions in threads, FULL, beside the best peer", Figure("threads", FULL), either, 8
        ),
        *(
            Goal(
                f"drain by three runner processes beside one, {name.split()[1]}",
                Figure("drain3", name),
                (Figure("drain", name),),
                least=0.7,
            )
            for name in (NORMAL, FULL)
        ),
    ]


def _enqueues() -> list[Goal]:
    def bare(table: str, level: str) -> tuple[Figure, ...]:
        return (Figure("enqueue", f"bare {table} {level}"),)

    return [
        Goal("bulk enqueue, NORMAL, beside the best peer", Figure("bulk", NORMAL), peers("bulk"), least=3),
        Goal("bulk enqueue, FULL, beside the best peer", Figure("bulk", FULL), peers("bulk"), least=3),
        Goal(
            "64 concurrent callers of aenqueue beside one, FULL",
            Figure("concurrent", f"{FULL}, 64 callers"),
            (Figure("concurrent", f"{FULL}, 1 caller"),),
            least=10,
        ),
        Goal(
            "enqueue, FULL, beside a bare insert", Figure("enqueue", FULL), bare("insert", "FULL"), least=0.6
        ),
        Goal(
            "enqueue, NORMAL, beside a bare insert of the same row",
            Figure("enqueue", NORMAL),
            bare("row", "NORMAL"),
            least=0.6,
        ),
        Goal(
            "enqueue, NORMAL, beside litequeue",
            Figure("enqueue", NORMAL),
            (Figure("enqueue", "litequeue"),),
            least=1,
            strict=True,
        ),
    ]


def _mixes() -> list[Goal]:
    small = (Figure("drain", FULL),)
    return [
        Goal(
            "drain, payloads of 10 KB beside as many small ones",
            Figure("payload", FULL),
            (Figure("payload", SMALL),),
            least=0.5,
        ),
        Goal("drain, 5 % fail once and are retried, beside none", Figure("failures", FULL), small, least=0.7),
    ]


def _growth() -> list[Goal]:
    grown = {
        "history": "drain with {history:,} finished jobs beside an empty store",
        "future": "drain with {future:,} jobs due tomorrow at a better priority beside an empty store",
        "unknown": "drain with {unknown:,} jobs of an unknown task at the head beside an empty store",
    }
    looks = {
        "stats_ms": "time of stats",
        "get_ms": "time of get",
        "list_ms": "time of the first page of a list",
        "list_completed_ms": "time of the first page of the completed",
    }
    return [
        *(
            Goal(what, Figure(work, f"{FULL}, grown"), (Figure(work, f"{FULL}, empty"),), least=0.9)
            for work, what in grown.items()
        ),
        *(
            Goal(
                f"{what} with {{history:,}} finished jobs beside an empty store",
                Figure("look", f"{FULL}, grown", key),
                (Figure("look", f"{FULL}, empty", key),),
                most=2,
            )
            for key, what in looks.items()
        ),
    ]


def _idle() -> list[Goal]:
    return [
        Goal(
            "idle pick-up from another process, p50",
            Figure("idle", FULL, "pick-up p50 ms"),
            most=3,
            unit="ms",
            strict=True,
        ),
        Goal(
            "idle pick-up from another process, p99",
            Figure("idle", FULL, "pick-up p99 ms"),
            most=20,
            unit="ms",
            strict=True,
        ),
        Goal(
            "idle processor time of one core",
            Figure("idle", FULL, "idle cpu %"),
            most=1,
            unit="%",
            strict=True,
        ),
    ]


def judge(goal: Goal, runs: Sequence[Run], rounds: int) -> Verdict | None:
    """What the runs of so many rounds say of a goal; None if something that it needs was not measured."""
    values = by_round(goal.figure, runs)
    if not values:
        return None
    beside = best_of(goal.beside, runs)
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
        met=goal.holds(value) and complete >= rounds and not failed,
    )


def has_failed(figure: Figure, runs: Sequence[Run]) -> bool:
    """If it was tried, and never measured."""
    tried = any((run["work"], run["name"]) == figure[:2] for run in runs)
    return tried and not by_round(figure, runs)


def best_of(figures: Sequence[Figure], runs: Sequence[Run]) -> Figure | None:
    """The figure with the highest median, of those that were measured."""
    measured = [(median(values.values()), figure) for figure in figures if (values := by_round(figure, runs))]
    return max(measured)[1] if measured else None


def by_round(figure: Figure, runs: Sequence[Run]) -> dict[int, float]:
    """The values of a figure, without those of runs that went wrong."""
    return {
        run["round"]: float(run[figure.key])
        for run in runs
        if (run["work"], run["name"]) == figure[:2] and "error" not in run and run.get(figure.key) is not None
    }
