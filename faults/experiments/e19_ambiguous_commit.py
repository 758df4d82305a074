"""E19: what is asked of the server is done, and the line is cut before the answer comes. One time in five.

    enqueue    the producer asks again with the same id, until it is acknowledged
    claim      nobody knows who has the jobs, until a beat tells which of them nobody runs
    settle     the worker settles again, and the store recognises the settlement
    commit     a handler's transaction, a beat or a sweep: it may have happened, and must not happen twice

Each has a line of its own, one behind the other. Whatever is asked comes to an end that everybody agrees on. The short
form cuts no claims: it takes more than ten seconds until they are known.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from faults.evidence.audit import Change
from faults.evidence.checker import Evidence, check
from faults.evidence.moves import stories
from faults.evidence.records import Record
from faults.evidence.runs import runs
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage
from faults.tools.outages import READY_WITHIN, TASKS, WORKERS, ended, surfaced, tracebacks
from faults.tools.proxy import CutAfterMatch, Pass, Proxy

SHARE = 0.2
OPERATIONS = {
    "enqueue": b"shigoto.enqueue",
    "claim": b"shigoto.claim(",
    "settle": b"shigoto.complete(",
    "commit": b"COMMIT\0",
}
SLOTS = ("--concurrency", "6", "--threads", "2", "--children", "0", "--log-level", "error")


def run(setting: Setting) -> Outcome:
    """Enqueue and run while lines are cut; then let what is left come to its end."""
    jobs, operations, spared = setting.of((120, 300, ("claim",)), (8_000, 20_000, ()))
    log = setting.folder / "worker.log"
    with Stage(setting, "outages") as stage:
        lines = laid_lines(stage)
        inner = stage.database.url_at(lines["claim"].port)
        # The proxies know statements by their text, which goes over the line once only if it is prepared.
        url = f"{inner}?prepare=off&listen={quote(stage.url, safe='')}"
        workers = [stage.worker(*SLOTS, url=url, output=log) for _ in range(WORKERS)]
        stage.wait_until(
            lambda: len(stage.app.workers()) == WORKERS,
            seconds=READY_WITHIN,
            what="the workers were not ready",
        )
        # Not before: who cannot tell the store of itself does not begin.
        for name in set(lines) - set(spared):
            lines[name].mode = CutAfterMatch(OPERATIONS[name], SHARE)
        outer = f"{stage.database.url_at(lines['enqueue'].port)}?prepare=off"
        options = ("--tasks", TASKS, "--milliseconds", "2,20")
        producers = [stage.producer(jobs // 2, *options, url=outer) for _ in range(2)]
        codes = [producer.wait(setting.of(60, 400)) for producer in producers]
        stage.wait_until(
            lambda: is_enough(lines, operations, spared),
            seconds=setting.of(30, 120),
            what="too little was asked, or not everything was cut",
        )
        for line in lines.values():
            line.mode = Pass()
        stage.rest(setting.of(60, 180))
        evidence = stage.evidence()
        outcome = judged(evidence, jobs)
        outcome.wrong += ended(workers)
    if setting.full and not outcome.figures["claims that nobody heard of"]:
        outcome.wrong.append("No answer to a claim was lost.")
    outcome.wrong += [f"A worker said: {line}" for line in tracebacks(log)[:3]]
    outcome.wrong += [f"A producer ended with {code}." for code in codes if code]
    outcome.figures |= {
        "asked": {name: line.matches for name, line in lines.items()},
        "unknown": {name: line.doomed for name, line in lines.items()},
    }
    return outcome


def laid_lines(stage: Stage) -> Mapping[str, Proxy]:
    """One line for producers; for workers three, each of which leads to the next and the last to the server."""
    lines: dict[str, Proxy] = {}
    behind = stage.server.port
    for name in ("commit", "settle", "claim", "enqueue"):
        port = stage.server.port if name == "enqueue" else behind
        line = lines[name] = stage.between(Proxy(port, seed=f"{stage.setting.seed} {name}"))
        behind = line.port
    return lines


def is_enough(lines: Mapping[str, Proxy], operations: int, spared: Sequence[str]) -> bool:
    """Whether so much was asked, and each that is to be cut was cut."""
    asked = sum(line.matches for line in lines.values())
    return asked >= operations and all(line.doomed for name, line in lines.items() if name not in spared)


def judged(evidence: Evidence, jobs: int) -> Outcome:
    """What the evidence says: everything known in the end, and nothing done twice."""
    findings = check(evidence)
    outcome = findings.outcome(n=sum(record.what == "ok" for record in evidence.records))
    twice = duplicates(evidence)
    outcome.wrong += unfinished(evidence.states.values())
    outcome.wrong += [f"{count} jobs by {name} twice." for name, count in twice.items() if count]
    if outcome.n != jobs:
        outcome.wrong.append(f"{outcome.n} jobs were acknowledged, and not {jobs}.")
    if any(findings.ambiguous):
        outcome.wrong.append(f"{sum(findings.ambiguous)} enqueues stayed unknown.")
    if any(worker.fenced is not None for worker in evidence.workers.values()):
        outcome.wrong.append("A worker was fenced, and none was harmed.")
    outcome.figures |= surfaced(evidence)
    outcome.figures |= {"done twice": twice, "claims that nobody heard of": unheard(evidence)}
    return outcome


def duplicates(evidence: Evidence) -> dict[str, int]:
    """How many jobs were stored, given out or ended twice by one and the same deed."""
    return {
        "enqueue": twice({(c.job, c.number) for c in births(evidence.changes)}),
        "claim": sum(count > 1 for count in starts(evidence.records).values()),
        "settle": sum(count > 1 for count in completions(evidence.changes).values()),
    }


def births(changes: Sequence[Change]) -> Iterable[Change]:
    """Each row that came in to wait and was never claimed before."""
    return (c for c in changes if c.table in ("ready", "scheduled") and c.deed == "in" and not c.token)


def twice(stored: Iterable[tuple[str, int]]) -> int:
    """Ids with more than one number."""
    return sum(count > 1 for count in Counter(job for job, _ in stored).values())


def starts(records: Sequence[Record]) -> Counter[tuple[str, int]]:
    """How often each token of a job has begun to run."""
    return Counter((record.job, record.token) for record in records if record.what == "start")


def completions(changes: Sequence[Change]) -> Counter[str]:
    """How often each job was completed."""
    return Counter(c.job for c in changes if c.deed == "in" and c.state == "completed")


def unheard(evidence: Evidence) -> int:
    """Claims whose jobs never began, and were given back."""
    begun = {(run.job, run.token) for own in runs(evidence.records).values() for run in own}
    return sum(
        claim.end is not None and claim.end.how == "release" and (story.job, claim.token) not in begun
        for story in stories(evidence.changes).values()
        for claim in story.claims.values()
    )


EXPERIMENT = Experiment(
    id="E19", title="lines are cut between a commit and its answer", act=run, engines=("postgres",)
)
