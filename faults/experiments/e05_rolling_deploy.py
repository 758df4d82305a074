"""E05: a deploy after the other: each worker in turn is told to stop, while a new one starts.

What can end in time does; the rest is given back and runs elsewhere. That is no failure and no crash, and nothing that
was done is done again. Jobs that last longer than a worker is there are given back again and again, and end when the
deploys do.
"""

import time
from collections.abc import Callable, Sequence
from subprocess import Popen
from typing import Any

from msgspec import Struct

from faults.evidence.checker import check
from faults.evidence.records import Record
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage, children_of
from shigoto import Job

SLOTS = ("--concurrency", "60", "--threads", "20", "--children", "2")
TASKS = ",".join(["asynchronous"] * 22 + ["in_a_thread"] * 8 + ["transactional"] * 4 + ["in_a_process"])
LONG_TASKS = "asynchronous,asynchronous,asynchronous,in_a_thread"
SLACK = 1.0  # seconds beyond the stop time-out, to be noticed here
BUSY_WITHIN = 5.0
IDLE = 1.0  # seconds that a stop may take if nothing runs
IDLE_SLACK = {False: 2.0, True: 0.0}  # seconds more: other tests may run beside the short form


class Load(Struct, frozen=True):
    """So many jobs, of so many milliseconds, come in at this rate."""

    jobs: int
    low: int
    high: int
    rate: float
    tasks: str = TASKS


class Plan(Struct, frozen=True):
    """How large: a deploy every so many seconds."""

    deploys: int
    every: tuple[float, float]
    stop_timeout: float
    workers: int
    loads: tuple[Load, ...]


SHORT = Plan(
    deploys=5,
    every=(0.5, 0.7),
    stop_timeout=5.0,
    workers=2,
    loads=(Load(300, 50, 300, 75), Load(16, 3_500, 7_000, 4, LONG_TASKS)),
)
FULL = Plan(
    deploys=200,
    every=(1.2, 1.6),
    stop_timeout=28.0,
    workers=4,
    loads=(
        Load(48_900, 100, 1_000, 180),
        Load(1_000, 1_000, 10_000, 4),
        Load(100, 10_000, 60_000, 0.5, LONG_TASKS),
    ),
)


class Exit(Struct, frozen=True):
    """How a worker ended after it was told to."""

    seconds: float
    code: int


