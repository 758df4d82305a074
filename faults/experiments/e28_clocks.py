"""E28 on SQLite: the host's clock is wrong, and steps while jobs wait and run; nothing is lost, run twice or too early.

All processes of a file share one host, so one clock: what is promised is promised for that. A process whose clock
differs from its neighbours' is outside of it.
"""

import sys
import time

from msgspec import json

from faults.evidence.checker import check
from faults.experiment import ZEROS, Experiment, Outcome, Setting
from faults.stage import Stage, children_of
from faults.tools.clock import WrongClock
from shigoto import Job, State

HOUR, DAY = 3600.0, 86_400.0
# By how much the clock is off from the start, and by how much it steps, for a while.
SHORT = ((HOUR, -300.0), (-HOUR, -30.0))
FULL = (
    *SHORT,
    (HOUR, 600.0),
    (-HOUR, -300.0),
    (DAY, -300.0),
    (-DAY, 600.0),
    (0.0, -5.0),
    (0.0, HOUR),
    (0.0, -DAY),
)
ROUNDING = 0.002
LEASE = 3.0
PATIENCE = 60.0


def run(setting: Setting) -> Outcome:
    """One store after the other, each with a clock and a step of its own."""
    outcome = Outcome()
    steps = early = 0
    least = 0.0
    for number, (offset, step) in enumerate(setting.of(SHORT, FULL)):
        own = Setting(
            engine=setting.engine,
            folder=setting.folder / str(number),
            seed=setting.seed + number,
            full=setting.full,
            say=setting.say,
        )
        part, lates = _one(own, offset, step)
        early += sum(late < -ROUNDING for late in lates)
        least = min([least, *lates])
        steps += 2
        outcome.n += part.n
        for name in ZEROS:
            setattr(outcome, name, getattr(outcome, name) + getattr(part, name))
        outcome.wrong += [f"clock {offset:+g} s, step {step:+g} s: {word}" for word in part.wrong]
    if early:
        outcome.wrong.append(f"{early} jobs began before they were due, by up to {-least:.3f} s")
    outcome.figures = {"steps": steps, "early starts": early, "earliest s": round(least, 3)}
    return outcome


def _one(setting: Setting, offset: float, step: float) -> tuple[Outcome, list[float]]:
    setting.folder.mkdir()
    clock = WrongClock(setting.folder / "clock", offset)
    jobs = setting.of(60, 500)
    with Stage(setting, "clocks") as stage:
        wrong: list[str] = []
        worker = stage.worker("--lease", f"{LEASE:g}", environment=clock.environment())
        producer = stage.start(
            [sys.executable, "-m", "faults.apps.clocks", stage.url, str(jobs), "4", str(setting.seed)],
            environment=clock.environment(),
        )
        if producer.wait(PATIENCE):
            wrong.append("the producer failed")
        # A long one is at work, so both waiting and running jobs meet the step.
        stage.wait_until(lambda: stage.app.find(state="processing"), seconds=PATIENCE, what="nothing ran")
        runners = children_of(worker.pid)
        highest = 0.0
        for by in (step, -step):
            highest = max(highest, clock.now())
            stage.pen.write("fault", deed=f"clock {by:+g}", pid=worker.pid)
            clock.step(by)
            time.sleep(LEASE * 1.5)  # both looks of a sweep that takes leases for expired fall into this
        if not stage.rest(PATIENCE):
            wrong.append("the store did not come to rest")
        if children_of(worker.pid) != runners or worker.poll() is not None:
            wrong.append("a runner process was replaced")
        found = list(stage.jobs())
        lates = [_late(job, highest) for job in found if job.result is not None]
        wrong += [f"job {job.number} is {job.state}" for job in found if job.state is not State.COMPLETED]
        findings = check(stage.evidence())
        if findings.reruns:
            wrong.append(f"jobs were run again: {findings.reruns}")
        outcome = findings.outcome(jobs)
        outcome.wrong += wrong
        return outcome, lates


def _late(job: Job, highest: float) -> float:
    """How late it began: by its own clock, or by that of before the step, which had reached what is due by then."""
    due: float = json.decode(job.payload)["due"]
    return max(json.decode(job.result or "0", type=float), highest - due)


EXPERIMENT = Experiment(id="E28", title="clocks", run=run)
