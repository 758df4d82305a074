"""Every queue that keeps its jobs in one SQLite file, beside Shigoto: the same workloads, in the same rounds.

The peers are installed by name, in their newest releases, into `.bench/` (which git ignores), with the newest Python
that is found on the machine. Nothing else is touched. A full comparison takes about half an hour, and
`--work drain --rounds 1` a minute. Nothing else should run on the machine meanwhile.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from bench.comparison import driver, environment, machine, plan, report
from tools.environment import Problem

GROWTH = 1_000_000
ENGINES = ("sqlite",)


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the page."""
    options = parser().parse_args(arguments)
    try:
        print(compare(options, arguments))
    except Problem as problem:
        raise SystemExit(f"dev.py bench: {problem}") from problem


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="dev.py bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", required=True, choices=ENGINES, help="which engine to compare on")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", metavar="A,B", type=_words, default=[], help=f"of: {', '.join(plan.WORKS)}")
    parser.add_argument(
        "--only", metavar="NAME,NAME", type=_words, default=[], help="contestants, by name or its first word"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how much of each number of jobs, to try it out"
    )
    parser.add_argument("--growth", type=int, default=GROWTH, help="jobs in the stores that have grown")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.json", help="keep every single run there, after each round"
    )
    parser.add_argument("--table", type=Path, metavar="FILE.md", help="write the page there too")
    parser.add_argument("--python", metavar="PATH", help="the Python to measure with, not the newest")
    parser.add_argument("--renew", action="store_true", help="install the newest releases again")
    return parser


def compare(options: argparse.Namespace, arguments: Sequence[str]) -> str:
    """The page."""
    if not sys.platform.startswith("linux"):
        raise Problem("the costs come from /proc, which only Linux has.")
    entries = plan.chosen(options.work, options.only, options.scale, all_of=plan.entries())
    if unknown := set(options.work) - set(plan.WORKS):
        raise Problem(f"there is no workload {min(unknown)!r}; there are: {', '.join(plan.WORKS)}.")
    if not entries:
        raise Problem(f"nobody is called {', '.join(options.only)}; there are: {', '.join(names())}.")
    there = environment.prepare(plan.PACKAGES, python=options.python, renew=options.renew)
    try:
        return measure(entries, options, arguments, there)
    finally:
        driver.remove_stores()


def measure(
    entries: list[plan.Entry],
    options: argparse.Namespace,
    arguments: Sequence[str],
    there: environment.Environment,
) -> str:
    """Ask everybody, run the rounds, and write down what comes out."""
    sizes = plan.sizes(round(options.growth * options.scale))
    driver.prepare_stores(entries, sizes)
    setting = report.Setting(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine.describe(),
        command=" ".join(["python3 dev.py bench", *shown(arguments)]),
        python=there.python,
        sqlite=there.sqlite,
        rounds=options.rounds,
        sizes=sizes,
        infos=infos(entries, there.missing),
    )

    def keep(runs: list[dict[str, Any]]) -> None:
        if options.out:
            everything = {"setting": to_builtins(setting), "runs": runs}
            driver.write(options.out, json.dumps(everything, indent=1, ensure_ascii=False))
        if options.table:
            driver.write(options.table, report.page(runs, setting))

    return report.page(driver.rounds(entries, options.rounds, there.missing, keep), setting)


def infos(entries: Sequence[plan.Entry], missing: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What each contestant says of itself."""
    asked = {
        **({name: (plan.OURS, env, "") for name, env in plan.LEVELS.items()}),
        **{peer.name: (peer.module, peer.env, peer.package) for peer in plan.PEERS},
    }
    wanted = {entry.name.partition(",")[0] for entry in entries}
    return {
        name: {"error": missing[package]} if package in missing else driver.run(module, ["info"], env, 60.0)
        for name, (module, env, package) in asked.items()
        if name in wanted
    }


def names() -> list[str]:
    """Of all contestants."""
    return list(dict.fromkeys(entry.name for entry in plan.entries()))


def shown(arguments: Sequence[str]) -> list[str]:
    """The words without places on this machine."""
    hidden = ("--out", "--table", "--python")
    words: list[str] = []
    skip = False
    for word in arguments:
        if not skip and not word.startswith(hidden):
            words.append(word)
        skip = word in hidden
    return words


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
