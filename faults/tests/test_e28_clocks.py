"""E28 in its short form: a host whose clock is wrong and steps."""

from pathlib import Path

import pytest

from faults.experiment import Setting
from faults.experiments import e28_clocks

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(180)]


def test_a_clock_that_is_wrong_and_steps_loses_nothing_and_starts_nothing_early(tmp_path: Path) -> None:
    """E28; I1-I6, I10: one hour ahead with a step of five minutes back, one hour behind with thirty seconds back."""
    outcome = e28_clocks.EXPERIMENT.run(Setting(engine="sqlite", folder=tmp_path, seed=28, full=False))

    assert outcome.passed, repr(outcome)
    assert (outcome.n, outcome.figures["steps"]) == (120, 4)
