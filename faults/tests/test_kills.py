"""Processes are killed in the middle of their work, again and again: runner processes, and a worker with all of them.

The experiments E01 and E30 do the same for longer, with whole workers (`python3 dev.py faults --experiment E01,E30`).
"""

import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from faults.evidence.checker import Evidence, check, offset_of_clocks
from faults.evidence.follow import Follower
from faults.evidence.moves import stories
from faults.evidence.runs import runs
from faults.experiment import Setting
from faults.stage import Stage, children_of

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the runner processes in /proc"),
]

JOBS, KILLS, LEASE = 2_500, 5, 3.0
IN_FLIGHT = 10


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    seed = int(time.time())
    print(f"\nseed {seed}")
    return Setting(engine="sqlite", folder=tmp_path, seed=seed, full=False)


def kill_some(stage: Stage, worker: int, random: Random, count: int) -> list[float]:
    """Kill runner processes, each with enough in flight, and tell when."""
    kills: list[float] = []
    followers: dict[int, Follower] = {}
    deadline = time.monotonic() + 20 * count
    while len(kills) < count and time.monotonic() < deadline:
        busy = [
            pid
            for pid in children_of(worker)
            if followers.setdefault(pid, Follower(stage.ledger, pid)).look() >= IN_FLIGHT
        ]
        if busy:
            stage.do("kill", random.choice(busy))
            kills.append(time.monotonic())
            time.sleep(random.uniform(0.05, 0.3))
        else:
            time.sleep(0.005)
    return kills


def free_after(evidence: Evidence, kills: list[float]) -> float:
    """The longest time from a kill to the moment when the store gave the killed runs up, in seconds."""
    ends = [claim.end for story in stories(evidence.changes).values() for claim in story.claims.values()]
    crashes = [end.at - offset_of_clocks() for end in ends if end is not None and end.how == "crash"]
    # The store counts in whole milliseconds, and rounds down.
    return max(min(at + 0.001 - kill for kill in kills if kill <= at + 0.001) for at in crashes)


def test_killed_runners_cost_no_job_and_no_unlicensed_run(setting: Setting) -> None:
    """S1-5, S1-14, I1-I6: kill -9 of runner processes with at least ten jobs in flight: every job ends once, every
    further run of a job is licensed by the death of the process it ran in, no two runs of a job overlap, and what was
    cut short runs again soon."""
    random = setting.random("kills")
    with Stage(setting) as stage:
        producer = stage.producer(JOBS, "--bulk", "500", "--milliseconds", "1,50")
        assert producer.wait(60) == 0
        worker = stage.worker("--processes", "3", "--concurrency", "10", "--threads", "6")
        kills = kill_some(stage, worker.pid, random, KILLS)
        assert stage.wait_until(
            lambda: stage.app.stats()["default"].completed == JOBS, seconds=200, what="not all jobs completed"
        )
        evidence, counts, jobs = stage.evidence(), stage.app.stats()["default"], list(stage.jobs())

    findings, by_job = check(evidence), runs(evidence.records)
    freed, waits = free_after(evidence, kills), findings.recovery
    print(
        f"kills {len(kills)}, runs cut short {len(waits)}, further runs {findings.reruns},"
        f" free again after at most {freed:.3f} s, running again p50 {waits[len(waits) // 2]:.3f} s,"
        f" max {waits[-1]:.3f} s"
    )
    asked = [record.job for record in evidence.records if record.what == "ok"]
    assert len(kills) == KILLS
    assert (counts.completed, counts.failed, counts.pending, counts.processing) == (JOBS, 0, 0, 0)
    assert Counter(asked) == Counter(str(job.id) for job in jobs)
    assert set(by_job) == set(asked), "every job ran, and nothing else did"
    assert findings.outcome(JOBS).passed, findings
    assert set(findings.reruns) <= {"kill", "release"}
    assert len(waits) >= KILLS * IN_FLIGHT // 2
    assert freed < 1.0, "the supervisor tells the store at once"
    assert all(job.failures == 0 for job in jobs), "a crash is no failure"
    assert sum(job.crashes for job in jobs) >= KILLS, "those that ran are remembered"


def test_a_killed_worker_is_replaced_by_another_within_one_and_a_half_leases(setting: Setting) -> None:
    """S1-13, S1-14: when a whole worker is gone, supervisor and all, nobody tells the store; the lease does."""
    lease = ("--lease", str(LEASE))
    with Stage(setting) as stage:
        doomed = stage.worker(*lease, "--concurrency", "12")
        handles = stage.app.enqueue_many([stage.app.tasks["long_at_first"].call()] * 12)
        assert stage.wait_until(
            lambda: len(runs(stage.evidence().records)) == 12, seconds=30, what="the jobs did not start"
        )
        other = stage.worker(*lease)
        assert stage.wait_until(
            lambda: len(stage.app.workers()) == 2, seconds=30, what="the second worker did not come"
        )
        stage.do("kill", doomed)
        doomed.wait()
        assert stage.wait_until(
            lambda: all(handle.status().terminal for handle in handles),
            seconds=60 + LEASE,
            what="not completed",
        )
        assert other.poll() is None
        evidence = stage.evidence()
        assert [handle.status() for handle in handles] == ["completed"] * 12

    findings, by_job = check(evidence), runs(evidence.records)
    waits = findings.recovery
    print(f"recovery p50 {waits[len(waits) // 2]:.1f} s, max {waits[-1]:.1f} s with a lease of {LEASE:g} s")
    assert findings.outcome(12).passed, findings
    assert findings.reruns == {"kill": 12}
    assert [len(story) for story in by_job.values()] == [2] * 12, "each was cut short, and ran once more"
    assert len(waits) == 12
    assert waits[-1] < 1.5 * LEASE + 5, (
        "one and a half leases, and a while to start processes on a busy machine"
    )
