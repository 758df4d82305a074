"""E02: a process that is killed before each of its system calls, from enqueue to settled, and another that takes over.

    python -m faults.experiments.e02_every_step FOLDER KIND POINTS SECONDS SEED

is the program that kills; see `faults/tools/ptrace.py` for how. Where a job was caught is told by where it stands in
the store and in the ledger. By table 8 of the semantics (C1-C9) then:

    not tried, not stored       nothing was acknowledged; the caller enqueues it with the same id, and it is one job
    stored, not acknowledged    the same
    pending, claimed            it runs once
    running, returned           it runs again, and has an effect only once if that is part of its transaction
    completed                   it does not run again
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from uuid import UUID

from faults.apps.cycle import KINDS, go_round
from faults.evidence.checker import check
from faults.evidence.records import Pen, read
from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage, app_of
from faults.tools.programs import add, run_program, tell
from faults.tools.ptrace import begin, end, run_child
from faults.tools.takeover import Left, evidence, intact, look, take_over
from shigoto.model.ids import uuid7
from shigoto.observe.events import JobCompleted, JobStarted

STARTS = {"running": 2, "returned": 2}  # after the takeover; anything else is run once
PATIENCE = 900.0
LEAST = 4  # points, however long they take
AROUND = 50  # calls before the start of the job, in which the claim is committed, and after its end


def run(setting: Setting) -> Outcome:
    if sys.platform != "linux":
        return Outcome(skipped="system calls are stepped through with Linux's ptrace")
    total = Outcome()
    with Stage(setting, "cycle") as stage:
        stage.app.close()
        for kind in KINDS:
            words = (setting.folder, kind, setting.of(16, 400), setting.of(5, 200), setting.seed)
            part = run_program(
                "faults.experiments.e02_every_step",
                *words,
                log=setting.folder / f"{kind}.log",
                seconds=PATIENCE,
                environment={"SHIGOTO_LEDGER": str(stage.ledger)},
            )
            if part is None:
                return Outcome(skipped="this system does not let a process trace its own children")
            setting.say(f"{kind}: killed {part.n} times, {part.figures}")
            add(total, part)
            total.figures[kind] = part.figures
    return total


class Killer:
    """Kills one child after the other, each on a store of its own, and looks at what is left."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._template = folder / "jobs.db"
        self._ledger = folder / "ledger"
        self._folder = folder / kind
        self._kind = kind
        self._pen = Pen(self._ledger)
        self.seen = Outcome()
        self.matrix: dict[str, int] = {}
        self.calls = 0

    def points(self, count: int) -> list[int]:
        """Which calls to kill before: some of all there are, and as many between the claim and the settlement."""
        marks: list[int] = []
        store = self._fresh()
        self.calls = run_child(lambda: self._child(store, uuid7(), mark=True), None, marked=marks.append)
        marks = marks or [1, self.calls]
        first, last = max(1, marks[0] - AROUND), min(self.calls, marks[-1] + AROUND)
        return sorted({*_spread(1, self.calls, count // 2), *_spread(first, last, count - count // 2)})

    def kill_before(self, n: int) -> bool:
        """Kill before the n-th system call; False if the child came to its end before."""
        store, id = self._fresh(), uuid7()
        child: list[int] = []
        killed = run_child(lambda: self._child(store, id), n, started=child.append) >= n
        if killed:
            self._pen.write("fault", deed="kill", pid=child[0], parent=os.getpid())
        left = look(store, read(self._ledger), id)
        whole = intact(store)
        take_over(store, [(self._kind, id)])
        records = read(self._ledger)
        after = look(store, records, id)
        self._judge(f"{self._kind}, call {n}", left, after, whole)
        add(self.seen, check(evidence(store, records, {id: after})).outcome(0))
        for file in self._ledger.iterdir():
            if file.name.split("-")[0] != str(os.getpid()):
                file.unlink()
        self.seen.n += killed
        return killed

    def _child(self, store: Path, id: UUID, *, mark: bool = False) -> None:
        app = app_of("cycle", f"sqlite:///{store}")
        if mark:
            app.bus.subscribe(lambda event: begin(), JobStarted, JobCompleted)
        begin()
        go_round(app, [(self._kind, id)])
        end()

    def _fresh(self) -> Path:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        return Path(shutil.copy(self._template, self._folder / "jobs.db"))

    def _judge(self, where: str, left: Left, after: Left, whole: bool) -> None:
        """Compare with the table."""
        line = f"{left.word} -> {after.word}, started {after.starts}"
        self.matrix[line] = self.matrix.get(line, 0) + 1
        wrong: list[str] = []
        if not whole:
            wrong.append("the file is damaged")
        if left.acknowledged and left.state is None:
            wrong.append("it was acknowledged and is not there")
        if after.word != "completed":
            wrong.append(f"after the takeover it is {after.word}")
        if after.starts != STARTS.get(left.word, 1):
            wrong.append(f"it was run {after.starts} times")
        if self._kind == "transactional" and (left.effects, after.effects) != (left.word == "completed", 1):
            wrong.append(f"it had {left.effects} effects, and {after.effects} after the takeover")
        self.seen.wrong += [f"{where} ({left.word}): {sentence}" for sentence in wrong]


def _spread(first: int, last: int, count: int) -> list[int]:
    return [first + round(number * (last - first) / max(1, count - 1)) for number in range(count)]


def main(folder: Path, kind: str, points: int, seconds: float, seed: int) -> None:
    """Kill at so many points, spread over all there are, for no longer than so many seconds."""
    killer = Killer(folder, kind)
    chosen = killer.points(points)
    # In any order, so that those that there is no time for are anywhere.
    Setting(engine="sqlite", folder=folder, seed=seed, full=False).random(kind).shuffle(chosen)
    until = time.monotonic() + seconds
    for done, n in enumerate(chosen):
        if done < LEAST or time.monotonic() < until:
            killer.kill_before(n)
    killer.seen.figures = {
        "calls": killer.calls,
        "killed": killer.seen.n,
        "matrix": dict(sorted(killer.matrix.items())),
    }
    tell(killer.seen)


EXPERIMENT = Experiment(id="E02", title="crash at every step", run=run)

if __name__ == "__main__":
    signal.alarm(int(PATIENCE))
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
