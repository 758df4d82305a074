"""E04: the whole host sleeps, for two leases, and wakes up in any order.

All leases are over then, and nobody is dead. A worker is fenced only by somebody who has seen it expired twice, a
third of a lease apart on a clock that was not asleep; so nobody is, and no job runs twice.
"""

import time
from pathlib import Path
from random import Random
from subprocess import Popen

from faults.evidence.checker import Evidence, check
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage, descendants

TASKS = ",".join(["asynchronous"] * 8 + ["in_a_thread"] * 3 + ["in_a_process"])
SLOTS = ("--concurrency", "60", "--threads", "24", "--children", "6")
AWAKE = (0.5, 2.0)  # seconds
PAUSED = "is stopped by a signal"  # so the log tells of RunnerPaused
FENCED = "did not beat any more and were fenced"  # so the log tells of WorkersFenced


def run(setting: Setting) -> Outcome:
    """Let everything sleep, again and again, while jobs run that last about as long as all of it."""
    random, lease = setting.random("sleep"), 3.0
    jobs, rounds = setting.of((16, 1), (200, 50))
    lasting = rounds * (2 * lease + sum(AWAKE) / 2)
    log = setting.folder / "workers.log"
    with Stage(setting) as stage:
        options = (*SLOTS, "--lease", f"{lease:g}", "--log-level", "warning")
        workers = [stage.worker(*options, output=log) for _ in range(setting.of(2, 4))]
        length = f"{round(400 * lasting)},{round(1000 * lasting)}"
        stage.producer(jobs, "--bulk", "10", "--milliseconds", length, "--tasks", TASKS).wait()
        stage.wait_until(lambda: stage.processing() >= jobs * 0.9, seconds=60, what="the jobs did not run")
        for number in range(rounds):
            pids = sleep(stage, random, workers, lease)
            if number % 3 == 0:
                wake_supervisors_first(stage, pids, {worker.pid for worker in workers}, lease, log)
            else:
                # In a quarter of what lies between two looks.
                wake(stage, pids, lease / 12 / len(pids) if number % 3 == 1 else 0.0)
            time.sleep(random.uniform(*AWAKE))
            setting.say(f"round {number + 1} of {rounds}: {stage.processing()} jobs run")
        stage.rest(lasting + 60)
        ended = sum(worker.poll() is not None for worker in workers)
        evidence = stage.evidence()
    findings = check(evidence)
    outcome = findings.outcome(n=rounds * len(workers))
    reruns, crashes = sum(findings.reruns.values()), crashed(evidence)
    fenced = log.read_text().count(FENCED)
    outcome.figures |= {"jobs": jobs, "rounds": rounds, "false fences": fenced}
    outcome.wrong += unfinished(evidence.states.values())
    if reruns or crashes or fenced:
        outcome.wrong.append(f"A sleep cost {reruns} reruns, {crashes} crashes, {fenced} fences.")
    if ended:
        outcome.wrong.append(f"{ended} workers ended by themselves.")
    return outcome


def sleep(stage: Stage, random: Random, workers: list[Popen[bytes]], lease: float) -> list[int]:
    """Stop every process there is, in any order, for two leases."""
    pids = [pid for worker in workers for pid in (worker.pid, *descendants(worker.pid))]
    random.shuffle(pids)
    for pid in pids:
        stage.do("stop", pid, whole_tree=False)
    time.sleep(2 * lease)
    random.shuffle(pids)
    return pids


def wake(stage: Stage, pids: list[int], gap: float) -> None:
    """Continue these, one after the other."""
    for pid in pids:
        stage.do("cont", pid, whole_tree=False)
        time.sleep(gap)


def wake_supervisors_first(
    stage: Stage, pids: list[int], supervisors: set[int], lease: float, log: Path
) -> None:
    """Continue everything in the hardest order: the supervisors sweep, and see that their runners are stopped."""
    seen = log.read_text().count(PAUSED)
    wake(stage, [pid for pid in pids if pid in supervisors], 0.0)
    # No longer than half of what lies between two looks, so that all can beat in time.
    end = time.monotonic() + lease / 8
    while log.read_text().count(PAUSED) == seen and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(lease / 24)
    wake(stage, [pid for pid in pids if pid not in supervisors], 0.0)


def crashed(evidence: Evidence) -> int:
    """How many jobs the store believes to have lost their process."""
    return len({change.job for change in evidence.changes if change.crashes})


EXPERIMENT = Experiment(id="E04", title="the whole host sleeps for two leases", act=run)
