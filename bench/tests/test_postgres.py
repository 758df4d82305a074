"""Our own runner on PostgreSQL, as a plain script: every command, with a handful of jobs; and what is told of costs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from devtools.environment import ROOT
from devtools.postgres import Server

pytestmark = [
    pytest.mark.engine("postgres"),
    pytest.mark.newest_postgres,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the costs come from /proc"),
]


@pytest.fixture(name="run")
def running(tmp_path: Path, postgres: Server) -> Any:
    """Runs a command; databases of its own are dropped with the server."""

    def run(*words: str, **env: str) -> Any:
        told = {"ENGINE": "postgres", "BENCH_POSTGRES": postgres.address}
        done = subprocess.run(
            [sys.executable, str(ROOT / "bench" / "shigoto_runner.py"), *words],
            cwd=tmp_path,
            env={**os.environ, **told, "BENCH_POSTGRES_PID": str(postgres.pid), **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_jobs_are_stored_in_every_way_and_what_that_costs_is_told(run: Any) -> None:
    for answer, jobs, warm_up in (
        (run("enqueue", "30", CALLS="async"), 30, 20),
        (run("enqueue", "30", CALLS="sync"), 30, 20),
        (run("bulk", "1500"), 1500, 0),
    ):
        assert answer["jobs_per_s"] > 0
        assert (answer["n"], answer["enqueued"], answer["stored"]) == (jobs, jobs + warm_up, jobs + warm_up)
        assert answer["wal_bytes_per_job"] > 100
        assert 0 < answer["commits_per_job"] < 2
        assert answer["server_us_per_job"] >= 0

    answer = run("concurrent", "150", CALLERS="64")

    assert (answer["n"], answer["stored"]) == (128, 129)


def test_a_drain_is_verified_and_its_costs_are_counted_also_while_a_transaction_is_open(run: Any) -> None:
    answer = run("drain", "200", "--procs", "2", "--held")

    assert (answer["hits"], answer["left"], answer["finished"]) == (200, 0, 200)
    assert answer["wal_bytes_per_job"] > 100
    assert 0 < answer["commits_per_job"] < 2
    assert answer["dead_rows_per_job"] >= 2, "a job leaves ready, and running"


def test_history_is_made_by_the_server_and_looks_like_real_jobs(run: Any, postgres: Server) -> None:
    assert run("prepare", "3000", DATABASE="grown_history")["n"] == 3000

    with psycopg.connect(postgres.address_of("grown_history")) as connection:
        rows = connection.execute("SELECT count(*), count(DISTINCT id) FROM shigoto.job").fetchone()
        ascending = connection.execute(
            "SELECT count(*) FROM (SELECT id, lag(id) OVER (ORDER BY number) AS last FROM shigoto.job) j"
            " WHERE left(id::text, 13) < left(last::text, 13)"
        ).fetchone()
        done = connection.execute(
            "SELECT count(*) FROM shigoto.done d JOIN shigoto.job USING (number) WHERE state = 3"
        ).fetchone()
    assert rows == (3010, 3010)
    assert ascending == (0,)
    assert done == (3010,)
    grown = {"DATABASE": "grown_history", "PREPARED": "history"}
    answer = run("drain", "100", **grown)
    assert (answer["hits"], answer["left"], answer["finished"]) == (100, 0, 100)
    looked = run("look", "5", **grown)
    assert looked["finished"] == 3010 + 100 + 50 + 1 + 5, "it leaves nothing for the next drain"
    assert min(looked[key] for key in ("enqueue_ms", "claim_ms", "stats_ms", "get_ms")) > 0


def test_future_jobs_wait_for_tomorrow_at_a_better_priority(run: Any, postgres: Server) -> None:
    assert run("prepare", "2000", "future", DATABASE="grown_future")["n"] == 2000

    with psycopg.connect(postgres.address_of("grown_future")) as connection:
        waiting = connection.execute(
            "SELECT count(*), min(priority) FROM shigoto.scheduled JOIN shigoto.job USING (number, lane, run_at)"
            " WHERE scheduled.run_at > shigoto.now() + 80000000"
        ).fetchone()
    assert waiting == (2010, 5)


def test_a_flow_tells_the_sizes_of_tables_over_time(run: Any) -> None:
    answer = run("flow", "3000", RATE="5000")

    assert (answer["hits"], answer["finished"]) == (3000, 3000)
    assert answer["samples"][-1]["jobs"] == 3000
    assert answer["hot_mb_late"] > 0
    assert answer["history_bytes_per_job"] > 50


def test_without_a_server_it_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.peers.postgres.pgmq", "reset"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("BENCH_")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "`python3 dev.py bench --peers postgres` sets it" in done.stderr
