"""What an experiment is given, and what it answers."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct, field


class Setting(Struct, frozen=True, kw_only=True):
    """Where and how large: `folder` is empty and the experiment's own, `full` asks for the loads of the plan."""

    engine: str
    folder: Path
    seed: int
    full: bool
    say: Callable[[str], None] = print
    missed: list[str] = field(
        default_factory=list
    )  # what was waited for in vain, as `Stage.wait_until` notes it

    def random(self, what: str = "") -> Random:
        """The chances of this run, apart for each purpose, so that one more draw in one does not change another."""
        return Random(f"{self.seed} {what}")

    def of(self, short: Any, full: Any) -> Any:
        """The number for this form of the experiment."""
        return full if self.full else short


class Outcome(Struct, kw_only=True):
    """What was seen. The counts are those of the checker; `wrong` says in words what else must not be.

    `n` counts what was put at risk (jobs, rounds, points, images), and `measured` names the counts that were looked
    for: a zero of any other is no finding. A count that can have been of another number than `n` has it in `at_risk`:
    of all jobs that were stored, of further runs, of jobs with an effect. `recovery` are seconds from a fault until the
    work it cut short went on. `figures` are for the reader. An experiment that this machine does not allow is
    `skipped`, with the reason, and shows nothing; of one that it allows in part, `left_out` says what is missing.
    """

    n: int = 0
    measured: tuple[str, ...] = ()
    at_risk: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    vanished: int = 0
    phantom: int = 0
    unlicensed: int = 0
    after_final: int = 0
    overlaps: int = 0
    bad_settles: int = 0
    effects: int = 0
    wrong: list[str] = field(default_factory=list)
    recovery: list[float] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""
    left_out: list[str] = field(default_factory=list)

    @property
    def zeros(self) -> dict[str, int]:
        """The counts that must be zero."""
        return {name: getattr(self, name) for name in ZEROS}

    @property
    def passed(self) -> bool:
        """Whether every promise was kept; nothing is shown by what was skipped, or had nothing at risk."""
        return self.n > 0 and not self.skipped and not self.wrong and not any(self.zeros.values())

    def risk(self, name: str) -> int:
        """Of how many this count is; 0 if nobody looked for it."""
        return self.at_risk.get(name, self.n) if name in self.measured else 0

    def add(self, part: "Outcome") -> None:
        """Count what a part has seen into the whole; the figures are the caller's.

        What the whole has measured is what every part has, or what has a number of its own at risk.
        """
        known = self.measured if self.n else ZEROS
        own = {name: self.risk(name) + part.risk(name) for name in (*self.at_risk, *part.at_risk)}
        self.measured = tuple(
            name
            for name in ZEROS
            if (name in part.measured and name in known)
            or (name in own and name in (*part.measured, *self.measured))
        )
        self.at_risk = {name: risk for name, risk in own.items() if name in self.measured}
        self.n += part.n
        for name in ZEROS:
            setattr(self, name, getattr(self, name) + getattr(part, name))
        self.wrong += part.wrong
        self.recovery += part.recovery
        self.left_out += part.left_out


ZEROS = (
    "lost",
    "vanished",
    "phantom",
    "unlicensed",
    "after_final",
    "overlaps",
    "bad_settles",
    "effects",
)


class Experiment(Struct, frozen=True, kw_only=True):
    """One way to disturb the system. `act` does it, and raises only for what is wrong with the experiment itself."""

    id: str
    title: str
    act: Callable[[Setting], Outcome]
    engines: tuple[str, ...] = ("sqlite",)
    by_default: bool = True

    def run(self, setting: Setting) -> Outcome:
        """Do it. Whatever was waited for in vain is wrong, so no fault can be missing without a word."""
        outcome = self.act(setting)
        outcome.wrong += list(dict.fromkeys(setting.missed))
        return outcome


def unfinished(states: Iterable[str]) -> list[str]:
    """What is wrong with the last states of jobs all of which should have been completed."""
    others = Counter(state for state in states if state != "completed")
    return [f"{others.total()} jobs are not completed: {dict(others)}."] if others else []
