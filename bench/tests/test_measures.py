"""The measures run, so that they do not rot; what they measure is not judged here."""

import json
import subprocess
import sys

import pytest

from bench.footprint import GOALS
from dev import ROOT

pytestmark = pytest.mark.engine("sqlite")


def bench(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_help_lists_the_kinds() -> None:
    assert {"speed", "footprint", "http", "schedules"} <= set(bench("--help").split())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the figures come from /proc")
def test_the_footprint_is_published() -> None:
    figures = json.loads(bench("footprint", "--seconds", "0.5", "--settle", "3", "--jobs", "3", "--json"))

    assert set(GOALS) <= set(figures)
    assert figures["idle processes"] == 2, "a supervisor and a runner, and nobody who waits for work"
    assert figures["idle processes, 3 runners"] == 4
    assert all(figure >= 0 for name, figure in figures.items() if "pick-up" not in name)


def test_the_costs_of_schedules_are_published() -> None:
    words = ("--schedules", "30", "--crowd", "10", "--seconds", "3", "--ahead", "4")

    told = bench("schedules", *words)

    for measure in ("a look at 30 that are added", "a crowd of 10 that are declared", "lateness at rest"):
        assert f"| {measure}" in told


def test_the_speed_is_published() -> None:
    figures = json.loads(bench("speed", "--rounds", "1", "--jobs", "50", "--json"))

    assert "bare insert" in figures
