"""E28 on SQLite: the host's clock is wrong, and steps while jobs wait and run; nothing is lost, run twice or too early.

All processes of a file share one host, so one clock: what is promised is promised for that. A process whose clock
differs from its neighbours' is outside of it.
"""

import sys
import time
from collections.abc import Sequence

from msgspec import json
from msgspec.structs import replace

from faults.evidence.checker import check
from faults.evidence.records import Record
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage, children_of
from faults.tools.clock import WrongClock
from shigoto import Job

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
        own = replace(setting, folder=setting.folder / str(number), seed=setting.seed + number)
        part, lates = _one(own, offset, step)
        early += sum(late < -ROUNDING for late in lates)
        least = min([least, *lates])
        steps += 2
        part.wrong = [f"clock {offset:+g} s, step {step:+g} s: {word}" for word in part.wrong]
        outcome.add(part)
    if early:
        outcome.wrong.append(f"{early} jobs began before they were due, by up to {-least:.3f} s")
    outcome.figures = {"steps": steps, "early starts": early, "earliest s": round(least, 3)}
    return outcome


def _one(setting: Setting, offset: float, step: float) -> tuple[Outcome, list[float]]:
    setting.folder.mkdir()
    clock = WrongClock(setting.folder / "clock", offset)
    jobs = setting.of(60, 560)
    shown = Shown(clock)
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
        for by in (step, -step):
            stage.pen.write("fault", deed="clock", pid=worker.pid, outcome=f"{by:+g}")
            shown.step(by)
            time.sleep(LEASE * 1.5)  # both looks of a sweep that takes leases for expired fall into this
        stage.rest(PATIENCE)
        if children_of(worker.pid) != runners or worker.poll() is not None:
            wrong.append("a runner process was replaced")
        found = list(stage.jobs())
        evidence = stage.evidence()
        lates = lateness(found, evidence.records, shown)
        wrong += unfinished(evidence.states.values())
        if len(lates) != jobs:
            wrong.append(f"{len(lates)} jobs have begun, and not {jobs}")
        findings = check(evidence)
        if findings.reruns:
            wrong.append(f"jobs were run again: {findings.reruns}")
        outcome = findings.outcome(jobs)
        outcome.wrong += wrong
        return outcome, lates


class Shown:
    """What a clock has shown, by the monotonic clock, which never steps."""

    def __init__(self, clock: WrongClock) -> None:
        self._clock = clock
        self._host = time.time() - time.monotonic()
        self._offsets = [(0.0, clock.offset)]  # since when it is off by how much

    def step(self, by: float) -> None:
        """Let it jump, now."""
        self._offsets.append((time.monotonic(), self._clock.offset + by))
        self._clock.step(by)

    def highest_until(self, at: float) -> float:
        """The latest that it had shown by then: a store whose clock steps back keeps to what it was."""
        ends = [since for since, _ in self._offsets[1:]] + [float("inf")]
        return max(
            min(at, end) + self._host + offset
            for (since, offset), end in zip(self._offsets, ends, strict=True)
            if since <= at
        )


def lateness(jobs: Sequence[Job], records: Sequence[Record], shown: Shown) -> list[float]:
    """By how many seconds each job began after its due instant had been shown; by when its handler wrote that down."""
    dues: dict[str, float] = {str(job.id): json.decode(job.payload)["due"] for job in jobs}
    starts = {record.job: record.at for record in reversed(records) if record.what == "start"}
    return [shown.highest_until(at) - dues[job] for job, at in starts.items()]


EXPERIMENT = Experiment(id="E28", title="clocks", act=run)
