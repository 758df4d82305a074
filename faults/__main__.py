"""Disturbs a running system in all the ways that we know of, and tells from evidence kept outside whether its promises
held. Nothing else should run on the machine meanwhile; all experiments together take one to two hours.

The same seed gives the same choices again. What an experiment leaves behind is removed if it passed, else kept.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from faults import report
from faults.experiment import Experiment, Outcome, Setting
from faults.experiments import all_experiments

ENGINES = ("sqlite", "postgres")


def main(arguments: Sequence[str], experiments: Mapping[str, Experiment] | None = None) -> int:
    """Run those that are asked for, print the table, and tell by the exit code whether any failed."""
    known = all_experiments() if experiments is None else experiments
    options = parser(known).parse_args(arguments)
    try:
        chosen = choose(known, options.experiment, options.engine)
        before = _kept(options, chosen)
    except (LookupError, report.Unusable) as error:
        print(f"dev.py faults: {error.args[0]}", file=sys.stderr)
        return 2
    command = " ".join(["python3 dev.py faults", *shown(arguments)])
    setting = report.here(options.engine)  # now: the table that is written meanwhile would be a change
    print(f"{len(chosen)} experiments on {options.engine}, seed {options.seed}", flush=True)
    ran: list[report.Result] = []
    try:
        for experiment in chosen:
            result = perform(experiment, options, command, setting)
            print(report.line(result), flush=True)
            ran.append(result)
            _write(options, [*before, *ran])
    except KeyboardInterrupt:
        print(
            f"\n{report.in_terminal(ran)}\n\nInterrupted; of {len(chosen)} experiments {len(ran)} were done."
        )
        return 130
    print(f"\n{report.in_terminal(ran)}")
    if not any(result.outcome.passed for result in ran):
        print("\nNothing was shown.")
        return 1
    return 1 if any(result.verdict == "FAILED" for result in ran) else 0


def _kept(options: argparse.Namespace, chosen: Sequence[Experiment]) -> list[report.Result]:
    """What the file of results has of other experiments. Raises Unusable if what is to be written cannot be."""
    if options.add and not options.out:
        raise report.Unusable("--add needs --out FILE.json, whose results are to be kept.")
    if options.out:
        report.expect_writable(options.out)
    if options.table:
        report.expect_place(options.table, options.engine)
    again = {(experiment.id, options.engine) for experiment in chosen}
    results = report.load(options.out) if options.add else []
    return [result for result in results if (result.id, result.engine) not in again]


def _write(options: argparse.Namespace, results: Sequence[report.Result]) -> None:
    everything = sorted(results, key=lambda each: (each.engine, each.id))
    if options.out:
        report.save(options.out, everything)
    if options.table:
        of_engine = [each for each in everything if each.engine == options.engine]
        report.put(options.table, report.page(of_engine), options.engine)


def parser(known: Mapping[str, Experiment]) -> argparse.ArgumentParser:
    """The options, with a list of what there is."""
    listed = "\n".join(
        f"  {each.id:<5} {each.title} ({', '.join(each.engines)}{'' if each.by_default else '; only if it is named'})"
        for each in known.values()
    )
    parser = argparse.ArgumentParser(
        prog="dev.py faults",
        description=f"{__doc__}\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="sqlite",
        help="where jobs live; not every experiment is about both",
    )
    parser.add_argument(
        "--experiment", metavar="E01,E05", default="all", help="which, by id; all if not given"
    )
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of another run, to do the same again"
    )
    parser.add_argument("--short", action="store_true", help="the small form of each, as the tests have it")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="keep everything there")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE.md",
        help="write the table there, between its markers, or into a new file",
    )
    parser.add_argument("--add", action="store_true", help="keep what FILE.json has of other experiments")
    return parser


def choose(known: Mapping[str, Experiment], words: str, engine: str) -> list[Experiment]:
    """The experiments of these ids; all that are meant for every run, for `all`."""
    names = [word.strip().upper() for word in words.split(",") if word.strip()]
    if names == ["ALL"]:
        return [each for each in known.values() if each.by_default and engine in each.engines]
    by_name = {id.upper(): each for id, each in known.items()}
    unknown = [name for name in names if name not in by_name]
    if unknown or not names:
        said = f"no experiment {unknown[0]!r}" if unknown else "no experiment named"
        raise LookupError(f"there is {said}; there are: {', '.join(known)}. `all` is those of every run.")
    if others := [name for name in names if engine not in by_name[name].engines]:
        raise LookupError(f"{others[0]} is not about the engine {engine}.")
    return [by_name[name] for name in dict.fromkeys(names)]


def perform(
    experiment: Experiment, options: argparse.Namespace, command: str, here: Mapping[str, str]
) -> report.Result:
    """Run one in a folder of its own. Whatever it raises is its failure, and no reason to stop."""
    folder = Path(tempfile.mkdtemp(prefix=f"shigoto-{experiment.id.lower()}-"))
    folder.chmod(0o711)  # the account of a server may have to pass through it
    setting = Setting(
        engine=options.engine, folder=folder, seed=options.seed, full=not options.short, say=say
    )
    print(f"{experiment.id:<5} {experiment.title} …", flush=True)
    outcome, error, began = Outcome(), "", time.monotonic()
    try:
        outcome = experiment.run(setting)
    except KeyboardInterrupt:
        print(f"        what it left behind is in {folder}", flush=True)
        raise
    except (Exception, SystemExit) as raised:
        traceback.print_exc()
        error = f"{type(raised).__name__}: {raised}"
    result = report.Result(
        id=experiment.id,
        title=experiment.title,
        engine=options.engine,
        seed=options.seed,
        full=setting.full,
        seconds=round(time.monotonic() - began, 1),
        outcome=outcome,
        error=error,
        folder=str(folder),
        command=command,
        setting=here,
    )
    if result.verdict != "FAILED":
        shutil.rmtree(folder, ignore_errors=True)
        result.folder = ""
    return result


def say(text: str) -> None:
    """What an experiment tells while it runs."""
    print(f"        {text}", flush=True)


def shown(arguments: Sequence[str]) -> list[str]:
    """The words without places on this machine."""
    hidden = ("--out", "--table")
    words: list[str] = []
    skip = False
    for word in arguments:
        if not skip and word != "--add" and not word.startswith(hidden):
            words.append(word)
        skip = word in hidden
    return words


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C: everything that was started is ended
    sys.exit(main(sys.argv[1:]))
