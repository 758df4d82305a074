"""What a comparison is made of: entries, each one measure of one contestant, and the peers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

FEWEST = 50


class Entry(NamedTuple):
    """One measure of one contestant."""

    work: str
    name: str
    module: str
    command: str
    jobs: int
    words: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    package: str = ""  # of a peer
    store: str = ""  # the prepared one to begin with
    once: bool = False  # in the first round alone, because it takes its time


class Peer(NamedTuple):
    """Another queue; a workload of which it has no number of jobs is not for it."""

    name: str
    package: str
    module: str
    jobs: Mapping[str, int]
    env: Mapping[str, str] = {}
    judged: bool = True  # goals are about it

    def entry(
        self, work: str, command: str, *, words: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> Entry:
        """Its measure at a workload."""
        env = {**self.env, **(env or {})}
        return Entry(work, self.name, self.module, command, self.jobs[work], words, env, self.package)


def chosen(
    works: Sequence[str] = (), only: Sequence[str] = (), scale: float = 1.0, *, all_of: Iterable[Entry]
) -> list[Entry]:
    """Those that were asked for, by workload and by the name or the first word of it, with so many jobs."""
    return [
        entry._replace(jobs=max(FEWEST, round(entry.jobs * scale)))
        for entry in all_of
        if (not works or entry.work in works)
        and (not only or entry.name in only or entry.name.split()[0].rstrip(",") in only)
    ]
