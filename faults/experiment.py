"""What an experiment is given, and what it answers."""

from collections.abc import Callable
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

    def random(self, what: str = "") -> Random:
        """The chances of this run, apart for each purpose, so that one more draw in one does not change another."""
        return Random(f"{self.seed} {what}")

    def of(self, short: Any, full: Any) -> Any:
        """The number for this form of the experiment."""
        return full if self.full else short


class Outcome(Struct, kw_only=True):
    """What was seen. The counts are those of the checker; `wrong` says in words what else must not be.

    `n` counts what was put at risk (jobs, rounds, points, images), `recovery` are seconds from a fault until the work
    it cut short went on. `figures` are for the reader. An experiment that this machine does not allow is `skipped`,
    with the reason, and shows nothing.
    """

    n: int = 0
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

    @property
    def zeros(self) -> dict[str, int]:
        """The counts that must be zero."""
        return {name: getattr(self, name) for name in ZEROS}

    @property
    def passed(self) -> bool:
        """Whether every promise was kept; nothing is shown by what was skipped."""
        return not self.skipped and not self.wrong and not any(self.zeros.values())


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
    """One way to disturb the system. `run` raises only for what is wrong with the experiment itself."""

    id: str
    title: str
    run: Callable[[Setting], Outcome]
    engines: tuple[str, ...] = ("sqlite",)
    by_default: bool = True
