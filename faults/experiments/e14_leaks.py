"""E14: one worker, nobody who disturbs it, and many jobs of every kind. What it holds does not grow with them.

The jobs come in rounds, and what is compared is the worker at rest after each: memory by the least-squares line over
the jobs done, threads by the same, open files by the last round and the first. Before that come rounds which fill pools
and caches, and do not count. Child processes come and go: there may never be more than were asked for, each with as
many files and threads as any other, and the largest of them must not grow.
"""

import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from faults.evidence.checker import check
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage
from faults.tools.vitals import MB, MIB, Sample, family, sample_of, size_of, slope

# In such parts; a transactional job is a commit of its own, and takes as long as ten others.
TASKS = ",".join(10 * ["asynchronous"] + 6 * ["in_a_thread"] + 3 * ["in_a_process"] + ["transactional"])
# MB for 100 000 jobs. A few hundred jobs cannot tell a page each from chance: 86 to 403 in seven runs of one tree.
MOST_RSS = (600.0, 1.0)
# Connections are opened when they are first needed, each with two files, and kept: one more for the first checkpoint
# that this process happens to run, one more for the first time that a read and a write and a checkpoint meet.
POOLED = 4
LONGEST_LOG = 64 * MIB
CHILDREN = 2
MOST_RSS_OF_CHILDREN = (400.0, 5.0)  # MB for 100 000 jobs, of which each child has had one in thirteen


def run(setting: Setting) -> Outcome:
    """Round after round, and then the lines through what was seen."""
    rounds, jobs, warm = setting.of((6, 300, 3), (25, 8_000, 5))
    samples: list[Sample] = []
    wrong: list[str] = []
    longest = 0
    with Stage(setting) as stage:
        pools = ("--threads", "4", "--children", str(CHILDREN), "--concurrency", "20")
        worker = stage.worker("--processes", "1", *pools)
        if not opened(worker.pid, str(stage.store)):
            wrong.append("the supervisor has not come to the store")
        began = time.monotonic()
        for done in range(jobs, (rounds + 1) * jobs, jobs):
            producer = stage.producer(jobs, "--bulk", "20", "--tasks", TASKS, "--milliseconds", "0,2")
            if producer.wait(600) or not stage.rest(600):
                wrong.append(f"the round up to {done} jobs did not come to an end")
                break
            longest = max(longest, size_of(f"{stage.store}-wal"))
            samples += at_rest(worker.pid, done)
        seconds = time.monotonic() - began
        evidence = stage.evidence()
    outcome = check(evidence).outcome(len(evidence.states))
    lines = [line_of(samples, role, after=warm * jobs) for role in ("supervisor", "runner")]
    outcome.wrong += wrong + [sentence for line in lines for sentence in judged(line, setting.of(*MOST_RSS))]
    children = [sample for sample in samples if sample.role == "child" and sample.at > warm * jobs]
    outcome.wrong += judged_children(children, setting.of(*MOST_RSS_OF_CHILDREN))
    outcome.wrong += unfinished(evidence.states.values())
    if outcome.n != rounds * jobs:
        outcome.wrong.append(f"{outcome.n} jobs were stored, and not {rounds * jobs}")
    if longest > LONGEST_LOG:
        outcome.wrong.append(f"the log had {longest / MIB:.0f} MiB")
    outcome.figures |= {
        "jobs_per_second": round(rounds * jobs / seconds),
        "longest_log_mib": round(longest / MIB, 1),
        "child": {
            "processes": len({sample.pid for sample in children}),
            "rss_mb": round(max((sample.rss for sample in children), default=0) / MB, 1),
            "rss_mb_for_100_000_jobs": round(growth_of_largest(children), 3),
        },
        **{
            line.role: {name: round(value, 3) for name, value in asdict(line).items() if name != "role"}
            for line in lines
        },
    }
    return outcome


def opened(pid: int, store: str) -> bool:
    """Wait until a process has the store open. A supervisor comes to it later than its runners, so as not to disturb
    their first jobs, and what that takes is no leak."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            if any(os.readlink(file).startswith(store) for file in Path(f"/proc/{pid}/fd").iterdir()):
                return True
        time.sleep(0.05)
    return False


class Line(Struct, frozen=True, kw_only=True):
    """What 100 000 jobs add to the memory of a process, and all of them to its files and threads."""

    role: str
    processes: int
    rss_mb: float
    rss_mb_for_100_000_jobs: float
    files: float
    threads: float


def at_rest(supervisor: int, done: int) -> list[Sample]:
    """The supervisor, its runner and their children after so many jobs."""
    found = [sample_of(pid, role, done) for pid, role in family([supervisor]).items()]
    return [sample for sample in found if sample is not None]


def line_of(samples: list[Sample], role: str, *, after: int) -> Line:
    """The line through what was seen of one process after its first rounds."""
    seen = [sample for sample in samples if sample.role == role and sample.at > after]
    jobs = seen[-1].at - seen[0].at if seen else 0.0
    return Line(
        role=role,
        processes=len({sample.pid for sample in seen}),
        rss_mb=seen[-1].rss / MB if seen else 0.0,
        rss_mb_for_100_000_jobs=slope([(each.at, each.rss) for each in seen]) * 1e5 / MB,
        files=seen[-1].files - seen[0].files if seen else 0.0,
        threads=slope([(each.at, each.threads) for each in seen]) * jobs,
    )


def judged(line: Line, most: float) -> list[str]:
    """What a line must not be."""
    wrong: list[str] = []
    if line.processes != 1:
        wrong.append(f"there were {line.processes} processes of the kind {line.role}, and not one")
    if line.rss_mb_for_100_000_jobs > most:
        wrong.append(f"100 000 jobs cost a {line.role} {line.rss_mb_for_100_000_jobs:.2f} MB, over {most:g}")
    if abs(line.files) > POOLED:
        wrong.append(f"a {line.role} has {line.files:+.1f} open files")
    if round(line.threads):
        wrong.append(f"a {line.role} has {line.threads:+.1f} threads")
    return wrong


def growth_of_largest(children: list[Sample]) -> float:
    """What 100 000 jobs add to the largest child process, in MB."""
    largest: dict[float, int] = {}
    for sample in children:
        largest[sample.at] = max(sample.rss, largest.get(sample.at, 0))
    return slope(list(largest.items())) * 1e5 / MB


def judged_children(children: list[Sample], most: float) -> list[str]:
    """What child processes must not be: many, different from each other, or larger and larger."""
    wrong: list[str] = []
    at_once = max(Counter(sample.at for sample in children).values(), default=0)
    if not 0 < at_once <= CHILDREN:
        wrong.append(f"there were {at_once} child processes at once, and not {CHILDREN}")
    for name in ("files", "threads"):
        held = {getattr(sample, name) for sample in children}
        if len(held) > 1:
            wrong.append(f"child processes have had {min(held)} to {max(held)} {name}")
    if growth_of_largest(children) > most:
        wrong.append(f"100 000 jobs cost a child {growth_of_largest(children):.2f} MB, over {most:g}")
    return wrong


EXPERIMENT = Experiment(id="E14", title="nothing leaks", act=run)
