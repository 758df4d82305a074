"""E30: twenty times a minute a process is killed by SIGKILL in the middle of what it does with the file.

The victims are runners, supervisors (whose runners then end by themselves) and producers, in an order that the seed
decides. Each is replaced. Once a minute, and at the end, the whole file is read for damage.
"""

import subprocess
import time
from collections import Counter
from random import Random

from faults.evidence.checker import check
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage, children_of
from faults.tools.reader import damage

ENDLESS = 10_000_000
VICTIMS = ("runner", "runner", "supervisor", "producer")
BUSY = 5  # jobs at once: a kill that cuts nothing short shows nothing
WORKER = ("--processes", "2", "--concurrency", "10", "--threads", "5")

Process = subprocess.Popen[bytes]


def run(setting: Setting) -> Outcome:
    """Kill until enough jobs are stored, let the rest run, and look at what is left."""
    jobs, kills, pause, every, lease = setting.of((400, 5, 0.6, 1.5, 3), (50_000, 80, 3.0, 60.0, 10))
    with Stage(setting) as stage:
        troupe = Troupe(stage, rate=setting.of(150, 85), lease=lease)
        corrupt, checks = disturb(troupe, jobs, kills, pause=pause, every=every)
        stage.rest(setting.of(60, 300))
        corrupt += damage(stage.store)
        evidence = stage.evidence()
        findings = check(evidence)
        outcome = findings.outcome(len(evidence.states))
    outcome.wrong += unfinished(evidence.states.values())
    if not sum(findings.reruns.values()):
        outcome.wrong.append("no kill has cut anything short")
    outcome.wrong += [f"damaged: {text}" for text in corrupt[:3]]
    outcome.figures |= {
        "kills": dict(troupe.kills),
        "corrupt": len(corrupt),
        "integrity_checks": checks + 1,
        "reruns": findings.reruns,
        "ambiguous_enqueues": findings.ambiguous,
    }
    return outcome


class Troupe:
    """Two workers and two producers; whoever is killed is replaced."""

    def __init__(self, stage: Stage, *, rate: int, lease: int) -> None:
        self.stage = stage
        self.kills: Counter[str] = Counter()
        self._rate = rate
        self._lease = lease
        self._workers = [self._worker() for _ in range(2)]
        self._producers = [self._producer() for _ in range(2)]

    def kill(self, kind: str, random: Random) -> None:
        """Kill one of a kind; a runner that is not there yet is no runner."""
        place = random.randrange(2)
        if kind == "producer":
            self._end(self._producers[place])
            self._producers[place] = self._producer()
        elif kind == "supervisor":
            self._end(self._workers[place])
            self._workers[place] = self._worker()
        else:
            runners = sorted(children_of(self._workers[place].pid))
            if not runners:
                return
            self.stage.do("kill", random.choice(runners), whole_tree=False)
        self.kills[kind] += 1

    def end_producers(self) -> None:
        """Kill those who would go on for ever."""
        for producer in self._producers:
            self._end(producer)
            self.kills["producer"] += 1

    def _end(self, process: Process) -> None:
        self.stage.do("kill", process, whole_tree=False)
        process.wait()

    def _worker(self) -> Process:
        return self.stage.worker(*WORKER, "--lease", str(self._lease))

    def _producer(self) -> Process:
        return self.stage.producer(ENDLESS, "--rate", str(self._rate), "--milliseconds", "5,100")


def disturb(troupe: Troupe, jobs: int, kills: int, *, pause: float, every: float) -> tuple[list[str], int]:
    """Kill one after the other until there were so many jobs and kills; the damage found, and how often we looked."""
    stage = troupe.stage
    random = stage.setting.random("victims")
    corrupt: list[str] = []
    checks, looked = 0, time.monotonic()
    while stored(stage) < jobs or troupe.kills.total() < kills:
        time.sleep(random.uniform(0.5, 1.5) * pause)
        stage.wait_until(lambda: stage.processing() >= BUSY, seconds=30, what="few jobs were running")
        troupe.kill(random.choice(VICTIMS), random)
        if time.monotonic() > looked + every:
            checks, looked = checks + 1, time.monotonic()
            corrupt += damage(stage.store)
            stage.setting.say(f"{stored(stage)} jobs, {troupe.kills.total()} kills, {len(corrupt)} damaged")
    troupe.end_producers()
    return corrupt, checks


def stored(stage: Stage) -> int:
    """How many jobs there are, in whatever state."""
    counts = stage.app.stats().values()
    return sum(
        each.pending + each.processing + each.blocked + each.completed + each.failed + each.cancelled
        for each in counts
    )


EXPERIMENT = Experiment(id="E30", title="kill -9 beside the file", act=run)
