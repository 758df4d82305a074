"""What one comparison is, apart from the engine it is about: who takes part, what is to be reached, how it is told."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from bench.comparison.entries import Entry, Peer
from bench.comparison.goals import Goal


class Ground(Protocol):
    """Where a comparison takes place, for as long as it lasts."""

    @property
    def python(self) -> Path:
        """What runs the runners."""
        ...

    @property
    def software(self) -> str:
        """What everybody is measured on, in a sentence."""
        ...

    @property
    def missing(self) -> Mapping[str, str]:
        """The packages that could not be had, and why."""
        ...

    @property
    def env(self) -> Mapping[str, str]:
        """What every runner is told."""
        ...

    @property
    def folder(self) -> Path:
        """On the disk that counts."""
        ...

    def settle(self) -> None:
        """Let nobody pay for what another has written."""
        ...

    def words_for(self, store: str) -> list[str]:
        """How a runner is told to begin with a store that was prepared; its name is also in $PREPARED."""
        ...

    def prepare(self, store: str) -> tuple[list[str], Mapping[str, str]]:
        """The words and the environment that make the runner prepare a store."""
        ...


class Wishes(Struct, frozen=True, kw_only=True):
    """What somebody has said about the environment."""

    python: str | None = None
    renew: bool = False


class Column(Struct, frozen=True):
    """One cost of a job in a table of speeds."""

    key: str
    head: str
    shape: str  # as of `format`


class Words(Struct, frozen=True, kw_only=True):
    """What the page says beside the figures. In titles, `{history:,}` stands for the size of that store."""

    title: str
    preface: Sequence[str]  # after the date and the machine, before what holds for all pages
    counted: str
    titles: Mapping[str, str]
    notes: Mapping[str, str]
    promises: Sequence[str]
    costs: Sequence[Column]
    plain: Mapping[str, Mapping[str, str]]  # workloads whose figures are no speeds: the columns


class Contest(Struct, frozen=True, kw_only=True):
    """One comparison."""

    engine: str
    ours: Mapping[str, Mapping[str, str]]  # each of our contestants, and what it is told
    peers: Sequence[Peer]
    entries: Sequence[Entry]
    prepared: Mapping[str, float]  # stores that have grown: how much of --growth they have
    goals: Sequence[Goal]
    words: Words
    ground: Callable[[Wishes], AbstractContextManager[Ground]]

    @property
    def works(self) -> list[str]:
        """All workloads, in their order."""
        return list(dict.fromkeys(entry.work for entry in self.entries))

    @property
    def names(self) -> list[str]:
        """All contestants, in their order."""
        return list(dict.fromkeys(entry.name for entry in self.entries))

    def sizes(self, growth: int) -> dict[str, int]:
        """How many jobs are in each of the stores that have grown."""
        return {kind: max(1000, round(growth * part)) for kind, part in self.prepared.items()}
