"""The front door for contributors: `python3 dev.py` lists the commands.

It needs Python and nothing else: each command first brings `.venv` in line with the hashed files in
`requirements/`, and does nothing when it already is (devtools/environment.py says how).

This file must parse on Python 3.8, to be able to ask for a newer one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Mapping, NoReturn, Sequence

ROOT = Path(__file__).resolve().parent
ENGINES = ("memory", "postgres", "sqlite")
TIERS = ("--rest", "--all", "--nightly")


def main(arguments: Sequence[str]) -> int:
    if sys.version_info < (3, 11):
        version = ".".join(str(part) for part in sys.version_info[:3])
        print(f"Shigoto needs Python 3.11 or newer; {sys.executable} is Python {version}.", file=sys.stderr)
        print("Run dev.py with a newer one, for example: python3.11 dev.py", file=sys.stderr)
        return 1
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    name, rest = arguments[0], list(arguments[1:])
    if name not in COMMANDS:
        print(f"dev.py: there is no command {name!r}.\n\n{usage()}", file=sys.stderr)
        return 1

    from devtools.environment import Problem

    try:
        return COMMANDS[name](rest)
    except Problem as problem:
        print(f"dev.py: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def usage() -> str:
    lines = ["usage: python3 dev.py COMMAND [ARGUMENTS]", ""]
    lines += [f"  {name:<13} {(command.__doc__ or '').splitlines()[0]}" for name, command in COMMANDS.items()]
    return "\n".join(lines)


def demo(arguments: list[str]) -> int:
    """see jobs run: a queue, a worker and a few jobs on one SQLite file"""
    become(["python", "-m", "shigoto", "demo", *arguments], needs="run")


def test(arguments: list[str]) -> int:
    """run the quick tests; --rest the others before a merge, --all both, --nightly everything; or what you name

    `test sqlite` runs one engine, --since REV adds the tests for what has changed, --record writes how long they took,
    --renew writes the pages that commands show; all else is for pytest.
    """
    words = pytest_arguments(arguments)
    # All other tests than the quick ones may need what requirements/rest.txt adds.
    needs = "dev" if "--tier=quick" in words and "--since" not in " ".join(words) else "rest"
    # Outside of the quick tier most tests wait for programs and leases, so there is work for one process more.
    environment = tests_environment(os.environ, cores() + ("--tier=quick" not in words))
    become(["python", "-m", "pytest", *words], needs=needs, environment=environment)


def check(arguments: list[str]) -> int:
    """lint, format, types, import rules, sizes, names and the time of tests; `check --fix` repairs what it can"""
    from devtools.environment import Problem, prepare

    if set(arguments) - {"--fix"}:
        raise Problem(f"check takes --fix and nothing else, not {' '.join(arguments)!r}.")
    scripts = prepare("rest")
    results = []
    for name, (program, *rest) in checks(fix="--fix" in arguments).items():
        print(f"── {name}", flush=True)
        started = time.monotonic()
        done = subprocess.run([str(scripts / program), *rest], cwd=ROOT, check=False)
        results.append((name, done.returncode == 0, time.monotonic() - started))
    print("── the house", flush=True)
    results.append(("the house", not untidy(), 0.0))
    print("── time of tests", flush=True)
    results.append(("time of tests", not over_budget(), 0.0))
    print()
    for name, passed, seconds in results:
        print(f"{'ok    ' if passed else 'FAILED'}  {name:<14} {seconds:5.1f} s")
    return 0 if all(passed for _, passed, _ in results) else 1


def untidy() -> Sequence[str]:
    """Print the size of the package and what could be tidier, and return what must be."""
    from devtools.house import examine

    report = examine()
    print(f"src/shigoto: {report.files} files, {report.lines} lines")
    for sentence in (*report.warnings, *report.problems):
        print(sentence)
    return report.problems


def over_budget() -> list[str]:
    """Print the recorded time of the quick and the full tier, and return one sentence for each that takes too long."""
    from devtools.tiers import BUDGET, Durations, over_budget

    durations = Durations.load()
    for tier, most in BUDGET.items():
        print(f"{tier.name.lower()}: {durations.sum(tier):.0f} of {most:.0f} s of all processes")
    problems = over_budget(durations)
    for problem in problems:
        print(problem)
    return problems


def bench(arguments: list[str]) -> int:
    """measure: jobs per second, latency, growth; `bench --help` lists the kinds"""
    # A PostgreSQL of one's own is not among what users need, nor is the service.
    needs = "dev" if "postgres" in " ".join(arguments) or arguments[:1] in (["http"], ["signals"]) else "run"
    become(["python", "-m", "bench", *arguments], needs=needs)


def faults(arguments: list[str]) -> int:
    """kill, stop, fill up and cut off what runs, and prove that nothing is lost; `faults --help` has the experiments"""
    become(["python", "-m", "faults", *arguments], needs="rest")


def docs(arguments: list[str]) -> int:
    """build the documentation into site/; `docs serve` shows it while you write, `docs reference` renews a part"""
    from devtools.environment import prepare

    renewed = subprocess.run(
        [str(prepare("docs") / "python"), "-m", "devtools.reference"], cwd=ROOT, check=False
    )
    if not renewed.returncode and arguments != ["reference"]:
        become(["zensical", *(arguments or ["build", "--clean", "--strict"])], needs="docs")
    return renewed.returncode


def postgres(arguments: list[str]) -> int:
    """run a private PostgreSQL for development until Ctrl-C, and print its address"""
    become(["python", "-m", "devtools.postgres", *arguments], needs="dev")


def requirements(arguments: list[str]) -> int:
    """which test proves which requirement; --uncovered, --json"""
    from devtools import ledger

    return ledger.main(arguments)


def lock(arguments: list[str]) -> int:
    """pin the dependencies again, with hashes; `lock --upgrade` takes newer versions"""
    from devtools import locks

    locks.compile_all(arguments)
    return 0


# In the order in which a newcomer meets them.
COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "demo": demo,
    "test": test,
    "check": check,
    "bench": bench,
    "faults": faults,
    "docs": docs,
    "postgres": postgres,
    "requirements": requirements,
    "lock": lock,
}


def become(command: Sequence[str], needs: str, environment: Mapping[str, str] = os.environ) -> NoReturn:
    """Run a program of `.venv` in place of dev.py, so that signals and the exit code are its own."""
    from devtools.environment import prepare

    words = [str(prepare(needs) / command[0]), *command[1:]]
    os.chdir(ROOT)
    sys.stdout.flush()
    if os.name == "nt":
        sys.exit(subprocess.run(words, env=environment, check=False).returncode)
    os.execve(words[0], words, environment)


def pytest_arguments(arguments: Sequence[str]) -> list[str]:
    """Return what pytest is given.

    A leading engine word becomes --engine=…. The tier is quick, unless an option names another one or the arguments
    name tests: then exactly these run. As many processes as `tests_environment` says run them, unless -n
    says otherwise.
    """
    rest = list(arguments)
    if rest and rest[0] in ENGINES:
        rest[0] = f"--engine={rest[0]}"
    tiers = [word for word in rest if word in TIERS]
    if len(tiers) > 1:
        from devtools.environment import Problem

        raise Problem(f"test takes one of {', '.join(TIERS)}, not {' '.join(tiers)}.")
    rest = [word for word in rest if word not in TIERS]
    if tiers or not any(names_tests(word) for word in rest):
        rest.insert(0, f"--tier={tiers[-1].lstrip('-') if tiers else 'quick'}")
    chosen = any(word.startswith(("-n", "--numprocesses")) or word == "no:xdist" for word in rest)
    # Some tests take a thousand times as long as others: who is done takes some from those who are not.
    return rest if chosen else ["-n", "auto", "--dist", "worksteal", *rest]


def names_tests(word: str) -> bool:
    """Return True if a word for pytest is a file, a folder or a test of the project, or chooses by name or by mark."""
    path = (ROOT / word.partition("::")[0]).resolve()
    inside = ROOT in path.parents and (path.is_dir() or path.suffix == ".py") and path.exists()
    return inside or word.startswith(("-k", "-m", "--lf", "--last-failed"))


def tests_environment(given: Mapping[str, str], cores: int) -> dict[str, str]:
    """What the tests see of the environment.

    They wait a good deal, so `-n auto` means more processes than there are cores. And they start thousands of
    programs, each of which would compile what it imports if nobody might keep the result.
    """
    kept = {name: value for name, value in given.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"PYTEST_XDIST_AUTO_NUM_WORKERS": str(max(3, cores + 1)), **kept}


def cores() -> int:
    """How many this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def checks(fix: bool) -> dict[str, list[str]]:
    return {
        "ruff check": ["ruff", "check", *(["--fix"] if fix else []), "."],
        "ruff format": ["ruff", "format", *([] if fix else ["--check"]), "."],
        "mypy": ["mypy"],
        "basedpyright": ["basedpyright"],
        "import-linter": ["lint-imports", "--no-logo"],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
