"""Faults that were found in another job system with ordinary settings, as tests that must pass here.

R5 and R12 are about workflows and tenants. The rest is here or, where it takes a supervisor in a
certain moment, in tests/journeys (their names have the number, too).
"""

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from faults.evidence.checker import check
from faults.evidence.records import read
from faults.evidence.runs import runs
from faults.experiment import Setting
from faults.stage import Stage
from shigoto import FailureKind, State, TickOutcome, TickRecord

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(120)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(Setting(engine="sqlite", folder=tmp_path, seed=1, full=False), "rivals") as stage:
        yield stage


def test_r1_a_job_beyond_its_time_limit_is_ended_before_it_runs_again(stage: Stage) -> None:
    """R1: the run that is too late is killed, so no run overlaps another and no late success is stored."""
    app = stage.app
    handle = app.tasks["outlives_its_limit"].using(retries=1).enqueue()

    stage.worker()
    assert stage.wait_until(lambda: handle.status().terminal, seconds=60, what="it did not end")

    [story] = runs(read(stage.ledger)).values()
    first, second = story
    assert handle.job().failure_kind is FailureKind.TIMEOUT
    assert handle.job().result is None
    assert [attempt.outcome for attempt in handle.attempts()] == ["errored", "failed"]
    assert first.pid != second.pid, "the first process is dead"
    assert second.began - first.began >= 0.5
    with pytest.raises(ProcessLookupError):
        _expect_dead(first.pid)


def test_r2_a_time_limit_counts_from_the_start_of_the_run_not_from_the_claim(stage: Stage) -> None:
    """R2: jobs that wait behind others for longer than their limit run once."""
    app = stage.app
    handles = app.enqueue_many([app.tasks["waits_its_turn"].call()] * 8)

    stage.worker("--children", "1")
    assert stage.wait_until(
        lambda: all(handle.status().terminal for handle in handles), seconds=60, what="not all ended"
    )

    by_job = runs(read(stage.ledger))
    assert {handle.status() for handle in handles} == {State.COMPLETED}
    assert [len(story) for story in by_job.values()] == [1] * 8
    assert check(stage.evidence()).outcome(8).passed


def test_r3_a_schedule_by_the_second_fires_at_each_of_its_times_whichever_of_three_workers_is_there(
    stage: Stage,
) -> None:
    """R3, I8: 24 of 24 with real processes, so by the second.

    tests/fundamentals/test_every_tick.py has two minutes of every five seconds on virtual time, E41 in real time.
    """
    for _ in range(3):
        stage.worker()
    stage.wait_until(lambda: len(stage.app.workers()) == 3, seconds=60, what="not all were ready")
    stage.app.schedules.add("each", stage.app.tasks["ordinary"].call(), every="1s", catch_up="all")

    def fired() -> list[TickRecord]:
        return stage.app.schedules.history("each", limit=24)[::-1]

    assert stage.wait_until(lambda: len(fired()) == 24, seconds=60, what="it did not fire 24 times")

    first = fired()[0].at
    assert [line.at for line in fired()[:24]] == [first + timedelta(seconds=number) for number in range(24)]
    jobs = {str(line.job) for line in fired()}
    assert len(jobs) == 24
    assert stage.wait_until(lambda: stage.have_begun(jobs), seconds=20, what="not each had a run")
    assert {line.outcome for line in fired()} <= {TickOutcome.FIRED, TickOutcome.CAUGHT_UP}


def test_r6_jobs_that_cannot_run_do_not_hold_up_one_that_can(stage: Stage) -> None:
    """R6: hundreds of paused, unknown and later jobs at the head of the line cost a ready job nothing."""
    app = stage.app
    ordinary = app.tasks["ordinary"].using(priority=9)
    app.pause("paused")
    app.enqueue_many([ordinary.using(queue="paused").call()] * 110)
    app.enqueue_many([ordinary.using(delay=3_600).call()] * 110)
    for _ in range(110):
        app.enqueue_by_name("nobody_knows_this", {}, allow_unknown=True, priority=9)
    ready = app.tasks["ordinary"].enqueue()

    stage.worker()
    assert stage.wait_until(lambda: ready.status() is State.COMPLETED, seconds=20, what="it was held up")

    assert list(runs(read(stage.ledger))) == [str(ready.id)]


def test_r7_a_job_of_a_task_that_no_worker_knows_waits_for_one_that_does(stage: Stage) -> None:
    """R7: it is not run, not failed and not counted against, however long a worker is there."""
    app = stage.app
    unknown = app.enqueue_by_name("tomorrows_task", {"number": 1}, allow_unknown=True)
    known = app.tasks["ordinary"]

    stage.worker("--poll", "0.05")
    assert stage.wait_until(
        lambda: known.enqueue().result(20) is None, seconds=30, what="the worker does not work"
    )
    until = time.monotonic() + 1.0
    assert stage.wait_until(lambda: time.monotonic() > until, seconds=5, what="time stands still")

    job = unknown.job()
    assert (job.state, job.attempt, job.failures, job.releases) == (State.PENDING, 0, 0, 0)


def test_r11_a_worker_takes_every_queue_unless_told_otherwise(stage: Stage) -> None:
    """R11: a task on a queue of its own is run by a worker that was told nothing of queues."""
    app = stage.app
    handle = app.tasks["on_another_queue"].enqueue()

    stage.worker()
    assert handle.result(30) == "sent"


def _expect_dead(pid: int) -> None:
    os.kill(pid, 0)
