"""Fleets: what becomes of speed and waits as worker processes are added, on both engines, beside the best peers.

    noop        jobs that do nothing, all stored at once for workers that are idle and ready
    sleep1      jobs that sleep for a millisecond
    sleep10     ten of them
    compute10   jobs that compute for ten milliseconds
    steady      2 000 jobs a second, one by one: milliseconds from the call to the start of the handler
    half, most  the same at a half, and at nine tenths, of what the same number of processes drains

Each worker process has 50 slots. Every figure is the median of the rounds; behind a speed stands its part of the
contestant's best. Nothing else should run on the machine meanwhile.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from bench.comparison import driver, machine
from bench.comparison.command import separated
from bench.comparison.contest import Contest, Ground, Wishes
from bench.comparison.entries import Entry
from devtools.environment import Problem

OURS = "shigoto"
RUNNER = "bench.shigoto_runner"
PROCESSES = (1, 2, 4, 8, 16, 32, 64)
SLOTS = {"SLOTS": "50", "CONCURRENCY": "50"}
DRAINS = {
    "noop": (100_000, {}),
    "sleep1": (100_000, {"KIND": "sleeping", "MS": "1"}),
    "sleep10": (100_000, {"KIND": "sleeping", "MS": "10"}),
    "compute10": (2_000, {"KIND": "computing", "MS": "10"}),
}
STEADY = 2_000.0  # jobs a second
PARTS = {"half": 0.5, "most": 0.9}
SECONDS = 8.0
MOST_ARRIVALS = 6_000.0  # a second: one program cannot store more, one by one
WORKS = (*DRAINS, "steady", *PARTS)
PEERS = {"postgres": ("graphile-worker", "pgqueuer", "pg-boss"), "sqlite": ("litequeue",)}
AT = {"graphile-worker": ("noop", "sleep10", "steady"), "pgqueuer": ("noop", "steady")}

Runs = list[dict[str, Any]]


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a table for each workload."""
    parser = argparse.ArgumentParser(
        prog="dev.py bench fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--processes", type=_numbers, default=list(PROCESSES), metavar="1,2,8")
    parser.add_argument("--work", type=separated, default=list(WORKS), metavar="A,B", help=", ".join(WORKS))
    parser.add_argument(
        "--only", type=separated, default=[], metavar="NAME,NAME", help="contestants; all of the engine"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="keep every single run there")
    options = parser.parse_args(arguments)
    if unknown := set(options.work) - set(WORKS):
        raise SystemExit(f"there is no workload {min(unknown)!r}; there are: {', '.join(WORKS)}")
    contest: Contest = import_module(f"bench.comparison.{options.engine}").CONTEST
    try:
        with contest.ground(Wishes()) as ground:
            print(f"{machine.describe()} {ground.software}\n")
            runs: Runs = []
            for number in range(options.rounds):
                for run in _round(contest, options, ground, runs):
                    runs.append({"round": number, **run})
                    driver.say(number, runs[-1])
                    if options.out:
                        driver.write(options.out, json.dumps(runs, indent=1))
    except Problem as problem:
        raise SystemExit(f"dev.py bench: {problem}") from problem
    print("\n".join(tables(runs)))


def _round(
    contest: Contest, options: argparse.Namespace, ground: Ground, before: Runs
) -> Iterator[dict[str, Any]]:
    for work in options.work:
        for processes in options.processes:
            for name in (OURS, *PEERS[contest.engine]):
                if (options.only and name not in options.only) or (
                    name != OURS and work not in AT.get(name, ["noop"])
                ):
                    continue
                entry = _entry(contest, name, work, processes, before)
                if entry is not None and entry.package not in ground.missing:
                    told = {"work": work, "name": f"{name} x {processes}", "who": name, "procs": processes}
                    yield told | driver.once(entry, ground)


def _entry(contest: Contest, name: str, work: str, processes: int, before: Runs) -> Entry | None:
    words = ("--procs", str(processes))
    if name == OURS:
        module, package = RUNNER, ""
        env = {**SLOTS, "ENGINE": contest.engine, "CALLS": "async"}
    else:
        [peer] = [each for each in contest.peers if each.name == name]
        module, package, env = peer.module, peer.package, {**SLOTS, **peer.env}
    if work in DRAINS:
        jobs, kind = DRAINS[work]
        return Entry(work, name, module, "fleet", jobs, words, {**env, **kind}, package)
    rate = STEADY
    if work in PARTS:
        drained = [run["jobs_per_s"] for run in _of(before, "noop", name, processes) if "jobs_per_s" in run]
        if not drained:
            return None
        rate = min(MOST_ARRIVALS, PARTS[work] * median(drained))
    return Entry(
        work, name, module, "arrivals", int(rate * SECONDS), words, {**env, "RATE": str(rate)}, package
    )


def _of(runs: Runs, work: str, name: str, processes: int) -> Runs:
    return [run for run in runs if run["work"] == work and run["who"] == name and run["procs"] == processes]


def tables(runs: Runs) -> Iterator[str]:
    """A table for each workload: contestants below each other, numbers of processes beside each other."""
    for work in dict.fromkeys(run["work"] for run in runs):
        processes = sorted({run["procs"] for run in runs if run["work"] == work})
        yield f"**{work}**, {'jobs/s' if work in DRAINS else 'p50 / p99 ms'}\n"
        yield "| processes | " + " | ".join(map(str, processes)) + " |"
        yield "|---|" + "---|" * len(processes)
        for name in dict.fromkeys(run["who"] for run in runs if run["work"] == work):
            found = [_of(runs, work, name, count) for count in processes]
            yield f"| {name} | " + " | ".join(_cells(work, found)) + " |"
            yield "| CPU µs a job | " + " | ".join(map(_cpu, found)) + " |"
        yield ""


def _cells(work: str, found: list[Runs]) -> Iterator[str]:
    best = max((_median(each, "jobs_per_s") or 0.0 for each in found), default=0.0)
    for each in found:
        if not any("error" not in run for run in each):
            yield each[0]["error"][:60] if each else "–"
        elif work in DRAINS:
            speed = _median(each, "jobs_per_s") or 0.0
            yield f"{speed:,.0f} ({speed / best:.2f})"
        else:
            yield f"{_median(each, 'p50_ms'):,.1f} / {_median(each, 'p99_ms'):,.1f}"


def _cpu(found: Runs) -> str:
    both = [_median(found, key) for key in ("cpu_us_per_job", "server_us_per_job")]
    return " + ".join(f"{each:,.0f}" for each in both if each is not None) or "–"


def _median(found: Runs, key: str) -> float | None:
    values = [run[key] for run in found if run.get(key) is not None]
    return median(values) if values else None


def _numbers(text: str) -> list[int]:
    return [int(word) for word in separated(text)]
