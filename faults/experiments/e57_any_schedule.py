"""E57: the runtime on virtual time, in worlds that chance has made: any schedule, any fault, again and again.

Whatever breaks a promise there does so again: `python3 dev.py faults --experiment E57 --seed N` begins with the world
of seed N, and `python3 -m faults.simulation --seed N` is that world alone.
"""

import os
import time

from faults.experiment import Experiment, Outcome, Setting
from faults.simulation.many import Tally, live_many, told

ENDLESS = 10_000_000
# How many worlds in the short form, for how many seconds in the full one, and how many it must reach there.
PARTS = {
    ("memory", "small"): (2_000, 200.0, 5_000),
    ("memory", "large"): (6, 40.0, 20),
    ("sqlite", "small"): (60, 60.0, 500),
    ("memory", "ticking"): (200, 60.0, 1_000),
    ("sqlite", "ticking"): (12, 30.0, 50),
}


def run(setting: Setting) -> Outcome:
    """Worlds from this seed on, in memory and in files: small ones, some large ones, and some with a schedule."""
    outcome = Outcome()
    for (engine, size), (count, seconds, least) in PARTS.items():
        began = time.monotonic()
        tally = _live(setting, engine, size, count, seconds)
        outcome.n += tally.worlds
        outcome.wrong += told(tally.failing, engine, size)
        if tally.worlds < (least if setting.full else count):
            outcome.wrong.append(f"only {tally.worlds} {size} worlds in {engine}, in {seconds:g} s")
        outcome.figures[f"{size} worlds, {engine}"] = {
            "seeds": tally.worlds,
            "failing seeds": sorted(tally.failing),
            "jobs": tally.jobs,
            "runs": tally.starts,
            "workers fenced": tally.fences,
            "seconds": round(time.monotonic() - began, 1),
        }
        setting.say(f"E57: {tally.worlds} {size} worlds in {engine}, {len(tally.failing)} failing")
    outcome.figures["upper bound of the rate of failing worlds"] = round(3 / outcome.n, 6)
    return outcome


def _live(setting: Setting, engine: str, size: str, count: int, seconds: float) -> Tally:
    options = ["--engine", engine, "--size", size]
    if setting.full:
        options += ["--seconds", str(seconds)]
    return live_many(
        setting.seed, ENDLESS if setting.full else count, *options, processes=min(2, os.cpu_count() or 1)
    )


EXPERIMENT = Experiment(id="E57", title="any schedule, on virtual time", act=run)
