"""E02 in its short form: `kill -9` at system calls anywhere between an enqueue and its settlement."""

from pathlib import Path

import pytest

from faults.experiment import Setting
from faults.experiments.e02_every_step import EXPERIMENT

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(300)]


def test_a_process_killed_at_any_step_leaves_what_another_one_can_finish(tmp_path: Path) -> None:
    """E02, I1-I6, I7, I9 (C1, C2, C4, C6-C9): nothing acknowledged is lost, what is completed does not run again."""
    outcome = EXPERIMENT.run(Setting(engine="sqlite", folder=tmp_path, seed=1, full=False))
    if outcome.skipped:
        pytest.skip(outcome.skipped)

    assert outcome.passed, repr(outcome)
    assert outcome.n >= 4
