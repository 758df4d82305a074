"""The figures of a bench: the median of all rounds, what lies beside it, and the same for programs."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from math import ceil, log
from statistics import median
from typing import Any

from msgspec import Struct

from shigoto.bench import MEASURES
from shigoto.bench.figures import Figure, Rate, Waits
from shigoto.bench.place import Facts
from shigoto.model.version import VERSION

BARE = "bare"
TITLES = {BARE: "bare insert and commit", **MEASURES}
PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "max": 1.0}


class Machine(Struct, frozen=True, kw_only=True):
    """What the figures depend on, beside the code and the disk."""

    shigoto: str
    python: str
    sqlite: str | None
    uvloop: bool
    system: str
    cores: int

    @classmethod
    def this(cls, *, with_sqlite: bool) -> "Machine":
        """The one we are on."""
        return cls(
            shigoto=VERSION,
            python=platform.python_version(),
            sqlite=_sqlite() if with_sqlite else None,
            uvloop=find_spec("uvloop") is not None,
            system=f"{platform.system()} {platform.machine()}",
            cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        )


class Report(Struct, frozen=True, kw_only=True):
    """All rounds of all measures. `bare` is among the rates where there is a disk to compare with."""

    machine: Machine
    facts: Facts
    at: datetime
    jobs: int
    rounds: int
    processes: int
    figures: dict[str, list[Figure]]

    @property
    def rates(self) -> dict[str, list[Rate]]:
        """Those measures that have a rate, round by round."""
        return {
            name: rates
            for name, figures in self.figures.items()
            if (rates := [figure for figure in figures if isinstance(figure, Rate)])
        }

    @property
    def waits(self) -> list[float]:
        """The latency of every job of all rounds: milliseconds."""
        return [wait for waits in self._waits() for wait in waits.each]

    @property
    def ended_jobs(self) -> int:
        """How many jobs were stored, and found in the store again."""
        rates = (rate.jobs for name, rates in self.rates.items() if name != BARE for rate in rates)
        return sum(rates) + len(self.waits)

    def per_second(self, name: str) -> float:
        """The median of the rounds."""
        return median(rate.per_second for rate in self.rates[name])

    def times_bare(self, name: str) -> float | None:
        """How many jobs there are for each row that a bare loop commits in the same time."""
        return self.per_second(name) / self.per_second(BARE) if BARE in self.rates else None

    def cpu_per_job(self, name: str) -> float:
        """Microseconds of processor time, the median of the rounds."""
        return median(rate.cpu_per_job for rate in self.rates[name])

    def memory(self, name: str) -> tuple[float, float] | None:
        """The most bytes that a runner process had, and the bytes gained for each job: medians of the rounds."""
        rates = self.rates[name]
        known = [(rate.memory, rate.memory_per_job) for rate in rates]
        most = [memory.most for memory, _ in known if memory is not None]
        gained = [each for _, each in known if each is not None]
        return (median(most), median(gained)) if most else None

    def for_programs(self) -> dict[str, Any]:
        """Everything, as one JSON object."""
        described = {name: self._described(name) for name in self.rates}
        told: dict[str, Any] = {
            **{name: getattr(self.machine, name) for name in self.machine.__struct_fields__},
            "at": self.at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "engine": self.facts.engine,
            "settings": self.facts.settings,
            "processes": self.processes if self.facts.shared else 0,
            "jobs": self.jobs,
            "rounds": self.rounds,
            "verified_jobs": self.ended_jobs,
            "rates": described,
        }
        if waits := self._waits():
            told["latency"] = {
                "unit": "ms",
                "jobs": len(self.waits),
                **percentiles(self.waits),
                "rounds": [{"jobs": len(one.each), **percentiles(one.each)} for one in waits],
                "each": [round(wait, 3) for wait in self.waits],
            }
        return told

    def _waits(self) -> list[Waits]:
        return [
            figure for figures in self.figures.values() for figure in figures if isinstance(figure, Waits)
        ]

    def _described(self, name: str) -> dict[str, Any]:
        rates = self.rates[name]
        each = [rate.per_second for rate in rates]
        ratio, memory = self.times_bare(name), self.memory(name)
        return {
            "unit": "jobs/s",
            "median": round(median(each), 1),
            "lowest": round(min(each), 1),
            "highest": round(max(each), 1),
            "times_bare": None if ratio is None else round(ratio, 3),
            "cpu_us_per_job": round(self.cpu_per_job(name), 2),
            "peak_memory_bytes": None if memory is None else round(memory[0]),
            "memory_bytes_per_job": None if memory is None else round(memory[1], 1),
            "rounds": [_round(rate) for rate in rates],
        }


def _round(rate: Rate) -> dict[str, Any]:
    memory = rate.memory
    return {
        "jobs": rate.jobs,
        "seconds": round(rate.seconds, 6),
        "per_second": round(rate.per_second, 1),
        "cpu_us_per_job": round(rate.cpu_per_job, 2),
        "peak_memory_bytes": None if memory is None else memory.most,
        "memory_gained_bytes": None if memory is None else memory.gained,
    }


def percentiles(waits: Sequence[float]) -> dict[str, float]:
    """The wait that so many of a hundred do not exceed; always one that was measured."""
    ranked = sorted(waits)
    return {name: round(ranked[ceil(share * len(ranked)) - 1], 3) for name, share in PERCENTILES.items()}


def distribution(waits: Sequence[float], bins: int) -> tuple[list[float], list[int]]:
    """How many waits there are between bounds that grow by the same factor, from the shortest to the longest.

    The bounds are one more than the counts.
    """
    least = max(min(waits), 0.001)
    factor = (max(*waits, least * 1.1) / least) ** (1 / bins)
    counts = [0] * bins
    for wait in waits:
        counts[min(bins - 1, int(log(max(wait, least) / least) / log(factor)))] += 1
    return [least * factor**place for place in range(bins + 1)], counts


def make_report(
    facts: Facts, figures: Mapping[str, list[Figure]], *, jobs: int, rounds: int, processes: int
) -> Report:
    """The report of what was measured just now, here."""
    return Report(
        machine=Machine.this(with_sqlite="synchronous" in facts.settings),
        facts=facts,
        at=datetime.now(UTC),
        jobs=jobs,
        rounds=rounds,
        processes=processes,
        figures=dict(figures),
    )


def _sqlite() -> str:
    import sqlite3

    return sqlite3.sqlite_version
