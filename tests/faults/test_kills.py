"""Processes are killed in the middle of their work, again and again.

The short forms run with every test run. The full ones are 20 000 jobs with 30 kills, and leases of the usual length:

    SHIGOTO_FAULTS=full python3 -m pytest tests/faults/test_kills.py -s
"""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from shigoto import Shigoto
from tests.faults.ledger import Reader, Record, overlaps, read, recoveries, runs, stale_fences, unlicensed
from tests.faults.stage import FULL, SEED, all_jobs, app_of, children_of, linux, wait_until, working

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(not linux, reason="finds the runner processes in /proc"),
]

JOBS, KILLS, LEASE = (20_000, 30, 30.0) if FULL else (2_500, 5, 3.0)
IN_FLIGHT = 10


def enqueue(app: Shigoto, count: int, random: Random) -> list[str]:
    tasks = [app.tasks["asynchronous"], app.tasks["in_a_thread"]]
    ids: list[str] = []
    for _ in range(0, count, 500):
        calls = [random.choice(tasks).call(milliseconds=random.randint(1, 50)) for _ in range(500)]
        ids += [str(handle.id) for handle in app.enqueue_many(calls)]
    return ids


def kill_some(worker: int, ledger: Path, random: Random, count: int) -> list[Record]:
    """Kill runner processes, each with enough in flight."""
    kills: list[Record] = []
    readers: dict[int, Reader] = {}
    deadline = time.monotonic() + 20 * count
    while len(kills) < count and time.monotonic() < deadline:
        runners = children_of(worker)
        busy = [pid for pid in runners if readers.setdefault(pid, Reader(ledger, pid)).look() >= IN_FLIGHT]
        if busy:
            pid = random.choice(busy)
            os.kill(pid, signal.SIGKILL)
            kills.append(Record(what="kill", pid=pid, at=time.monotonic()))
            time.sleep(random.uniform(0.05, 0.3))
        else:
            time.sleep(0.005)
    return kills


def free_after(app: Shigoto, kills: list[Record]) -> float:
    """The longest time from a kill to the moment when the store gave the killed runs up, in seconds."""
    wall = time.time() - time.monotonic()
    times = [kill.at + wall for kill in kills]
    crashes = [
        attempt.finished_at.timestamp()
        for job in all_jobs(app)
        if job.crashes
        for attempt in app.job(job.id).attempts()
        if attempt.outcome == "crashed"
    ]
    # The store counts in whole milliseconds, and rounds down.
    return max(min(at + 0.001 - kill for kill in times if kill <= at + 0.001) for at in crashes)


def test_killed_runners_cost_no_job_and_no_unlicensed_run(tmp_path: Path) -> None:
    """S1-5, S1-14: kill -9 of runner processes with at least ten jobs in flight: every job ends once, every further
    run of a job is licensed by the death of the process it ran in, no two runs of a job overlap, and what was cut
    short runs again soon."""
    random, store, ledger = Random(SEED), tmp_path / "jobs.db", tmp_path / "ledger"
    ledger.mkdir()
    app = app_of("jobs", store)
    print(f"\nseed {SEED}: {JOBS} jobs, {KILLS} kills")
    ids = enqueue(app, JOBS, random)

    options = ["--processes", "3", "--concurrency", "10", "--threads", "6", "--log-level", "error"]
    with working("jobs", store, ledger, *options) as worker:
        kills = kill_some(worker.pid, ledger, random, KILLS)
        wait_until(
            lambda: app.stats()["default"].completed == JOBS, seconds=300, what="not all jobs completed"
        )

    by_job, killed = runs(read(ledger)), {kill.pid: kill.at for kill in kills}
    waits, freed = recoveries(by_job, kills), free_after(app, kills)
    print(
        f"kills {len(kills)}, runs cut short {len(waits)}, further runs {sum(len(s) - 1 for s in by_job.values())},"
        f" free again after at most {freed:.3f} s, running again p50 {waits[len(waits) // 2]:.3f} s,"
        f" max {waits[-1]:.3f} s"
    )
    counts, jobs = app.stats()["default"], list(all_jobs(app))
    assert len(kills) == KILLS
    assert (counts.completed, counts.failed, counts.pending, counts.processing) == (JOBS, 0, 0, 0)
    assert Counter(ids) == Counter(str(job.id) for job in jobs)
    assert set(by_job) == set(ids), "every job ran, and nothing else did"
    assert unlicensed(by_job, killed) == []
    assert overlaps(by_job, killed) == []
    assert stale_fences(by_job) == []
    assert len(waits) >= KILLS * IN_FLIGHT // 2
    assert freed < 1.0, "the supervisor tells the store at once"
    assert all(job.failures == 0 for job in jobs), "a crash is no failure"
    assert sum(job.crashes for job in jobs) >= KILLS, "those that ran are remembered"
    app.close()


def test_a_killed_worker_is_replaced_by_another_within_one_and_a_half_leases(tmp_path: Path) -> None:
    """S1-13, S1-14: when a whole worker is gone, supervisor and all, nobody tells the store; the lease does."""
    store, ledger = tmp_path / "jobs.db", tmp_path / "ledger"
    ledger.mkdir()
    app = app_of("jobs", store)
    lease = ["--lease", str(LEASE), "--log-level", "error"]
    with working("jobs", store, ledger, *lease, "--concurrency", "12") as doomed:
        handles = app.enqueue_many([app.tasks["long_at_first"].call()] * 12)
        wait_until(lambda: len(read(ledger)) >= 12, seconds=30, what="the jobs did not start")
        with working("jobs", store, ledger, *lease) as other:
            wait_until(lambda: len(app.workers()) == 2, seconds=30, what="the second worker did not come")
            os.killpg(doomed.pid, signal.SIGKILL)
            kills = [Record(what="kill", pid=doomed.pid, at=time.monotonic())]
            doomed.wait()
            wait_until(
                lambda: all(handle.status().terminal for handle in handles),
                seconds=60 + LEASE,
                what="not completed",
            )
            assert other.poll() is None

    by_job = runs(read(ledger))
    waits = recoveries(by_job, kills)
    print(f"\nrecovery p50 {waits[len(waits) // 2]:.1f} s, max {waits[-1]:.1f} s with a lease of {LEASE:g} s")
    assert [handle.status() for handle in handles] == ["completed"] * 12
    assert [len(story) for story in by_job.values()] == [2] * 12, "each was cut short, and ran once more"
    assert len(waits) == 12
    assert waits[-1] < 1.5 * LEASE + 5, (
        "one and a half leases, and a while to start processes on a busy machine"
    )
    assert overlaps(by_job, {doomed.pid: kills[0].at}) == []
    app.close()
