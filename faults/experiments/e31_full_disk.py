"""E31: a disk that is full until somebody makes room, and one on which one write after the other fails.

    python -m faults.experiments.e31_full_disk small FOLDER MEBIBYTES SECONDS       in a mount namespace of its own
    python -m faults.experiments.e31_full_disk failing FOLDER ERROR POINTS SECONDS SEED

`small`: a producer fills a small file system with large jobs while a worker runs them. When it is full, nothing that
was acknowledged may be lost, nothing that was refused may be there, and the processes go on by themselves as soon as
there is room. On 8 MiB the log fills the disk; on more it is the checkpoint, at a time when workers have mapped the
file, which then has holes that must never be read.

`failing`: a process enqueues and runs two jobs, and the n-th write, sync or truncation of the store's files fails.
Whatever that makes of the process, another one takes over and finishes what was acknowledged.

No space is set aside for settling (decision 0008): what ran while the disk was full is kept, and settled later.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from uuid import UUID

from faults.apps.cycle import KINDS, STORE_TROUBLE
from faults.evidence import audit
from faults.evidence.checker import check
from faults.evidence.records import Pen, read
from faults.experiment import Experiment, Outcome, Setting
from faults.stage import ROOT, Stage, descendants
from faults.tools import mounts, strace
from faults.tools.copies import in_file
from faults.tools.programs import NOT_ALLOWED, run_program, tell
from faults.tools.takeover import Left, evidence, intact, look, take_over
from shigoto import StoreError
from shigoto.model.ids import uuid7

ME = "faults.experiments.e31_full_disk"
PATIENCE = 1_500.0
TEXT = "x" * 10_000
BACKLOG = 100  # jobs before the worker comes: who claims more than 32 large ones at once maps the file
REFUSALS = 20  # in a row, before we believe that the disk is full
ROOM = "size=256m"
AGAIN_WITHIN = 5.0  # seconds until an enqueue succeeds, once there is room
REST_WITHIN = 60.0
END_WITHIN = 40.0
MOST = 150  # calls, of one thread


def run(setting: Setting) -> Outcome:
    total, skipped = Outcome(), []
    if mounts.namespace() is None:
        skipped.append("no mounts of our own")
    else:
        for mebibytes in setting.of((12,), (8, 12, 24)):
            _add_part(setting, total, "small", mebibytes, setting.of(0.5, 10))
    if strace.why_not():
        skipped.append(strace.why_not())
    else:
        for error in ("ENOSPC", "EIO"):
            _add_part(
                setting, total, "failing", error, setting.of(3, MOST), setting.of(1.5, 1_200), setting.seed
            )
    total.left_out += skipped
    return total if total.n else Outcome(skipped="; ".join(skipped))


def _add_part(setting: Setting, total: Outcome, part: str, what: object, *words: object) -> None:
    folder = setting.folder / f"{part}-{what}"
    folder.mkdir()
    wrap = (mounts.namespace() or []) if part == "small" else []
    log = setting.folder / f"{part}-{what}.log"
    ledger = {"SHIGOTO_LEDGER": str(folder / "ledger")}
    outcome = run_program(
        ME, part, folder, what, *words, log=log, seconds=PATIENCE, wrap=wrap, environment=ledger
    )
    if outcome is None:
        total.left_out.append(f"{part} {what}: this system does not allow it")
        return
    setting.say(f"{part} {what}: {outcome.figures}")
    total.add(outcome)
    total.figures[f"{part} {what}"] = outcome.figures


class SmallDisk:
    """A stage whose store lies on a small file system, and its ledger elsewhere."""

    def __init__(self, folder: Path, mebibytes: int) -> None:
        self.disk, self.log = folder / "disk", folder / "worker.log"
        self.disk.mkdir()
        (folder / "ledger").mkdir()
        if mounts.mount("tmpfs", self.disk, f"size={mebibytes}m"):
            sys.exit(NOT_ALLOWED)
        (self.disk / "ledger").symlink_to(folder / "ledger")
        self.setting = Setting(engine="sqlite", folder=self.disk, seed=0, full=False)
        self.stage = Stage(self.setting, "large")
        self.refused: dict[str, str] = {}  # why, by id
        self.wrong: list[str] = []
        self._sequence = 0

    def enqueue(self) -> bool:
        """Try to store one more job, and write down what came of it."""
        self._sequence += 1
        id, pen = str(uuid7()), self.stage.pen
        task = self.stage.app.tasks[KINDS[self._sequence % 2]]
        pen.write("try", job=id, sequence=self._sequence)
        try:
            task.using(id=UUID(id)).enqueue(text=TEXT, milliseconds=self._sequence % 20)
        except StoreError as error:
            pen.write("err", job=id, outcome=type(error).__name__)
            self.refused[id] = f"{type(error).__name__}: {error}"
            return False
        pen.write("ok", job=id)
        return True

    def at_work(self) -> bool:
        """Whether jobs have been settled."""
        return any(count.completed for count in self.stage.app.stats().values())

    def fill(self) -> None:
        """Enqueue until nothing goes in any more."""
        in_a_row = 0
        while in_a_row < REFUSALS:
            in_a_row = 0 if self.enqueue() else in_a_row + 1
            time.sleep(0.02 * bool(in_a_row))  # whatever the worker frees is filled too

    def make_room(self) -> float:
        """Let everybody go on; tells how many seconds it took until the store was at rest."""
        self.wrong += [f"no room could be made: {why}" for why in [mounts.remount(self.disk, ROOM)] if why]
        began = time.monotonic()
        while not self.enqueue():
            if time.monotonic() > began + AGAIN_WITHIN:
                self.wrong.append(f"nothing can be enqueued {AGAIN_WITHIN:g} s after there was room")
                break
            time.sleep(0.02)
        self.stage.rest(REST_WITHIN)
        return time.monotonic() - began


def small(folder: Path, mebibytes: int, seconds: float) -> Outcome:
    """Fill it, leave it full for so many seconds, make room, and look."""
    small = SmallDisk(folder, mebibytes)
    with small.stage as stage:
        for _ in range(BACKLOG):
            small.enqueue()
        worker = stage.worker("--lease", "10", "--processes", "1", "--log-level", "warning", output=small.log)
        # A worker that cannot tell the store of itself does not start, so it does before the disk is full.
        stage.wait_until(small.at_work, seconds=REST_WITHIN, what="the worker did not begin")
        small.fill()
        time.sleep(seconds)
        mapped, alive = _maps(worker.pid, stage.store), worker.poll() is None
        counts = list(stage.app.stats().values())
        recovery = small.make_room()
        stage.do("term", worker, whole_tree=False)
        code = worker.wait(END_WITHIN)
        evidence = stage.evidence()
        outcome = check(evidence).outcome(len(evidence.states))
        outcome.wrong += (
            small.wrong + small.setting.missed + _judge_small(small, worker_alive=alive, code=code)
        )
    outcome.recovery = [recovery]
    outcome.figures = {
        "acknowledged": len(evidence.states),
        "refused": len(small.refused),
        "left when full": sum(count.pending + count.processing for count in counts),
        "texts": sorted({text.replace(str(stage.store), "STORE") for text in small.refused.values()}),
        "mapped": mapped,
        "seconds from room to rest": round(recovery, 2),
    }
    return outcome


def _judge_small(small: SmallDisk, *, worker_alive: bool, code: int) -> list[str]:
    stage, wrong = small.stage, []
    if not small.refused:
        wrong.append("the disk was never full")
    if not worker_alive or code != 0:
        wrong.append(f"the worker ended with {code}")
    states = {str(job.id): str(job.state) for job in stage.jobs()}
    there = sum(id in states for id in small.refused)
    unfinished = Counter(state for state in states.values() if state != "completed")
    crashed = len({change.job for change in audit.changes(stage.store) if change.crashes})
    wrong += [f"{there} jobs were refused and are there"] if there else []
    wrong += [f"{count} jobs are {state}" for state, count in unfinished.items()]
    wrong += [f"{crashed} jobs were in a process that died"] if crashed else []
    wrong += [
        f"an error does not say what is wrong: {text}"
        for text in {*small.refused.values()}
        if "is full" not in text
    ]
    if not intact(stage.store):
        wrong.append("the file is damaged")
    return wrong


def _maps(pid: int, store: Path) -> bool:
    """Whether a process of this worker has the file itself in memory."""
    for each in [pid, *descendants(pid)]:
        try:
            lines = Path(f"/proc/{each}/maps").read_text().splitlines()
        except OSError:
            continue
        if any(line.endswith(f" {store}") for line in lines):
            return True
    return False


class FailingDisk:
    """Runs one process after the other, each on a store of its own, with one call that fails."""

    def __init__(self, folder: Path, error: str) -> None:
        self._error = error
        with Stage(Setting(engine="sqlite", folder=folder, seed=0, full=False), "cycle") as stage:
            self._ledger, self._template = stage.ledger, stage.store
        self._pen = Pen(self._ledger)
        self._folder = folder / "point"
        self.seen = Outcome()
        self.matrix: dict[str, int] = {}

    def fail(self, n: int) -> bool:
        """Let the n-th call fail; False if there are not so many."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        store = Path(shutil.copy(self._template, self._folder / "jobs.db"))
        jobs = [(kind, uuid7()) for kind in KINDS]
        ended = self._run(store, jobs, n)
        failed = strace.injected(self._folder / "strace.log")
        if not failed:
            return False
        records = read(self._ledger)
        spot = in_file(store)
        left = [look(spot, records, id) for _, id in jobs]
        whole = intact(store)
        take_over(spot, jobs)
        records = read(self._ledger)
        after = [look(spot, records, id) for _, id in jobs]
        self._judge(f"{self._error} at {n}", ended, left, after, whole)
        ids = [id for _, id in jobs]
        facts = evidence(spot, records, dict(zip(ids, after, strict=True)))
        self.seen.add(check(facts).outcome(1))
        return True

    def _run(self, store: Path, jobs: list[tuple[str, UUID]], n: int) -> str:
        paths = [store, store.with_name(f"{store.name}-wal"), store.with_name(f"{store.name}-shm")]
        log = self._folder / "strace.log"
        wrap = strace.failing(strace.WRITES, self._error, when=n, paths=paths, log=log)
        words = [sys.executable, "-m", "faults.apps.cycle", f"sqlite:///{store}"]
        ids = [f"{kind}={id}" for kind, id in jobs]
        process = subprocess.Popen(
            [*wrap, *words, *ids], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            _, said = process.communicate(timeout=END_WITHIN)
        except subprocess.TimeoutExpired:
            for pid in [*descendants(process.pid), process.pid]:
                os.kill(pid, signal.SIGKILL)
            process.communicate()
            return "hangs"
        finally:
            # Its ancestor, strace, is the one whose number we know.
            self._pen.write("fault", deed="fail", pid=process.pid, parent=os.getpid())
        if process.returncode == 0:
            return "goes on"
        clear = process.returncode == STORE_TROUBLE and said.startswith("Store")
        return "ends with a clear error" if clear else f"ends with {process.returncode}: {said[-500:]}"

    def _judge(self, where: str, ended: str, left: list[Left], after: list[Left], whole: bool) -> None:
        line = f"{ended}: {', '.join(each.word for each in left)}"
        self.matrix[line] = self.matrix.get(line, 0) + 1
        wrong: list[str] = []
        if ended not in ("goes on", "ends with a clear error"):
            wrong.append(f"the process {ended}")
        if not whole:
            wrong.append("the file is damaged")
        for kind, before, then in zip(KINDS, left, after, strict=True):
            if before.acknowledged and before.state is None:
                wrong.append(f"the {kind} job was acknowledged and is not there")
            if then.word != "completed":
                wrong.append(f"after the takeover the {kind} job is {then.word}")
            if kind == "transactional" and (before.effects, then.effects) != (before.word == "completed", 1):
                wrong.append(f"it had {before.effects} effects, and {then.effects} after the takeover")
        self.seen.wrong += [f"{where}: {sentence}" for sentence in wrong]


def failing(folder: Path, error: str, points: int, seconds: float, seed: int) -> Outcome:
    """Let one call after the other fail, as many as there is time for."""
    disk = FailingDisk(folder, error)
    random = Setting(engine="sqlite", folder=folder, seed=seed, full=False).random(error)
    until = time.monotonic() + seconds
    n, past = 0, 0
    while n < MOST and past < 2 and time.monotonic() < until:
        n += 1 if points >= MOST else random.randint(1, 2 * MOST // points // 5)
        past = 0 if disk.fail(n) else past + 1
    if points >= MOST and n < MOST and past < 2:
        disk.seen.wrong.append(f"{error}: only {n} points were tried, in {seconds:g} s")
    disk.seen.figures = {"points": disk.seen.n, "last": n, "matrix": dict(sorted(disk.matrix.items()))}
    return disk.seen


EXPERIMENT = Experiment(id="E31", title="full and failing disk", act=run)

if __name__ == "__main__":
    signal.alarm(int(PATIENCE))
    part, where, what, *rest = sys.argv[1:]
    if part == "small":
        tell(small(Path(where), int(what), float(rest[0])))
    else:
        tell(failing(Path(where), what, int(rest[0]), float(rest[1]), int(rest[2])))
