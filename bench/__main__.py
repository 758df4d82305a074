"""`python3 dev.py bench [KIND] [OPTIONS]`: measures. `bench KIND --help` has the options.

speed            jobs per second and latency on new SQLite files, beside a bare insert loop, or with --url on any store;
                 this one if none is named
footprint        what it costs to have it: the import, an idle worker's processor time and memory, and how soon an
                 idle worker begins a job that another process has stored
stages           processor time of one job, stage by stage; of several source trees beside each other
ablation         what each optimisation buys: each is switched off by itself, and measured beside all of them
paired           this checkout beside another one, in paired rounds: enqueue, bulk, drain, pick-up, start-up
http             the service: jobs submitted one by one and in batches, a drain by a worker over HTTP beside one at the
                 store itself, and what a thousand waiting long polls cost
signals          what it costs to watch: logs, metrics and traces, each alone and all together
fleet            1 to 64 worker processes on one store: drains, and waits at a steady flow, beside the best peers
schedules        what schedules cost: many of which none is due, many at once, and how late ticks are at rest
--peers sqlite   the comparison with other queues, which are installed into `.bench/` for it: enqueue, drain, latency,
                 growth, what each costs and promises, and our goals; `bench --peers sqlite --help` has its options
--peers postgres the same with other queues, on a PostgreSQL that is started for it
"""

import sys
from collections.abc import Callable, Sequence

from bench import ablation, fleet, footprint, http, paired, schedules, signals, speed, stages
from bench.comparison import command as comparison

KINDS: dict[str, Callable[[Sequence[str]], None]] = {
    "speed": speed.main,
    "footprint": footprint.main,
    "stages": stages.main,
    "ablation": ablation.main,
    "http": http.main,
    "paired": paired.main,
    "fleet": fleet.main,
    "schedules": schedules.main,
    "signals": signals.main,
}


def main(arguments: Sequence[str]) -> None:
    """Run the measure that is named first."""
    if list(arguments) in (["-h"], ["--help"]):
        print(__doc__)
    elif arguments and arguments[0] in KINDS:
        KINDS[arguments[0]](arguments[1:])
    elif any(word.startswith("--peers") for word in arguments):
        comparison.main(arguments)
    else:
        speed.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
