"""Every queue that keeps its jobs in one SQLite file, or in PostgreSQL, beside Shigoto: the same workloads, in the same
rounds.

The peers are installed by name, in their newest releases, into `.bench/` (which git ignores), with the newest Python
that is found on the machine; those for Node.js with npm, where there is one. A PostgreSQL is started for the comparison
in a folder of its own, and removed. Nothing else is touched. A full comparison takes about half an hour, PostgreSQL a
little more, and `--quick` some minutes. Nothing else should run on the machine meanwhile.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from bench.comparison import driver, embedding, machine, report
from bench.comparison.contest import Contest, Ground, Wishes
from bench.comparison.entries import Entry, chosen
from devtools.environment import Problem

OURS = "bench.shigoto_runner"
ROUNDS, SCALE, GROWTH = 3, 1.0, 1_000_000
QUICK_ROUNDS, QUICK_SCALE, QUICK_GROWTH = 1, 0.3, 300_000
NOT_QUICK = ("drain2", "drain3", "flow", "idle")
ENGINES = ("sqlite", "postgres")


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
    works = "; ".join(f"{name}: {', '.join(contest_on(name).works)}" for name in ENGINES)
    parser.add_argument("--peers", required=True, choices=ENGINES, help="which engine to compare on")
    parser.add_argument(
        "--quick", action="store_true", help="one round of small sizes, without what takes long"
    )
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} unless said otherwise")
    parser.add_argument("--work", metavar="A,B", type=separated, default=[], help=f"some workloads; {works}")
    parser.add_argument(
        "--only",
        metavar="NAME,NAME",
        type=separated,
        default=[],
        help="contestants, by name or its first word",
    )
    parser.add_argument("--scale", type=float, help="how much of each number of jobs, to try it out")
    parser.add_argument("--growth", type=int, help=f"jobs in the stores that have grown: {GROWTH:,}")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.json", help="keep every single run there, after each round"
    )
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE.md",
        help="write the page there too; between the marks of its engine, if the file has such",
    )
    parser.add_argument("--python", metavar="PATH", help="the Python to measure with, not the newest")
    parser.add_argument("--renew", action="store_true", help="install the newest releases again")
    return parser


def contest_on(engine: str) -> Contest:
    """The comparison of an engine."""
    found: Contest = import_module(f"bench.comparison.{engine}").CONTEST
    return found


def sized(options: argparse.Namespace) -> argparse.Namespace:
    """With what nobody has said."""
    usual = {
        "rounds": QUICK_ROUNDS if options.quick else ROUNDS,
        "scale": QUICK_SCALE if options.quick else SCALE,
        "growth": QUICK_GROWTH if options.quick else GROWTH,
    }
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.quick and not options.work:
        options.work = [work for work in contest_on(options.peers).works if work not in NOT_QUICK]
    return options


def compare(options: argparse.Namespace, arguments: Sequence[str]) -> str:
    """The page."""
    if not sys.platform.startswith("linux"):
        raise Problem("the costs come from /proc, which only Linux has.")
    contest = contest_on(options.peers)
    sized(options)
    entries = chosen(options.work, options.only, options.scale, all_of=contest.entries)
    if unknown := set(options.work) - set(contest.works):
        raise Problem(f"there is no workload {min(unknown)!r}; there are: {', '.join(contest.works)}.")
    if not entries:
        raise Problem(f"nobody is called {', '.join(options.only)}; there are: {', '.join(contest.names)}.")
    with contest.ground(Wishes(python=options.python, renew=options.renew)) as ground:
        return measure(contest, entries, options, arguments, ground)


def measure(
    contest: Contest,
    entries: list[Entry],
    options: argparse.Namespace,
    arguments: Sequence[str],
    ground: Ground,
) -> str:
    """Ask everybody, run the rounds, and write down what comes out."""
    sizes = contest.sizes(round(options.growth * options.scale))
    driver.prepare_stores(entries, sizes, ground, OURS)
    setting = report.Setting(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine.describe(),
        command=" ".join(["python3 dev.py bench", *shown(arguments)]),
        software=ground.software,
        rounds=options.rounds,
        sizes=sizes,
        infos=infos(contest, entries, ground),
    )

    def keep(runs: list[dict[str, Any]]) -> None:
        if options.out:
            everything = {"setting": to_builtins(setting), "runs": runs}
            driver.write(options.out, json.dumps(everything, indent=1, ensure_ascii=False))
        if options.table:
            page = report.page(runs, setting, contest)
            driver.write(options.table, embedding.placed(page, options.table, contest.engine))

    runs = driver.rounds(entries, options.rounds, ground, keep)
    return report.page(runs, setting, contest)


def infos(contest: Contest, entries: Sequence[Entry], ground: Ground) -> dict[str, dict[str, Any]]:
    """What each contestant says of itself."""
    asked = {
        **({name: (OURS, env, "") for name, env in contest.ours.items()}),
        **{peer.name: (peer.module, peer.env, peer.package) for peer in contest.peers},
    }
    wanted = {entry.name.partition(",")[0] for entry in entries}
    return {
        name: {"error": ground.missing[package]}
        if package in ground.missing
        else driver.run(ground, module, ["info"], env, 60.0)
        for name, (module, env, package) in asked.items()
        if name in wanted
    }


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


def separated(text: str) -> list[str]:
    """The words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]
