"""E03: a worker is stopped in the middle of its jobs for longer than its lease, and comes back.

By then it is fenced, and others have its jobs. It must notice at its first beat: whatever it settles is refused, what
still runs is stopped, and its runner process ends. Most of its handlers end at the very moment it is continued,
because the time they wait for has passed, so that their settlements race with that beat.

If only a runner process is stopped, and not its supervisor, there is no zombie: the supervisor kills it before anybody
else may have its jobs. Each round stops a whole worker and the runner of another one.
"""

import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from random import Random
from subprocess import Popen
from typing import Any

from msgspec import Struct

from faults.evidence.checker import Evidence, check
from faults.evidence.moves import NEVER
from faults.evidence.records import read
from faults.evidence.runs import GONE
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage, children_of, descendants
from faults.tools.kinship import is_alive

NOTICE = 2.0  # seconds that a fenced runner has before its supervisor kills it
GRACE = 0.2  # seconds in which a handler that was about to begin when it was stopped may still do so
OPEN = "SELECT pid, xact_start FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
LOOK = 0.005
SLACK = 3.0  # seconds more, on a machine with two cores and dozens of processes


class Zombie(Struct, frozen=True):
    """A worker that was stopped as a whole, and came back; gone `after` so many seconds, None if never.

    Not all are fenced: one that is continued early enough works on. `pids` are those in which jobs ran.
    """

    stopped_at: float
    continued_at: float
    pids: frozenset[int]
    fenced: bool
    after: float | None = None


class Paused(Struct, frozen=True):
    """A runner that was stopped under its supervisor, and `after` how many seconds it was gone."""

    stopped_at: float
    pids: frozenset[int]
    lease: float
    after: float | None = None


def run(setting: Setting) -> Outcome:
    """Stop one after the other, while the rest goes on."""
    random, lease = setting.random("zombies"), setting.of(2.0, 6.0)
    jobs, rounds, busy_from = setting.of((10, 1, 2), (500, 9, 10))
    zombies: list[Zombie] = []
    paused: list[Paused] = []
    with Stage(setting) as stage:
        slots = setting.of((2, 1, 3), (12, 8, 8))
        workers = [start(stage, lease, slots) for _ in range(setting.of(3, 4))]
        lasting = round(1000 * lease * setting.of(1.5, 2.0))
        tasks = "asynchronous,asynchronous,in_a_thread,in_a_process"
        stage.producer(
            jobs, "--bulk", "10", "--milliseconds", f"{lasting},{lasting}", "--tasks", tasks
        ).wait()
        for _ in range(rounds):
            if not stage.wait_until(
                lambda: len(busy(stage, workers, busy_from)) >= 2, seconds=60, what="no two workers were busy"
            ):
                break
            first, second = random.sample(busy(stage, workers, busy_from), 2)
            surely = not setting.full or bool(len(zombies) % 3)
            zombie, runner = stop_both(stage, random, first, second, lease=lease, surely=surely)
            zombies.append(zombie)
            paused.append(runner)
            setting.say(f"round {len(zombies)}: {zombie.after} s, {runner.after} s")
        stage.rest(setting.of(60, 300))
        evidence = stage.evidence()
    evidence.grace = GRACE
    findings = check(evidence)
    outcome = findings.outcome(n=touched(zombies, paused, evidence))
    refused, stopped, accepted = fates(zombies, evidence)
    outcome.figures |= figures(zombies, paused) | {"jobs": jobs, "refused": refused, "stopped": stopped}
    outcome.wrong += judge(zombies, paused) + unfinished(evidence.states.values())
    outcome.wrong += kept_too_long(findings.freed, lease)
    if accepted:
        outcome.wrong.append(f"{accepted} settlements of fenced workers were accepted.")
    fenced = sum(zombie.fenced for zombie in zombies)
    if len(zombies) != rounds or not fenced:
        outcome.wrong.append(f"Of {rounds} workers {len(zombies)} were stopped, and {fenced} fenced.")
    if not refused + stopped:
        outcome.wrong.append("No fenced worker came back with a job in its hands.")
    return outcome


