"""E06: a worker is process 1 of its namespace, as in a container, and every orphan is its child."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from faults.evidence.checker import check
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage, children_of, descendants
from faults.tools.enqueueing import Wish, enqueue
from faults.tools.kinship import is_alive, zombies_below

STOP = 2.5  # seconds that a stop may take: the option of the worker
IDLE = 1.0  # seconds that the stop of an idle worker may take
SLACK = {False: 1.5, True: 0.5}  # seconds more, to leave the namespace, which the short form has not alone:
MOST_SLACK = 3.0  # it may take as long as the start did, but no longer than this
LASTING = 2  # orphans in each round that nobody ends, so that they must have been seen
REAPED_WITHIN = 3.0  # seconds, for orphans that end after 0.4 s at most


class Round(Struct, frozen=True):
    """What was seen of one worker, from its start to its end."""

    start_for: float
    exit_for: float
    code: int | None
    zombies: int
    left: int
    orphans: int


def run(setting: Setting) -> Outcome:
    """Rounds of a worker with orphans of every kind, that is told to stop, idle or at work."""
    words, reason = new_namespace()
    if not words:
        return Outcome(skipped=reason)
    count = setting.of(2, 50)
    rounds: list[Round] = []
    wrong: list[str] = []
    with Stage(setting, "processes") as stage:
        for number in range(count):
            busy = number % 2 == 1
            # As process 1 of a container it leads its process group; behind a plain unshare it has a foreign one.
            leader = ["setsid"] if number % 4 < 2 and shutil.which("setsid") else []
            seen = _round(stage, [*words, *leader], busy)
            rounds.append(seen)
            slack = (
                SLACK[setting.full] if setting.full else min(max(SLACK[False], seen.start_for), MOST_SLACK)
            )
            wrong += [f"round {number}: {words}" for words in _complaints(seen, busy, slack)]
        (setting.folder / "go").touch()
        stage.worker()
        stage.rest(30)
        evidence = stage.evidence()
    outcome = check(evidence).outcome(count)
    outcome.wrong += wrong + unfinished(evidence.states.values())
    outcome.figures |= {
        "rounds": len(rounds),
        "exit time max, idle (s)": round(max(seen.exit_for for seen in rounds[::2]), 3),
        "exit time max, at work (s)": round(max(seen.exit_for for seen in rounds[1::2]), 3),
        "orphans adopted": sum(seen.orphans for seen in rounds),
        "zombies": sum(seen.zombies for seen in rounds),
    }
    return outcome


def new_namespace() -> tuple[list[str], str]:
    """Words that run a command as process 1 of a new PID namespace; or none, and the reason."""
    if shutil.which("unshare") is None:
        return [], "unshare is not installed"
    said = ""
    for user in ([], ["--user", "--map-root-user"]):
        words = ["unshare", *user, "--pid", "--fork", "--mount-proc", "--kill-child"]
        tried = subprocess.run([*words, "true"], capture_output=True, check=False, timeout=30)
        if tried.returncode == 0:
            return words, ""
        said = tried.stderr.decode(errors="replace").strip()
    return [], f"no new PID namespaces here: {said}"


def _round(stage: Stage, words: Sequence[str], busy: bool) -> Round:
    tasks = stage.app.tasks
    random = stage.setting.random(f"round {len(stage.processes)}")
    lives = [round(random.uniform(0.0, 0.4), 3) for _ in range(4)] + [60.0] * LASTING
    wishes: list[Wish] = [(tasks["leave_an_orphan"], {"seconds": seconds}) for seconds in lives]
    wishes += [(tasks["short"], {})] * 5
    enqueue(stage, wishes)
    expected = _completed(stage) + len(wishes)
    # The long jobs are in a queue of their own, lest those that were given back make other rounds busy, too.
    queues = "default,long" if busy else "default"
    options = ("--queues", queues, "--processes", "2", "--lease", "3", "--stop-timeout", str(STOP))
    began, process = time.monotonic(), stage.worker(*options, wrap=words)
    adopted: set[int] = set()

    def done() -> bool:
        adopted.update(_adopted(process.pid))
        return _completed(stage) >= expected

    try:
        stage.wait_until(done, seconds=60, what="jobs did not complete")
        start_for = time.monotonic() - began
        if busy:
            enqueue(stage, [(tasks["until_told"].using(queue="long"), {})])
            stage.wait_until(stage.processing, seconds=30, what="the long job did not start")
        adopted.update(_adopted(process.pid))
        return _stop(stage, process, start_for, len(adopted))
    finally:
        for pid in children_of(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _adopted(outside: int) -> list[int]:
    """The children of process 1 that are none of its runners, but what handlers have left behind."""
    found: list[int] = []
    for init in children_of(outside):
        for pid in children_of(init):
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0"):
                    found.append(pid)
    return found


def _stop(stage: Stage, process: subprocess.Popen[bytes], start_for: float, orphans: int) -> Round:
    init = children_of(process.pid)[0]
    # What has ended in this very moment is a zombie for as long as it takes to wait for it.
    reaped = stage.wait_until(
        lambda: not zombies_below(init), seconds=REAPED_WITHIN, what="zombies were not reaped"
    )
    zombies, inside = 0 if reaped else len(zombies_below(init)), descendants(init)
    began = time.monotonic()
    stage.do("term", init, whole_tree=False)
    try:
        code = process.wait(STOP + 10)
    except subprocess.TimeoutExpired:
        code = None
    exit_for = time.monotonic() - began
    return Round(start_for, exit_for, code, zombies, sum(map(is_alive, inside)), orphans)


def _complaints(seen: Round, busy: bool, slack: float) -> list[str]:
    found: list[str] = []
    if seen.code != 0:
        found.append(f"the worker ended with {seen.code}")
    if seen.exit_for > (STOP if busy else IDLE) + slack:
        found.append(f"the stop took {seen.exit_for:.2f} s")
    if seen.orphans < LASTING:
        found.append(f"it adopted {seen.orphans} orphans, and {LASTING} at least were left to it")
    if seen.zombies:
        found.append(f"{seen.zombies} zombies")
    if seen.left:
        found.append(f"{seen.left} processes were left")
    return found


def _completed(stage: Stage) -> int:
    return sum(count.completed for count in stage.app.stats().values())


EXPERIMENT = Experiment(id="E06", title="a worker is process 1", act=run)
