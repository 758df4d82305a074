"""E01: whole workers are killed, supervisor and all, again and again; and so are producers.

Nobody tells the store that a worker is gone. Its lease ends, another one fences it after two looks, and what it held
runs again, alone. Each worker has eight slots: four for async jobs, three threads, one child process.
"""

import time
from collections.abc import Sequence
from random import Random
from subprocess import Popen

from faults.evidence.checker import Evidence, Findings, check
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage
from faults.tools.monkey import Monkey, Range

SLOTS = ("--concurrency", "4", "--threads", "3", "--children", "1")
# To be drawn from: half of the jobs are async, one in twenty has a process of its own.
TASKS = ",".join(["asynchronous"] * 10 + ["in_a_thread"] * 6 + ["transactional"] * 3 + ["in_a_process"])
# Seconds: two leases of the full form. Those of the short one are shorter, but it is not alone.
RECOVERED_WITHIN = 20.0
READY_WITHIN = 30.0
NEARLY_DONE = 200  # jobs left when the last kill may have been done


def run(setting: Setting) -> Outcome:
    """Enqueue and kill, then let the others end what is left."""
    with Stage(setting) as stage:
        jobs, kills = setting.of((360, 3), (50_000, 10))
        return disturb(stage, jobs=jobs, kills=kills, url=stage.url)


def disturb(
    stage: Stage,
    *,
    jobs: int,
    kills: int,
    url: str,
    tasks: str = TASKS,
    wrap: Sequence[str] = (),
    within: float = RECOVERED_WITHIN,
) -> Outcome:
    """Do it to whoever finds the store at this URL; `wrap` is a command to start workers with, and `within` so many
    seconds what was cut short must run again."""
    setting = stage.setting
    lease = setting.of(3.0, 10.0)
    options = (*SLOTS, "--lease", f"{lease:g}")
    workers = [stage.worker(*options, url=url, wrap=wrap) for _ in range(setting.of(3, 4))]
    stage.wait_until(
        lambda: len(stage.app.workers()) == len(workers),
        seconds=READY_WITHIN,
        what="the workers were not ready",
    )
    pace = setting.of(["--milliseconds", "50,400", "--rate", "50"], ["--milliseconds", "5,50"])
    producers = Producers(stage, setting.random("producers"), jobs, 3, "--tasks", tasks, *pace, url=url)
    monkey = Monkey(
        stage,
        setting.random("monkey"),
        start=lambda: start(stage, options, url, wrap),
        workers=workers,
        deeds={"kill": 1},
        pause=setting.of((0.8, 1.6), (1.0, 5.0)),
    )
    with monkey:
        producers.work(setting.of((1.0, 1.5), (5.0, 15.0)), kills=setting.of(2, 1_000))
        stage.wait_until(
            lambda: monkey.done["kill"] >= kills and waiting(stage) < NEARLY_DONE,
            seconds=setting.of(30, 900),
            what="the work was not nearly done",
        )
    stage.rest(setting.of(40, 120))
    outcome = judged(stage.evidence(), jobs, lease, within)
    outcome.figures |= {
        "workers killed": monkey.done["kill"],
        "producers killed": producers.kills,
        "lease": lease,
    }
    outcome.wrong += [f"A worker ended by itself, with exit code {code}." for code in monkey.ended]
    if not producers.kills:
        outcome.wrong.append("No producer was killed.")
    return outcome


def judged(evidence: Evidence, jobs: int, lease: float, within: float = RECOVERED_WITHIN) -> Outcome:
    """What the evidence says of so many jobs."""
    findings = check(evidence)
    outcome = findings.outcome(n=sum(record.what == "ok" for record in evidence.records))
    again = sum(findings.reruns.values())
    outcome.figures["reruns per 10 000"] = round(10_000 * again / max(outcome.n, 1), 1)
    outcome.wrong += unfinished(evidence.states.values()) + judge(findings, lease, within)
    if outcome.n != jobs:
        outcome.wrong.append(f"{outcome.n} jobs were acknowledged, and not {jobs}.")
    return outcome


def judge(findings: Findings, lease: float, within: float = RECOVERED_WITHIN) -> list[str]:
    """What the checker does not know: that kills cut something short, and that it went on in time."""
    if not findings.recovery:
        return ["No kill has cut anything short."]
    slowest = max(findings.recovery)
    if slowest <= within:
        return []
    return [f"What a kill cut short ran again after {slowest:.1f} s only, with a lease of {lease:g} s."]


def start(stage: Stage, options: Sequence[str], url: str, wrap: Sequence[str] = ()) -> Popen[bytes]:
    """One worker, which is ready: else a slow machine would do nothing but start workers that are killed. If there is
    no store when it looks for one it ends, and is started again, as whatever runs it would do."""
    file = stage.folder / f"ready-{len(stage.processes)}"
    words = (*options, "--ready-file", str(file))
    worker = stage.worker(*words, url=url, wrap=wrap)

    def is_ready() -> bool:
        nonlocal worker
        if worker.poll() is not None:
            worker = stage.worker(*words, url=url, wrap=wrap)
        return file.exists()

    stage.wait_until(is_ready, seconds=READY_WITHIN, what="a worker was not ready")
    return worker


def waiting(stage: Stage) -> int:
    """How many jobs have not ended."""
    return sum(count.pending + count.processing for count in stage.app.stats().values())


class Producers:
    """Processes that enqueue so many jobs together. One that was killed is followed by another, for what it left."""

    def __init__(self, stage: Stage, random: Random, jobs: int, count: int, *options: str, url: str) -> None:
        self._stage = stage
        self._url = url
        self._random = random
        self._options = options
        shares = [jobs // count + (number < jobs % count) for number in range(count)]
        self._left = {self._start(share): share for share in shares}
        self.kills = 0

    def work(self, pause: Range, *, kills: int) -> None:
        """Enqueue it all, with so many kills, one after each pause."""
        kill_at = time.monotonic() + self._random.uniform(*pause)
        while self._left:
            if time.monotonic() >= kill_at and self.kills < kills:
                self._kill(self._random.choice(list(self._left)))
                kill_at = time.monotonic() + self._random.uniform(*pause)
            time.sleep(0.02)
            for ended in [producer for producer in self._left if producer.poll() is not None]:
                del self._left[ended]

    def _start(self, jobs: int) -> Popen[bytes]:
        return self._stage.producer(jobs, *self._options, url=self._url)

    def _kill(self, producer: Popen[bytes]) -> None:
        self._stage.do("kill", producer)
        producer.wait()
        self.kills += 1
        files = self._stage.ledger.glob(f"{producer.pid}-*.jsonl")
        acknowledged = sum(path.read_text().count('"what":"ok"') for path in files)
        left = self._left.pop(producer) - acknowledged
        if left > 0:
            self._left[self._start(left)] = left


EXPERIMENT = Experiment(
    id="E01", title="whole workers are killed, and producers", act=run, engines=("sqlite", "postgres")
)