def start(stage: Stage, lease: float, slots: Sequence[int]) -> Popen[bytes]:
    """One worker, with so many strands, threads and child processes."""
    concurrency, threads, children = map(str, slots)
    sizes = ["--concurrency", concurrency, "--threads", threads, "--children", children]
    return stage.worker(*sizes, "--lease", f"{lease:g}")


def busy(stage: Stage, workers: Sequence[Popen[bytes]], jobs: int) -> list[Popen[bytes]]:
    """Those in whose processes at least so many handlers have begun and not ended."""
    records = read(stage.ledger)
    ended = {(record.job, record.token) for record in records if record.what == "end"}
    under_way = Counter(r.pid for r in records if r.what == "start" and (r.job, r.token) not in ended)
    return [worker for worker in workers if sum(under_way[pid] for pid in descendants(worker.pid)) >= jobs]


def stop_both(
    stage: Stage, random: Random, whole: Popen[bytes], other: Popen[bytes], *, lease: float, surely: bool
) -> tuple[Zombie, Paused]:
    """Stop one worker as a whole, and of the other the runner only; continue them after one and a half leases or more.

    By then somebody may be about to fence the worker. `surely` waits until that is done, and stops it in a moment in
    which it does not keep everybody else from the store.
    """
    runner, pids = children_of(other.pid)[0], frozenset(descendants(whole.pid))
    others = frozenset([runner, *descendants(runner)])
    stage.do("stop", whole)
    stage.do("stop", runner, whole_tree=False)
    while surely and is_locked(stage):
        stage.do("cont", whole)
        stage.do("cont", runner, whole_tree=False)
        time.sleep(random.uniform(0.0, 0.1))
        stage.do("stop", whole)
        stage.do("stop", runner, whole_tree=False)
    stopped_at = time.monotonic()
    until = stopped_at + lease * random.uniform(1.5, 2.0)
    paused = Paused(stopped_at, others, lease, after=watch(stage, runner, others, until, stopped_at))
    time.sleep(max(0.0, until - time.monotonic()))
    if paused.after is None:
        stage.do("cont", runner, whole_tree=False)
    if surely:
        stage.wait_until(lambda: is_fenced(stage, pids), seconds=60, what="nobody fenced it")
    fenced, continued_at = is_fenced(stage, pids), time.monotonic()
    stage.do("cont", whole)
    after = gone(pids, continued_at, continued_at + NOTICE + SLACK) if fenced else None
    return Zombie(stopped_at, continued_at, pids, fenced, after), paused


def is_locked(stage: Stage) -> bool:
    """Whether somebody holds the store's lock, or one of its locks, and does not let go."""
    if stage.setting.engine == "postgres":
        before = open_transactions(stage)
        time.sleep(0.2)
        return bool(before & open_transactions(stage))
    with closing(sqlite3.connect(stage.store, timeout=0.2, isolation_level=None)) as store:
        try:
            store.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        store.execute("ROLLBACK")
        return False


def open_transactions(stage: Stage) -> set[Any]:
    """Of the server's clients, those in the middle of a transaction, each with when it began."""
    with stage.server.connect() as connection:
        return set(connection.execute(OPEN))


def is_fenced(stage: Stage, pids: frozenset[int]) -> bool:
    """Whether none of these processes is a worker in good standing."""
    return not pids & {record.pid for record in stage.app.workers() if record.fenced_at is None}


def watch(stage: Stage, runner: int, pids: frozenset[int], until: float, since: float) -> float | None:
    """Write down when each of these was seen for the last time; after how many seconds the runner was gone, if it was.

    Child processes were not stopped, and nobody tells us when their runner's death has ended them.
    """
    seen = dict.fromkeys(pids, since)
    after: float | None = None
    while seen and time.monotonic() < until:
        for pid, at in list(seen.items()):
            now = time.monotonic()
            if is_alive(pid):
                seen[pid] = now
                continue
            stage.pen.write("fault", deed=GONE, pid=pid, parent=runner, at=at)
            del seen[pid]
            after = now - since if pid == runner else after
        time.sleep(LOOK)
    return after


