"""Experiments with the processes of a worker, in their short forms: E06 to E11."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.experiment import Experiment, Outcome, Setting
from faults.experiments import (
    e06_process_one,
    e07_stop_while_starting,
    e08_supervisor_dies,
    e09_poison,
    e10_beat_starvation,
    e11_runaway,
)

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc"),
]

Run = Callable[[Experiment], Outcome]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the short form of an experiment, and expects that every promise was kept."""

    def run(experiment: Experiment) -> Outcome:
        setting = Setting(engine="sqlite", folder=tmp_path, seed=6, full=False)
        outcome = experiment.run(setting)
        if outcome.skipped:
            pytest.skip(outcome.skipped)
        assert outcome.passed, (outcome.wrong, outcome.zeros, outcome.figures)
        return outcome

    return run


def test_e06_as_process_1_a_worker_reaps_all_orphans_and_stops_in_time(run: Run) -> None:
    """E06, I14, F52, S0-21: idle or at work, it ends within its limit, and no zombie is left."""
    figures = run(e06_process_one.EXPERIMENT).figures

    assert figures["orphans adopted"] >= 4
    assert figures["zombies"] == 0


def test_e07_a_stop_during_the_start_strands_no_claim(run: Run) -> None:
    """E07, F54, S0-21: whenever it comes, nothing stays claimed and nobody stays registered."""
    figures = run(e07_stop_while_starting.EXPERIMENT).figures

    assert figures["rounds"] == 6
    assert figures["exit codes"].get("0", 0) >= 1, "some had begun to work"


def test_e08_what_a_killed_supervisor_leaves_behind_ends_by_itself(run: Run) -> None:
    """E08, I6, C15, S1-13, S1-14: runner and child processes are gone at once, and others run their jobs."""
    figures = run(e08_supervisor_dies.EXPERIMENT).figures

    assert figures["supervisors killed"] == 3
    assert figures["processes below them"] >= 9
    assert figures["jobs cut short"] >= 12


def test_e09_poison_is_put_away_and_no_bystander_ever_is(run: Run) -> None:
    """E09, I13, S1-26: whatever way a job kills its process, it takes one crowd with it, and then only itself."""
    figures = run(e09_poison.EXPERIMENT).figures

    assert figures["poison"] >= 12
    assert figures["processes killed"] >= 12
    assert figures["bystanders quarantined"] == 0


def test_e10_nobody_is_fenced_whose_handlers_starve_its_beat(run: Run) -> None:
    """E10, F47, S1-13: for three leases the loop is blocked or the interpreter held; the supervisor vouches."""
    figures = run(e10_beat_starvation.EXPERIMENT).figures

    assert figures["starved runs"] == 4
    assert set(figures["false fences"].values()) == {0}


def test_e11_runaway_handlers_are_ended_and_their_places_come_back(run: Run) -> None:
    """E11, F49, F50, S0-71: at its limit, or a grace later by force; every job behind them runs."""
    figures = run(e11_runaway.EXPERIMENT).figures

    assert figures["overrun p100 (s)"] > 1, "some had to be killed"
    assert len(figures["killed"]) >= 3
    assert figures["threads that nobody could end"] == figures["the log tells of"] == 1
