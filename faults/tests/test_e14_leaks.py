"""E14 in its short form; `python3 dev.py faults --experiment E14` runs 200 000 jobs."""

import sys
from pathlib import Path

import pytest

from faults.experiment import Setting
from faults.experiments.e14_leaks import EXPERIMENT

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]


def test_a_worker_holds_no_more_files_threads_and_memory_after_many_jobs(tmp_path: Path) -> None:
    """S1-4, E14, I18."""
    outcome = EXPERIMENT.run(Setting(engine="sqlite", folder=tmp_path, seed=1, full=False))

    print(outcome)
    assert outcome.passed, repr(outcome)
    assert outcome.n == 1_800
    assert outcome.figures["runner"]["rss_mb"] > 10
