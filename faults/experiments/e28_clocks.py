"""E28: clocks are wrong, and step while jobs wait and run; nothing is lost, run twice or too early.

All processes of a file share one host, so one clock: what is promised on SQLite is promised for that. On PostgreSQL
each worker has another one, and none of them matters: only the server's does, which may step as well.

Schedules tick beside that, with every policy of catching up: no tick fires twice, however often the clock shows it,
none before it is shown, and all go on after a step.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, json
from msgspec.structs import replace

from faults.apps.catching_up import EVERY, POLICIES
from faults.evidence.checker import check
from faults.evidence.records import Record, read
from faults.evidence.ticks import ticks_of
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage, children_of
from faults.tools.clock import WrongClock
from shigoto import Job, TickRecord

HOUR, DAY = 3600.0, 86_400.0


class Plan(Struct, frozen=True):
    """By how much clocks are off from the start, and by how much they step, for a while; and so the server's."""

    offset: float
    step: float = 0.0
    server_step: float = 0.0


SHORT = (Plan(HOUR, -300.0), Plan(-HOUR, -30.0))
FULL = (
    *SHORT,
    Plan(HOUR, 600.0),
    Plan(-HOUR, -300.0),
    Plan(DAY, -300.0),
    Plan(-DAY, 600.0),
    Plan(0.0, -5.0),
    Plan(0.0, HOUR),
    Plan(0.0, -DAY),
)
SHORT_ON_A_SERVER = (Plan(HOUR, -300.0, 600.0),)
FULL_ON_A_SERVER = (
    *SHORT_ON_A_SERVER,
    Plan(HOUR, -300.0),
    Plan(DAY, -300.0),
    Plan(-DAY, 600.0),
    Plan(0.0, 0.0, 600.0),
    Plan(0.0, 0.0, -5.0),
    Plan(0.0, 0.0, -300.0),
    Plan(0.0, 0.0, HOUR),
    Plan(DAY, -DAY, -DAY),
)
ROUNDING = 0.002
LEASE = 3.0
PATIENCE = 60.0


def run(setting: Setting) -> Outcome:
    """One store after the other, each with clocks and steps of its own."""
    outcome = Outcome()
    steps = early = 0
    least = 0.0
    for number, plan in enumerate(plans(setting)):
        own = replace(setting, folder=setting.folder / str(number), seed=setting.seed + number)
        part, lates = _one(own, plan)
        early += sum(late < -ROUNDING for late in lates)
        least = min([least, *lates])
        steps += 2
        part.wrong = [f"{plan}: {word}" for word in part.wrong]
        outcome.add(part)
    ticks = 0
    for number, plan in enumerate(setting.of(plans(setting)[:1], plans(setting))):
        own = replace(setting, folder=setting.folder / f"ticks-{number}", seed=setting.seed + number)
        part = _ticking(own, plan)
        ticks += part.n
        outcome.wrong += [f"{plan}, ticks: {word}" for word in part.wrong]
    if early:
        outcome.wrong.append(f"{early} jobs began before they were due, by up to {-least:.3f} s")
    outcome.figures = {
        "steps": steps,
        "early starts": early,
        "earliest s": round(least, 3),
        "ticks that fired": ticks,
    }
    return outcome


def plans(setting: Setting) -> Sequence[Plan]:
    """What is tried."""
    chosen: Sequence[Plan] = (
        setting.of(SHORT, FULL)
        if setting.engine == "sqlite"
        else setting.of(SHORT_ON_A_SERVER, FULL_ON_A_SERVER)
    )
    return chosen


def _one(setting: Setting, plan: Plan) -> tuple[Outcome, list[float]]:
    setting.folder.mkdir()
    setting.folder.chmod(0o711)
    jobs = setting.of(60, 560)
    with Stage(setting, "clocks") as stage:
        wrong: list[str] = []
        clocks = Clocks(stage, plan)
        workers = [
            stage.worker("--lease", f"{LEASE:g}", environment=clock.environment()) for clock in clocks.own
        ]
        producer = stage.start(
            [sys.executable, "-m", "faults.apps.clocks", stage.url, str(jobs), "4", str(setting.seed)],
            environment=clocks.own[0].environment(),
        )
        if producer.wait(PATIENCE):
            wrong.append("the producer failed")
        # A long one is at work, so both waiting and running jobs meet the step.
        stage.wait_until(lambda: stage.app.find(state="processing"), seconds=PATIENCE, what="nothing ran")
        runners = [children_of(worker.pid) for worker in workers]
        for sign in (1, -1):
            for worker in workers:
                stage.pen.write("fault", deed="clock", pid=worker.pid, outcome=f"{sign * plan.step:+g}")
            clocks.step(sign)
            time.sleep(LEASE * 1.5)  # both looks of a sweep that takes leases for expired fall into this
        stage.rest(PATIENCE)
        if any(worker.poll() is not None for worker in workers) or runners != [
            children_of(worker.pid) for worker in workers
        ]:
            wrong.append("a runner process was replaced")
        found = list(stage.jobs())
        evidence = stage.evidence()
    lates = lateness(found, evidence.records, clocks.shown, ahead=clocks.ahead)
    wrong += unfinished(evidence.states.values())
    if len(lates) != jobs:
        wrong.append(f"{len(lates)} jobs have begun, and not {jobs}")
    findings = check(evidence)
    if findings.reruns:
        wrong.append(f"jobs were run again: {findings.reruns}")
    outcome = findings.outcome(jobs)
    outcome.wrong += wrong
    return outcome, lates


