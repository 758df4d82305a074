"""What the comparison counts, it counts right: commits, processor time, written bytes, and handlers that began."""

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import probe
from bench.gauge import CommitCounter, Gauge, usage_of

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the costs come from /proc")


def make(path: Path, journal: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("CREATE TABLE t (x INTEGER)")
    return connection


@pytest.mark.parametrize("journal", ["wal", "delete", "truncate"])
def test_each_commit_counts_one(tmp_path: Path, journal: str) -> None:
    writer = make(tmp_path / "a.db", journal)
    counter = CommitCounter(tmp_path / "a.db")
    before = counter.read()

    for number in range(100):
        writer.execute("INSERT INTO t VALUES (?)", (number,))

    assert counter.read() - before == 100
    counter.close()
    writer.close()


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_transaction_counts_one_and_a_look_none(tmp_path: Path, journal: str) -> None:
    writer = make(tmp_path / "a.db", journal)
    counter = CommitCounter(tmp_path / "a.db")
    before = counter.read()

    writer.execute("BEGIN IMMEDIATE")
    writer.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(1000)])
    writer.execute("COMMIT")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO t VALUES (1)")
    writer.execute("ROLLBACK")
    writer.execute("SELECT count(*) FROM t").fetchone()

    assert counter.read() - before == 1
    counter.close()
    writer.close()


def test_commits_count_through_checkpoints_and_when_writers_come_and_go(tmp_path: Path) -> None:
    make(tmp_path / "a.db", "wal").close()
    counter = CommitCounter(tmp_path / "a.db")
    before = counter.read()

    for number in range(10):
        writer = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        writer.execute("INSERT INTO t VALUES (?)", (number,))
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        writer.close()

    assert counter.read() - before == 10
    counter.close()


def test_a_gauge_counts_from_a_process_of_its_own(tmp_path: Path) -> None:
    writer = make(tmp_path / "a.db", "wal")
    with Gauge(tmp_path / "a.db") as gauge:
        before = gauge.read()
        for number in range(7):
            writer.execute("INSERT INTO t VALUES (?)", (number,))
        assert gauge.read() - before == 7
    writer.close()


@linux
def test_what_a_process_and_its_children_use_is_counted(tmp_path: Path) -> None:
    write = f"open({str(tmp_path / 'f')!r}, 'wb', buffering=0).write(b'x' * 300_000)"
    spin = "import time; end = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
    child = f"{spin}\n{write}\nprint('done', flush=True); input()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        used = usage_of([process.pid])
        process.communicate(b"\n")

    assert used.cpu >= 0.09
    assert 300_000 <= used.written < 400_000
    assert usage_of([process.pid]) == (0.0, 0)


def test_handlers_leave_notes_that_others_can_read(tmp_path: Path) -> None:
    script = "from bench.probe import hit; import os, time\nhit(1); hit(2); hit(time.monotonic_ns())"
    forked = f"{script}\nif os.fork():\n    os.wait()\nelse:\n    hit(3)\n    os._exit(0)"
    before = time.monotonic_ns()
    subprocess.run(
        [sys.executable, "-c", forked],
        check=True,
        cwd=Path(probe.__file__).parent.parent,
        env={**os.environ, "BENCH_PROBE": str(tmp_path)},
    )

    seen = probe.look(tmp_path)

    assert seen.began == 4
    assert before < seen.first < seen.last < time.monotonic_ns()
    (wait,) = probe.waits(tmp_path)
    assert 0 <= wait < 1_000_000_000
    assert len(list(tmp_path.iterdir())) == 2
