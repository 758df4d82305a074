"""Live through worlds: `python3 -m faults.simulation --seed 17`, or `--first 0 --count 1000 --step 2`.

One line of JSON for each world that broke a promise, and one at the end for all of them. It is a program of its own
because the runtime looks at the threads around it, and a test runner has some.
"""

import argparse
import gc
import logging
import sys
import tempfile
import time
from pathlib import Path

from msgspec import json

from faults.simulation.many import Tally
from faults.simulation.plan import Size
from faults.simulation.world import Verdict, World
from shigoto.worker import starting

COLLECT_EVERY = 25  # worlds
SIZES: dict[str, Size] = {"small": "small", "large": "large", "ticking": "ticking"}


def main() -> int:
    """Live through those that were asked for; 1 if a promise was broken in one."""
    options = _options()
    logging.disable(logging.CRITICAL)
    starting.FREED_BLOCK = 0  # no worker here needs megabytes
    gc.disable()  # a world is full of circles, and short: to look for them all the time takes a third of it
    tally, began = Tally(), time.monotonic()
    for seed in range(options.first, options.first + options.count, options.step):
        if time.monotonic() - began > options.seconds:
            break
        verdict = live(seed, options.size, options.engine)
        tally.add(verdict)
        if verdict.wrong or options.seed is not None:
            print(json.encode(verdict).decode(), flush=True)
        if tally.worlds % COLLECT_EVERY == 0:
            gc.collect()
        if tally.failing and options.until_wrong:
            break
    print(json.encode(tally).decode(), flush=True)
    return int(bool(tally.failing))


def live(seed: int, size: str, engine: str) -> Verdict:
    """One world, on a store of this kind."""
    if engine == "memory":
        return World(seed, size=SIZES[size]).live()
    with tempfile.TemporaryDirectory() as folder:
        return World(seed, size=SIZES[size], file=Path(folder, "jobs.db")).live()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, help="live through this one only, and tell of it")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more after so many")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--engine", choices=["memory", "sqlite"], default="memory")
    parser.add_argument("--until-wrong", action="store_true", help="stop at the first broken promise")
    options = parser.parse_args()
    if options.seed is not None:
        options.first, options.count, options.step = options.seed, 1, 1
    return options


if __name__ == "__main__":
    sys.exit(main())
