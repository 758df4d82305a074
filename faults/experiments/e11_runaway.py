"""E11: handlers that do not end: busy, blocked, deaf to exceptions, signals and cancels. Their limits end them."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from faults.apps.runaway import LIMIT
from faults.evidence.checker import check
from faults.evidence.records import Record, read
from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage, children_of
from faults.tools.enqueueing import Wish, enqueue
from faults.tools.kinship import Sightings
from shigoto import FailureKind, Job, State
from shigoto.worker.process_pool import DUMP, GRACE

SLACK = 1.0  # seconds more than the grace, on a machine whose cores are busy with handlers that spin
HARD = {  # seconds to their hard limit
    "spins": LIMIT,
    "reads": LIMIT,
    "ignores_exceptions": LIMIT,
    "ignores_signals": LIMIT,
    "is_in_native_code": LIMIT,
    "ignores_cancels": LIMIT,
    "ignores_the_soft_limit": 2 * LIMIT,
}
SOFT = ("gives_in_softly", "looks_in_a_thread")
DEAF = "never_looks"  # a thread, which cannot be ended: people are told of it, and that is all
STUCK = "still runs"  # so the log tells of JobStuck
RUNAWAYS = (*HARD, *SOFT, DEAF)


class Overrun(Struct, frozen=True):
    """How long a run went on after its limit, in seconds; `killed` if it did not even write that it ended."""

    task: str
    seconds: float
    killed: bool


def run(setting: Setting) -> Outcome:
    """More runaways than places for them, and jobs behind each that want its place."""
    count, places = setting.of(len(RUNAWAYS), 300), setting.of(4, 8)
    log = setting.folder / "worker.log"
    with Stage(setting, "runaway") as stage:
        options = ("--children", str(places), "--threads", "4", "--log-level", "warning")
        worker = stage.worker(*options, output=log)
        tasks = stage.app.tasks
        stage.wait_until(stage.app.workers, seconds=30, what="the worker did not start")
        runners = children_of(worker.pid)
        with Sightings(worker.pid) as sightings:
            wishes: list[Wish] = []
            for number in range(count):
                wishes += [(tasks[RUNAWAYS[number % len(RUNAWAYS)]], {}), (tasks["after"], {})]
            enqueue(stage, wishes)
            stage.rest(60 + 3 * count * (2 * LIMIT + GRACE + SLACK) / places)
        same = children_of(worker.pid) == runners
        jobs, records = list(stage.jobs()), read(stage.ledger)
        evidence = stage.evidence()
        evidence.unruly = frozenset(str(job.id) for job in jobs if job.failure_kind is FailureKind.TIMEOUT)
        outcome = check(evidence).outcome(count)
    overruns = _overruns(jobs, records, sightings.last)
    deaf = [job.number for job in jobs if job.task == DEAF]
    told = [number for number in deaf if _is_told_of(number, log)]
    outcome.wrong += _wrong(jobs, overruns)
    if len(overruns) != count:
        outcome.wrong.append(f"{len(overruns)} runaways have run, and not {count}")
    if not same:
        outcome.wrong.append("the runner process was replaced")
    if not deaf or told != deaf:
        outcome.wrong.append(f"of {len(deaf)} threads that outlast their limit the log tells of {len(told)}")
    outcome.figures |= _figures(overruns) | {
        "threads that nobody could end": len(deaf),
        "the log tells of": len(told),
        "runner processes recycled": int(not same),
        "child processes used": len(
            {record.pid for record in records if record.what == "start"} - {*runners}
        ),
    }
    return outcome


def _is_told_of(number: int, log: Path) -> bool:
    """Whether the log says of a job that it takes longer than it should."""
    return f"Job {number} {STUCK}" in log.read_text()


def _overruns(jobs: Sequence[Job], records: Sequence[Record], last: Mapping[int, float]) -> list[Overrun]:
    """From what handlers wrote down; of those that did not live to do so, from when their process was last seen."""
    tasks = {str(job.id): job.task for job in jobs}
    ends = {(r.job, r.token): r.at for r in records if r.what == "end"}
    found: list[Overrun] = []
    for record in records:
        task = tasks.get(record.job, "")
        if record.what == "start" and task in RUNAWAYS:
            end = ends.get((record.job, record.token))
            until = last.get(record.pid, record.at) if end is None else end
            found.append(Overrun(task, until - record.at - HARD.get(task, LIMIT), end is None))
    return found


def _wrong(jobs: Sequence[Job], overruns: Sequence[Overrun]) -> list[str]:
    found: list[str] = []
    for job in jobs:
        # One that gives in to its hard limit has timed out all the same.
        kind = FailureKind.TIMEOUT if job.task in HARD else None
        state = State.FAILED if job.task in HARD else State.COMPLETED
        if (job.state, job.failure_kind) != (state, kind):
            found.append(f"the job {job.number} ({job.task}) is {job.state} ({job.failure_kind})")
    for overrun in overruns:
        if overrun.task == DEAF:
            continue
        if overrun.seconds > GRACE + DUMP + SLACK:
            found.append(f"{overrun.task} went on for {overrun.seconds:.2f} s after its limit")
        if overrun.seconds < 0 and overrun.killed:
            found.append(f"{overrun.task} was killed {-overrun.seconds:.2f} s before its limit")
    return found


def _figures(overruns: Sequence[Overrun]) -> dict[str, Any]:
    by_task: dict[str, list[float]] = defaultdict(list)
    for overrun in overruns:
        by_task[overrun.task].append(overrun.seconds)
    killed = Counter(overrun.task for overrun in overruns if overrun.killed)
    return {
        "overrun p100 (s)": round(max((overrun.seconds for overrun in overruns), default=0.0), 3),
        "overrun p100 by kind (s)": {task: round(max(each), 3) for task, each in sorted(by_task.items())},
        "killed": dict(sorted(killed.items())),
    }


EXPERIMENT = Experiment(id="E11", title="handlers run away", act=run)
