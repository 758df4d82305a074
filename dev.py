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
from typing import Callable, Iterable, Mapping, NoReturn, Sequence

ROOT = Path(__file__).resolve().parent
ENGINES = ("memory", "postgres", "sqlite")
CODE = ("conftest.py", "dev.py", "devtools", "src", "conformance", "tests", "examples", "bench", "faults")
MOST_LINES = 400
SHORT_FILES = ("src", "faults")  # where no file may have more


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
    lines += [f"  {name:<13} {command.__doc__}" for name, command in COMMANDS.items()]
    return "\n".join(lines)


def demo(arguments: list[str]) -> int:
    """see jobs run: a queue, a worker and a few jobs on one SQLite file"""
    become(["python", "-m", "shigoto", "demo", *arguments], needs="run")


def test(arguments: list[str]) -> int:
    """run the tests; `test memory`, `test sqlite` or `test postgres` for one engine, the rest goes to pytest"""
    environment = tests_environment(os.environ, cores())
    become(["python", "-m", "pytest", *pytest_arguments(arguments)], needs="dev", environment=environment)


def check(arguments: list[str]) -> int:
    """lint, format, types, import rules and file sizes; `check --fix` repairs what it can"""
    from devtools.environment import Problem, prepare

    if set(arguments) - {"--fix"}:
        raise Problem(f"check takes --fix and nothing else, not {' '.join(arguments)!r}.")
    scripts = prepare("dev")
    results = []
    for name, (program, *rest) in checks(fix="--fix" in arguments).items():
        print(f"── {name}", flush=True)
        started = time.monotonic()
        done = subprocess.run([str(scripts / program), *rest], cwd=ROOT, check=False)
        results.append((name, done.returncode == 0, time.monotonic() - started))
    print("── file sizes", flush=True)
    long_files = [each for part in SHORT_FILES for each in files_over(MOST_LINES, ROOT / part)]
    for path, lines in long_files:
        print(f"{path.relative_to(ROOT)} has {lines} lines, more than {MOST_LINES}. Make it two ideas.")
    results.append(("file sizes", not long_files, 0.0))
    print()
    for name, passed, seconds in results:
        print(f"{'ok    ' if passed else 'FAILED'}  {name:<14} {seconds:5.1f} s")
    return 0 if all(passed for _, passed, _ in results) else 1


def bench(arguments: list[str]) -> int:
    """measure: jobs per second, latency, growth; `bench --help` lists the kinds"""
    # A PostgreSQL of one's own is not among what users need, nor is the service.
    needs = "dev" if "postgres" in " ".join(arguments) or arguments[:1] in (["http"], ["signals"]) else "run"
    become(["python", "-m", "bench", *arguments], needs=needs)


def faults(arguments: list[str]) -> int:
    """kill, stop, fill up and cut off what runs, and prove that nothing is lost; `faults --help` has the experiments"""
    become(["python", "-m", "faults", *arguments], needs="dev")


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
    """A leading engine word becomes --engine=…; as many processes as `tests_environment` says, unless -n does."""
    rest = list(arguments)
    if rest and rest[0] in ENGINES:
        rest[0] = f"--engine={rest[0]}"
    chosen = any(word.startswith(("-n", "--numprocesses")) or word == "no:xdist" for word in rest)
    # Some tests take a thousand times as long as others: who is done takes some from those who are not.
    return rest if chosen else ["-n", "auto", "--dist", "worksteal", *rest]


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
        "mypy": ["mypy", *existing(CODE)],
        "basedpyright": ["basedpyright"],
        "import-linter": ["lint-imports", "--no-logo"],
    }


def existing(names: Iterable[str]) -> list[str]:
    return [name for name in names if (ROOT / name).exists()]


def files_over(most: int, folder: Path) -> list[tuple[Path, int]]:
    """Return the source files under a folder that have more lines than that, the longest first; tests are exempt."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".pyc" and "tests" not in path.relative_to(folder).parts:
            lines = path.read_bytes().count(b"\n")
            if lines > most:
                found.append((path, lines))
    return sorted(found, key=lambda each: (-each[1], each[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
