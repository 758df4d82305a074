"""The measures run, so that they do not rot; what they measure is not judged here."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.footprint import GOALS
from bench.speed import MEASURES, QUEUE
from dev import ROOT
from shigoto import Shigoto
from tests.journeys.yard import eventually

pytestmark = pytest.mark.engine("sqlite")


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bench", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def bench(*words: str) -> str:
    done = run(*words)
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

    assert set(figures) == {"bare insert", *MEASURES}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shigoto]:
    """A store in use, with one job."""
    app = Shigoto(tmp_path / "shop.db")
    app.enqueue_by_name("greet", {}, allow_unknown=True)
    yield app
    app.close()


def test_a_store_that_is_named_is_measured_and_keeps_only_its_own_jobs(shop: Shigoto, tmp_path: Path) -> None:
    told = bench("speed", "--rounds", "2", "--jobs", "50", "--url", f"{tmp_path}/shop.db")

    assert [line.split("  ")[0] for line in told.splitlines()[1:]] == ["bare insert", *MEASURES]
    assert [job.task for job in shop.find()] == ["greet"]
    assert {path.name for path in tmp_path.iterdir()} <= {
        f"shop.db{end}" for end in ("", "-wal", "-shm", "-bell")
    }


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    done = run("speed", "--url", f"{tmp_path}/shop.db")

    assert done.returncode == 1
    assert "There is no such file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_two_measures_of_one_store_have_a_queue_each(shop: Shigoto, tmp_path: Path) -> None:
    shop.enqueue_by_name("greet", {}, allow_unknown=True, queue=QUEUE, key=QUEUE)  # as another bench does

    done = run("speed", "--rounds", "1", "--jobs", "50", "--url", f"{tmp_path}/shop.db")

    assert done.returncode == 0, done.stderr
    assert f"`shigoto clear all queue:{QUEUE}`" in done.stderr
    assert shop.count() == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_measure_deletes_what_it_has_stored(
    shop: Shigoto, tmp_path: Path, number: signal.Signals
) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("a shell that runs programs in the background makes them ignore this signal")
    words = ("speed", "--jobs", "100000", "--url", f"{tmp_path}/shop.db")
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    eventually(lambda: shop.count() > 10)

    process.send_signal(number)

    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == "Interrupted. What was stored is deleted."
    assert shop.count() == 1
