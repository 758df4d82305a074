"""E43: every scheduler is gone for ten ticks, and then one comes back. Each policy gives exactly what it says.

Once by the second, as time goes; and once by two minutes, with a clock that is put forward while nobody is there: then
the newest tick is late, too, and the policies differ in that. What is expected is worked out here, from the words of
the documentation; what has fired is what handlers have written down, and the history must tell the same.
"""

import time
from collections.abc import Callable

from msgspec.structs import replace

from faults.apps.catching_up import EVERY, POLICIES
from faults.evidence.records import read
from faults.evidence.ticks import Instant, ticks_of
from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage
from faults.tools.clock import WrongClock
from shigoto import TickRecord

TICKS = 10
ON_TIME = 60_000  # milliseconds by which the newest tick may be late
SECOND, TWO_MINUTES = 1_000, 120_000
LATE = 75_000  # how late the newest of every two minutes is when somebody comes back
PATIENCE = 60.0
WORKER = ("--children", "1", "--threads", "1", "--concurrency", "8", "--lease", "3")
SCHEDULERS = 3

Line = tuple[str, Instant, Instant, int]  # what became of ticks from one to another, and how many they are


def run(setting: Setting) -> Outcome:
    """By the second, and by two minutes."""
    outcome = Outcome(measured=("lost", "phantom"))
    for name, part in (("seconds", by_the_second), ("minutes", by_minutes)):
        folder = setting.folder / name
        folder.mkdir()
        folder.chmod(0o711)
        found = part(replace(setting, folder=folder))
        found.wrong = [f"{name}: {text}" for text in found.wrong]
        outcome.add(found)
        outcome.figures |= {f"every {name}": found.figures}
    return outcome


def by_the_second(setting: Setting) -> Outcome:
    """Kill three, wait for ten ticks, and start one."""
    with Stage(setting, "catching_up", audited=False) as stage:
        workers = [stage.worker(*WORKER, environment={EVERY: "1"}) for _ in range(SCHEDULERS)]
        stage.wait_until(
            lambda: all(len(lines) >= 3 for lines in histories(stage).values()),
            seconds=PATIENCE,
            what="the schedules did not fire",
        )
        for worker in workers:
            stage.do("kill", worker)
            worker.wait()
        known = histories(stage)
        if not all(known.values()):
            return Outcome(n=1, wrong=[f"the history has nothing: {known}"])
        before = {name: to_millis(lines[-1]) for name, lines in known.items()}
        time.sleep(max(0.0, max(before.values()) / 1000 + TICKS + 0.2 - time.time()))
        return _returned(stage, before, SECOND, {EVERY: "1"})


