"""E08: a supervisor is killed, and nobody tells its runner processes and their children; they must end by themselves.

Each round's worker also finds what the one before it has left, and runs it again.
"""

import time

from msgspec import Struct, field

from faults.evidence.checker import check
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage, descendants
from faults.tools.enqueueing import Wish, enqueue
from faults.tools.kinship import wait_for_end

GONE_WITHIN = 1.0  # seconds
SLACK = {False: 0.5, True: 0.0}  # seconds more: other tests may run beside the short form
LEASE = 2.0  # seconds
GONE_FROM_THE_STORE = 3 * LEASE + 10  # seconds until another worker has its jobs; 20 at most
LONG = ("until_told", "until_told_in_a_thread", "until_told_in_a_process", "deaf_in_a_process")


class Seen(Struct):
    """What became of the families of the supervisors."""

    processes: int = 0
    begun: int = 0  # jobs that ran when their supervisor was killed
    ends: list[float] = field(default_factory=list)  # seconds from the kill
    survivors: int = 0
    wrong: list[str] = field(default_factory=list)


def run(setting: Setting) -> Outcome:
    """Kill one supervisor after the other in the middle of its work, then let a sound worker end what they began."""
    count, seen = setting.of(3, 100), Seen()
    with Stage(setting, "processes") as stage:
        for number in range(count):
            _round(stage, number, seen)
        (setting.folder / "go").touch()
        stage.worker("--lease", str(LEASE))
        stage.rest(GONE_FROM_THE_STORE + 0.2 * count)
        jobs = list(stage.jobs())
        outcome = check(stage.evidence()).outcome(count)
    again = sum(job.crashes > 0 for job in jobs)
    if again < seen.begun:
        seen.wrong.append(
            f"{seen.begun} jobs ran when their supervisor was killed, and only {again} were cut short"
        )
    outcome.wrong += seen.wrong + unfinished(str(job.state) for job in jobs)
    outcome.figures |= {
        "supervisors killed": count,
        "processes below them": seen.processes,
        "surviving children": seen.survivors,
        "children gone after, max (s)": round(max(seen.ends, default=0.0), 3),
        "jobs cut short": again,
    }
    return outcome


def _round(stage: Stage, number: int, seen: Seen) -> None:
    worker = stage.worker("--lease", str(LEASE), "--children", "3", "--concurrency", "4", "--threads", "4")
    tasks = stage.app.tasks
    ids = enqueue(stage, [(tasks[name], {}) for name in LONG])
    stage.wait_until(lambda: stage.have_begun(ids), seconds=30, what="the jobs did not start")
    if number % 2:
        # From now on nothing in the runner process moves, either. So this one comes last.
        last: list[Wish] = [(tasks["deaf"], {})]
        ids += enqueue(stage, last)
        stage.wait_until(lambda: stage.have_begun(ids), seconds=30, what="the last did not start")
    seen.begun += len(ids)
    family = descendants(worker.pid)
    stage.do("kill", worker, whole_tree=False)
    killed = time.monotonic()
    worker.wait()

    def ended(pid: int) -> None:
        seen.ends.append(time.monotonic() - killed)
        # It is the kernel that has killed it, in our stead.
        stage.pen.write("fault", deed="kill", pid=pid, parent=worker.pid)

    left = wait_for_end(family, GONE_WITHIN + SLACK[stage.setting.full], ended)
    seen.processes += len(family)
    if left:
        seen.survivors += len(left)
        seen.wrong.append(f"round {number}: {len(left)} of {len(family)} processes outlived their supervisor")
        for pid in left:
            stage.do("kill", pid)


EXPERIMENT = Experiment(id="E08", title="a supervisor dies, and its children live", act=run)
