"""The soak: half an hour of mixed jobs at 200 a second, with faults all the while, and an eye on what grows.

Two workers are disturbed: their runners are killed about once a minute, a whole worker about every five minutes, one is
stopped for five seconds about as often, and every ten minutes both are restarted in turn. Poison jobs kill runners too.
Once somebody holds a snapshot for two minutes. A third worker, the witness, takes its share of the jobs but the poison,
and nobody does anything to it: by it and the producers, which live through it all, we see whether memory, files and
threads grow. What is disturbed never lives for long enough to be judged, and is only told of.

While a snapshot is held, and until the log is cut afterwards, it may be as long as the work makes it (see E33). At
all other times it must stay within 64 MiB. The size of the file is no matter: the audit writes down every change.
"""

import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random

from msgspec import Struct

from faults.evidence.checker import check
from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage, children_of
from faults.tools.reader import Snapshot, damage
from faults.tools.vitals import MIB, Vitals, family, grown, told, trends
from shigoto import Job

LONGEST_LOG = 64 * MIB
RSS_IN_TEN_MINUTES = 1.0  # MB
AFTER_A_SNAPSHOT = 20.0  # seconds until the log was copied back and cut
DISTURBED = ("--processes", "2", "--concurrency", "40", "--threads", "8", "--children", "1")
WITNESS = (
    "--processes",
    "1",
    "--concurrency",
    "40",
    "--threads",
    "8",
    "--children",
    "1",
    "--queues",
    "default",
)

COMPLETED = "completed"
ENDS = {  # how jobs of some tasks may end; all others are completed
    "failing": (COMPLETED, "failed (error)"),
    "poison": ("failed (crash_loop)",),
    "cancelled": (COMPLETED, "cancelled"),
}

Process = subprocess.Popen[bytes]


class Plan(Struct, frozen=True, kw_only=True):
    """How long everything takes, in seconds; the faults come at about these distances."""

    seconds: float
    rate: int
    lease: int
    runner_kills: float
    worker_kills: float
    stops: float
    stopped_for: float
    restarts: float
    snapshot_at: float
    held_for: float
    look_every: float
    warm_up: float
    lived: float  # how long a process must live after its warm-up to be judged
    rest: float


FULL = Plan(
    seconds=1800,
    rate=200,
    lease=10,
    runner_kills=60,
    worker_kills=300,
    stops=300,
    stopped_for=5,
    restarts=600,
    # While the log cannot shrink every process tries to copy it back, and opens the connection that this takes; and the
    # index of a long log stays in memory. It belongs to the warm-up, or both would look like growth.
    snapshot_at=120,
    held_for=120,
    look_every=5,
    warm_up=300,
    lived=600,
    rest=300,
)
SHORT = Plan(
    seconds=8,
    rate=100,
    lease=3,
    runner_kills=2.5,
    worker_kills=4,
    stops=5,
    stopped_for=1,
    restarts=4.5,
    snapshot_at=1,
    held_for=2,
    look_every=0.5,
    warm_up=2,
    lived=4,
    rest=60,
)


def run(setting: Setting) -> Outcome:
    """Disturb for so long, let the rest run, and judge."""
    plan = setting.of(SHORT, FULL)
    with Stage(setting, "soak") as stage:
        troupe = Troupe(stage, plan)
        with Vitals(troupe.roles, stage.store, every=plan.look_every) as vitals:
            troupe.disturb(timetable(plan, setting.random("timetable")))
            codes = [producer.wait(plan.rest) for producer in troupe.producers]
        vitals.save(setting.folder / "vitals.csv")
        stage.rest(plan.rest)
        damaged = damage(stage.store)
        evidence = stage.evidence()
        strays = astray(stage.jobs())
        findings = check(evidence)
        outcome = findings.outcome(len(evidence.states))
    outcome.wrong += troupe.wrong + strays
    outcome.wrong += [f"damaged: {text}" for text in damaged[:3]]
    outcome.wrong += [f"a producer ended with {code}" for code in codes if code]
    judge(outcome, vitals, plan, held=troupe.held, strictly=setting.full)
    outcome.figures |= {
        "seconds": plan.seconds,
        "jobs_per_second": round(outcome.n / plan.seconds),
        "faults": dict(troupe.done),
        "states": dict(Counter(evidence.states.values())),
        "reruns": findings.reruns,
        "checker_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000),
    }
    return outcome


def astray(jobs: Iterable[Job]) -> list[str]:
    """Jobs that did not end as those of their task may (I13): only what fails, kills or is cancelled is excused."""
    found: Counter[str] = Counter()
    for job in jobs:
        kind = f" ({job.failure_kind})" if job.failure_kind else ""
        if (end := f"{job.state}{kind}") not in ENDS.get(job.task, (COMPLETED,)):
            found[f"{job.task} jobs are {end}"] += 1
    return [f"{count} {words}" for words, count in sorted(found.items())]