def gone(pids: Sequence[int] | frozenset[int], since: float, until: float) -> float | None:
    """After how many seconds the last of these was gone; None if that was not before `until`."""
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > until:
            return None
        time.sleep(LOOK)
    return time.monotonic() - since


def touched(zombies: Sequence[Zombie], paused: Sequence[Paused], evidence: Evidence) -> int:
    """How many jobs were under way in a process when it was stopped."""
    stops = [(zombie.stopped_at, zombie.pids) for zombie in zombies]
    stops += [(each.stopped_at, each.pids) for each in paused]
    ends = {(r.job, r.token): r.at for r in evidence.records if r.what == "end"}
    return len(
        {
            r.job
            for r in evidence.records
            for stopped_at, pids in stops
            if r.what == "start" and r.pid in pids and r.at < stopped_at < ends.get((r.job, r.token), NEVER)
        }
    )


def fates(zombies: Sequence[Zombie], evidence: Evidence) -> tuple[int, int, int]:
    """Of the runs that were under way in fenced workers: how many ended in vain, were stopped, and were accepted."""
    accepted = {(change.job, change.token) for change in evidence.changes if change.state == "completed"}
    ends = {(record.job, record.token): record for record in evidence.records if record.what == "end"}
    counts = [0, 0, 0]
    for zombie in zombies:
        for record in evidence.records:
            if record.what != "start" or record.pid not in zombie.pids or record.at > zombie.continued_at:
                continue
            end = ends.get((record.job, record.token))
            if not zombie.fenced or (end is not None and end.at < zombie.continued_at):
                continue
            ran_on = end is not None and end.outcome == "done"
            counts[2 if (record.job, record.token) in accepted else 0 if ran_on else 1] += 1
    return counts[0], counts[1], counts[2]


def judge(zombies: Sequence[Zombie], paused: Sequence[Paused]) -> list[str]:
    """What the checker does not know: that zombies end, soon, and that supervisors leave none."""
    wrong: list[str] = []
    if any(zombie.fenced and zombie.after is None for zombie in zombies):
        wrong.append(f"A fenced runner was still there {NOTICE + SLACK:g} s after it was continued.")
    late = [each for each in paused if each.after is None or each.after > each.lease + SLACK]
    if late:
        wrong.append(
            f"{len(late)} runners that were stopped under their supervisors were not killed in time."
        )
    return wrong


def kept_too_long(freed: Sequence[float], lease: float) -> list[str]:
    """When the jobs of those who were stopped were free: after the lease, two looks a third of it apart, and a sweep.

    Who is stopped in the middle of a commit keeps everybody from the store until it is continued, after two leases at
    most; then nobody is fenced for another one. How long free jobs wait for a hand is another matter: there are more
    jobs than hands, and each takes two leases.
    """
    limit = 4 * lease
    late = [seconds for seconds in freed if seconds > limit]
    return (
        [f"{len(late)} jobs were free after {max(late):.1f} s, with a lease of {lease:g} s."] if late else []
    )


def figures(zombies: Sequence[Zombie], paused: Sequence[Paused]) -> dict[str, Any]:
    """For the reader; times are in seconds."""
    ended = sorted(zombie.after for zombie in zombies if zombie.after is not None)
    killed = sorted(each.after for each in paused if each.after is not None)
    return {
        "zombies": len(zombies),
        "fenced": sum(zombie.fenced for zombie in zombies),
        "from continuation to end, max": round(ended[-1], 3) if ended else None,
        "stopped runners": len(paused),
        "from stop to kill, max": round(killed[-1], 3) if killed else None,
    }


EXPERIMENT = Experiment(
    id="E03",
    title="a worker is stopped for longer than its lease, and returns",
    act=run,
    engines=("sqlite", "postgres"),
)
