"""E21: nobody hears the doorbell. Workers find new jobs by looking, and no job waits longer than that takes.

well      for comparison
killed    the connections that listen are ended again and again; each is opened again by itself
deaf      notifications are dropped on their way, and nobody is told
lost      the same for ever: the connection is half open, until its worker has asked whether anybody is there
healed    after that; in full alone, since it asks every fifteen seconds only
"""

import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

from msgspec import Struct

from faults.evidence.checker import check, quantiles
from faults.evidence.records import Record
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage
from faults.tools.outages import READY_WITHIN, WORKERS, ended, goes_on, tracebacks
from faults.tools.proxy import HalfOpen, Pass, Proxy, Silent
from shigoto.engine.postgres.doorbell import CHECK_EVERY, CHECK_WITHIN, CONNECT_WITHIN, LONGEST_PAUSE
from shigoto.model.worker import POLL

LISTENERS = "listeners"  # the application that their connections name
HEALED_WITHIN = 5.0
BACK_WITHIN = CONNECT_WITHIN + 2 * LONGEST_PAUSE
FOUND_OUT_WITHIN = CHECK_EVERY + CHECK_WITHIN + HEALED_WITHIN
SLACK = {False: 1.5, True: 0.5}  # seconds beyond the poll floor: to claim and to begin
FELT = 0.1  # seconds that half of the jobs wait at least when nobody hears: with a doorbell it is a few milliseconds
SLOTS = ("--concurrency", "8", "--threads", "2", "--children", "0", "--log-level", "error")


class Phase(Struct, frozen=True):
    """A stretch of time in which jobs were asked for."""

    name: str
    began: float
    until: float


def run(setting: Setting) -> Outcome:
    """One phase after the other, while jobs come in slowly."""
    each, rate = setting.of(1.6, 60.0), setting.of(20, 10)
    log, healed = setting.folder / "worker.log", list[float]()
    with Stage(setting, "outages") as stage:
        line = stage.between(Proxy(stage.server.port, seed=setting.seed))
        listen = f"{stage.database.url_at(line.port)}?application_name={LISTENERS}"
        url = f"{stage.url}?listen={quote(listen, safe='')}"
        workers = [stage.worker(*SLOTS, url=url, output=log) for _ in range(WORKERS)]
        heals(stage, [], READY_WITHIN)
        options = ("--rate", str(rate), "--seconds", f"{5 * each + 10:g}", "--milliseconds", "1,5")
        producer = stage.producer(10_000_000, "--tasks", "plain", *options)
        goes_on(stage)
        phases = [
            spent("well", each, lambda until: None),
            spent(
                "killed",
                each,
                lambda until: healed.extend(kill_listeners(stage, until, setting.of(0.7, 5.0))),
            ),
        ]
        listeners = listening(stage)
        line.mode = Silent(("to_client",))
        phases.append(spent("deaf", each, lambda until: None))
        line.mode = Pass()
        if setting.full:  # they have given up those connections
            heals(stage, listeners, BACK_WITHIN)
        listeners = listening(stage)
        line.mode = HalfOpen()
        phases.append(spent("lost", min(each, 0.8 * CHECK_WITHIN), lambda until: None))
        if setting.full:
            heals(stage, listeners, FOUND_OUT_WITHIN)
            phases.append(spent("healed", each, lambda until: None))
        line.mode = Pass()
        stage.do("kill", producer)
        producer.wait()
        stage.rest(30)
        evidence = stage.evidence()
        outcome = check(evidence).outcome(n=sum(record.what == "ok" for record in evidence.records))
        outcome.wrong += ended(workers)
    outcome.wrong += unfinished(evidence.states.values())
    outcome.wrong += [f"A worker said: {line}" for line in tracebacks(log)[:3]]
    outcome.figures["ears killed"] = len(healed)
    outcome.recovery = healed
    judge(outcome, phases, evidence.records, slack=SLACK[setting.full])
    return outcome


def spent(name: str, seconds: float, deed: Callable[[float], None]) -> Phase:
    """Do it, for so long."""
    began = time.monotonic()
    deed(began + seconds)
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    return Phase(name, began, time.monotonic())


def kill_listeners(stage: Stage, until: float, every: float) -> list[float]:
    """End all connections that listen, again and again, and tell how long it took until there were others."""
    took: list[float] = []
    while time.monotonic() < until:
        listeners = listening(stage)
        began = time.monotonic()
        for listener in listeners:
            stage.server.terminate(listener)
        heals(stage, listeners, HEALED_WITHIN)
        took.append(time.monotonic() - began)
        time.sleep(max(0.0, min(until, began + every) - time.monotonic()))
    return took


def listening(stage: Stage) -> list[int]:
    """The connections by which workers listen: those that have asked for it, or for a sign of life since."""
    return stage.server.backends(application=LISTENERS, query="_%")


def heals(stage: Stage, before: Sequence[int], within: float) -> None:
    """Wait until every worker listens, by another connection than before."""
    stage.wait_until(
        lambda: len(set(listening(stage)) - set(before)) >= WORKERS,
        seconds=within,
        what="the workers did not listen",
    )


def judge(outcome: Outcome, phases: Sequence[Phase], records: Sequence[Record], *, slack: float) -> None:
    """How long jobs waited in each phase. Where nobody hears, it must be felt, and bounded by the poll floor."""
    most = POLL / 1000 + slack
    for phase in phases:
        waits = waits_in(phase, records)
        if not waits:
            outcome.wrong.append(f"No job was asked for while {phase.name}.")
            continue
        found = quantiles(waits)
        outcome.figures[f"pick-up while {phase.name}"] = found
        if found["max"] > most:
            outcome.wrong.append(
                f"A job waited {found['max']:.1f} s while {phase.name}, and not {most:g} s at most."
            )
        if phase.name in ("deaf", "lost") and found["p50"] < FELT:
            outcome.wrong.append(f"Somebody heard the doorbell while {phase.name}.")
        if phase.name in ("well", "healed") and found["p50"] >= FELT:
            outcome.wrong.append(f"Nobody heard the doorbell while {phase.name}.")


def waits_in(phase: Phase, records: Sequence[Record]) -> list[float]:
    """From the acknowledgement to the first run, for jobs that were asked for then."""
    asked = {r.job: r.at for r in records if r.what == "ok" and phase.began <= r.at < phase.until}
    begun: dict[str, float] = {}
    for record in records:
        if record.what == "start" and record.job in asked:
            begun.setdefault(record.job, record.at)
    return [max(0.0, begun[job] - at) for job, at in asked.items() if job in begun]


EXPERIMENT = Experiment(id="E21", title="nobody hears the doorbell", act=run, engines=("postgres",))