class Leaving:
    """The workers that were told to stop."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._told_at: dict[Popen[bytes], float] = {}
        self.exits: list[Exit] = []

    def tell(self, worker: Popen[bytes]) -> None:
        """Stop this one."""
        self._stage.do("term", worker, whole_tree=False)
        self._told_at[worker] = time.monotonic()

    def gone(self) -> bool:
        """Whether all have ended; notes when they do, so it is to be asked often."""
        for worker in [worker for worker in self._told_at if worker.poll() is not None]:
            self.exits.append(Exit(time.monotonic() - self._told_at.pop(worker), worker.returncode))
        return not self._told_at

    def watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Look for so long, or until it is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            self.gone()
            time.sleep(0.02)


def run(setting: Setting) -> Outcome:
    """Deploy while jobs come in, then let the last workers end all of it."""
    plan, random = setting.of(SHORT, FULL), setting.random("deploys")
    with Stage(setting) as stage:
        options = (*SLOTS, "--stop-timeout", f"{plan.stop_timeout:g}")
        workers = [stage.worker(*options) for _ in range(plan.workers)]
        producers = [produce(stage, load) for load in plan.loads]
        leaving = Leaving(stage)
        for number in range(plan.deploys):
            leaving.watch(random.uniform(*plan.every))
            leaving.watch(BUSY_WITHIN, until=lambda: is_busy(stage, workers[0]))
            workers.append(stage.worker(*options))
            leaving.tell(workers.pop(0))
            if number % 20 == 19:
                setting.say(f"deploy {number + 1} of {plan.deploys}")
        stage.wait_until(leaving.gone, seconds=plan.stop_timeout + 10, what="workers did not end")
        enqueued = [producer.wait() for producer in producers]
        stage.rest(setting.of(60, 300))
        deploys, idle = leaving.exits, stop_idle(stage, workers)
        evidence, jobs = stage.evidence(), list(stage.jobs())
    findings = check(evidence)
    outcome = findings.outcome(n=len(jobs))
    again = done_again(evidence.records)
    # Given back while it was done: nobody can stop a thread. What was done before that is flagged by the checker.
    outcome.figures |= figures(deploys, idle, jobs) | {"ended in the moment they were given back": again}
    outcome.wrong += judge_exits(deploys, plan.stop_timeout + SLACK, "A worker")
    outcome.wrong += judge_exits(idle, IDLE + IDLE_SLACK[setting.full], "An idle worker")
    outcome.wrong += unfinished(str(job.state) for job in jobs) + judge_jobs(jobs)
    if any(enqueued):
        outcome.wrong.append(f"Producers ended with {enqueued}.")
    if len(deploys) != plan.deploys or not any(job.releases for job in jobs):
        outcome.wrong.append(
            f"Of {plan.deploys} deploys {len(deploys)} came to an end, or gave nothing back."
        )
    return outcome


def produce(stage: Stage, load: Load) -> Popen[bytes]:
    """A process that enqueues these."""
    lengths = ("--milliseconds", f"{load.low},{load.high}")
    return stage.producer(load.jobs, "--rate", f"{load.rate:g}", "--tasks", load.tasks, *lengths)


def is_busy(stage: Stage, worker: Popen[bytes]) -> bool:
    """Whether it has jobs: a stop of one that has not even begun shows little."""
    runners = children_of(worker.pid)
    return any(record.processing for record in stage.app.workers() if record.pid in runners)


def stop_idle(stage: Stage, workers: Sequence[Popen[bytes]]) -> list[Exit]:
    """Stop workers that have nothing to do, one after the other."""
    leaving = Leaving(stage)
    for worker in workers:
        leaving.tell(worker)
        stage.wait_until(leaving.gone, seconds=40, what="an idle worker did not end")
    return leaving.exits


def done_again(records: Sequence[Record]) -> int:
    """How many jobs began again after a run of them had ended by itself."""
    done: set[str] = set()
    again: set[str] = set()
    for record in records:
        if record.what == "end" and record.outcome == "done":
            done.add(record.job)
        elif record.what == "start" and record.job in done:
            again.add(record.job)
    return len(again)


def judge_exits(exits: Sequence[Exit], most: float, who: str) -> list[str]:
    """Whether every stop was in time, and gave everything back."""
    return [
        f"{who} ended {end.seconds:.1f} s after SIGTERM, with exit code {end.code}."
        for end in exits
        if end.seconds > most or end.code
    ]


def judge_jobs(jobs: Sequence[Job]) -> list[str]:
    """Whether a job that was given back is none the worse for it."""
    blamed = sum(bool(job.failures or job.crashes) for job in jobs)
    return [f"{blamed} jobs have failures or crashes, for being given back."] if blamed else []


def figures(deploys: Sequence[Exit], idle: Sequence[Exit], jobs: Sequence[Job]) -> dict[str, Any]:
    """For the reader; times are in seconds."""
    return {
        "deploys": len(deploys),
        "exit, max": round(max((end.seconds for end in deploys), default=0.0), 2),
        "exit when idle, max": round(max((end.seconds for end in idle), default=0.0), 2),
        "releases": sum(job.releases for job in jobs),
        "most releases of a job": max((job.releases for job in jobs), default=0),
        "releases counted as failures": sum(job.failures for job in jobs),
    }


EXPERIMENT = Experiment(
    id="E05", title="workers are replaced one after the other", act=run, engines=("sqlite", "postgres")
)
