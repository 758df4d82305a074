"""E07: a worker is told to stop while it starts, at whatever moment."""

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from faults.evidence.checker import check
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage, descendants
from faults.tools.enqueueing import enqueue
from faults.tools.kinship import is_alive

LATEST = 2.0  # seconds after its start: the last moment for the signal, unless starts are slow here
STOP = 4.0  # seconds that a stop may take: the option of the worker. With 2, 40 busy processes on 2 cores are too many
SLACK = 1.5  # seconds more, for a machine that has other things to do
OPTIONS = ("--processes", "2", "--concurrency", "4", "--lease", "3", "--stop-timeout", str(STOP))


class Stop(Struct, frozen=True):
    """One worker that was told to stop so many seconds after its start, with so many processes below it; some `left`.

    The signal itself may end it, by what Python does before it is told otherwise: then there is nothing to give back,
    and nobody below it.
    """

    delay: float
    exit_for: float
    code: int | None
    below: int
    left: int

    @property
    def in_order(self) -> bool:
        """Whether it ended as it should."""
        return self.code == 0 or (self.code == -signal.SIGTERM and not self.below)


def run(setting: Setting) -> Outcome:
    """Several workers at a time, each stopped at a moment of its own; then a sound one does what is left."""
    count, at_once = setting.of(6, 200), setting.of(3, 4)
    stops: list[Stop] = []
    wrong: list[str] = []
    with Stage(setting, "processes") as stage:
        enqueue(stage, [(stage.app.tasks["until_told"], {})] * 24)
        start_for = _start_for(stage)
        moments = _moments(setting, count, max(LATEST, 1.5 * start_for))
        for first in range(0, count, at_once):
            enqueue(stage, [(stage.app.tasks["short"], {})] * 10)
            some = _stop_some(stage, moments[first : first + at_once])
            stops += some
            wrong += [words for stop in some for words in _complaints(stop)] + _stranded(stage)
        (setting.folder / "go").touch()
        stage.worker("--lease", "3")
        stage.rest(30)
        jobs = list(stage.jobs())
        outcome = check(stage.evidence()).outcome(count)
    crashed, given_back = sum(job.crashes for job in jobs), sum(job.releases for job in jobs)
    wrong += unfinished(str(job.state) for job in jobs)
    if not given_back:
        wrong.append("no worker had come so far that it had something to give back")
    if crashed:
        wrong.append(f"{crashed} crashes were counted, though nobody was killed")
    outcome.wrong += wrong
    outcome.figures |= _figures(stops, sum("stranded" in words for words in wrong))
    outcome.figures |= {"start takes (s)": round(start_for, 3), "jobs given back": given_back}
    return outcome


def _moments(setting: Setting, count: int, latest: float) -> list[float]:
    """Every part of the start is met equally often."""
    random = setting.random("moments")
    moments = [latest * (number + random.random()) / count for number in range(count)]
    random.shuffle(moments)
    return moments


def _start_for(stage: Stage) -> float:
    """How long it takes on this machine until a worker has claimed something, in seconds; it is stopped thereafter."""
    began, process = time.monotonic(), stage.worker(*OPTIONS)
    stage.wait_until(stage.processing, seconds=30, what="the first worker claimed nothing")
    start_for = time.monotonic() - began
    stage.do("term", process, whole_tree=False)
    process.wait(STOP + 10)
    return start_for


def _stop_some(stage: Stage, delays: Sequence[float]) -> list[Stop]:
    """Start a worker for each of these delays, and see all of them through to their ends."""
    running = {stage.worker(*OPTIONS): (time.monotonic(), delay) for delay in sorted(delays)}
    told: dict[subprocess.Popen[bytes], tuple[float, list[int]]] = {}
    stops: list[Stop] = []
    while running:
        for process, (began, delay) in list(running.items()):
            now = time.monotonic()
            if process not in told:
                if now >= began + delay:
                    told[process] = now, descendants(process.pid)
                    stage.do("term", process, whole_tree=False)
            elif process.poll() is not None or now > told[process][0] + STOP + 10:
                at, below = told[process]
                left = sum(map(is_alive, below))
                stops.append(Stop(delay, now - at, process.returncode, len(below), left))
                del running[process]
        time.sleep(0.005)
    return stops


def _complaints(stop: Stop) -> list[str]:
    told = f"told to stop after {stop.delay:.3f} s"
    found: list[str] = []
    if not stop.in_order:
        found.append(f"{told}, a worker with {stop.below} processes below it ended with {stop.code}")
    if stop.exit_for > STOP + SLACK:
        found.append(f"{told}, a worker took {stop.exit_for:.2f} s")
    if stop.left:
        found.append(f"{told}, a worker left {stop.left} processes behind")
    return found


def _stranded(stage: Stage) -> list[str]:
    """Nothing may be claimed, and nobody registered, when all have ended."""
    claims = stage.processing()
    workers = [worker.pid for worker in stage.app.workers() if worker.fenced_at is None]
    found = [f"{claims} claims are stranded"] if claims else []
    return found + ([f"workers that are gone are stranded in the store: {workers}"] if workers else [])


def _figures(stops: Sequence[Stop], stranded: int) -> dict[str, object]:
    codes = Counter(str(stop.code) for stop in stops)
    return {
        "rounds": len(stops),
        "stranded": stranded,
        "exit time max (s)": round(max(stop.exit_for for stop in stops), 3),
        "exit codes": dict(codes),
    }


EXPERIMENT = Experiment(id="E07", title="a worker is told to stop while it starts", act=run)
