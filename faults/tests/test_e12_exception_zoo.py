"""E12 in its short form: handlers that end in every way but a good one, in one real worker."""

from pathlib import Path

import pytest

from faults.experiment import Setting
from faults.experiments import e12_exception_zoo

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(180)]


def test_whatever_handlers_raise_or_return_the_state_is_right_and_the_worker_goes_on(tmp_path: Path) -> None:
    """E12; I2-I4, F12, F13, F36, F50: each case in the event loop and in a thread, some in child processes."""
    outcome = e12_exception_zoo.EXPERIMENT.run(Setting(engine="sqlite", folder=tmp_path, seed=12, full=False))

    assert outcome.passed, repr(outcome)
    assert outcome.figures["cases"] >= 40
    assert outcome.figures["jobs"] > 2 * 40
    assert outcome.figures["stuck"] == 0
