"""`shigoto bench` on PostgreSQL, as a real process on a store that was migrated."""

import json
import subprocess
from pathlib import Path

import pytest

from shigoto import Shigoto
from shigoto.bench.place import QUEUE
from tests.journeys.yard import SHIGOTO, Yard

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]


def bench(folder: Path, address: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*SHIGOTO, "--url", address, "bench", "--jobs", "20", "--rounds", "1", *words],
        cwd=folder,
        env=Yard(folder).environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


def test_a_server_is_measured_and_nothing_is_left_in_it(tmp_path: Path, postgres_database: str) -> None:
    app = Shigoto(postgres_database)
    app.engine.migrate()

    done = bench(tmp_path, postgres_database, "--only", "enqueue,drain", "--json")

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["engine"] == "postgres"
    assert told["rates"]["enqueue"]["median"] > 0
    assert told["rates"]["drain"]["median"] > 0
    assert app.count(queue=QUEUE) == 0
    app.close()
    assert postgres_database not in done.stdout + done.stderr, "the address holds a password"


def test_a_bench_never_makes_the_schema(tmp_path: Path, postgres_database: str) -> None:
    done = bench(tmp_path, postgres_database)

    assert done.returncode == 1
    assert "shigoto migrate" in done.stderr
