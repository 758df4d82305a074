"""E49 in its short form: hostile input through Python, the command line and by hand."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from faults.experiment import Setting
from faults.experiments import e49_hostile_input
from faults.tools.rows import Rows
from shigoto import Shigoto

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(180)]


def test_hostile_input_is_refused_clearly_or_fails_cleanly_and_nothing_is_stuck(tmp_path: Path) -> None:
    """E49; I1, I2, F12: nothing crashes, nothing is stuck, no terminal is given a command, memory stays bounded."""
    outcome = e49_hostile_input.EXPERIMENT.run(Setting(engine="sqlite", folder=tmp_path, seed=49, full=False))

    assert outcome.passed, repr(outcome)
    assert (outcome.figures["crashes"], outcome.figures["stuck"]) == (0, 0)
    assert min(outcome.figures[word] for word in ("refused", "accepted", "failed cleanly")) > 5
    assert all(sum(counts) for counts in outcome.figures["by door"].values())


def test_every_row_that_is_written_by_hand_fits_the_tables(tmp_path: Path) -> None:
    """The short form takes a few of them only."""
    app = Shigoto(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task
    def echo(value: int) -> int:
        return value

    with closing(app):
        echo.enqueue(1)
        rows = Rows(tmp_path / "jobs.db", "echo")
        for _, statement in rows.deeds():
            with suppress(sqlite3.IntegrityError):
                rows.spoil(statement)
