"""E13: a web server connects, then forks its children, and all of them enqueue, again and again.

A child that spoke on its parent's connection would mix up what both are told, or end it with a goodbye. Each has to
connect by itself, leave the connections alone that it has inherited, and end without a word to their server.
"""

import re
import sys
from pathlib import Path

from faults.evidence.checker import check
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage
from faults.tools.outages import ended

CONNECTED_WITHIN = 30.0
# Whatever the server complains of: a message that it cannot read, or one that comes at the wrong time. The first job of
# a task is told that there is no lane for it, and goes in by another way.
COMPLAINT = re.compile(
    r"(?:ERROR|FATAL|PANIC):  (?!there is no lane).*|LOG:  (?:unexpected|invalid|incomplete) .*"
)
OPTIONS = ("--concurrency", "20", "--threads", "1", "--children", "1")


def run(setting: Setting) -> Outcome:
    """Let it serve, and see whether the parent's connections are still the same."""
    generations, children, requests = setting.of((3, 4, 10), (10, 8, 125))
    with Stage(setting) as stage:
        log = stage.folder / "web.log"
        worker = stage.worker(*OPTIONS, url=f"{stage.url}?application_name=worker")
        url = f"{stage.url}?application_name=web"
        words = [sys.executable, "-m", "faults.apps.prefork", url, str(stage.folder)]
        web = stage.start(
            [*words, str(generations), str(children), str(requests)],
            environment={
                "PYTHONWARNINGS": "ignore:This process"
            },  # that it forks with threads, which is the point
            output=log,
        )
        reached(stage, "connected", CONNECTED_WITHIN)
        before = stage.server.backends(application="web")
        (stage.folder / "fork").touch()
        reached(stage, "done", setting.of(60, 300))
        after = stage.server.backends(application="web")
        (stage.folder / "end").touch()
        failed = web.wait(30)
        stage.rest(setting.of(30, 120))
        evidence = stage.evidence()
        outcome = check(evidence).outcome(n=sum(record.what == "ok" for record in evidence.records))
        outcome.wrong += unfinished(evidence.states.values()) + ended([worker])
        complaints = COMPLAINT.findall((stage.server.folder / "log").read_text(errors="replace"))
    outcome.wrong += judge(before, after, failed, complaints, log.read_text(errors="replace"))
    asked = generations * children * requests
    if outcome.n < asked:
        outcome.wrong.append(f"{outcome.n} jobs were acknowledged, and not {asked}.")
    outcome.figures |= {
        "children": generations * children,
        "protocol errors": len(complaints),
        "connections of the parent": len(before),
        "of which are left": len({*before} & {*after}),
    }
    return outcome


def reached(stage: Stage, word: str, seconds: float) -> None:
    """Wait until the web server says this."""
    path: Path = stage.folder / word
    stage.wait_until(path.exists, seconds=seconds, what=f"the web server did not get as far as {word!r}")


def judge(before: list[int], after: list[int], failed: int, complaints: list[str], said: str) -> list[str]:
    """What is wrong with how it went."""
    wrong = [f"The server said: {text}" for text in complaints[:3]]
    if failed:
        wrong.append(f"{failed} children failed.")
    if said.strip():
        wrong.append(f"The web server said: {said.strip().splitlines()[-1]}")
    if len(before) < 2 or not {*before} <= {*after}:
        wrong.append(f"Of the parent's connections {before} there are left {sorted({*before} & {*after})}.")
    return wrong


EXPERIMENT = Experiment(
    id="E13", title="a web server forks after it has connected", act=run, engines=("postgres",)
)
