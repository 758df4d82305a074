"""Our own runner of the comparison, as a plain script: every command, with a handful of jobs."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.contract import One, Runner
from bench.measuring import latency
from devtools.environment import ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the costs come from /proc")


@pytest.fixture(name="run")
def running(tmp_path: Path) -> Any:
    def run(*words: str, **env: str) -> Any:
        done = subprocess.run(
            [sys.executable, str(ROOT / "bench" / "shigoto_runner.py"), *words],
            cwd=tmp_path,
            env={**os.environ, "BENCH_SQLITE_DIR": str(tmp_path / "stores"), **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_it_says_what_it_is_and_how_it_syncs(run: Any) -> None:
    assert run("info")["promises"]["synchronous"] == "FULL"
    assert run("info", SYNC="NORMAL")["promises"]["synchronous"] == "NORMAL"


def test_jobs_are_stored_one_by_one_in_bulk_and_by_concurrent_callers(run: Any) -> None:
    for answer, jobs, warm_up in (
        (run("enqueue", "30"), 30, 20),
        (run("bulk", "1500"), 1500, 0),
        (run("concurrent", "150", CALLERS="64"), 128, 1),
    ):
        assert answer["jobs_per_s"] > 0
        assert (answer["n"], answer["enqueued"], answer["stored"]) == (jobs, jobs + warm_up, jobs + warm_up)


def test_a_drain_may_have_its_log_lines(run: Any) -> None:
    assert run("drain", "50", LOG="info")["finished"] == 50


@pytest.mark.parametrize("kind", ["async", "sync", "payload", "failures"])
def test_a_drain_is_verified_and_its_costs_are_counted(run: Any, kind: str) -> None:
    answer = run("drain", "200", KIND=kind)

    assert answer["hits"] == answer["hits_expected"] == (210 if kind == "failures" else 200)
    assert answer["left"] == 0
    assert answer["finished"] == 200
    assert 0 < answer["commits_per_job"] < 1
    assert answer["written_bytes_per_job"] > 0


def test_a_drain_begins_with_a_copy_of_what_was_prepared(run: Any, tmp_path: Path) -> None:
    for kind in ("history", "future", "unknown"):
        assert run("prepare", "300", kind, "--store", str(tmp_path / kind))["n"] == 300

        answer = run("drain", "100", "--store", str(tmp_path / kind))

        assert (answer["hits"], answer["left"], answer["finished"]) == (100, 0, 100)
    assert run("look", "3", "--store", str(tmp_path / "history"))["finished"] == 300
    assert run("look", "3")["finished"] == 50


def test_history_and_future_can_be_asked_for_on_the_spot(run: Any) -> None:
    answer = run("drain", "100", "--history", "50", "--future", "50", "--procs", "2")

    assert (answer["hits"], answer["left"], answer["finished"]) == (100, 0, 100)


def test_latency_is_measured_from_the_call(run: Any) -> None:
    answer = run("latency", "5")

    assert answer["n"] == 5
    assert 0 < answer["p50_ms"] <= answer["p99_ms"] <= answer["max_ms"]


def test_a_fleet_drains_what_is_stored_once_all_of_it_is_ready(run: Any) -> None:
    answer = run("fleet", "300", "--procs", "2")

    assert (answer["n"], answer["hits"], answer["left"], answer["procs"]) == (300, 300, 0, 2)
    assert answer["jobs_per_s"] > 0


def test_each_job_that_arrives_at_a_fleet_is_timed(run: Any) -> None:
    answer = run("arrivals", "100", "--procs", "2", RATE="200", CALLS="async")

    assert answer["n"] == 100
    assert 0 < answer["p50_ms"] <= answer["p99_ms"] <= answer["max_ms"]


def test_a_latency_of_some_of_the_jobs_is_an_error(tmp_path: Path) -> None:
    class Lazy(Runner):
        name = "lazy"

        def store(self) -> Path:
            return tmp_path / "lazy.db"

        @asynccontextmanager
        async def producer(self) -> AsyncIterator[tuple[One, None]]:
            yield lambda number: None, None

        def worker_cmd(self) -> list[str]:
            begin = "import time; from bench.probe import hit; [hit(1) for _ in range(10)]; hit(time.monotonic_ns())"
            return [sys.executable, "-c", begin]

    answer = latency(Lazy(), 5)

    assert answer["n"] == 1
    assert answer["error"].startswith("only 1 of 5 jobs began")


def test_another_harness_may_be_in_charge(run: Any, tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text(
        "SQLITE_DIR = '.'\n"
        "class Runner: pass\n"
        "def hit(number): pass\n"
        'def main(runner): print(\'{"by": "another", "name": "\' + runner.name + \'"}\')\n'
    )

    assert run("info", BENCH_HOME=str(tmp_path), PYTHONPATH=str(tmp_path)) == {
        "by": "another",
        "name": "shigoto",
    }
    assert run("info", PYTHONPATH=str(tmp_path))["cmd"] == "info"
