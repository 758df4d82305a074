"""E23: everybody wants the same jobs at the same time, in every order. Nobody hears of it.

First each pair of operations as two sessions: one is held in the midst of its transaction, and goes on only when the
other really waits for it, or has ended without having to. Then a crowd that does everything to a hundred jobs at once.
Where two wait for each other in a circle, PostgreSQL ends one of the two transactions (40P01); such a one is begun
again by the driver, and no caller may ever be told.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from random import Random
from typing import Any

from msgspec import structs
from psycopg import Connection

from faults.evidence.moves import stories
from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage
from faults.tools.pairs import ACTS, Scene, announcement, ended, meet
from shigoto.engine.op import Op
from shigoto.engine.postgres import PostgresEngine
from shigoto.model.errors import JobError
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec, Lease, State
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.model.worker import Ending, SweepOrder, Want

# A circle is looked for after so long a wait: soon, since here is nothing but waiting.
SERVER = {"deadlock_timeout": "20ms"}
SECOND = "second"
WAITS = """
SELECT EXISTS (
  SELECT 1 FROM pg_stat_activity
  WHERE application_name = %s AND state = 'active' AND wait_event_type = 'Lock')
"""
STEPS = (1, 2, 3, 5, 8, 13)  # how many commands the first has done when the second begins
LEASES_OF_OLD = "UPDATE shigoto.running SET claimed_at = claimed_at - 60000 WHERE worker = %s"
EXPIRED = "UPDATE shigoto.worker SET lease_until = 0 WHERE id = %s"
JOBS, SESSIONS = 100, 8
TASK = "crowd"
LEASE = 2_000  # milliseconds, of a session in the crowd


def run(setting: Setting) -> Outcome:
    """The pairs, then the crowd."""
    with Stage(setting, server_settings=SERVER) as stage:
        pairs = Pairs(stage)
        pairs.run(wanted(setting), setting.of(30.0, 240.0))
        met = deadlocks(stage)
        crowd = Crowd(stage)
        crowd.run(setting.of(1.0, 120.0))
        log = stage.server.folder.joinpath("log").read_text(errors="replace")
        told = stories(stage.audit.changes())
        counted = miscounted(stage)
    bad = [f"{story.job}: {text}" for story in told.values() for text in story.bad]
    outcome = Outcome(n=pairs.cases + crowd.operations, measured=("bad_settles",), bad_settles=len(bad))
    outcome.wrong += pairs.wrong[:10] + crowd.wrong[:10] + counted
    if setting.full and len(pairs.met) < len(ACTS) ** 2:
        outcome.wrong.append(f"only {len(pairs.met)} of {len(ACTS) ** 2} pairs have met")
    if not pairs.waited:
        outcome.wrong.append("no second session ever had to wait")
    if crowd.operations < setting.of(20, 5_000):
        outcome.wrong.append(f"the crowd did {crowd.operations} operations only")
    outcome.figures |= {
        "pairs": len(pairs.met),
        "cases": pairs.cases,
        "of them waited": pairs.waited,
        "circles among pairs": met,
        "operations of the crowd": dict(crowd.done),
        "circles in the crowd": deadlocks_in(log) - met,
        "which pairs met in a circle": dict(+pairs.circles),
        "what the server said": dict(Counter(re.findall(r"ERROR:  ([^\d\n]{3,50})", log)).most_common(8)),
        **({"reasons": {"bad_settles": bad[:5]}} if bad else {}),
    }
    return outcome


def wanted(setting: Setting) -> list[tuple[str, str, int]]:
    """Each pair at each step, all pairs once before any of them twice; or some of them."""
    random = setting.random("pairs")
    pairs = [(first, second) for first in ACTS for second in ACTS]
    steps = {pair: random.sample(STEPS, len(STEPS)) for pair in pairs}
    every = [
        (*pair, steps[pair][turn]) for turn in range(len(STEPS)) for pair in random.sample(pairs, len(pairs))
    ]
    return every if setting.full else every[:24]


def beside(name: str) -> list[tuple[str, str, int]]:
    """One operation before and after each other one, and with itself, in the midst of the first."""
    pairs = [(name, other) for other in ACTS] + [(other, name) for other in ACTS if other != name]
    return [(*pair, 2) for pair in pairs]


def deadlocks(stage: Stage) -> int:
    """How many circles the server has found so far."""
    return deadlocks_in(stage.server.folder.joinpath("log").read_text(errors="replace"))


def deadlocks_in(log: str) -> int:
    """How many circles a log tells of."""
    return log.count("ERROR:  deadlock detected")


def miscounted(stage: Stage) -> list[str]:
    """What the counters say, and the tables do not."""
    counted: Counter[str] = Counter()
    for counts in stage.app.stats().values():
        for state in State:
            counted[state] += getattr(counts, state)
    there = Counter(stage.audit.states().values())
    return [] if +counted == +there else [f"counted {dict(+counted)}, and there are {dict(there)}"]


class Pairs:
    """Two sessions, case by case, each on jobs of its own."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._random = stage.setting.random("orders")
        self._scenes = 0
        self.cases = self.waited = 0
        self.met: set[tuple[str, str]] = set()
        self.circles: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self, cases: Sequence[tuple[str, str, int]], seconds: float) -> None:
        """One after the other, as many as there is time for."""
        url, until = self._stage.url, time.monotonic() + seconds
        most: dict[str, int] = {}  # commands of an operation, as far as is known
        with ExitStack() as open_now:
            scene, *both = [
                open_now.enter_context(closing(PostgresEngine(f"{url}?application_name={name}&listen=off")))
                for name in ("scene", "first", SECOND)
            ]
            ours = open_now.enter_context(self._stage.server.connect())
            for first, second, step in cases:
                if time.monotonic() > until:
                    break
                step = min(step, most.get(first, step))
                if not self._meet(scene, (both[0], both[1]), ours, first, second, step):
                    most[first] = max(1, step - 1)
                    self._meet(scene, (both[0], both[1]), ours, first, second, 1)

    def _meet(
        self,
        engine: PostgresEngine,
        both: tuple[PostgresEngine, PostgresEngine],
        ours: Connection[Any],
        first: str,
        second: str,
        step: int,
    ) -> bool:
        """One case; False if the first has not so many steps."""
        self._scenes += 1
        scene = Scene(engine, f"case{self._scenes}")
        ours.execute(LEASES_OF_OLD, (scene.worker,))
        if "sweep" in (first, second):
            ours.execute(EXPIRED, (scene.worker,))
        ops = ACTS[first](scene, both[0], self._shuffled), ACTS[second](scene, both[1], self._shuffled)
        before = deadlocks(self._stage)

        def waits() -> bool:
            row: Any = ours.execute(WAITS, (SECOND,)).fetchone()
            return bool(row[0])

        case = meet(both, ops, step, waits)
        what = f"{first} at {step}, {second}"
        self.circles[what] += deadlocks(self._stage) - before
        self.wrong += [f"{what}: {error}" for error in case.errors]
        if case.reached:
            self.cases += 1
            self.waited += case.waited
            self.met.add((first, second))
        return case.reached

    def _shuffled(self, these: list[Any]) -> list[Any]:
        return self._random.sample(these, len(these))


