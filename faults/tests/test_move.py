"""MOVE in its short form: a store is moved while it is used, and everybody is killed now and then."""

import sys

import pytest

from faults.experiment import Setting
from faults.experiments import move

pytestmark = [
    pytest.mark.engine("postgres"),
    pytest.mark.newest_postgres,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc"),
]


def test_a_move_under_load_loses_nothing_whoever_is_killed(on_postgres: Setting) -> None:
    """S0-70, I1-I6, I9: each job is in one store, with its number, key and history, and runs there or before."""
    outcome = move.EXPERIMENT.run(on_postgres)

    assert outcome.passed, (outcome.wrong, outcome.zeros, outcome.figures)
    assert outcome.n > move.SHORT.filled + move.SHORT.there
    assert outcome.figures["jobs moved"] >= move.SHORT.filled
    assert {"completed", "pending", "cancelled", "failed"} <= set(outcome.figures["of these"])
    assert outcome.figures["move killed while"]["copying"] == 1
