"""E18: the line between the workers and their server falls silent. Nobody is told: no reset, no end, just nothing.

    both ways    nothing arrives
    answers      what is asked is done, and nobody hears of it
    questions    what was asked arrives when the line speaks again, after everybody has given up waiting for it
    half open    connections are dead for ever, and new ones work, as if a firewall had forgotten them

Only a deadline of one's own can tell. Until then a worker runs on; then it says so, and claims no more. When the line
speaks again, work goes on, nobody was fenced meanwhile, and no task hangs in anything.

A statement that a handler sends in its transaction has the block's limit for a deadline. That the server did not answer
is no failure of its job, which is given back.
"""

import time
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from faults.apps.outages import DEADLINE
from faults.evidence.records import Record
from faults.experiment import Experiment, Outcome, Setting
from faults.experiments.e05_rolling_deploy import judge_exits, stop_idle
from faults.stage import Stage
from faults.tools.outages import PICKED_UP_WITHIN, TASKS, Load, all_go_on, goes_on
from faults.tools.proxy import HalfOpen, Mode, Pass, Proxy, Silent
from shigoto.engine.postgres.driver import DEADLINE as USUAL
from shigoto.worker.state import beat_deadline

TROUBLE = "cannot reach the store"
NOTICED_WITHIN = 5.0  # seconds after a deadline: a call that comes before the silence may have begun later
STOPPED_WITHIN = 5.0
CALM = 1.0  # seconds without a word of trouble


class Act(Struct, frozen=True, kw_only=True):
    """One silence: when it began, when somebody said so, since when all could be well, and when it was again."""

    name: str
    began: float
    noticed: float
    over: float
    ended: float


def run(setting: Setting) -> Outcome:
    """One silence after the other."""
    deadline, silence, rate, lease, count = setting.of((1.5, 2.5, 30, 10, 2), (USUAL, 40.0, 50, 30, 4))
    # What is half open last: the server keeps what orphaned transactions have locked for up to a minute.
    modes: list[tuple[str, Mode]] = [
        ("answers", Silent(("to_client",))),
        ("questions", Silent(("to_server",))),
        ("both ways", Silent()),
        ("half open", HalfOpen()),
    ]
    environment = {} if setting.full else {DEADLINE: f"{deadline:g}"}
    acts: list[Act] = []
    with Stage(setting, "outages") as stage:
        line = stage.between(Proxy(stage.server.port, seed=setting.seed))
        load = Load(
            stage,
            rate=rate,
            tasks=TASKS if setting.full else "plain,in_a_thread",
            options=("--lease", str(lease)),
            url=stage.database.url_at(line.port),
            environment=environment,
        )
        for name, mode in modes[-count:]:
            longer = setting.full and name == "both ways"
            acts.append(perform(stage, load, line, name, mode, deadline, 60.0 if longer else silence))
        load.end()
        stage.rest(setting.of(30, 120))
        outcome = load.judged(stage.evidence())
        exits = stop_idle(stage, load.workers)
        records = stage.evidence().records
    outcome.wrong += judge_exits(exits, STOPPED_WITHIN, "A worker")
    outcome.figures |= {
        "deadline": deadline,
        "noticed after": {act.name: round(act.noticed - act.began, 1) for act in acts},
        "exit, max": round(max(end.seconds for end in exits), 2),
    }
    judge(outcome, acts, records, min(deadline, beat_deadline(lease)))
    return outcome


def perform(
    stage: Stage, load: Load, line: Proxy, name: str, mode: Mode, deadline: float, silence: float
) -> Act:
    """Fall silent, wait until a worker says so, and speak again; a line that is half open speaks to newcomers."""
    stage.wait_until(
        lambda: time.time() - load.log.stat().st_mtime > CALM, seconds=30, what="there was trouble before"
    )
    all_go_on(stage)
    told, began = load.log.stat().st_size, time.monotonic()
    line.mode = mode
    stage.wait_until(
        lambda: TROUBLE in load.log.read_text(errors="replace")[told:],
        seconds=deadline + NOTICED_WITHIN,
        what=f"nobody noticed that the line was silent ({name})",
    )
    noticed = time.monotonic()
    if isinstance(mode, HalfOpen):
        over = began + deadline
    else:
        time.sleep(max(0.0, began + silence - noticed))
        over = time.monotonic()
    line.mode = Pass()
    time.sleep(max(0.0, over - time.monotonic()))
    goes_on(stage)
    return Act(name=name, began=began, noticed=noticed, over=over, ended=time.monotonic() + CALM)


def judge(outcome: Outcome, acts: Sequence[Act], records: Sequence[Record], shortest: float) -> None:
    """How long nothing began in each act; and whether work went on in time. `shortest` is the shortest deadline of all:
    whoever gives up first may take the others' dead connections with it."""
    starts = [record.at for record in records if record.what == "start"]
    for act in acts:
        moments = [act.began, *(at for at in starts if act.began <= at <= act.ended)]
        pauses = [(later - before, later) for before, later in pairwise([*moments, act.ended])]
        gap, after = max(pauses, key=lambda pause: pause[0])
        late = after - act.over
        outcome.recovery.append(after - act.began)
        outcome.figures.setdefault("longest pause", {})[act.name] = round(gap, 1)
        if late > PICKED_UP_WITHIN:
            outcome.wrong.append(f"Work went on {late:.1f} s after the silence was over ({act.name}).")
        if gap < 0.5 * shortest:
            outcome.wrong.append(
                f"The silence was not felt: nothing began for {gap:.1f} s only ({act.name})."
            )


EXPERIMENT = Experiment(id="E18", title="the line falls silent", act=run, engines=("postgres",))
