"""E17: an administrator ends the connections of workers and producers, one after the other, several in a second.

Whoever was idle opens another, and nobody hears of it; so does whoever had asked for something that was not done. What
callers are told all the same is counted, and must be that the store was not there, in words of ours.
"""

import time

from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage
from faults.tools.outages import Load

FATAL = "terminating connection due to administrator command"
MOST = 0.01  # errors that callers may see, for each job


def run(setting: Setting) -> Outcome:
    """End connections for so long, and let the rest of the work be done."""
    seconds, every, rate = setting.of((3.0, 0.1, 60), (300.0, 0.2, 100))
    random, kills = setting.random("backends"), {"worker": 0, "producer": 0}
    with Stage(setting, "outages") as stage:
        named = {who: f"{stage.url}?application_name={who}" for who in kills}
        load = Load(stage, rate=rate, url=named["worker"], from_url=named["producer"])
        began = time.monotonic()
        for number in range(round(seconds / every)):
            time.sleep(max(0.0, began + number * every - time.monotonic()))
            who = random.choice(list(kills))
            if backends := stage.server.backends(application=who):
                stage.server.terminate(random.choice(backends))
                kills[who] += 1
        load.end()
        stage.rest(setting.of(30, 120))
        evidence = stage.evidence()
        outcome = load.judged(evidence)
        told = (stage.server.folder / "log").read_text(errors="replace").count(FATAL)
    asked = sum(kills.values())
    surfaced = sum(outcome.figures["errors told to producers"].values())
    outcome.figures |= {
        "connections ended": told,
        "of whom": kills,
        "errors told for 10 000 jobs": round(10_000 * surfaced / max(outcome.n, 1), 2),
    }
    if told < asked / 2 or not all(kills.values()):
        outcome.wrong.append(f"Of {asked} connections only {told} were ended: {kills}.")
    if surfaced > max(3, MOST * outcome.n):
        outcome.wrong.append(f"Producers were told of {surfaced} errors for {outcome.n} jobs.")
    return outcome


EXPERIMENT = Experiment(
    id="E17", title="connections are ended by an administrator", act=run, engines=("postgres",)
)
