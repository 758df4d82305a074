"""Tiers of tests: the tests that run in a minute's pause, before a merge, and at night.

    quick     `python3 dev.py test`; less than five minutes on two cores
    full      `--rest` runs what it adds to quick, `--all` runs both
    nightly   `--nightly` runs everything, with the long forms of property tests

A test is of the tier of the nearest row in PLACES, or of a later one that its mark `tier` names; a quick test that
took longer than SLOW when it was recorded is of the full tier. tests/postgres.py marks what runs on an older
PostgreSQL. The root conftest.py applies this to pytest; `dev.py check` compares the recorded times with BUDGET.
"""

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DURATIONS = ROOT / "tests" / "durations.json"


class Tier(IntEnum):
    QUICK = 0
    FULL = 1
    NIGHTLY = 2


# Folders and single files; the longest row that fits counts. Files that need requirements/rest.txt are not quick.
PLACES: Mapping[str, Tier] = {
    "bench/tests": Tier.NIGHTLY,
    # The harness and its judges; of the experiments the kills of processes and the secrets, the others at night.
    "faults/tests": Tier.FULL,
    **{
        f"faults/tests/test_{name}.py": Tier.NIGHTLY
        for name in (
            "e02_every_step",
            "e06_to_e11_processes",
            "e12_exception_zoo",
            "e15_e19_outages",
            "e20_e23_postgres",
            "e28_clocks",
            "e29_e34_file",
            "e31_e32_e35_disk",
            "e41_e43_ticks",
            "e48_e55_http",
            "e49_hostile_input",
            "e57_any_schedule",
            "e58_mutants",
            "monkey",
            "move",
            "postgres",
            "rivals",
            "soak",
        )
    },
    "tests/engines": Tier.QUICK,
    "tests/engines/test_local_postgres.py": Tier.FULL,
    "tests/engines/test_postgres_joins.py": Tier.FULL,
    "tests/engines/test_postgres_outages.py": Tier.FULL,
    "tests/engines/test_postgres_pgbouncer.py": Tier.FULL,
    "tests/engines/test_postgres_plans.py": Tier.NIGHTLY,  # on a million rows
    "tests/engines/test_postgres_silence.py": Tier.FULL,
    "tests/engines/test_sqlite_plans.py": Tier.FULL,
    "tests/fundamentals": Tier.QUICK,
    "tests/fundamentals/test_sqlite_transactions.py": Tier.FULL,
    "tests/journeys": Tier.FULL,
    "tests/journeys/test_thousand_waits.py": Tier.NIGHTLY,
    "tests/service": Tier.QUICK,
    "tests/service/test_openapi.py": Tier.FULL,
    "tests/typing": Tier.FULL,
    "tests/unit": Tier.QUICK,
}
# What each word after `--tier` runs.
WANTED: Mapping[str, frozenset[Tier]] = {
    "quick": frozenset({Tier.QUICK}),
    "rest": frozenset({Tier.FULL}),
    "all": frozenset({Tier.QUICK, Tier.FULL}),
    "nightly": frozenset(Tier),
}
SLOW = 0.5  # seconds; a test that has been slow is quick again below the half
# Seconds of all test processes together: three processes for four minutes, four for nine.
BUDGET: Mapping[Tier, float] = {Tier.QUICK: 720.0, Tier.FULL: 2160.0}

# Tests that `--since` adds for a changed file: the first row that fits.
MIRRORS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("src/shigoto/engine/", ("tests/engines", "faults/tests")),
    ("src/shigoto/moving/", ("tests/engines", "tests/journeys/test_move.py", "faults/tests/test_move.py")),
    ("src/shigoto/worker/", ("tests/unit/worker", "tests/fundamentals", "faults/tests")),
    ("src/shigoto/server/", ("tests/service",)),
    ("conformance/", ("tests/engines",)),
    ("devtools/postgres/", ("tests/engines/test_local_postgres.py",)),
    ("bench/", ("bench/tests",)),
    ("faults/", ("faults/tests",)),
    ("examples/", ("tests/journeys/test_users_api.py", "tests/journeys/test_stores.py")),
    ("docs/", ("tests/journeys/test_docs.py",)),
    ("README", ("tests/journeys/test_docs.py",)),
)


def tier_of_path(path: str) -> Tier:
    """Return the tier of the nearest row in PLACES. Raises KeyError if no row fits."""
    fitting = [place for place in PLACES if path == place or path.startswith(f"{place}/")]
    if not fitting:
        raise KeyError(f"{path} is in no folder of devtools/tiers.py; add a row to PLACES")
    return PLACES[max(fitting, key=len)]


