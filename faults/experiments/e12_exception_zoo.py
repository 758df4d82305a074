"""E12: handlers end in every way but a good one; the state is right, the error readable, and the worker goes on."""

import subprocess
import time
from typing import Any

from faults.apps import cases, zoo
from faults.evidence.checker import check
from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage, children_of
from faults.tools.peak import Peak
from shigoto import Job, Task
from shigoto.model.ids import uuid7

ERROR_BYTES = 16 * 1024  # of an error, and of its traceback with it
MOST_MEMORY = 600.0  # MB: a message of 50 MB lives several times while its job ends, in a few slots at once
PATIENCE = 60.0
EXIT = 35.0

Name = tuple[str, str]  # of the case, and of the task, which says where it runs


def run(setting: Setting) -> Outcome:
    """Every case in every place, in one worker; the full form has them all ten times over."""
    with Stage(setting, "zoo") as stage:
        worker = stage.worker("--lease", "10", "--concurrency", "8", "--threads", "4", "--children", "2")
        peak = Peak()
        asked = [_ask(stage, setting, number) for number in range(setting.of(1, 10))]
        stage.wait_until(lambda: children_of(worker.pid), seconds=PATIENCE, what="no runner was started")
        runners = children_of(worker.pid)
        rested = _rest(stage, worker, peak)
        wrong = [] if rested else ["the store did not come to rest"]
        if worker.poll() is not None or children_of(worker.pid) != runners:
            wrong.append("a runner process was replaced, or the worker is gone")
        wrong += _stop(stage, worker)
        jobs = {job.id: job for job in stage.jobs()}
        ended = [(name, jobs[id]) for names in asked for id, name in names.items()]
        wrong += [f"{name} in {job.task}: {word}" for (name, _), job in ended for word in _judge(name, job)]
        if peak.highest > MOST_MEMORY:
            wrong.append(f"a process has had {peak.highest:.0f} MB, more than {MOST_MEMORY:.0f}")
        evidence = stage.evidence()
        # What these must come to stands beside them, and is judged above.
        evidence.unruly = frozenset(str(id) for names in asked for id, (name, _) in names.items() if name)
        outcome = check(evidence).outcome(len(ended))
        outcome.wrong += wrong
        outcome.figures |= {
            "cases": len(cases.CASES),
            "jobs": len(ended),
            "stuck": sum(not job.state.terminal for _, job in ended),
            "wrong state": sum(bool(_judge(name, job)) for (name, _), job in ended),
            "max RSS MB": round(peak.highest),
        }
        return outcome


def _ask(stage: Stage, setting: Setting, number: int) -> dict[Any, Name]:
    """A job for each case and place, in an order of chance, and behind them some that must do well.

    Child processes take their time: in the short form a third of the cases run there.
    """
    random = setting.random(f"order {number}")
    names = [
        (name, place)
        for name, case in cases.CASES.items()
        for place in case.where
        if setting.full
        or case.where == (cases.PROCESS,)
        or place in (cases.LOOP, cases.THREAD)
        or random.random() < 0.33
    ]
    random.shuffle(names)
    asked: dict[Any, Name] = {}
    for name, place in [*names, *(("", task) for task in zoo.HEALTHY)]:
        id = uuid7()
        task: Task[..., Any] = stage.app.tasks[place].using(id=id)
        timeout = cases.CASES[name].timeout if name else None
        task = task if timeout is None else task.using(timeout=timeout)
        stage.pen.write("try", job=str(id))
        task.enqueue(**({"case": name} if name else {}))
        stage.pen.write("ok", job=str(id))
        asked[id] = (name, place)
    return asked


def _rest(stage: Stage, worker: subprocess.Popen[bytes], peak: Peak) -> bool:
    def at_rest() -> bool:
        peak.look(worker.pid)
        return stage.at_rest()

    seconds = PATIENCE * stage.setting.of(1, 5)
    return stage.wait_until(at_rest, seconds=seconds, what="the store did not come to rest")


def _stop(stage: Stage, worker: subprocess.Popen[bytes]) -> list[str]:
    began = time.monotonic()
    stage.do("term", worker, whole_tree=False)
    try:
        code = worker.wait(EXIT)
    except subprocess.TimeoutExpired:
        return [f"the worker did not stop within {EXIT:.0f} s"]
    took = time.monotonic() - began
    return [] if code == 0 else [f"the worker stopped with exit code {code}, after {took:.1f} s"]


def _judge(name: str, job: Job) -> list[str]:
    """What is wrong with the end of a job."""
    case = cases.CASES.get(name)
    state, kind, words = ("completed", "", "") if case is None else (case.state, case.kind, case.words)
    found = str(job.state), str(job.failure_kind or "")
    if found != (state, kind):
        return [
            f"is {' '.join(found).strip()} and not {f'{state} {kind}'.strip()}: {(job.error or '')[:200]}"
        ]
    if state == "failed" and not (job.error and words in job.error):
        return [f"its error has no {words!r}: {(job.error or 'none')[:200]!r}"]
    if len((job.error or "").encode()) > ERROR_BYTES or "\0" in (job.error or ""):
        return ["its error is too long, or has what no store can hold"]
    return []


EXPERIMENT = Experiment(id="E12", title="exception zoo", act=run)
