"""MOVE: an SQLite file is moved to PostgreSQL while producers and workers use it, and are killed as in E01.

The file has jobs of every kind: finished ones with history, results and log lines, failed and cancelled ones, jobs that
wait for their time or in a queue that is paused, with keys and without, and those in hand. An operator retries, cancels
and deletes some of them, asks for jobs whose keys others have had, and goes on with that. `shigoto move` is killed
while it copies, while what runs may end, and while the old store is closed, and started again until it ends. Producers,
workers and the operator go where the old store sends them, and are killed there, too.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from subprocess import Popen
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from faults.evidence.checker import Findings, check, offset_of_clocks
from faults.evidence.joined import Moved, Side, join
from faults.evidence.records import Record, read
from faults.experiment import Experiment, Outcome, Setting
from faults.experiments.e01_worker_tree_dies import READY_WITHIN, SLOTS, TASKS, Producers
from faults.stage import Stage, app_of
from faults.stores import Store
from faults.stores.file import File
from faults.tools.gates import Gates
from faults.tools.monkey import Monkey
from faults.tools.people import HELD, Operator, fill
from shigoto import Shigoto
from shigoto.engine.movable import mover_of
from shigoto.engine.protocol import Engine
from shigoto.model.record import JobRecord

MODULE = "moving"
HISTORY = 0.65  # of what the file is filled with has to have ended when the move begins
ENDLESS = 10**9  # jobs of producers that are told when it is enough
AGAIN = 3  # how often a move may fail that nobody has killed


class Size(Struct, frozen=True, kw_only=True):
    """How many jobs the file is filled with, how many are enqueued when it was moved, and at what pace."""

    filled: int
    later: tuple[float, float]  # seconds until some of them are due
    there: int
    rate: float  # in a second, of each of three producers
    milliseconds: str
    workers: int
    lease: float
    kills: tuple[float, float]  # seconds between kills of workers
    kills_there: int  # of workers of the new store
    producer_kills: tuple[float, float]
    producers_killed: int  # at most
    closed_for: float  # seconds at most until a move that has closed the store is killed
    every: float  # seconds between deeds of the operator
    seconds: float  # for whatever is waited for


SHORT = Size(
    filled=3_000, later=(5.0, 15.0), there=60, rate=20, milliseconds="50,400", workers=3, lease=3.0, kills=(0.8, 1.6),
    kills_there=2, producer_kills=(1.0, 2.0), producers_killed=6, closed_for=0.0, every=0.05, seconds=60,
)  # fmt: skip
FULL = Size(
    filled=100_000, later=(60.0, 300.0), there=10_000, rate=50, milliseconds="20,200", workers=4, lease=10.0,
    kills=(1.0, 5.0), kills_there=5, producer_kills=(5.0, 15.0), producers_killed=1_000, closed_for=0.5, every=0.05,
    seconds=900,
)  # fmt: skip


def run(setting: Setting) -> Outcome:
    """Fill, move, and let it all end."""
    return run_at(setting, setting.of(SHORT, FULL))


def run_at(setting: Setting, size: Size) -> Outcome:
    """The same at this size."""
    with ExitStack() as stack:
        stage = stack.enter_context(Stage(setting, MODULE))
        old = File(setting.folder / "old.db")
        app = app_of(MODULE, old.url)
        stack.callback(app.close)
        old.prepare(app)
        old.audit.install()
        gates = stack.enter_context(Gates(old.path, stage.server.url_of(stage.database.name), stage.pen))
        return Course(stage, size, old, app, gates).run()


class Course:
    """One run of the experiment."""

    def __init__(self, stage: Stage, size: Size, old: File, app: Shigoto, gates: Gates) -> None:
        self._stage, self._size, self._old, self._app, self._gates = stage, size, old, app, gates
        self._random = stage.setting.random("move")
        self._enough = stage.folder / "enough"
        self._wrong: list[str] = []
        self._figures: dict[str, Any] = {}

    def run(self) -> Outcome:
        """All of it, in order."""
        stage, size, draw = self._stage, self._size, self._stage.setting.random
        self._app.pause(HELD)
        filled = fill(self._app, stage.pen, draw("fill"), jobs=size.filled, later=size.later)
        operator = Operator(self._app, stage.app, stage.pen, draw("operator"), filled, size.every)
        operator.cancel(len(filled.unwanted) // 2)
        workers = [self._start() for _ in range(size.workers)]
        monkey = Monkey(
            stage, draw("monkey"), start=self._start, workers=workers, deeds={"kill": 1}, pause=size.kills
        )
        with monkey:
            self._wait(lambda: self._ended() > HISTORY * size.filled, "the file had not enough history")
            load = self._load()
            with operator:
                self._move()
                kills = monkey.done["kill"] + size.kills_there
                if self._gates.opened():
                    moved = self._look_at_arrivals()
                    self._wait(
                        lambda: stored(stage.app) > moved + size.there, "too little came after the move"
                    )
                self._enough.touch()
                load.join()
            if not self._gates.opened():
                return Outcome(wrong=[*self._wrong, "The new store was never opened."])
            self._wait(lambda: monkey.done["kill"] >= kills, "the workers of the new store were not killed")
        self._wait(stage.at_rest, "the new store did not come to rest")
        outcome = self._judged(operator.deleted)
        outcome.figures |= self._figures | {"workers killed": monkey.done["kill"], "lease": size.lease}
        outcome.wrong += self._wrong + self._of_workers(monkey.ended)
        return outcome

    def _wait(self, true: Callable[[], object], what: str, seconds: float | None = None) -> None:
        self._stage.wait_until(true, seconds=seconds or self._size.seconds, what=what)

    def _ended(self) -> int:
        return sum(count.completed + count.failed + count.cancelled for count in self._app.stats().values())

    def _start(self) -> Popen[bytes]:
        """A worker at the store that can be used, ready; if neither can, as soon as one can."""
        stage, gates = self._stage, self._gates
        self._wait(lambda: not gates.shut or gates.opened(), "neither store could be used")
        url = stage.url if gates.opened() else self._old.url
        file = stage.folder / f"ready-{len(stage.processes)}"
        options = (*SLOTS, "--lease", f"{self._size.lease:g}", "--ready-file", str(file))
        worker = stage.worker(*options, url=url, output=stage.folder / "workers.txt")
        self._wait(
            lambda: file.exists() or worker.poll() is not None or (url == self._old.url and gates.shut),
            "a worker was not ready",
            READY_WITHIN,
        )
        return worker

    def _load(self) -> threading.Thread:
        """Producers at the old store, which go on at the new one, in a thread that ends with them."""
        size, stage = self._size, self._stage
        options = ("--tasks", TASKS, "--milliseconds", size.milliseconds, "--rate", f"{size.rate:g}")
        moved = ("--then", stage.url, "--tries", "1000")
        until = ("--until", str(self._enough))
        producers = Producers(
            stage, stage.setting.random("producers"), ENDLESS, 3, *options, *moved, *until, url=self._old.url
        )

        def work() -> None:
            producers.work(size.producer_kills, kills=size.producers_killed)
            self._figures["producers killed"] = producers.kills

        thread = threading.Thread(target=work, name="producers")
        thread.start()
        return thread

    def _move(self) -> None:
        """Start the move, kill it at some moments, and start it again until it ends.

        Whoever kills it while what runs may end leaves nothing that runs for the commit that closes the store.
        """
        gates, wanted = self._gates, round(self._random.uniform(0.1, 0.9) * HISTORY * self._size.filled)
        moments: dict[str, tuple[Callable[[], bool], float]] = {
            "copying": (lambda: gates.has_copied(wanted), 0.0),
            "draining": (lambda: gates.kind == "draining", 5.0),
            "closed": (lambda: gates.kind == "closed", self._random.choice((0.0, 0.1))),
        }
        if self._random.random() < 0.5:
            del moments["draining"]
        killed: list[str] = []
        for name, (moment, wait) in moments.items():
            after = self._random.uniform(0.0, self._size.closed_for) if name == "closed" else 0.0
            killed += [name] if self._kill(self._begin(wait), moment, after) else []
            time.sleep(self._random.uniform(0.0, 0.5))
        self._figures["move killed while"] = dict(Counter(killed))
        if not killed:
            self._wrong.append("The move was never killed.")
        # Nobody kills it now, but it may have to wait for a transaction of somebody else, and give up.
        failed = 0
        while code := self._begin(self._random.choice((0.0, 0.2, 2.0))).wait(self._size.seconds):
            failed += 1
            if failed == AGAIN:
                said = (self._stage.folder / "move.txt").read_text()
                self._wrong.append(f"The move ended with exit code {code}: {said[-500:]}")
                break
        self._figures["moves that failed"] = failed

    def _begin(self, wait: float) -> Popen[bytes]:
        words = [sys.executable, "-m", "shigoto", "move", "--wait", f"{wait:g}", "--json"]
        stores = {"SHIGOTO_MOVE_FROM": self._old.url, "SHIGOTO_MOVE_TO": self._stage.database.owner_url}
        return self._stage.start(words, environment=stores, output=self._stage.folder / "move.txt")

    def _kill(self, process: Popen[bytes], moment: Callable[[], bool], after: float) -> bool:
        """Kill it so many seconds after that moment; False if it has ended before."""
        while process.poll() is None:
            if moment():
                time.sleep(after)
                process.kill()
                return process.wait() < 0
            time.sleep(0.001)
        return False

    def _look_at_arrivals(self) -> int:
        """The queue that was paused is so in the new store, and what waits there is the same; then let it go.

        Tells how many jobs were moved.
        """
        before, after = whole(self._app.engine), whole(self._stage.app.engine)
        self._figures["jobs moved"] = len(before)
        self._figures["of these"] = dict(Counter(str(job.state) for job in before))
        paused = [queue.name for queue in self._stage.app.queues() if queue.paused]
        if paused != [HELD]:
            self._wrong.append(f"After the move these queues were paused: {paused}.")
        there = {job.number: job for job in after if job.queue == HELD}
        differ = [job.id for job in before if job.queue == HELD and job != there.get(job.number)]
        if differ or not there:
            self._wrong.append(f"Of {len(there)} jobs in a paused queue {len(differ)} differ: {differ[:3]}.")
        self._stage.app.resume(HELD)
        return len(before)

    # What came of it.

    def _judged(self, deleted: set[str]) -> Outcome:
        records, offset, opened = read(self._stage.ledger), offset_of_clocks(), self._gates.opened()
        assert opened is not None
        old = side(self._old, self._app.engine)
        new = side(self._stage.database, self._stage.app.engine)
        moved = join(records, old, new, opened=opened, offset=offset)
        findings = check(replace(moved.evidence, pruned=frozenset(deleted)))
        outcome = findings.outcome(n=sum(record.what == "ok" for record in records))
        outcome.wrong += moved.wrong + self._miscounted(new)
        outcome.wrong += self._unmoved(records, findings, moved, opened[1] - offset)
        outcome.figures |= {"given back by the move": moved.given_back, "deleted": len(deleted)}
        return outcome

    def _miscounted(self, new: Side) -> list[str]:
        """Counters are made anew by a move: they count what is there."""
        counts = self._stage.app.stats().values()
        said = {
            state: sum(getattr(count, state) for count in counts)
            for state in ("completed", "failed", "cancelled")
        }
        there = Counter(new.states.values())
        return (
            []
            if said == {state: there[state] for state in said}
            else [f"{said} are counted of {dict(there)}."]
        )

    def _unmoved(self, records: list[Record], findings: Findings, moved: Moved, opened: float) -> list[str]:
        """What must have happened, or nothing was put at risk."""
        acknowledged = [record for record in records if record.what == "ok"]
        later = sum(record.at > opened for record in acknowledged)
        sent = sum(record.what == "err" and record.outcome == "StoreMoved" for record in records)
        self._figures |= {"acknowledged after the move": later, "enqueues that were sent away": sent}
        again = sum(bool(record.key) and record.at < opened for record in acknowledged)
        wrong = [] if again else ["No key was used again before the move."]
        wrong += [] if later else ["Nothing was enqueued after the move."]
        wrong += [] if sent else ["No producer was told where to go."]
        wrong += [] if findings.reruns.get("kill") or moved.given_back else ["Nothing was cut short."]
        return wrong

    def _of_workers(self, codes: list[int]) -> list[str]:
        """A worker whose store was moved says so, and ends with 1; no other ends by itself."""
        said = (self._stage.folder / "workers.txt").read_text()
        sent = said.count("Error [STORE.MOVED]") + said.count("Error [STORE.MOVING]")
        wrong = [f"A worker ended by itself, with exit code {code}." for code in codes if code != 1]
        wrong += [] if "Error [STORE.MOVED]" in said else ["No worker was told where to go."]
        if codes.count(1) > sent:
            wrong.append(f"{codes.count(1)} workers have ended, and {sent} were sent away: {said[-500:]}")
        return wrong


def side(store: Store, engine: Engine) -> Side:
    """All that is known of a store."""
    audit = store.audit
    return Side(
        changes=audit.changes(),
        jobs=whole(engine),
        states=audit.states(),
        workers=audit.workers(),
        effects=audit.effects(),
    )


def stored(app: Shigoto) -> int:
    """How many jobs the store has."""
    states = ("pending", "processing", "completed", "failed", "cancelled")
    return sum(getattr(count, state) for count in app.stats().values() for state in states)


def whole(engine: Engine) -> list[JobRecord]:
    """Every job, with everything that is known of it, as they are at one instant."""
    found: list[JobRecord] = []
    mover = mover_of(engine)
    mover.run(mover.export(lambda highest, queues: None, lambda schedules: None, found.extend))
    return found


EXPERIMENT = Experiment(
    id="MOVE", title="a store is moved to another one, under load", act=run, engines=("postgres",)
)
