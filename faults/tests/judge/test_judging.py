"""What experiments judge by themselves, beyond the checker: each of it is found when it is there."""

import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faults.evidence.checker import Findings
from faults.evidence.records import Record
from faults.experiment import Outcome, Setting
from faults.experiments import (
    e01_worker_tree_dies,
    e02_every_step,
    e03_zombie_returns,
    e05_rolling_deploy,
    e06_process_one,
    e07_stop_while_starting,
    e09_poison,
    e11_runaway,
    e14_leaks,
    e28_clocks,
    e33_checkpoint_starvation,
    soak,
)
from faults.tools.clock import WrongClock
from faults.tools.vitals import MB, MIB, Sample


def test_e01_wants_kills_that_cut_something_short_and_a_recovery_in_time() -> None:
    assert e01_worker_tree_dies.judge(Findings(recovery=[3.0, 19.9]), 10.0) == []
    [late] = e01_worker_tree_dies.judge(Findings(recovery=[3.0, 20.1]), 10.0)
    assert "after 20.1 s only" in late
    assert e01_worker_tree_dies.judge(Findings(), 10.0) == ["No kill has cut anything short."]


def test_e02_tells_of_points_without_time_and_of_places_where_nothing_was_caught() -> None:
    matrix = {"claimed -> x": 1, "running -> x": 1, "returned -> x": 1, "completed -> x": 1}
    places = e02_every_step.PLACES["plain"]
    assert e02_every_step.not_covered(Outcome(figures={"points": [9, 9], "matrix": matrix}), places) == []

    del matrix["claimed -> x"]
    assert e02_every_step.not_covered(Outcome(figures={"points": [7, 9], "matrix": matrix}), places) == [
        "only 7 of 9 points were tried",
        "nothing was caught while claimed",
    ]


def test_e03_wants_the_jobs_of_the_stopped_to_be_free_soon() -> None:
    assert e03_zombie_returns.kept_too_long([9.0, 23.9], 6.0) == []
    [late] = e03_zombie_returns.kept_too_long([9.0, 24.2], 6.0)
    assert "1 jobs were free after 24.2 s" in late


def test_e03_counts_the_jobs_that_were_under_way_in_what_was_stopped() -> None:
    def run(job: str, pid: int, began: float, ended: float) -> list[Record]:
        return [
            Record(what="start", at=began, pid=pid, job=job, token=1),
            Record(what="end", at=ended, pid=pid, job=job, token=1, outcome="done"),
        ]

    records = [*run("a", 7, 1, 9), *run("b", 7, 1, 2), *run("c", 8, 1, 9), *run("d", 9, 4, 9)]
    evidence: Any = SimpleNamespace(records=records)
    zombie = e03_zombie_returns.Zombie(3.0, 8.0, frozenset([7, 9]), fenced=True)
    paused = e03_zombie_returns.Paused(3.0, frozenset([8]), 2.0)

    assert e03_zombie_returns.touched([zombie], [paused], evidence) == 2, "a and c"


def test_e05_tells_of_stops_that_were_late_or_not_in_order() -> None:
    exits = [
        e05_rolling_deploy.Exit(0.4, 0),
        e05_rolling_deploy.Exit(1.4, 0),
        e05_rolling_deploy.Exit(0.4, 1),
    ]

    assert e05_rolling_deploy.judge_exits(exits, 1.0, "A worker") == [
        "A worker ended 1.4 s after SIGTERM, with exit code 0.",
        "A worker ended 0.4 s after SIGTERM, with exit code 1.",
    ]


def seen(**other: Any) -> e06_process_one.Round:
    given = {"start_for": 1.0, "exit_for": 0.4, "code": 0, "zombies": 0, "left": 0, "orphans": 2} | other
    return e06_process_one.Round(**given)


@pytest.mark.parametrize(
    ("round", "wrong"),
    [
        (seen(), 0),
        (seen(orphans=1), 1),
        (seen(zombies=1), 1),
        (seen(code=1), 1),
        (seen(exit_for=1.4), 0),
        (seen(exit_for=1.6), 1),
    ],
)
def test_e06_tells_of_orphans_that_nobody_adopted_and_of_slow_stops(
    round: e06_process_one.Round, wrong: int
) -> None:
    assert len(e06_process_one._complaints(round, busy=False, slack=0.5)) == wrong


@pytest.mark.parametrize(
    ("code", "below", "in_order"),
    [(0, 2, True), (-signal.SIGTERM, 0, True), (-signal.SIGTERM, 1, False), (1, 0, False), (None, 0, False)],
)
def test_e07_lets_the_signal_end_only_who_has_started_nobody(
    code: int | None, below: int, in_order: bool
) -> None:
    stop = e07_stop_while_starting.Stop(0.1, 0.1, code, below, 0)

    assert stop.in_order is in_order
    assert bool(e07_stop_while_starting._complaints(stop)) is not in_order


