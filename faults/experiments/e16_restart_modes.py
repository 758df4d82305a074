"""E16: the server is restarted in each of PostgreSQL's ways; and another one is away for five minutes.

A smart stop lets clients go on that are connected, and takes no new ones; ours stay, so it is ended by force after a
while, as a service manager would. An outage that is longer than every lease costs no job a second run, however long
it lasts: what ran goes on, and what ended meanwhile is told afterwards.
"""

import time
from itertools import cycle, islice

from msgspec import structs

from faults.evidence.checker import check
from faults.evidence.runs import runs
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage
from faults.stores.host import How
from faults.tools.enqueueing import enqueue
from faults.tools.outages import (
    READY_WITHIN,
    WORKERS,
    Load,
    Outage,
    ended,
    goes_on,
    restart,
    resumption,
)

MODES: tuple[How, ...] = ("smart", "fast", "immediate")
CROWD = 40  # jobs of each kind in the long outage


def run(setting: Setting) -> Outcome:
    """The long outage is that of another server, so that both parts take no longer than one; a short one is short."""
    folder = setting.folder / "away"
    folder.mkdir(mode=0o711)
    with Stage(structs.replace(setting, folder=folder), "outages") as other:
        away = Away(other)
        part = None if setting.full else away.ended()
        outcome = restarts(setting)
        part = part or away.ended()
    outcome.add(part)
    outcome.figures |= part.figures
    return outcome


def restarts(setting: Setting) -> Outcome:
    """So many in each way, while jobs come in and run."""
    each, pause, down_for, smart_for = setting.of(
        (1, (0.3, 0.5), (0.0, 0.2), 0.5), (5, (2.0, 5.0), (0.0, 2.0), 3.0)
    )
    random, outages = setting.random("restarts"), list[Outage]()
    with Stage(setting, "outages") as stage:
        load = Load(stage, rate=setting.of(40, 100))
        for how in islice(cycle(MODES), each * len(MODES)):
            time.sleep(random.uniform(*pause))
            within = smart_for if how == "smart" else 60.0
            outages.append(restart(stage, how, down_for=random.uniform(*down_for), within=within))
            goes_on(stage, outages[-1].up)
        load.end()
        stage.rest(setting.of(30, 120))
        evidence = stage.evidence()
        outcome = load.judged(evidence)
    resumed = resumption(outages, evidence)
    outcome.wrong += resumed.wrong
    outcome.recovery = resumed.recovery
    picked_up = zip(outages, resumed.pick_up, strict=False)
    latest: dict[str, float] = {}
    for outage, seconds in picked_up:
        latest[outage.how] = max(round(seconds, 2), latest.get(outage.how, 0.0))
    outcome.figures |= {"restarts": len(outages), "pick-up after the return, max": latest}
    return outcome


class Away:
    """An outage that outlasts every lease: jobs run through it, end in it, and become due in it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lease, self._length = stage.setting.of((4.0, 4.5), (10.0, 300.0))
        self.log = stage.folder / "worker.log"
        options = ("--concurrency", "200", "--lease", f"{self._lease:g}", "--log-level", "warning")
        self._workers = [stage.worker(*options, output=self.log) for _ in range(WORKERS)]
        stage.wait_until(
            lambda: len(stage.app.workers()) == WORKERS,
            seconds=READY_WITHIN,
            what="the workers were not ready",
        )
        self._held = self._enqueue()
        stage.wait_until(
            lambda: stage.have_begun(self._held), seconds=READY_WITHIN, what="the jobs did not begin"
        )
        began = time.monotonic()
        stage.server.stop("fast")
        self._outage = Outage(how="away", began=began, down=time.monotonic(), up=0.0)

    def _enqueue(self) -> list[str]:
        """Those that run when it begins; half of them last longer than the outage. Others are due in its midst."""
        random, plain = self._stage.setting.random("away"), self._stage.app.tasks["plain"]
        longest = 1000 * self._length
        lasting = [(plain, {"milliseconds": round(longest) + 3000})] * CROWD
        ending = [(plain, {"milliseconds": random.randint(1000, round(longest))}) for _ in range(CROWD)]
        due = plain.using(delay=self._length / 2)
        enqueue(self._stage, [(due, {"milliseconds": 100})] * CROWD)
        return enqueue(self._stage, [*lasting, *ending])

    def ended(self) -> Outcome:
        """Start the server when it has been away for long enough, and judge."""
        stage = self._stage
        time.sleep(max(0.0, self._outage.down + self._length - time.monotonic()))
        stage.server.start()
        outage = structs.replace(self._outage, up=time.monotonic())
        stage.rest(60)
        evidence = stage.evidence()
        findings = check(evidence)
        outcome = findings.outcome(n=len(evidence.states))
        resumed = resumption([outage], evidence)
        outcome.recovery = []  # it says how long the outage was, and no more
        outcome.wrong += [*unfinished(evidence.states.values()), *resumed.wrong, *ended(self._workers)]
        again = sum(len(own) - 1 for own in runs(evidence.records).values())
        fenced = sum(worker.fenced is not None for worker in evidence.workers.values())
        if again or fenced:
            outcome.wrong.append(f"The long outage has cost {again} reruns, and {fenced} fences.")
        outcome.figures = {
            "seconds away": round(outage.up - outage.down),
            "lease": self._lease,
            "runs under way when it began": sum(resumed.in_flight),
            "reruns after it": again,
            "pick-up after it": round(max(resumed.pick_up, default=0.0), 2),
        }
        return outcome


EXPERIMENT = Experiment(
    id="E16",
    title="the server is restarted in every way, and is away for long",
    act=run,
    engines=("postgres",),
)