def _ticking(setting: Setting, plan: Plan) -> Outcome:
    """Schedules of each second, while the clocks step, forth and back or back and forth."""
    setting.folder.mkdir()
    setting.folder.chmod(0o711)
    with Stage(setting, "catching_up", audited=False) as stage:
        clocks = Clocks(stage, plan)
        workers = [
            stage.worker("--lease", f"{LEASE:g}", environment=clock.environment() | {EVERY: "1"})
            for clock in clocks.own
        ]
        _goes_on(stage, 0.0)
        for sign in (1, -1):
            time.sleep(LEASE)
            clocks.step(sign)
            _goes_on(stage, time.monotonic())
        time.sleep(LEASE)
        for worker in workers:
            stage.do("term", worker, whole_tree=False)
            worker.wait(PATIENCE)
        states = stage.audit.states()
        lines = {name: stage.app.schedules.history(name, limit=2_000) for name in POLICIES}
        records = read(stage.ledger)
    return judged_ticks(records, states, lines, clocks.shown.highest_until)


def _goes_on(stage: Stage, since: float) -> None:
    """Wait until each schedule has fired after this moment."""

    def fired() -> bool:
        return {record.key for record in read(stage.ledger) if record.at > since} >= POLICIES.keys()

    stage.wait_until(fired, seconds=PATIENCE, what="not every schedule went on")


def judged_ticks(
    records: Sequence[Record],
    states: Mapping[str, str],
    lines: Mapping[str, Sequence[TickRecord]],
    highest_until: Callable[[float], float],
) -> Outcome:
    """What handlers were told, held against the histories, and against what the store's clock had shown by then."""
    seen = ticks_of(records)
    starts = [(at, jobs) for ticks in seen.values() for at, jobs in ticks.items()]
    early = sum(highest_until(min(jobs.values())) < at / 1000 - ROUNDING for at, jobs in starts)
    doubled = sum(len(jobs) > 1 for _, jobs in starts)
    ran = {job for _, jobs in starts for job in jobs}
    told = {str(line.job) for own in lines.values() for line in own if line.job is not None}
    wrong = {
        "fired before they were due": early,
        "fired twice": doubled,
        "ran, and are not in the history": len(ran - told),
        "are in the history, and have no job": len(told - states.keys()),
        "have a job that ended without a run": len(
            {job for job in told - ran if states.get(job) == "completed"}
        ),
    }
    return Outcome(n=len(starts), wrong=[f"{count} {what}" for what, count in wrong.items() if count])


class Clock(Protocol):
    """A clock that can be wrong."""

    @property
    def offset(self) -> float: ...

    def step(self, seconds: float) -> None: ...


class Clocks:
    """Those of the workers, the first of which is also the producer's; and what the store's own has shown.

    `ahead` is by how much the producer's clock is ahead of the store's when it enqueues.
    """

    def __init__(self, stage: Stage, plan: Plan) -> None:
        self._plan = plan
        self._of_host = stage.setting.engine == "sqlite"
        offsets = (plan.offset,) if self._of_host else (plan.offset, -plan.offset)
        self.own = [
            WrongClock(stage.folder / f"clock-{number}", offset) for number, offset in enumerate(offsets)
        ]
        self.shown = Shown(self.own[0] if self._of_host else _of_server(stage))
        self.ahead = 0.0 if self._of_host else plan.offset

    def step(self, sign: int) -> None:
        """Let all of them jump, or jump back."""
        if self._of_host:
            self.shown.step(sign * self._plan.step)
            return
        for clock in self.own:
            clock.step(sign * self._plan.step)
        self.shown.step(sign * self._plan.server_step)


def _of_server(stage: Stage) -> Clock:
    from faults.tools.server_clock import ServerClock

    return ServerClock(stage.server.url_of(stage.database.name))


class Shown:
    """What a clock has shown, by the monotonic clock, which never steps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._host = time.time() - time.monotonic()
        self._offsets = [(0.0, clock.offset)]  # since when it is off by how much

    def step(self, by: float) -> None:
        """Let it jump, now. Somewhere between two moments it does: the one is taken in which it has shown more."""
        before = time.monotonic()
        self._clock.step(by)
        self._offsets.append((before if by > 0 else time.monotonic(), self._clock.offset))

    def highest_until(self, at: float) -> float:
        """The latest that it had shown by then: a store whose clock steps back keeps to what it was."""
        ends = [since for since, _ in self._offsets[1:]] + [float("inf")]
        return max(
            min(at, end) + self._host + offset
            for (since, offset), end in zip(self._offsets, ends, strict=True)
            if since <= at
        )


def lateness(
    jobs: Sequence[Job], records: Sequence[Record], shown: Shown, *, ahead: float = 0.0
) -> list[float]:
    """By how many seconds each job began after its due instant had been shown; by when its handler wrote that down.

    The instant is by the clock of the producer, which is `ahead` of the one that is shown.
    """
    dues: dict[str, float] = {str(job.id): json.decode(job.payload)["due"] - ahead for job in jobs}
    starts = {record.job: record.at for record in reversed(records) if record.what == "start"}
    return [shown.highest_until(at) - dues[job] for job, at in starts.items()]


EXPERIMENT = Experiment(id="E28", title="clocks", act=run, engines=("sqlite", "postgres"))