def judge(
    outcome: Outcome, vitals: Vitals, plan: Plan, *, held: Sequence[tuple[float, float]], strictly: bool
) -> None:
    """Add what grows, and what has grown although it must not; a short form cannot tell growth from chance."""
    known = trends(vitals.samples, warm_up=plan.warm_up, at_least=plan.lived / 3)
    lasting = [trend for trend in known if trend.seconds >= plan.lived]
    longest = vitals.longest_log(outside=held)
    if strictly:
        limit = RSS_IN_TEN_MINUTES
        outcome.wrong += [text for trend in lasting for text in grown(trend, rss_in_ten_minutes=limit)]
    if not {"witness supervisor", "witness runner", "producer"} <= {trend.role for trend in lasting}:
        outcome.wrong.append(f"only these lived long enough: {sorted({trend.role for trend in lasting})}")
    if longest > LONGEST_LOG:
        outcome.wrong.append(f"the log had {longest / MIB:.0f} MiB")
    outcome.figures |= {
        "longest_log_mib": round(longest / MIB, 1),
        "longest_log_under_a_snapshot_mib": round(vitals.longest_log() / MIB, 1),
        "judged": [told(trend) for trend in lasting],
        "too_short_to_be_judged": [told(trend) for trend in known if trend not in lasting],
        "looks": len(vitals.logs),
    }


def timetable(plan: Plan, random: Random) -> list[tuple[float, str]]:
    """When what is done. Nothing is done in the last seconds, so that the last fault is survived as well."""
    entries = [(plan.snapshot_at, "hold"), (plan.snapshot_at + plan.held_for, "let go")]
    for deed, distance in (
        ("kill a runner", plan.runner_kills),
        ("kill a worker", plan.worker_kills),
        ("stop", plan.stops),
    ):
        at = random.uniform(0.5, 1.0) * distance
        while at < plan.seconds - plan.stopped_for - 2:
            entries.append((at, deed))
            at += random.uniform(0.5, 1.5) * distance
    rounds = range(1, int(plan.seconds / plan.restarts) + 1)
    entries += [
        (each * plan.restarts, "restart") for each in rounds if each * plan.restarts < plan.seconds - 3
    ]
    return sorted(entries)


class Troupe:
    """Two workers that are disturbed, one that is not, and two producers."""

    def __init__(self, stage: Stage, plan: Plan) -> None:
        self.stage = stage
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.held: list[tuple[float, float]] = []  # when a snapshot was, on the clock of the vitals
        self._plan = plan
        self._random = stage.setting.random("victims")
        self._began = time.monotonic()
        self._lease = ("--lease", str(plan.lease))
        self._workers = [stage.worker(*DISTURBED, *self._lease) for _ in range(2)]
        self._witness = stage.worker(*WITNESS, *self._lease)
        self.producers = [self._producer(number) for number in range(2)]
        self._snapshot: Snapshot | None = None
        self._deeds: dict[str, Callable[[], bool]] = {
            "kill a runner": self._kill_a_runner,
            "kill a worker": self._kill_a_worker,
            "stop": self._stop,
            "restart": self._restart,
            "hold": self._hold,
            "let go": self._let_go,
        }

    def roles(self) -> dict[int, str]:
        """Who is to be looked at, and as what."""
        witness = {pid: f"witness {role}" for pid, role in family([self._witness.pid]).items()}
        producers = {each.pid: "producer" for each in self.producers if each.poll() is None}
        return family(worker.pid for worker in self._workers) | witness | producers

    def disturb(self, entries: list[tuple[float, str]]) -> None:
        """Do it all, each at its time or as soon after it as can be, and count what was really done."""
        for at, deed in entries:
            time.sleep(max(0.0, self._began + at - time.monotonic()))
            done = self._deeds[deed]()
            self.done[deed] += done
            self.stage.setting.say(
                f"{time.monotonic() - self._began:.0f} s: {deed}{'' if done else ', in vain'}"
            )
        never = sorted({deed for _, deed in entries if not self.done[deed]})
        self.wrong += [f"it never came to this: {', '.join(never)}"] if never else []

    def _producer(self, number: int) -> Process:
        words = [sys.executable, "-m", "faults.stream", self.stage.url, str(self._plan.seconds)]
        rate, seed = self._plan.rate / 2, f"{self.stage.setting.seed} stream {number}"
        return self.stage.start([*words, "--rate", str(rate), "--seed", seed])

    def _kill_a_runner(self) -> bool:
        """One that is there: a worker that has just been started has none yet."""
        found = sorted(pid for worker in self._workers for pid in children_of(worker.pid))
        return bool(found and self.stage.do("kill", self._random.choice(found), whole_tree=False))

    def _kill_a_worker(self) -> bool:
        place = self._random.randrange(2)
        done = self.stage.do("kill", self._workers[place])
        self._workers[place].wait()
        self._workers[place] = self.stage.worker(*DISTURBED, *self._lease)
        return bool(done)

    def _stop(self) -> bool:
        worker = self._random.choice(self._workers)
        done = self.stage.do("stop", worker)
        time.sleep(self._plan.stopped_for)
        self.stage.do("cont", worker)
        return len(done) > 1  # a worker without a runner does nothing that could be stopped

    def _restart(self) -> bool:
        for place, worker in enumerate(self._workers):
            had_runners = bool(children_of(worker.pid))
            self.stage.do("term", worker, whole_tree=False)
            code = worker.wait(60)
            if code and had_runners:  # before that, Python has not begun to listen to signals
                self.wrong.append(f"a worker that was told to stop ended with {code}")
            self._workers[place] = self.stage.worker(*DISTURBED, *self._lease)
        return True

    def _hold(self) -> bool:
        self._snapshot = Snapshot(self.stage.store).hold()
        self.held.append((time.monotonic() - self._began, float("inf")))
        return True

    def _let_go(self) -> bool:
        assert self._snapshot is not None
        self._snapshot.let_go()
        self.held[-1] = (self.held[-1][0] - 5, time.monotonic() - self._began + AFTER_A_SNAPSHOT)
        return True


EXPERIMENT = Experiment(id="SOAK", title="half an hour with faults", act=run, by_default=False)
