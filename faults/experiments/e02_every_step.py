"""E02: a process that is killed before each of its system calls, from enqueue to settled, and another that takes over.

    python -m faults.experiments.e02_every_step FOLDER KIND POINTS SECONDS SEED [TEMPLATE URL]

is the program that kills; see `faults/tools/ptrace.py` for how. Where a job was caught is told by where it stands in
the store and in the ledger. By table 8 of the semantics (C1-C9) then:

    not tried, not stored       nothing was acknowledged; the caller enqueues it with the same id, and it is one job
    stored, not acknowledged    the same
    pending, claimed            it runs once
    running, returned           it runs again, and has an effect only once if that is part of its transaction
    completed                   it does not run again

Where the store is a server, what the process has sent it before its death is still done. TEMPLATE and URL are the
addresses of the database that each child gets a copy of, for a superuser and for an app.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from uuid import UUID

from faults.apps.cycle import KINDS, go_round
from faults.evidence.checker import check
from faults.evidence.records import Pen, read
from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage, app_of
from faults.tools.copies import Copies, Databases, Files, Spot
from faults.tools.programs import run_program, tell
from faults.tools.ptrace import begin, end, run_child
from faults.tools.takeover import Left, evidence, intact, look, take_over
from shigoto.model.ids import uuid7
from shigoto.observe.events import JobCompleted, JobStarted

STARTS = {"running": 2, "returned": 2}  # after the takeover; anything else is run once
# Where it must have been caught, in the full form. What is transactional is completed before its handler returns.
PLACES = {
    "plain": ("claimed", "running", "returned", "completed"),
    "transactional": ("claimed", "running", "completed"),
}
PATIENCE = 1_500.0
LEAST = 4  # points, however long they take
AROUND = 50  # calls before the start of the job, in which the claim is committed, and after its end


def run(setting: Setting) -> Outcome:
    if sys.platform != "linux":
        return Outcome(skipped="system calls are stepped through with Linux's ptrace")
    total = Outcome()
    with Stage(setting, "cycle", audited=False) as stage:
        for kind in KINDS:  # the first job of a task takes another way into the store than all that follow
            stage.app.tasks[kind].enqueue().cancel()
        stage.audit.install()
        stage.app.close()
        stage.audit.close()
        for kind in KINDS:
            words: tuple[object, ...] = (
                setting.folder,
                kind,
                setting.of(16, 400),
                setting.of(5, 1_200),
                setting.seed,
            )
            words += addresses(stage)
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
            total.add(part)
            total.figures[kind] = part.figures
            if setting.full:
                total.wrong += [f"{kind}: {sentence}" for sentence in not_covered(part, PLACES[kind])]
    return total


def addresses(stage: Stage) -> tuple[str, ...]:
    """Where the program finds the store that is to be copied, if that is not a file in the folder."""
    return () if stage.setting.engine == "sqlite" else (stage.server.url_of(stage.database.name), stage.url)


def not_covered(part: Outcome, places: Sequence[str]) -> list[str]:
    """What was planned and is missing: points there was no time for, and places where nothing was caught."""
    done, planned = part.figures["points"]
    wrong = [f"only {done} of {planned} points were tried"] if done < planned else []
    missing = [
        place for place in places if not any(line.startswith(place) for line in part.figures["matrix"])
    ]
    return wrong + ([f"nothing was caught while {', '.join(missing)}"] if missing else [])


class Killer:
    """Kills one child after the other, each on a store of its own, and looks at what is left."""

    def __init__(self, folder: Path, kind: str, copies: Copies) -> None:
        self._copies = copies
        self._ledger = folder / "ledger"
        self._kind = kind
        self._pen = Pen(self._ledger)
        self.seen = Outcome()
        self.matrix: dict[str, int] = {}
        self.calls = 0

    def points(self, count: int, random: Random) -> list[int]:
        """Which calls to kill before: half of them between the claim and the settlement, some around the
        acknowledgement, and some of all there are. In any order, so that those that there is no time for are anywhere.
        """
        # Here first, so that every child finds imported what it needs, and their calls can be compared.
        take_over(self._copies.fresh(), [(self._kind, uuid7())])
        marks: list[int] = []
        store = self._copies.fresh()
        self.calls = run_child(lambda: self._child(store, uuid7(), mark=True), None, marked=marks.append)
        # A job that is not even run, as one of a broken build, is looked for at the end.
        acknowledged, started, *_, completed = marks if len(marks) > 2 else (marks or [1]) + [self.calls] * 2
        parts = (
            (started - AROUND, completed + AROUND, count - 2 * (count // 4)),
            (acknowledged - AROUND // 2, acknowledged + AROUND // 2, count // 4),
            (1, self.calls, count // 4),
        )
        chosen = {
            n
            for first, last, some in parts
            for n in _spread(max(1, first), min(self.calls, last), some, random)
        }
        return random.sample(sorted(chosen), len(chosen))

    def kill_before(self, n: int) -> bool:
        """Kill before the n-th system call; False if the child came to its end before."""
        store, id = self._copies.fresh(), uuid7()
        child: list[int] = []
        killed = run_child(lambda: self._child(store, id), n, started=child.append) >= n
        if killed:
            self._pen.write("fault", deed="kill", pid=child[0], parent=os.getpid())
        self._copies.settle()
        left = look(store, read(self._ledger), id)
        whole = not isinstance(store.audited, Path) or intact(store.audited)
        take_over(store, [(self._kind, id)])
        records = read(self._ledger)
        after = look(store, records, id)
        self._judge(f"{self._kind}, call {n}", left, after, whole)
        self.seen.add(check(evidence(store, records, {id: after})).outcome(int(killed)))
        for file in self._ledger.iterdir():
            if file.name.split("-")[0] != str(os.getpid()):
                file.unlink()
        return killed

    def _child(self, store: Spot, id: UUID, *, mark: bool = False) -> None:
        app = app_of("cycle", store.url)
        if mark:
            app.bus.subscribe(lambda event: begin(), JobStarted, JobCompleted)
        begin()
        go_round(app, [(self._kind, id)], acknowledged=begin if mark else bool)
        end()

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


def _spread(first: int, last: int, count: int, random: Random) -> list[int]:
    """So many numbers at equal distances, all moved by the same chance, so that every seed tries others."""
    distance = max(1.0, (last - first + 1) / count)
    begin = first + random.random() * distance
    return [number for each in range(count) if (number := int(begin + each * distance)) <= last]


def main(folder: Path, kind: str, points: int, seconds: float, seed: int, *addresses: str) -> None:
    """Kill at so many points, spread over all there are, for no longer than so many seconds."""
    copies = Databases(*addresses) if addresses else Files(folder / "jobs.db", folder / kind)
    killer = Killer(folder, kind, copies)
    chosen = killer.points(points, Random(f"{seed} {kind}"))
    until, done = time.monotonic() + seconds, 0
    for n in chosen:
        if done < LEAST or time.monotonic() < until:
            killer.kill_before(n)
            done += 1
    killer.seen.figures = {
        "calls": killer.calls,
        "points": [done, len(chosen)],
        "killed": killer.seen.n,
        "matrix": dict(sorted(killer.matrix.items())),
    }
    tell(killer.seen)


EXPERIMENT = Experiment(id="E02", title="crash at every step", act=run, engines=("sqlite", "postgres"))

if __name__ == "__main__":
    signal.alarm(int(PATIENCE))
    main(
        Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]), *sys.argv[6:]
    )
