"""E33: somebody reads for so long that the write-ahead log cannot start over. It grows, and shrinks again afterwards.

While a snapshot is held nothing written after it can be copied back, so the log grows as long as there is work; nothing
that we do can change that. Promised is: nothing is lost, `shigoto doctor` says so once the log has 64 MiB, and when the
reader has ended the log is copied back and cut to its limit by the commits that follow, without anybody being
restarted. The short form has no time for 64 MiB of jobs, and writes ballast into a table of its own.
"""

import json
import sys
import time
from contextlib import closing

from faults.evidence.checker import check
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.experiments.e29_contention import waits_of
from faults.stage import Stage
from faults.tools.reader import Snapshot, damage
from faults.tools.vitals import MIB, Vitals, size_of

RATE = 200
LIMIT = 8 * MIB  # of the log, when it starts over (see `Checkpointer`)
ALARM = 64 * MIB
SHRINKS_WITHIN = 15.0  # seconds of further work: one for the next try, the rest for a slow disk


def run(setting: Setting) -> Outcome:
    """Work before, under and after a held snapshot."""
    before, held, ballast = setting.of((0.5, 2.0, 72), (20.0, 300.0, 0))
    seconds, log = before + held + SHRINKS_WITHIN + 5, setting.folder / "worker.log"
    with Stage(setting) as stage, Vitals(dict, stage.store, every=0.1) as vitals:
        stage.worker("--processes", "2", "--log-level", "warning", output=log)
        producer = stage.producer(round(RATE * seconds), "--rate", str(RATE), "--milliseconds", "0,20")
        stage.wait_until(stage.app.stats, seconds=30, what="no job came")
        time.sleep(before)
        usual = vitals.longest_log()
        with Snapshot(stage.store) as snapshot:
            put_on(stage, ballast)
            time.sleep(held)
            peak = size_of(f"{stage.store}-wal")
            advice = doctor(stage)
            holds = snapshot.holds
        ended = time.monotonic()
        shrunk = stage.wait_until(
            lambda: size_of(f"{stage.store}-wal") <= LIMIT + MIB,
            seconds=SHRINKS_WITHIN,
            what="the log is long",
        )
        after, took = size_of(f"{stage.store}-wal"), time.monotonic() - ended
        stage.do("term", producer, whole_tree=False)
        producer.wait()
        stage.rest(120)
        damaged = damage(stage.store)
        evidence = stage.evidence()
        outcome = check(evidence).outcome(len(evidence.states))
    outcome.wrong += unfinished(evidence.states.values())
    outcome.wrong += [] if holds else ["the snapshot did not hold"]
    outcome.wrong += [f"damaged: {text}" for text in damaged[:3]]
    outcome.wrong += judged(usual, peak, after, shrunk=shrunk, advice=advice)
    outcome.figures |= {
        "held_seconds": held,
        "usual_mib": round(usual / MIB, 1),
        "peak_mib": round(peak / MIB, 1),
        "of_it_ballast_mib": ballast,
        "after_mib": round(after / MIB, 1),
        "shrunk_after_seconds": round(took, 2),
        "longest_enqueue_ms": round(1000 * max(waits_of(evidence.records))),
        "doctor": advice,
        "worker": (log.read_text() if log.exists() else "").splitlines()[:3] or "says nothing of it",
    }
    return outcome


def put_on(stage: Stage, mebibytes: int) -> None:
    """Write so much into the log, in small commits, through a connection as users get it."""
    with closing(stage.app.connect()) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS ballast (bytes BLOB)")
        for _ in range(mebibytes):
            with connection:
                connection.execute("INSERT INTO ballast VALUES (zeroblob(?))", (MIB,))


def doctor(stage: Stage) -> str:
    """What the doctor says of the log, and how serious it is."""
    words = [sys.executable, "-m", "shigoto", "doctor", str(stage.store), "--json"]
    output = stage.folder / "doctor.json"
    stage.start(words, output=output).wait(60)
    [finding] = [each for each in json.loads(output.read_text())["findings"] if each["check"] == "log"]
    return f"{finding['level']}: {finding['text']}"


def judged(usual: int, peak: int, after: int, *, shrunk: bool, advice: str) -> list[str]:
    """What must not be."""
    wrong: list[str] = []
    if usual > 2 * LIMIT:
        wrong.append(f"the log had {usual / MIB:.0f} MiB before anybody held it")
    if peak < ALARM:
        wrong.append(f"the log did not grow to {ALARM / MIB:.0f} MiB, but to {peak / MIB:.1f}")
    elif not advice.startswith("warning"):
        wrong.append(f"the doctor says of a log of {peak / MIB:.0f} MiB: {advice}")
    if not shrunk:
        wrong.append(
            f"the log still had {after / MIB:.0f} MiB {SHRINKS_WITHIN:g} s after the reader had ended"
        )
    return wrong


EXPERIMENT = Experiment(id="E33", title="a reader starves the checkpoint", act=run)