def by_minutes(setting: Setting) -> Outcome:
    """Let one declare them, kill it, put the clock forward by ten ticks, and start another one."""
    with Stage(setting, "catching_up", audited=False) as stage:
        clock = WrongClock(stage.folder / "clock")
        every = {EVERY: str(TWO_MINUTES // 1000)}
        environment = every | (clock.environment() if setting.engine == "sqlite" else {})
        if (left := TWO_MINUTES / 1000 - time.time() % (TWO_MINUTES / 1000)) < PATIENCE / 3:
            time.sleep(left + 0.1)  # none of them is to be due before the worker is gone
        worker = stage.worker(*WORKER, environment=environment)
        stage.wait_until(
            lambda: len(stage.app.schedules.all()) == len(POLICIES),
            seconds=PATIENCE,
            what="nobody declared the schedules",
        )
        stage.do("kill", worker)
        worker.wait()
        last = int(time.time() * 1000) // TWO_MINUTES * TWO_MINUTES
        ahead = (last + TICKS * TWO_MINUTES + LATE) / 1000 - time.time()
        _stepping(stage, clock)(ahead)
        return _returned(stage, dict.fromkeys(POLICIES, last), TWO_MINUTES, environment)


def _stepping(stage: Stage, clock: WrongClock) -> Callable[[float], None]:
    """What puts the store's clock forward."""
    if stage.setting.engine == "sqlite":
        return clock.step
    from faults.tools.server_clock import ServerClock

    return ServerClock(stage.server.url_of(stage.database.name)).step


def _returned(
    stage: Stage, before: dict[str, Instant], interval: int, environment: dict[str, str]
) -> Outcome:
    """Start one scheduler, and see what it makes of all that was due since."""
    worker = stage.worker(*WORKER, environment=environment)

    def decided() -> bool:
        newest = {name: lines[-1:] for name, lines in histories(stage).items()}
        return all(lines and to_millis(lines[0]) > before[name] for name, lines in newest.items())

    def fired() -> dict[str, list[Instant]]:
        seen = ticks_of(read(stage.ledger))
        return {name: sorted(seen.get(name, {})) for name in POLICIES}

    stage.wait_until(decided, seconds=PATIENCE, what="nobody decided what was due")
    stage.do("kill", worker)  # so that nothing is decided any more
    worker.wait()
    found = histories(stage)
    jobs = {name: [to_millis(line) for line in lines if line.job] for name, lines in found.items()}
    worker = stage.worker(*WORKER, environment=environment | {EVERY: "86400"})  # only runs what is there
    stage.wait_until(
        lambda: all(set(jobs[name]) <= set(ticks) for name, ticks in fired().items()),
        seconds=PATIENCE,
        what="the jobs did not run",
    )
    return judged(before, found, ticks_of(read(stage.ledger)), interval)


def judged(
    before: dict[str, Instant],
    found: dict[str, list[TickRecord]],
    seen: dict[str, dict[Instant, dict[str, float]]],
    interval: int,
) -> Outcome:
    """What the history says and what has run, held against what each policy is said to give."""
    outcome = Outcome(measured=("lost", "phantom"))
    for name in POLICIES:
        after = [line for line in found[name] if to_millis(line) > before[name]]
        if not after:
            outcome.wrong.append(f"{name}: the history has nothing")
            continue
        now = round(after[0].decided_at.timestamp() * 1000)
        lines = [told(line) for line in after if line.decided_at == after[0].decided_at]
        wanted = expected(name, before[name], now, interval)
        due = (now - before[name]) // interval
        outcome.n += due
        if lines != wanted:
            outcome.wrong.append(f"{name}: the history has {lines} and not {wanted}")
        if due < TICKS:
            outcome.wrong.append(f"{name}: only {due} ticks were due")
        fires = {at for what, at, _, _ in wanted if what in ("fired", "caught_up")}
        ran = {at: jobs for at, jobs in seen.get(name, {}).items() if before[name] < at <= now}
        outcome.lost += len(fires - ran.keys())
        outcome.phantom += len(ran.keys() - fires) + sum(len(jobs) > 1 for jobs in ran.values())
        outcome.figures[name] = {"due": due, "ran": len(ran)}
    return outcome


def expected(name: str, after: Instant, now: Instant, interval: int) -> list[Line]:
    """The lines of the history that a policy gives for ticks after an instant until now, from what it is said to do."""
    due = list(range(after + interval, now + 1, interval))
    newest = due[-1]
    wanted = {
        "none": [],
        "latest": due[-1:],
        "all": due,
        "three": due[-3:],
        "young": [at for at in due if at >= now - interval * 2.6],
        "latest-young": [at for at in due[-1:] if at >= now - interval * 0.5],
    }[name]
    fires = {*wanted, *([newest] if newest >= now - ON_TIME else [])}
    passed = [at for at in due if at not in fires]
    lines: list[Line] = [("missed", passed[0], passed[-1], len(passed))] if passed else []
    for at in sorted(fires):
        on_time = at == newest and newest >= now - ON_TIME
        lines.append(("fired" if on_time else "caught_up", at, at, 1))
    return lines


def histories(stage: Stage) -> dict[str, list[TickRecord]]:
    """The history of each schedule, the oldest first."""
    known = {each.name for each in stage.app.schedules.all()}
    return {
        name: stage.app.schedules.history(name, limit=1_000)[::-1] if name in known else []
        for name in POLICIES
    }


def told(line: TickRecord) -> Line:
    """A line in short."""
    last = line.at if line.until is None else line.until
    return line.outcome.value, to_millis(line), round(last.timestamp() * 1000), line.count


def to_millis(line: TickRecord) -> Instant:
    """The instant of a line; of a stretch, its first."""
    return round(line.at.timestamp() * 1000)


EXPERIMENT = Experiment(
    id="E43", title="ten ticks without a scheduler", act=run, engines=("sqlite", "postgres")
)
