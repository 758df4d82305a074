"""E41: five schedulers and twenty schedules of each second, while schedulers are killed and stopped and the store is
down now and then. Each tick has one job: none is missing, and none has two.

What is expected comes from a calendar of another make (`faults/tools/oracle.py`), and what has fired from handlers. At
first nobody is disturbed: that shows how late ticks are at rest, and, in the full form, that a schedule of every five
seconds fires 24 times in two minutes (R3).
"""

import os
import sqlite3
import time
from contextlib import closing
from random import Random

from faults.apps.ticking import EACH_SECOND, FIVE, SECONDS, ZONES
from faults.evidence.checker import quantiles
from faults.evidence.records import read
from faults.evidence.ticks import Instant, Judgement, Seen, judge, lateness, ticks_of
from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage
from faults.tools.monkey import Monkey
from faults.tools.oracle import Rule, Zone
from faults.tools.outages import restart

SCHEDULERS = 5
WORKER = ("--children", "1", "--threads", "1", "--concurrency", "8", "--lease", "3", "--log-level", "error")
DEEDS = {"kill": 4.0, "stop": 4.0, "cont": 1.0, "term": 1.0, "restart": 1.0}
READY_WITHIN = 60.0
CAUGHT_UP_WITHIN = 90.0
DAY = 86_400


def run(setting: Setting) -> Outcome:
    """Undisturbed first, then with everything that can go wrong."""
    calm, seconds, pause, apart = setting.of(
        (6.0, 15.0, (0.3, 1.0), (1.5, 3.0)), (125.0, 1_000.0, (0.5, 3.0), (10.0, 30.0))
    )
    with Stage(setting, "ticking", audited=False) as stage:
        log = stage.folder / "worker.log"
        workers = [stage.worker(*WORKER, output=log) for _ in range(SCHEDULERS)]
        stage.wait_until(
            lambda: len(stage.app.schedules.all()) > SECONDS and len(stage.app.workers()) >= SCHEDULERS,
            seconds=READY_WITHIN,
            what="the schedulers were not ready",
        )
        host = time.time() - time.monotonic()
        first = int(time.time()) + 1
        time.sleep(calm)
        disturbed = int(time.time())
        monkey = Monkey(
            stage,
            setting.random("monkey"),
            start=lambda: stage.worker(*WORKER, output=log),
            workers=workers,
            deeds=DEEDS,
            pause=pause,
            stopped_for=(0.5, 6.0),
        )
        with monkey:
            outages = disturb(stage, setting.random("outages"), seconds, apart)
        last = int(time.time())
        wanted = expected(first, last)
        found = caught_up(stage, wanted)
        counts = [each.counts for each in stage.app.schedules.all()]
        seen = ticks_of(read(stage.ledger))
    outcome = Outcome(
        n=found.expected,
        measured=("lost", "phantom"),
        lost=len(found.missing),
        phantom=len(found.doubled) + len(found.odd),
        wrong=found.wrong,
    )
    if passed := [count for count in counts if count.keys() - {"fired", "caught_up"}]:
        outcome.wrong.append(f"schedules say that ticks did not fire: {passed[:3]}")
    outcome.wrong += [f"no {what} was ever done" for what in ("kill", "stop") if not monkey.done[what]]
    rest, five = judge(seen, expected(first, disturbed)), calm_fives(seen, first, disturbed)
    outcome.wrong += (
        [] if five else ["a schedule of five seconds did not fire in time though nobody was disturbed"]
    )
    outcome.figures |= {
        "schedulers": SCHEDULERS,
        "ticks at rest": rest.expected,
        "late at rest": late(seen, first, disturbed, host),
        "late while disturbed": late(seen, disturbed, last, host),
        "deeds": dict(monkey.done),
        "outages": outages,
        "ended by themselves": len(monkey.ended),
        "caught up": sum(count.get("caught_up", 0) for count in counts),
        "every five seconds, at rest": five,
    }
    return outcome


def expected(first: int, last: int) -> dict[str, list[Instant]]:
    """By schedule: all its ticks between two seconds, both included. Each second one goes by a zone's clocks."""
    rule, begin = Rule("* * * * * *"), first - first % DAY
    zones = [Zone(name, begin, last - last % DAY + DAY) for name in ZONES]
    by_clocks = [[at * 1000 for at in zone.due_by_seconds(rule, first, last + 1)] for zone in zones]
    plain = [at * 1000 for at in range(first, last + 1)]
    ticks = {
        name: plain if number % 2 else by_clocks[number // 2 % len(zones)]
        for number, name in enumerate(EACH_SECOND)
    }
    return ticks | {FIVE: [at for at in plain if at % 5_000 == 0]}


def disturb(stage: Stage, random: Random, seconds: float, apart: tuple[float, float]) -> int:
    """Take the store away now and then, for so long; how often."""
    until, outages = time.monotonic() + seconds, 0
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, random.uniform(*apart)))
        if stage.setting.engine == "postgres":
            restart(
                stage, random.choice(("kill", "kill", "immediate", "fast")), down_for=random.uniform(0.0, 4.0)
            )
        else:
            hold(stage, random.uniform(0.5, 6.0))
        outages += 1
    return outages


def hold(stage: Stage, seconds: float) -> None:
    """Let nobody else write into the file for so long."""
    with closing(sqlite3.connect(stage.store, isolation_level=None, timeout=60.0)) as store:
        store.execute("BEGIN IMMEDIATE")
        stage.pen.write("fault", deed="lock", pid=os.getpid(), outcome=f"{seconds:.1f}")
        time.sleep(seconds)
        store.execute("ROLLBACK")


def caught_up(stage: Stage, wanted: dict[str, list[Instant]]) -> Judgement:
    """What is found once nothing is missing any more, or when it should have come long ago."""
    until = time.monotonic() + CAUGHT_UP_WITHIN
    while True:
        found = judge(ticks_of(read(stage.ledger)), wanted)
        if not found.missing or time.monotonic() > until:
            return found
        time.sleep(0.5)


def late(seen: Seen, first: int, last: int, host: float) -> dict[str, float]:
    """How late handlers began, in milliseconds."""
    return {
        name: round(seconds * 1000)
        for name, seconds in quantiles(lateness(seen, first * 1000, last * 1000, host)).items()
    }


def calm_fives(seen: Seen, first: int, last: int) -> str:
    """R3: how many ticks of every five seconds fired, of how many; nothing if one has not."""
    wanted = expected(first, last - 2)[FIVE]
    fired = [at for at in wanted if len(seen.get(FIVE, {}).get(at, ())) == 1]
    return f"{len(fired)} of {len(wanted)}" if fired == wanted else ""


EXPERIMENT = Experiment(
    id="E41", title="five schedulers, killed and stopped", act=run, engines=("sqlite", "postgres")
)
