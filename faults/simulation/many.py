"""Many worlds, in several processes at once."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field, json

from faults.simulation.world import Verdict

ROOT = Path(__file__).parents[2]
MOST_TOLD = 20


class Tally(Struct):
    """What worlds had in them; `failing` are the seeds of those in which a promise was broken, with what it was."""

    worlds: int = 0
    jobs: int = 0
    starts: int = 0
    fences: int = 0
    callbacks: int = 0
    failing: dict[int, list[str]] = field(default_factory=dict)
    traces: dict[int, str] = field(default_factory=dict)

    def add(self, verdict: Verdict) -> None:
        """One more world."""
        self.worlds += 1
        self.jobs += verdict.jobs
        self.starts += verdict.starts
        self.fences += verdict.fences
        self.callbacks += verdict.callbacks
        self.traces[verdict.seed] = verdict.trace
        if verdict.wrong:
            self.failing[verdict.seed] = list(verdict.wrong)

    def join(self, other: "Tally") -> None:
        """Those of another process."""
        for name in ("worlds", "jobs", "starts", "fences", "callbacks"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failing.update(other.failing)
        self.traces.update(other.traces)


def live_many(
    first: int,
    count: int,
    *options: str,
    processes: int = 2,
    source: Path = ROOT / "src",
    hash_seed: str = "random",
) -> Tally:
    """The worlds of `count` seeds from `first` on, shared out among processes that import shigoto from `source`."""
    path = os.pathsep.join([str(ROOT), str(source), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}
    begun = [
        subprocess.Popen(
            [sys.executable, "-m", "faults.simulation", *_share(first, count, number, processes), *options],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(min(processes, count))
    ]
    tally = Tally()
    try:
        for process in begun:
            said, complained = process.communicate()
            if process.returncode not in (0, 1):
                raise RuntimeError(
                    f"a simulation ended with {process.returncode}:\n{complained.decode()[-4000:]}"
                )
            tally.join(json.decode(said.splitlines()[-1], type=Tally))
    finally:
        for process in begun:  # those that nobody waits for any more
            process.kill()
            process.communicate()
    return tally


def replay(seed: int, engine: str = "memory", size: str = "small") -> str:
    """How to live through one of them again."""
    more = "" if (engine, size) == ("memory", "small") else f" --engine {engine} --size {size}"
    whole = f"python3 dev.py faults --experiment E57 --seed {seed}"
    return f"{whole}, or only this world: python3 -m faults.simulation --seed {seed}{more}"


def told(failing: dict[int, list[str]], engine: str = "memory", size: str = "small") -> list[str]:
    """What was wrong, and how to see it again."""
    return [
        f"seed {seed}: {wrong[0]}"
        + (f" and {len(wrong) - 1} more" if len(wrong) > 1 else "")
        + f"; again: {replay(seed, engine, size)}"
        for seed, wrong in sorted(failing.items())[:MOST_TOLD]
    ]


def _share(first: int, count: int, number: int, processes: int) -> Sequence[str]:
    return ("--first", str(first + number), "--count", str(count - number), "--step", str(processes))
