"""E01, E03, E04, E05: processes are killed, stopped, put to sleep and replaced. Short forms of the experiments."""

import sys
from pathlib import Path

import pytest

from faults.experiment import Experiment, Outcome, Setting
from faults.experiments import e01_worker_tree_dies as e01
from faults.experiments import e03_zombie_returns as e03
from faults.experiments import e04_host_sleeps as e04
from faults.experiments import e05_rolling_deploy as e05

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc"),
]


def short_form(experiment: Experiment, folder: Path, seed: int = 6) -> Outcome:
    outcome = experiment.run(Setting(engine="sqlite", folder=folder, seed=seed, full=False))
    print(outcome)
    return outcome


def test_killed_workers_and_producers_cost_no_job_and_no_unlicensed_run(tmp_path: Path) -> None:
    """E01, I1-I6, I9, S1-7, S1-13, S1-14: what was acknowledged runs and ends, although whole workers are killed."""
    outcome = short_form(e01.EXPERIMENT, tmp_path)

    assert outcome.passed, repr(outcome)
    assert outcome.figures["workers killed"] >= 3
    assert outcome.figures["producers killed"] > 0
    assert outcome.n >= 300
    assert outcome.recovery, "something was cut short, and ran again"


def test_a_worker_that_returns_after_its_lease_settles_nothing_and_ends(tmp_path: Path) -> None:
    """E03, I3, I4, I6, S1-13, S1-14: others have its jobs by then; and a runner that is stopped is killed in time."""
    outcome = short_form(e03.EXPERIMENT, tmp_path)

    assert outcome.passed, repr(outcome)
    assert outcome.figures["zombies"] == outcome.figures["stopped runners"] == 1
    if outcome.figures["fenced"]:
        assert outcome.figures["refused"] + outcome.figures["stopped"] > 0


def test_a_host_that_sleeps_for_two_leases_costs_nothing(tmp_path: Path) -> None:
    """E04, I6, S1-4: nobody is fenced, and no job runs twice, because nobody is dead."""
    outcome = short_form(e04.EXPERIMENT, tmp_path)

    assert outcome.passed, repr(outcome)
    assert outcome.figures["rounds"] == 1
    assert outcome.figures["false fences"] == 0


def test_rolling_deploys_end_in_time_and_never_count_as_failures(tmp_path: Path) -> None:
    """E05, I14, I17, S0-21, S2-35: workers end within their limit, and what they give back is none the worse for it."""
    outcome = short_form(e05.EXPERIMENT, tmp_path)

    assert outcome.passed, repr(outcome)
    assert outcome.figures["deploys"] == e05.SHORT.deploys
    assert outcome.figures["releases"] > 0, "some jobs outlived their worker"
    assert outcome.figures["releases counted as failures"] == 0