class Crowd:
    """Sessions that do whatever can be done to the same jobs, each in an order of its own."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.jobs: dict[int, Any] = {}  # the newest, by number; the ids of those that may be in the store
        self.schedules = [f"{TASK} {number}" for number in range(5)]
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def operations(self) -> int:
        """How many were done."""
        return self.done.total()

    def run(self, seconds: float) -> None:
        """Let them, for so long."""
        until = time.monotonic() + seconds
        with closing(PostgresEngine(self._stage.url)) as engine:
            news = [
                Schedule(id=uuid7(), name=name, definition="{}", decided_to=0, created_at=0)
                for name in self.schedules
            ]
            engine.run(engine.tick([Change(schedule=each, seen=0) for each in news]))
        members = [
            Member(self, self._stage.url, self._stage.setting.random(f"member {n}")) for n in range(SESSIONS)
        ]
        threads = [threading.Thread(target=member.work, args=(until,)) for member in members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + 60)
        if any(thread.is_alive() for thread in threads):
            self.wrong.append("somebody in the crowd does not come back")


class Member:
    """One session of the crowd: a worker, a client and an operator at once."""

    def __init__(self, crowd: Crowd, url: str, random: Random) -> None:
        self._crowd = crowd
        self._random = random
        self._url = f"{url}?listen=off&pool=1"
        self._engine = PostgresEngine(self._url)
        self._held: dict[int, Lease] = {}
        self._expired: tuple[Any, ...] = ()
        self._worker = uuid7()
        self._acts: dict[str, Callable[[], None]] = {
            "enqueue": self._enqueue,
            "claim": self._claim,
            "settle": self._settle,
            "beat": self._beat,
            "sweep": self._sweep,
            "promote": lambda: self._say(self._engine.promote(50)),
            "cancel": lambda: self._say(self._engine.cancel(self._some_ids(), force=self._chance(0.3))),
            "retry": self._retry,
            "delete": lambda: self._say(self._engine.delete(self._some(), [State.FAILED, State.CANCELLED])),
            "leave": self._leave,
            "tick": self._tick,
        }

    def work(self, until: float) -> None:
        """Whatever comes to mind."""
        names = list(self._acts)
        weights = [4, 6, 6, 3, 2, 2, 2, 3, 1, 0.2, 2]
        try:
            self._begin()
            while time.monotonic() < until:
                [name] = self._random.choices(names, weights)
                self._crowd.done[name] += 1
                self._try(name)
        finally:
            self._engine.close()

    def _try(self, name: str) -> None:
        try:
            self._acts[name]()
        except JobError:
            pass  # somebody was faster
        except Exception as error:
            self._crowd.wrong.append(f"{name}: {type(error).__name__}: {error}")

    def _say(self, op: Op[Any]) -> Any:
        return self._engine.run(op)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _some(self) -> list[int]:
        known = list(self._crowd.jobs)
        return self._random.sample(known, min(len(known), self._random.randint(1, 12)))

    def _some_ids(self) -> list[Any]:
        return [id for number in self._some() if (id := self._crowd.jobs.get(number)) is not None]

    def _begin(self) -> None:
        self._worker, self._held = uuid7(), {}
        self._say(self._engine.announce(announcement(self._worker, (TASK,), LEASE)))

    def _leave(self) -> None:
        self._say(self._engine.leave(self._worker))
        self._begin()

    def _enqueue(self) -> None:
        room = max(1, min(10, JOBS - len(self._crowd.jobs)))
        stored = self._say(self._engine.enqueue_many([self._spec() for _ in range(room)]))
        jobs = self._crowd.jobs
        jobs.update({each.number: each.id for each in stored})
        for number in sorted(jobs)[: len(jobs) - JOBS]:
            jobs.pop(number, None)

    def _spec(self) -> JobSpec:
        spec = JobSpec(id=uuid7(), task=TASK, queue="default", payload="{}", max_failures=3)
        if self._chance(0.5):
            mode = self._random.choice(["keep", "replace", "preserve_run_at"])
            spec = structs.replace(spec, key=f"key {self._random.randint(1, 20)}", key_mode=mode)
        if self._chance(0.3):
            spec = structs.replace(spec, delay=self._random.randint(1, 50), expires_in=200)
        return structs.replace(spec, priority=self._random.randint(-2, 2))

    def _claim(self) -> None:
        wants = [Want(tasks=(TASK,), queues=None, limit=self._random.randint(1, 15))]
        self._held |= {lease.number: lease for lease in self._say(self._engine.claim(self._worker, wants))}

    def _settle(self) -> None:
        numbers = self._random.sample(list(self._held), self._random.randint(0, len(self._held)))
        endings = [Ending.COMPLETED, Ending.FAILED, Ending.ERRORED, Ending.RELEASED, Ending.SNOOZED]
        ends = [ended(self._held.pop(number), self._random.choice(endings)) for number in numbers]
        self._say(self._engine.settle(self._worker, ends))

    def _beat(self) -> None:
        held = [(lease.number, lease.token) for lease in self._held.values()]
        orders = self._say(self._engine.beat(self._worker, held))
        if orders.fenced:
            self._begin()
        for number, _ in orders.lost:
            self._held.pop(number, None)

    def _sweep(self) -> None:
        kept = 1 if self._chance(0.5) else 60_000
        order = SweepOrder(
            fence=self._expired,
            keep_completed_for=kept,
            keep_failed_for=kept,
            keep_cancelled_for=kept,
            batch=50,
        )
        self._expired = self._say(self._engine.sweep(order)).expired_workers

    def _tick(self) -> None:
        names = self._random.sample(self._crowd.schedules, 3)
        known: list[Schedule] = self._say(self._engine.schedules(names))
        changes = [
            Change(
                schedule=each,
                seen=each.revision,
                firings=(self._firing(each),),
                cancel=tuple(self._some_ids()[:3]),
            )
            for each in self._random.sample(known, len(known))
        ]
        self._say(self._engine.tick(changes))

    def _firing(self, schedule: Schedule) -> Firing:
        at = schedule.revision
        spec = structs.replace(self._spec(), id=schedule.job_id(at))
        return Firing(
            entry=TickEntry(at=at, outcome=TickOutcome.FIRED, decided_at=at, job=spec.id), spec=spec
        )

    def _retry(self) -> None:
        for id in self._some_ids():
            try:
                self._say(self._engine.retry([id]))
            except JobError:
                continue


EXPERIMENT = Experiment(id="E23", title="everybody wants the same jobs", act=run, engines=("postgres",))
