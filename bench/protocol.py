"""What every runner of the comparison answers to: its commands, and the face that runners are written against.

    RUNNER info                what it is, its version, and what it promises
    RUNNER enqueue N           N single calls, one by one
    RUNNER bulk N              N jobs through the bulk call, 1000 at a time
    RUNNER drain N             N jobs are stored, then workers are started; from the start of the first handler to the
                               moment when the store itself says that nothing is left, so that whatever is written
                               late is paid for. --procs P, --history H finished jobs and --future F jobs due
                               tomorrow, --store FOLDER to begin with what was prepared there, --held for a
                               transaction that stays open from before the jobs are stored until all are done
    RUNNER latency N           one job at a time to an idle worker, from the call to the start of the handler
    RUNNER fleet N             --procs P workers are ready, then N jobs are stored at once
    RUNNER arrivals N          --procs P workers are ready, then N jobs are stored, $RATE a second, and how long each
                               waited for its start
    RUNNER worker              one worker process, until it is told to stop
    RUNNER reset               an empty store

Every command begins with an empty store, and prints one JSON object as its last line. After `enqueue` and `bulk` it
says how many jobs were enqueued, with those of the warm-up, and how many the store has; null if it cannot be asked.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from bench.contract import SQLITE_DIR, Many, One, Runner, ask, copy, count, journal
from bench.fleet_runs import arrivals, fleet
from bench.measuring import Report, Start, bulk, drain, enqueue, latency
from bench.probe import hit

__all__ = ["SQLITE_DIR", "Many", "One", "Runner", "ask", "copy", "count", "hit", "journal", "main"]


def info(runner: Runner) -> Report:
    """What it is and what it promises."""
    runner.reset()
    return {
        "name": runner.name,
        "engine": runner.engine,
        "bulk": runner.bulk,
        "history": runner.keeps_history,
        "version": runner.version(),
        "promises": runner.promises(),
    }


def main(runner: Runner, arguments: Sequence[str] | None = None) -> None:
    """Do what the words say, and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "command",
        choices=["info", "enqueue", "bulk", "drain", "latency", "fleet", "arrivals", "worker", "reset"],
    )
    parser.add_argument("jobs", type=int, nargs="?", default=1000)
    parser.add_argument("--procs", type=int, default=1)
    parser.add_argument("--history", type=int, default=0)
    parser.add_argument("--future", type=int, default=0)
    parser.add_argument("--store")
    parser.add_argument("--held", action="store_true")
    options = parser.parse_args(arguments)
    if options.command == "worker":
        work = runner.worker()
        if work is not None:
            runner.run(work)
        return
    print(json.dumps({"runner": runner.name, "cmd": options.command, **_answer(runner, options)}))


def _answer(runner: Runner, options: argparse.Namespace) -> Report:
    match options.command:
        case "info":
            return info(runner)
        case "reset":
            runner.reset()
            return {}
        case "enqueue":
            return enqueue(runner, options.jobs)
        case "bulk":
            return bulk(runner, options.jobs)
        case "drain":
            store = Path(options.store) if options.store else None
            start = Start(options.procs, store, options.history, options.future, options.held)
            return drain(runner, options.jobs, start)
        case "fleet":
            return fleet(runner, options.jobs, options.procs)
        case "arrivals":
            rate = float(os.environ["RATE"])
            return arrivals(runner, rate, options.jobs / rate, options.procs)
        case _:
            return latency(runner, options.jobs)
