"""Faults that were found in another job system with ordinary settings, as tests that must pass here.

R3, R5 and R12 are about schedules, workflows and tenants. The rest is here or, where it takes a supervisor in a
certain moment, in tests/journeys (their names have the number, too).
"""

import time
from pathlib import Path

import pytest

from shigoto import FailureKind, State
from tests.faults.ledger import overlaps, read, runs
from tests.faults.stage import app_of, wait_until, working

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(120)]
QUIET = ("--log-level", "critical")


def test_r1_a_job_beyond_its_time_limit_is_ended_before_it_runs_again(tmp_path: Path) -> None:
    """R1: the run that is too late is killed, so no run overlaps another and no late success is stored."""
    app = app_of("rivals", tmp_path / "jobs.db")
    handle = app.tasks["outlives_its_limit"].using(retries=1).enqueue()

    with working("rivals", tmp_path / "jobs.db", tmp_path, *QUIET):
        wait_until(lambda: handle.status().terminal, seconds=60, what="it did not end")

    [story] = runs(read(tmp_path)).values()
    first, second = story
    assert handle.job().failure_kind is FailureKind.TIMEOUT
    assert handle.job().result is None
    assert [attempt.outcome for attempt in handle.attempts()] == ["errored", "failed"]
    assert first.pid != second.pid, "the first process is dead"
    assert second.began - first.began >= 0.5
    with pytest.raises(ProcessLookupError):
        _expect_dead(first.pid)
    app.close()


def test_r2_a_time_limit_counts_from_the_start_of_the_run_not_from_the_claim(tmp_path: Path) -> None:
    """R2: jobs that wait behind others for longer than their limit run once."""
    app = app_of("rivals", tmp_path / "jobs.db")
    handles = app.enqueue_many([app.tasks["waits_its_turn"].call()] * 8)

    with working("rivals", tmp_path / "jobs.db", tmp_path, "--children", "1", *QUIET):
        wait_until(
            lambda: all(handle.status().terminal for handle in handles), seconds=60, what="not all ended"
        )

    by_job = runs(read(tmp_path))
    assert {handle.status() for handle in handles} == {State.COMPLETED}
    assert [len(story) for story in by_job.values()] == [1] * 8
    assert overlaps(by_job, {}) == []
    app.close()


def test_r6_jobs_that_cannot_run_do_not_hold_up_one_that_can(tmp_path: Path) -> None:
    """R6: hundreds of blocked, paused, unknown and later jobs at the head of the line cost a ready job nothing."""
    app = app_of("rivals", tmp_path / "jobs.db")
    ordinary = app.tasks["ordinary"].using(priority=9)
    blocked = app.enqueue_many([ordinary.call()] * 110)
    with app.connect() as store:
        store.execute("INSERT INTO shigoto_blocked SELECT number, 1 FROM shigoto_ready")
        store.execute("DELETE FROM shigoto_ready")
    store.close()
    app.pause("paused")
    app.enqueue_many([ordinary.using(queue="paused").call()] * 110)
    app.enqueue_many([ordinary.using(delay=3_600).call()] * 110)
    for _ in range(110):
        app.enqueue_by_name("nobody_knows_this", {}, allow_unknown=True, priority=9)
    ready = app.tasks["ordinary"].enqueue()

    with working("rivals", tmp_path / "jobs.db", tmp_path, *QUIET):
        wait_until(lambda: ready.status() is State.COMPLETED, seconds=20, what="it was held up")

    assert len(read(tmp_path)) == 1
    assert blocked[0].status() is State.BLOCKED
    app.close()


def test_r7_a_job_of_a_task_that_no_worker_knows_waits_for_one_that_does(tmp_path: Path) -> None:
    """R7: it is not run, not failed and not counted against, however long a worker is there."""
    app = app_of("rivals", tmp_path / "jobs.db")
    unknown = app.enqueue_by_name("tomorrows_task", {"number": 1}, allow_unknown=True)
    known = app.tasks["ordinary"]

    with working("rivals", tmp_path / "jobs.db", tmp_path, "--poll", "0.05", *QUIET):
        wait_until(lambda: known.enqueue().result(20) is None, seconds=30, what="the worker does not work")
        until = time.monotonic() + 1.0
        wait_until(lambda: time.monotonic() > until, seconds=5, what="time stands still")

    job = unknown.job()
    assert (job.state, job.attempt, job.failures, job.releases) == (State.PENDING, 0, 0, 0)
    app.close()


def test_r11_a_worker_takes_every_queue_unless_told_otherwise(tmp_path: Path) -> None:
    """R11: a task on a queue of its own is run by a worker that was told nothing of queues."""
    app = app_of("rivals", tmp_path / "jobs.db")
    handle = app.tasks["on_another_queue"].enqueue()

    with working("rivals", tmp_path / "jobs.db", tmp_path, *QUIET):
        assert handle.result(30) == "sent"
    app.close()


def _expect_dead(pid: int) -> None:
    import os

    os.kill(pid, 0)
