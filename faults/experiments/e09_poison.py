"""E09: jobs that kill the process they run in, among innocents: one crowd at most dies with each of them."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from random import Random
from typing import Any

from msgspec import json

from faults.evidence.checker import Evidence, check, quantiles
from faults.evidence.moves import NEVER, stories
from faults.evidence.records import Record
from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage
from faults.tools.cgroup import small_memory
from faults.tools.enqueueing import Wish, enqueue
from shigoto import FailureKind, Job, State

DEEDS = {  # what ends the process, and what the error must say
    "kill": "SIGKILL",
    "null": "SIGSEGV",
    "leave": "exit code 3",
    "leave like a watchdog": "exit code 70",
    "leave like an orphan": "exit code 71",
    "recurse": "SIGSEGV",
}
PLACES = ("poison_in_a_process", "poison_in_a_thread")
INNOCENTS = ("innocent", "innocent_in_a_thread", "innocent_in_a_process")
MEMORY = 256 * 1024 * 1024  # bytes
TOGETHER = 1.0  # seconds between two deaths that are one
FREED_WITHIN = 1.0  # seconds from the death of a process until the store knows
# Seconds more: a stack is written and read first, and other tests may run beside the short form.
SLACK = {False: 1.0, True: 0.5}
CONNECTED_AFTER = (
    1.0  # seconds more in the short form: its first deaths come while a supervisor still looks for its server
)
OPTIONS = ("--concurrency", "20", "--threads", "8", "--children", "2")


def run(setting: Setting) -> Outcome:
    """One worker among whose jobs is poison, and another with little memory, among whose jobs are gluttons."""
    random = setting.random("jobs")
    poison, innocents = setting.of((12, 130), (490, 49_000))
    gluttons, beside = setting.of((1, 5), (10, 500))
    with ExitStack() as ending, Stage(setting, "poisoned") as stage:
        enqueue(stage, _mixed(stage, random, poison, innocents, [*DEEDS], "default"))
        stage.worker("--queues", "default", "--processes", "2", *OPTIONS)
        little = ending.enter_context(small_memory(MEMORY))
        if little is not None:
            enqueue(stage, _mixed(stage, random, gluttons, beside, ["hoard"], "memory"))
            stage.worker("--queues", "memory", *OPTIONS, wrap=little)
        stage.rest(setting.of(180, 1_800))
        alive = [process.poll() is None for process in stage.processes]
        jobs = list(stage.jobs())
        unclear = _unclear(stage, jobs)
        evidence = stage.evidence()
    outcome = check(evidence).outcome(len(jobs))
    freed = _freed_after(jobs, evidence)
    outcome.wrong += _wrong(jobs, evidence.records) + unclear
    if not all(alive):
        outcome.wrong.append("a supervisor has died")
    most = FREED_WITHIN + SLACK[setting.full]
    if setting.engine != "sqlite" and not setting.full:
        most += CONNECTED_AFTER
    if not freed or freed[-1] > most:
        outcome.wrong.append(f"the store heard of the death of a process after {freed[-1:]} s")
    outcome.figures |= _figures(jobs, evidence.records)
    outcome.figures["seconds from a death to the store"] = quantiles(freed) if freed else None
    if little is None:
        outcome.left_out.append("jobs that take all memory: no control groups with a limit can be made here")
    return outcome


def _mixed(
    stage: Stage, random: Random, poison: int, innocents: int, deeds: Sequence[str], queue: str
) -> list[Wish]:
    """So many of each in random order, every deed in every place equally often."""
    tasks, short = stage.app.tasks, not stage.setting.full
    wishes: list[Wish] = []
    for number in range(poison):
        place, deed = PLACES[number % 2], deeds[number // 2 % len(deeds)]
        # Between two runs alone there are ten seconds, so the short form has one.
        crashes = 1 if short else random.choice((1, 1, 2, 3))
        wishes.append((tasks[place].using(queue=queue, max_crashes=crashes), {"deed": deed}))
    for number in range(innocents):
        name = random.choices(INNOCENTS, (60, 38, 2))[0]
        task = tasks[name].using(queue=queue, max_crashes=1 if short else 3)
        # One that dies without a crowd waits for ten seconds, too; so in the short form the first crowds last.
        lasting = short and number < 3 * poison
        wishes.append((task, {"milliseconds": random.randint(300, 600) if lasting else random.randint(0, 5)}))
    first = wishes[: 4 * poison] if short else wishes
    random.shuffle(first)
    return first + wishes[len(first) :]


def _wrong(jobs: Sequence[Job], records: Sequence[Record]) -> list[str]:
    """What must not be, beyond what the checker knows: I13."""
    found: list[str] = []
    suicides = _suicides(records)
    for job in jobs:
        if not job.task.startswith("poison"):
            if job.state is not State.COMPLETED:
                found.append(f"the innocent job {job.number} is {job.state} ({job.failure_kind})")
            continue
        if (job.state, job.failure_kind) != (State.FAILED, FailureKind.CRASH_LOOP):
            found.append(f"the poison {job.number} is {job.state} ({job.failure_kind})")
        allowed = (job.max_crashes or 0) + (job.task == "poison_in_a_thread")
        if suicides.get(str(job.id), 0) > allowed:
            found.append(f"the poison {job.number} killed {suicides[str(job.id)]} processes, not {allowed}")
        if job.failures:
            found.append(f"the poison {job.number} has {job.failures} failures; crashes are none")
    return found


def _unclear(stage: Stage, jobs: Sequence[Job]) -> list[str]:
    """Poison of which people cannot read what it did: its signal or exit code, its stack, its last lines."""
    found: list[str] = []
    for job in jobs:
        deed = json.decode(job.payload).get("deed")
        if deed not in DEEDS or job.state is not State.FAILED:
            continue
        last = stage.app.job(job.id).attempts()[-1]
        if DEEDS[deed] not in str(last.error):
            found.append(f"the error of the poison {job.number} ({deed}) is {last.error!r}")
        words = (f"in {deed}", f"about to {deed}") if deed == "null" else ()
        found += [
            f"{word!r} is not in the traceback of the poison {job.number}: {last.traceback!r}"
            for word in words
            if word not in str(last.traceback)
        ]
    return found


def _suicides(records: Sequence[Record]) -> dict[str, int]:
    """How many processes each job has killed, but for those whose parent was killed by another at the same time: then
    nobody knows why the child died."""
    by_run = {(r.job, r.token): r for r in records if r.deed == "suicide"}
    deaths = {record.pid: record.at for record in by_run.values()}
    counts: Counter[str] = Counter()
    for record in by_run.values():
        if abs(deaths.get(record.parent, NEVER) - record.at) > TOGETHER:
            counts[record.job] += 1
    return counts


def _freed_after(jobs: Sequence[Job], evidence: Evidence) -> list[float]:
    """How many seconds each death took to be known in the store, where the job was given up; from its last word.

    A glutton's last word comes long before its death, so it is left out.
    """
    told = stories(evidence.changes)
    gluttons = {str(job.id) for job in jobs if '"hoard"' in job.payload}
    found: list[float] = []
    for record in {(r.job, r.token): r for r in evidence.records if r.deed == "suicide"}.values():
        claim = told[record.job].claims.get(record.token) if record.job in told else None
        if claim and claim.end and evidence.offset is not None and record.job not in gluttons:
            found.append(claim.end.at - evidence.offset - record.at)
    return sorted(found)


def _figures(jobs: Sequence[Job], records: Sequence[Record]) -> Mapping[str, Any]:
    starts = Counter(record.job for record in records if record.what == "start")
    innocent = [job for job in jobs if not job.task.startswith("poison")]
    until: dict[str, Counter[int]] = defaultdict(Counter)
    for job in jobs:
        if job.task.startswith("poison"):
            until[f"{job.task}, max_crashes {job.max_crashes}"][starts[str(job.id)]] += 1
    return {
        "poison": len(jobs) - len(innocent),
        "innocents": len(innocent),
        "runs until quarantine": {
            name: {str(runs): count for runs, count in sorted(counts.items())}
            for name, counts in sorted(until.items())
        },
        "processes killed": len({record.pid for record in records if record.deed == "suicide"}),
        "bystander reruns": sum(starts[str(job.id)] - 1 for job in innocent),
        "bystanders quarantined": sum(job.failure_kind is FailureKind.CRASH_LOOP for job in innocent),
    }


EXPERIMENT = Experiment(id="E09", title="jobs kill their processes", act=run, engines=("sqlite", "postgres"))
