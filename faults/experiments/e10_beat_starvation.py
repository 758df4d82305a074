"""E10: handlers keep their runner process from beating for three leases; its supervisor vouches for it.

Another worker, with nothing to do, is there to fence whoever does not beat.
"""

from collections import Counter
from functools import partial

from faults.evidence.checker import check
from faults.evidence.records import read
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage
from faults.tools.enqueueing import Wish, enqueue

LEASES = 3  # for so many of them nothing else runs
MODES = {
    "block_the_loop": "loop blocked",
    "hold_in_the_loop": "interpreter held, in the loop",
    "hold_in_a_thread": "interpreter held, in a thread",
    "hold_in_a_process": "interpreter held, in a process",
}


def run(setting: Setting) -> Outcome:
    """One such job at a time in each runner process."""
    count, runners = setting.of(4, 200), setting.of(4, 10)
    # With less, a busy machine alone could starve a supervisor: 40 busy processes on 2 cores do so with 2 seconds.
    seconds = setting.of(2.0, 3.0)
    starved_for = LEASES * seconds
    lease = ("--lease", str(seconds))
    with Stage(setting, "starving") as stage:
        stage.worker("--queues", "nobody", *lease)
        one = ("--concurrency", "1", "--threads", "1", "--children", "1")
        stage.worker("--processes", str(runners), *one, *lease)
        expected = runners + 1
        stage.wait_until(
            lambda: len(stage.app.workers()) >= expected, seconds=60, what="the workers did not start"
        )
        names = list(MODES)
        wishes: list[Wish] = [
            (stage.app.tasks[names[number % len(names)]], {"seconds": starved_for}) for number in range(count)
        ]
        for number, wish in enumerate(wishes):
            ids = enqueue(stage, [wish])
            if number < runners:  # one for each: a runner that is free takes whatever it finds
                stage.wait_until(partial(stage.have_begun, ids), seconds=30, what="a job did not start")
        stage.rest(30 + 3 * starved_for * (1 + count / runners))
        fenced, starved = _fences(stage), _starved(stage, starved_for)
        workers = [worker.name for worker in stage.app.workers() if worker.fenced_at is not None]
        evidence = stage.evidence()
    outcome = check(evidence).outcome(count)
    wrong = unfinished(evidence.states.values())
    if starved < count:
        wrong.append(f"only {starved} of {count} runs have kept their process from beating")
    for mode, times in fenced.items():
        if times:
            wrong.append(f"{times} jobs were taken from workers that lived ({mode})")
    if workers:
        wrong.append(f"workers that lived were fenced: {', '.join(workers)}")
    outcome.wrong += wrong
    outcome.figures |= {
        "starved runs": starved,
        "starved for (leases)": LEASES,
        "false fences": fenced,
    }
    return outcome


def _fences(stage: Stage) -> dict[str, int]:
    """How many jobs of each mode were taken away, by what the store counts and by what the handlers wrote down."""
    starts = Counter(record.job for record in read(stage.ledger) if record.what == "start")
    fences = dict.fromkeys(MODES.values(), 0)
    for job in stage.jobs():
        if job.crashes or starts[str(job.id)] > 1:
            fences[MODES[job.task]] += 1
    return fences


def _starved(stage: Stage, seconds: float) -> int:
    """How many runs have really taken their time."""
    records = read(stage.ledger)
    began = {(r.job, r.token): r.at for r in records if r.what == "start"}
    return sum(r.what == "end" and r.at - began[r.job, r.token] > seconds - 0.01 for r in records)


EXPERIMENT = Experiment(id="E10", title="handlers starve the beat", act=run)