def test_e09_excuses_only_deaths_at_the_same_time_as_that_of_the_parent() -> None:
    def suicide(job: str, token: int, pid: int, parent: int, at: float) -> Record:
        return Record(what="fault", deed="suicide", job=job, token=token, pid=pid, parent=parent, at=at)

    records = [
        suicide("in a child", 1, 20, 10, 5.0),
        suicide("in a child", 2, 21, 10, 30.0),
        suicide("in the runner", 1, 10, 1, 30.5),
    ]

    assert e09_poison._suicides(records) == {"in a child": 1, "in the runner": 1}


def test_e11_finds_the_report_of_a_stuck_job_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("Worker w: Job 12 still runs after its soft limit of 0.5 s; a thread cannot be stopped\n")

    assert e11_runaway._is_told_of(12, log)
    assert not e11_runaway._is_told_of(2, log)


def children(*looks: tuple[float, int, int]) -> list[Sample]:
    """A child process at some looks: when, its megabytes, its files."""
    return [
        Sample(at=at, pid=5, role="child", rss=rss * MB, private=0, files=files, threads=3)
        for at, rss, files in looks
    ]


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (children((1000, 50, 9), (2000, 50, 9)), ""),
        ([], "0 child processes"),
        (children((1000, 50, 9), (1000, 50, 9), (1000, 50, 9)), "3 child processes"),
        (children((1000, 50, 9), (2000, 50, 10)), "9 to 10 files"),
        (children((1000, 50, 9), (2000, 51, 9)), "cost a child 100.00 MB"),
    ],
)
def test_e14_tells_of_children_that_are_many_or_grow(samples: list[Sample], said: str) -> None:
    wrong = e14_leaks.judged_children(samples, 5.0)

    assert [said in sentence for sentence in wrong] == ([True] if said else [])


@pytest.mark.parametrize("step", [300.0, -300.0])
def test_e28_sees_a_job_that_began_too_early_whatever_the_clock_does_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """It is judged by what the clock had shown until it began, not by what it shows afterwards."""
    now = [1_000.0]
    monkeypatch.setattr("time.time", lambda: now[0] + 5_000.0)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    shown = e28_clocks.Shown(WrongClock(tmp_path / "clock", 60.0))
    for now[0], by in ((1_010.0, step), (1_020.0, -step)):
        shown.step(by)
    due = 1_005.0 + 5_000.0 + 60.0

    def late(at: float) -> float:
        job: Any = SimpleNamespace(id="a", payload=f'{{"due":{due}}}')
        [late] = e28_clocks.lateness([job], [Record(what="start", at=at, pid=1, job="a")], shown)
        return late

    assert late(1_004.0) == pytest.approx(-1.0), "too early, before any step"
    assert late(1_006.0) == pytest.approx(1.0)
    assert late(1_015.0) == pytest.approx(310.0 if step > 0 else 5.0)
    assert late(1_030.0) == pytest.approx(315.0 if step > 0 else 25.0)


@pytest.mark.parametrize(
    ("peak", "advice", "wrong"),
    [(70, "warning: long", 0), (70, "ok: fine", 1), (63, "warning: long", 1), (63, "ok: fine", 1)],
)
def test_e33_wants_a_long_log_and_a_warning_of_it(peak: int, advice: str, wrong: int) -> None:
    judged = e33_checkpoint_starvation.judged
    assert len(judged(8 * MIB, peak * MIB, 8 * MIB, shrunk=True, advice=advice)) == wrong


def ended(task: str, state: str, kind: str | None = None) -> Any:
    return SimpleNamespace(task=task, state=state, failure_kind=kind)


def test_the_soak_excuses_only_what_was_meant_to_end_otherwise() -> None:
    """I13"""
    fine = [
        ended("brief", "completed"),
        ended("failing", "failed", "error"),
        ended("poison", "failed", "crash_loop"),
        ended("cancelled", "cancelled"),
        ended("cancelled", "completed"),
    ]
    assert soak.astray(fine) == []

    stray = [
        ended("brief", "failed", "crash_loop"),
        ended("brief", "failed", "crash_loop"),
        ended("failing", "failed", "crash_loop"),
        ended("poison", "completed"),
        ended("long", "cancelled"),
    ]
    assert soak.astray([*fine, *stray]) == [
        "2 brief jobs are failed (crash_loop)",
        "1 failing jobs are failed (crash_loop)",
        "1 long jobs are cancelled",
        "1 poison jobs are completed",
    ]


def test_the_soak_counts_only_what_was_really_done(tmp_path: Path) -> None:
    class Idle(soak.Troupe):
        def __init__(self) -> None:
            self.stage: Any = SimpleNamespace(setting=Setting(engine="", folder=tmp_path, seed=1, full=False))
            self.done, self.wrong, self._began = Counter(), [], 0.0
            self._deeds = {"stop": lambda: True, "kill a runner": lambda: False}

    troupe = Idle()
    troupe.disturb([(0.0, "stop"), (0.0, "kill a runner"), (0.0, "stop")])

    assert (troupe.done["stop"], troupe.done["kill a runner"]) == (2, 0)
    assert troupe.wrong == ["it never came to this: kill a runner"]