def tier_of(path: str, marks: Iterable[Tier] = (), seconds: float = 0.0) -> Tier:
    """Return the tier of one test: the latest of its file, its marks and its recorded time."""
    return max(tier_of_path(path), *marks, Tier.FULL if seconds > SLOW else Tier.QUICK)


@dataclass
class Durations:
    """Recorded times: seconds by file and tier, and those of single slow tests."""

    files: dict[str, list[float]] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path = DURATIONS) -> "Durations":
        """Read the file; without one, nothing has been recorded."""
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else cls()

    def save(self, path: Path = DURATIONS) -> None:
        """Write the file: sorted, rounded, and one line for each entry, so that a difference can be read."""
        parts = []
        for name, entries in (("files", self.files), ("slow", self.slow)):
            lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(entries.items())]
            parts.append(f' "{name}": {{\n' + ",\n".join(lines) + "\n }")
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")

    def sum(self, tier: Tier) -> float:
        """Return the seconds of all processes that the tests of this tier take."""
        return sum(seconds[tier] for seconds in self.files.values())

    def record(self, runs: Iterable[tuple[str, Tier, float, float]]) -> None:
        """Take over a run: for each test its id, its tier, the seconds of its call and its seconds altogether.

        Other tiers of the same files keep their times. Files that are gone are removed.
        """
        seen: set[tuple[str, Tier]] = set()
        for test, tier, call, seconds in runs:
            path = test.partition("::")[0]
            entry = self.files.setdefault(path, [0.0] * len(Tier))
            entry[tier] = seconds if (path, tier) not in seen else entry[tier] + seconds
            seen.add((path, tier))
            if call > (SLOW / 2 if test in self.slow else SLOW):
                self.slow[test] = round(call, 1)
            else:
                self.slow.pop(test, None)
        self.files = {
            path: [round(each, 2) for each in entry]
            for path, entry in self.files.items()
            if (ROOT / path).exists()
        }
        self.slow = {test: each for test, each in self.slow.items() if test.partition("::")[0] in self.files}


def over_budget(durations: Durations) -> list[str]:
    """Return one sentence for each tier whose recorded time is over its budget, and one for files without a time."""
    return [
        f"The tests of the {tier.name.lower()} tier take {durations.sum(tier):.0f} s, more than {most:.0f} s. "
        "Make them faster or move them to a later tier (devtools/tiers.py)."
        for tier, most in BUDGET.items()
        if durations.sum(tier) > most
    ] + [
        f"{path} has no recorded time. Run: python3 dev.py test --record {path}"
        for path in files_of_tests()
        if tier_of_path(path) is not Tier.NIGHTLY and path not in durations.files
    ]


def files_of_tests() -> list[str]:
    """Return the files of tests in the repository."""
    folders = {place.partition("/")[0] for place in PLACES}
    paths = [path for folder in sorted(folders) for path in sorted((ROOT / folder).rglob("test_*.py"))]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def changed_since(revision: str) -> list[str]:
    """Return the files that differ from a revision, and those that git does not know yet.

    Raises ValueError if git does not know the revision.
    """
    found: set[str] = set()
    for words in (["diff", "--name-only", revision, "--"], ["ls-files", "--others", "--exclude-standard"]):
        asked = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if asked.returncode:
            raise ValueError(f"git does not know what has changed since {revision!r}: {asked.stderr.strip()}")
        found.update(path for path in asked.stdout.splitlines() if (ROOT / path).exists())
    return sorted(found)


def named_by_changes(changed: Iterable[str]) -> list[str]:
    """Return the folders, files and tests that changes of these files ask for, beside the quick tier."""
    found: set[str] = set()
    for path in changed:
        if Path(path).name.startswith("test_") and path.endswith(".py"):
            found.add(path)
        else:
            found.update(next((tests for start, tests in MIRRORS if path.startswith(start)), mirrored(path)))
    return sorted(found)


def mirrored(path: str) -> tuple[str, ...]:
    """Return the folder of unit tests for a file of a package, if there is one."""
    parts = Path(path).parts
    if parts[:2] != ("src", "shigoto") or len(parts) < 4:
        return ()
    folder = f"tests/unit/{parts[2]}"
    return (folder,) if (ROOT / folder).is_dir() else ()
