"""`bench speed --url` on a PostgreSQL store."""

import json
import subprocess
import sys

import pytest

from bench.speed import MEASURES
from dev import ROOT
from shigoto import Shigoto

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]


def bench(address: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bench", "speed", "--url", address, "--jobs", "20", "--rounds", "1", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


def test_a_server_is_measured_and_nothing_is_left_in_it(postgres_database: str) -> None:
    app = Shigoto(postgres_database)
    app.engine.migrate()

    done = bench(postgres_database, "--json")

    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == set(MEASURES)
    assert app.count() == 0
    app.close()
    assert postgres_database not in done.stdout + done.stderr, "the address holds a password"


def test_a_bench_never_makes_the_schema(postgres_database: str) -> None:
    done = bench(postgres_database)

    assert done.returncode == 1
    assert "shigoto migrate" in done.stderr
