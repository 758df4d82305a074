"""E15: the server's postmaster is killed by SIGKILL, again and again, while jobs come in and run.

Half of the jobs are transactional, and stay in their transactions for a while. The server replays its log when it is
back; workers and producers come back by themselves.
"""

import time

from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage
from faults.tools.outages import Load, Outage, goes_on, restart, resumption


def run(setting: Setting) -> Outcome:
    """Kill, let it be down for a while, start it, and let the work go on before the next kill."""
    kills, pause, down_for, rate = setting.of(
        (2, (0.3, 0.6), (0.0, 0.3), 60), (20, (6.0, 14.0), (0.0, 2.0), 200)
    )
    random, outages = setting.random("kills"), list[Outage]()
    with Stage(setting, "outages") as stage:
        load = Load(stage, rate=rate)
        for _ in range(kills):
            time.sleep(random.uniform(*pause))
            outages.append(restart(stage, "kill", down_for=random.uniform(*down_for)))
            goes_on(stage, outages[-1].up)
        load.end()
        stage.rest(setting.of(30, 120))
        evidence = stage.evidence()
        outcome = load.judged(evidence)
    resumed = resumption(outages, evidence)
    outcome.wrong += resumed.wrong
    outcome.recovery = resumed.recovery
    outcome.figures |= {
        "crashes": len(outages),
        "runs in flight at a crash": sum(resumed.in_flight),
        "pick-up after the return, max": round(max(resumed.pick_up, default=0.0), 2),
    }
    return outcome


EXPERIMENT = Experiment(id="E15", title="the server crashes", act=run, engines=("postgres",))
