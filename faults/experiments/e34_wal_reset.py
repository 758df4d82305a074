"""E34: the hunt for the WAL-reset bug of SQLite below 3.51.3, which corrupts files under rare timing.

Eight processes write at full rate, and their log is due for a checkpoint a hundred times as often as usual. It goes in
rounds, each on a file of its own, which is read for damage at the end. Then the same without our mitigation, for
information: checkpoints beside writers, as SQLite's own are. The bug is rare, so that no damage proves nothing, with
the mitigation or without; damage with it would prove that it does not help.

It takes half an hour and is run only by name.
"""

import shutil
import sqlite3
import time
from collections.abc import Mapping

from msgspec.structs import replace

from faults.evidence.checker import check
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage
from faults.tools.reader import damage
from shigoto import StoreError

ENDLESS = 10_000_000
OFTEN = {"SHIGOTO_LOG_LIMIT": str(64 * 1024)}
CARELESS = OFTEN | {"SHIGOTO_CARELESS": "1"}


def run(setting: Setting) -> Outcome:
    """Rounds with the mitigation, which are judged, and rounds without it."""
    seconds, length, careless = setting.of((2.0, 2.0, 1.0), (1800.0, 60.0, 300.0))
    total, rounds, ends = Outcome(), 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        rounds += 1
        total.add(one(setting, f"round {rounds}", length, OFTEN))
        setting.say(f"round {rounds}: {total.n} jobs so far, {total.wrong or 'nothing wrong'}")
    others, ends = Outcome(), time.monotonic() + careless
    setting = replace(setting, missed=[])  # what these wait for in vain is told, and not judged
    without = 0
    while time.monotonic() < ends:
        without += 1
        others.add(one(setting, f"careless {without}", min(length, careless), CARELESS))
    total.figures = {
        "sqlite": sqlite3.sqlite_version,
        "rounds": rounds,
        "damaged_files": len([text for text in total.wrong if "damaged" in text]),
        "rounds_without_mitigation": without,
        "jobs_without_mitigation": others.n,
        "wrong_without_mitigation": others.wrong + [f"{n} {name}" for name, n in others.zeros.items() if n],
        "note": "the bug is rare: no damage is no proof, neither with the mitigation nor without it",
    }
    return total


def one(setting: Setting, name: str, seconds: float, environment: Mapping[str, str]) -> Outcome:
    """One round on a file of its own, which is kept only if something was wrong with it."""
    folder = setting.folder / name.replace(" ", "-")
    try:
        outcome = hammer(replace(setting, folder=folder), seconds, environment)
    except (StoreError, sqlite3.DatabaseError) as error:
        outcome = Outcome(wrong=[f"the file is damaged: {error}"])
    outcome.wrong = [f"{name}: {text}" for text in outcome.wrong]
    if outcome.passed:
        shutil.rmtree(folder)
    return outcome


def hammer(setting: Setting, seconds: float, environment: Mapping[str, str]) -> Outcome:
    """Four producers and four runners, and a look at the file."""
    with Stage(setting, "checkpoints") as stage:
        stage.worker("--processes", "4", environment=environment)
        options = ["--seconds", str(seconds), "--milliseconds", "0,1"]
        producers = [stage.producer(ENDLESS, *options, environment=environment) for _ in range(4)]
        for producer in producers:
            producer.wait(seconds + 120)
        stage.rest(300)
        damaged = damage(stage.store)
        evidence = stage.evidence()
        outcome = check(evidence).outcome(len(evidence.states))
    outcome.wrong += [f"the file is damaged: {text}" for text in damaged[:3]]
    outcome.wrong += unfinished(evidence.states.values())
    return outcome


EXPERIMENT = Experiment(id="E34", title="the hunt for the WAL-reset bug", act=run, by_default=False)
