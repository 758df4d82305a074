"""E15 and E19 in their short forms: a server that crashes, and lines that are cut before an answer comes."""

import sys

import pytest

from faults.experiment import Setting
from faults.experiments import e15_server_crash, e19_ambiguous_commit

pytestmark = [
    pytest.mark.engine("postgres"),
    pytest.mark.newest_postgres,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc"),
]


def test_e15_a_server_that_crashes_costs_no_job_and_no_effect(on_postgres: Setting) -> None:
    """E15, I1-I6, I9, I16: what was acknowledged ends once, and work goes on soon after the return."""
    outcome = e15_server_crash.EXPERIMENT.run(on_postgres)

    assert outcome.passed, (outcome.wrong, outcome.zeros, outcome.figures)
    assert outcome.figures["crashes"] == 2
    assert outcome.figures["runs in flight at a crash"] > 0


def test_e19_a_line_that_is_cut_before_the_answer_does_nothing_twice(on_postgres: Setting) -> None:
    """E19, I1, I7, I9: enqueues, settlements and commits whose outcome nobody was told."""
    outcome = e19_ambiguous_commit.EXPERIMENT.run(on_postgres)

    assert outcome.passed, (outcome.wrong, outcome.zeros, outcome.figures)
    unknown = outcome.figures["unknown"]
    assert all(unknown[name] > 0 for name in ("enqueue", "settle", "commit"))
    assert outcome.figures["done twice"] == {"enqueue": 0, "claim": 0, "settle": 0}
