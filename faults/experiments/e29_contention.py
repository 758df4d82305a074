"""E29: as many producers and runner processes on one file as can be, all at full rate. Nobody hears of a lock."""

import time
from collections.abc import Sequence
from pathlib import Path

from faults.evidence.checker import check
from faults.evidence.records import Record
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage

ENDLESS = 10_000_000
ENOUGH = 50_000
TROUBLE = ("locked", "StoreUnavailable", "Traceback", "not checkpointed")


def run(setting: Setting) -> Outcome:
    """Enqueue for so long, let the rest run, and look at what was said meanwhile."""
    crowd, seconds = setting.of((2, 3.0), (4, 300.0))
    log = setting.folder / "worker.log"
    with Stage(setting) as stage:
        worker = ["--processes", str(crowd), "--log-level", "warning", "--lease", "10"]
        stage.worker(*worker, output=log)
        began = time.monotonic()
        options = ["--seconds", str(seconds), "--milliseconds", "0,5"]
        producers = [stage.producer(ENDLESS, *options) for _ in range(crowd)]
        codes = [producer.wait(seconds + 120) for producer in producers]
        stage.rest(setting.of(60, 900))
        lasted = time.monotonic() - began
        evidence = stage.evidence()
        jobs = len(evidence.states)
        outcome = check(evidence).outcome(jobs)
    errors = [record for record in evidence.records if record.what == "err"]
    outcome.wrong += unfinished(evidence.states.values())
    outcome.wrong += [f"a producer ended with {code}" for code in codes if code]
    outcome.wrong += [f"a producer was told {record.outcome}" for record in errors[:3]]
    outcome.wrong += [f"the worker said: {line}" for line in trouble(log)[:3]]
    if setting.full and jobs < ENOUGH:
        outcome.wrong.append(f"only {jobs} jobs, and not {ENOUGH}")
    waits = sorted(waits_of(evidence.records))
    outcome.figures |= {
        "processes": 2 * crowd,
        "jobs_per_second": round(jobs / lasted),
        "enqueued_per_second": round(jobs / seconds),
        "errors": len(errors),
        "wait_p50_ms": round(1000 * waits[len(waits) // 2], 1),
        "wait_p99_ms": round(1000 * waits[len(waits) * 99 // 100], 1),
        "wait_max_ms": round(1000 * waits[-1], 1),
    }
    return outcome


def waits_of(records: Sequence[Record]) -> list[float]:
    """How long each call of a producer took, in seconds."""
    tried = {record.job: record.at for record in records if record.what == "try"}
    return [record.at - tried[record.job] for record in records if record.what == "ok"]


def trouble(log: Path) -> list[str]:
    """The lines of a log that tell of trouble with the file."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [line for line in lines if any(word in line for word in TROUBLE)]


EXPERIMENT = Experiment(id="E29", title="contention for one file", act=run)
